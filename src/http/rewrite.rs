//! Writes heads that are sent on: start line and framing from what was parsed, end-to-end fields as they came, without
//! the fields of the connection.

use std::io::Write;
use std::net::IpAddr;

use super::class::{self, TARGET, VALUE, is, is_token, list};
use super::digits::write_decimal;
use super::fields::{Fields, Known};
use super::framing::{BodyLength, ReplyFraming, RequestFraming, is_end_to_end, offered_protocol};
use super::head::{RequestHead, ResponseHead, Version};

/// The field that tells a client, if it asked for that, why its endpoint was chosen.
pub const EXPLAIN_FIELD: &[u8] = b"x-warmfront-explain";

/// The field that tells an engine which of its data-parallel ranks is to serve a request, in lower case.
pub const RANK_FIELD: &[u8] = b"x-data-parallel-rank";

/// What the front adds to a request.
#[derive(Clone, Copy, Debug)]
pub struct Added<'a> {
    /// An id made here, of bytes that a field may have; `None`: the client sent a usable one ([`request_id`]), which is
    /// kept.
    pub request_id: Option<&'a [u8]>,
    /// The client's address, appended to `X-Forwarded-For`.
    pub client_ip: IpAddr,
    /// `http` or `https`, added if no `X-Forwarded-Proto` came.
    pub proto: &'a str,
    /// Whether its `x-warmfront-priority` is passed on, to another front behind this one.
    pub priority: bool,
}

/// What a reply's head depends on in its request and client.
#[derive(Clone, Copy, Debug)]
pub struct ToClient<'a> {
    /// The version of the request.
    pub version: Version,
    /// Whether the client asked for another request on this connection, and may have it.
    pub keep_alive: bool,
    /// Whether the request was HEAD.
    pub head_request: bool,
    /// The value of `x-request-id` if the reply has none, of bytes that a field may have.
    pub request_id: Option<&'a [u8]>,
    /// The value of [`EXPLAIN_FIELD`], if any.
    pub explain: Option<&'a [u8]>,
}

/// How the body of a reply is written to the client, and what becomes of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The form of the body.
    pub body: Form,
    /// Whether the connection stays open after it.
    pub keep_alive: bool,
}

/// The form of a body on its way to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// There is no body.
    Nothing,
    /// Parts that may be passed on, as they are, and what takes the place of those that may not.
    AsItComes,
    /// The data of the parts, with a [`super::SizeLine`] before and CRLF after, and the last chunk at the end.
    Chunks,
    /// Only the data of the parts; closing the connection ends it.
    Bare,
}

