//! Models with engines of their own: requests that wait for one model do not hold up those for others, and each pool
//! chooses by its own policy.

use std::sync::{Mutex, mpsc};

use warmfront::config::Config;
use warmfront::counters::stats::{Count, Gauge};
use warmfront::exchange::{QueueRules, Rules};
use warmfront::policy::{Policy, Queueing};

use crate::client::{Client, post};
use crate::engine::{Engine, HELLO};
use crate::front::{Front, PATIENCE};

fn asks(front: &Front, model: &str, fields: &str) -> Client {
    asks_with(front, model, fields, 0)
}

/// The same in a body that is so much longer.
fn asks_with(front: &Front, model: &str, fields: &str, longer: usize) -> Client {
    let (words, more) = ("word ".repeat(640), "x".repeat(longer));
    let body =
        format!(r#"{{"model":"{model}","metadata":"{more}","messages":[{{"role":"user","content":"{words}"}}]}}"#);
    let length = body.len();
    let mut client = front.connect();
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: f\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
    ));
    client
}

/// Two engines, each with a model of its own. The slow one answers when it is told to, and has room for one prompt.
struct Stage {
    slow: Engine,
    _quick: Engine,
    front: Front,
    answer: mpsc::Sender<()>,
}

impl Stage {
    fn new(change: impl FnOnce(&mut Config)) -> Stage {
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
        change(&mut config);
        let front = Front::with(&[slow.address, quick.address], |options| {
            options.settings.policy = Policy::Warm;
            options.settings.queue = Queueing::On;
            options.capacity_tokens = Some(1_000);
            options.pools = vec![("slow", vec![0]), ("quick", vec![1])];
            options.rules = Rules { limits: options.rules.limits.clone(), ..Rules::from(&config) };
            options.rules.limits.budget_bytes = config.limits.budget_bytes;
            options.rules.queue = QueueRules::from(&config);
        });
        Stage { slow, _quick: quick, front, answer }
    }
}

/// The queue is full of requests for `slow`, whose engine has room for one prompt, and they are more urgent.
#[test]
fn a_model_with_room_is_answered_while_another_has_none() {
    let Stage { slow, front, answer, .. } = &Stage::new(|config| config.queue.waiting_max = 2);
    let mut clients = vec![asks(front, "slow", "")];
    front.until("it is computed", |_| slow.executions() == 1);
    clients.extend([(); 2].map(|()| asks(front, "slow", "")));
    front.until("two wait", |front| front.counters.queue().waiting() == 2);
    for _ in 0..20 {
        let reply = asks(front, "quick", "x-warmfront-priority: 5\r\n").reply();
        assert_eq!((reply.status, front.count(Count::QueueFull)), (200, 0), "{}", reply.text());
    }
    assert_eq!((front.counters.queue().waiting(), front.count(Count::Queued)), (2, 2), "none of them waited");
    (0..3).for_each(|_| answer.send(()).unwrap());
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    front.settles();
}

/// Many requests wait for `slow`, whose bodies would take all memory for bodies as long as they wait.
#[test]
fn a_model_with_room_is_answered_while_what_waits_for_another_is_long() {
    const BUDGET: usize = 1 << 20;
    const LONG: usize = 60_000;
    let Stage { slow, front, answer, .. } = &Stage::new(|config| config.limits.budget_bytes = BUDGET);
    let mut first = asks(front, "slow", "");
    front.until("it is computed", |_| slow.executions() == 1);
    let waiting = || front.counters.queue().waiting() as usize;
    // Each comes behind all others, and is told that the queue is full once no memory is left for it.
    let told = |front: &Front| front.count(Count::QueueFull) as usize;
    let mut clients: Vec<Client> = Vec::new();
    for come in 1..=20 {
        clients.push(asks_with(front, "slow", "", LONG));
        front.until("it waits, or is told", |front| {
            front.count(Count::Queued) as usize == waiting() && waiting() + told(front) == come
        });
    }
    let wait = waiting();
    assert!((7..=BUDGET / 2 / LONG).contains(&wait), "{wait} wait");
    for _ in 0..20 {
        let reply = asks_with(front, "quick", "x-warmfront-priority: 5\r\n", LONG).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!((waiting(), front.count(Count::RefusedOverBudget)), (wait, 0));
    (0..=wait).for_each(|_| answer.send(()).unwrap());
    assert_eq!(first.reply().status, 200);
    for (come, client) in clients.iter_mut().enumerate() {
        let reply = client.reply();
        assert_eq!(reply.status, if come < wait { 200 } else { 429 }, "{come}: {}", reply.text());
        assert!(reply.status == 200 || reply.head.get("retry-after").is_some());
    }
    front.settles();
    front.until("nothing is held", |front| front.stats.gauge(Gauge::HeldBytes) == 0);
}

/// A pool's keys are made as its own policy says, whatever is read of the body for another pool's policy.
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
