use super::*;

fn plan(prefix: PrefixMode) -> Plan {
    Plan { prefix, prefix_chars: 100, prefix_bytes: 4096, session_fields: vec![] }
}

#[test]
fn first_user_stops_early() {
    let mut scan = Scan::new();
    scan.begin(Api::Chat, &plan(PrefixMode::FirstUser), Needs::MODEL | Needs::PREFIX);
    let body = br#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}],"stream":true}"#;
    let at = body.len() - br#"],"stream":true}"#.len();
    let progress = scan.push(body);
    assert_eq!(progress, Progress::Enough { at: at as u64 });
    assert_eq!(scan.facts().model(), Some(&b"m"[..]));
    assert_eq!(scan.facts().prefix().unwrap().hash, xxhash_rust::xxh64::xxh64(b"hello", 0));
}
