//! Heads: read as httparse reads them, and written so that they are read again as they were meant.

use std::net::{IpAddr, Ipv4Addr};

use warmfront::http::{
    Added, BodyLength, FieldTable, Fields, HeadLimits, RequestFraming, Status, ToClient, Version, framing,
    parse_request, parse_response, rewrite,
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
    same_fields(head.fields, peer.headers);

    let Ok(judged) = framing::request(&head) else { return };
    assert_ne!(judged.body, BodyLength::UntilClose, "a request body is never ended by close");
    let added = Added { request_id: None, client_ip: IpAddr::V4(Ipv4Addr::LOCALHOST), proto: "http", priority: true };
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
        assert_eq!(again.fields.get(name), None, "{name}");
    }
    assert_eq!((again.fields.all("connection").count(), again.fields.all("upgrade").count()), (upgrade, upgrade));
    assert_eq!(again.fields.all("host").count(), 1);
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
    same_fields(head.fields, peer.headers);

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
            assert_eq!(again.fields.get("transfer-encoding"), None);
            assert!(delivery.keep_alive || again.fields.get("connection") != Some(b"keep-alive"));
        }
        assert!(again.fields.get("keep-alive").is_none() && again.fields.get("te").is_none());
    }
}

fn same_fields(ours: Fields<'_>, theirs: &[httparse::Header]) {
    let trimmed = |value: &[u8]| warmfront::http::class::trim(value).to_vec();
    let ours: Names =
        ours.iter().map(|(name, value, _)| (String::from_utf8_lossy(name).into(), value.to_vec())).collect();
    let theirs: Names = theirs.iter().map(|field| (field.name.to_string(), trimmed(field.value))).collect();
    assert_eq!(ours, theirs);
}
