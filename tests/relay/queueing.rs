//! Requests that wait in the front for room: in which order they go, and every way to leave.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use warmfront::config::{Config, PriorityFirst};
use warmfront::counters::stats::{Count, Shadowed, Timing};
use warmfront::counters::{Credential, Realm};
use warmfront::exchange::{QueueRules, Rules};
use warmfront::policy::{Policy, Queueing, ShadowPolicy};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::client::{Client, chunked, post};
use crate::engine::{Engine, HELLO, refusing};
use crate::front::{Front, PATIENCE, republish};

/// As an SGLang says it whose queue is full.
const BUSY: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 30\r\n\r\n\
                    data: {\"error\":{\"code\":503}}\n\n";
const UNAUTHORIZED: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// An engine that answers when it is told to, and a front before it in whose eyes it has room for one prompt.
struct Stage {
    engine: Engine,
    front: Front,
    answer: mpsc::Sender<()>,
}

impl Stage {
    fn new(change: impl FnOnce(&mut Config)) -> Stage {
        Stage::serving(Vec::new(), change)
    }

    /// Behind a front that knows these models; none: it is for all.
    fn serving(models: Vec<&'static str>, change: impl FnOnce(&mut Config)) -> Stage {
        let (answer, engine) = engine_that_is_told();
        let mut config = Config::default();
        change(&mut config);
        let front = Front::with(&[engine.address], |options| {
            options.pools = models.into_iter().map(|model| (model, vec![0])).collect();
            options.settings.policy = Policy::Warm;
            options.settings.queue = Queueing::On;
            options.settings.shadow_policy = config.routing.shadow_policy;
            options.capacity_tokens = Some(1_000);
            options.rules = Rules { limits: options.rules.limits.clone(), ..Rules::from(&config) };
            options.rules.limits.budget_bytes = config.limits.budget_bytes;
            options.rules.queue = QueueRules::from(&config);
        });
        Stage { engine, front, answer }
    }

    /// Engines ask for keys, and let in who shows none.
    fn knows_of_keys(&self) {
        self.front.counters.credentials().kept_out(None, Realm::V1, 0);
        self.answer.send(()).unwrap();
        assert_eq!(self.front.ask(prompt("hello", 10, "")).status, 200);
        self.front.settles();
    }

    fn waiting(&self) -> u32 {
        self.front.counters.queue().waiting()
    }

    /// Sends a request of some 800 tokens, and waits until it is at the engine or in the queue.
    fn asks(&self, name: &str, fields: &str) -> Client {
        self.asks_with(name, 800, fields)
    }

    /// The same with a request of so many tokens.
    fn asks_with(&self, name: &str, tokens: usize, fields: &str) -> Client {
        // None of these falls again, whatever becomes of it meanwhile.
        let came = || self.front.count(Count::Queued) + self.front.count(Count::QueueFull) + self.sent();
        let before = came();
        let mut client = self.front.connect();
        client.send(prompt(name, tokens, fields));
        self.front.until("it is there", |_| came() > before);
        client
    }

    /// From here on the front connects to this address.
    fn engine_is_at(&self, address: SocketAddr) {
        republish(&self.front, |snapshot| snapshot.endpoints[0].as_mut().unwrap().address = address);
    }

    fn sent(&self) -> u64 {
        self.engine.executions() as u64
    }

    fn pushed_out(&self) -> u64 {
        self.front.count(Count::QueuePushedOut)
    }

    /// The engine answers one request: who comes next?
    fn next(&self) -> String {
        let before = self.engine.executions();
        self.answer.send(()).unwrap();
        self.front.until("the next one goes", |_| self.engine.executions() > before);
        name_of(&self.engine.requests().last().unwrap().text())
    }

    /// All is answered and given back.
    fn settles(self) {
        (0..100).for_each(|_| self.answer.send(()).unwrap_or_default());
        self.front.until("an empty queue", |front| front.counters.queue().waiting() == 0);
        self.front.settles();
    }
}

fn prompt(name: &str, tokens: usize, fields: &str) -> Vec<u8> {
    let words = format!("{name} ").repeat(4 * tokens / (name.len() + 1));
    let body = format!(r#"{{"model":"tiny-llama","messages":[{{"role":"user","content":"{words}"}}]}}"#);
    let length = body.len();
    format!("POST /v1/chat/completions HTTP/1.1\r\nHost: f\r\n{fields}Content-Length: {length}\r\n\r\n{body}").into()
}

fn name_of(body: &str) -> String {
    let said = body.split("\"content\":\"").nth(1).unwrap();
    said.split(' ').next().unwrap().to_owned()
}

#[test]
fn who_finds_no_room_waits_and_goes_in_order() {
    let stage = Stage::new(|_| {});
    let mut clients = vec![stage.asks("first", "")];
    clients.push(stage.asks("second", ""));
    clients.push(stage.asks("third", ""));
    clients.push(stage.asks("urgent", "x-warmfront-priority: -2\r\n"));
    clients.push(stage.asks("idle", "x-warmfront-priority: 7\r\n"));
    assert_eq!((stage.waiting(), stage.sent()), (4, 1));
    assert_eq!([stage.next(), stage.next(), stage.next(), stage.next()], ["urgent", "second", "third", "idle"]);
    stage.answer.send(()).unwrap();
    for client in &mut clients {
        assert_eq!(client.reply().status, 200);
    }
    assert_eq!(stage.sent(), 5, "each once");
    assert_eq!((stage.front.count(Count::Queued), stage.front.count(Count::QueueReleased)), (4, 4));
    stage.settles();
}

/// What fits goes past what does not, also where it came when it did not fit either.
#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let stage = Stage::new(|_| {});
    let mut clients: Vec<Client> = ["one", "other"].map(|name| stage.asks_with(name, 400, "")).into();
    clients.extend(
        [("long", 800), ("middle", 350), ("short", 300)].map(|(name, tokens)| stage.asks_with(name, tokens, "")),
    );
    assert_eq!((stage.waiting(), stage.sent()), (3, 2));
    assert_eq!([stage.next(), stage.next()], ["middle", "short"]);
    stage.answer.send(()).unwrap();
    assert_eq!(stage.next(), "long");
    stage.answer.send(()).unwrap();
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    stage.settles();
}

/// A body whose end is still to come when all is known of it goes by the same rule.
#[test]
fn bodies_in_pieces_wait_as_well() {
    let stage = Stage::new(|_| {});
    let mut clients = vec![stage.asks("first", "")];
    let words = "more ".repeat(640);
    let body = format!(
        r#"{{"model":"tiny-llama","messages":[{{"role":"user","content":"{words}"}}],"tools":[{{"type":"function","function":{{"name":"f"}}}}],"n":1}}"#
    );
    let in_chunks = [
        &b"POST /v1/chat/completions HTTP/1.1\r\nHost: f\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
        &chunked(body.as_bytes(), 1_000),
    ]
    .concat();
    let at_once = post("/v1/chat/completions", &body);
    for (sent, pieces) in [(&in_chunks, 1), (&at_once, 2), (&in_chunks, 2)] {
        let mut client = stage.front.connect();
        let cut = if pieces == 1 { sent.len() } else { sent.len() - 6 };
        client.send(&sent[..cut]);
        std::thread::sleep(Duration::from_millis(30));
        client.send(&sent[cut..]);
        clients.push(client);
    }
    stage.front.until("the queue", |_| stage.waiting() == 3);
    assert_eq!(stage.sent(), 1);
    (0..4).for_each(|_| stage.answer.send(()).unwrap());
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    stage.settles();
}

/// They would take all memory that there is for bodies: they go on to their engine while they come.
#[test]
fn bodies_longer_than_what_is_held_do_not_wait() {
    let stage = Stage::serving(vec!["tiny-llama", "other"], |_| {});
    let mut clients = vec![stage.asks("first", "")];
    let held = warmfront::limits::Limits::default().hold_bytes;
    let model = r#""model":"tiny-llama""#;
    let words = "more ".repeat(640);
    let messages = format!(r#""messages":[{{"role":"user","content":"{words}"}}]"#);
    // In chunks: what is to come is then no part of its estimated tokens, by which nothing would fit.
    let head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: f\r\nTransfer-Encoding: chunked\r\n\r\n";
    // Where its model stands last, all of it is held before the choice.
    for (length, last, waits) in [
        (held - 10_000, false, true),
        (held - 10_000, true, true),
        (held + 200_000, false, false),
        (held + 200_000, true, false),
    ] {
        let (sent, waiting) = (stage.sent(), stage.waiting());
        let (first, last) = if last { (&*messages, model) } else { (model, &*messages) };
        let rest = length - first.len() - last.len() - r#"{,"metadata":"",}"#.len();
        let body = format!(r#"{{{first},"metadata":"{}",{last}}}"#, "x".repeat(rest));
        let mut client = stage.front.connect();
        client.send([&head[..], &chunked(body.as_bytes(), 10_000)].concat());
        stage.front.until("it is there", |_| stage.sent() > sent || stage.waiting() > waiting);
        assert_eq!((stage.sent() - sent, stage.waiting() - waiting), (u64::from(!waits), u32::from(waits)), "{length}");
        clients.push(client);
    }
    (0..5).for_each(|_| stage.answer.send(()).unwrap());
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    stage.settles();
}

/// What no cache can hold waits for nothing that could come: its engine says so.
#[test]
fn what_never_fits_does_not_wait() {
    let stage = Stage::new(|_| {});
    let mut clients = vec![stage.asks("first", "")];
    let words = "long ".repeat(1_000);
    let mut client = stage.front.connect();
    client.send(post("/v1/chat/completions", format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}]}}"#)));
    clients.push(client);
    stage.front.until("it is there", |_| stage.sent() == 2);
    assert_eq!(stage.waiting(), 0);
    (0..2).for_each(|_| stage.answer.send(()).unwrap());
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    stage.settles();
}

/// Who waits for room goes on waiting where its engine has as many requests as it may: there is room soon.
#[test]
fn who_waits_is_not_refused_for_a_cap() {
    let stage = Stage::new(|_| {});
    let mut clients = [stage.asks("first", ""), stage.asks("second", "")];
    assert_eq!((stage.waiting(), stage.sent()), (1, 1));
    republish(&stage.front, |snapshot| snapshot.endpoints[0].as_mut().unwrap().cap = 1);
    stage.front.until("the cap", |front| front.ask(prompt("third", 800, "")).status == 503);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((stage.waiting(), stage.sent()), (1, 1));
    assert_eq!(stage.next(), "second");
    stage.answer.send(()).unwrap();
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    stage.settles();
}

/// Choices that have to wait are not compared, the one that lets a request go is.
#[test]
fn who_waits_is_looked_at_once_by_another_policy() {
    let shadow = Policy::PrefixHash;
    let stage = Stage::new(|config| config.routing.shadow_policy = ShadowPolicy(Some(shadow)));
    let looks = || {
        let all = [Shadowed::Agreed, Shadowed::Differed, Shadowed::Nobody, Shadowed::Skipped];
        all.map(|what| stage.front.stats.shadowed(0, shadow as u8, what))
    };
    let mut clients: Vec<Client> = ["first", "second", "third"].map(|name| stage.asks(name, "")).into();
    stage.front.until("the look", |_| looks()[0] == 1);
    assert_eq!(stage.waiting(), 2);
    for went in [2, 3] {
        stage.next();
        stage.front.until("the look", |_| looks()[0] == went);
    }
    stage.answer.send(()).unwrap();
    clients.iter_mut().for_each(|client| assert_eq!(client.reply().status, 200));
    assert_eq!(looks(), [3, 0, 0, 0]);
    stage.settles();
}

#[test]
fn a_body_says_how_urgent_it_is_too() {
    let stage = Stage::new(|_| {});
    let _first = stage.asks("first", "");
    let _second = stage.asks("second", "");
    let mut third = stage.front.connect();
    let text = String::from_utf8(prompt("third", 800, "")).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let body = body.replacen('{', r#"{"priority":-1,"#, 1);
    let head = head.rsplit_once(' ').unwrap().0;
    third.send(format!("{head} {}\r\n\r\n{body}", body.len()));
    stage.front.until("both wait", |_| stage.waiting() == 2);
    assert_eq!([stage.next(), stage.next()], ["third", "second"]);
    stage.settles();
}

/// As SGLang has it, whose own queue goes by the same numbers.
#[test]
fn the_highest_goes_first_where_it_is_set() {
    let stage = Stage::new(|config| config.queue.priority_first = PriorityFirst::Highest);
    let priorities = [("first", ""), ("idle", "-2"), ("usual", ""), ("urgent", "7")];
    let asks = |(name, priority): (&str, &str)| match priority {
        "" => stage.asks(name, ""),
        number => stage.asks(name, &format!("x-warmfront-priority: {number}\r\n")),
    };
    let _clients = priorities.map(asks);
    assert_eq!([stage.next(), stage.next(), stage.next()], ["urgent", "usual", "idle"]);
    stage.settles();
}

#[test]
fn who_is_not_believed_to_be_urgent_is_like_the_others() {
    let stage = Stage::new(|config| config.queue.priority_from = vec!["10.0.0.0/8".parse().unwrap()]);
    let _first = stage.asks("first", "");
    let _second = stage.asks("second", "");
    let _third = stage.asks("third", "x-warmfront-priority: -9\r\n");
    assert_eq!([stage.next(), stage.next()], ["second", "third"]);
    let told = |stage: &Stage| stage.engine.requests().last().unwrap().head.all("x-warmfront-priority").len();
    // A front in the engine's place would believe this one.
    assert_eq!(told(&stage), 0);
    stage.settles();
    let believing = Stage::new(|_| {});
    let _first = believing.asks("first", "x-warmfront-priority: -9\r\n");
    assert_eq!(told(&believing), 1);
    believing.settles();
}

#[test]
fn a_client_that_leaves_frees_its_place_at_once() {
    let stage = Stage::new(|_| {});
    let _first = stage.asks("first", "");
    let second = stage.asks("second", "");
    let third = stage.asks("third", "");
    assert_eq!(stage.waiting(), 2);
    let begun = Instant::now();
    second.reset();
    stage.front.until("one place is free", |_| stage.waiting() == 1);
    let (took, begun) = (begun.elapsed(), Instant::now());
    drop(third);
    stage.front.until("both places are free", |_| stage.waiting() == 0);
    let quickest = took.min(begun.elapsed());
    assert!(quickest < Duration::from_secs(1), "{quickest:?}");
    assert_eq!(stage.front.count(Count::AbortedQueue), 2);
    stage.answer.send(()).unwrap();
    stage.front.settles();
    assert_eq!(stage.sent(), 1, "who left is not sent");
    stage.settles();
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let stage = Stage::new(|config| config.queue.waiting_max = 1);
    let _first = stage.asks("first", "");
    let _second = stage.asks("second", "");
    let refused = stage.asks("third", "").reply();
    assert_eq!(refused.status, 429);
    let seconds: u64 = refused.head.get("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    assert!(refused.text().contains("the queue is full"), "{}", refused.text());
    assert_eq!((stage.waiting(), stage.front.count(Count::QueueFull), stage.sent()), (1, 1, 1));
    // In the words of each API.
    let asked = String::from_utf8(prompt("fourth", 800, "")).unwrap();
    let refused = stage.front.ask(asked.replacen("/v1/chat/completions", "/v1/messages", 1));
    let told: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!((refused.status, told["error"]["type"].as_str()), (429, Some("rate_limit_error")));
    stage.settles();
}

/// Beyond half of the memory for bodies those go that come last: of whom most is held, and the least urgent before them.
#[test]
fn who_holds_most_of_what_waits_is_told_to_come_again() {
    let long = |stage: &Stage, fields: &str| {
        let came = || stage.front.count(Count::Queued) + stage.front.count(Count::QueueFull);
        let before = came();
        let (words, more) = ("word ".repeat(640), "x".repeat(60_000));
        let body = format!(r#"{{"metadata":"{more}","messages":[{{"role":"user","content":"{words}"}}]}}"#);
        let mut client = stage.front.connect();
        let length = body.len();
        client.send(format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: f\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        ));
        stage.front.until("it has come", |_| came() > before);
        client
    };
    let mut config = Config::default();
    config.queue.tenant_header = "x-tenant".into();
    // Three of these are less than half of it.
    config.limits.budget_bytes = 400_000;
    let stage = Stage::new(|changed| *changed = config.clone());
    let is_full = |gone: u64| {
        stage.front.until("who is too much has gone", |_| (stage.waiting(), stage.pushed_out()) == (3, gone));
    };
    let _first = stage.asks("first", "");
    let mut ours = [(); 3].map(|()| long(&stage, "x-tenant: a\r\n"));
    is_full(0);
    let _other = long(&stage, "x-tenant: b\r\n");
    is_full(1);
    assert_eq!(ours[2].reply().status, 429);
    let third = long(&stage, "x-tenant: c\r\n");
    is_full(2);
    let told = ours[1].reply();
    assert!(told.status == 429 && told.head.get("retry-after").is_some(), "{}", told.text());
    // It comes last itself: it has not waited, and nobody took its place.
    let queued = stage.front.count(Count::Queued);
    assert_eq!(long(&stage, "x-tenant: d\r\nx-warmfront-priority: 5\r\n").reply().status, 429);
    assert_eq!((stage.front.count(Count::Queued), stage.front.count(Count::QueueFull)), (queued, 1));
    let urgent = long(&stage, "x-tenant: c\r\nx-warmfront-priority: -5\r\n");
    is_full(3);
    // Who leaves makes room, and so does a reload take it.
    urgent.reset();
    stage.front.until("it has left", |_| stage.waiting() == 2);
    config.limits.budget_bytes = 140_000;
    stage.front.published.publish_rules(Rules::from(&config));
    stage.front.until("one is left", |_| (stage.waiting(), stage.pushed_out()) == (1, 4));
    drop((ours, third));
    stage.settles();
}

#[test]
fn a_wait_has_an_end() {
    let stage = Stage::new(|config| config.queue.timeout_ms = 200);
    let _first = stage.asks("first", "");
    let begun = Instant::now();
    let refused = stage.asks("second", "").reply();
    assert_eq!(refused.status, 429);
    assert!(refused.head.get("retry-after").is_some());
    assert!((190..20_000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert_eq!((stage.waiting(), stage.front.count(Count::QueueTimedOut), stage.sent()), (0, 1, 1));
    stage.settles();
}

#[test]
fn who_waits_when_the_front_ends_is_counted_as_unserved() {
    let stage = Stage::new(|_| {});
    let _clients = ["first", "second"].map(|name| stage.asks(name, ""));
    stage.front.drain();
    stage.front.until("the end", |front| front.count(Count::QueueUnserved) == 1);
    assert_eq!((stage.waiting(), stage.sent()), (0, 1));
    stage.settles();
}

/// Who went, who waited in vain, and who left.
#[test]
fn records_say_how_long_each_waited() {
    let stage = Stage::new(|_| {});
    let mut first = stage.asks("first", "x-request-id: first\r\n");
    let mut second = stage.asks("second", "x-request-id: second\r\n");
    let fourth = stage.asks("fourth", "x-request-id: fourth\r\n");
    std::thread::sleep(Duration::from_millis(100));
    fourth.reset();
    stage.front.until("it has left", |_| stage.waiting() == 1);
    // Who comes from here on has less time than those before.
    let mut config = Config::default();
    config.queue.timeout_ms = 300;
    stage.front.published.publish_rules(Rules::from(&config));
    assert_eq!(stage.asks("third", "x-request-id: third\r\n").reply().status, 429);
    stage.answer.send(()).unwrap();
    assert_eq!(first.reply().status, 200);
    stage.answer.send(()).unwrap();
    assert_eq!(second.reply().status, 200);
    let records = std::cell::RefCell::new(Vec::new());
    stage.front.until("four records", |front| {
        records.borrow_mut().extend(front.records());
        records.borrow().len() == 4
    });
    let records = records.into_inner();
    // What each was taken for, whether or not an endpoint was chosen for it.
    let sized = |tokens: Option<u32>| tokens.is_some_and(|tokens| (700..900).contains(&tokens));
    assert!(records.iter().all(|record| sized(record.prompt_tokens)), "{records:?}");
    let waited = |id: &str| records.iter().find(|one| one.request_id.as_bytes() == id.as_bytes()).unwrap().waited;
    assert_eq!(waited("first"), None);
    for (id, least) in [("second", 390_000), ("third", 290_000), ("fourth", 90_000)] {
        assert!(waited(id).is_some_and(|waited| (least..20_000_000).contains(&waited)), "{id}: {:?}", waited(id));
    }
    let waits = stage.front.stats.timing(0, Timing::Queue);
    assert_eq!((waits.count(), Some(waits.sum)), (1, waited("second")), "of those who went");
    stage.settles();
}

#[test]
fn the_urgent_push_others_out_of_a_full_queue() {
    let stage = Stage::new(|config| config.queue.waiting_max = 2);
    let _first = stage.asks("first", "");
    let mut low: Vec<Client> =
        (0..2).map(|at| stage.asks(&format!("low{at}"), "x-warmfront-priority: 5\r\n")).collect();
    let mut urgent = stage.asks("urgent", "");
    assert_eq!(low[1].reply().status, 429, "the last of the least urgent goes");
    assert_eq!((stage.waiting(), stage.pushed_out()), (2, 1));
    assert_eq!([stage.next(), stage.next()], ["urgent", "low0"]);
    (0..2).for_each(|_| stage.answer.send(()).unwrap());
    assert_eq!((urgent.reply().status, low[0].reply().status), (200, 200));
    stage.settles();
}

#[test]
fn a_tenant_that_floods_does_not_starve_others() {
    let stage = Stage::new(|config| {
        config.queue.tenant_header = "x-tenant".into();
        config.queue.waiting_max = 12;
    });
    let _first = stage.asks("first", "x-tenant: flood\r\n");
    let _flood: Vec<Client> = (0..12).map(|at| stage.asks(&format!("flood{at}"), "x-tenant: flood\r\n")).collect();
    let _others: Vec<Client> = (0..4).map(|at| stage.asks(&format!("other{at}"), "x-tenant: other\r\n")).collect();
    stage.front.until("four of the flood are out", |_| stage.pushed_out() == 4);
    let order: Vec<String> = (0..8).map(|_| stage.next()).collect();
    let others = order.iter().filter(|name| name.starts_with("other")).count();
    assert_eq!(others, 4, "every other one: {order:?}");
    stage.settles();
}

/// Whoever may name a tenant, and has no key, does not use up its turns; nor do those of whom an engine that is busy
/// computes nothing.
#[test]
fn what_an_engine_refuses_is_on_nobodys_account() {
    for key in ["unknown", "busy"] {
        let stage = Stage::new(|config| config.queue.tenant_header = "x-tenant".into());
        let of = |tenant: &str, name: &str| stage.asks(name, &format!("x-tenant: {tenant}\r\n"));
        let mut clients = vec![of("other", "first")];
        for name in ["made-up0", "made-up1", "made-up2"] {
            clients.push(stage.asks(name, &format!("x-tenant: victim\r\nauthorization: Bearer {key}\r\n")));
        }
        clients.extend(["other0", "other1", "other2"].map(|name| of("other", name)));
        clients.push(of("victim", "victim"));
        let order: Vec<String> = (0..7).map(|_| stage.next()).collect();
        assert_eq!(order, ["made-up0", "made-up1", "made-up2", "other0", "victim", "other1", "other2"], "{key}");
        stage.settles();
    }
}

/// Where engines are known to ask for keys. What is refused takes no time of an engine: who asks for much, again and
/// again, would always be the next, and all would wait with it.
#[test]
fn no_room_is_kept_for_who_may_have_no_key() {
    let stage = Stage::new(|config| config.queue.tenant_header = "x-tenant".into());
    stage.knows_of_keys();
    let known = |name: &str, tokens: usize| stage.asks_with(name, tokens, "x-tenant: known\r\n");
    let mut clients: Vec<Client> = ["one", "other"].map(|name| known(name, 400)).into();
    let made_up = "x-tenant: made-up\r\nauthorization: Bearer unknown\r\nx-warmfront-priority: -9\r\n";
    clients.push(stage.asks_with("long", 800, made_up));
    clients.extend(["short0", "short1"].map(|name| known(name, 350)));
    assert_eq!((stage.waiting(), stage.sent()), (3, 3));
    assert_eq!([stage.next(), stage.next()], ["short0", "short1"]);
    stage.answer.send(()).unwrap();
    assert_eq!(stage.next(), "long", "there is room for it");
    (0..2).for_each(|_| stage.answer.send(()).unwrap());
    let statuses: Vec<u16> = clients.iter_mut().map(|client| client.reply().status).collect();
    assert_eq!(statuses, [200, 200, 401, 200, 200]);
    stage.settles();
}

/// Where its key is let in while it waits: else what needs less would go past it until its time is over.
#[test]
fn room_is_kept_for_a_stranger_who_becomes_known() {
    let stage = Stage::new(|config| config.queue.tenant_header = "x-tenant".into());
    stage.knows_of_keys();
    let known = |name: &str, tokens: usize| stage.asks_with(name, tokens, "x-tenant: known\r\n");
    let mut clients: Vec<Client> = ["one", "other"].map(|name| known(name, 400)).into();
    clients.push(stage.asks_with("long", 800, "x-tenant: late\r\nauthorization: Bearer late\r\n"));
    clients.extend(["short0", "short1"].map(|name| known(name, 350)));
    assert_eq!((stage.waiting(), stage.sent()), (3, 3));
    let shown = Credential::of(xxh3_64_with_seed(b"Bearer late", 1));
    stage.front.counters.credentials().let_in(shown, 0);
    stage.answer.send(()).unwrap();
    stage.front.until("one to end", |front| front.counters.in_flight(0) == 1);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((stage.waiting(), stage.sent()), (3, 3), "what is free is too little for the long one");
    assert_eq!(stage.next(), "long");
    (0..3).for_each(|_| stage.answer.send(()).unwrap());
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    stage.settles();
}

/// Nor has it to look first, which it does not behind a tenant that finds no room.
#[test]
fn a_stranger_who_becomes_known_behind_others_waits_as_its_own_tenant() {
    let stage = Stage::new(|config| config.queue.tenant_header = "x-tenant".into());
    stage.knows_of_keys();
    let of = |tenant: &str, name: &str, tokens| stage.asks_with(name, tokens, &format!("x-tenant: {tenant}\r\n"));
    let stranger = |key: &str, name: &str, tokens| {
        stage.asks_with(name, tokens, &format!("x-tenant: {key}\r\nauthorization: Bearer {key}\r\n"))
    };
    let mut clients: Vec<Client> = ["one", "other"].map(|name| of("known", name, 400)).into();
    clients.push(stranger("unknown", "made-up", 400));
    clients.extend(["third0", "third1"].map(|name| of("third", name, 370)));
    clients.push(stranger("late", "late", 300));
    assert_eq!((stage.waiting(), stage.sent()), (4, 3));
    // Strangers were served most now.
    assert_eq!(stage.next(), "made-up");
    let shown = Credential::of(xxh3_64_with_seed(b"Bearer late", 1));
    stage.front.counters.credentials().let_in(shown, 0);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!([stage.next(), stage.next()], ["third0", "late"]);
    (0..4).for_each(|_| stage.answer.send(()).unwrap());
    let statuses: Vec<u16> = clients.iter_mut().map(|client| client.reply().status).collect();
    assert_eq!(statuses, [200, 200, 401, 200, 200, 200]);
    stage.settles();
}

#[test]
fn what_is_refused_to_strangers_is_on_an_account_of_their_own() {
    let stage = Stage::new(|config| config.queue.tenant_header = "x-tenant".into());
    stage.knows_of_keys();
    let of = |tenant: &str, name: &str| stage.asks(name, &format!("x-tenant: {tenant}\r\n"));
    let _first = of("other", "first");
    let _strangers = ["made-up0", "made-up1", "made-up2"]
        .map(|name| stage.asks(name, "x-tenant: victim\r\nauthorization: Bearer unknown\r\n"));
    let _others = ["other0", "other1", "other2"].map(|name| of("other", name));
    let _victim = of("victim", "victim");
    let order: Vec<String> = (0..7).map(|_| stage.next()).collect();
    assert_eq!(order, ["made-up0", "other0", "victim", "made-up1", "other1", "made-up2", "other2"]);
    stage.settles();
}

/// Nor does what no engine has got.
#[test]
fn what_reaches_no_engine_is_on_nobodys_account() {
    let stage = Stage::new(|config| config.queue.tenant_header = "x-tenant".into());
    let of = |tenant: &str, name: &str| stage.asks(name, &format!("x-tenant: {tenant}\r\n"));
    let _first = stage.asks_with("first", 500, "x-tenant: other\r\n");
    let _others = ["other0", "other1", "other2"].map(|name| of("other", name));
    stage.engine_is_at(refusing());
    for name in ["lost0", "lost1", "lost2"] {
        // There is room for it.
        assert_eq!(stage.front.ask(prompt(name, 200, "x-tenant: victim\r\n")).status, 503);
        stage.front.until("its charge is over", |front| front.counters.in_flight(0) == 1);
    }
    assert_eq!((stage.waiting(), stage.front.count(Count::ConnectFailed)), (3, 3));
    stage.engine_is_at(stage.engine.address);
    let _victim = of("victim", "victim");
    let order: Vec<String> = (0..4).map(|_| stage.next()).collect();
    assert_eq!(order, ["other0", "victim", "other1", "other2"]);
    stage.settles();
}

#[test]
fn without_a_limit_nobody_waits() {
    let engine = Engine::answering(HELLO);
    let front = Front::with(&[engine.address], |options| {
        options.settings.policy = Policy::Warm;
        options.settings.queue = Queueing::On;
    });
    let clients: Vec<Client> = (0..8)
        .map(|at| {
            let mut client = front.connect();
            client.send(prompt(&format!("name{at}"), 800, ""));
            client
        })
        .collect();
    for mut client in clients {
        assert_eq!(client.reply().status, 200);
    }
    assert_eq!(front.count(Count::Queued), 0);
    front.settles();
}

/// Which tenant's turn it is changes with each one that goes: engines that end together have their next ones in one look,
/// not one in each of the looks that come 20 ms apart.
#[test]
fn engines_that_end_together_are_all_served_at_once() {
    const ENGINES: usize = 12;
    // As many times at most do all of them end together, and one of these is undisturbed by what else the machine does,
    // which is given more time from go to go.
    const GOES: usize = 8;
    const EACH: usize = GOES + 2;
    let (answers, engines): (Vec<_>, Vec<_>) = (0..ENGINES).map(|_| engine_that_is_told()).unzip();
    let addresses: Vec<_> = engines.iter().map(|engine| engine.address).collect();
    let mut config = Config::default();
    config.queue.tenant_header = "x-tenant".into();
    let front = Front::with(&addresses, |options| {
        options.settings.policy = Policy::Warm;
        options.settings.queue = Queueing::On;
        options.capacity_tokens = Some(1_000);
        options.rules.queue = QueueRules::from(&config);
    });
    let executed = || engines.iter().map(|engine| engine.executions()).sum::<usize>();
    let waiting = || front.counters.queue().waiting() as usize;
    let mut clients = Vec::new();
    for at in 0..EACH * ENGINES {
        let tenant = if at < EACH / 2 * ENGINES { "one" } else { "other" };
        let mut client = front.connect();
        client.send(prompt(&format!("name{at}"), 800, &format!("x-tenant: {tenant}\r\n")));
        clients.push(client);
        front.until("it is there", |_| executed() + waiting() == clients.len());
    }
    assert_eq!((executed(), waiting()), (ENGINES, (EACH - 1) * ENGINES));
    let mut took = Vec::new();
    let is_quick = |go: usize| {
        std::thread::sleep(Duration::from_millis(30 << go));
        let begun = Instant::now();
        answers.iter().for_each(|answer| answer.send(()).unwrap());
        front.until("each engine has its next one", |_| executed() == (go + 2) * ENGINES);
        took.push(begun.elapsed());
        took[go] < Duration::from_millis(120)
    };
    assert!((0..GOES).any(is_quick), "{took:?}");
    for answer in &answers {
        (0..EACH * ENGINES).for_each(|_| answer.send(()).unwrap());
    }
    for client in &mut clients {
        assert_eq!(client.reply().status, 200);
    }
    front.settles();
}

fn engine_that_is_told() -> (mpsc::Sender<()>, Engine) {
    let (answer, answers) = mpsc::channel::<()>();
    let answers = Arc::new(Mutex::new(answers));
    let engine = Engine::run(move |mut connection| {
        while let Some(request) = connection.request() {
            let _ = answers.lock().unwrap().recv_timeout(PATIENCE);
            connection.send(match request.head.get("authorization") {
                Some("Bearer unknown") => UNAUTHORIZED,
                Some("Bearer busy") => BUSY,
                _ => HELLO,
            });
        }
    });
    (answer, engine)
}

/// It counts as load for a while, since it was answered at once: of the cache it takes nothing.
#[test]
fn what_was_refused_leaves_room_at_once() {
    let (answer, engine) = engine_that_is_told();
    let front = Front::with(&[engine.address], |options| {
        options.settings.policy = Policy::Warm;
        options.settings.queue = Queueing::On;
        options.capacity_tokens = Some(1_000);
        options.rules.limits.failed_charge_ms = 60_000;
        options.rules.queue = QueueRules::from(&Config::default());
    });
    let stage = Stage { engine, front, answer };
    let mut refused = stage.asks("refused", "authorization: Bearer unknown\r\n");
    let mut next = stage.asks("next", "");
    assert_eq!((stage.waiting(), stage.sent()), (1, 1));
    assert_eq!(stage.next(), "next");
    stage.answer.send(()).unwrap();
    assert_eq!([&mut refused, &mut next].map(|client| client.reply().status), [401, 200]);
    stage.front.until("one of them charged", |front| front.counters.in_flight(0) == 1);
    assert_eq!(stage.front.counters.loads().running(0), 0);
}

/// What it computes is little, but where it has gone all that is held of it has to stay as well.
#[test]
fn what_fits_goes_before_what_is_held_and_does_not() {
    let stage = Stage::new(|_| {});
    let mut clients = vec![stage.asks_with("agent", 700, "")];
    stage.answer.send(()).unwrap();
    assert_eq!(clients[0].reply().status, 200);
    clients.extend(["one", "two"].map(|name| stage.asks_with(name, 350, "")));
    clients.push(stage.asks_with("agent", 750, ""));
    clients.push(stage.asks_with("cold", 300, ""));
    assert_eq!((stage.waiting(), stage.sent()), (2, 3));
    assert_eq!(stage.next(), "cold");
    assert_eq!(stage.waiting(), 1);
    stage.settles();
}
