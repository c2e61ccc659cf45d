//! Answers that break off or go wrong within: what clients see of that, and what counts.

use std::time::Duration;

use warmfront::counters::Text;
use warmfront::counters::stats::{Count, Ended};
use warmfront::policy::Policy;

use crate::client::{chat, post, status};
use crate::engine::{Engine, LAST, STREAM, gate, ok};
use crate::front::Front;
use crate::recorded::recording;
use crate::wire::{End, find};

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
            connection.send(STREAM);
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

/// One that ends with its connection goes on in chunks of ours, between which an event can stand; who reads no chunks
/// would take it for the stream's end, and has a reset.
#[test]
fn a_broken_stream_without_chunks_says_so_to_who_reads_them() {
    for (version, piece, is_told, end) in
        [("1.1", "9\r\ndata: a\n\n\r\n", true, End::Fin), ("1.0", "data: a\n\n", false, End::Reset)]
    {
        let (open, wait) = gate();
        let engine = Engine::run(move |mut connection| {
            connection.request();
            connection.send("HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: a\n\n");
            wait();
            connection.reset();
        });
        let front = Front::with(&[engine.address], |options| options.rules.stream_error_event = true);
        let mut client = front.connect();
        client.send(format!("POST /v1/chat/completions HTTP/{version}\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"));
        assert_eq!(status(&client.head()), 200);
        assert_eq!(client.bytes(piece.len()), piece.as_bytes());
        open.send(()).unwrap();
        let (rest, ended) = client.rest();
        let rest = String::from_utf8(rest).unwrap();
        assert_eq!((rest.contains("The engine broke off"), ended), (is_told, end), "HTTP/{version}: {rest:?}");
        assert!(rest.is_empty() != is_told && !rest.ends_with(LAST), "HTTP/{version}: {rest:?}");
        assert_eq!(front.count(Count::ToldInStream), u64::from(is_told));
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

/// So vLLM 0.32 refuses what is wrong with a response once it has opened its stream: who asks for that again and again
/// would have one engine after the other ejected. It counts as load, and its prompt is held by nobody. One that gave
/// nobody anything of late has failed, and so has one that ends in the midst of an event.
#[test]
fn a_response_that_ends_behind_its_opening_is_nobodys_fault() {
    let refused = recording("responses-stream-refused.response");
    let begun = [&refused[..], b"a\r\ndata: {}\n\n\r\n"].concat();
    let amid = refused.strip_suffix(b"\n\r\n").unwrap().to_vec();
    let prompt = "a schema that no grammar can be made of. ".repeat(200);
    let body = format!(r#"{{"model":"tiny-llama","stream":true,"input":"{prompt}"}}"#);
    for (answer, path, gives, counts) in [
        (&refused, "/v1/responses", true, false),
        (&refused, "/v1/responses", false, true),
        (&amid, "/v1/responses", true, true),
        (&begun, "/v1/responses", true, true),
        (&refused, "/v1/chat/completions", true, true),
    ] {
        let writes = answer.clone();
        let engine = Engine::run(move |mut connection| {
            while let Some(request) = connection.request() {
                if request.body.len() > 1_000 {
                    return connection.send(&writes);
                }
                connection.send(ok("{}"));
            }
        });
        let front = Front::with(&[engine.address], |options| options.settings.policy = Policy::Warm);
        while gives && !front.counters.outcomes().gave_since(0, 0) {
            assert_eq!(front.ask(chat("tiny-llama", "hello")).status, 200);
        }
        for _ in 0..3 {
            assert!(!front.ask(post(path, &body)).whole);
            front.settles();
        }
        assert_eq!(front.count(Count::UpstreamFaultEarlyEnd), 3, "{path}");
        assert_eq!(front.count(Count::Barred), u64::from(counts), "{path} {gives}");
        let noted = front.published.current().index.as_ref().unwrap().figures(0).blocks;
        assert_eq!(noted > 0, path == "/v1/responses" && (*answer == begun || *answer == amid), "{path}: {noted}");
    }
}

/// The core of a vLLM that was killed: an error inside a 200, which passes as it is and counts against the engine,
/// however it is cut.
#[test]
fn an_error_inside_a_200_counts() {
    for pause in [Duration::ZERO, Duration::from_millis(50)] {
        let answer = recording("sigkill-engine-core.stream.response");
        let amid_its_event = find(&answer, b"EngineCore encountered").unwrap();
        let engine = Engine::run(move |mut connection| {
            while connection.request().is_some() {
                connection.send(&answer[..amid_its_event]);
                std::thread::sleep(pause);
                connection.send(&answer[amid_its_event..]);
            }
        });
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        for _ in 0..3 {
            let reply = client.ask(post("/v1/completions", "{}"));
            assert!(reply.whole && reply.text().contains("EngineCore encountered an issue"));
        }
        let counts = (front.count(Count::UpstreamFaultErrorEvent), front.count(Count::Barred));
        assert_eq!(counts, (3, 1), "cut by {pause:?}");
    }
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
            connection.send(format!("{STREAM}{chunk}"));
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
        ("/v1/chat/completions", too_long.clone(), [0, 0, 0]),
    ] {
        let answer = format!("{STREAM}{:x}\r\n{events}\r\n0\r\n\r\n", events.len());
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
        // What clients ask for in vain is no failure of the service.
        let ended = [Ended::Refused, Ended::Broken, Ended::Served].map(|ended| front.ended(ended));
        assert_eq!(ended, if events == too_long { [3, 0, 0] } else { [0, 3, 0] }, "{events}");
        assert_eq!(front.counters.loads().prefill_rate(0), rate, "{events}");
        let held = front.published.current().index.as_ref().unwrap().figures(0).blocks > 0;
        assert_eq!(held, events.contains("EngineCore"), "{events}");
        assert_eq!(front.counters.predictions().text(0), Text::default(), "{events}");
    }
}
