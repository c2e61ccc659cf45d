//! What must hold for any bytes. The fuzz targets and `tests/differential.rs` run the same functions.

use std::net::{IpAddr, Ipv4Addr};

use warmfront::http::{
    Added, Body, BodyLength, Cause, FieldTable, HeadLimits, Kind, RequestFraming, SizeLine, Status, ToClient, Version,
    framing, parse_request, parse_response, rewrite,
};

pub const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 4_096, head_fields_max: 64 };

type Names = Vec<(String, Vec<u8>)>;

/// A request head that we accept is accepted by httparse, which reads the same from it; what we send on
/// for it is accepted again, is framed alike, and holds no field of the connection.
pub fn request_head(bytes: &[u8]) {
    let mut table = FieldTable::new();
    let mut peer_fields = [httparse::EMPTY_HEADER; 64];
    let mut peer = httparse::Request::new(&mut peer_fields);
    let theirs = peer.parse(bytes);
    let head = match parse_request(bytes, &mut table, &LIMITS) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) => {
            return assert!(!matches!(theirs, Ok(httparse::Status::Complete(_))) || !bytes.ends_with(b"\r\n\r\n"));
        }
        Err(refusal) => return assert!(matches!(refusal.status, 400 | 405 | 431 | 505)),
    };
    assert_eq!(theirs, Ok(httparse::Status::Complete(head.len)), "{}", bytes.escape_ascii());
    assert_eq!(peer.method.map(str::as_bytes), Some(head.method));
    assert_eq!(peer.path.map(str::as_bytes), Some(head.target));
    assert_eq!(peer.version, Some(u8::from(head.version == Version::Http11)));
    same_fields(head.fields(), peer.headers);

    let Ok(judged) = framing::request(&head) else { return };
    assert_ne!(judged.body, BodyLength::UntilClose, "a request body is never ended by close");
    let added = Added { request_id: None, client_ip: IpAddr::V4(Ipv4Addr::LOCALHOST), proto: "http" };
    let mut sent = Vec::new();
    rewrite::request(&head, &judged, &added, &mut sent);
    let again_limits = HeadLimits { head_bytes_max: 1 << 16, head_fields_max: 80 };
    let mut again_table = FieldTable::new();
    let Ok(Status::Complete(again)) = parse_request(&sent, &mut again_table, &again_limits) else {
        panic!("what we send is not a request: {}", sent.escape_ascii());
    };
    assert_eq!(again.len, sent.len(), "one head and nothing after it: {}", sent.escape_ascii());
    let again_judged = framing::request(&again).expect("what we send is framed clearly");
    assert_eq!((again_judged.body, again_judged.upgrade), (judged.body, judged.upgrade));
    assert_eq!((again.method, again.target, again.version), (head.method, head.path, Version::Http11));
    let upgrade = if judged.upgrade { 1 } else { 0 };
    for name in ["keep-alive", "proxy-connection", "te", "trailer", "expect", "http2-settings"] {
        assert_eq!(again.get(name), None, "{name}");
    }
    assert_eq!((again.all("connection").count(), again.all("upgrade").count()), (upgrade, upgrade));
    assert_eq!(again.all("host").count(), 1);
}

/// A reply head that we accept is accepted by httparse, which reads the same from it; what we send on for
/// it, to either version, is accepted again and is framed as the body will be sent.
pub fn reply_head(bytes: &[u8]) {
    let mut table = FieldTable::new();
    let mut peer_fields = [httparse::EMPTY_HEADER; 64];
    let mut peer = httparse::Response::new(&mut peer_fields);
    let theirs = peer.parse(bytes);
    let Ok(Status::Complete(head)) = parse_response(bytes, &mut table, &LIMITS) else { return };
    assert_eq!(theirs, Ok(httparse::Status::Complete(head.len)), "{}", bytes.escape_ascii());
    assert_eq!(peer.code, Some(head.status));
    assert_eq!(peer.version, Some(u8::from(head.version == Version::Http11)));
    same_fields(head.fields(), peer.headers);

    for asks in 0..8u8 {
        let head_method = asks & 1 != 0;
        let asked = RequestFraming {
            body: BodyLength::None,
            keep_alive: true,
            expect_continue: false,
            upgrade: asks & 2 != 0,
            head_method,
        };
        let version = if asks & 4 != 0 { Version::Http10 } else { Version::Http11 };
        let Ok(judged) = framing::reply(&head, &asked) else { continue };
        let to =
            ToClient { version, keep_alive: true, head_request: head_method, request_id: Some(b"r"), explain: None };
        let mut sent = Vec::new();
        let delivery = rewrite::reply(&head, &judged, &to, &mut sent);
        if judged.interim && version == Version::Http10 {
            assert!(sent.is_empty());
            continue;
        }
        let again_limits = HeadLimits { head_bytes_max: 1 << 16, head_fields_max: 80 };
        let mut again_table = FieldTable::new();
        let Ok(Status::Complete(again)) = parse_response(&sent, &mut again_table, &again_limits) else {
            panic!("what we send is not a reply: {}", sent.escape_ascii());
        };
        assert_eq!(again.len, sent.len(), "one head and nothing after it: {}", sent.escape_ascii());
        let again_judged = framing::reply(&again, &asked).expect("what we send is framed clearly");
        let expected = match delivery.body {
            rewrite::Form::Nothing => BodyLength::None,
            rewrite::Form::AsItComes => judged.body,
            rewrite::Form::Chunks => BodyLength::Chunked,
            rewrite::Form::Bare => BodyLength::UntilClose,
        };
        assert_eq!(again_judged.body, expected, "{}", sent.escape_ascii());
        if version == Version::Http10 {
            assert_eq!(again.get("transfer-encoding"), None);
            assert!(delivery.keep_alive || again.get("connection") != Some(b"keep-alive"));
        }
        assert!(again.get("keep-alive").is_none() && again.get("te").is_none());
    }
}

