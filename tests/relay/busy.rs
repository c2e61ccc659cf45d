//! Who has enough to do is spared: what it is too busy for goes to another engine, and to none without bound.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warmfront::counters::stats::{Count, Ended};
use warmfront::fleet::Health;
use warmfront::policy::{Policy, Reason};

use crate::client::{chat, chunked, get, post};
use crate::engine::{Engine, HELLO, black_hole, error, gate, refusing};
use crate::front::{Front, PATIENCE, endpoint, republish, republish_each};
use crate::recorded::recording;
use crate::untested;

/// A full queue: the request was not executed, and another engine takes it.
#[test]
fn what_an_engine_is_too_busy_for_goes_to_another_one() {
    let answer = recording("rejected-plain.response");
    let busy = Engine::answering(answer.clone());
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[busy.address, engine.address]);
    let body = r#"{"model":"tiny-llama","messages":[{"role":"user","content":"hello"}]}"#;
    for _ in 0..10 {
        assert_eq!(front.ask(post("/v1/chat/completions", body)).status, 200);
    }
    assert!(front.count(Count::RetriedBusy) > 0);
    assert_eq!(front.count(Count::BackPressure), busy.executions() as u64);
    assert_eq!((front.count(Count::Barred), engine.executions()), (0, 10), "busy is not broken");
    assert!(engine.requests().iter().all(|request| request.body == body.as_bytes()));
    front.settles();

    // Nobody else: its own words reach the client.
    let front = Front::start(&[busy.address]);
    let reply = front.ask(post("/v1/chat/completions", body));
    assert_eq!((reply.status, reply.whole), (503, true));
    assert!(answer.ends_with(reply.text().as_bytes()));
    assert_eq!(front.count(Count::RetriedBusy), 0);
}

/// What is too long to be held goes on as it comes: who refuses it for load is the only one to have had all of it.
#[test]
fn what_is_held_no_more_is_told_that_its_engine_is_busy() {
    let (busy, engine) = (Engine::answering(recording("rejected-plain.response")), Engine::answering(HELLO));
    let front = Front::with(&[busy.address, engine.address], |options| options.rules.limits.hold_bytes = 8 << 10);
    let words = "so many words that nobody holds them all ".repeat(3_000);
    let statuses: Vec<u16> = (0..10).map(|_| front.ask(chat("tiny-llama", &words)).status).collect();
    let of = |status: u16| statuses.iter().filter(|other| **other == status).count();
    assert_eq!((of(503), of(200)), (busy.executions(), engine.executions()), "{statuses:?}");
    assert_eq!((of(503) > 0, of(503) + of(200), front.count(Count::RetriedBusy)), (true, 10, 0), "{statuses:?}");
    front.settles();
}

