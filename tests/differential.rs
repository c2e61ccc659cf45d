//! The properties of the fuzz targets, over inputs that are near enough to HTTP to get far.

#[path = "fuzz/properties/mod.rs"]
mod properties;

use proptest::prelude::*;

/// Pieces that heads are made of, good and bad.
const HEAD_PIECES: &[&str] = &[
    "GET ",
    "POST ",
    "HEAD ",
    "OPTIONS ",
    "CONNECT ",
    "/",
    "/v1/chat/completions?a=b",
    "*",
    "http://h/",
    "http://h:80",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    " HTTP/2.0\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 101 Switching\r\n",
    "HTTP/1.0 204 \r\n",
    "HTTP/1.1 304\r\n",
    "HTTP/1.1 100 Continue\r\n",
    "HTTP/1.1 099 x\r\n",
    "Host: h\r\n",
    "hOST:h:80\r\n",
    "Host: \r\n",
    "Content-Length: 5\r\n",
    "content-length:\t5 \r\n",
    "Content-Length: +5\r\n",
    "Content-Length: 5, 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "transfer-encoding: gzip, chunked\r\n",
    "Transfer-Encoding: \x0bchunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive, Upgrade\r\n",
    "Connection: x-a, , host\r\n",
    "Connection: x-a\r\n",
    "Upgrade: websocket\r\n",
    "Upgrade: h2c\r\n",
    "Expect: 100-continue\r\n",
    "Expect: x\r\n",
    "TE: trailers\r\n",
    "Trailer: a\r\n",
    "Keep-Alive: timeout=5\r\n",
    "X-A: b\r\n",
    "X-Forwarded-For: 1.2.3.4\r\n",
    "X-Request-Id: r\r\n",
    "x: \u{e9}\t\r\n",
    "Content-Type: text/event-stream\r\n",
    " folded\r\n",
    "\r\n",
    "\r\n\r\n",
    "\n",
    "\r",
    "\0",
    ":",
    " ",
    "a",
];

const CHUNK_PIECES: &[&str] = &[
    "1\r\na\r\n",
    "5\r\nhello\r\n",
    "0005\r\nhello\r\n",
    "A\r\n0123456789\r\n",
    "a\r\n0123456789\r\n",
    "5;x=y\r\nhello\r\n",
    "5;\"\t\"\r\nhello\r\n",
    "1",
    "0",
    "f",
    "\r",
    "\n",
    "\r\n",
    ";",
    ";x",
    " ",
    "\t",
    "\0",
    "hello",
    "0\r\n\r\n",
    "0\r\n",
    "00\r\n",
    "0;a\r\n",
    "x-a: b\r\n",
    "Content-Length: 3\r\n",
    "a:b\r\n",
    "20000000000000\r\n",
    "20000000000001\r\n",
    "ffffffffffffffff\r\n",
    "00000000000000005\r\nhello\r\n",
    "x",
    "-1\r\n",
    "0x5\r\n",
];

fn pieces(of: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        30 => proptest::sample::select(of).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..most).prop_map(|pieces| pieces.concat())
}

/// A whole request with one byte changed.
fn almost(whole: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    (0..whole.len(), any::<u8>()).prop_map(move |(place, byte)| {
        let mut bytes = whole.to_vec();
        bytes[place] = byte;
        bytes
    })
}

fn head_of(start: &'static str) -> impl Strategy<Value = Vec<u8>> {
    pieces(HEAD_PIECES, 6).prop_map(move |rest| [start.as_bytes(), &rest, b"\r\n"].concat())
}

