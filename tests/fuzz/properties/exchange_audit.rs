//! What both peers got from an exchange: the engine one request or its beginning; the client interim replies, then
//! one reply, whole or visibly not; and nothing behind either.

use warmfront::counters::Counters;
use warmfront::exchange::{Ending, Lender};
use warmfront::http::{
    BodyLength, FieldTable, HeadLimits, RequestFraming, Status, Version, framing, parse_request, parse_response,
};

use super::bodies::relay;

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 1 << 16, head_fields_max: 64 };

/// What the engine sent, and whether a FIN came behind it.
pub struct Reply<'a> {
    pub bytes: &'a [u8],
    pub fin: bool,
}

impl Reply<'_> {
    /// Whether a reply stands there to its end.
    fn is_whole(&self, asked: &RequestFraming) -> bool {
        let mut at = 0;
        loop {
            let mut table = FieldTable::new();
            let rest = &self.bytes[at..];
            let Ok(Status::Complete(head)) = parse_response(rest, &mut table, &LIMITS) else { return false };
            let Ok(judged) = framing::reply(&head, asked) else { return false };
            at += head.len;
            if !judged.interim {
                let body = relay(judged.body, [&self.bytes[at..]]);
                return body.done || (judged.body == BodyLength::UntilClose && self.fin);
            }
        }
    }
}

/// Panics where the bytes `answered` to the request at the beginning of `all` are something else.
pub fn check(all: &[u8], reply: &Reply<'_>, answered: &[u8], ending: Option<Ending>) {
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
        // An old client takes the FIN for the end, and an error of ours stands for what the engine did not say.
        let looks_whole = whole || (judged.body == BodyLength::UntilClose && ending == Some(Ending::Linger));
        let ours = head.status >= 400 && matches!(judged.body, BodyLength::Length(_) | BodyLength::None);
        assert!(!looks_whole || ours || reply.is_whole(&asked), "half a reply that looks whole: {}", shown());
        assert!(whole || ending != Some(Ending::KeepAlive), "goes on behind half a reply: {}", shown());
        assert!(!old || judged.body != BodyLength::Chunked, "chunks for an old client: {}", shown());
        let says_close = head.fields.all("connection").any(|value| value.eq_ignore_ascii_case(b"close"));
        assert!(!says_close || ending != Some(Ending::KeepAlive), "said to close, and goes on: {}", shown());
        return;
    }
}

/// What one upstream connection got: one request, or its beginning, and nothing behind it.
pub fn check_request(asked: &[u8], reuse: bool, tunnelled: bool) {
    let shown = || asked.escape_ascii().to_string();
    let mut table = FieldTable::new();
    let head = match parse_request(asked, &mut table, &LIMITS) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) => return assert!(!reuse, "kept behind half a head: {}", shown()),
        Err(refusal) => panic!("{refusal:?}: {}", shown()),
    };
    let judged = framing::request(&head).unwrap_or_else(|refusal| panic!("{refusal:?}: {}", shown()));
    if tunnelled {
        return assert!(!reuse, "a tunnel's connection is kept");
    }
    let body = relay(judged.body, [&asked[head.len..]]);
    assert_eq!(body.fault, None, "{}", shown());
    assert_eq!(head.len + body.taken, asked.len(), "surplus behind a request: {}", shown());
    assert!(body.done || !reuse, "kept behind half a request: {}", shown());
    let fields: Vec<_> = head.fields.all("content-length").chain(head.fields.all("transfer-encoding")).collect();
    assert!(fields.len() <= 1 && (judged.body == BodyLength::None) == fields.is_empty(), "{}", shown());
}

/// Nothing is held, and nothing counted but what failed a moment ago.
pub fn all_is_back(lender: &mut Lender, counters: &Counters) {
    // What failed stays charged for its time, and no longer.
    let charges = &mut lender.charges;
    assert_eq!(charges.counted(), charges.kept(), "counted and not held by anything");
    while let Some(due) = charges.due() {
        charges.expire(due);
    }
    assert_eq!(lender.held_bytes, 0, "held bytes are not given back");
    assert!((0..2).all(|slot| counters.in_flight(slot) == 0), "still in flight");
    assert_eq!(counters.underflow(), 0);
}
