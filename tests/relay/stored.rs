//! Stored responses: each lies in the engine that made it, and is asked of that one, or of one after the other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use warmfront::counters::Text;
use warmfront::counters::stats::{Count, TokenCount};
use warmfront::policy::Policy;

use crate::client::{Reply, get, post};
use crate::engine::{Engine, HELLO, Request};
use crate::front::Front;

/// As vLLM 0.32 with a store: it knows what it made, and says of others that it has none.
fn storing(name: &'static str, streams: bool) -> Engine {
    let made = Arc::<Mutex<Vec<String>>>::default();
    Engine::run(move |mut connection| {
        while let Some(request) = connection.request() {
            let mut made = made.lock().unwrap();
            let lacks = sought(&request).filter(|id| !made.contains(id));
            let reply = match lacks {
                Some(id) => (404, "application/json", not_found(&id)),
                None if request.path() != "/v1/responses" => (200, "application/json", "{}".into()),
                None => {
                    let id = format!("resp_{name}{}", made.len());
                    made.push(id.clone());
                    response(&id, streams)
                }
            };
            let (status, kind, body) = reply;
            let head = format!("HTTP/1.1 {status} .\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
            connection.send(head + &body);
        }
    })
}

fn sought(request: &Request) -> Option<String> {
    if let Some(path) = request.path().strip_prefix("/v1/responses/") {
        return Some(path.split(['/', '?']).next().unwrap().into());
    }
    let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    Some(body.get("previous_response_id")?.as_str().unwrap().into())
}

const USAGE: &str = r#""usage":{"input_tokens":6000,"output_tokens":3,"total_tokens":6003}"#;

fn not_found(id: &str) -> String {
    format!(
        r#"{{"error":{{"message":"Response with id '{id}' not found.","type":"invalid_request_error","param":"response_id","code":404}}}}"#
    )
}

fn response(id: &str, streams: bool) -> (u16, &'static str, String) {
    let response = format!(r#"{{"id":"{id}","created_at":1795187673,"status":"completed","output":[],{USAGE}}}"#);
    let created = format!("data: {{\"response\":{response},\"type\":\"response.created\"}}\n\n");
    let delta = r#"data: {"delta":"a","type":"response.output_text.delta"}"#;
    let event = format!("event: response.created\n{created}event: response.output_text.delta\n{delta}\n\n");
    if streams { (200, "text/event-stream", event) } else { (200, "application/json", response) }
}

/// No two of their ids fall to one place.
const NAMES: [&str; 4] = ["a", "b", "c", "e"];
const ASK: &str = r#"{"model":"m","input":"hello"}"#;

fn made(reply: &Reply) -> String {
    let text = reply.text();
    assert_eq!(reply.status, 200, "{text}");
    text.split('"').find(|word| word.starts_with("resp_")).unwrap().into()
}

/// By the name in its id.
fn maker(id: &str) -> Option<u8> {
    id.as_bytes().get("resp_".len()).copied()
}

fn goes_on(id: &str) -> Vec<u8> {
    post("/v1/responses", format!(r#"{{"model":"m","input":"and?","previous_response_id":"{id}"}}"#))
}

#[test]
fn who_made_a_response_is_asked_for_it() {
    for streams in [false, true] {
        let engines = NAMES.map(|name| storing(name, streams));
        let front = Front::start(&engines.each_ref().map(|engine| engine.address));
        let ids: Vec<String> = (0..12).map(|_| made(&front.ask(post("/v1/responses", ASK)))).collect();
        for id in &ids {
            let path = format!("/v1/responses/{id}");
            assert_eq!(front.ask(get(&path)).status, 200, "{id}");
            assert_eq!(front.ask(get(&format!("{path}?stream=true&starting_after=3"))).status, 200, "{id}");
            assert_eq!(front.ask(post(&format!("{path}/cancel"), "")).status, 200, "{id}");
        }
        assert_eq!(front.count(Count::RetriedNotHere), 0);
        // Whoever is chosen says by its first words which one is asked for.
        let next: Vec<String> = ids.iter().map(|id| made(&front.ask(goes_on(id)))).collect();
        assert!(ids.iter().zip(&next).all(|(id, next)| maker(id) == maker(next)), "{ids:?} {next:?}");
        assert!(front.count(Count::RetriedNotHere) <= 12);
        front.settles();
    }
}

/// Where the policy has bodies read, the first that is asked has it.
#[test]
fn who_made_a_response_goes_on_from_it() {
    let engines = NAMES.map(|name| storing(name, false));
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.settings.policy = Policy::Warm;
    });
    let ask = |word: usize| post("/v1/responses", ASK.replace("hello", &word.to_string()));
    let ids: Vec<String> = (0..16).map(|word| made(&front.ask(ask(word)))).collect();
    ids.iter().for_each(|id| assert_eq!(maker(&made(&front.ask(goes_on(id)))), maker(id)));
    assert!(engines.iter().filter(|engine| engine.executions() > 0).count() > 1, "{ids:?}");
    assert_eq!(front.count(Count::RetriedNotHere), 0);
    front.settles();
}

/// Behind a restart, or another front, nothing is known of who made what; and no budget for retries is needed.
#[test]
fn one_engine_after_the_other_is_asked_for_a_response_that_nobody_knows() {
    let engines = ["a", "b", "c"].map(|name| storing(name, false));
    let addresses = engines.each_ref().map(|engine| engine.address);
    let other = Front::start(&addresses);
    let ids: Vec<String> = (0..6).map(|_| made(&other.ask(post("/v1/responses", ASK)))).collect();
    let front = Front::with(&addresses, |options| options.rules.limits.retry_percent = 0);
    for id in ids.iter().rev() {
        assert_eq!(front.ask(get(&format!("/v1/responses/{id}"))).status, 200, "{id}");
    }
    let asked = front.count(Count::RetriedNotHere);
    assert!((1..=12).contains(&asked), "{asked}");
    for id in &ids {
        assert_eq!(front.ask(get(&format!("/v1/responses/{id}"))).status, 200, "{id}");
    }
    assert_eq!(front.count(Count::RetriedNotHere), asked, "now it is known");
    let third = Front::start(&addresses);
    ids.iter().rev().for_each(|id| assert_eq!(maker(&made(&third.ask(goes_on(id)))), maker(id)));
    assert!(third.count(Count::RetriedNotHere) > 0);
    [other, front, third].iter().for_each(Front::settles);
}

/// Else a client that asks for nothing but these would use up the ports of this machine.
#[test]
fn who_has_none_keeps_its_connection() {
    let engines = ["a", "b", "c"].map(|name| storing(name, false));
    let front = Front::start(&engines.each_ref().map(|engine| engine.address));
    (0..10).for_each(|_| assert_eq!(front.ask(get("/v1/responses/resp_none")).status, 404));
    assert_eq!(front.count(Count::RetriedNotHere), 20);
    assert!(front.count(Count::UpstreamOpened) <= 3, "{}", front.count(Count::UpstreamOpened));
    front.settles();
}

/// It is computed there like any other prompt: it counts there, and teaches nothing of how long tokens are.
#[test]
fn what_goes_on_from_a_response_counts_where_that_lies() {
    let engines = ["a", "b"].map(|name| storing(name, false));
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.settings.policy = Policy::Warm;
    });
    let learnt = || [0, 1].map(|slot| front.counters.predictions().text(slot));
    let id = made(&front.ask(post("/v1/responses", ASK)));
    front.settles();
    let (before, known) = (front.tokens(TokenCount::New), learnt());
    assert_ne!(known, [Text::default(); 2]);
    assert_eq!(maker(&made(&front.ask(goes_on(&id)))), maker(&id));
    front.settles();
    assert!(front.tokens(TokenCount::New) > before);
    assert_eq!(learnt(), known);
}