/// `PROPTEST_CASES` may ask for more.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.max(4_000), failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn request_heads(bytes in prop_oneof![
        pieces(HEAD_PIECES, 12),
        head_of("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n"),
        head_of("GET http://h/ HTTP/1.0\r\n"),
        almost(include_bytes!("fixtures/http/chat.request")),
        almost(include_bytes!("fixtures/http/hdr-chunked-request.request")),
    ]) {
        properties::heads::request_head(&bytes);
    }

    #[test]
    fn reply_heads(bytes in prop_oneof![
        pieces(HEAD_PIECES, 12),
        head_of("HTTP/1.1 200 OK\r\n"),
        head_of("HTTP/1.1 101 x\r\nConnection: upgrade\r\n"),
        almost(include_bytes!("fixtures/http/chat.response")),
        almost(include_bytes!("fixtures/http/chat-stream.response")),
    ]) {
        properties::heads::reply_head(&bytes);
    }

    #[test]
    fn chunked_bodies(seed in any::<u8>(), bytes in prop_oneof![
        pieces(CHUNK_PIECES, 12),
        pieces(&CHUNK_PIECES[..7], 12).prop_map(|bytes| [&bytes[..], b"0\r\n\r\n"].concat()),
        pieces(&CHUNK_PIECES[..7], 4).prop_map(|bytes| [&bytes[..], b"0\r\nx-a: b\r\nVary: c\r\n\r\nGET /"].concat()),
    ]) {
        properties::bodies::chunked(&[&[seed], &bytes[..]].concat());
    }
}

/// A stream of messages: heads, the bodies they announce, more behind them.
fn stream_of(heads: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let body = prop_oneof![
        Just(Vec::new()),
        Just(b"hello".to_vec()),
        Just(b"hello\r\n".to_vec()),
        pieces(CHUNK_PIECES, 6),
        pieces(&CHUNK_PIECES[..7], 4).prop_map(|bytes| [&bytes[..], b"0\r\n\r\n"].concat()),
        pieces(&CHUNK_PIECES[..7], 4).prop_map(|bytes| [&bytes[..], b"0\r\nx-a: b\r\n\r\n"].concat()),
    ];
    let field = prop_oneof![
        6 => proptest::sample::select(FRAMING_PIECES).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => pieces(HEAD_PIECES, 2),
    ];
    let fields = proptest::collection::vec(field, 0..3).prop_map(|fields| fields.concat());
    let message = (proptest::sample::select(heads), fields, body)
        .prop_map(|(head, fields, body)| [head.as_bytes(), &fields, b"\r\n", &body].concat());
    proptest::collection::vec(message, 1..4).prop_map(|messages| messages.concat())
}

/// Fields that decide where a message ends.
const FRAMING_PIECES: &[&str] = &[
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 7\r\n",
    "Content-Length: +5\r\n",
    "Content-Length: 5 \r\n",
    "content-length: 05\r\n",
    "Content-Length: 5,5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: Chunked\r\n",
    "Transfer-Encoding: identity\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Expect: 100-continue\r\n",
    "X: \t y\r\n",
];

proptest! {
    #![proptest_config(config())]

    /// hyper as the engine: what passes here, it reads as the same requests.
    #[test]
    fn request_streams(bytes in stream_of(&[
        "POST /v1/completions?a=b HTTP/1.1\r\nHost: h\r\n",
        "GET /v1/a HTTP/1.1\r\nHost: h\r\n",
        "HEAD /v1/a HTTP/1.1\r\nHost: h\r\n",
        "BREW /v1/a HTTP/1.0\r\n",
        "\r\nPUT http://h/v1/a HTTP/1.1\r\nHost: h\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: h\r\n",
    ])) {
        properties::streams::requests(&bytes);
    }

    /// hyper as the client: a reply that passes here, it reads as the same reply.
    #[test]
    fn reply_streams(bytes in stream_of(&[
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 204 No Content\r\n",
        "HTTP/1.1 304 Not Modified\r\n",
        "HTTP/1.1 404\r\n",
        "HTTP/1.1 103 Early Hints\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
        "HTTP/1.1 500 \r\nX-Y: z\r\n",
    ])) {
        properties::streams::replies(&bytes);
    }
}

