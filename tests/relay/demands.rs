//! What a request counts for at its engine: what can be to do for it there, from when that can be; and what the engine
//! refused for nothing.

use std::time::Duration;

use warmfront::counters::stats::{Count, Reading, Timing, TokenCount};
use warmfront::policy::Policy;

use crate::client::post;
use crate::engine::{Engine, ok};
use crate::front::Front;

const HELD_BYTES: usize = 10_000;

/// A front that holds little, before an engine whose prompts have at most so many tokens.
fn front(engines: &[Engine], context: Option<u32>) -> Front {
    let addresses: Vec<_> = engines.iter().map(|engine| engine.address).collect();
    Front::with(&addresses, |options| {
        options.settings.policy = Policy::Warm;
        options.rules.limits.hold_bytes = HELD_BYTES;
        options.context = context;
    })
}

fn completion(prompt: &str) -> Vec<u8> {
    post("/v1/completions", format!(r#"{{"model":"tiny-llama","prompt":"{prompt}"}}"#))
}

/// An engine that refuses what is longer than so much.
fn engine_up_to(bytes: usize) -> Engine {
    Engine::run(move |mut connection| {
        while let Some(request) = connection.request() {
            match request.body.len() > bytes {
                true => connection.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno"),
                false => connection.send(ok("{}")),
            }
        }
    })
}

#[test]
fn an_upload_is_work_for_its_engine_once_it_is_there() {
    let engines = [0, 1].map(|_| Engine::answering(ok("{}")));
    let front = front(&engines, None);
    let loads = front.counters.loads();
    let pending = || loads.pending(0) + loads.pending(1);
    let request = completion(&"word ".repeat(40_000));
    let mut client = front.connect();
    client.send(&request[..request.len() / 2]);
    front.until("the choice", |front| (0..2).any(|slot| front.counters.in_flight(slot) == 1));
    assert_eq!((pending(), front.tokens(TokenCount::New)), (0, 0));
    assert_eq!([0, 1].map(|slot| loads.resident(slot) + loads.prompted(slot)), [0, 0]);
    client.send(&request[request.len() / 2..]);
    assert_eq!(client.reply().status, 200);
    front.settles();
    assert!((50_000..50_100).contains(&front.tokens(TokenCount::New)), "{}", front.tokens(TokenCount::New));
    assert!((200_000..201_000).contains(&(loads.prompted(0) + loads.prompted(1))));
}

#[test]
fn who_leaves_amid_an_upload_leaves_nothing_behind() {
    let engine = Engine::answering(ok("{}"));
    let front = front(std::slice::from_ref(&engine), None);
    let request = completion(&"word ".repeat(40_000));
    let mut client = front.connect();
    client.send(&request[..request.len() / 2]);
    front.until("the choice", |front| front.counters.in_flight(0) == 1);
    drop(client);
    front.settles();
    let index = front.published.current().index.clone().unwrap();
    assert_eq!((index.figures(0).blocks, front.counters.loads().prompted(0)), (0, 0));
}

/// The choice is made amid the image's own bytes: what comes behind it is not text.
#[test]
fn the_rest_of_an_image_is_no_text() {
    let front = front(&[Engine::answering(ok("{}"))], None);
    let image = format!("data:image/png;base64,{}", "AAAB".repeat(500_000));
    let image = format!(r#"{{"type":"image_url","image_url":{{"url":"{image}"}}}}"#);
    let content = format!(r#"[{{"type":"text","text":"What is this?"}},{image}]"#);
    let body = format!(r#"{{"model":"tiny-llama","messages":[{{"role":"user","content":{content}}}]}}"#);
    assert_eq!(front.ask(post("/v1/chat/completions", body)).status, 200);
    front.settles();
    let tokens = front.tokens(TokenCount::New);
    assert!((1_000..1_100).contains(&tokens), "{tokens}");
}

#[test]
fn an_image_counts_as_many_tokens_as_are_configured() {
    let engine = Engine::answering(ok("{}"));
    let front = Front::with(&[engine.address], |options| {
        (options.settings.policy, options.settings.image_tokens) = (Policy::Warm, 5_000);
    });
    let image = r#"{"type":"image_url","image_url":{"url":"https://screens/1.png"}}"#;
    let body = format!(r#"{{"model":"tiny-llama","messages":[{{"role":"user","content":[{image},{image}]}}]}}"#);
    assert_eq!(front.ask(post("/v1/chat/completions", body)).status, 200);
    front.settles();
    assert_eq!(front.tokens(TokenCount::New), 10_000);
}

/// Who is refused, for want of a key or for length, does not drive what is known of a cache out of the index.
#[test]
fn what_is_refused_pushes_nothing_out() {
    let front = front(&[engine_up_to(5_000)], Some(8_000));
    let held = || {
        let before = front.tokens(TokenCount::Held);
        assert_eq!(front.ask(completion(&"first ".repeat(700))).status, 200);
        front.settles();
        front.tokens(TokenCount::Held) - before
    };
    assert_eq!(held(), 0);
    let known = held();
    assert!(known > 1_000);
    let blocks = || front.published.current().index.clone().unwrap().figures(0).blocks;
    let noted = blocks();
    for (name, bytes) in [(1, 9_000), (2, 9_000), (3, 9_900), (4, 200_000)] {
        let mut text = format!("{name} ").repeat(bytes / 2);
        text.truncate(bytes);
        assert_eq!(front.ask(completion(&text)).status, 401);
        front.settles();
        assert_eq!(blocks(), noted, "{bytes}");
    }
    assert_eq!((held(), front.counters.loads().prompted(0)), (known, 3 * 4_200));
}

/// A prompt is no longer than its engine takes; of a batch each.
#[test]
fn a_prompt_counts_for_as_much_as_its_model_takes() {
    for (context, tokens) in [(None, 25_000), (Some(2_000), 2_000)] {
        let front = front(&[Engine::answering(ok("{}"))], context);
        assert_eq!(front.ask(completion(&"word ".repeat(20_000))).status, 200);
        let batch = format!(r#"{{"model":"tiny-llama","prompt":[{}"a"]}}"#, r#""word word word word ","#.repeat(400));
        let one = front.tokens(TokenCount::New);
        assert!((tokens..tokens + 200).contains(&one), "{one}");
        assert_eq!(front.ask(post("/v1/completions", batch)).status, 200);
        front.settles();
        assert!((2_000..2_100).contains(&(front.tokens(TokenCount::New) - one)));
    }
}

/// Times to first token are the engine's, not those of a client that is long about its body.
#[test]
fn a_slow_upload_is_no_slow_first_token() {
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
                  9\r\ndata: a\n\n\r\n0\r\n\r\n";
    let front = front(&[Engine::answering(stream)], None);
    let request = post("/v1/completions", r#"{"model":"tiny-llama","stream":true,"prompt":"a"}"#);
    let (first, last) = request.split_at(request.len() - 5);
    let micros = |reading: Reading| (reading.count(), reading.sum);
    let told = || {
        let [pools, total] = [Timing::FirstToken, Timing::Total].map(|timing| front.stats.timing(0, timing));
        [pools, front.stats.first_tokens(0), total].map(micros)
    };
    let mut tries = Vec::new();
    // Behind the last byte the machine may stand still: hardly in each of three tries.
    let is_the_engines = (1..=3).any(|times| {
        let before = told();
        let mut client = front.connect();
        let read = front.count(Count::BytesIn);
        client.send(first);
        front.until("its first bytes", |front| front.count(Count::BytesIn) > read);
        std::thread::sleep(Duration::from_millis(400));
        client.send(last);
        assert_eq!(client.reply().status, 200);
        front.settles();
        let now = told();
        assert!(now.iter().all(|(count, _)| *count == times), "{now:?}");
        let [pools, engines, total] = [0, 1, 2].map(|at| now[at].1 - before[at].1);
        assert!(engines <= pools && total > 350_000, "{engines} {pools} {total}");
        tries.push(pools);
        pools < 350_000
    });
    assert!(is_the_engines, "{tries:?}");
}

/// An engine counts each answer, and each prompt, as a request.
#[test]
fn what_an_engine_counts_as_several_is_known_for_as_long() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let engine = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            wait.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            connection.send(ok("{}"));
        }
    });
    let front = front(std::slice::from_ref(&engine), None);
    let several = || front.counters.loads().several(0);
    for (asked, (fields, expected)) in (1..).zip([
        (r#""prompt":"a","n":1"#, 0),
        (r#""prompt":"a","n":8"#, 1),
        (r#""prompt":["a","b"]"#, 1),
        (r#""prompt":["a"]"#, 0),
    ]) {
        let mut client = front.connect();
        client.send(post("/v1/completions", format!(r#"{{"model":"tiny-llama",{fields}}}"#)));
        // By then all that the choice counts is counted.
        front.until("its engine's turn", |_| engine.executions() == asked);
        assert_eq!(several(), expected, "{fields}");
        go.send(()).unwrap();
        assert_eq!(client.reply().status, 200);
        front.settles();
        assert_eq!(several(), 0, "{fields}");
    }
}
