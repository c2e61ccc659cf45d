//! What an engine's bytes mean to the one request they answer: a reply, a reply that breaks off, or none.

use crate::grammar::{self, Head, Step};

/// Who asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    Get,
    Head,
    /// GET in HTTP/1.0
    Old,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Came {
    /// Nothing that could be passed on.
    Bad,
    /// Status and body.
    Whole(u16, Vec<u8>),
    /// Status and the data before it broke off.
    Cut(u16, Vec<u8>),
}

/// The meaning of some bytes and the end of their connection.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Statuses of interim replies before it, but 100.
    pub interim: Vec<u16>,
    pub came: Came,
    /// Bytes that belong to it; what stands behind them is surplus.
    pub len: usize,
    /// The connection stands at its end, and may be used again.
    pub reusable: bool,
}

/// As many interim replies as the front passes on.
const INTERIM_MAX: usize = 8;

/// Reads `bytes`, behind which the engine closes.
pub fn answer(bytes: &[u8], asker: Asker) -> Answer {
    let mut interim = Vec::new();
    let mut count = 0;
    let mut at = 0;
    loop {
        let bad = |len: usize| Answer { interim: interim.clone(), came: Came::Bad, len, reusable: false };
        let head = match grammar::head(&bytes[at..]) {
            Step::Whole(head) => head,
            Step::Partial | Step::Wrong(_) => return bad(bytes.len()),
        };
        let Some((old, status)) = status(&head.start) else { return bad(bytes.len()) };
        let Some(length) = length(&head, old, status) else { return bad(bytes.len()) };
        at += head.len;
        if status < 200 {
            count += 1;
            if status == 101 || count > INTERIM_MAX {
                return bad(bytes.len());
            }
            if status != 100 {
                interim.push(status);
            }
            continue;
        }
        let none = asker == Asker::Head || status == 204 || status == 304;
        let (came, len, delimited) = body(&bytes[at..], if none { Length::Of(0) } else { length }, status);
        let options = head.list("connection");
        let named = |option: &[u8]| options.iter().any(|found| found == option);
        let persists = !named(b"close") && (!old || named(b"keep-alive"));
        // No byte ends a reply that has no body by a rule.
        let reusable = delimited && !none && persists && at + len == bytes.len() && matches!(came, Came::Whole(..));
        return Answer { interim, came, len: at + len, reusable };
    }
}

#[derive(Clone, Copy)]
enum Length {
    Of(usize),
    Chunked,
    UntilClose,
}

/// Whether it is HTTP/1.0, and the status.
fn status(line: &[u8]) -> Option<(bool, u16)> {
    let (version, rest) = line.split_at_checked(9)?;
    let old = match version {
        b"HTTP/1.1 " => false,
        b"HTTP/1.0 " => true,
        _ => return None,
    };
    let (digits, reason) = rest.split_at_checked(3)?;
    let status = grammar::digits(digits).filter(|status| (100..600).contains(status))?;
    (reason.is_empty() || reason.starts_with(b" ")).then_some((old, status as u16))
}

/// Where the body ends. `None`: the head contradicts itself.
fn length(head: &Head, old: bool, status: u16) -> Option<Length> {
    if !head.list("connection").iter().all(|option| option.is_empty() || grammar::is_token(option)) {
        return None;
    }
    let length = match (&head.all("content-length")[..], &head.all("transfer-encoding")[..]) {
        ([], []) => return Some(Length::UntilClose),
        ([length], []) => Length::Of(usize::try_from(grammar::digits(length)?).ok()?),
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") && !old => Length::Chunked,
        _ => return None,
    };
    // The one length that a reply without a body has.
    let is_none = status == 204 && matches!(length, Length::Of(0));
    (is_none || status >= 200 && status != 204).then_some(length)
}

/// What came of a body, the bytes it took, and whether something other than closing ends it.
fn body(bytes: &[u8], length: Length, status: u16) -> (Came, usize, bool) {
    match length {
        Length::Of(len) => match bytes.get(..len) {
            Some(data) => (Came::Whole(status, data.to_vec()), len, true),
            None => (Came::Cut(status, bytes.to_vec()), bytes.len(), true),
        },
        Length::UntilClose => (Came::Whole(status, bytes.to_vec()), bytes.len(), false),
        Length::Chunked => {
            let decoded = grammar::chunks(bytes);
            match decoded.step {
                Step::Whole(chunks) => (Came::Whole(status, chunks.data), chunks.len, true),
                _ => (Came::Cut(status, decoded.data), bytes.len(), true),
            }
        }
    }
}
