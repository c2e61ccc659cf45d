//! What the front's own answers contain.

use std::time::{SystemTime, UNIX_EPOCH};

use warmfront::calendar::imf_fixdate;
use warmfront::exchange::Origins;

use crate::client::get;
use crate::engine::{Engine, HELLO, STREAM, ok};
use crate::front::Front;
use crate::models::with_models;

/// HEAD is answered as GET is, but without a body (RFC 9110, 9.3.2). Balancers ask with HEAD.
#[test]
fn heads_are_answered_as_gets_are() {
    let engine = Engine::answering(ok("the engine's"));
    let front = Front::start(&[engine.address]);
    with_models(&front, &[]);
    front.until("the models", |front| front.ask(get("/v1/models")).text() == "{\"object\":\"list\"}");
    let asked = engine.executions();
    let mut client = front.connect();
    for (path, status) in
        [("/health", 200), ("/v1/models", 200), ("/v1/models/org/m", 200), ("/v1/models/other", 404), ("/pause", 404)]
    {
        let got = client.ask(get(path));
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        let head = client.reply_to("HEAD");
        assert_eq!((got.status, head.status), (status, status), "{path}");
        assert_eq!(head.head.get("content-length"), got.head.get("content-length"), "{path}");
        assert_eq!(head.head.get("content-type"), got.head.get("content-type"), "{path}");
    }
    assert_eq!(engine.executions(), asked, "no engine is asked");
}

/// The front's own answers have a date; an engine's date passes, and none is added to its replies.
#[test]
fn answers_of_ours_are_dated() {
    let theirs = "Sun, 06 Nov 1994 08:49:37 GMT";
    let engine = Engine::answering(format!("HTTP/1.1 200 OK\r\ndate: {theirs}\r\ncontent-length: 0\r\n\r\n"));
    let front = Front::start(&[engine.address]);
    for asked in [get("/health"), get("/pause"), get("/v1/a b"), b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n".into()] {
        let micros = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        let before = micros() - 1_000_000;
        let reply = front.ask(&asked);
        let told = reply.head.get("date").unwrap_or_default();
        let mut times = (before..micros() + 1_000_000).step_by(1_000_000);
        assert!(times.any(|time| imf_fixdate(time) == told), "{told:?} for {}", asked.escape_ascii());
    }
    assert_eq!(front.ask(get("/v1/a")).head.get("date"), Some(theirs));
    let undated = Front::start(&[Engine::answering(HELLO).address]);
    assert_eq!(undated.ask(get("/v1/a")).head.get("date"), None);
}

/// Neither method reaches an engine, whatever Max-Forwards says; "the origin server MUST generate an Allow header
/// field".
#[test]
fn methods_that_are_not_served_say_which_are() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    for line in ["CONNECT x:80", "TRACE /v1/a", "TRACE /health", "TRACE http://x/v1/a"] {
        for hops in ["", "Max-Forwards: 0\r\n", "Max-Forwards: 7\r\n"] {
            let reply = front.ask(format!("{line} HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\n{hops}\r\n"));
            assert_eq!((reply.status, reply.closes()), (405, true), "{line}");
            let allowed = reply.head.get("allow").unwrap_or_default();
            assert!(allowed.split(", ").any(|method| method == "POST"), "{line}: {allowed:?}");
            assert!(!allowed.contains("TRACE") && !allowed.contains("CONNECT"), "{allowed:?}");
        }
    }
    assert_eq!(engine.connections(), 0);
}

/// A browser shows a page nothing of an answer that does not allow its origin, not even the reason for a refusal.
#[test]
fn pages_may_read_answers_of_ours() {
    let engine = Engine::answering(HELLO);
    let start = |origins: &[&str]| {
        let front = Front::with(&[engine.address], |options| {
            options.rules.origins = Origins::new(origins.iter().copied());
            options.rules.limits.body_bytes_max = 3;
            options.rules.limits.hold_bytes = 3;
        });
        with_models(&front, &[]);
        front.until("the models", |front| front.ask(get("/v1/models")).text() == "{\"object\":\"list\"}");
        front
    };
    let (a, b) = ("https://a.example", "https://a.example:8443");
    for (origins, asks, allows, varies) in [
        (&["*"][..], Some(a), Some("*"), None),
        (&["*"], None, None, None),
        (&[], Some(a), None, None),
        (&[a, b], Some(a), Some(a), Some("Origin")),
        (&[a, b], Some(b), Some(b), Some("Origin")),
        (&[a, b], Some("https://a.example.com"), None, Some("Origin")),
        (&[a], None, None, Some("Origin")),
    ] {
        let front = start(origins);
        let origin = asks.map(|origin| format!("Origin: {origin}\r\n")).unwrap_or_default();
        for (line, rest, status) in [
            ("GET /v1/models", "\r\n", 200),
            ("GET /health", "\r\n", 200),
            ("GET /v1/models/other", "\r\n", 404),
            ("GET /pause", "\r\n", 404),
            ("POST /v1/a", "Content-Length: 4\r\n\r\nlong", 413),
            ("POST /v1/completions", "Transfer-Encoding: chunked\r\n\r\n4\r\nlong\r\n0\r\n\r\n", 413),
            ("GET /v1/a", "Content-Length: x\r\n\r\n", 400),
        ] {
            let reply = front.ask(format!("{line} HTTP/1.1\r\nHost: x\r\n{origin}{rest}"));
            let told = (reply.status, reply.head.get("access-control-allow-origin"), reply.head.get("vary"));
            assert_eq!(told, (status, allows, varies), "{origins:?} {asks:?} {line}");
        }
        let engines = front.ask(format!("GET /v1/a HTTP/1.1\r\nHost: x\r\n{origin}\r\n"));
        assert_eq!((engines.status, engines.head.get("access-control-allow-origin")), (200, None), "says so itself");
    }
}