/// SGLang 0.5.23 has its 503 in a 400 there; what a client did wrong is told by the first that was asked.
#[test]
fn a_response_is_refused_for_load_by_a_400() {
    let error = |words: &str| {
        let words =
            format!(r#"{{"error":{{"message":"{words}","type":"invalid_request_error","param":null,"code":400}}}}"#);
        format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n{words}", words.len())
    };
    for (words, path, retried) in [
        ("503: The request queue is full.", "/v1/responses", true),
        ("503: The request queue is full.", "/v1/chat/completions", false),
        ("503: The encoder did not return multimodal embeddings.", "/v1/responses", false),
        ("Model not loaded", "/v1/responses", false),
    ] {
        let (busy, engine) = (Engine::answering(error(words)), Engine::answering(HELLO));
        let front = Front::start(&[busy.address, engine.address]);
        let statuses: Vec<u16> =
            (0..10).map(|_| front.ask(post(path, r#"{"model":"tiny-llama","input":"hello"}"#)).status).collect();
        assert!(busy.executions() > 0 && front.count(Count::Barred) == 0, "{words}");
        assert_eq!(statuses.contains(&400), !retried, "{words} {path}: {statuses:?}");
        assert_eq!(front.count(Count::RetriedBusy) > 0, retried, "{words} {path}");
        front.settles();
        // Its client did nothing wrong.
        let answered = statuses.iter().filter(|status| **status == 400).count() as u64;
        let expected =
            if path == "/v1/responses" && words.starts_with("503: ") { (answered, 0) } else { (0, answered) };
        assert_eq!((front.ended(Ended::Failed), front.ended(Ended::Refused)), expected, "{words} {path}");
    }
}

/// Who asks for the same as many others do goes to another engine than theirs, and each that does is counted.
#[test]
fn a_home_at_its_bound_is_passed_and_that_is_counted() {
    let (open, wait) = gate();
    let wait = Arc::new(wait);
    let engines = [(); 2].map(|()| {
        let wait = Arc::clone(&wait);
        Engine::gated(move || wait())
    });
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.settings.policy = Policy::PrefixHash;
    });
    let mut clients: Vec<_> = (0..40).map(|_| front.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(chat("tiny-llama", "hello")));
    front.until("all choices", |front| (0..2).map(|slot| front.counters.in_flight(slot)).sum::<u32>() == 40);
    drop(open);
    clients.iter_mut().for_each(|client| assert_eq!(client.reply().status, 200));
    front.settles();
    let of = |reason: Reason| {
        let ends = front.stats.requests(|_| true);
        ends.iter().filter(|(key, _)| key.reason == reason as u8).map(|(_, count)| *count).sum::<u64>()
    };
    let spilled = front.count(Count::Spilled);
    assert_eq!((of(Reason::Home) + spilled, of(Reason::Spill) + of(Reason::AllFull)), (40, spilled));
    let elsewhere = engines.iter().map(Engine::executions).min();
    assert!(spilled > 0 && elsewhere == Some(spilled as usize), "{spilled}, {elsewhere:?}");
}

/// What another shard counts at an engine while this one chooses has it choose once more, and at last pass the bound.
#[test]
fn choices_that_another_shard_undoes_are_counted() {
    if std::thread::available_parallelism().is_ok_and(|threads| threads.get() < 2) {
        return untested::say("choices that another shard undoes, as only one thread runs at a time here");
    }
    let engine = Engine::answering(HELLO);
    let front = Front::with(&[engine.address], |options| {
        options.settings.policy = Policy::PrefixHash;
        // What clients have at once is not to raise the bound: 4 above what is there, always.
        options.settings.load_percent = 100;
    });
    // With four others to two CPUs it took 12 s.
    let (done, deadline) = (AtomicBool::new(false), Instant::now() + 4 * PATIENCE);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let id = endpoint(0, engine.address).id;
            while !done.load(Ordering::Relaxed) && Instant::now() < deadline {
                drop([(); 16].map(|()| front.counters.try_admit(id, None)));
            }
        });
        // Many choices each time that both threads run: on a busy machine they seldom do.
        let mut clients: Vec<_> = (0..32).map(|_| front.connect()).collect();
        let is_counted = || front.count(Count::ChoiceRepeated) > 0 && front.count(Count::AdmittedOverBound) > 0;
        while !is_counted() {
            clients.iter_mut().for_each(|client| client.send(chat("tiny-llama", "hello")));
            clients.iter_mut().for_each(|client| assert_eq!(client.reply().status, 200));
            assert!(Instant::now() < deadline, "no choice was undone so often");
        }
        done.store(true, Ordering::Relaxed);
    });
    front.settles();
}

