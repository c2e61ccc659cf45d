//! Start lines and fields (RFC 9112 sections 2 to 5), in one pass over the bytes, strictly: what one
//! parser forgives, the next one reads differently.
//!
//! A head that is not all there yet is [`Status::Partial`]: parse again when more has come. Each verdict
//! falls at the first byte that decides it, so cutting the input elsewhere never changes it.

use super::class::{self, TARGET, TOKEN};
use super::reply::{Cause, Fault, Refusal};
use super::target;
use crate::limits::Limits;

/// The outcome of parsing what may be a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status<T> {
    /// The whole of it was there.
    Complete(T),
    /// So far nothing is wrong, but the end is missing.
    Partial,
}

/// The versions spoken here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

/// Bounds of one head.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Most bytes, blank line included.
    pub head_bytes_max: usize,
    /// Most fields.
    pub head_fields_max: usize,
}

impl From<&Limits> for HeadLimits {
    fn from(limits: &Limits) -> Self {
        HeadLimits { head_bytes_max: limits.head_bytes_max, head_fields_max: limits.head_fields_max }
    }
}

impl HeadLimits {
    /// Whether a head of which `total` bytes are there, `fresh` the newest, is worth parsing again. Long
    /// ones only at line ends: else a client that sends byte by byte buys quadratic work.
    pub fn worth_parsing(&self, total: usize, fresh: &[u8]) -> bool {
        total <= 2_048 || total >= self.head_bytes_max || memchr::memchr(b'\n', fresh).is_some()
    }
}

/// Names the front itself acts on.
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
    ContentType,
    ContentEncoding,
    XRequestId,
    XForwardedFor,
    XForwardedProto,
}

impl Known {
    /// Which one `name` is, whatever its case.
    #[inline]
    pub fn of(name: &[u8]) -> Known {
        let (candidate, known): (&[u8], Known) = match (name.len(), name.first().map(|first| first | 0x20)) {
            (2, Some(b't')) => (b"te", Known::Te),
            (4, Some(b'h')) => (b"host", Known::Host),
            (6, Some(b'e')) => (b"expect", Known::Expect),
            (7, Some(b'u')) => (b"upgrade", Known::Upgrade),
            (7, Some(b't')) => (b"trailer", Known::Trailer),
            (10, Some(b'c')) => (b"connection", Known::Connection),
            (10, Some(b'k')) => (b"keep-alive", Known::KeepAlive),
            (12, Some(b'c')) => (b"content-type", Known::ContentType),
            (12, Some(b'x')) => (b"x-request-id", Known::XRequestId),
            (14, Some(b'c')) => (b"content-length", Known::ContentLength),
            (14, Some(b'h')) => (b"http2-settings", Known::Http2Settings),
            (15, Some(b'x')) => (b"x-forwarded-for", Known::XForwardedFor),
            (16, Some(b'c')) => (b"content-encoding", Known::ContentEncoding),
            (16, Some(b'p')) => (b"proxy-connection", Known::ProxyConnection),
            (17, Some(b't')) => (b"transfer-encoding", Known::TransferEncoding),
            (17, Some(b'x')) => (b"x-forwarded-proto", Known::XForwardedProto),
            (18, Some(b'p')) => (b"proxy-authenticate", Known::ProxyAuthenticate),
            (19, Some(b'p')) => (b"proxy-authorization", Known::ProxyAuthorization),
            _ => return Known::Other,
        };
        if name.eq_ignore_ascii_case(candidate) { known } else { Known::Other }
    }

    const fn bit(self) -> u32 {
        1 << self as u8
    }
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
    /// An empty table; it grows to at most `head_fields_max` entries.
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

    fn range(&self, (start, end): (u32, u32)) -> &'a [u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Name (as it came), value (trimmed) and which it is, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8], Known)> + use<'a> {
        let this = *self;
        this.list.iter().map(move |field| (this.range(field.name), this.range(field.value), field.known))
    }

    /// Whether a field of this name is there.
    pub fn has(&self, known: Known) -> bool {
        self.known & known.bit() != 0
    }

    /// The values of all fields of this name, in order. Costs nothing where there is none.
    pub fn known(&self, known: Known) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let this = if self.has(known) { *self } else { Fields { list: &[], ..*self } };
        this.list.iter().filter(move |field| field.known == known).map(move |field| this.range(field.value))
    }

    /// The values of all fields called `name` (lower case), in order.
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.iter().filter(move |(found, ..)| found.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value, _)| value)
    }

    /// The value of the first field called `name` (lower case).
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// A request's head whose grammar, target and Host are in order.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// As it came: methods are case-sensitive.
    pub method: &'a [u8],
    /// As it came.
    pub target: &'a [u8],
    /// Path and query to ask the engine for, whatever form the target has.
    pub path: &'a [u8],
    /// The authority of a target in absolute-form.
    pub authority: Option<&'a [u8]>,
    /// The client's version.
    pub version: Version,
    /// Bytes of the head, a skipped empty line before it and the blank line after it included.
    pub len: usize,
    /// The fields, for loops over all of them.
    pub list: Fields<'a>,
}