/// An engine may say so of what it was not asked for; and a long body is not sent to one after the other.
#[test]
fn only_what_was_asked_for_is_asked_on() {
    let lacks = not_found("resp_another");
    let answer = format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{lacks}", lacks.len());
    let engines = [(); 2].map(|()| Engine::answering(answer.clone()));
    let front = Front::start(&engines.each_ref().map(|engine| engine.address));
    assert_eq!(front.ask(get("/v1/responses/resp_1")).text(), lacks);
    assert_eq!(front.ask(post("/v1/responses", ASK)).text(), lacks);
    let long = format!(r#"{{"previous_response_id":"resp_another","input":"{}"}}"#, "a".repeat(70_000));
    assert_eq!(front.ask(post("/v1/responses", long)).text(), lacks);
    assert_eq!((engines[0].executions() + engines[1].executions(), front.count(Count::RetriedNotHere)), (3, 0));
    front.settles();
}

#[test]
fn what_no_engine_has_is_not_found_and_asked_of_nine_at_most() {
    for (count, asked) in [(1, 1), (3, 3), (12, 9)] {
        let engines: Vec<Engine> = (0..count).map(|_| storing("a", false)).collect();
        let addresses: Vec<_> = engines.iter().map(|engine| engine.address).collect();
        let front = Front::start(&addresses);
        for request in [get("/v1/responses/resp_none"), goes_on("resp_none")] {
            let before: usize = engines.iter().map(Engine::executions).sum();
            let reply = front.ask(request);
            assert_eq!((reply.status, reply.text()), (404, not_found("resp_none")));
            let after: usize = engines.iter().map(Engine::executions).sum();
            assert_eq!(after - before, asked, "of {count}");
        }
        assert!(engines.iter().all(|engine| engine.executions() <= 2), "nobody twice");
        assert_eq!((front.count(Count::Barred), front.count(Count::BackPressure)), (0, 0));
        let refetched = (0..count as u16).any(|slot| front.counters.outcomes().not_found(slot) > 0);
        assert!(!refetched, "no model is missing");
        front.settles();
    }
}

/// As one that computes, and has no time for its clients: a body is not held for so long, a path is.
#[test]
fn who_is_slow_to_say_that_it_has_none_is_asked_on_all_the_same() {
    let lacks = not_found("resp_b0");
    let slow = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            std::thread::sleep(Duration::from_millis(1_300));
            connection.send(format!("HTTP/1.1 404 .\r\ncontent-length: {}\r\n\r\n{lacks}", lacks.len()));
        }
    });
    let front = Front::start(&[slow.address, Engine::answering(HELLO).address]);
    assert_eq!((front.ask(get("/v1/responses/resp_b0")).status, slow.executions()), (200, 1));
    assert_eq!((front.ask(goes_on("resp_b1")).status, slow.executions()), (404, 2));
    front.settles();
}

