//! Whose fault it is: what a client asked for itself, who is silent, and what stands a trial.

use std::io::Write;
use std::time::Duration;

use warmfront::counters::stats::{Count, Ended};
use warmfront::policy::Policy;

use crate::client::{get, post};
use crate::engine::{Connection, Engine, HELLO, STREAM, TOKEN, gate};
use crate::front::Front;
use crate::tries::in_one_of;

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
    assert_eq!((front.ended(Ended::Refused), front.ended(Ended::Failed)), (5, 0), "nor of what objectives count");
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
    let front = start();
    is_no_fault(&front, told, "/v1/chat/completions", &image);
    // It may be the engine's, all the same.
    assert_eq!((front.ended(Ended::Refused), front.ended(Ended::Failed)), (0, 5));

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
                        "/v1/begun" => connection.send([STREAM, TOKEN].concat()),
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
        in_one_of(5, at, bars, barred);
    }
}

/// The same where a stream goes on, however long ago that began.
#[test]
fn who_is_silent_beside_a_stream_that_goes_on_has_not_failed() {
    // An engine that is stopped in the middle is silent as well: hardly in each of five tries.
    in_one_of(5, "one cut, no fault, and a stream that goes on", (1, 0, true), the_silent_one_is_cut);
}

/// How many were cut, how many faults that was, and whether the stream goes on.
fn the_silent_one_is_cut() -> (u64, u32, bool) {
    let engine = Engine::run(|mut connection| {
        let Some(request) = connection.request() else { return };
        let event = "9\r\ndata: a\n\n\r\n";
        connection.send([STREAM, event].concat());
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
    front.until("its end", |front| front.count(Count::UpstreamFaultChunkTimeout) >= 1);
    let faults = front.counters.outcomes().read(0).faults;
    let is_going_on = !goes_on.bytes(9).is_empty();
    drop(goes_on);
    front.settles();
    (front.count(Count::UpstreamFaultChunkTimeout), faults, is_going_on)
}

/// It neither stands a trial nor takes the only place of one.
#[test]
fn what_an_engine_answers_without_computing_is_no_trial() {
    let (open, wait) = gate();
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
        let (open, wait) = gate();
        let engine = Engine::run(move |mut connection| {
            connection.request();
            connection.send(STREAM);
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