impl<'a> RequestHead<'a> {
    /// Names (as they came) and trimmed values, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.list.iter().map(|(name, value, _)| (name, value))
    }

    /// The value of the first field called `name` (lower case).
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.list.get(name)
    }

    /// The values of all fields called `name` (lower case).
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.list.all(name)
    }

    /// Path and query to ask the engine for.
    pub fn path(&self) -> &'a [u8] {
        self.path
    }
}

/// A reply's head whose grammar is in order.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The engine's version.
    pub version: Version,
    /// 100 to 599.
    pub status: u16,
    /// As it came, perhaps empty.
    pub reason: &'a [u8],
    /// Bytes of the head, the blank line after it included.
    pub len: usize,
    /// The fields, for loops over all of them.
    pub list: Fields<'a>,
}

impl<'a> ResponseHead<'a> {
    /// Names (as they came) and trimmed values, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.list.iter().map(|(name, value, _)| (name, value))
    }

    /// The value of the first field called `name` (lower case).
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.list.get(name)
    }

    /// The values of all fields called `name` (lower case).
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.list.all(name)
    }
}

/// Parses a request head at the start of `buf`, which may hold more than the head, or less.
pub fn parse_request<'a>(
    buf: &'a [u8],
    table: &'a mut FieldTable,
    limits: &HeadLimits,
) -> Result<Status<RequestHead<'a>>, Refusal> {
    let bytes = buf.get(..limits.head_bytes_max).unwrap_or(buf);
    let Some((line, len)) = request_lines(bytes, table, limits).map_err(Flaw::refusal)? else {
        return match bytes.len() < limits.head_bytes_max {
            true => Ok(Status::Partial),
            false => Err(Flaw::LARGE.refusal()),
        };
    };
    let list = Fields::of(bytes, table);
    let target = target::check(line.method, line.target, line.version, list.known(Known::Host))?;
    Ok(Status::Complete(RequestHead {
        method: line.method,
        target: line.target,
        path: target.path,
        authority: target.authority,
        version: line.version,
        len,
        list,
    }))
}

/// Parses a reply head at the start of `buf`, which may hold more than the head, or less.
pub fn parse_response<'a>(
    buf: &'a [u8],
    table: &'a mut FieldTable,
    limits: &HeadLimits,
) -> Result<Status<ResponseHead<'a>>, Fault> {
    let bytes = buf.get(..limits.head_bytes_max).unwrap_or(buf);
    let Some((line, len)) = reply_lines(bytes, table, limits).map_err(Flaw::fault)? else {
        return match bytes.len() < limits.head_bytes_max {
            true => Ok(Status::Partial),
            false => Err(Flaw::LARGE.fault()),
        };
    };
    let list = Fields::of(bytes, table);
    Ok(Status::Complete(ResponseHead { version: line.version, status: line.status, reason: line.reason, len, list }))
}

/// What is wrong with a head, before it is known whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Flaw {
    cause: Cause,
    pub(super) message: &'static str,
}

impl Flaw {
    const LARGE: Flaw = Flaw { cause: Cause::HeadTooLarge, message: "the head is too large" };
    const MANY: Flaw = Flaw { cause: Cause::HeadTooLarge, message: "the head has too many fields" };

    const fn head(message: &'static str) -> Flaw {
        Flaw { cause: Cause::BadHead, message }
    }

    fn refusal(self) -> Refusal {
        let status = match self.cause {
            Cause::HeadTooLarge => 431,
            Cause::BadVersion => 505,
            _ => 400,
        };
        Refusal::new(status, self.cause, self.message)
    }

    fn fault(self) -> Fault {
        Fault::new(self.cause, self.message)
    }
}

/// Nothing wrong so far, and the bytes ended.
type Parsed<T> = Result<Option<T>, Flaw>;

struct RequestLine<'a> {
    method: &'a [u8],
    target: &'a [u8],
    version: Version,
}

struct StatusLine<'a> {
    version: Version,
    status: u16,
    reason: &'a [u8],
}

fn request_lines<'a>(bytes: &'a [u8], table: &mut FieldTable, limits: &HeadLimits) -> Parsed<(RequestLine<'a>, usize)> {
    let Some((line, at)) = request_line(bytes)? else { return Ok(None) };
    Ok(parse_fields(bytes, at, table, limits.head_fields_max)?.map(|len| (line, len)))
}

