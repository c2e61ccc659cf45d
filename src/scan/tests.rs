//! What the scanner makes of odd bodies, row by row; the comparison with whole values is in `tests/scan_oracle.rs`.

use super::*;

fn plan(prefix: PrefixMode) -> Plan {
    Plan { prefix, session_fields: vec![b"user"[..].into()], ..Plan::default() }
}

fn scan(api: Api, prefix: PrefixMode, needs: Needs, body: &[u8]) -> (Progress, Box<Scan>) {
    let mut scan = Box::new(Scan::new());
    scan.begin(api, &plan(prefix), needs);
    let progress = match scan.push(body) {
        Progress::More => scan.finish(),
        progress => progress,
    };
    (progress, scan)
}

fn whole(body: &[u8]) -> (Progress, Box<Scan>) {
    scan(Api::Chat, PrefixMode::FirstUser, Needs::MODEL | Needs::PREFIX | Needs::SESSION | Needs::WHOLE, body)
}

fn text_hash(text: &[u8]) -> Option<u64> {
    Some(xxhash_rust::xxh64::xxh64(text, 0))
}

fn prefix_of(scan: &Scan) -> Option<u64> {
    scan.facts().prefix().map(|prefix| prefix.hash)
}

/// A body whose first user message is `content` (JSON), with `rest` before the end.
fn body(content: &[u8], rest: &[u8]) -> Vec<u8> {
    [b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":", content, b"}]", rest, b"}"].concat()
}

