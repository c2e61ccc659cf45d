//! Models of engines of their own: who waits for some stands in no way of others, and each is chosen for by its own policy.

use std::sync::{Mutex, mpsc};

use warmfront::config::Config;
use warmfront::counters::stats::Count;
use warmfront::exchange::{QueueRules, Rules};
use warmfront::policy::{Policy, Queueing};

use crate::client::{Client, post};
use crate::engine::{Engine, HELLO};
use crate::front::{Front, PATIENCE};

fn asks(front: &Front, model: &str, fields: &str) -> Client {
    let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{}"}}]}}"#, "word ".repeat(640));
    let length = body.len();
    let mut client = front.connect();
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: f\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
    ));
    client
}

/// The queue is full of who waits for the one, whose engine has room for a prompt, and they are more urgent.
#[test]
fn a_model_with_room_is_answered_while_another_has_none() {
    let (answer, answers) = mpsc::channel::<()>();
    let answers = Mutex::new(answers);
    let slow = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            let _ = answers.lock().unwrap().recv_timeout(PATIENCE);
            connection.send(HELLO);
        }
    });
    let quick = Engine::answering(HELLO);
    let mut config = Config::default();
    config.queue.waiting_max = 2;
    let front = Front::with(&[slow.address, quick.address], |options| {
        options.settings.policy = Policy::Warm;
        options.settings.queue = Queueing::On;
        options.capacity_tokens = Some(1_000);
        options.pools = vec![("slow", vec![0]), ("quick", vec![1])];
        options.rules = Rules { limits: options.rules.limits.clone(), ..Rules::from(&config) };
        options.rules.queue = QueueRules::from(&config);
    });
    let mut clients = vec![asks(&front, "slow", "")];
    front.until("it is computed", |_| slow.executions() == 1);
    clients.extend([(); 2].map(|()| asks(&front, "slow", "")));
    front.until("two wait", |front| front.counters.queue().waiting() == 2);
    for _ in 0..20 {
        let reply = asks(&front, "quick", "x-warmfront-priority: 5\r\n").reply();
        assert_eq!((reply.status, front.count(Count::QueueFull)), (200, 0), "{}", reply.text());
    }
    assert_eq!((front.counters.queue().waiting(), front.count(Count::Queued)), (2, 2), "none of them waited");
    (0..3).for_each(|_| answer.send(()).unwrap());
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    front.settles();
}

/// A pool's keys are of what its own policy says, whatever is read for another's sake.
#[test]
fn a_pool_beside_one_that_counts_tokens_keeps_its_keys() {
    let keys = |others: Policy| {
        let engines = [(); 2].map(|()| Engine::answering(HELLO));
        let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
            options.pools = vec![("others", vec![0, 1]), ("own", vec![0, 1])];
            options.policies = vec![others, Policy::PrefixHash];
            options.rules.access_log = true;
        });
        let mut client = front.connect();
        for (system, answer) in [("You are a clerk. ", ""), ("You are another clerk. ", "Well. ")] {
            let (system, answer) = (system.repeat(400), answer.repeat(100));
            let messages = format!(
                r#"[{{"role":"system","content":"{system}"}},{{"role":"user","content":"hello"}},{{"role":"assistant","content":"{answer}"}}]"#
            );
            for model in ["own", "others"] {
                let body = format!(r#"{{"model":"{model}","messages":{messages}}}"#);
                assert_eq!(client.ask(post("/v1/chat/completions", &body)).status, 200);
            }
        }
        front.settles();
        front.records().iter().map(|record| record.key).collect::<Vec<_>>()
    };
    let alone = keys(Policy::PrefixHash);
    let beside = keys(Policy::Warm);
    assert_eq!((alone[0], alone[2]), (beside[0], beside[2]));
    assert_eq!(beside[0], beside[2], "of the first message of a user");
    assert_ne!(beside[1], beside[3], "of the whole conversation");
}
