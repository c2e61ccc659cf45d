//! Corner cases of reply framing: what the client sees of the bytes that an engine, or whatever answers in its place,
//! sends; and that nothing of one reply is ever read as another.

use warmfront::counters::stats::Count;

use crate::client::get;
use crate::engine::{Engine, ok};
use crate::front::Front;
use crate::wire::End;

/// What the client must get.
enum Expected {
    /// 502, and nothing of the reply.
    Bad,
    /// Status and body, whole.
    Whole(u16, &'static str),
    /// Status and as much of the body as came before the fault, and a visible cut.
    Cut(u16, &'static str),
}
use Expected::{Bad, Cut, Whole};

/// What becomes of the engine's connection.
#[derive(PartialEq)]
enum After {
    /// It is used for the next request.
    Reused,
    /// It must not be used again, although the engine keeps it open.
    Dropped,
    /// The engine closes it behind its bytes.
    Closes,
}
use After::{Closes, Dropped, Reused};

/// Bytes of the reply behind `HTTP/1.1 `, or all of it behind `=`. Whatever says `evil` must not be seen. What
/// stands behind `|` is surplus and comes with the last byte before it: what came later still could not be
/// told from the reply to the next request.
const ROWS: &[(&str, Expected, After)] = &[
    ("200 OK\r\nContent-Length: 2\r\n\r\nhi", Whole(200, "hi"), Reused),
    ("200\r\nContent-Length: 2\r\n\r\nhi", Whole(200, "hi"), Reused),
    ("200 \r\nContent-Length: 0\r\n\r\n", Whole(200, ""), Reused),
    ("404 Gone fishing\r\nContent-Length: 2\r\n\r\nno", Whole(404, "no"), Reused),
    ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", Whole(200, "hi"), Reused),
    ("200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n02;evil=1\r\nhi\r\n00;evil\r\n\r\n", Whole(200, "hi"), Reused),
    (
        "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nContent-Length: 7\r\nEvil\r\n\r\n",
        Cut(200, "hi"),
        Dropped,
    ),
    ("200 OK\r\n\r\nuntil close", Whole(200, "until close"), Closes),
    ("=HTTP/1.0 200 OK\r\n\r\nuntil close", Whole(200, "until close"), Closes),
    ("=HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", Whole(200, "hi"), Dropped),
    ("=HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nhi", Whole(200, "hi"), Reused),
    ("200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", Whole(200, "hi"), Dropped),
    ("204 No Content\r\n\r\n", Whole(204, ""), Dropped),
    ("304 Not Modified\r\nContent-Length: 9\r\n\r\n", Whole(304, ""), Dropped),
    ("304 Not Modified\r\nContent-Length: 4\r\n\r\n|evil", Whole(304, ""), Dropped),
    ("204 No Content\r\nContent-Length: 4\r\n\r\nevil", Bad, Dropped),
    ("204 No Content\r\n\r\n|evil", Whole(204, ""), Dropped),
    // Surplus bytes never reach the client, nor the next reply.
    ("200 OK\r\nContent-Length: 2\r\n\r\nhi|evil", Whole(200, "hi"), Dropped),
    (
        "200 OK\r\nContent-Length: 2\r\n\r\nhi|HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        Whole(200, "hi"),
        Dropped,
    ),
    (
        "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n|HTTP/1.1 200 evil\r\n\r\n",
        Whole(200, "hi"),
        Dropped,
    ),
    // Two lengths, or none that is clear.
    ("200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n", Bad, Dropped),
    ("200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi", Bad, Dropped),
    ("200 OK\r\nContent-Length: 4\r\nContent-Length: 6\r\n\r\nevilhi", Bad, Dropped),
    ("200 OK\r\nContent-Length: 4, 4\r\n\r\nevil", Bad, Dropped),
    ("200 OK\r\nContent-Length: +4\r\n\r\nevil", Bad, Dropped),
    ("200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nevil", Bad, Dropped),
    ("200 OK\r\nContent-Length:\r\n\r\nevil", Bad, Dropped),
    ("200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n", Bad, Dropped),
    ("200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n", Bad, Dropped),
    ("200 OK\r\nTransfer-Encoding: identity\r\n\r\nevil", Bad, Closes),
    ("=HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n", Bad, Dropped),
    // Malformed heads.
    ("=evil\r\n\r\n", Bad, Dropped),
    ("=HTTP/2 200\r\n\r\nevil", Bad, Dropped),
    ("=HTTP/1.1 20\r\n\r\nevil", Bad, Dropped),
    ("=HTTP/1.1 2000 OK\r\n\r\nevil", Bad, Dropped),
    ("=HTTP/1.1 600 OK\r\n\r\nevil", Bad, Dropped),
    ("=HTTP/1.1  200 OK\r\n\r\nevil", Bad, Dropped),
    ("=\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", Bad, Dropped),
    ("200 OK\nContent-Length: 4\n\nevil", Bad, Dropped),
    ("200 OK\r\nContent-Length : 4\r\n\r\nevil", Bad, Dropped),
    ("200 OK\r\nA: b\r\n evil: c\r\nContent-Length: 0\r\n\r\n", Bad, Dropped),
    ("200 OK\r\nA: b\0\r\nContent-Length: 4\r\n\r\nevil", Bad, Dropped),
    ("200 OK\r\nContent-Length: 4", Bad, Closes),
    ("", Bad, Closes),
    // Bodies that break off or break the rules.
    ("200 OK\r\nContent-Length: 9\r\n\r\nhi", Cut(200, "hi"), Closes),
    ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", Cut(200, "hi"), Closes),
    ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n", Cut(200, "hi"), Closes),
    ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhi", Cut(200, "hi"), Closes),
    ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nevil\r\n0\r\n\r\n", Cut(200, "hi"), Dropped),
    ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhievil\r\n0\r\n\r\n", Cut(200, "hi"), Dropped),
    ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n-1\r\nevil", Cut(200, "hi"), Dropped),
    ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n4 \r\nevil\r\n0\r\n\r\n", Cut(200, "hi"), Dropped),
    ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nfffffffffffffffff\r\nevil", Cut(200, "hi"), Dropped),
    // Interim replies.
    ("100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", Whole(200, "hi"), Reused),
    ("103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", Whole(200, "hi"), Reused),
    ("102 Processing\r\nContent-Length: 4\r\n\r\nevil", Bad, Dropped),
    ("103 Early Hints\r\n\r\n", Bad, Closes),
    ("101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: evil\r\n\r\nevil", Bad, Dropped),
    ("101 Switching Protocols\r\n\r\nevil", Bad, Dropped),
];

/// Answers `/v1/row/N/SIZE` with row N in pieces of SIZE; anything else with the connection's number.
fn engine_of_rows() -> Engine {
    Engine::run(|mut connection| {
        while let Some(request) = connection.request() {
            let mut parts = request.path().split('/').skip(3).map(|part| part.parse::<usize>().unwrap());
            let (Some(row), Some(pieces)) = (parts.next(), parts.next()) else {
                connection.send(ok(connection.number.to_string()));
                continue;
            };
            let (text, _, after) = &ROWS[row];
            let bytes = reply_bytes(text);
            let surplus = bytes.iter().position(|byte| *byte == b'|').unwrap_or(bytes.len());
            let (reply, surplus) = (&bytes[..surplus], bytes.get(surplus + 1..).unwrap_or_default());
            let (pieced, last) = reply.split_at(reply.len().saturating_sub(1));
            connection.send_pieces(pieced, pieces);
            connection.send([last, surplus].concat());
            match after {
                Reused => {}
                Dropped => {
                    connection.closed();
                    return;
                }
                Closes => return,
            }
        }
    })
}

fn reply_bytes(text: &str) -> Vec<u8> {
    match text.strip_prefix('=') {
        Some(all) => all.into(),
        None if text.is_empty() => Vec::new(),
        None => format!("HTTP/1.1 {text}").into(),
    }
}

fn check(front: &Front, engine: &Engine, row: usize, pieces: usize) {
    let (text, expected, after) = &ROWS[row];
    let context = format!("{text:?} in pieces of {pieces}");
    let mut client = front.connect();
    client.send(get(&format!("/v1/row/{row}/{pieces}")));
    let mut reply = client.reply();
    while (101..200).contains(&reply.status) {
        assert_ne!(reply.status, 101, "{context}");
        reply = client.reply();
    }
    let (status, body, whole) = match expected {
        Bad => (502, "", true),
        Whole(status, body) => (*status, *body, true),
        Cut(status, body) => (*status, *body, false),
    };
    assert_eq!((reply.status, reply.whole), (status, whole), "{context}: {}", reply.text());
    if status == 502 {
        assert!(reply.text().starts_with("{\"error\":"), "{context}: {}", reply.text());
    } else {
        assert_eq!(reply.text(), body, "{context}");
    }
    assert!(!format!("{reply:?}").to_lowercase().contains("evil"), "{context}: {reply:?}");
    let used = engine.requests().last().unwrap().connection;
    if whole {
        assert!(!reply.closes(), "{context}");
        let next = client.ask(get("/v1/next"));
        assert_eq!(next.status, 200, "{context}");
        assert_eq!(next.text() == used.to_string(), *after == Reused, "{context}");
    } else {
        assert_eq!(client.ends(), End::Fin, "{context}");
    }
}

fn check_all(pieces: usize) {
    let engine = engine_of_rows();
    let front = Front::start(&[engine.address]);
    (0..ROWS.len()).for_each(|row| check(&front, &engine, row, pieces));
    front.settles();
}

#[test]
fn corner_replies_in_one_piece() {
    check_all(usize::MAX);
}

#[test]
fn corner_replies_byte_by_byte() {
    check_all(1);
}

#[test]
fn corner_replies_in_pieces_of_five() {
    check_all(5);
}

/// An HTTP/1.0 client gets no chunks: bare bytes, ended by closing, and by a reset where they are cut.
#[test]
fn old_clients_get_bare_bodies() {
    let rows = [
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: b\r\n\r\n", End::Fin),
        ("HTTP/1.1 200 OK\r\n\r\nhi", End::Fin),
        ("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\nhi", End::Fin),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", End::Reset),
    ];
    for (reply, end) in rows {
        let engine = Engine::closing_after(reply);
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send("GET /v1/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let head = client.head();
        assert!(head.start.ends_with("200 OK") && head.length().is_none(), "{reply:?}: {head:?}");
        assert_eq!(head.get("connection"), Some("close"));
        let (body, ended) = client.rest();
        assert_eq!(ended, end, "{reply:?}");
        assert!(body == b"hi" || end == End::Reset, "{reply:?}: {body:?}");
        front.settles();
    }
}

/// The head that a client gets is written anew.
#[test]
fn the_client_gets_clean_heads() {
    let reply = "HTTP/1.1 200 Fine\r\nserver: uvicorn\r\nConnection: keep-alive, Secret\r\nSecret: s\r\n\
                 Keep-Alive: timeout=5\r\nProxy-Authenticate: p\r\nUpgrade: h2c\r\nTrailer: A\r\nSet-Cookie: a\r\n\
                 set-cookie: b\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nA: b\r\nContent-Length: 7\r\n\r\n";
    let engine = Engine::answering(reply);
    let front = Front::start(&[engine.address]);
    let reply = front.ask(get("/v1/a"));
    assert_eq!(reply.head.start, "HTTP/1.1 200 Fine");
    for gone in ["connection", "keep-alive", "proxy-authenticate", "upgrade", "secret", "content-length"] {
        assert!(reply.head.all(gone).is_empty(), "{gone}: {:?}", reply.head);
    }
    assert_eq!(reply.head.all("set-cookie"), ["a", "b"]);
    assert_eq!(reply.head.get("server"), Some("uvicorn"));
    assert_eq!(reply.trailers, [("A".to_owned(), "b".to_owned())]);
}

/// Chunks that came in one read leave in one piece and as they are: one event, one chunk.
#[test]
fn chunks_keep_their_borders() {
    let chunks = "4\r\nab\n\n\r\n5\r\ncde\n\n\r\n1\r\nf\r\n0\r\n\r\n";
    let engine = Engine::answering(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"));
    let front = Front::start(&[engine.address]);
    assert_eq!(front.ask(get("/v1/a")).chunks, [4, 5, 1]);
}

/// The reply to HEAD has the length of a GET's and no body, whatever the engine does.
#[test]
fn head_has_no_body() {
    for (reply, length) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Some("5")),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
        ("HTTP/1.1 200 OK\r\n\r\n", None),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nevil!", Some("5")),
    ] {
        let engine = Engine::closing_after(reply);
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send("HEAD /v1/a HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        let head = client.reply_to("HEAD").head;
        assert_eq!(head.get("content-length"), length, "{reply:?}");
        assert_eq!(client.reply().status, 200, "{reply:?}");
        front.settles();
    }
}

/// A reply to HEAD has no body by rule; an engine may break it in a second write, when the next request is already on
/// its way.
#[test]
fn bytes_behind_a_head_alone_are_nobodys() {
    let heads = [
        ("GET", "204 No Content\r\n\r\n"),
        ("GET", "304 Not Modified\r\nContent-Length: 40\r\n\r\n"),
        ("HEAD", "200 OK\r\nContent-Length: 40\r\n\r\n"),
        ("HEAD", "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ];
    for (method, head) in heads {
        let engine = Engine::run(move |mut connection| {
            while let Some(request) = connection.request() {
                if request.path() == "/v1/good" {
                    connection.send(ok("good"));
                    continue;
                }
                connection.send(format!("HTTP/1.1 {head}"));
                std::thread::sleep(std::time::Duration::from_millis(50));
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
            }
        });
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send(format!("{method} /v1/none HTTP/1.1\r\nHost: x\r\n\r\n"));
        client.reply_to(method);
        assert_eq!(front.ask(get("/v1/good")).text(), "good", "{method} {head:?}");
        assert_eq!(client.ask(get("/v1/good")).text(), "good", "{method} {head:?}");
        front.settles();
    }
}

/// Interim replies pass in order, but 100, which is ours; too many of them are a fault.
#[test]
fn interim_replies_pass() {
    let script = |count: usize| {
        let early = "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n".repeat(count);
        Engine::answering(format!("HTTP/1.1 100 Continue\r\n\r\n{early}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    };
    let engine = script(3);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(get("/v1/a"));
    let statuses: Vec<_> = (0..4).map(|_| client.reply().status).collect();
    assert_eq!(statuses, [103, 103, 103, 200]);
    // With 100, which counts among them, as many as may be.
    let engine = script(7);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(get("/v1/a"));
    let statuses: Vec<_> = (0..8).map(|_| client.reply().status).collect();
    assert_eq!(statuses, [103, 103, 103, 103, 103, 103, 103, 200]);
    let engine = script(8);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(get("/v1/a"));
    let last = std::iter::repeat_with(|| client.reply().status).find(|status| *status != 103);
    assert_eq!(last, Some(502));
}

/// A head longer than the limit is not the client's fault.
#[test]
fn endless_heads_are_a_bad_gateway() {
    let engine = Engine::closing_after(format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "a".repeat(256 << 10)));
    let fields = Engine::closing_after(format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(101)));
    for address in [engine.address, fields.address] {
        let front = Front::start(&[address]);
        // The engine is not blamed for it.
        for _ in 0..4 {
            assert_eq!(front.ask(get("/v1/a")).status, 502);
        }
        front.settles();
        assert_eq!((front.count(Count::UpstreamFaultHeadTooLarge), front.count(Count::Barred)), (4, 0));
    }
}

/// Embeddings in bytes, as vLLM writes where each of them begins: several buffers long.
#[test]
fn long_heads_of_replies_pass_whole() {
    let places = r#"{"index":0,"embed_dtype":"float32","endianness":"native","start":0,"end":4096,"shape":[1024]},"#
        .repeat(2_000);
    let engine = Engine::closing_after(format!("HTTP/1.1 200 OK\r\nMetadata: {places}\r\nContent-Length: 2\r\n\r\nok"));
    let front = Front::start(&[engine.address]);
    let reply = front.ask(get("/v1/a"));
    assert_eq!((reply.status, reply.head.get("metadata"), reply.text().as_str()), (200, Some(&*places), "ok"));
    front.settles();
}
