//! The corner tables of RFC 9112: each row with the rule it is about and the verdict expected, and each
//! row again with its input cut at every place.

use warmfront::http::{
    BodyLength, FieldTable, HeadLimits, RequestFraming, Status, framing, parse_request, parse_response,
};

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 1_024, head_fields_max: 16 };

/// A request's verdict in words: the framing, or the status of the refusal.
fn verdict(bytes: &[u8]) -> String {
    let mut table = FieldTable::new();
    let head = match parse_request(bytes, &mut table, &LIMITS) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) => return "partial".into(),
        Err(refusal) => return refusal.status.to_string(),
    };
    match framing::request(&head) {
        Err(refusal) => refusal.status.to_string(),
        Ok(RequestFraming { body, keep_alive, expect_continue, upgrade, .. }) => {
            let mut words = match body {
                BodyLength::None => "none".to_string(),
                BodyLength::Length(length) => length.to_string(),
                BodyLength::Chunked => "chunked".to_string(),
                BodyLength::UntilClose => "close".to_string(),
            };
            for (flag, word) in [(!keep_alive, " last"), (expect_continue, " expects"), (upgrade, " upgrade")] {
                if flag {
                    words.push_str(word);
                }
            }
            words
        }
    }
}

/// Every prefix is either undecided or decided as the whole is.
fn at_every_cut(bytes: &[u8], verdict: impl Fn(&[u8]) -> String) -> String {
    let whole = verdict(bytes);
    for cut in 0..bytes.len() {
        let seen = verdict(&bytes[..cut]);
        assert!(seen == "partial" || seen == whole, "{} cut at {cut}: {seen}, not {whole}", bytes.escape_ascii());
    }
    whole
}

/// The words with which a request is refused.
fn words(bytes: &[u8]) -> String {
    match parse_request(bytes, &mut FieldTable::new(), &LIMITS) {
        Ok(_) => "partial".into(),
        Err(refusal) => format!("{} {}: {}", refusal.status, refusal.cause.as_str(), refusal.message),
    }
}

/// Who finds out what speaks there would else look for a fault in a request.
#[test]
fn other_protocols_are_named() {
    for (bytes, name) in [
        (&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..], "400 other_protocol: this looks like TLS"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 5 80\r\nGET / HTTP/1.1\r\n", "400 other_protocol: a PROXY protocol header"),
        (b"PROXY UNKNOWN\r\nGET / HTTP/1.1\r\n", "400 other_protocol: a PROXY protocol header"),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", "400 other_protocol: a PROXY protocol header"),
        (b"\r\n\r\n\0\r\nQUOT\n\x21\x11\0\x0c", "400 bad_head: the request line does not begin with"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 bad_version: only HTTP/1.1"),
        (b"PROXY / HTTP/1.1\r\n\r\n", "400 bad_host"),
        (b"PROXIES a b\r\n", "400 bad_head: the HTTP version is malformed"),
    ] {
        let said = at_every_cut(bytes, words);
        assert!(said.starts_with(name), "{}: {said}", bytes.escape_ascii());
    }
}

#[test]
fn bounds_of_heads_are_named_by_their_keys() {
    let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(LIMITS.head_bytes_max));
    assert!(words(long.as_bytes()).ends_with("(limits.head_bytes_max)"), "{}", words(long.as_bytes()));
    let many = format!("GET / HTTP/1.1\r\n{}", "x: y\r\n".repeat(LIMITS.head_fields_max + 1));
    assert!(words(many.as_bytes()).ends_with("(limits.head_fields_max)"), "{}", words(many.as_bytes()));
}