/// The client of a refused head may be a browser with too many cookies.
#[test]
fn pages_may_read_why_their_head_was_refused() {
    let front = Front::start(&[Engine::answering(HELLO).address]);
    let long = format!("GET /v1/a HTTP/1.1\r\nHost: x\r\nOrigin: https://a\r\nCookie: {}\r\n\r\n", "c".repeat(40_000));
    let reply = front.ask(long);
    assert_eq!((reply.status, reply.head.get("access-control-allow-origin")), (431, Some("*")));
}

/// Anthropic's SDK shows an error of another shape than its own as raw text, and takes the kind from `error.type`.
#[test]
fn errors_have_the_shape_of_their_api() {
    let front = Front::with(&[crate::engine::refusing()], |options| options.rules.limits.body_bytes_max = 3);
    for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/a%20b"] {
        for (line, rest, status, kind) in [
            ("POST", "Content-Length: 4\r\n\r\nlong", 413, "request_too_large"),
            ("POST", "Content-Length: x\r\n\r\n", 400, "invalid_request_error"),
            ("POST", "no field\r\n\r\n", 400, "invalid_request_error"),
            ("POST", "Content-Length: 2\r\n\r\n{}", 503, "overloaded_error"),
        ] {
            let (status, kind) = match path.contains('%') && !rest.contains('x') && !rest.contains("no") {
                true => (404, "not_found_error"),
                false => (status, kind),
            };
            let reply = front.ask(format!("{line} {path} HTTP/1.1\r\nHost: x\r\n{rest}"));
            let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!((reply.status, &body["type"], &body["error"]["type"]), (status, &"error".into(), &kind.into()));
            assert!(body["error"]["message"].is_string(), "{path} {rest:?}: {body}");
        }
    }
    let other: serde_json::Value = serde_json::from_slice(&front.ask(get("/pause")).body).unwrap();
    assert_eq!(other["error"]["type"], "NotFoundError");
}

/// A broken stream ends with the event for which the SDK of its API raises an error.
#[test]
fn broken_streams_say_so_in_the_shape_of_their_api() {
    let words = "The engine broke off before the end of its reply.";
    let object = format!(r#"{{"message":"{words}","type":"BadGatewayError","param":null,"code":502}}"#);
    for (path, told) in [
        ("/v1/chat/completions", format!("data: {{\"error\":{object}}}\n\n")),
        (
            "/v1/messages",
            format!(
                "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"api_error\",\"message\":\"{words}\"}}}}\n\n"
            ),
        ),
        (
            "/v1/responses",
            format!(
                "event: error\ndata: {{\"type\":\"error\",\"sequence_number\":0,\"code\":\"server_error\",\"message\":\"{words}\",\
                 \"param\":null,\"error\":{object}}}\n\n"
            ),
        ),
    ] {
        let engine = Engine::run(|mut connection| {
            connection.request();
            connection.send(STREAM);
            connection.send("9\r\ndata: a\n\n\r\n");
        });
        let front = Front::with(&[engine.address], |options| options.rules.stream_error_event = true);
        let reply = front.ask(crate::client::post(path, "{}"));
        assert_eq!((reply.whole, reply.text()), (false, format!("data: a\n\n{told}")), "{path}");
    }
}

/// A refusal's words say whose fault it is, and what would help.
#[test]
fn refusals_say_whose_fault_it_is() {
    let front = Front::start(&[Engine::answering(HELLO).address]);
    with_models(&front, &[]);
    front.until("the models", |front| front.ask(get("/v1/models")).text() == "{\"object\":\"list\"}");
    assert_eq!(front.ask(get("/v1/models/")).text(), "{\"object\":\"list\"}", "no model is called so");
    for method in ["POST", "DELETE", "OPTIONS"] {
        let reply = front.ask(format!("{method} /health?a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"));
        assert_eq!((reply.status, reply.head.get("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    assert_eq!(front.ask("GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").status, 200);
    for (path, words) in [
        ("/pause?a=%20", "/pause. An operator may open it with serve.paths."),
        ("/v1/load_lora_adapter", "An operator may open it"),
        ("/v1/%6coad_lora_adapter", "Percent-encoded bytes"),
        ("/v1//a", "A slash stands twice in it."),
        ("//v1/models", "//v1/models. A slash stands twice in it."),
        ("/models", "/models. It is served below /v1"),
        ("/messages?beta=true", "/messages. It is served below /v1"),
        ("/audio/transcriptions", "It is served below /v1, with which a base URL is to end."),
        ("/audio", "serve.paths"),
    ] {
        let reply = front.ask(get(path));
        assert!(reply.status == 404 && reply.text().contains(words), "{path}: {}", reply.text());
    }
    for (reply, words) in [
        ("HTTP/1.1 200 OK\r\nx: y\n\r\n".to_owned(), "an LF without its CR"),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n".to_owned(),
            "more than one Content-Length",
        ),
        (format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(300_000)), "the head is too large"),
    ] {
        let reply = Front::start(&[Engine::answering(reply).address]).ask(get("/v1/a"));
        let told = format!("The engine's reply cannot be passed on: {words}");
        assert!(reply.status == 502 && reply.text().contains(&told), "{}", reply.text());
    }
}