/// A path names no model: whichever pool has it.
#[test]
fn a_response_is_found_in_any_pool() {
    let engines = ["a", "b", "c"].map(|name| storing(name, false));
    let start = || {
        Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
            options.pools = vec![("m", vec![0]), ("n", vec![1, 2])];
            options.settings.policy = Policy::LeastLoad;
        })
    };
    let (front, other) = (start(), start());
    let ask = |model: &str| format!(r#"{{"model":"{model}","input":"hello"}}"#);
    let ids: Vec<String> =
        ["m", "n", "n", "n", "n"].iter().map(|model| made(&front.ask(post("/v1/responses", ask(model))))).collect();
    let found = |front: &Front| ids.iter().all(|id| front.ask(get(&format!("/v1/responses/{id}"))).status == 200);
    assert!(found(&front));
    assert_eq!(front.count(Count::RetriedNotHere), 0);
    assert!(found(&other) && found(&other));
    assert!(other.count(Count::RetriedNotHere) > 0);
    assert_eq!(front.ask(get("/v1/responses/resp_none")).status, 404);
    // Who names one asks for no other.
    let named = format!("/v1/responses/{}?model=m", ids[1]);
    assert_eq!((front.ask(get(&named)).status, front.ask(get(&named.replace("=m", "=n"))).status), (404, 200));
    [front, other].iter().for_each(Front::settles);
}

/// Other words of a 404, and what is too long to be held, are for the client.
#[test]
fn other_404s_are_passed_on() {
    let missing = r#"{"error":{"message":"The model `Response with id 'x' not found.` does not exist.","code":404}}"#;
    let answer = format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{missing}", missing.len());
    let engines = [(); 2].map(|()| Engine::answering(answer.clone()));
    let front = Front::start(&engines.each_ref().map(|engine| engine.address));
    assert_eq!(front.ask(post("/v1/responses", ASK)).text(), missing);
    assert_eq!(front.ask(get("/v1/responses/resp_1")).text(), missing);
    assert_eq!((engines[0].executions() + engines[1].executions(), front.count(Count::RetriedNotHere)), (2, 0));
    front.settles();
}