/// A proxy beside the engine answers for it: as where a connect fails here, another engine takes the request, and the
/// one that was not reached is blamed.
#[test]
fn what_a_hop_did_not_reach_its_engine_with_goes_to_another_one() {
    let told = "upstream connect error or disconnect/reset before headers. retried and the latest reset reason: remote connection failure, transport failure reason: delayed connect error: Connection refused";
    for (told, goes_on) in [(told, true), ("no healthy upstream", true), ("upstream request timeout", false)] {
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\ncontent-type: text/plain\r\nserver: envoy\r\n\r\n{told}",
            told.len()
        );
        let (hop, engine) = (Engine::answering(answer), Engine::answering(HELLO));
        let front = Front::start(&[hop.address, engine.address]);
        let statuses: Vec<u16> = (0..10).map(|_| front.ask(post("/v1/completions", "{}")).status).collect();
        assert_eq!(statuses.iter().all(|status| *status == 200), goes_on, "{told}: {statuses:?}");
        let counted = [Count::RetriedConnect, Count::Barred].map(|event| front.count(event));
        assert_eq!(counted, [if goes_on { 3 } else { 0 }, 1], "{told}");
        front.settles();

        // Nobody else: its own words reach the client.
        let front = Front::start(&[hop.address]);
        let reply = front.ask(post("/v1/completions", "{}"));
        assert_eq!((reply.status, reply.text()), (503, told.to_owned()));
    }
}

