//! Parses heads (RFC 9112 sections 2 to 4), in one pass over the bytes, strictly: what one parser forgives, the next
//! one reads differently. Field lines are in [`super::fields`].
//!
//! A head that is not all there yet is [`Status::Partial`]: parse again when more has come. Each verdict depends only
//! on the bytes up to the first that decides it, so that cutting the input elsewhere never changes it.

use super::class;
use super::fields::{FieldTable, Fields, Known, LARGE, Parsed, bad_head, line_break, parse_fields};
use super::reply::{Cause, Fault, Refusal};
use super::target;
use crate::limits::{Limits, REPLY_HEAD_BYTES_MAX};

/// For a request; replies have more room.
const TOO_LARGE: Fault = Fault::new(LARGE.cause, "the head is too large (limits.head_bytes_max)");

/// The first byte of TLS's handshake, which begins no method.
const TLS: u8 = 0x16;
/// The beginning of version 2 of the PROXY protocol; version 1 begins with a word.
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const PROXY_V1: &[u8] = b"PROXY";
const PROXY: Fault = Fault::new(
    Cause::OtherProtocol,
    "a PROXY protocol header: that is not spoken here, and the proxy before this server has to leave it out",
);

/// The outcome of parsing bytes that may be only the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status<T> {
    /// All of it was there.
    Complete(T),
    /// So far nothing is wrong, but the end is missing.
    Partial,
}

/// The HTTP versions that are spoken here.
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
    /// Makes the bounds of replies' heads.
    pub fn of_replies(limits: &Limits) -> HeadLimits {
        HeadLimits { head_bytes_max: limits.head_bytes_max.max(REPLY_HEAD_BYTES_MAX), ..HeadLimits::from(limits) }
    }
}

/// A request's head whose grammar, target and Host are in order.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method as it came: methods are case-sensitive.
    pub method: &'a [u8],
    /// As it came.
    pub target: &'a [u8],
    /// Path and query to ask the engine for, whatever the target's form.
    pub path: &'a [u8],
    /// The authority of a target in absolute-form.
    pub authority: Option<&'a [u8]>,
    /// The client's version.
    pub version: Version,
    /// Bytes of the head, with a skipped empty line before it and the blank line after it.
    pub len: usize,
    /// The fields.
    pub fields: Fields<'a>,
}

/// A reply's head whose grammar is in order.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The engine's version.
    pub version: Version,
    /// 100 to 599.
    pub status: u16,
    /// The reason phrase as it came, perhaps empty.
    pub reason: &'a [u8],
    /// Bytes of the head, with the blank line after it.
    pub len: usize,
    /// The fields.
    pub fields: Fields<'a>,
}

/// Parses a request head at the start of `buf`, which may have more bytes than the head, or fewer.
pub fn parse_request<'a>(
    buf: &'a [u8],
    table: &'a mut FieldTable,
    limits: &HeadLimits,
) -> Result<Status<RequestHead<'a>>, Refusal> {
    let bytes = buf.get(..limits.head_bytes_max).unwrap_or(buf);
    let Some((line, len)) = request_lines(bytes, table, limits).map_err(Fault::refusal)? else {
        return match bytes.len() < limits.head_bytes_max {
            true => Ok(Status::Partial),
            false => Err(TOO_LARGE.refusal()),
        };
    };
    let fields = Fields::of(bytes, table);
    let target = target::check(line.method, line.target, line.version, fields.known(Known::Host))?;
    Ok(Status::Complete(RequestHead {
        method: line.method,
        target: line.target,
        path: target.path,
        authority: target.authority,
        version: line.version,
        len,
        fields,
    }))
}

/// Parses a reply head at the start of `buf`, which may have more bytes than the head, or fewer.
pub fn parse_response<'a>(
    buf: &'a [u8],
    table: &'a mut FieldTable,
    limits: &HeadLimits,
) -> Result<Status<ResponseHead<'a>>, Fault> {
    let bytes = buf.get(..limits.head_bytes_max).unwrap_or(buf);
    let Some((line, len)) = reply_lines(bytes, table, limits)? else {
        return match bytes.len() < limits.head_bytes_max {
            true => Ok(Status::Partial),
            false => Err(LARGE),
        };
    };
    let fields = Fields::of(bytes, table);
    let StatusLine { version, status, reason } = line;
    Ok(Status::Complete(ResponseHead { version, status, reason, len, fields }))
}

/// Returns method and target of an incomplete or broken request, as far as they are there: no answer to HEAD has a
/// body, and neither has a refusal (RFC 9110, 9.3.2), and each API has errors of its own.
pub fn method_and_target(bytes: &[u8]) -> (&[u8], &[u8]) {
    let line = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
    let (method, rest) = line.split_at(class::token_end(line, 0).min(line.len()));
    let target = rest.strip_prefix(b" ").unwrap_or_default();
    (method, target.get(..class::target_end(target, 0)).unwrap_or_default())
}

