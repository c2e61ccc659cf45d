//! Corner cases of request framing: what is refused, and what the engine sees of the rest.

use crate::client::{Client, get};
use crate::engine::{Engine, Request, ok};
use crate::front::Front;
use crate::wire::Length;
use warmfront::policy::Policy;

/// What must come of some bytes.
enum Expected {
    /// One answer of this status, the connection closed, nothing at the engine.
    Refused(u16),
    /// These requests at the engine, `path body`, each answered, and the connection goes on.
    Passed(&'static [&'static str]),
    /// The same, and the connection is closed after the last.
    Closed(&'static [&'static str]),
}
use Expected::{Closed, Passed, Refused};

const P: &str = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";

/// Bytes in; `~` stands for the usual start of a POST to `/v1/a`.
const ROWS: &[(&str, Expected)] = &[
    // Lengths (RFC 9112, 6.3).
    ("~Content-Length: 2\r\n\r\nhi", Passed(&["/v1/completions hi"])),
    ("~Content-Length: 0\r\n\r\n", Passed(&["/v1/completions "])),
    ("~Content-Length: 0000000002\r\n\r\nhi", Passed(&["/v1/completions hi"])),
    ("~\r\n", Passed(&["/v1/completions "])),
    ("~Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", Refused(400)),
    ("~Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi!", Refused(400)),
    ("~Content-Length: 2, 2\r\n\r\nhi", Refused(400)),
    ("~Content-Length: +2\r\n\r\nhi", Refused(400)),
    ("~Content-Length: -2\r\n\r\nhi", Refused(400)),
    ("~Content-Length: 0x2\r\n\r\nhi", Refused(400)),
    ("~Content-Length: 2 \t\r\n\r\nhi", Passed(&["/v1/completions hi"])),
    ("~Content-Length: 2 2\r\n\r\nhi", Refused(400)),
    ("~Content-Length:\r\n\r\n", Refused(400)),
    ("~Content-Length: 18446744073709551618\r\n\r\nhi", Refused(400)),
    ("~Content-Length: 9223372036854775808\r\n\r\nhi", Refused(400)),
    ("~Content-Length : 2\r\n\r\nhi", Refused(400)),
    ("~Content-Length\r\n\r\n", Refused(400)),
    ("~Content_Length: 2\r\n\r\n", Passed(&["/v1/completions "])),
    // Both, or other codings (6.1, 6.3).
    ("~Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: identity\r\n\r\n", Refused(501)),
    ("~Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", Refused(501)),
    ("~Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", Refused(501)),
    ("~Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding:\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", Passed(&["/v1/completions "])),
    ("POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refused(400)),
    // Chunks (7.1).
    ("~Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", Passed(&["/v1/completions hi"])),
    ("~Transfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", Passed(&["/v1/completions hi"])),
    ("~Transfer-Encoding: chunked\r\n\r\n002\r\nhi\r\n000\r\n\r\n", Passed(&["/v1/completions hi"])),
    ("~Transfer-Encoding: chunked\r\n\r\n2;a=\"b\"\r\nhi\r\n0;c\r\n\r\n", Passed(&["/v1/completions hi"])),
    ("~Transfer-Encoding: chunked\r\n\r\n2;a\nb\r\nhi\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n2;\r\nhi\r\n0\r\n\r\n", Passed(&["/v1/completions hi"])),
    ("~Transfer-Encoding: chunked\r\n\r\n2 \r\nhi\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n 2\r\nhi\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n0x2\r\nhi\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n+2\r\nhi\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n-2\r\nhi\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n\r\nhi\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n2\nhi\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n2\r\nhi!\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n2\r\nhi0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n2\r\nhi\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n2\r\r\nhi\r\n0\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhi", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\nhi\r\n0\r\n\r\n", Refused(400)),
    // Trailers: those of framing and routing go, others stay, broken ones are refused.
    ("~Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: b\r\n\r\n", Passed(&["/v1/completions hi A: b"])),
    (
        "~Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nContent-Length: 9\r\nHost: y\r\n\r\n",
        Passed(&["/v1/completions hi"]),
    ),
    ("~Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA : b\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA\r\n\r\n", Refused(400)),
    ("~Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\nGET /v1/evil HTTP/1.1\r\n\r\n", Refused(400)),
    // The bytes behind a request are the next one, and no others are.
    ("~Content-Length: 2\r\n\r\nhiGET /v1/b HTTP/1.1\r\nHost: x\r\n\r\n", Passed(&["/v1/completions hi", "/v1/b "])),
    (
        "~Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/b HTTP/1.1\r\nHost: x\r\n\r\n",
        Passed(&["/v1/completions ", "/v1/b "]),
    ),
    (
        "GET /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\nGET /v1/evil HTTP/1.1\r\nHost: x\r\nX: yyy\r\n",
        Passed(&["/v1/completions GET /v1/evil HTTP/1.1\r\nHost: x\r\nX: yyy\r\n"]),
    ),
    ("\r\nGET /v1/b HTTP/1.1\r\nHost: x\r\n\r\n", Passed(&["/v1/b "])),
    (
        "~Content-Length: 2\r\n\r\nhi\r\nGET /v1/b HTTP/1.1\r\nHost: x\r\n\r\n",
        Passed(&["/v1/completions hi", "/v1/b "]),
    ),
    ("\r\n\r\nGET /v1/b HTTP/1.1\r\nHost: x\r\n\r\n", Refused(400)),
    (
        "~Connection: close\r\nContent-Length: 2\r\n\r\nhiGET /v1/evil HTTP/1.1\r\nHost: x\r\n\r\n",
        Closed(&["/v1/completions hi"]),
    ),
    ("GET /v1/b HTTP/1.0\r\n\r\nGET /v1/evil HTTP/1.0\r\n\r\n", Closed(&["/v1/b "])),
    ("POST /v1/b HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi", Closed(&["/v1/b hi"])),
    // Heads (2 to 5).
    ("GET  /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", Refused(400)),
    ("GET /v1/completions  HTTP/1.1\r\nHost: x\r\n\r\n", Refused(400)),
    ("GET\t/v1/a\tHTTP/1.1\r\nHost: x\r\n\r\n", Refused(400)),
    ("GET /v1/a\r\nHost: x\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1 \r\nHost: x\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/2.0\r\nHost: x\r\n\r\n", Refused(505)),
    ("GET /v1/completions HTTP/1.2\r\nHost: x\r\n\r\n", Refused(505)),
    ("GET /v1/completions http/1.1\r\nHost: x\r\n\r\n", Refused(400)),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refused(505)),
    ("\x16\x03\x01\x02", Refused(400)),
    ("G\0T /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\nHost: x\n\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\r\rA: b\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\n Host: x\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\r\nA b\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\r\nA\u{e9}: b\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\r\nA:\r\n\r\n", Passed(&["/v1/completions "])),
    // Host and target.
    ("GET /v1/completions HTTP/1.1\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: x y\r\n\r\n", Refused(400)),
    ("GET /v1/completions HTTP/1.1\r\nHost: u@x\r\n\r\n", Refused(400)),
    ("GET http://x/v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", Passed(&["/v1/completions "])),
    ("GET http://y/v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", Refused(400)),
    ("GET /v1/a#b HTTP/1.1\r\nHost: x\r\n\r\n", Refused(400)),
    ("GET /v1/a\u{e9} HTTP/1.1\r\nHost: x\r\n\r\n", Refused(400)),
    ("CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", Refused(405)),
    // Fields of the connection do not pass, nor may they remove others.
    (
        "GET /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: A, keep-alive\r\nA: b\r\nKeep-Alive: 9\r\n\r\n",
        Passed(&["/v1/completions "]),
    ),
    ("GET /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: Authorization\r\nAuthorization: b\r\n\r\n", Refused(400)),
    ("~Connection: Content-Length\r\nContent-Length: 2\r\n\r\nhi", Refused(400)),
    ("~Expect: 200-ok\r\nContent-Length: 2\r\n\r\nhi", Refused(417)),
];

/// The engine of every row: it answers each whole request with its path.
fn echoing() -> Engine {
    Engine::run(|mut connection| {
        while let Some(request) = connection.request() {
            connection.send(ok(request.path()));
        }
    })
}

fn seen(request: &Request) -> String {
    let trailers: String = request.trailers.iter().map(|(name, value)| format!(" {name}: {value}")).collect();
    format!("{} {}{trailers}", request.path(), request.text())
}

fn check(front: &Front, engine: &Engine, bytes: &[u8], expected: &Expected, pieces: usize) {
    let context = format!("{:?} in pieces of {pieces}", String::from_utf8_lossy(bytes));
    let before = engine.executions();
    let mut client = front.connect();
    for piece in bytes.chunks(pieces) {
        client.send(piece);
    }
    let (passed, goes_on) = match expected {
        Refused(status) => {
            let reply = client.reply();
            assert_eq!((reply.status, reply.whole, reply.closes()), (*status, true, true), "{context}");
            let error: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
            assert_eq!(error["error"]["code"], *status, "{context}");
            client.ends();
            (&[][..], false)
        }
        Passed(passed) => (*passed, true),
        Closed(passed) => (*passed, false),
    };
    for line in passed {
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{context}: {}", reply.text());
        assert_eq!(Some(reply.text().as_str()), line.split(' ').next(), "{context}");
    }
    if goes_on {
        assert_eq!(client.ask(get("/v1/last")).text(), "/v1/last", "{context}");
    } else {
        client.ends();
    }
    let seen: Vec<_> = engine.requests()[before..].iter().map(seen).collect();
    let last = goes_on.then_some("/v1/last ");
    assert_eq!(seen, passed.iter().copied().chain(last).collect::<Vec<_>>(), "{context}");
}

fn check_all(pieces: usize, policy: Policy) {
    let engine = echoing();
    let front = Front::with(&[engine.address], |options| options.settings.policy = policy);
    for (bytes, expected) in ROWS {
        let bytes = bytes.replacen('~', P, 1);
        check(&front, &engine, bytes.as_bytes(), expected, pieces);
    }
    front.settles();
}

#[test]
fn corner_requests_in_one_piece() {
    check_all(usize::MAX, Policy::RoundRobin);
}

#[test]
fn corner_requests_byte_by_byte() {
    check_all(1, Policy::RoundRobin);
}

#[test]
fn corner_requests_in_pieces_of_seven() {
    check_all(7, Policy::RoundRobin);
}

/// Bodies that are held while they are scanned are framed like those that stream.
#[test]
fn corner_requests_of_held_bodies() {
    check_all(usize::MAX, Policy::PrefixHash);
    check_all(1, Policy::PrefixHash);
}

/// The head that the engine gets is written anew: one length, no field of the client's connection.
#[test]
fn the_engine_gets_clean_heads() {
    let engine = echoing();
    let front = Front::start(&[engine.address]);
    let request = "POST http://x/v1/a?b=c HTTP/1.1\r\nhost: x\r\nConnection: keep-alive, Secret\r\nSecret: s\r\n\
                   Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nProxy-Authorization: p\r\n\
                   Upgrade: h2c\r\nHTTP2-Settings: AAA\r\nTrailer: A\r\nAuthorization: Bearer k\r\nX-A: 1\r\nx-a: 2\r\n\
                   Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n";
    assert_eq!(front.connect().ask(request).status, 200);
    let seen = &engine.requests()[0];
    assert_eq!((seen.head.start.as_str(), seen.text().as_str()), ("POST /v1/a?b=c HTTP/1.1", "abc"));
    for gone in ["connection", "keep-alive", "proxy-connection", "te", "proxy-authorization", "upgrade", "secret"] {
        assert!(seen.head.all(gone).is_empty(), "{gone}: {:?}", seen.head);
    }
    assert_eq!(seen.head.get("authorization"), Some("Bearer k"));
    assert_eq!(seen.head.all("x-a"), ["1", "2"]);
    assert_eq!(seen.head.get("host"), Some("x"));
    assert_eq!(seen.head.get("transfer-encoding"), Some("chunked"));
}

/// An engine is asked in HTTP/1.1 whatever the client speaks.
#[test]
fn old_clients_are_asked_on_in_http_1_1() {
    let engine = echoing();
    let front = Front::start(&[engine.address]);
    let mut client: Client = front.connect();
    let reply = client.ask("GET /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(reply.head.get("connection"), Some("keep-alive"));
    assert!(client.ask("GET /v1/b HTTP/1.0\r\n\r\n").closes());
    client.ends();
    let starts: Vec<_> = engine.requests().into_iter().map(|request| request.head.start).collect();
    assert_eq!(starts, ["GET /v1/completions HTTP/1.1", "GET /v1/b HTTP/1.1"]);
    assert!(engine.requests().iter().all(|request| request.head.get("host") == Some("")));
}

/// A refused chunk in the middle of a request that already streams to the engine: never a whole request there.
#[test]
fn a_fault_behind_streamed_chunks_leaves_no_whole_request() {
    let engine = echoing();
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(format!("{P}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"));
    front.until("a connection", |_| engine.connections() == 1);
    client.send("5\r\nhello!\r\n0\r\n\r\n");
    assert_eq!(client.reply().status, 400);
    client.ends();
    front.settles();
    assert_eq!(engine.executions(), 0);
}

/// Requests with HEAD, and the status with which each is refused.
const HEADS: &[(&str, u16)] = &[
    ("HEAD /v1/a HTTP/1.1\r\n\r\n", 400),
    ("\r\nHEAD /v1/a HTTP/1.1\r\nHost: x y\r\n\r\n", 400),
    ("HEAD /v1/a HTTP/1.1\r\nHost: x\r\nA b\r\n\r\n", 400),
    ("HEAD\t/v1/a\tHTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("HEAD  /v1/a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("HEAD /v1/a HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    ("HEAD /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\nhi", 400),
    ("HEAD /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ("HEAD /v1/a HTTP/1.1\r\nHost: x\r\nExpect: 200-ok\r\n\r\n", 417),
    ("HEAD /v1/a HTTP/1.1\r\nHost: x\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n", 431),
    ("HEAD /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", 413),
    ("HEAD /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
    ("HEAD /v1/a HTTP/1.1\r\nHo", 408),
    ("HEAD", 408),
];

/// "the server MUST NOT send content in the response" to HEAD (RFC 9110, 9.3.2): nor where it is refused.
#[test]
fn no_answer_to_head_has_a_body() {
    let front = Front::with(&[echoing().address], |options| {
        let limits = &mut options.rules.limits;
        (limits.head_fields_max, limits.body_bytes_max, limits.head_timeout_ms) = (3, 8, 100);
    });
    for (request, status) in HEADS {
        let mut client = front.connect();
        client.send(request);
        let reply = client.reply_to("HEAD");
        assert_eq!((reply.status, reply.closes()), (*status, true), "{request:?}");
        assert!(matches!(reply.head.length(), Some(Length::Of(1..))), "{request:?}");
        client.ends();
    }
    // The answer to a method that only resembles HEAD has a body, and a path that is not let through leaves the
    // connection open.
    for other in ["HEADS /v1/a HTTP/1.1\r\n\r\n", "head /v1/a HTTP/1.1\r\n\r\n", "HEA"] {
        assert_eq!((front.ask(other).whole, front.ask(other).body.is_empty()), (true, false), "{other:?}");
    }
    let mut client = front.connect();
    client.send("HEAD /pause HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.reply_to("HEAD").status, 404);
    assert_eq!(client.ask(get("/v1/last")).text(), "/v1/last");
    front.settles();
    let nowhere = Front::start(&[]);
    let mut client = nowhere.connect();
    client.send("HEAD /v1/a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.reply_to("HEAD").status, 503);
    assert_eq!(client.ask(get("/v1/a")).status, 503);
}