/// A shorter engine would answer that its client asked for too much.
#[test]
fn what_a_long_engine_is_too_busy_for_does_not_go_to_a_short_one() {
    let long = Engine::answering(recording("rejected-plain.response"));
    let short = Engine::answering(error(400));
    let front = Front::with(&[long.address, short.address], |options| options.settings.policy = Policy::Warm);
    republish(&front, |snapshot| snapshot.pools[0].contexts = [32_768, 8_192].into());
    let asked = post("/v1/completions", format!(r#"{{"prompt":"{}"}}"#, "word ".repeat(20_000)));
    for _ in 0..4 {
        assert_eq!(front.ask(&asked).status, 503);
    }
    assert_eq!((long.executions(), short.executions(), front.count(Count::RetriedBusy)), (4, 0, 0));
    // Barred since the snapshot was made, or before, it is still the one that may take this.
    front.counters.outcomes().bar(0);
    assert_eq!((front.ask(&asked).status, short.executions()), (503, 0));
    republish(&front, |snapshot| snapshot.endpoints[0].as_mut().unwrap().health = Health::Ejected);
    for _ in 0..4 {
        assert_eq!(front.ask(&asked).status, 503);
    }
    assert_eq!((long.executions(), short.executions()), (9, 0));
    assert_eq!(front.ask(post("/v1/completions", r#"{"prompt":"word"}"#)).status, 400);
    front.settles();
}

/// Nor does what long engines take no connection for, or are too busy for one after the other.
#[test]
fn a_long_prompt_that_fails_at_long_engines_does_not_go_to_a_short_one() {
    let asked = post("/v1/completions", format!(r#"{{"prompt":"{}"}}"#, "word ".repeat(20_000)));
    let start = |engines: &[SocketAddr], contexts: &[u32]| {
        let front = Front::with(engines, |options| {
            options.settings.policy = Policy::Warm;
            options.rules.limits.connect_timeout_ms = 100;
        });
        republish(&front, |snapshot| snapshot.pools[0].contexts = contexts.into());
        front
    };
    let answer = recording("rejected-plain.response");
    let (long, short) = (Engine::answering(answer.clone()), Engine::answering(error(400)));
    let front = start(&[refusing(), long.address, short.address], &[32_768, 32_768, 8_192]);
    let mut own_words = 0;
    for _ in 0..8 {
        let reply = front.ask(&asked);
        assert_eq!(reply.status, 503);
        own_words += usize::from(answer.ends_with(reply.text().as_bytes()));
    }
    assert_eq!(short.executions(), 0);
    assert!(own_words > 0, "where nobody is left, those of the engine are told");
    front.settles();

    let (hole, _kept) = black_hole();
    let front = start(&[hole, short.address], &[32_768, 8_192]);
    assert_eq!((front.ask(&asked).status, front.count(Count::ConnectFailed), short.executions()), (503, 4, 0));
    front.settles();
}

/// A hop before the engine puts its words in chunks, compresses them, or leaves their end to that of the connection: it
/// is full all the same.
#[test]
fn an_engine_that_is_full_is_not_broken_behind_a_hop() {
    let told = br#"{"error":{"message":"The engine is currently busy and cannot accept new requests.","code":503}}"#;
    let coded = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03";
    let head = |fields: &str| format!("HTTP/1.1 503 Service Unavailable\r\n{fields}\r\n").into_bytes();
    let in_chunks = |size| [head("transfer-encoding: chunked\r\n"), chunked(told, size)].concat();
    let gzipped = head(&format!("content-encoding: gzip\r\ncontent-length: {}\r\n", coded.len()));
    for (reply, body, is_read) in [
        (in_chunks(7), &told[..], true),
        (in_chunks(1_000), told, true),
        ([gzipped, coded.to_vec()].concat(), coded, false),
        ([&head("connection: close\r\n"), &told[..]].concat(), told, false),
    ] {
        for size in [1, 40, 1 << 20] {
            let pieces = reply.clone();
            let closes = reply.ends_with(told);
            let full = Engine::run(move |mut connection| {
                while connection.request().is_some() {
                    connection.send_pieces(&pieces, size);
                    if closes {
                        return;
                    }
                }
            });
            let front = Front::start(&[full.address]);
            for version in ["1.1", "1.0", "1.1"] {
                let asked = format!("POST /v1/a HTTP/{version}\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}");
                let reply = front.ask(asked);
                assert_eq!((reply.status, &reply.body[..], reply.whole), (503, body, true), "{version}, {size}");
            }
            let counted =
                [Count::BackPressure, Count::Barred, Count::UpstreamFaultErrorReply].map(|event| front.count(event));
            assert_eq!(counted, [3, 0, 0], "pieces of {size}");
            front.settles();

            let other = Engine::answering(HELLO);
            let front = Front::start(&[full.address, other.address]);
            let served = (0..4).filter(|_| front.ask(post("/v1/a", "{}")).status == 200).count();
            assert_eq!(served, if is_read { 4 } else { 2 }, "pieces of {size}");
        }
    }
}

/// Judged by its beginning, and passed on as it comes.
#[test]
fn a_long_error_in_chunks_is_judged_and_whole() {
    let drains = r#"{"error":{"message":"cannot schedule new futures after shutdown"}}"#;
    for (words, bars) in [(drains, 1), ("", 0)] {
        let told = [words.as_bytes(), &b"x".repeat(100_000)].concat();
        for size in [3_000, 1 << 20] {
            let head = "HTTP/1.1 500 Internal Server Error\r\ntransfer-encoding: chunked\r\n\r\n";
            let pieces = [head.as_bytes(), &chunked(&told, 1_000)].concat();
            let engine = Engine::run(move |mut connection| {
                while connection.request().is_some() {
                    connection.send_pieces(&pieces, size);
                }
            });
            let front = Front::start(&[engine.address]);
            for version in ["1.1", "1.0"] {
                let asked = format!("POST /v1/a HTTP/{version}\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}");
                let reply = front.ask(asked);
                assert!(reply.status == 500 && reply.body == told && reply.whole, "{version}, pieces of {size}");
            }
            assert_eq!((front.count(Count::Barred), front.count(Count::UpstreamFaultErrorReply)), (bars, 2));
        }
    }
    // What is framing for the most part is not waited for.
    let slow = Engine::run(|mut connection| {
        connection.request();
        connection.send("HTTP/1.1 500 Sorry\r\ntransfer-encoding: chunked\r\n\r\n");
        connection.send("0000000000000001\r\nx\r\n".repeat(500));
        connection.closed();
    });
    let front = Front::start(&[slow.address]);
    let mut client = front.connect();
    client.send(post("/v1/a", "{}"));
    assert!(client.bytes(25).starts_with(b"HTTP/1.1 500 Sorry\r\n"));
    assert_eq!(front.counters.outcomes().read(0).in_a_row, 1);
    drop(client);
    // What is malformed is so from there on.
    let engine = Engine::answering("HTTP/1.1 500 Sorry\r\ntransfer-encoding: chunked\r\n\r\n2\r\nnox");
    let front = Front::start(&[engine.address]);
    assert!(!front.ask(post("/v1/a", "{}")).whole);
    assert_eq!(front.counters.outcomes().read(0).in_a_row, 1, "one fault");
}

/// Where all are busy, a tenth of the requests is tried twice, besides ten; each at most twice.
#[test]
fn retries_have_a_budget() {
    let engines = [(); 3].map(|()| Engine::answering(recording("rejected-plain.response")));
    let front = Front::start(&engines.each_ref().map(|engine| engine.address));
    let mut client = front.connect();
    for _ in 0..200 {
        assert_eq!(client.ask(chat("tiny-llama", "hello")).status, 503);
    }
    let retried = front.count(Count::RetriedBusy);
    assert!((20..=30).contains(&retried), "{retried} of 200");
    assert_eq!(front.count(Count::RetryWithheld), 200 - retried);
    assert_eq!(engines.iter().map(Engine::executions).sum::<usize>() as u64, 200 + retried);
}

/// What was saved up before does not count where nothing is to be sent twice.
#[test]
fn no_budget_is_no_retry() {
    let engines = [(); 2].map(|()| Engine::answering(recording("rejected-plain.response")));
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.rules.limits.retry_percent = 0;
    });
    (0..5).for_each(|_| assert_eq!(front.ask(chat("tiny-llama", "hello")).status, 503));
    assert_eq!((front.count(Count::RetriedBusy), front.count(Count::RetryWithheld)), (0, 5));
    assert_eq!(engines.iter().map(Engine::executions).sum::<usize>(), 5);
}

/// Who fails at once would look idle: its failures count as load for a second.
#[test]
fn a_failed_request_stays_charged_for_a_while() {
    for status in [500, 503, 200] {
        let engine = Engine::answering(error(status));
        let front = Front::with(&[engine.address], |options| options.rules.limits.failed_charge_ms = 400);
        let begun = Instant::now();
        assert_eq!(front.ask(get("/v1/a")).status, status);
        let charged = front.counters.in_flight(0);
        assert!(charged == u32::from(status != 200) || begun.elapsed() > Duration::from_millis(390));
        front.settles();
        assert!(status == 200 || begun.elapsed() >= Duration::from_millis(400), "{status}: {:?}", begun.elapsed());
    }
}

/// What failed is over: it counts as load for a while, and keeps nobody else out.
#[test]
fn what_failed_takes_no_place() {
    let engine = Engine::answering("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n");
    let front = Front::with(&[engine.address], |options| options.rules.limits.failed_charge_ms = 60_000);
    republish_each(&front, |endpoint| endpoint.cap = 2);
    let mut client = front.connect();
    assert!((0..10).all(|_| client.ask(get("/v1/a")).status == 429));
    assert_eq!((front.counters.in_flight(0), front.counters.loads().running(0)), (10, 0));
    assert_eq!((engine.requests().len(), front.count(Count::RefusedAllAtCap)), (10, 0));
}

/// An engine gets no more requests at a time than it may have; a free place is taken at once.
#[test]
fn a_cap_is_never_passed() {
    let (open, wait) = gate();
    let engine = Engine::gated(wait);
    let front = Front::start(&[engine.address]);
    republish_each(&front, |endpoint| endpoint.cap = 2);
    let mut clients = [(); 2].map(|()| front.connect());
    clients.iter_mut().for_each(|client| client.send(get("/v1/a")));
    front.until("two requests", |front| front.counters.in_flight(0) == 2);
    let mut late = front.connect();
    let refused = late.ask(get("/v1/a"));
    assert_eq!((refused.status, refused.head.get("retry-after"), refused.closes()), (503, Some("1"), false));
    open.send(()).unwrap();
    front.until("a free place", |front| front.counters.in_flight(0) == 1);
    late.send(get("/v1/a"));
    (0..2).for_each(|_| open.send(()).unwrap());
    assert_eq!(late.reply().status, 200);
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    assert_eq!((front.count(Count::RefusedAllAtCap), front.count(Count::Barred)), (1, 0));
    front.settles();
}
