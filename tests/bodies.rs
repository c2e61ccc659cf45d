//! Bodies on their way: recorded streams at every cut, ends, and the bounds of what chunks may carry.

use warmfront::http::{Body, BodyLength, Fault, FieldTable, HeadLimits, Kind, SizeLine, Status, parse_response};

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 1_024, head_fields_max: 16 };

/// A recorded stream, one chunk a read and otherwise: one part a chunk, and every byte passes as it came.
#[test]
fn a_token_stream_passes_in_whole_chunks() {
    let reply = include_bytes!("fixtures/http/chat-stream.response");
    let mut table = FieldTable::new();
    let Ok(Status::Complete(head)) = parse_response(reply, &mut table, &LIMITS) else { panic!("a reply") };
    let bytes = &reply[head.len..];
    for cut in 1..bytes.len() {
        let Passed { sent, data, parts, done } = passed(bytes, cut).expect("a sound stream");
        assert!(done && sent == bytes, "cut at {cut}");
        assert!(data.starts_with(b"data: {") && data.ends_with(b"data: [DONE]\n\n"));
        let events = data.windows(2).filter(|two| two == b"\n\n").count();
        assert!(parts <= events + 4, "{parts} parts for {events} events");
    }
}

/// What is sent on of a chunked body.
#[derive(Default)]
struct Passed {
    /// What is sent on, with its framing,
    sent: Vec<u8>,
    /// and without.
    data: Vec<u8>,
    parts: usize,
    done: bool,
}

/// What is sent on of a body that comes in two pieces.
fn passed(bytes: &[u8], cut: usize) -> Result<Passed, Fault> {
    let (mut body, mut passed) = (Body::new(BodyLength::Chunked), Passed::default());
    for piece in [&bytes[..cut], &bytes[cut..]] {
        let mut rest = piece;
        while !rest.is_empty() && !body.done() {
            let part = body.next(rest)?;
            passed.parts += 1;
            passed.sent.extend_from_slice(part.raw(rest));
            passed.data.extend_from_slice(part.data(rest));
            match part.kind {
                Kind::Size(size) => passed.sent.extend_from_slice(SizeLine::new(size).as_bytes()),
                Kind::End => body.write_end(&mut passed.sent),
                Kind::Pass { .. } | Kind::Drop => {}
            }
            rest = &rest[part.len..];
        }
    }
    Ok(Passed { done: body.done(), ..passed })
}

#[test]
fn sizes_go_on_as_all_read_them_wherever_they_are_cut() {
    for size in ["a", "A", "0a", "000A", "a;x", "A;x=\"y\""] {
        let bytes = format!("{size}\r\n0123456789\r\n0\r\n\r\n").into_bytes();
        for cut in 0..bytes.len() {
            let sent = passed(&bytes, cut).expect("a sound body").sent;
            assert_eq!(sent.escape_ascii().to_string(), r"a\r\n0123456789\r\n0\r\n\r\n", "{size} cut at {cut}");
        }
    }
    for size in ["", "g", "ag", "aG", "-a", "+a", "0xa", " a", "a ", "a\t", "a`", "a\0"] {
        let bytes = format!("{size}\r\n0123456789\r\n0\r\n\r\n").into_bytes();
        for cut in 0..bytes.len() {
            assert!(passed(&bytes, cut).is_err(), "{size:?} cut at {cut}");
        }
    }
}

#[test]
fn bodies_end_where_they_should() {
    let mut body = Body::new(BodyLength::Length(5));
    assert!(!body.done() && body.on_close().is_err());
    assert_eq!(body.next(b"helloGET").map(|part| part.len), Ok(5));
    assert!(body.done() && body.on_close().is_ok());
    assert_eq!(body.next(b"GET").map(|part| part.len), Ok(0));

    let mut body = Body::new(BodyLength::UntilClose);
    assert_eq!(body.next(b"hello").map(|part| part.len), Ok(5));
    assert!(!body.done() && body.on_close().is_ok() && body.done());

    let mut body = Body::new(BodyLength::Chunked);
    assert!(body.next(b"5\r\nhello\r\n0\r\n").is_ok() && body.on_close().is_err());
    assert!(Body::new(BodyLength::None).done() && Body::new(BodyLength::Length(0)).done());
    assert!(size_of::<Body>() <= 64);
}

#[test]
fn trailers_are_bounded_and_filtered() {
    let end = |input: &str| {
        let mut body = Body::new(BodyLength::Chunked);
        let mut out = Vec::new();
        let mut rest = input.as_bytes();
        while !rest.is_empty() && !body.done() {
            let part = body.next(rest).ok()?;
            if part.kind == Kind::End {
                body.write_end(&mut out);
            }
            rest = &rest[part.len..];
        }
        body.done().then(|| String::from_utf8_lossy(&out).into_owned())
    };
    assert_eq!(end("0\r\nX-Sum: 1\r\n\r\n").as_deref(), Some("0\r\nX-Sum: 1\r\n\r\n"));
    for name in [
        // Fields that the front acts on itself, or that belong to the connection.
        "Content-Length",
        "Transfer-Encoding",
        "Host",
        "Connection",
        "X-Forwarded-For",
        "TE",
        // Routing, authentication, modifiers, controls and formats, by how their names begin,
        "Content-Location",
        "Proxy-Status",
        "X-Forwarded-Host",
        "If-Match",
        "Sec-WebSocket-Key",
        "Access-Control-Allow-Origin",
        // or by their names.
        "Accept",
        "Age",
        "API-Key",
        "Authorization",
        "Cache-Control",
        "Cookie",
        "Date",
        "Expires",
        "Forwarded",
        "Location",
        "Max-Forwards",
        "Origin",
        "Pragma",
        "Range",
        "Retry-After",
        "Server",
        "Set-Cookie",
        "Vary",
        "Via",
        "Warning",
        "WWW-Authenticate",
        "X-API-Key",
    ] {
        assert_eq!(end(&format!("0\r\n{name}: 1\r\n\r\n")).as_deref(), Some("0\r\n\r\n"), "{name}");
    }
    assert!(end(&format!("0\r\n{}\r\n", "a: b\r\n".repeat(32))).is_some());
    assert!(end(&format!("0\r\n{}\r\n", "a: b\r\n".repeat(33))).is_none());
    assert!(end(&format!("0\r\na: {}\r\n\r\n", "b".repeat(8_185))).is_some());
    assert!(end(&format!("0\r\na: {}\r\n\r\n", "b".repeat(8_186))).is_none());
    assert!(end(&format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(4_095))).is_some());
    assert!(end(&format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(4_096))).is_none());
    assert!(end(&format!("{}0\r\n\r\n", "1;x\r\na\r\n".repeat(2_049))).is_none());
}
