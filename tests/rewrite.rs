//! What is sent on for a head: the fields that pass, and framing written from what was parsed.

use warmfront::http::rewrite::{self, Form};
use warmfront::http::{
    Added, BodyLength, FieldTable, HeadLimits, RequestFraming, Status, ToClient, Version, framing, parse_request,
    parse_response, request_id,
};

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 1_024, head_fields_max: 16 };

fn sent_for(request: &[u8], id: Option<&[u8]>) -> String {
    let mut table = FieldTable::new();
    let Ok(Status::Complete(head)) = parse_request(request, &mut table, &LIMITS) else { panic!("a request") };
    let judged = framing::request(&head).expect("clear framing");
    let client_ip = "::ffff:192.0.2.7".parse().expect("an address");
    let mut sent = Vec::new();
    rewrite::request(&head, &judged, &Added { request_id: id, client_ip, proto: "http", priority: true }, &mut sent);
    String::from_utf8(sent).expect("text")
}

#[test]
fn requests_are_sent_on_without_what_is_of_the_connection() {
    let request = b"POST http://h/v1?x HTTP/1.0\r\nHost: h\r\nAuthorization: Bearer k\r\nConnection: keep-alive, x-hop\r\nX-HOP: 1\r\n\
        Keep-Alive: timeout=9\r\nProxy-Connection: close\r\nProxy-Authorization: Basic p\r\nX-Own: 1\r\nTE: trailers\r\nTrailer: x\r\nUpgrade: h2c\r\nContent-Length: 007\r\n\
        X-Request-Id: two words\r\nX-Forwarded-For: 198.51.100.1\r\nX-Forwarded-For: 198.51.100.2\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(
        sent_for(request, Some(b"made-here")),
        "POST /v1?x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer k\r\nX-Own: 1\r\nx-request-id: made-here\r\n\
         x-forwarded-for: 198.51.100.1, 198.51.100.2, 192.0.2.7\r\nx-forwarded-proto: http\r\ncontent-length: 7\r\n\r\n"
    );
    assert_eq!(
        sent_for(b"GET /ws HTTP/1.1\r\nhost: h\r\nX-Forwarded-Proto: https\r\nConnection: upgrade\r\nUpgrade: websocket\r\nX-Request-Id: mine\r\n\r\n", None),
        "GET /ws HTTP/1.1\r\nhost: h\r\nX-Forwarded-Proto: https\r\nX-Request-Id: mine\r\nx-forwarded-for: 192.0.2.7\r\n\
         connection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    );
    // One name alone, and what is not written as we write it.
    assert_eq!(
        sent_for(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: x-hop\r\nX-Hop: 1\r\nHTTP2-Settings: A\r\nX-Own:\t1 \r\nY:2\r\n\r\n", None),
        "GET / HTTP/1.1\r\nHost: h\r\nX-Own: 1\r\nY: 2\r\nx-forwarded-for: 192.0.2.7\r\nx-forwarded-proto: http\r\n\r\n"
    );
    assert!(sent_for(b"GET / HTTP/1.0\r\n\r\n", None).starts_with("GET / HTTP/1.1\r\nhost: \r\n"));
}

#[test]
fn a_clients_id_is_kept_if_it_is_usable() {
    for (fields, expected) in [
        ("X-Request-Id: a-1\r\n", Some(&b"a-1"[..])),
        ("X-Request-Id: a b\r\n", None),
        ("X-Request-Id:\r\n", None),
        ("X-Request-Id: a\r\nx-request-id: b\r\n", None),
        ("", None),
    ] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let mut table = FieldTable::new();
        let Ok(Status::Complete(head)) = parse_request(bytes.as_bytes(), &mut table, &LIMITS) else {
            panic!("a request")
        };
        assert_eq!(request_id(&head), expected, "{fields}");
    }
    assert!(warmfront::http::usable_request_id(&[b'a'; 128]) && !warmfront::http::usable_request_id(&[b'a'; 129]));
}

#[test]
fn replies_are_framed_for_whom_they_go_to() {
    let to = |version, keep_alive| ToClient {
        version,
        keep_alive,
        head_request: false,
        request_id: Some(b"r"),
        explain: None,
    };
    let rows = [
        (
            "200 OK\r\nContent-Length: 07\r\nKeep-Alive: x\r\nConnection: close, x-hop\r\nx-hop: a\r\n\
             Proxy-Authenticate: Basic\r\nX-Warmfront-Explain: of another front\r\n",
            Version::Http11,
            true,
            "x-request-id: r\r\ncontent-length: 7\r\n",
            Form::AsItComes,
            true,
        ),
        (
            "200 OK\r\nContent-Length: 7\r\n",
            Version::Http10,
            true,
            "x-request-id: r\r\ncontent-length: 7\r\nconnection: keep-alive\r\n",
            Form::AsItComes,
            true,
        ),
        (
            "200 OK\r\nContent-Length: 7\r\n",
            Version::Http11,
            false,
            "x-request-id: r\r\ncontent-length: 7\r\nconnection: close\r\n",
            Form::AsItComes,
            false,
        ),
        (
            "200 OK\r\nTransfer-Encoding: Chunked\r\nTrailer: x\r\n",
            Version::Http11,
            true,
            "x-request-id: r\r\ntransfer-encoding: chunked\r\n",
            Form::AsItComes,
            true,
        ),
        (
            "200 OK\r\nTransfer-Encoding: chunked\r\n",
            Version::Http10,
            true,
            "x-request-id: r\r\nconnection: close\r\n",
            Form::Bare,
            false,
        ),
        (
            "200 OK\r\nX-Request-Id: e\r\n",
            Version::Http11,
            true,
            "X-Request-Id: e\r\ntransfer-encoding: chunked\r\n",
            Form::Chunks,
            true,
        ),
        ("200 OK\r\n", Version::Http10, true, "x-request-id: r\r\nconnection: close\r\n", Form::Bare, false),
        (
            "304 Not Modified\r\nContent-Length: 9\r\n",
            Version::Http11,
            true,
            "x-request-id: r\r\ncontent-length: 9\r\n",
            Form::Nothing,
            true,
        ),
        ("103 Early Hints\r\nLink: a\r\n", Version::Http11, true, "Link: a\r\n", Form::Nothing, true),
    ];
    for (rest, version, keep_alive, fields, form, stays) in rows {
        let bytes = format!("HTTP/1.1 {rest}\r\n");
        let mut table = FieldTable::new();
        let Ok(Status::Complete(head)) = parse_response(bytes.as_bytes(), &mut table, &LIMITS) else {
            panic!("{rest}")
        };
        let asked = RequestFraming {
            body: BodyLength::None,
            keep_alive,
            expect_continue: false,
            upgrade: false,
            head_method: false,
        };
        let judged = framing::reply(&head, &asked).expect("clear framing");
        let mut sent = Vec::new();
        let delivery = rewrite::reply(&head, &judged, &to(version, keep_alive), &mut sent);
        let line = rest.lines().next().unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(&sent), format!("HTTP/1.1 {line}\r\n{fields}\r\n"));
        assert_eq!((delivery.body, delivery.keep_alive), (form, stays), "{rest}");
    }
}
