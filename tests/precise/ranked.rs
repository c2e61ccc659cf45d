//! Ranks behind one port, each of which tells its own cache by a port of its own.

use serde_json::json;

use crate::engine::Engine;
use crate::front::Front;
use crate::msgpack::packed;
use crate::publisher::Publisher;
use crate::scene::{body, config};
use crate::tokens::{Blocks, Dialect, chat_prompt, text};
use crate::{on_both, until};

/// The rank that was chosen, and how many tokens were held there.
fn chat(front: &Front, content: &str) -> (String, usize) {
    let body = body(content).to_string();
    let mut client = front.connect();
    client.send(&format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-warmfront-explain: 1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let head = client.head();
    assert!(head.start.contains(" 200 ") && client.body(&head).whole, "{}", head.start);
    let told = head.get("x-warmfront-explain").unwrap();
    let value = |name: &str| told.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap();
    (value("endpoint").to_owned(), value("held").parse().unwrap())
}

#[test]
fn each_rank_is_heard_by_its_own_port() {
    on_both(|driver| {
        let engine = Engine::start(false);
        let ranks = [Publisher::start(true), Publisher::start(true)];
        engine.has_ranks(&ranks.each_ref());
        let upstream = format!("[[upstream]]\nurl = \"http://{}\"\nname = \"gpu\"\nranks = 2\n", engine.address);
        let front = Front::start(driver, &[], &config(&upstream));
        until(&format!("{driver}: both ranks"), || ranks.iter().all(|rank| rank.connections() > 0));
        let rung = |place: usize| front.endpoint(place)["cache"]["rung"].clone();
        until(&format!("{driver}: both are exact"), || (0..2).all(|place| rung(place) == "exact"));
        let prompts = [90, 91].map(|seed| {
            let content = text(seed, 2_000);
            let blocks = Blocks::of(&chat_prompt(&content));
            (content, blocks)
        });
        ranks[0].publish(&[prompts[0].1.stored(Dialect::Maps)]);
        ranks[1].publish_bytes(|time| packed(&json!([time, [prompts[1].1.stored(Dialect::Maps)], 1])));
        let batches =
            |rank: usize| front.metric(&format!("warmfront_kv_events_batches_total{{endpoint=\"gpu@{rank}\""));
        until(&format!("{driver}: a batch of each"), || (0..2).all(|rank| batches(rank) >= 1.0));
        for _ in 0..3 {
            for (rank, (content, blocks)) in prompts.iter().enumerate() {
                assert_eq!(chat(&front, content), (format!("gpu@{rank}"), blocks.held()), "{driver}");
            }
        }
        // Another process has neither.
        ranks.iter().for_each(Publisher::goes);
        engine.is_another_process();
        ranks.iter().for_each(Publisher::begins_anew);
        until(&format!("{driver}: nothing is held"), || front.metric("warmfront_index_blocks") == 0.0);
    });
}
