//! Whole streams of messages, heads and bodies, against hyper: what we accept, it reads as the same messages.

use std::cell::RefCell;
use std::collections::BTreeMap;

use warmfront::http::{
    BodyLength, FieldTable, HeadLimits, RequestFraming, Status, Version, framing, parse_request, parse_response,
};

use super::bodies::relay;
use super::peer::{self, Message, sorted};

/// hyper takes at most this many fields.
const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 4_096, head_fields_max: 100 };

thread_local! {
    /// By cause, how often hyper accepted what we refuse, and the other known differences. Of one thread: tests that run
    /// beside each other see their own.
    static DIFFERENCES: RefCell<BTreeMap<String, u64>> = const { RefCell::new(BTreeMap::new()) };
}

fn count(difference: &str) {
    DIFFERENCES.with_borrow_mut(|counted| *counted.entry(difference.to_owned()).or_default() += 1);
}

/// How often this difference was seen by this thread.
pub fn counted(difference: &str) -> u64 {
    DIFFERENCES.with_borrow(|counted| counted.get(difference).copied().unwrap_or(0))
}

/// Why reading came to an end.
enum Stop {
    /// The bytes did.
    Partial,
    /// The connection may not be used again.
    Closes,
    Refused(&'static str),
    /// hyper takes no trailer beyond ASCII, which fields are free to hold.
    OddTrailer,
}

/// Whether bytes beyond ASCII stand in a chunked body, and not in its data.
fn odd_trailer(raw: &[u8], data: &[u8]) -> bool {
    let beyond = |bytes: &[u8]| bytes.iter().filter(|byte| !byte.is_ascii()).count();
    beyond(raw) > beyond(data)
}

/// The requests that the front finds in `bytes`, and why no more.
fn our_requests(bytes: &[u8]) -> (Vec<Message>, Stop) {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let mut table = FieldTable::new();
        let head = match parse_request(rest, &mut table, &LIMITS) {
            Ok(Status::Complete(head)) => head,
            Ok(Status::Partial) => return (found, Stop::Partial),
            Err(refusal) => return (found, Stop::Refused(refusal.cause.as_str())),
        };
        let judged = match framing::request(&head) {
            Ok(judged) => judged,
            Err(refusal) => return (found, Stop::Refused(refusal.cause.as_str())),
        };
        let body = relay(judged.body, [&rest[head.len..]]);
        found.push(Message {
            start: String::from_utf8_lossy(head.method).into(),
            target: String::from_utf8_lossy(head.target).into(),
            new: head.version == Version::Http11,
            fields: sorted(head.fields.iter().map(|(name, value, _)| (name, value))),
            body: body.done.then_some(body.data.clone()),
        });
        if odd_trailer(&rest[head.len..][..body.taken], &body.data) {
            return (found, Stop::OddTrailer);
        }
        if let Some(cause) = body.fault {
            return (found, Stop::Refused(cause.as_str()));
        }
        if !body.done {
            return (found, Stop::Partial);
        }
        if !judged.keep_alive || judged.upgrade {
            return (found, Stop::Closes);
        }
        at += head.len + body.taken;
    }
}

/// Bytes of a target that hyper's URI refuses, and no engine we know of minds.
fn plain(target: &str) -> bool {
    !target.bytes().any(|byte| b"<>^`\\|{}\"".contains(&byte)) && !target.contains("://")
}

/// Each request that we find in a stream of bytes, hyper finds at the same place with the same method, target,
/// version, fields and body.
pub fn requests(bytes: &[u8]) {
    let (ours, stop) = our_requests(bytes);
    if matches!(stop, Stop::OddTrailer) {
        return count("hyper: refuses a trailer beyond ASCII");
    }
    let theirs = peer::serve(bytes);
    for (place, mine) in ours.iter().enumerate() {
        let Some(other) = theirs.get(place) else {
            if place > 0 {
                return count("hyper: ends the connection earlier");
            }
            // A head is no request before its body is: the engine would wait for the rest.
            assert!(!plain(&mine.target), "hyper refuses {mine:?}: {}", bytes.escape_ascii());
            return count("hyper: refuses the target");
        };
        let same = (&mine.start, mine.new, &mine.fields) == (&other.start, other.new, &other.fields);
        assert!(same, "{mine:?}\nhyper: {other:?}\n{}", bytes.escape_ascii());
        assert!(mine.target == other.target || !plain(&mine.target), "{mine:?}\nhyper: {other:?}");
        match (&mine.body, &other.body) {
            (Some(mine), other) => assert_eq!(Some(mine), other.as_ref(), "{}", bytes.escape_ascii()),
            (None, Some(_)) => count("hyper: takes a body that is refused"),
            (None, None) => {}
        }
    }
    match stop {
        Stop::Refused(cause) if theirs.len() > ours.len() => count(&format!("{cause}: hyper accepts")),
        Stop::Closes if theirs.len() > ours.len() => count("ends here: hyper goes on"),
        Stop::Partial => assert_eq!(theirs.len(), ours.len(), "hyper sees more: {}", bytes.escape_ascii()),
        _ => {}
    }
}

/// The reply that the front finds in `bytes`, behind any interim ones.
fn our_reply(bytes: &[u8], head_method: bool) -> Result<Option<Message>, &'static str> {
    let asked = RequestFraming {
        body: BodyLength::None,
        keep_alive: true,
        expect_continue: false,
        upgrade: false,
        head_method,
    };
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let mut table = FieldTable::new();
        let head = match parse_response(rest, &mut table, &LIMITS) {
            Ok(Status::Complete(head)) => head,
            Ok(Status::Partial) => return Ok(None),
            Err(fault) => return Err(fault.cause.as_str()),
        };
        let judged = framing::reply(&head, &asked).map_err(|fault| fault.cause.as_str())?;
        at += head.len;
        if judged.interim {
            continue;
        }
        let body = relay(judged.body, [&bytes[at..]]);
        if odd_trailer(&bytes[at..][..body.taken], &body.data) {
            return Err("a trailer beyond ASCII");
        }
        // All has come, so closing ends what closing may end.
        let whole = body.done || judged.body == BodyLength::UntilClose;
        return Ok(Some(Message {
            start: head.status.to_string(),
            target: String::new(),
            new: head.version == Version::Http11,
            fields: sorted(head.fields.iter().map(|(name, value, _)| (name, value))),
            body: whole.then_some(body.data),
        }));
    }
}

/// A reply that we accept, hyper as a client accepts, to GET and to HEAD, with the same status, fields and body.
pub fn replies(bytes: &[u8]) {
    for method in ["GET", "HEAD"] {
        let ours = our_reply(bytes, method == "HEAD");
        let theirs = peer::ask(method, bytes);
        let context = || format!("{method}: {}", bytes.escape_ascii());
        match (ours, theirs) {
            (Ok(Some(mine)), Some(other)) => {
                let same = (&mine.start, mine.new, &mine.fields) == (&other.start, other.new, &other.fields);
                assert!(same, "{mine:?}\nhyper: {other:?}\n{}", context());
                match (mine.body, other.body) {
                    (Some(mine), other) => assert_eq!(Some(mine), other, "{}", context()),
                    (None, Some(_)) => count("hyper: takes a reply's body that is cut"),
                    (None, None) => {}
                }
            }
            (Ok(Some(mine)), None) => panic!("hyper refuses {mine:?}: {}", context()),
            (Ok(None), Some(other)) => panic!("hyper sees a reply: {other:?}: {}", context()),
            (Err(cause), Some(_)) => count(&format!("reply, {cause}: hyper accepts")),
            (_, None) => {}
        }
    }
}
