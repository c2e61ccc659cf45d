//! What requests learn about their engines: who fails is barred, who is busy is spared, and nobody is asked twice for more.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use warmfront::counters::Text;
use warmfront::counters::stats::Count;
use warmfront::fleet::{Endpoint, Health};
use warmfront::policy::Policy;

use crate::client::{chat, chunked, get, post};
use crate::engine::{Connection, Engine, HELLO, black_hole, refusing};
use crate::front::Front;
use crate::models::republish;
use crate::wire::End;

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// vLLM's answers, as recorded.
fn recorded(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/vllm-0.32.0/");
    std::fs::read(format!("{folder}{name}")).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn error(status: u16) -> String {
    format!("HTTP/1.1 {status} Sorry\r\ncontent-length: 2\r\n\r\nno")
}

/// Whatever it does to its requests, after three of them an engine gets no more; clients see at most those three.
#[test]
fn three_failures_in_a_row_bar_an_engine() {
    type Script = fn(Connection);
    // Only who hangs is waited for until its time is over: no good engine is stopped for as long as the others have.
    const HANGS: u64 = 300;
    const ENDS: u64 = 10_000;
    let scripts: [(&str, u64, Script); 6] = [
        ("resets", ENDS, |mut connection| {
            connection.request();
            connection.reset();
        }),
        ("closes", ENDS, |mut connection| drop(connection.request())),
        ("never answers", HANGS, |mut connection| {
            connection.request();
            connection.closed();
        }),
        ("answers 500", ENDS, |mut connection| {
            while connection.request().is_some() {
                connection.send(error(500));
            }
        }),
        ("speaks no HTTP", ENDS, |mut connection| {
            connection.request();
            connection.send("SSH-2.0-OpenSSH_9.2p1\r\n\r\n");
        }),
        ("hangs before the first token", HANGS, |mut connection| {
            connection.request();
            connection.send(STREAM_HEAD);
            connection.closed();
        }),
    ];
    for (what, timeout, script) in scripts {
        let counted = || {
            let (broken, engine) = (Engine::run(script), Engine::answering(HELLO));
            let front = Front::with(&[broken.address, engine.address], |options| {
                options.rules.limits.reply_head_timeout_ms = timeout;
                options.rules.limits.first_token_timeout_ms = timeout;
            });
            let served = (0..30).filter(|_| {
                let reply = front.ask(post("/v1/chat/completions", "{}"));
                reply.status == 200 && reply.whole
            });
            let served = served.count();
            front.settles();
            front.until("all to be read", |_| broken.executions() + engine.executions() == 30);
            (served, broken.executions(), engine.executions(), front.count(Count::Barred))
        };
        // A good engine that is stopped for a second fails a request as well: hardly in each of three tries.
        let spoilt: Vec<_> = (0..3).map(|_| counted()).take_while(|counts| *counts != (27, 3, 27, 1)).collect();
        assert!(spoilt.len() < 3, "{what}: {spoilt:?}");
    }
}

/// What cannot be connected to costs no request, and after three tries no time either.
#[test]
fn what_cannot_be_connected_to_is_soon_left_alone() {
    let (hole, _kept) = black_hole();
    for address in [refusing(), hole] {
        let engine = Engine::answering(HELLO);
        let front = Front::with(&[address, engine.address], |options| options.rules.limits.connect_timeout_ms = 300);
        for _ in 0..30 {
            assert_eq!(front.ask(get("/v1/a")).status, 200);
        }
        assert_eq!(front.count(Count::ConnectFailed), 3);
        front.settles();
    }
}

/// A good answer ends a row of failures; what the client does wrong, an engine with enough to do, or what its HTTP
/// server answers by itself, is none.
#[test]
fn only_failures_in_a_row_bar() {
    for (between, asked, bars) in [
        (200, post("/v1/a", "{}"), 0),
        (404, post("/v1/a", "{}"), 1),
        (200, get("/v1/a"), 1),
        (200, b"OPTIONS /v1/a HTTP/1.1\r\nHost: x\r\n\r\n".into(), 1),
        (200, post("/tokenize", "{}"), 1),
        (200, post("/v1/messages/count_tokens", "{}"), 1),
        (200, post("/v1/proxied/messages/count_tokens", "{}"), 1),
        (200, post("/detokenize", "{}"), 1),
        (200, post("/v1/tokenize", "{}"), 1),
        (200, post("/v1/chat/completions/derender?a=b", "{}"), 1),
        (200, post("/v1/responses/resp_1/cancel", "{}"), 1),
        (200, b"DELETE /v1/responses/resp_1 HTTP/1.1\r\nHost: x\r\n\r\n".into(), 1),
        (307, post("/v1/a", "{}"), 1),
    ] {
        let engine = Engine::run(move |mut connection| {
            let mut turn = 0;
            while connection.request().is_some() {
                turn += 1;
                connection.send(error(if turn % 3 == 0 { between } else { 500 }));
            }
        });
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        for turn in 1..=12 {
            client.ask(if turn % 3 == 0 { asked.clone() } else { post("/v1/a", "{}") });
        }
        assert_eq!(front.count(Count::Barred), bars, "{between} to {} between two 500s", asked.escape_ascii());
    }
    for status in [400, 401, 404, 422, 429] {
        let engine = Engine::answering(error(status));
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        (0..12).for_each(|_| assert_eq!(client.ask(get("/v1/a")).status, status));
        assert_eq!(front.count(Count::Barred), 0, "{status}");
        assert_eq!(front.count(Count::BackPressure), if status == 429 { 12 } else { 0 });
    }
}

/// Its HTTP server says at once that a response is queued, whatever becomes of it.
#[test]
fn what_is_queued_in_the_background_proves_nothing() {
    for (fields, bars) in [
        ("", 0),
        (r#","background":true"#, 1),
        (r#","background":true,"background":false"#, 0),
        (r#","background":true,"stream":true"#, 0),
    ] {
        let engine = Engine::run(|mut connection| {
            while let Some(request) = connection.request() {
                connection.send(error(if request.path() == "/v1/responses" { 200 } else { 500 }));
            }
        });
        let front = Front::with(&[engine.address], |options| options.settings.policy = Policy::Warm);
        let asked = format!(r#"{{"model":"m","input":"hello"{fields}}}"#);
        for _ in 0..4 {
            assert_eq!(front.ask(post("/v1/responses", &asked)).status, 200);
            assert_eq!(front.ask(post("/v1/completions", r#"{"model":"m","prompt":"hello"}"#)).status, 500);
        }
        assert_eq!(front.count(Count::Barred), bars, "{fields}");
        front.settles();
    }
}

/// No good answer to it would end their row: engines that are asked nothing else would be out for good.
#[test]
fn errors_to_what_no_engine_computes_bar_nobody() {
    let read = [get("/v1/a"), b"DELETE /v1/responses/resp_1 HTTP/1.1\r\nHost: x\r\n\r\n".into()];
    for asked in [post("/tokenize", "{}"), post("/v1/messages/count_tokens", "{}")].into_iter().chain(read) {
        let engine = Engine::answering(error(500));
        let front = Front::start(&[engine.address]);
        (0..4).for_each(|_| assert_eq!(front.ask(&asked).status, 500));
        let outcomes = front.counters.outcomes();
        assert_eq!((outcomes.read(0).in_a_row, front.count(Count::UpstreamFaultErrorReply)), (0, 4));
        // One fault would end its trial.
        front.counters.on_trial(0);
        assert_eq!(front.ask(&asked).status, 500);
        assert!(!outcomes.is_barred(0), "{}", asked.escape_ascii());
        assert_eq!(front.ask(post("/v1/a", "{}")).status, 500);
        assert!(outcomes.is_barred(0), "{}", asked.escape_ascii());
    }
    // A connection that breaks tells of more than the server's words.
    let engine = Engine::run(|mut connection| drop(connection.request()));
    let front = Front::start(&[engine.address]);
    (0..3).for_each(|_| assert_eq!(front.ask(post("/tokenize", "{}")).status, 502));
    assert!(front.counters.outcomes().is_barred(0));
}

/// The last engine is asked however often it failed: a barred fleet is still better than none.
#[test]
fn bars_never_empty_a_fleet() {
    let engines = [(); 3].map(|()| Engine::answering(error(500)));
    let front = Front::start(&engines.each_ref().map(|engine| engine.address));
    for _ in 0..30 {
        assert_eq!(front.ask(post("/v1/a", "{}")).status, 500);
    }
    assert_eq!(front.count(Count::Barred), 3);
    assert_eq!(engines.iter().map(Engine::executions).sum::<usize>(), 30);
}

/// A vLLM that drains answers `/health` and refuses every request at once: one is enough to know.
#[test]
fn a_draining_vllm_is_barred_at_once() {
    let answer = recorded("sigterm-drain.new-request.response");
    for size in [1, 40, 1 << 20] {
        let pieces = answer.clone();
        let draining = Engine::run(move |mut connection| {
            connection.request();
            connection.send_pieces(&pieces, size);
            connection.closed();
        });
        let engine = Engine::answering(HELLO);
        let front = Front::start(&[draining.address, engine.address]);
        let replies: Vec<_> = (0..20).map(|_| front.ask(post("/v1/chat/completions", "{}"))).collect();
        let refused: Vec<_> = replies.iter().filter(|reply| reply.status == 500).collect();
        assert_eq!((draining.executions(), refused.len(), engine.executions()), (1, 1, 19), "pieces of {size}");
        assert!(answer.ends_with(refused[0].text().as_bytes()), "it passes untouched");
        front.settles();
    }
}

/// Prompts that are token ids pass its frontend by, and are answered as if all were well.
#[test]
fn who_breaks_every_answer_off_is_barred() {
    let says = |reason: &str, tokens: usize| {
        let body = format!(
            r#"{{"id":"a","choices":[{{"index":0,"text":"","finish_reason":"{reason}"}}],"usage":{{"prompt_tokens":3,"completion_tokens":{tokens}}}}}"#
        );
        Engine::answering(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    for (reason, tokens, expected) in [("abort", 0, (3, 1)), ("abort", 1, (0, 0)), ("length", 0, (0, 0))] {
        let front = Front::start(&[says(reason, tokens).address]);
        for _ in 0..3 {
            let reply = front.ask(post("/v1/completions", r#"{"prompt":[1,2,3]}"#));
            assert_eq!((reply.status, reply.whole), (200, true));
        }
        let counted = (front.count(Count::UpstreamFaultErrorEvent), front.count(Count::Barred));
        assert_eq!(counted, expected, "{reason} {tokens}");
        front.settles();
    }
}

/// A full queue: the request was not executed, and another engine takes it.
#[test]
fn what_an_engine_is_too_busy_for_goes_to_another_one() {
    let answer = recorded("rejected-plain.response");
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
    let long = Engine::answering(recorded("rejected-plain.response"));
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
    let answer = recorded("rejected-plain.response");
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
    let engines = [(); 3].map(|()| Engine::answering(recorded("rejected-plain.response")));
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
    let engines = [(); 2].map(|()| Engine::answering(recorded("rejected-plain.response")));
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

/// A stream that its engine breaks off ends with an event that says so, where one can stand.
#[test]
fn a_broken_stream_says_so() {
    let told = "data: {\"error\":{\"message\":\"The engine broke off";
    for (piece, switched_on, is_told) in [
        ("9\r\ndata: a\n\n\r\n", true, true),
        ("b\r\ndata: a\r\n\r\n\r\n", true, true),
        ("9\r\ndata: a\n\n\r\n", false, false),
        ("8\r\ndata: a\n\r\n", true, false),
        ("9\r\ndata: a\n\n", true, false),
        ("12\r\ndata: a\n\n", true, false),
        ("", true, true),
    ] {
        let engine = Engine::run(move |mut connection| {
            connection.request();
            connection.send(STREAM_HEAD);
            connection.send(piece);
        });
        let front = Front::with(&[engine.address], |options| options.rules.stream_error_event = switched_on);
        let mut client = front.connect();
        let reply = client.ask(post("/v1/chat/completions", "{}"));
        assert_eq!((reply.status, reply.whole), (200, false), "{piece:?}");
        assert_eq!(reply.text().contains(told), is_told, "{piece:?}: {:?}", reply.text());
        assert!(!reply.text().contains("[DONE]") && (!is_told || reply.text().ends_with("\n\n")));
        assert_eq!((client.ends(), front.count(Count::ToldInStream)), (End::Fin, u64::from(is_told)));
        front.settles();
    }
}

/// A reply of known length has no room for an event, whatever it holds.
#[test]
fn a_broken_length_gets_no_event() {
    let engine = Engine::run(|mut connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 500\r\n\r\ndata: a\n\n");
    });
    let front = Front::with(&[engine.address], |options| options.rules.stream_error_event = true);
    let reply = front.ask(post("/v1/chat/completions", "{}"));
    assert_eq!((reply.whole, reply.text().as_str()), (false, "data: a\n\n"));
}

/// The core of a vLLM that was killed: an error inside a 200, which passes as it is and counts against the engine.
#[test]
fn an_error_inside_a_200_counts() {
    let answer = recorded("sigkill-engine-core.stream.response");
    let sent = answer.clone();
    let engine = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            connection.send(&sent);
        }
    });
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    for _ in 0..3 {
        let reply = client.ask(post("/v1/completions", "{}"));
        assert!(reply.whole && reply.text().contains("EngineCore encountered an issue"));
    }
    assert_eq!((front.count(Count::UpstreamFaultErrorEvent), front.count(Count::Barred)), (3, 1));
}

/// An SGLang whose queue is full writes the head of a stream before it says so: it has enough to do, and computed nothing.
#[test]
fn a_full_queue_inside_a_200_is_no_fault() {
    let busy = r#"data: {"error": {"object": "error", "message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", "param": null, "code": 503}}"#;
    let engine = Engine::run(move |mut connection| {
        while let Some(request) = connection.request() {
            // One that had begun to answer has computed the prompt.
            let token = if request.text().contains("begun") { "data: a\n\n" } else { "" };
            let body = format!("{token}{busy}\n\ndata: [DONE]\n\n");
            let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
            connection.send(format!("{STREAM_HEAD}{chunk}"));
        }
    });
    let front = Front::with(&[engine.address], |options| options.settings.policy = Policy::Warm);
    let mut client = front.connect();
    let words = "all of this is new to the engine. ".repeat(100);
    for _ in 0..4 {
        let reply = client.ask(chat("tiny-llama", &words));
        assert!(reply.whole && reply.text().contains("request queue is full"));
    }
    front.settles();
    let faults = [Count::UpstreamFaultErrorEvent, Count::Barred].map(|event| front.count(event));
    assert_eq!((faults, front.count(Count::BackPressure)), ([0, 0], 4));
    assert_eq!(front.published.current().index.as_ref().unwrap().figures(0).blocks, 0, "none of it is held");
    assert!(client.ask(chat("tiny-llama", &format!("begun. {words}"))).whole);
    front.settles();
    assert!(front.published.current().index.as_ref().unwrap().figures(0).blocks > 8, "this was computed");
}

/// Whoever's it is: no rate is learnt of it, and nothing is held but what an engine may have computed before it failed.
#[test]
fn an_error_in_place_of_an_answer_is_no_first_token() {
    let messages = |error: &str| {
        let usage = r#""usage":{"input_tokens":0,"output_tokens":0,"cache_read_input_tokens":0}"#;
        format!(
            "event: error\ndata: {{\"type\":\"error\",\"error\":{error}}}\n\n\
             event: message_delta\ndata: {{\"type\":\"message_delta\",{usage}}}\n\n"
        )
    };
    let too_long = "data: {\"error\": {\"message\": \"too long\", \"code\": 400}}\n\ndata: [DONE]\n\n".to_owned();
    for (path, events, expected) in [
        ("/v1/messages", messages(r#"{"type":"internal_error","message":"EngineCore"}"#), [3, 1, 0]),
        ("/v1/messages", messages(r#"{"type":"api_error","message":"Stream processing error"}"#), [3, 0, 0]),
        ("/v1/messages", messages(r#"{"type":"overloaded_error","message":"Overloaded"}"#), [0, 0, 3]),
        ("/v1/chat/completions", too_long, [0, 0, 0]),
    ] {
        let answer = format!("{STREAM_HEAD}{:x}\r\n{events}\r\n0\r\n\r\n", events.len());
        let engine = Engine::run(move |mut connection| {
            while connection.request().is_some() {
                connection.send(&answer);
            }
        });
        let front = Front::with(&[engine.address], |options| options.settings.policy = Policy::Warm);
        let rate = front.counters.loads().prefill_rate(0);
        let words = "all of this is new to the engine. ".repeat(1_000);
        let body = format!(r#"{{"stream":true,"messages":[{{"role":"user","content":"{words}"}}]}}"#);
        let mut client = front.connect();
        for _ in 0..3 {
            let reply = client.ask(post(path, &body));
            assert!(reply.whole && reply.text() == events, "{events}");
        }
        front.settles();
        let counts =
            [Count::UpstreamFaultErrorEvent, Count::Barred, Count::BackPressure].map(|event| front.count(event));
        assert_eq!(counts, expected, "{events}");
        assert_eq!(front.counters.loads().prefill_rate(0), rate, "{events}");
        let held = front.published.current().index.as_ref().unwrap().figures(0).blocks > 0;
        assert_eq!(held, events.contains("EngineCore"), "{events}");
        assert_eq!(front.counters.predictions().text(0), Text::default(), "{events}");
    }
}

/// Has the snapshot say so of every endpoint.
fn change(front: &Front, change: impl Fn(&mut Endpoint)) {
    let mut snapshot = (*front.published.current()).clone();
    snapshot.endpoints.iter_mut().flatten().for_each(change);
    front.published.publish(snapshot);
}

/// A vLLM that was told to end keeps its streams open and silent, and refuses its probes: they are cut visibly, those
/// that still speak go on, and so do silent ones of an engine that is there.
#[test]
fn silent_streams_of_an_engine_that_is_gone_are_cut() {
    // An engine that is stopped in the middle is silent as well: hardly in each of three tries.
    assert!((0..3).any(|_| who_speaks_goes_on_where_the_silent_are_cut()), "who speaks is cut");
}

fn who_speaks_goes_on_where_the_silent_are_cut() -> bool {
    const AFTER: Duration = Duration::from_millis(2_500);
    let (finish, wait) = crate::uploads::gate();
    let engine = Engine::run(move |mut connection| {
        let Some(request) = connection.request() else { return };
        // What tells of no engine that computes.
        if request.path() == "/v1/finished/ping" {
            wait();
            return connection.send(HELLO);
        }
        if request.path() != "/v1/whole" {
            connection.send(STREAM_HEAD);
        }
        if request.path() == "/v1/silent" {
            connection.send("9\r\ndata: a\n\n\r\n");
        }
        while request.path() == "/v1/speaks" {
            connection.send("3\r\n:\n\n\r\n");
            std::thread::sleep(Duration::from_millis(100));
        }
        connection.closed();
    });
    let front = Front::with(&[engine.address], |options| {
        options.rules.limits.deserted_timeout_ms = AFTER.as_millis() as u64;
        options.rules.limits.deserted_head_timeout_ms = 4 * AFTER.as_millis() as u64;
        options.rules.stream_error_event = true;
    });
    let ask = |path: &str| {
        let mut client = front.connect();
        client.send(post(path, "{}"));
        client
    };
    let [mut speaks, mut silent, mut whole, mut finished] =
        ["/v1/speaks", "/v1/silent", "/v1/whole", "/v1/finished/ping"].map(ask);
    speaks.head();
    assert!(whole.is_silent(AFTER.as_millis() as u64 + 1_500), "its engine is there");
    change(&front, |endpoint| endpoint.refuses_probes = true);
    let cut = silent.reply();
    assert!(!cut.whole && cut.text().starts_with("data: a\n\ndata: {\"error\":{"), "{:?}", cut.text());
    // What has no head yet is waited for longer, and not for ever.
    finish.send(()).unwrap();
    assert_eq!((silent.ends(), finished.reply().status, whole.reply().status), (End::Fin, 200, 502));
    let cut = front.count(Count::UpstreamFaultSilent);
    let goes_on = cut == 2 && front.counters.in_flight(0) >= 1 && !speaks.bytes(8).is_empty();
    drop(speaks);
    front.settles();
    assert!(goes_on || cut == 3, "{cut} are cut");
    goes_on
}

/// Where a Service stands before it, the probes of an engine are refused as soon as its pod is not ready: while others
/// have tokens from it, it is there.
#[test]
fn silent_streams_of_an_engine_that_gives_others_tokens_are_not_cut() {
    const AFTER: Duration = Duration::from_millis(2_000);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let stopped = std::sync::Mutex::new(stopped);
    let engine = Engine::run(move |mut connection| {
        let Some(request) = connection.request() else { return };
        connection.send([STREAM_HEAD, "9\r\ndata: a\n\n\r\n"].concat());
        let goes_on = request.path() == "/v1/goes-on";
        while goes_on && stopped.lock().unwrap().recv_timeout(Duration::from_millis(50)).is_err() {
            connection.send("9\r\ndata: a\n\n\r\n");
        }
        connection.closed();
    });
    let front = Front::with(&[engine.address], |options| {
        options.rules.limits.deserted_timeout_ms = AFTER.as_millis() as u64;
        // Streams tell more often that they go on.
        options.rules.limits.reply_head_timeout_ms = 8_000;
    });
    let _clients = ["/v1/goes-on", "/v1/silent"].map(|path| {
        let mut client = front.connect();
        client.send(post(path, "{}"));
        client.head();
        client
    });
    change(&front, |endpoint| endpoint.refuses_probes = true);
    // Shards look each second.
    std::thread::sleep(AFTER + Duration::from_millis(1_500));
    assert_eq!(front.count(Count::UpstreamFaultSilent), 0);
    stop.send(()).unwrap();
    // Nobody has anything from it any more.
    front.until("their ends", |front| front.count(Count::UpstreamFaultSilent) == 2);
    front.settles();
}

/// Nor are those of a client that does not read for a while: the engine may have more to say, and is not read from.
#[test]
fn a_stream_that_its_client_does_not_take_is_not_silent() {
    const AFTER: Duration = Duration::from_millis(2_500);
    const EVENTS: usize = 400;
    let engine = Engine::run(|mut connection| {
        connection.request();
        let event = format!("data: {}\n\n", "x".repeat(64 << 10));
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        connection.send([STREAM_HEAD, &chunk.repeat(EVENTS), "0\r\n\r\n"].concat());
    });
    let front =
        Front::with(&[engine.address], |options| options.rules.limits.deserted_timeout_ms = AFTER.as_millis() as u64);
    let mut client = front.connect();
    client.send(post("/v1/completions", "{}"));
    client.head();
    change(&front, |endpoint| endpoint.refuses_probes = true);
    // Shards look each second.
    std::thread::sleep(AFTER + Duration::from_millis(1_500));
    assert_eq!(front.count(Count::UpstreamFaultSilent), 0);
    // Who is stopped while it sends all that would be silent.
    change(&front, |endpoint| endpoint.refuses_probes = false);
    assert_eq!(client.chunks().len(), EVENTS, "it is whole");
    front.settles();
}

/// The same of tunnels: what passes bytes goes on.
#[test]
fn tunnels_of_an_engine_that_is_gone_are_cut_where_they_are_silent() {
    // An engine that is stopped in the middle is silent as well: hardly in each of three tries.
    assert!((0..3).any(|_| the_tunnel_that_speaks_goes_on()), "who speaks is cut");
}

fn the_tunnel_that_speaks_goes_on() -> bool {
    const AFTER: Duration = Duration::from_millis(2_500);
    let engine = Engine::run(|mut connection| {
        connection.request();
        connection.send(crate::tunnel::SWITCH);
        while connection.bytes(1) == b"a" {
            connection.send("b");
        }
    });
    let front =
        Front::with(&[engine.address], |options| options.rules.limits.deserted_timeout_ms = AFTER.as_millis() as u64);
    change(&front, |endpoint| endpoint.refuses_probes = true);
    let mut tunnels = [(); 2].map(|()| front.connect());
    for client in &mut tunnels {
        client.send(crate::tunnel::ASK);
        assert_eq!(client.head().start, "HTTP/1.1 101 Switching Protocols");
    }
    let [speaks, silent] = &mut tunnels;
    let begun = Instant::now();
    let mut goes_on = true;
    while goes_on && begun.elapsed() < 2 * AFTER {
        speaks.send("a");
        goes_on = speaks.bytes(1) == b"b";
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(silent.ends(), End::Reset);
    goes_on && front.count(Count::UpstreamFaultSilent) == 1
}

/// An engine that answers every request with this 500.
fn failing(told: &str) -> Engine {
    Engine::answering(format!(
        "HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{told}",
        told.len()
    ))
}

/// What an engine says of a request that its client could have asked differently bars nobody, and comes back as it was
/// said.
fn is_no_fault(front: &Front, told: &str, path: &str, body: &str) {
    let mut client = front.connect();
    for _ in 0..5 {
        let reply = client.ask(post(path, body));
        assert_eq!((reply.status, reply.text()), (500, told.to_owned()));
    }
    assert_eq!((front.count(Count::UpstreamFaultErrorReply), front.count(Count::Barred)), (5, 0));
    front.settles();
}

/// vLLM answers 500 where the server does not that a client had it fetch an image from, with that server's words.
#[test]
fn images_that_cannot_be_fetched_are_no_fault_of_the_engines() {
    let told = r#"{"error":{"message":"500, message='cannot schedule new futures', url='http://x/a.png'","type":"InternalServerError","param":null,"code":500}}"#;
    let front = Front::start(&[failing(told).address]);
    is_no_fault(&front, told, "/v1/chat/completions", "{}");
}

/// SGLang's words hold the image itself, and are judged by their beginning.
#[test]
fn an_image_that_cannot_be_read_is_no_fault_however_long_it_is() {
    let image = "A".repeat(300_000);
    let told = format!(
        r#"{{"object":"error","message":"Internal server error: Error while loading data data:image/png;base64,{image}"}}"#
    );
    let front = Front::start(&[failing(&told).address]);
    is_no_fault(&front, &told, "/v1/chat/completions", "{}");
}

/// A server that never answers: what vLLM says of it is empty, and means nothing where nobody asked for an image.
#[test]
fn an_error_without_words_is_a_fault_where_there_were_no_images() {
    let told = r#"{"error":{"message":"","type":"InternalServerError","param":null,"code":500}}"#;
    let asks = |part: &str| format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}]}}"#);
    let start = || Front::with(&[failing(told).address], |options| options.settings.policy = Policy::Warm);
    let image = asks(r#"{"type":"image_url","image_url":{"url":"http://x/a.png"}}"#);
    is_no_fault(&start(), told, "/v1/chat/completions", &image);

    let front = start();
    let text = asks(r#"{"type":"text","text":"hello"}"#);
    for _ in 0..3 {
        assert_eq!(front.ask(post("/v1/chat/completions", &text)).status, 500);
    }
    assert_eq!(front.count(Count::Barred), 1);
}

/// It does not say what was wrong with it: a prompt that is too long is no less.
#[test]
fn what_sglang_says_of_any_message_is_no_fault() {
    let told = r#"{"type":"error","error":{"type":"internal_error","message":"Internal processing error"}}"#;
    let front = Front::start(&[failing(told).address]);
    is_no_fault(&front, told, "/v1/messages", "{}");
}

/// It computes the call of a tool, say, of which it writes nothing before it is whole: what others get from it
/// meanwhile tells it from one that hangs.
#[test]
fn who_is_silent_has_not_failed_where_others_are_answered() {
    let (good, preflight) = (post("/v1/other", "{}"), b"OPTIONS /v1/other HTTP/1.1\r\nHost: x\r\n\r\n".to_vec());
    let counts = post("/v1/messages/count_tokens", "{}");
    for (others, at, bars) in [
        (Some(&good), "/v1/begun", 0),
        (None, "/v1/begun", 1),
        (Some(&good), "/v1/unbegun", 0),
        (None, "/v1/unbegun", 1),
        // Of an engine that hangs the HTTP server answers all the same.
        (Some(&preflight), "/v1/begun", 1),
        (Some(&counts), "/v1/unbegun", 1),
    ] {
        let barred = || {
            let engine = Engine::run(|mut connection: Connection| {
                while let Some(request) = connection.request() {
                    match request.path() {
                        "/v1/begun" => connection.send([STREAM_HEAD, "9\r\ndata: a\n\n\r\n"].concat()),
                        "/v1/unbegun" => {}
                        _ => connection.send(HELLO),
                    }
                }
            });
            let front = Front::with(&[engine.address], |options| {
                options.rules.limits.inter_chunk_timeout_ms = 600;
                options.rules.limits.reply_head_timeout_ms = 600;
            });
            let mut silent = [(); 3].map(|()| front.connect());
            silent.iter_mut().for_each(|client| client.send(post(at, "{}")));
            front.until("all three", |front| front.counters.in_flight(0) == 3);
            let timed_out = |front: &Front| {
                front.count(Count::UpstreamFaultChunkTimeout) + front.count(Count::UpstreamFaultHeadTimeout) >= 3
            };
            front.until("their ends", |front| {
                if let Some(others) = others.filter(|_| !timed_out(front)) {
                    front.ask(others);
                }
                timed_out(front)
            });
            front.settles();
            front.count(Count::Barred)
        };
        // Who is asked too late helps nobody, and first tokens may come so far from one another that they help each
        // other: hardly in each of five tries.
        assert!((0..5).any(|_| barred() == bars), "{at}: not {bars}");
    }
}

/// The same where a stream goes on, however long ago that began.
#[test]
fn who_is_silent_beside_a_stream_that_goes_on_has_not_failed() {
    let engine = Engine::run(|mut connection| {
        let Some(request) = connection.request() else { return };
        let event = "9\r\ndata: a\n\n\r\n";
        connection.send([STREAM_HEAD, event].concat());
        while request.path() == "/v1/goes-on" && connection.stream().write_all(event.as_bytes()).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
        connection.closed();
    });
    let front = Front::with(&[engine.address], |options| options.rules.limits.inter_chunk_timeout_ms = 1_000);
    let [mut goes_on, _silent] = ["/v1/goes-on", "/v1/silent"].map(|path| {
        let mut client = front.connect();
        client.send(post(path, "{}"));
        client.head();
        client
    });
    front.until("its end", |front| front.count(Count::UpstreamFaultChunkTimeout) == 1);
    assert_eq!(front.counters.outcomes().read(0).faults, 0);
    assert!(!goes_on.bytes(9).is_empty());
    drop(goes_on);
    front.settles();
}

/// It neither stands a trial nor takes the only place of one.
#[test]
fn what_an_engine_answers_without_computing_is_no_trial() {
    let (open, wait) = crate::uploads::gate();
    let engine = Engine::run(move |mut connection| {
        while let Some(request) = connection.request() {
            if request.path() == "/v1/slow" {
                wait();
            }
            connection.send(HELLO);
        }
    });
    let front = Front::start(&[engine.address]);
    let (outcomes, loads) = (front.counters.outcomes(), front.counters.loads());
    outcomes.bar(0);
    front.counters.on_trial(0);
    let mut clients = Vec::new();
    for (asked, expected) in [(get("/v1/slow"), (1, 1)), (post("/v1/slow", "{}"), (2, 1))] {
        let mut client = front.connect();
        client.send(asked);
        front.until("its choice", |front| (front.counters.in_flight(0), loads.open_before(0)) == expected);
        clients.push(client);
    }
    assert_eq!(front.ask(get("/v1/a")).status, 200);
    front.until("its end", |front| front.counters.in_flight(0) == 2);
    assert_eq!((outcomes.read(0).in_a_row, outcomes.read(0).recoveries), (2, 0));
    (0..2).for_each(|_| open.send(()).unwrap());
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    assert_eq!((outcomes.read(0).in_a_row, outcomes.read(0).recoveries), (0, 1));
    front.settles();
}

/// It may be minutes long, and nobody else is served there meanwhile. Where no trial is under way it is its end that
/// counts.
#[test]
fn a_trial_is_over_as_a_stream_begins() {
    for on_trial in [true, false] {
        let (open, wait) = crate::uploads::gate();
        let engine = Engine::run(move |mut connection| {
            connection.request();
            connection.send(STREAM_HEAD);
            wait();
            connection.send("9\r\ndata: a\n\n\r\n");
            connection.closed();
        });
        let front = Front::start(&[engine.address]);
        let outcomes = front.counters.outcomes();
        (0..2).for_each(|_| _ = outcomes.fault(0));
        if on_trial {
            outcomes.bar(0);
            front.counters.on_trial(0);
        }
        let mut client = front.connect();
        client.send(post("/v1/chat/completions", "{}"));
        client.head();
        assert_eq!(outcomes.read(0).in_a_row, 2, "a head is none");
        open.send(()).unwrap();
        assert_eq!(client.bytes(9), b"9\r\ndata: ");
        let expected = if on_trial { (0, 1) } else { (2, 0) };
        let read = outcomes.read(0);
        assert_eq!((read.in_a_row, read.recoveries), expected, "on trial: {on_trial}");
        drop(client);
        front.settles();
    }
}

/// What failed is over: it counts as load for a while, and keeps nobody else out.
#[test]
fn what_failed_takes_no_place() {
    let engine = Engine::answering("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n");
    let front = Front::with(&[engine.address], |options| options.rules.limits.failed_charge_ms = 60_000);
    change(&front, |endpoint| endpoint.cap = 2);
    let mut client = front.connect();
    assert!((0..10).all(|_| client.ask(get("/v1/a")).status == 429));
    assert_eq!((front.counters.in_flight(0), front.counters.loads().running(0)), (10, 0));
    assert_eq!((engine.requests().len(), front.count(Count::RefusedAllAtCap)), (10, 0));
}

/// An engine gets no more requests at a time than it may have; a free place is taken at once.
#[test]
fn a_cap_is_never_passed() {
    let (open, wait) = crate::uploads::gate();
    let engine = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            wait();
            connection.send(HELLO);
        }
    });
    let front = Front::start(&[engine.address]);
    change(&front, |endpoint| endpoint.cap = 2);
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
