//! Field lines (RFC 9112 section 5) of heads and of trailer sections. Their bytes stay in the buffer that they came in;
//! a table has their places.

use super::class;
use super::reply::{Cause, Fault};

/// Names of fields that the front itself acts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the field of its name")]
pub enum Known {
    Other,
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    KeepAlive,
    ProxyConnection,
    ProxyAuthenticate,
    ProxyAuthorization,
    Te,
    Trailer,
    Upgrade,
    Http2Settings,
    Expect,
    Origin,
    ContentType,
    ContentEncoding,
    XRequestId,
    XForwardedFor,
    XForwardedProto,
    RetryAfter,
    XWarmfrontExplain,
    XWarmfrontPriority,
    XDataParallelRank,
    Traceparent,
}

impl Known {
    /// Returns which field `name` is, whatever its case.
    #[inline]
    pub fn of(name: &[u8]) -> Known {
        match (name.len(), name.first().map(|first| first | 0x20)) {
            (2, Some(b't')) => called(name, b"te", Known::Te),
            (4, Some(b'h')) => called(name, b"host", Known::Host),
            (6, Some(b'e')) => called(name, b"expect", Known::Expect),
            (6, Some(b'o')) => called(name, b"origin", Known::Origin),
            (7, Some(b'u')) => called(name, b"upgrade", Known::Upgrade),
            (7, Some(b't')) => called(name, b"trailer", Known::Trailer),
            (10, Some(b'c')) => called(name, b"connection", Known::Connection),
            (10, Some(b'k')) => called(name, b"keep-alive", Known::KeepAlive),
            (11, Some(b'r')) => called(name, b"retry-after", Known::RetryAfter),
            (11, Some(b't')) => called(name, b"traceparent", Known::Traceparent),
            (12, Some(b'c')) => called(name, b"content-type", Known::ContentType),
            (12, Some(b'x')) => called(name, b"x-request-id", Known::XRequestId),
            (14, Some(b'c')) => called(name, b"content-length", Known::ContentLength),
            (14, Some(b'h')) => called(name, b"http2-settings", Known::Http2Settings),
            (15, Some(b'x')) => called(name, b"x-forwarded-for", Known::XForwardedFor),
            (16, Some(b'c')) => called(name, b"content-encoding", Known::ContentEncoding),
            (16, Some(b'p')) => called(name, b"proxy-connection", Known::ProxyConnection),
            (17, Some(b't')) => called(name, b"transfer-encoding", Known::TransferEncoding),
            (17, Some(b'x')) => called(name, b"x-forwarded-proto", Known::XForwardedProto),
            (18, Some(b'p')) => called(name, b"proxy-authenticate", Known::ProxyAuthenticate),
            (19, Some(b'p')) => called(name, b"proxy-authorization", Known::ProxyAuthorization),
            (19, Some(b'x')) => called(name, b"x-warmfront-explain", Known::XWarmfrontExplain),
            (20, Some(b'x')) => match called(name, b"x-warmfront-priority", Known::XWarmfrontPriority) {
                Known::Other => called(name, b"x-data-parallel-rank", Known::XDataParallelRank),
                known => known,
            },
            _ => Known::Other,
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// Compares all bytes, even after one that differs: with a length known to the compiler that is a few wide comparisons.
#[inline(always)]
fn called<const N: usize>(name: &[u8], lower: &[u8; N], known: Known) -> Known {
    let Some(name) = name.first_chunk::<N>().filter(|_| name.len() == N) else { return Known::Other };
    let differ = name.iter().zip(lower).fold(0, |differ, (a, b)| differ | (a.to_ascii_lowercase() ^ b));
    if differ == 0 { known } else { Known::Other }
}

/// One field line: offsets into the head's bytes.
#[derive(Clone, Copy, Debug)]
struct Field {
    name: (u32, u32),
    value: (u32, u32),
    known: Known,
}

/// Room for the fields of one head, reused from head to head.
#[derive(Clone, Debug, Default)]
pub struct FieldTable {
    fields: Vec<Field>,
    known: u32,
}

impl FieldTable {
    /// Makes an empty table; it grows to at most `head_fields_max` entries.
    pub fn new() -> FieldTable {
        FieldTable { fields: Vec::with_capacity(32), known: 0 }
    }

    fn clear(&mut self) {
        self.fields.clear();
        self.known = 0;
    }
}

/// The fields of a parsed head.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    list: &'a [Field],
    known: u32,
}

impl<'a> Fields<'a> {
    pub(super) fn of(bytes: &'a [u8], table: &'a FieldTable) -> Fields<'a> {
        Fields { bytes, list: &table.fields, known: table.known }
    }

    /// Returns the head's bytes between two offsets.
    pub(super) fn range(&self, (start, end): (u32, u32)) -> &'a [u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Returns name (as it came), value (trimmed) and which field it is, for all fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8], Known)> + use<'a> {
        let this = *self;
        this.list.iter().map(move |field| (this.range(field.name), this.range(field.value), field.known))
    }

    /// Returns the lines of all fields, in order.
    pub(super) fn lines(&self) -> impl Iterator<Item = Line<'a>> + use<'a> {
        let this = *self;
        this.list.iter().map(move |field| Line { fields: this, field })
    }

    /// Whether a field of this name is there.
    pub fn has(&self, known: Known) -> bool {
        self.known & known.bit() != 0
    }

    /// Returns the values of all fields of this name, in order. Costs nothing if there is none.
    pub fn known(&self, known: Known) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let this = if self.has(known) { *self } else { Fields { list: &[], ..*self } };
        this.list.iter().filter(move |field| field.known == known).map(move |field| this.range(field.value))
    }