/// Appends the head of a client's request as an engine gets it.
pub fn request(head: &RequestHead, framing: &RequestFraming, added: &Added, out: &mut Vec<u8>) {
    // The additions are short compared with what came: one reservation is enough.
    out.reserve(head.len + 256);
    out.extend_from_slice(head.method);
    out.push(b' ');
    out.extend_from_slice(head.path);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if !head.fields.has(Known::Host) {
        // RFC 9112 section 3.2: without a known authority the value is empty, but the field is there.
        write_field(out, b"host", head.authority.unwrap_or_default());
    }
    copy_fields(&head.fields, out, |known| match known {
        // A client's question about the choice is for this front, and not for another behind it.
        Known::Expect | Known::XForwardedFor | Known::XWarmfrontExplain => Passes::Not,
        Known::XWarmfrontPriority if !added.priority => Passes::Not,
        Known::XRequestId if added.request_id.is_some() => Passes::Not,
        Known::XRequestId | Known::XForwardedProto => Passes::Always,
        _ => Passes::UnlessNamed,
    });
    if let Some(id) = added.request_id {
        copy_field(out, b"x-request-id", id);
    }
    write_forwarded(&head.fields, added, out);
    write_length(out, framing.body);
    if framing.upgrade {
        write_upgrade(out, offered_protocol(&head.fields));
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the head of a reply as the client gets it, and returns how its body has to follow. An interim reply has no
/// body and is never sent to an HTTP/1.0 client: then nothing is appended.
pub fn reply(head: &ResponseHead, framing: &ReplyFraming, to: &ToClient, out: &mut Vec<u8>) -> Delivery {
    if framing.interim && to.version == Version::Http10 {
        return Delivery { body: Form::Nothing, keep_alive: to.keep_alive };
    }
    let delivery = delivery(framing, to);
    out.reserve(head.len + 256);
    out.extend_from_slice(b"HTTP/1.1 ");
    write_decimal(out, u64::from(head.status));
    out.push(b' ');
    out.extend_from_slice(head.reason);
    out.extend_from_slice(b"\r\n");
    copy_fields(&head.fields, out, |known| match known {
        // A front behind this one tells its choices to those that it believes; this client may not be among them.
        Known::XWarmfrontExplain => Passes::Not,
        _ => Passes::UnlessNamed,
    });
    if framing.interim {
        out.extend_from_slice(b"\r\n");
        return delivery;
    }
    if let Some(id) = to.request_id.filter(|_| !head.fields.has(Known::XRequestId)) {
        copy_field(out, b"x-request-id", id);
    }
    if let Some(text) = to.explain {
        write_field(out, EXPLAIN_FIELD, text);
    }
    match delivery.body {
        Form::Chunks => write_length(out, BodyLength::Chunked),
        Form::AsItComes => write_length(out, framing.body),
        Form::Bare => {}
        Form::Nothing => {
            // The length that a GET would have been given, or that the cached body has.
            if let Some(length) = framing.announced {
                write_length(out, BodyLength::Length(length));
            }
        }
    }
    if framing.switching {
        write_upgrade(out, head.fields.known(Known::Upgrade).next());
    } else {
        write_connection(out, to.version, delivery.keep_alive);
    }
    out.extend_from_slice(b"\r\n");
    delivery
}

/// Chooses the form of the body: without a length it is sent in chunks to a client that knows them, else until the
/// close.
fn delivery(framing: &ReplyFraming, to: &ToClient) -> Delivery {
    let body = match (framing.body, to.version) {
        _ if to.head_request => Form::Nothing,
        (BodyLength::None, _) => Form::Nothing,
        (BodyLength::Length(_), _) | (BodyLength::Chunked, Version::Http11) => Form::AsItComes,
        (BodyLength::UntilClose, Version::Http11) => Form::Chunks,
        (BodyLength::Chunked | BodyLength::UntilClose, Version::Http10) => Form::Bare,
    };
    Delivery { body, keep_alive: to.keep_alive && body != Form::Bare && !framing.switching }
}

/// Whether a field always ends at this hop, or is written anew.
fn is_of_connection(known: Known) -> bool {
    matches!(
        known,
        Known::Connection
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::ProxyAuthenticate
            | Known::ProxyAuthorization
            | Known::Te
            | Known::Trailer
            | Known::TransferEncoding
            | Known::Upgrade
            | Known::Http2Settings
            | Known::ContentLength
    )
}

/// The fields that Connection names and that thereby end at this hop.
struct Named<'a>(Option<Fields<'a>>);

impl<'a> Named<'a> {
    fn of(fields: &Fields<'a>) -> Named<'a> {
        // Nearly every list is `close` or `keep-alive`; only other lists are searched for each field.
        let plain = |option: &[u8]| option.eq_ignore_ascii_case(b"close") || option.eq_ignore_ascii_case(b"keep-alive");
        let others = fields.known(Known::Connection).flat_map(list).any(|option| !plain(option));
        Named(others.then_some(*fields))
    }

    fn holds(&self, name: &[u8]) -> bool {
        let Some(fields) = &self.0 else { return false };
        !is_end_to_end(name)
            && fields.known(Known::Connection).flat_map(list).any(|option| option.eq_ignore_ascii_case(name))
    }
}

/// Writes `X-Forwarded-For`: all that came, in one line, and the client. Writes `X-Forwarded-Proto` if none came.
fn write_forwarded(fields: &Fields, added: &Added, out: &mut Vec<u8>) {
    out.extend_from_slice(b"x-forwarded-for: ");
    for value in fields.known(Known::XForwardedFor).filter(|value| !value.is_empty()) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    write_ip(out, added.client_ip.to_canonical());
    out.extend_from_slice(b"\r\n");
    if !fields.has(Known::XForwardedProto) {
        copy_field(out, b"x-forwarded-proto", added.proto.as_bytes());
    }
}

/// Writes an address as text. With the formatter an IPv4 address would take a fifth of the time of a head's other work.
fn write_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            for (place, octet) in ip.octets().into_iter().enumerate() {
                if place > 0 {
                    out.push(b'.');
                }
                write_decimal(out, u64::from(octet));
            }
        }
        // Writing to a Vec does not fail.
        IpAddr::V6(ip) => drop(write!(out, "{ip}")),
    }
}