const REQUESTS: &[(&str, &str, &str)] = &[
    // 2.2: empty line before the request line
    ("one empty line is skipped", "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "none"),
    ("two are not", "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("a bare LF is not an empty line", "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("a bare CR is not an empty line", "\rGET / HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("a blank before the first field", "GET / HTTP/1.1\r\n Host: h\r\n\r\n", "400"),
    // 2.2: line ends
    ("bare LF after the request line", "GET / HTTP/1.1\nHost: h\r\n\r\n", "400"),
    ("bare LF after a field", "GET / HTTP/1.1\r\nHost: h\n\r\n", "400"),
    ("bare LF as the blank line", "GET / HTTP/1.1\r\nHost: h\r\n\n", "400"),
    ("bare CR in a value", "GET / HTTP/1.1\r\nHost: h\r\nx: a\rb\r\n\r\n", "400"),
    ("CR CR LF", "GET / HTTP/1.1\r\nHost: h\r\r\n\r\n", "400"),
    ("NUL in a value", "GET / HTTP/1.1\r\nHost: h\r\nx: a\0b\r\n\r\n", "400"),
    // 2.3: version
    ("lower case", "GET / http/1.1\r\nHost: h\r\n\r\n", "400"),
    ("HTTP/2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"),
    ("HTTP/1.2", "GET / HTTP/1.2\r\nHost: h\r\n\r\n", "505"),
    ("HTTP/0.9 in words", "GET / HTTP/0.9\r\nHost: h\r\n\r\n", "505"),
    ("HTTP/0.9", "GET /\r\n", "400"),
    ("HTTP/1.10", "GET / HTTP/1.10\r\nHost: h\r\n\r\n", "400"),
    ("HTTP/01.1", "GET / HTTP/01.1\r\nHost: h\r\n\r\n", "400"),
    ("HTTP/1", "GET / HTTP/1\r\nHost: h\r\n\r\n", "400"),
    ("ICY", "GET / ICY/1.1\r\nHost: h\r\n\r\n", "400"),
    // 3: request line
    ("two blanks before the target", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("two blanks before the version", "GET /  HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("a tab instead", "GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("a blank first", " GET / HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("a blank last", "GET / HTTP/1.1 \r\nHost: h\r\n\r\n", "400"),
    ("a blank in the target", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("no target", "GET HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("a method that is no token", "G@T / HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("an unknown method passes", "BREW / HTTP/1.1\r\nHost: h\r\n\r\n", "none"),
    ("obs-text in the target", "GET /\u{e9} HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("a fragment", "GET /#a HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("encoded line ends stay encoded", "GET /%0d%0aX:y HTTP/1.1\r\nHost: h\r\n\r\n", "none"),
    ("TLS on the plain port", "\x16\x03\x01\x02", "400"),
    // 3.2: target and Host
    ("no Host", "GET / HTTP/1.1\r\n\r\n", "400"),
    ("no Host on 1.0", "GET / HTTP/1.0\r\n\r\n", "none last"),
    ("two Hosts", "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "400"),
    ("two Hosts on 1.0", "GET / HTTP/1.0\r\nHost: h\r\nhost: h\r\n\r\n", "400"),
    ("a list of hosts", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400"),
    ("userinfo in Host", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", "400"),
    ("a path in Host", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"),
    ("a port in letters", "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", "400"),
    ("absolute-form", "GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n", "none"),
    ("absolute-form of another host", "GET http://g/ HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("absolute-form without Host", "GET http://g/ HTTP/1.1\r\n\r\n", "400"),
    ("asterisk-form", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "none"),
    ("asterisk-form of a GET", "GET * HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    ("authority-form", "CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", "405"),
    // 5: fields
    ("a blank before the colon", "GET / HTTP/1.1\r\nHost : h\r\n\r\n", "400"),
    ("a tab before the colon", "GET / HTTP/1.1\r\nHost: h\r\nx\t: h\r\n\r\n", "400"),
    ("no name", "GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", "400"),
    ("no colon", "GET / HTTP/1.1\r\nHost: h\r\nx\r\n\r\n", "400"),
    ("a folded line", "GET / HTTP/1.1\r\nHost: h\r\nx: a\r\n b\r\n\r\n", "400"),
    ("a folded line by tab", "GET / HTTP/1.1\r\nHost: h\r\nx: a\r\n\tb\r\n\r\n", "400"),
    ("an empty value", "GET / HTTP/1.1\r\nHost: h\r\nx:\r\n\r\n", "none"),
    ("blanks around a value", "GET / HTTP/1.1\r\nHost:\t h \t\r\n\r\n", "none"),
    ("a name that is no token", "GET / HTTP/1.1\r\nHost: h\r\nx(y): a\r\n\r\n", "400"),
    ("obs-text in a name", "GET / HTTP/1.1\r\nHost: h\r\n\u{e9}: a\r\n\r\n", "400"),
    ("obs-text in a value", "GET / HTTP/1.1\r\nHost: h\r\nx: \u{e9}\r\n\r\n", "none"),
    // 6.1: Transfer-Encoding
    ("chunked", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", "chunked"),
    ("case and blanks", "POST / HTTP/1.1\r\nHost: h\r\ntransfer-ENCODING:\tChunKed \r\n\r\n", "chunked"),
    ("on HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
    (
        "with Content-Length",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        "400",
    ),
    (
        "with Content-Length after",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
        "400",
    ),
    ("chunked twice", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", "400"),
    (
        "two fields",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "400",
    ),
    (
        "two fields, one unknown",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
        "400",
    ),
    ("not final", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", "400"),
    ("gzip, then chunked", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "501"),
    ("unknown", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n", "501"),
    ("identity", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n", "501"),
    ("empty", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n\r\n", "400"),
    ("an empty element", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: ,chunked\r\n\r\n", "400"),
    ("a parameter", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked;q=1\r\n\r\n", "400"),
    ("in quotes", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", "400"),
    ("a vertical tab", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", "400"),
    ("a non-breaking blank", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \u{a0}chunked\r\n\r\n", "400"),
    // 6.2: Content-Length
    ("a length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n", "4"),
    ("zero", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "0"),
    ("leading zeros", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 004\r\n\r\n", "4"),
    ("a body of a GET", "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n", "4"),
    ("a plus", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +4\r\n\r\n", "400"),
    ("a minus", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -4\r\n\r\n", "400"),
    ("empty", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", "400"),
    ("a blank inside", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4 4\r\n\r\n", "400"),
    ("hexadecimal", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x4\r\n\r\n", "400"),
    ("a fraction", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4.0\r\n\r\n", "400"),
    ("an underscore", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0\r\n\r\n", "400"),
    ("digits of elsewhere", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: \u{664}\r\n\r\n", "400"),
    ("a list of equals", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4, 4\r\n\r\n", "400"),
    ("two equal fields", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\n", "400"),
    ("another field as long", "POST / HTTP/1.1\r\nHost: h\r\nCookie-Options: 4\r\n\r\n", "none"),
    ("two letters that differ as much", "POST / HTTP/1.1\r\nHost: h\r\nContent-Lengui: 4\r\n\r\n", "none"),
    ("two different fields", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n", "400"),
    ("2^63-1", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9223372036854775807\r\n\r\n", "9223372036854775807"),
    ("2^63", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9223372036854775808\r\n\r\n", "400"),
    ("2^64+4", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551620\r\n\r\n", "400"),
    // 6.3, rule 7: a request body is never ended by close
    ("no length at all", "POST / HTTP/1.1\r\nHost: h\r\n\r\n", "none"),
    ("no length at all on 1.0", "POST / HTTP/1.0\r\n\r\n", "none last"),
    // 9.3: persistence
    ("close", "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "none last"),
    ("close among others", "GET / HTTP/1.1\r\nHost: h\r\nConnection: x, CLOSE,\r\n\r\n", "none last"),
    ("close in a second field", "GET / HTTP/1.1\r\nHost: h\r\nConnection: x\r\nConnection: close\r\n\r\n", "none last"),
    ("close wins", "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, close\r\n\r\n", "none last"),
    ("keep-alive on 1.0", "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "none"),
    ("Proxy-Connection is not heard", "GET / HTTP/1.0\r\nProxy-Connection: keep-alive\r\n\r\n", "none last"),
    ("a list that is none", "GET / HTTP/1.1\r\nHost: h\r\nConnection: a b\r\n\r\n", "400"),
    // RFC 9110 7.6.1: what Connection may name
    ("Host", "GET / HTTP/1.1\r\nHost: h\r\nConnection: close, Host\r\n\r\n", "400"),
    ("Content-Length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nConnection: Content-Length\r\n\r\n", "400"),
    ("Authorization", "GET / HTTP/1.1\r\nHost: h\r\nConnection: authorization\r\n\r\n", "400"),
    ("X-Forwarded-For", "GET / HTTP/1.1\r\nHost: h\r\nConnection: x-forwarded-for\r\n\r\n", "400"),
    ("a field of its own", "GET / HTTP/1.1\r\nHost: h\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n", "none"),
    // RFC 9110 10.1.1: Expect
    ("100-continue", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-Continue\r\n\r\n", "4 expects"),
    (
        "of chunks",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
        "chunked expects",
    ),
    ("without a body", "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n", "none"),
    ("of nothing", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nExpect: 100-continue\r\n\r\n", "0"),
    ("on HTTP/1.0", "POST / HTTP/1.0\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", "4 last"),
    ("something else", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 200-ok\r\n\r\n", "417"),
    (
        "twice",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\nExpect: 100-continue\r\n\r\n",
        "417",
    ),
    ("a hidden length", "POST / HTTP/1.1\r\nHost: h\r\nExpect: y 100-continue\r\nContent-Length: 4\r\n\r\n", "417"),
    // RFC 9110 7.8: Upgrade
    ("websocket", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "none upgrade"),
    (
        "a version of it",
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket/13\r\n\r\n",
        "none upgrade",
    ),
    ("without Connection", "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n\r\n", "none"),
    ("without Upgrade", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\r\n", "none"),
    (
        "with a body",
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\n",
        "1",
    ),
    (
        "with no bytes of a body",
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
        "0 upgrade",
    ),
    ("on HTTP/1.0", "GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "none last"),
    (
        "h2c",
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n",
        "none",
    ),
    ("HTTP/2.0", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: HTTP/2.0\r\n\r\n", "none"),
    ("h2", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2\r\n\r\n", "none"),
    ("H2/2", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: H2/2\r\n\r\n", "none"),
    ("tls", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: tls\r\n\r\n", "none"),
    ("TLS/1.0", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0\r\n\r\n", "none"),
    ("a choice", "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c, websocket\r\n\r\n", "none"),
];

#[test]
fn requests() {
    for (rule, bytes, expected) in REQUESTS {
        let bytes: Vec<u8> = bytes.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(0xff)).collect();
        let got = at_every_cut(&bytes, verdict);
        assert_eq!(got, *expected, "{rule}: {}", bytes.escape_ascii());
    }
}

/// What the asking request was, and the verdict on its reply in words.
fn reply_verdict(bytes: &[u8], asked: char) -> String {
    let mut table = FieldTable::new();
    let head = match parse_response(bytes, &mut table, &LIMITS) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) => return "partial".into(),
        Err(_) => return "fault".into(),
    };
    let asked = RequestFraming {
        body: BodyLength::None,
        keep_alive: true,
        expect_continue: false,
        upgrade: asked == 'U',
        head_method: asked == 'H',
    };
    let Ok(judged) = framing::reply(&head, &asked) else { return "fault".into() };
    let mut words = match judged.body {
        BodyLength::None => "none".to_string(),
        BodyLength::Length(length) => length.to_string(),
        BodyLength::Chunked => "chunked".to_string(),
        BodyLength::UntilClose => "close".to_string(),
    };
    if let (BodyLength::None, Some(length)) = (judged.body, judged.announced) {
        words.push_str(&format!(" of {length}"));
    }
    for (flag, word) in [
        (!judged.keep_alive, " last"),
        (judged.interim, " interim"),
        (judged.switching, " switching"),
        (judged.event_stream, " events"),
        (judged.json, " json"),
    ] {
        if flag {
            words.push_str(word);
        }
    }
    words
}

const REPLIES: &[(&str, char, &str, &str)] = &[
    // 4: status line
    ("a reason", 'G', "HTTP/1.1 200 All is well\r\nContent-Length: 2\r\n\r\n", "2"),
    ("no reason", 'G', "HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\n", "2"),
    ("no blank either", 'G', "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n", "2"),
    ("obs-text in the reason", 'G', "HTTP/1.1 200 \u{e9}\r\nContent-Length: 2\r\n\r\n", "2"),
    ("a control in the reason", 'G', "HTTP/1.1 200 a\x01\r\nContent-Length: 2\r\n\r\n", "fault"),
    ("a bare CR in the reason", 'G', "HTTP/1.1 200 a\rb\r\nContent-Length: 2\r\n\r\n", "fault"),
    ("bare LF", 'G', "HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\n", "fault"),
    ("two digits", 'G', "HTTP/1.1 20 OK\r\n\r\n", "fault"),
    ("four digits", 'G', "HTTP/1.1 2000 OK\r\n\r\n", "fault"),
    ("099", 'G', "HTTP/1.1 099 OK\r\n\r\n", "fault"),
    ("600", 'G', "HTTP/1.1 600 OK\r\n\r\n", "fault"),
    ("a plus", 'G', "HTTP/1.1 +20 OK\r\n\r\n", "fault"),
    ("two blanks", 'G', "HTTP/1.1  200 OK\r\n\r\n", "fault"),
    ("a tab", 'G', "HTTP/1.1\t200 OK\r\n\r\n", "fault"),
    ("HTTP/2.0", 'G', "HTTP/2.0 200 OK\r\n\r\n", "fault"),
    ("HTTP/1.2", 'G', "HTTP/1.2 200 OK\r\n\r\n", "fault"),
    ("an empty line first", 'G', "\r\nHTTP/1.1 200 OK\r\n\r\n", "fault"),
    ("no status line", 'G', "<html>", "fault"),
    // 5: fields
    ("a folded line", 'G', "HTTP/1.1 200 OK\r\nx: a\r\n b\r\n\r\n", "fault"),
    ("a blank before the colon", 'G', "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n", "fault"),
    ("NUL", 'G', "HTTP/1.1 200 OK\r\nx: a\0\r\n\r\n", "fault"),
    // 6.1: Transfer-Encoding
    ("chunked", 'G', "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "chunked"),
    ("on HTTP/1.0", 'G', "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "fault"),
    ("with Content-Length", 'G', "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n", "fault"),
    ("twice", 'G', "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "fault"),
    ("gzip, chunked", 'G', "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "fault"),
    ("identity", 'G', "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n", "fault"),
    ("empty", 'G', "HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n", "fault"),
    // 6.2: Content-Length
    ("two equal lengths", 'G', "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n", "fault"),
    ("a list", 'G', "HTTP/1.1 200 OK\r\nContent-Length: 2,2\r\n\r\n", "fault"),
    ("a plus", 'G', "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n", "fault"),
    ("empty", 'G', "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", "fault"),
    ("2^63", 'G', "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n", "fault"),
    // 6.3, rule 1
    ("HEAD", 'H', "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "none of 2"),
    ("HEAD of chunks", 'H', "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "none"),
    (
        "HEAD of a contradiction",
        'H',
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n",
        "fault",
    ),
    ("HEAD of neither", 'H', "HTTP/1.1 200 OK\r\n\r\n", "none"),
    ("304 with a length", 'G', "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", "none of 2"),
    ("304", 'G', "HTTP/1.1 304 Not Modified\r\n\r\n", "none"),
    ("204", 'G', "HTTP/1.1 204 No Content\r\n\r\n", "none"),
    ("204 with the length that it has", 'G', "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", "none"),
    ("204 with a length", 'G', "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", "fault"),
    ("204 with chunks", 'G', "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", "fault"),
    ("100", 'G', "HTTP/1.1 100 Continue\r\n\r\n", "none interim"),
    ("103", 'G', "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n", "none interim"),
    ("100 with a length", 'G', "HTTP/1.1 100 Continue\r\nContent-Length: 2\r\n\r\n", "fault"),
    ("100 with chunks", 'G', "HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n", "fault"),
    // 7.8 of RFC 9110: 101
    ("101 unasked", 'G', "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", "fault"),
    ("101 asked", 'U', "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", "none last switching"),
    ("101 to nothing", 'U', "HTTP/1.1 101 x\r\nConnection: upgrade\r\n\r\n", "fault"),
    ("200 instead", 'U', "HTTP/1.1 200 x\r\nContent-Length: 1\r\n\r\n", "1"),
    // 6.3, rule 8
    ("neither", 'G', "HTTP/1.1 200 OK\r\n\r\n", "close last"),
    ("neither, and keep-alive", 'G', "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", "close last"),
    // 9.3
    ("close", 'G', "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n", "2 last"),
    ("HTTP/1.0", 'G', "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n", "2 last"),
    ("HTTP/1.0 keep-alive", 'G', "HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n", "2"),
    // media types
    ("json", 'G', "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: Application/JSON\r\n\r\n", "2 json"),
    (
        "events",
        'G',
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n",
        "2 events",
    ),
    (
        "events in gzip",
        'G',
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n",
        "2",
    ),
];

#[test]
fn replies() {
    for (rule, asked, bytes, expected) in REPLIES {
        let bytes: Vec<u8> = bytes.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(0xff)).collect();
        let got = at_every_cut(&bytes, |bytes| reply_verdict(bytes, *asked));
        assert_eq!(got, *expected, "{rule}: {}", bytes.escape_ascii());
    }
}

/// Where in the head a byte is put, and which bytes may stand there.
#[test]
fn every_byte_in_every_position() {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let value = |byte: u8| byte == b'\t' || (byte >= 0x20 && byte != 0x7f);
    let host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:".contains(&byte);
    type Position<'a> = (&'a str, &'a str, &'a str, &'a dyn Fn(u8) -> bool);
    let positions: [Position; 15] = [
        ("method first", "", "ET / HTTP/1.1\r\nHost: h\r\n\r\n", &token),
        ("in the method", "G", "T / HTTP/1.1\r\nHost: h\r\n\r\n", &token),
        ("after the method", "GET", "/ HTTP/1.1\r\nHost: h\r\n\r\n", &|byte| byte == b' '),
        ("target first", "GET ", " HTTP/1.1\r\nHost: h\r\n\r\n", &|byte| byte == b'/'),
        ("in the target", "GET /", " HTTP/1.1\r\nHost: h\r\n\r\n", &|byte| byte > 0x20 && byte < 0x7f && byte != b'#'),
        ("after the target", "GET /", "HTTP/1.1\r\nHost: h\r\n\r\n", &|byte| byte == b' '),
        ("minor version", "GET / HTTP/1.", "\r\nHost: h\r\n\r\n", &|byte| matches!(byte, b'0' | b'1')),
        ("after the version", "GET / HTTP/1.1", "\nHost: h\r\n\r\n", &|byte| byte == b'\r'),
        ("after its CR", "GET / HTTP/1.1\r", "Host: h\r\n\r\n", &|byte| byte == b'\n'),
        ("in a name", "GET / HTTP/1.1\r\nHost: h\r\nx", "y: z\r\n\r\n", &|byte| token(byte) || byte == b':'),
        ("after a name", "GET / HTTP/1.1\r\nHost: h\r\nx", " z\r\n\r\n", &|byte| byte == b':'),
        ("in a value", "GET / HTTP/1.1\r\nHost: h\r\nx: a", "b\r\n\r\n", &value),
        ("in a longer value", "GET / HTTP/1.1\r\nHost: h\r\nx: 0123456789a", "b0123456789\r\n\r\n", &value),
        ("after a value", "GET / HTTP/1.1\r\nHost: h\r\nx: a", "\n\r\n", &|byte| byte == b'\r'),
        ("in Host", "GET / HTTP/1.1\r\nHost: h", "1\r\n\r\n", &host),
    ];
    for (place, before, after, allowed) in positions {
        for byte in 0..=255u8 {
            let bytes = [before.as_bytes(), &[byte], after.as_bytes()].concat();
            let got = at_every_cut(&bytes, verdict);
            let accepted = got.starts_with("none");
            assert_eq!(accepted, allowed(byte), "{place}, {byte:#04x}: {got}");
            assert!(accepted || matches!(got.as_str(), "400" | "505" | "partial"), "{place}, {byte:#04x}: {got}");
        }
    }
    for byte in 0..=255u8 {
        for (before, after, allowed) in [
            ("HTTP/1.1 ", "00 OK\r\n\r\n", (b'1'..=b'5').contains(&byte)),
            ("HTTP/1.1 2", "0 OK\r\n\r\n", byte.is_ascii_digit()),
            ("HTTP/1.1 20", " OK\r\n\r\n", byte.is_ascii_digit()),
            ("HTTP/1.1 200 O", "K\r\n\r\n", value(byte)),
            ("HTTP/1.1 200 OK\r\nx: a", "b\r\n\r\n", value(byte)),
        ] {
            let bytes = [before.as_bytes(), &[byte], after.as_bytes()].concat();
            let got = at_every_cut(&bytes, |bytes| reply_verdict(bytes, 'G'));
            assert_eq!(got != "fault", allowed, "{before}{byte:#04x}: {got}");
        }
    }
    for byte in 0..=255u8 {
        for (before, after) in [("", ""), ("1", ""), ("", "1"), ("1", "1")] {
            let field = |name: &str| {
                [
                    b"POST / HTTP/1.1\r\nHost: h\r\n",
                    name.as_bytes(),
                    b": ",
                    before.as_bytes(),
                    &[byte],
                    after.as_bytes(),
                    b"\r\n\r\n",
                ]
                .concat()
            };
            let digits = [before, &char::from(byte).to_string(), after].concat();
            let digits = digits.trim_matches([' ', '\t']);
            let number = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty();
            assert_eq!(verdict(&field("Content-Length")).parse::<u64>().is_ok_and(|v| v < 400), number, "{byte:#04x}");
        }
    }
}

#[test]
fn bounds_of_heads() {
    let padded = |len: usize| {
        let start = "GET / HTTP/1.1\r\nHost: h\r\nx: ";
        format!("{start}{}\r\n\r\n", "a".repeat(len - start.len() - 4)).into_bytes()
    };
    assert_eq!(at_every_cut(&padded(1_024), verdict), "none");
    assert_eq!(at_every_cut(&padded(1_025), verdict), "431");
    assert_eq!(verdict(&[b'A'; 1_023]), "partial");
    assert_eq!(verdict(&[b'A'; 1_024]), "431");
    let many = |fields: usize| format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "a:\r\n".repeat(fields - 1)).into_bytes();
    assert_eq!(at_every_cut(&many(16), verdict), "none");
    assert_eq!(at_every_cut(&many(17), verdict), "431");
}

#[test]
fn bounds_of_connection_options() {
    let listed = |count: usize| format!("Connection: x{}\r\nConnection: y\r\n", ", x".repeat(count - 2));
    let request =
        |count| at_every_cut(format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", listed(count)).as_bytes(), verdict);
    assert_eq!([request(32), request(33)], ["none", "400"]);
    let reply = |count| {
        let bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{}\r\n", listed(count));
        at_every_cut(bytes.as_bytes(), |bytes| reply_verdict(bytes, 'G'))
    };
    assert_eq!([reply(32), reply(33)], ["2", "fault"]);
}

/// Whatever stands before the engine, or the engine, would take the message for another without them.
#[test]
fn fields_that_connection_may_not_name() {
    let named = |name: &str| verdict(format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: {name}\r\n\r\n").as_bytes());
    for name in [
        "accept",
        "api-key",
        "authorization",
        "cache-control",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "cookie",
        "date",
        "expect",
        "forwarded",
        "host",
        "location",
        "set-cookie",
        "x-api-key",
        "x-request-id",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-anything",
    ] {
        assert_eq!([named(name), named(&name.to_ascii_uppercase())], ["400", "400"], "{name}");
    }
    for name in ["te", "trailer", "http2-settings", "accepts", "x-forwarded", "x-hop"] {
        assert_eq!(named(name), "none", "{name}");
    }
}

/// What vLLM sent, and what it was sent, reads as it was meant.
#[test]
fn recorded_exchanges() {
    let recorded: [(&[u8], &str); 5] = [
        (include_bytes!("fixtures/http/chat.request"), "203"),
        (include_bytes!("fixtures/http/chat-stream.request"), "219"),
        (include_bytes!("fixtures/http/hdr-chunked-request.request"), "chunked"),
        (include_bytes!("fixtures/http/hdr-expect-continue.request"), "203 expects"),
        (include_bytes!("fixtures/http/health-head.request"), "none"),
    ];
    for (bytes, expected) in recorded {
        let got = at_every_cut(bytes, verdict);
        assert_eq!(got, expected);
    }
    let replies: [(&[u8], char, &str); 5] = [
        (include_bytes!("fixtures/http/chat.response"), 'G', "json"),
        (include_bytes!("fixtures/http/chat-stream.response"), 'G', "chunked events"),
        (include_bytes!("fixtures/http/hdr-http10.response"), 'G', "chunked last events"),
        (include_bytes!("fixtures/http/hdr-expect-continue.response"), 'G', "none interim"),
        (include_bytes!("fixtures/http/health-head.response"), 'H', "none of 31 json"),
    ];
    for (bytes, asked, expected) in replies {
        let got = at_every_cut(bytes, |bytes| reply_verdict(bytes, asked));
        assert!(got.ends_with(expected), "{got}, not {expected}");
    }
}