    /// Returns the values of all fields called `name` (lower case), in order.
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.iter().filter(move |(found, ..)| found.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value, _)| value)
    }

    /// Returns the value of the first field called `name` (lower case).
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// Whether any line of Content-Encoding says that the body is encoded.
    pub fn is_encoded(&self) -> bool {
        self.known(Known::ContentEncoding).any(|coding| !coding.eq_ignore_ascii_case(b"identity"))
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// A field line of a parsed head.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    fields: Fields<'a>,
    field: &'a Field,
}

impl<'a> Line<'a> {
    pub(super) fn known(&self) -> Known {
        self.field.known
    }

    pub(super) fn name(&self) -> &'a [u8] {
        self.fields.range(self.field.name)
    }

    pub(super) fn value(&self) -> &'a [u8] {
        self.fields.range(self.field.value)
    }

    /// Returns its range in the head, if it is written as we write lines: `name: value`, one blank and no more.
    #[inline]
    pub(super) fn plain(&self) -> Option<(u32, u32)> {
        let (name, value) = (self.field.name, self.field.value);
        let byte = |at: u32| self.fields.bytes.get(at as usize);
        let plain = value.0 == name.1 + 2 && byte(name.1 + 1) == Some(&b' ') && byte(value.1) == Some(&b'\r');
        plain.then_some((name.0, value.1 + 2))
    }
}

pub(super) const LARGE: Fault = Fault::new(Cause::HeadTooLarge, "the head is too large");
const MANY: Fault = Fault::new(Cause::HeadTooLarge, "the head has too many fields (limits.head_fields_max)");

pub(super) const fn bad_head(message: &'static str) -> Fault {
    Fault::new(Cause::BadHead, message)
}

/// The outcome of parsing; `None`: nothing is wrong so far, but the bytes end too early.
pub(super) type Parsed<T> = Result<Option<T>, Fault>;

/// Parses `*( field-name ":" OWS field-value OWS CRLF ) CRLF` from `at` on; returns the offset after it.
pub(super) fn parse_fields(bytes: &[u8], mut at: usize, table: &mut FieldTable, fields_max: usize) -> Parsed<usize> {
    table.clear();
    loop {
        if bytes.get(at) == Some(&b'\r') {
            return line_break(bytes, at);
        }
        let name_end = class::token_end(bytes, at);
        match bytes.get(name_end) {
            None => return Ok(None),
            Some(b':') if name_end > at => {}
            Some(b' ' | b'\t') if name_end == at => return Err(bad_head("a field line is folded")),
            Some(b' ' | b'\t') => return Err(bad_head("a blank stands before the colon of a field")),
            Some(_) => return Err(bad_head("a field name is not a token with a colon after it")),
        }
        let mut value_start = name_end + 1;
        while let Some(b' ' | b'\t') = bytes.get(value_start) {
            value_start += 1;
        }
        let line_end = class::value_end(bytes, value_start);
        let Some(next) = line_break(bytes, line_end)? else { return Ok(None) };
        let mut value_end = line_end;
        while value_end > value_start && matches!(bytes.get(value_end - 1), Some(b' ' | b'\t')) {
            value_end -= 1;
        }
        if table.fields.len() >= fields_max {
            return Err(MANY);
        }
        let known = Known::of(bytes.get(at..name_end).unwrap_or_default());
        table.known |= known.bit();
        // Heads are far shorter than 4 GiB: their limit is a few dozen KiB.
        let name = (at as u32, name_end as u32);
        table.fields.push(Field { name, value: (value_start as u32, value_end as u32), known });
        at = next;
    }
}

/// Parses a CRLF at `at`, and nothing else that a parser could take for a line end; returns the offset after it.
pub(super) fn line_break(bytes: &[u8], at: usize) -> Parsed<usize> {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some(at + 2)),
        (Some(b'\r'), None) | (None, _) => Ok(None),
        (Some(b'\r'), _) => Err(bad_head("a CR without its LF")),
        (Some(b'\n'), _) => Err(bad_head("an LF without its CR")),
        _ => Err(bad_head("a control character")),
    }
}