#[test]
fn ends_at_a_byte_that_the_body_decides() {
    let body = br#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}],"stream":true}"#;
    let at = (body.len() - br#"],"stream":true}"#.len()) as u64;
    let (progress, done) = scan(Api::Chat, PrefixMode::FirstUser, Needs::MODEL | Needs::PREFIX, body);
    assert_eq!(progress, Progress::Enough { at });
    assert_eq!(done.facts().model(), Some(&b"m"[..]));
    assert_eq!(done.facts().stream, None);
    assert_eq!(prefix_of(&done), text_hash(b"hello"));
    // More bytes change nothing.
    let mut done = done;
    assert_eq!(done.push(b"}]}}}"), progress);
    assert_eq!(done.finish(), progress);
}

#[test]
fn the_hundredth_character_is_the_last_one() {
    let long = "é".repeat(101);
    let text = body(format!("\"{long}\"").as_bytes(), b"");
    let (progress, done) = scan(Api::Chat, PrefixMode::FirstUser, Needs::PREFIX, &text);
    let start = text.iter().position(|&byte| byte == 0xc3).unwrap() as u64;
    assert_eq!(progress, Progress::Enough { at: start + 200 });
    assert_eq!(prefix_of(&done), text_hash("é".repeat(100).as_bytes()));
}

#[test]
fn nothing_needed_nothing_read() {
    let (progress, _) = scan(Api::Chat, PrefixMode::FirstUser, Needs::NONE, b"not json");
    assert_eq!(progress, Progress::Enough { at: 0 });
}

#[test]
fn model_alone_ends_at_its_quote_and_skips_what_is_before() {
    let text = br#"{"messages":[{"role":"user","content":"bad \x escape"}],"model":"m","messages":3}"#;
    let (progress, done) = scan(Api::Chat, PrefixMode::FirstUser, Needs::MODEL, text);
    assert_eq!(progress, Progress::Enough { at: (text.len() - br#","messages":3}"#.len()) as u64 });
    assert_eq!((done.facts().model(), prefix_of(&done)), (Some(&b"m"[..]), None));
}

#[test]
fn last_duplicate_wins_and_is_counted() {
    let (progress, done) = whole(br#"{"model":"a","model":"b","messages":[{"role":"user","content":"x"}],"messages":[{"role":"user","content":"y"}]}"#);
    assert_eq!(progress, Progress::Done);
    assert_eq!((done.facts().model(), done.facts().duplicates), (Some(&b"b"[..]), 2));
    assert_eq!(prefix_of(&done), text_hash(b"y"));
}

#[test]
fn escaped_keys_are_compared_decoded() {
    let (_, done) = whole(br#"{"mod\u0065l":"m\u0065"}"#);
    assert_eq!(done.facts().model(), Some(&b"me"[..]));
}

/// What engines accept, or answer themselves, passes.
#[test]
fn lax_where_engines_are() {
    let deep = [&b",\"x\":"[..], &vec![b'['; 100_000], &vec![b']'; 100_000]].concat();
    let deep_content = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let digits = [&b",\"max_tokens\":"[..], &[b'9'; 400]].concat();
    let cases: Vec<(&str, Vec<u8>, Option<u64>)> = vec![
        ("invalid UTF-8 in a content", body(b"\"a\xffb\"", b""), text_hash(b"a\xffb")),
        ("invalid UTF-8 in an unused field", body(b"\"a\"", b",\"x\":\"\xff\""), text_hash(b"a")),
        ("lone surrogate in a content", body(b"\"\\ud800a\"", b""), text_hash(b"\xed\xa0\x80a")),
        ("lone surrogate in an unused field", body(b"\"a\"", b",\"x\":\"\\ud800\""), text_hash(b"a")),
        ("deep nesting in an unused field", body(b"\"a\"", &deep), text_hash(b"a")),
        ("deep nesting as content", body(&deep_content, b""), None),
        ("NaN", body(b"\"a\"", b",\"x\":NaN,\"y\":-Infinity"), text_hash(b"a")),
        ("1e999", body(b"\"a\"", b",\"x\":1e999"), text_hash(b"a")),
        ("400 digits", body(b"\"a\"", &digits), text_hash(b"a")),
        ("a fraction", body(b"\"a\"", b",\"max_tokens\":16.0"), text_hash(b"a")),
        ("null content", body(b"null", b""), None),
        (
            "content in parts",
            body(br#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#, b""),
            text_hash(b"ab"),
        ),
        ("brackets that do not match, unused", body(b"\"a\"", b",\"x\":[}"), text_hash(b"a")),
        ("a raw line end in an unused field", body(b"\"a\"", b",\"x\":\"\n\""), text_hash(b"a")),
        ("byte order mark", [b"\xef\xbb\xbf", &body(b"\"a\"", b"")[..]].concat(), text_hash(b"a")),
    ];
    for (what, body, prefix) in cases {
        let (progress, done) = whole(&body);
        assert_eq!(progress, Progress::Done, "{what}");
        assert_eq!(done.facts().model(), Some(&b"m"[..]), "{what}");
        assert_eq!(done.facts().max_tokens(), None, "{what}");
        assert_eq!(prefix_of(&done), prefix, "{what}");
    }
}

/// What cannot be routed by its content is routed by load.
#[test]
fn faults_say_why() {
    let nested = vec![b'['; 100_000];
    let cases: Vec<(Vec<u8>, Fault)> = vec![
        (vec![], Fault::Empty),
        (b"  ".to_vec(), Fault::Truncated),
        (b"[]".to_vec(), Fault::NotObject),
        (nested, Fault::NotObject),
        (b"{\0\"\0m\0".to_vec(), Fault::Syntax),
        (b"\xff\xfe{\0".to_vec(), Fault::NotObject),
        (body(b"\"a\nb\"", b""), Fault::Control),
        (body(b"\"a\\xb\"", b""), Fault::Escape),
        (body(b"\"a\"", b","), Fault::Syntax),
        (body(b"[\"a\",]", b""), Fault::Syntax),
        (body(b"\"a\"", b"} x"), Fault::Trailing),
        (body(b"\"a\"", b"}\0"), Fault::Trailing),
        (body(b"\"a", b"")[..40].to_vec(), Fault::Truncated),
        (b"{\"a\":1".to_vec(), Fault::Truncated),
        (b"{\"a\":tru\xff}".to_vec(), Fault::Syntax),
    ];
    for (body, fault) in cases {
        assert_eq!(whole(&body).0, Progress::Failed(fault), "{}", body[..body.len().min(80)].escape_ascii());
    }
}

#[test]
fn field_order_does_not_matter() {
    let fields = [
        r#""model":"m""#,
        r#""tools":[{"name":"t"}]"#,
        r#""system":"be brief""#,
        r#""messages":[{"role":"user","content":"x"}]"#,
    ];
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]];
    let needs = Needs::MODEL | Needs::PREFIX;
    let prefixes = orders.map(|order| {
        let text = format!("{{{}}}", order.map(|place| fields[place]).join(","));
        let (progress, done) = scan(Api::Messages, PrefixMode::Conversation, needs, text.as_bytes());
        assert!(matches!(progress, Progress::Enough { .. }));
        prefix_of(&done).unwrap()
    });
    assert!(prefixes.iter().all(|prefix| *prefix == prefixes[0]));
    let reordered =
        br#"{"messages":[{"content":"x","role":"user"}],"system":"be brief","tools":[{"name":"t"}],"model":"m"}"#;
    let (_, done) = scan(Api::Messages, PrefixMode::Conversation, needs, reordered);
    assert_eq!(prefix_of(&done), Some(prefixes[0]));
}

#[test]
fn counts_and_estimate() {
    let content =
        br#"[{"type":"text","text":"12345678"},{"type":"image_url","image_url":{"url":"data:,AAAAAAAAAAAAAAAA"}}]"#;
    let (_, done) = whole(&body(content, b",\"tools\":[{}],\"user\":\"u\""));
    let facts = done.facts();
    assert!(facts.images() && facts.tools);
    assert_eq!(facts.counts(), Counts { text_bytes: 12, ids: 0, media: 1 });
    assert_eq!(facts.tokens_estimate(1_000), 1_003);
    assert_eq!(facts.session(), text_hash(b"u"));
    let needs = Needs::PREFIX | Needs::WHOLE;
    let (_, done) = scan(Api::Completions, PrefixMode::Conversation, needs, br#"{"prompt":[1,2,3]}"#);
    assert_eq!((done.facts().tokens_estimate(1_000), done.facts().prompt_bytes()), (3, 12));
}

#[test]
fn paths_name_their_api() {
    assert_eq!(Api::of_path(b"/v1/chat/completions?x=1"), Api::Chat);
    assert_eq!(Api::of_path(b"/v2/rerank"), Api::Rerank);
    assert_eq!(Api::of_path(b"/v1/models"), Api::Other);
}