fn write_length(out: &mut Vec<u8>, body: BodyLength) {
    match body {
        BodyLength::None | BodyLength::UntilClose => {}
        BodyLength::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        BodyLength::Length(length) => {
            out.extend_from_slice(b"content-length: ");
            write_decimal(out, length);
            out.extend_from_slice(b"\r\n");
        }
    }
}

fn write_upgrade(out: &mut Vec<u8>, protocol: Option<&[u8]>) {
    out.extend_from_slice(b"connection: Upgrade\r\n");
    write_field(out, b"upgrade", protocol.unwrap_or_default());
}

/// Writes `Connection`, if the client would assume otherwise without it.
pub(super) fn write_connection(out: &mut Vec<u8>, version: Version, keep_alive: bool) {
    match (version, keep_alive) {
        (_, false) => out.extend_from_slice(b"connection: close\r\n"),
        (Version::Http10, true) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (Version::Http11, true) => {}
    }
}

/// Whether a field is passed on.
enum Passes {
    Not,
    Always,
    /// It is, unless it is a field of the connection, or Connection names it.
    UnlessNamed,
}

/// Appends the fields that are passed on; successive lines that are written as we write them are copied in one piece.
fn copy_fields(fields: &Fields, out: &mut Vec<u8>, passes: impl Fn(Known) -> Passes) {
    let named = Named::of(fields);
    let mut run = (0, 0);
    for line in fields.lines() {
        let goes_on = match passes(line.known()) {
            Passes::Always => true,
            Passes::UnlessNamed => !is_of_connection(line.known()) && !named.holds(line.name()),
            Passes::Not => false,
        };
        match line.plain().filter(|_| goes_on) {
            Some((start, end)) if start == run.1 => run.1 = end,
            plain => {
                out.extend_from_slice(fields.range(run));
                run = plain.unwrap_or_default();
                if goes_on && plain.is_none() {
                    copy_field(out, line.name(), line.value());
                }
            }
        }
    }
    out.extend_from_slice(fields.range(run));
}

/// Appends a field whose bytes were checked, or are our own.
fn copy_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    debug_assert!(is_token(name) && class::value_end(value, 0) == value.len());
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends one field line. Bytes that a value may not have become blanks, so that no value, wherever it is from, can
/// end its line; a field whose name is no token is left out.
pub fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if !is_token(name) {
        return;
    }
    if class::value_end(value, 0) == value.len() {
        return copy_field(out, name, value);
    }
    let clean: Vec<u8> = value.iter().map(|&byte| if is(&VALUE, byte) { byte } else { b' ' }).collect();
    copy_field(out, name, &clean);
}

/// Returns the id that the client gave to its request, if it gave a usable one.
pub fn request_id<'a>(head: &RequestHead<'a>) -> Option<&'a [u8]> {
    let mut values = head.fields.known(Known::XRequestId);
    match (values.next(), values.next()) {
        (Some(value), None) if usable_request_id(value) => Some(value),
        _ => None,
    }
}

/// Whether an id is 1 to 128 bytes of visible ASCII.
pub fn usable_request_id(value: &[u8]) -> bool {
    (1..=128).contains(&value.len()) && class::all(&TARGET, value)
}