/// `method SP request-target SP HTTP-version CRLF`
fn request_line(bytes: &[u8]) -> Parsed<(RequestLine<'_>, usize)> {
    // "a server [..] SHOULD ignore at least one empty line (CRLF) received prior to the request-line"
    let start = match bytes.first() {
        Some(b'\r') => match line_break(bytes, 0)? {
            Some(next) => next,
            None => return Ok(None),
        },
        _ => 0,
    };
    let method_end = class::run_end(&TOKEN, bytes, start);
    match bytes.get(method_end) {
        None => return Ok(None),
        Some(b' ') if method_end > start => {}
        Some(_) => return Err(Flaw::head("the request line does not begin with a method and one space")),
    }
    let target_start = method_end + 1;
    let target_end = class::run_end(&TARGET, bytes, target_start);
    match bytes.get(target_end) {
        None => return Ok(None),
        Some(b' ') if target_end > target_start => {}
        Some(_) => return Err(Flaw::head("the request target is not visible ASCII with one space after it")),
    }
    let version_start = target_end + 1;
    let version_end = class::value_end(bytes, version_start);
    let Some(next) = line_break(bytes, version_end)? else { return Ok(None) };
    let version = version(bytes.get(version_start..version_end).unwrap_or_default())?;
    let method = bytes.get(start..method_end).unwrap_or_default();
    let target = bytes.get(target_start..target_end).unwrap_or_default();
    Ok(Some((RequestLine { method, target, version }, next)))
}

fn reply_lines<'a>(bytes: &'a [u8], table: &mut FieldTable, limits: &HeadLimits) -> Parsed<(StatusLine<'a>, usize)> {
    let Some((line, at)) = status_line(bytes)? else { return Ok(None) };
    Ok(parse_fields(bytes, at, table, limits.head_fields_max)?.map(|len| (line, len)))
}

/// `HTTP-version SP status-code SP [ reason-phrase ] CRLF`; the last SP may be missing, as it often is.
fn status_line(bytes: &[u8]) -> Parsed<(StatusLine<'_>, usize)> {
    const START: &[u8] = b"HTTP/1.";
    let seen = bytes.len().min(START.len());
    if bytes.get(..seen) != START.get(..seen) {
        return Err(Flaw::head("not an HTTP/1 reply"));
    }
    let end = class::value_end(bytes, 0);
    let Some(next) = line_break(bytes, end)? else { return Ok(None) };
    let line = bytes.get(..end).unwrap_or_default();
    let (version_text, rest) = line.split_at_checked(8).ok_or(Flaw::head("the status line is too short"))?;
    let version = version(version_text)?;
    let status = match rest.first_chunk::<4>() {
        Some([b' ', a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9']) => {
            u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')
        }
        _ => return Err(Flaw::head("the status is not three digits from 100 to 599 after one space")),
    };
    let reason = match rest.get(4..).unwrap_or_default().split_first() {
        None => &[][..],
        Some((b' ', reason)) => reason,
        Some(_) => return Err(Flaw::head("the status is not three digits")),
    };
    Ok(Some((StatusLine { version, status, reason }, next)))
}

fn version(text: &[u8]) -> Result<Version, Flaw> {
    match text {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            Err(Flaw { cause: Cause::BadVersion, message: "only HTTP/1.1 and HTTP/1.0 are spoken here" })
        }
        _ => Err(Flaw::head("the HTTP version is malformed")),
    }
}

/// `*( field-name ":" OWS field-value OWS CRLF ) CRLF` from `at` on; gives the end of it.
pub(super) fn parse_fields(bytes: &[u8], mut at: usize, table: &mut FieldTable, fields_max: usize) -> Parsed<usize> {
    table.clear();
    loop {
        if bytes.get(at) == Some(&b'\r') {
            return line_break(bytes, at);
        }
        let name_end = class::run_end(&TOKEN, bytes, at);
        match bytes.get(name_end) {
            None => return Ok(None),
            Some(b':') if name_end > at => {}
            Some(b' ' | b'\t') if name_end == at => return Err(Flaw::head("a field line is folded")),
            Some(b' ' | b'\t') => return Err(Flaw::head("a blank stands before the colon of a field")),
            Some(_) => return Err(Flaw::head("a field name is not a token with a colon after it")),
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
            return Err(Flaw::MANY);
        }
        let known = Known::of(bytes.get(at..name_end).unwrap_or_default());
        table.known |= known.bit();
        // Heads are far shorter than 4 GiB: their limit is a few dozen KiB.
        let name = (at as u32, name_end as u32);
        table.fields.push(Field { name, value: (value_start as u32, value_end as u32), known });
        at = next;
    }
}

/// CRLF at `at`, and nothing else that anyone could take for a line end.
fn line_break(bytes: &[u8], at: usize) -> Parsed<usize> {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some(at + 2)),
        (Some(b'\r'), None) | (None, _) => Ok(None),
        (Some(b'\r'), _) => Err(Flaw::head("a CR without its LF")),
        (Some(b'\n'), _) => Err(Flaw::head("an LF without its CR")),
        _ => Err(Flaw::head("a control character")),
    }
}