/// Where hyper is the more forgiving, each known cause once: were one to vanish, a rule of ours would be gone.
#[test]
fn what_hyper_accepts_and_we_refuse() {
    let request = |fields: &str, body: &str| format!("POST /v1/a HTTP/1.1\r\nHost: h\r\n{fields}\r\n{body}");
    let chunked = |body: &str| request("Transfer-Encoding: chunked\r\n", body);
    let differ: &[(String, &str)] = &[
        (request("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), "bad_framing: hyper accepts"),
        (request("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), "bad_framing: hyper accepts"),
        (request("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), "bad_framing: hyper accepts"),
        ("GET /v1/a HTTP/1.1\r\n\r\n".into(), "bad_host: hyper accepts"),
        ("GET /v1/a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".into(), "bad_host: hyper accepts"),
        ("GET /v1/a HTTP/1.1\nHost: a\n\n".into(), "bad_head: hyper accepts"),
        (request("Expect: x\r\n", ""), "bad_field: hyper accepts"),
        (chunked("5 \r\nhello\r\n0\r\n\r\n"), "hyper: takes a body that is refused"),
    ];
    for (bytes, cause) in differ {
        let before = properties::streams::counted(cause);
        properties::streams::requests(bytes.as_bytes());
        assert!(properties::streams::counted(cause) > before, "{cause}: {bytes:?}");
    }
    let ok = "HTTP/1.1 200 OK\r\n";
    let differ: &[(String, &str)] = &[
        (format!("{ok}Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi"), "reply, bad_framing: hyper accepts"),
        (
            format!("{ok}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "reply, bad_framing: hyper accepts",
        ),
        (format!("{ok}Transfer-Encoding: gzip\r\n\r\nhi"), "reply, bad_framing: hyper accepts"),
        ("HTTP/1.1 200 OK\nContent-Length: 2\n\nhi".into(), "reply, bad_head: hyper accepts"),
    ];
    for (bytes, cause) in differ {
        let before = properties::streams::counted(cause);
        properties::streams::replies(bytes.as_bytes());
        assert!(properties::streams::counted(cause) > before, "{cause}: {bytes:?}");
    }
}

/// All strings up to five of the bytes that mean something, before and after a size.
#[test]
fn every_short_chunked_body() {
    const BYTES: &[u8] = b"01a\r\n;: \0";
    for len in 0..=5u32 {
        for number in 0..BYTES.len().pow(len) {
            let mut left = number;
            let middle: Vec<u8> = (0..len)
                .map(|_| {
                    let byte = BYTES[left % BYTES.len()];
                    left /= BYTES.len();
                    byte
                })
                .collect();
            properties::bodies::chunked(&[b"\x02", &middle[..], b"\r\n\r\n"].concat());
        }
    }
}

/// Every size line of one and two bytes, and of 1 to 20 digits around every bound, with as much data as it says.
#[test]
fn every_short_size_line() {
    let whole = |line: &[u8]| {
        let size = std::str::from_utf8(line).ok().and_then(|line| usize::from_str_radix(line, 16).ok()).unwrap_or(1);
        let data = vec![b'x'; size.min(300)];
        properties::bodies::chunked(&[b"\x05", line, b"\r\n", &data, b"\r\n0\r\n\r\n"].concat());
    };
    for a in 0..=255u8 {
        whole(&[a]);
        (0..=255u8).for_each(|b| whole(&[a, b]));
    }
    for len in 1..=20 {
        for digit in "0123456789abcdefABCDEF".chars() {
            whole(std::iter::repeat_n(digit, len).collect::<String>().as_bytes());
            whole(format!("{digit:0>len$}").as_bytes());
            whole(format!("{digit:0<len$}").as_bytes());
        }
    }
    for bound in [1u128 << 53, 1 << 63, 1 << 64, (1 << 64) + 3, (1 << 64) + (1 << 53)] {
        (bound - 3..=bound + 3).for_each(|size| whole(format!("{size:x}").as_bytes()));
    }
}

#[test]
fn every_byte_at_every_place_of_a_chunked_body() {
    let whole = b"\x035;a=b\r\nhello\r\n1f\r\n0123456789012345678901234567890\r\n0\r\nx-a: b\r\n\r\n";
    for place in 1..whole.len() {
        for byte in 0..=255u8 {
            let mut bytes = whole.to_vec();
            bytes[place] = byte;
            properties::bodies::chunked(&bytes);
        }
    }
}