/// Returns method and path, without its query, of a request whose request line is complete, whatever is wrong with the
/// rest. It is for a log, into which no bytes may come that are not certainly a head's. If the target has another form
/// than `/…`, which may contain a password (RFC 9110, 4.2.4), the path is empty.
pub fn method_and_path(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (line, _) = request_line(bytes).ok().flatten()?;
    let path = Some(line.target).filter(|target| target.starts_with(b"/")).map(super::without_query);
    Some((line.method, path.unwrap_or_default()))
}

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

/// Parses `method SP request-target SP HTTP-version CRLF`.
fn request_line(bytes: &[u8]) -> Parsed<(RequestLine<'_>, usize)> {
    // "a server [..] SHOULD ignore at least one empty line (CRLF) received prior to the request-line"
    let start = match bytes.first() {
        Some(b'\r') => match line_break(bytes, 0)? {
            Some(next) => next,
            None => return Ok(None),
        },
        _ => 0,
    };
    let method_end = class::token_end(bytes, start);
    let method = bytes.get(start..method_end).unwrap_or_default();
    match bytes.get(method_end) {
        None => return Ok(None),
        Some(b' ') if !method.is_empty() => {}
        Some(_) => return no_method(bytes),
    }
    let or_proxy = |fault| if method == PROXY_V1 { PROXY } else { fault };
    let target_start = method_end + 1;
    let target_end = class::target_end(bytes, target_start);
    match bytes.get(target_end) {
        None => return Ok(None),
        Some(b' ') if target_end > target_start => {}
        Some(_) => return Err(or_proxy(bad_head("the request target is not visible ASCII with one space after it"))),
    }
    let version_start = target_end + 1;
    let version_end = class::value_end(bytes, version_start);
    let Some(next) = line_break(bytes, version_end)? else { return Ok(None) };
    let version = version(bytes.get(version_start..version_end).unwrap_or_default()).map_err(or_proxy)?;
    let target = bytes.get(target_start..target_end).unwrap_or_default();
    Ok(Some((RequestLine { method, target, version }, next)))
}

/// Names the other protocol that bytes without a method may belong to, for a client that speaks it. While they may be
/// the beginning of the PROXY protocol, more bytes are waited for.
#[cold]
fn no_method<T>(bytes: &[u8]) -> Parsed<T> {
    let seen = bytes.len().min(PROXY_V2.len());
    match bytes {
        [TLS, ..] => Err(Fault::new(Cause::OtherProtocol, "this looks like TLS: this port speaks plain HTTP")),
        _ if bytes.get(..seen) != PROXY_V2.get(..seen) => {
            Err(bad_head("the request line does not begin with a method and one space"))
        }
        _ if seen < PROXY_V2.len() => Ok(None),
        _ => Err(PROXY),
    }
}

fn reply_lines<'a>(bytes: &'a [u8], table: &mut FieldTable, limits: &HeadLimits) -> Parsed<(StatusLine<'a>, usize)> {
    let Some((line, at)) = status_line(bytes)? else { return Ok(None) };
    Ok(parse_fields(bytes, at, table, limits.head_fields_max)?.map(|len| (line, len)))
}

/// Parses `HTTP-version SP status-code SP [ reason-phrase ] CRLF`; the last SP may be missing, as it often is.
fn status_line(bytes: &[u8]) -> Parsed<(StatusLine<'_>, usize)> {
    const START: &[u8] = b"HTTP/1.";
    let seen = bytes.len().min(START.len());
    if bytes.get(..seen) != START.get(..seen) {
        return Err(bad_head("not an HTTP/1 reply"));
    }
    let end = class::value_end(bytes, 0);
    let Some(next) = line_break(bytes, end)? else { return Ok(None) };
    let line = bytes.get(..end).unwrap_or_default();
    let (version_text, rest) = line.split_at_checked(8).ok_or(bad_head("the status line is too short"))?;
    let version = version(version_text)?;
    let status = match rest.first_chunk::<4>() {
        Some([b' ', a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9']) => {
            u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')
        }
        _ => return Err(bad_head("the status is not three digits from 100 to 599 after one space")),
    };
    let reason = match rest.get(4..).unwrap_or_default().split_first() {
        None => &[][..],
        Some((b' ', reason)) => reason,
        Some(_) => return Err(bad_head("the status is not three digits")),
    };
    Ok(Some((StatusLine { version, status, reason }, next)))
}

fn version(text: &[u8]) -> Result<Version, Fault> {
    match text {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            Err(Fault::new(Cause::BadVersion, "only HTTP/1.1 and HTTP/1.0 are spoken here"))
        }
        _ => Err(bad_head("the HTTP version is malformed")),
    }
}
