//! Who fails requests in a row is barred, and only who does.

use std::time::Duration;

use warmfront::counters::stats::{Count, TokenCount};
use warmfront::policy::Policy;

use crate::client::{get, post};
use crate::engine::{Connection, Engine, HELLO, LAST, STREAM, black_hole, error, refusing};
use crate::front::Front;
use crate::recorded::recording;
use crate::tries::in_one_of;

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
            connection.send(STREAM);
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
        in_one_of(3, what, (27, 3, 27, 1), counted);
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
    let answer = recording("sigterm-drain.new-request.response");
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
    for (reason, tokens, expected) in [("abort", 0, (3, 1, 0)), ("abort", 1, (0, 0, 9)), ("length", 0, (0, 0, 9))] {
        let front = Front::start(&[says(reason, tokens).address]);
        for _ in 0..3 {
            let reply = front.ask(post("/v1/completions", r#"{"prompt":[1,2,3]}"#));
            assert_eq!((reply.status, reply.whole), (200, true));
        }
        front.settles();
        let told = front.tokens(TokenCount::ToldPrompt);
        let counted = (front.count(Count::UpstreamFaultErrorEvent), front.count(Count::Barred), told);
        assert_eq!(counted, expected, "{reason} {tokens}");
    }
}

/// vLLM, as it ends or is put to sleep, ends a stream that waits as if it had been answered: what it says of an abort
/// 0.32 leaves out, with all that has no token.
#[test]
fn who_breaks_every_stream_off_is_barred() {
    const OPENS: &str =
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#;
    const TOKEN: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]}"#;
    const STOP: &str = r#"{"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop"}]}"#;
    const ABORT: &str = r#"{"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"abort"}]}"#;
    const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0}}"#;
    const DONE: &str = "[DONE]";
    for (events, broken_off) in [
        (&[OPENS, DONE][..], true),
        (&[OPENS, USAGE, DONE], true),
        (&[OPENS, ABORT, DONE], true),
        (&[OPENS, ABORT, USAGE, DONE], true),
        (&[ABORT, DONE], true),
        (&[USAGE, DONE], true),
        (&[DONE], true),
        (&[OPENS, TOKEN, ABORT, DONE], false),
        (&[OPENS, TOKEN, ABORT, USAGE, DONE], false),
        (&[OPENS, STOP, DONE], false),
    ] {
        // All at once, each event by itself, and each in two.
        for cuts in 0..3 {
            let events: Vec<_> = events.iter().map(|data| format!("data: {data}\n\n")).collect();
            let pieces: Vec<_> = match cuts {
                0 => vec![events.concat()],
                1 => events,
                _ => events.iter().flat_map(|event| <[_; 2]>::from(event.split_at(9)).map(str::to_owned)).collect(),
            };
            let what = format!("{pieces:?}");
            let engine = Engine::run(move |mut connection| {
                while connection.request().is_some() {
                    connection.send(STREAM);
                    for piece in &pieces {
                        connection.send(format!("{:x}\r\n{piece}\r\n", piece.len()));
                        std::thread::sleep(Duration::from_millis(3));
                    }
                    connection.send(LAST);
                }
            });
            let front = Front::start(&[engine.address]);
            front.counters.on_trial(0);
            let pool = front.published.current().pools[0].id;
            let mean_before = front.counters.loads().mean_answer(pool);
            for _ in 0..3 {
                let reply = front.ask(post("/v1/chat/completions", r#"{"messages":[],"stream":true}"#));
                assert_eq!((reply.status, reply.whole), (200, true));
            }
            front.settles();
            let expected = if broken_off { (3, true, 0) } else { (0, false, 3) };
            let outcomes = front.counters.outcomes();
            let first_tokens = front.stats.first_tokens(0).count();
            let counted = (front.count(Count::UpstreamFaultErrorEvent), outcomes.is_barred(0), first_tokens);
            assert_eq!(counted, expected, "{what}");
            // A prompt that nobody computed, and answers without a token, which were none.
            let told = if !broken_off && what.contains("usage") { 9 } else { 0 };
            let mean = front.counters.loads().mean_answer(pool);
            assert_eq!((front.tokens(TokenCount::ToldPrompt), mean < mean_before), (told, told > 0), "{what}");
        }
    }
}
