//! What a client got from an exchange: interim replies, then one reply, whole or visibly not, and nothing behind it.

use warmfront::exchange::Ending;
use warmfront::http::{
    BodyLength, FieldTable, HeadLimits, RequestFraming, Status, Version, framing, parse_request, parse_response,
};

use super::bodies::relay;

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 1 << 16, head_fields_max: 64 };

/// Panics where the bytes `answered` to the request at the beginning of `all` are something else.
pub fn check(all: &[u8], answered: &[u8], ending: Option<Ending>) {
    let mut table = FieldTable::new();
    let Ok(Status::Complete(asking)) = parse_request(all, &mut table, &LIMITS) else { return };
    let head_method = asking.method == b"HEAD";
    let old = asking.version == Version::Http10;
    let asked =
        RequestFraming { body: BodyLength::None, keep_alive: true, expect_continue: false, upgrade: true, head_method };
    let shown = || format!("{}: {} {ending:?}", all.escape_ascii(), answered.escape_ascii());
    let mut at = 0;
    loop {
        let rest = &answered[at..];
        let mut table = FieldTable::new();
        let head = match parse_response(rest, &mut table, &LIMITS) {
            Ok(Status::Complete(head)) => head,
            // After interim replies alone, or nothing, only a reset or the client's own leaving may come.
            Ok(Status::Partial) => {
                let visible = matches!(ending, Some(Ending::Abort | Ending::Gone));
                return assert!(rest.is_empty() && visible, "half a head: {}", shown());
            }
            Err(fault) => panic!("{fault:?}: {}", shown()),
        };
        let judged = framing::reply(&head, &asked).unwrap_or_else(|fault| panic!("{fault:?}: {}", shown()));
        at += head.len;
        if judged.interim {
            assert!(!old || head.status == 100, "an interim reply to an old client: {}", shown());
            continue;
        }
        let body = relay(judged.body, [&answered[at..]]);
        assert_eq!(body.fault, None, "{}", shown());
        assert_eq!(at + body.taken, answered.len(), "surplus behind a reply: {}", shown());
        let whole = body.done;
        assert!(whole || ending != Some(Ending::KeepAlive), "goes on behind half a reply: {}", shown());
        assert!(!old || judged.body != BodyLength::Chunked, "chunks for an old client: {}", shown());
        let says_close = head.all("connection").any(|value| value.eq_ignore_ascii_case(b"close"));
        assert!(!says_close || ending != Some(Ending::KeepAlive), "said to close, and goes on: {}", shown());
        return;
    }
}