fn same_fields<'a>(ours: impl Iterator<Item = (&'a [u8], &'a [u8])>, theirs: &[httparse::Header]) {
    let trimmed = |value: &[u8]| warmfront::http::class::trim(value).to_vec();
    let ours: Names = ours.map(|(name, value)| (String::from_utf8_lossy(name).into(), value.to_vec())).collect();
    let theirs: Names = theirs.iter().map(|field| (field.name.to_string(), trimmed(field.value))).collect();
    assert_eq!(ours, theirs);
}

/// What a relay makes of a body that comes in `pieces`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The bytes sent on.
    pub sent: Vec<u8>,
    /// The body's own bytes.
    pub data: Vec<u8>,
    /// Bytes taken from the input.
    pub taken: usize,
    /// Over, and without a fault.
    pub done: bool,
    /// The fault that ended it.
    pub fault: Option<Cause>,
}

/// Relays a body as the front does.
pub fn relay<'a>(length: BodyLength, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut body = Body::new(length);
    let mut outcome = Outcome::default();
    for piece in pieces {
        let mut rest = piece;
        while !rest.is_empty() && !body.done() {
            let part = match body.next(rest) {
                Ok(part) => part,
                Err(fault) => {
                    assert!(body.next(rest).is_err(), "a fault is for good");
                    outcome.fault = Some(fault.cause);
                    return outcome;
                }
            };
            assert!(part.len > 0 && part.len <= rest.len(), "each part moves on within the bytes at hand");
            outcome.sent.extend_from_slice(part.raw(rest));
            outcome.data.extend_from_slice(part.data(rest));
            match part.kind {
                Kind::Pass { start, end } => assert!(start <= end && end <= part.len),
                Kind::Size(size) => outcome.sent.extend_from_slice(SizeLine::new(size).as_bytes()),
                Kind::End => {
                    assert!(body.done());
                    body.write_end(&mut outcome.sent);
                }
                Kind::Drop => {}
            }
            outcome.taken += part.len;
            rest = &rest[part.len..];
        }
    }
    outcome.done = body.done();
    outcome
}

/// A chunked body that we accept is what the plainest decoder reads, wherever it is cut; what we send on is
/// again such a body, with the same data and nothing left to interpretation. The first byte seeds the cuts.
pub fn chunked(input: &[u8]) {
    let Some((&seed, bytes)) = input.split_first() else { return };
    let whole = relay(BodyLength::Chunked, [bytes]);
    let single = relay(BodyLength::Chunked, bytes.chunks(1));
    assert_eq!(comparable(&whole), comparable(&single), "byte by byte: {}", bytes.escape_ascii());
    let step = usize::from(seed % 37) + 1;
    let cut = relay(BodyLength::Chunked, bytes.chunks(step));
    assert_eq!(comparable(&whole), comparable(&cut), "in pieces of {step}: {}", bytes.escape_ascii());

    let naive = decode(bytes);
    assert_eq!(whole.done, naive.is_some(), "{}", bytes.escape_ascii());
    let Some((data, end)) = naive else { return };
    assert_eq!((&whole.data, whole.taken), (&data, end), "{}", bytes.escape_ascii());
    assert_eq!(decode(&whole.sent), Some((data, whole.sent.len())), "{}", whole.sent.escape_ascii());
    assert!(!whole.sent.contains(&b';') || whole.data.contains(&b';') || whole.sent.windows(2).any(|w| w == b": "));
    let again = relay(BodyLength::Chunked, [&whole.sent[..]]);
    assert_eq!(again.sent, whole.sent, "what was sent needs no more changes");
}

/// How many bytes were taken before a fault depends on the cuts; nothing else does.
fn comparable(outcome: &Outcome) -> Outcome {
    let taken = if outcome.fault.is_some() { 0 } else { outcome.taken };
    Outcome { taken, ..outcome.clone() }
}

/// The strict grammar, all bytes at hand: the data and where the body ends. `None`: malformed, or not all there.
pub fn decode(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut data = Vec::new();
    let mut at = 0;
    let mut extensions = 0;
    loop {
        let line_end = at + bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let line = &bytes[at..line_end];
        let digits = line.iter().position(|&byte| byte == b';').unwrap_or(line.len());
        let (size, extension) = line.split_at(digits);
        extensions += extension.len();
        let clean = extension.iter().all(|&byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f));
        if !clean || extensions > 4_096 || size.is_empty() || size.len() > 16 {
            return None;
        }
        let size = size.iter().try_fold(0u64, |value, &byte| {
            let digit = (byte as char).to_digit(16).filter(|_| byte.is_ascii())?;
            Some((value << 4) + u64::from(digit))
        })?;
        at = line_end + 2;
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).ok()?;
        data.extend_from_slice(bytes.get(at..at.checked_add(size)?)?);
        at += size;
        if bytes.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        at += 2;
    }
    let start = at;
    let mut fields = 0;
    loop {
        let line_end = at + bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let line = &bytes[at..line_end];
        at = line_end + 2;
        if at - start > 8_192 {
            return None;
        }
        if line.is_empty() {
            return Some((data, at));
        }
        fields += 1;
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name_ok =
            colon > 0 && line[..colon].iter().all(|&b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
        let value_ok = line[colon..].iter().all(|&byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f));
        if !name_ok || !value_ok || fields > 32 {
            return None;
        }
    }
}
