//! A fleet that changes while a request's body comes.

use std::sync::Arc;

use warmfront::counters::stats::TokenCount;
use warmfront::policy::{Policy, Settings};

use crate::client::{Reply, chat, chunked, post, status};
use crate::engine::{Engine, ok};
use crate::front::{Front, republish};

/// The request's head came when there was one pool, so that no body was read for its model; the rest came when there
/// were two.
#[test]
fn a_fleet_that_grows_in_the_middle_of_a_body_is_met_with_all_of_it() {
    let engines = [Engine::answering(ok("a's")), Engine::answering(ok("b's"))];
    let (path, named_last) = ("/v1/chat/completions", |model: &str| {
        let model = if model.is_empty() { String::new() } else { format!(",\"model\":\"{model}\"") };
        format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]{model}}}"#, "hi ".repeat(40))
    });
    for (policy, default) in [(Policy::PrefixHash, None), (Policy::PrefixHash, Some(1)), (Policy::Warm, Some(1))] {
        for (model, text) in [("a", "a's"), ("b", "b's"), ("", "a's"), ("c", "")] {
            let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
                options.pools = vec![("a", vec![0]), ("b", vec![1])];
                options.settings.policy = policy;
            });
            republish(&front, |snapshot| snapshot.only = Some(snapshot.pools[0].id));
            front.until("one pool", |front| front.ask(chat("b", "hi")).text() == "a's");
            let body = named_last(model);
            let in_chunks = chunked(body.as_bytes(), 10);
            let begun = |framing: String, body: &[u8]| {
                let mut client = front.connect();
                let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n{framing}\r\n\r\n");
                client.send(head);
                assert_eq!(status(&client.head()), 100, "the head has been read");
                client.send(&body[..63]);
                (client, body[63..].to_vec())
            };
            let clients = [
                begun(format!("Content-Length: {}", body.len()), body.as_bytes()),
                begun("Transfer-Encoding: chunked".into(), &in_chunks),
            ];
            republish(&front, |snapshot| {
                (snapshot.only, snapshot.default_pool) = (None, default.map(|place: usize| snapshot.pools[place].id));
            });
            front.until("two pools", |front| front.ask(chat("b", "hi")).text() == "b's");
            for (mut client, rest) in clients {
                let reply = client.ask(rest);
                let what = format!("{model:?} {policy:?} {default:?}: {} {}", reply.status, reply.text());
                match text {
                    "" => assert_eq!(reply.status, 404, "{what}"),
                    text => assert_eq!(reply.text(), text, "{what}"),
                }
            }
            front.settles();
        }
    }
}

/// A request that was begun to be read under one policy is chosen for by the other.
struct Reloads {
    front: Front,
}

impl Reloads {
    fn of(engines: &[Engine; 2]) -> Reloads {
        let addresses = engines.each_ref().map(|engine| engine.address);
        Reloads { front: Front::with(&addresses, |options| options.settings.policy = Policy::Warm) }
    }

    fn to(&self, policy: Policy) {
        republish(&self.front, |snapshot| {
            let settings = Settings { policy, ..Settings::clone(&snapshot.pools[0].settings) };
            snapshot.plan = Arc::new(settings.plan());
            snapshot.pools[0].settings = Arc::new(settings);
        });
        // A turn that begins after that acts on it.
        (0..2).for_each(|_| assert_eq!(self.front.ask(chat("tiny-llama", "hi")).status, 200));
    }

    /// Sends the body's beginning before the reload, and the rest after it.
    fn amid(&self, body: &str, cut: usize, policy: Policy) -> Reply {
        let mut client = self.front.connect();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue";
        client.send(format!("{head}\r\nContent-Length: {}\r\n\r\n", body.len()));
        assert_eq!(status(&client.head()), 100, "the head has been read");
        let (begin, rest) = body.as_bytes().split_at(cut);
        client.send(begin);
        self.to(policy);
        client.ask(rest)
    }
}

/// What is read of the body by then was read for the old policy, and no more is needed by that.
#[test]
fn a_policy_that_changes_in_the_middle_of_a_body_is_met_with_all_of_it() {
    let engines = [Engine::answering(ok("a's")), Engine::answering(ok("b's"))];
    let reloads = Reloads::of(&engines);
    reloads.to(Policy::PrefixHash);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "hello ".repeat(2_000));
    assert_eq!(reloads.amid(&body, 63, Policy::Warm).status, 200);
    let front = &reloads.front;
    front.settles();
    assert!(front.tokens(TokenCount::New) > 2_000, "all of the prompt is counted");
    // It was noted where it went: once more it is found there.
    assert_eq!(front.connect().ask(post("/v1/chat/completions", &body)).status, 200);
    front.settles();
    assert!(front.tokens(TokenCount::Held) > 2_000, "{} tokens are held", front.tokens(TokenCount::Held));
}

/// The old policy wants a prompt's end, the new one its beginning alone: it has no other home for what follows that.
#[test]
fn a_policy_that_needs_less_from_the_middle_of_a_body_on_gets_no_more() {
    let engines = [Engine::answering(ok("a's")), Engine::answering(ok("b's"))];
    let reloads = Reloads::of(&engines);
    for name in 0..8 {
        let text = format!("{name} said ").repeat(400);
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"cache_salt":"salt"}}"#);
        reloads.to(Policy::PrefixHash);
        let home = reloads.front.connect().ask(post("/v1/chat/completions", &body));
        reloads.to(Policy::Warm);
        let amid = reloads.amid(&body, 63, Policy::PrefixHash);
        assert_eq!((amid.status, amid.text()), (200, home.text()), "{name}");
    }
}
