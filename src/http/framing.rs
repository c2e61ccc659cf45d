//! How long a message is, and what becomes of its connection: RFC 9112 sections 6 and 9, in their order. If the RFC
//! leaves a choice between repairing and refusing, this refuses.

use super::digits::decimal;

use super::class::{is_token, list};
use super::fields::{Fields, Known};
use super::head::{RequestHead, ResponseHead, Version};
use super::reply::{Cause, Fault, Refusal};

/// Where the body of a message ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyLength {
    /// There is no body.
    None,
    /// After this many bytes.
    Length(u64),
    /// With the last chunk and its trailer section.
    Chunked,
    /// With the connection. Only replies end so.
    UntilClose,
}

impl BodyLength {
    /// Whether the body certainly has no bytes.
    pub fn is_empty(self) -> bool {
        matches!(self, BodyLength::None | BodyLength::Length(0))
    }
}

/// What the fields of a request say about itself and its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestFraming {
    /// Where its body ends.
    pub body: BodyLength,
    /// Whether the client wants to send another request on this connection.
    pub keep_alive: bool,
    /// Whether the client waits for 100 (Continue) before it sends its body.
    pub expect_continue: bool,
    /// Whether the client asks for another protocol.
    pub upgrade: bool,
    /// Whether the method is HEAD: the reply then has no body, whatever its fields say.
    pub head_method: bool,
}

/// What the fields of a reply say about itself and its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyFraming {
    /// Where its body ends.
    pub body: BodyLength,
    /// The length that Content-Length announces for a body, also for one that is not sent (HEAD, 304).
    pub announced: Option<u64>,
    /// Whether the engine allows another request on this connection.
    pub keep_alive: bool,
    /// Whether it is 1xx other than 101: the final reply follows.
    pub interim: bool,
    /// Whether it is 101: another protocol follows.
    pub switching: bool,
    /// Whether the body is server-sent events, not encoded.
    pub event_stream: bool,
    /// Whether the body is JSON, not encoded.
    pub json: bool,
}

/// Judges a request.
pub fn request(head: &RequestHead) -> Result<RequestFraming, Refusal> {
    let fields = &head.fields;
    let body = request_body(fields, head.version)?;
    let connection = Connection::of(fields).map_err(|message| Refusal::new(400, Cause::BadField, message))?;
    if connection.essential {
        return Err(Refusal::new(400, Cause::BadField, "Connection names a field that is not of the connection"));
    }
    let expect_continue =
        expectation(fields, head.version)? && !matches!(body, BodyLength::None | BodyLength::Length(0));
    let upgrade =
        connection.upgrade && head.version == Version::Http11 && body.is_empty() && offered_protocol(fields).is_some();
    Ok(RequestFraming {
        body,
        keep_alive: connection.persists(head.version),
        expect_continue,
        upgrade,
        head_method: head.method == b"HEAD",
    })
}

/// Finds where a request's body ends: RFC 9112 section 6.3, the rules for requests.
fn request_body(fields: &Fields, version: Version) -> Result<BodyLength, Refusal> {
    let refuse = |message| Err(Refusal::new(400, Cause::BadFraming, message));
    if fields.has(Known::TransferEncoding) {
        // 6.1: "A server or client that receives an HTTP/1.0 message containing a Transfer-Encoding
        // header field MUST treat the message as if the framing is faulty"
        if version == Version::Http10 {
            return refuse("Transfer-Encoding in an HTTP/1.0 request");
        }
        // Rule 3: "Such a message might indicate an attempt to perform request smuggling [..] and ought to
        // be handled as an error."
        if fields.has(Known::ContentLength) {
            return refuse("both Transfer-Encoding and Content-Length");
        }
        // Rule 4: "If a Transfer-Encoding header field is present in a request and the chunked transfer
        // coding is not the final encoding, the message body length cannot be determined reliably; the
        // server MUST respond with the 400 (Bad Request) status code and then close the connection."
        return match coding(fields) {
            Coding::Chunked => Ok(BodyLength::Chunked),
            Coding::Unclear => refuse("Transfer-Encoding is not chunked, once"),
            // 6.1: "A server that receives a request message with a transfer coding it does not
            // understand SHOULD respond with 501 (Not Implemented)."
            Coding::Unknown => Err(Refusal::new(501, Cause::BadFraming, "a transfer coding other than chunked")),
        };
    }
    // Rule 5: "If a message is received without Transfer-Encoding and with an invalid Content-Length
    // header field, then the message framing is invalid and the recipient MUST treat it as an
    // unrecoverable error". The exception for equal repeated values is not made.
    match content_length(fields) {
        // Rule 7: "If this is a request message and none of the above are true, then the message body
        // length is zero (no message body is present)."
        Ok(None) => Ok(BodyLength::None),
        // Rule 6: "If a valid Content-Length header field is present without Transfer-Encoding, its
        // decimal value defines the expected message body length in octets."
        Ok(Some(length)) => Ok(BodyLength::Length(length)),
        Err(message) => refuse(message),
    }
}

/// Judges a reply to a request with the framing `asked`.
pub fn reply(head: &ResponseHead, asked: &RequestFraming) -> Result<ReplyFraming, Fault> {
    let fields = &head.fields;
    let connection = Connection::of(fields).map_err(|message| Fault::new(Cause::BadHead, message))?;
    let switching = head.status == 101;
    if switching && !(asked.upgrade && connection.upgrade && fields.has(Known::Upgrade)) {
        return Err(Fault::new(Cause::BadSwitch, "101 that was not asked for"));
    }
    let (body, announced) = reply_body(head, asked)?;
    let media_type = media_type(fields);
    Ok(ReplyFraming {
        body,
        announced,
        keep_alive: connection.persists(head.version) && body != BodyLength::UntilClose && !switching,
        interim: head.status < 200 && !switching,
        switching,
        event_stream: media_type == MediaType::Events,
        json: media_type == MediaType::Json,
    })
}

/// Finds where a reply's body ends, and the announced length: RFC 9112 section 6.3, the rules for replies.
fn reply_body(head: &ResponseHead, asked: &RequestFraming) -> Result<(BodyLength, Option<u64>), Fault> {
    let fault = |message| Fault::new(Cause::BadFraming, message);
    let fields = &head.fields;
    let coded = fields.has(Known::TransferEncoding);
    let length = content_length(fields).map_err(fault)?;
    // The same contradictions are faults as in requests: an engine, or whatever answers in its place, is not trusted.
    if coded {
        if head.version == Version::Http10 {
            return Err(fault("Transfer-Encoding in an HTTP/1.0 reply"));
        }
        if length.is_some() {
            return Err(fault("both Transfer-Encoding and Content-Length in a reply"));
        }
        if coding(fields) != Coding::Chunked {
            return Err(fault("Transfer-Encoding of a reply is not chunked, once"));
        }
    }
    // 6.1 and RFC 9110 section 8.6: "A server MUST NOT send a Transfer-Encoding / Content-Length header
    // field in any response with a status code of 1xx (Informational) or 204 (No Content)."
    // Some servers write the length that there is, none, which no reader can take for another; it is not passed on.
    let told = length.filter(|length| *length > 0 || head.status != 204);
    if (head.status < 200 || head.status == 204) && (coded || told.is_some()) {
        return Err(fault("a length in a reply that has no body"));
    }
    // Rule 1: "Any response to a HEAD request and any response with a 1xx (Informational), 204 (No
    // Content), or 304 (Not Modified) status code is always terminated by the first empty line after
    // the header fields".
    if asked.head_method || head.status < 200 || matches!(head.status, 204 | 304) {
        return Ok((BodyLength::None, told));
    }
    Ok(match (coded, length) {
        // Rule 4: chunked.
        (true, _) => (BodyLength::Chunked, None),
        // Rule 6: a valid Content-Length.
        (false, Some(length)) => (BodyLength::Length(length), Some(length)),
        // Rule 8: "Otherwise, this is a response message without a declared message body length, so the
        // message body length is determined by the number of octets received prior to the server
        // closing the connection."
        (false, None) => (BodyLength::UntilClose, None),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    Chunked,
    Unknown,
    Unclear,
}

/// Reads Transfer-Encoding: exactly `chunked` in one field, one well-formed list with another coding, or neither.
fn coding(fields: &Fields) -> Coding {
    let mut values = fields.known(Known::TransferEncoding);
    let (Some(value), None) = (values.next(), values.next()) else { return Coding::Unclear };
    if value.eq_ignore_ascii_case(b"chunked") {
        return Coding::Chunked;
    }
    // A list is clear if its codings are tokens and chunked is at most once in it, at the end.
    let mut chunked = 0;
    for element in list(value) {
        if !is_token(element) || chunked > 0 {
            return Coding::Unclear;
        }
        chunked += usize::from(element.eq_ignore_ascii_case(b"chunked"));
    }
    Coding::Unknown
}

/// Reads Content-Length: one field, `1*DIGIT`.
fn content_length(fields: &Fields) -> Result<Option<u64>, &'static str> {
    let mut values = fields.known(Known::ContentLength);
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => decimal(value).map(Some).ok_or("Content-Length is not a number of bytes"),
        (Some(_), Some(_)) => Err("more than one Content-Length"),
    }
}

/// Reads Expect (RFC 9110 section 10.1.1): `100-continue` and nothing else; an HTTP/1.0 client cannot expect it.
fn expectation(fields: &Fields, version: Version) -> Result<bool, Refusal> {
    let mut values = fields.known(Known::Expect);
    match (values.next(), values.next()) {
        // The list may be empty, and then expects nothing.
        (None, _) | (Some(b""), None) => Ok(false),
        (Some(value), None) if value.eq_ignore_ascii_case(b"100-continue") => Ok(version == Version::Http11),
        _ => Err(Refusal::new(417, Cause::BadField, "an expectation other than 100-continue")),
    }
}

/// Returns the protocol that a client offers to switch to. Offers of other versions of HTTP itself and of TLS are not
/// passed on: requests in such a tunnel would pass the front unseen.
pub fn offered_protocol<'a>(fields: &Fields<'a>) -> Option<&'a [u8]> {
    let mut values = fields.known(Known::Upgrade);
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let name = value.split(|&byte| byte == b'/').next().unwrap_or_default();
    let version = value.get(name.len() + 1..);
    let refused: [&[u8]; 4] = [b"h2", b"h2c", b"http", b"tls"];
    let hidden = refused.iter().any(|refused| name.eq_ignore_ascii_case(refused));
    (!hidden && is_token(name) && version.is_none_or(is_token)).then_some(value)
}

/// Most options of a Connection list: each field of a head is looked for among them.
const CONNECTION_OPTIONS_MAX: usize = 32;

/// What the Connection fields of a message say.
#[derive(Clone, Copy, Default)]
struct Connection {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    /// An end-to-end field is named, as if to have it removed.
    essential: bool,
}

impl Connection {
    fn of(fields: &Fields) -> Result<Connection, &'static str> {
        let mut connection = Connection::default();
        for (place, option) in fields.known(Known::Connection).flat_map(list).enumerate() {
            if place >= CONNECTION_OPTIONS_MAX {
                return Err("Connection lists too many options");
            }
            match option {
                b"" => {}
                _ if option.eq_ignore_ascii_case(b"close") => connection.close = true,
                _ if option.eq_ignore_ascii_case(b"keep-alive") => connection.keep_alive = true,
                _ if option.eq_ignore_ascii_case(b"upgrade") => connection.upgrade = true,
                _ if !is_token(option) => return Err("Connection is not a list of tokens"),
                _ => connection.essential |= is_end_to_end(option),
            }
        }
        Ok(connection)
    }

    /// Whether the connection persists after this message (RFC 9112 section 9.3).
    fn persists(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }
}

/// Whether a field cannot be taken out by a Connection list: without it the message would mean something else, to the
/// engine or to a proxy before it.
pub fn is_end_to_end(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 17] = [
        b"accept",
        b"api-key",
        b"authorization",
        b"cache-control",
        b"content-encoding",
        b"content-length",
        b"content-range",
        b"content-type",
        b"cookie",
        b"date",
        b"expect",
        b"forwarded",
        b"host",
        b"location",
        b"set-cookie",
        b"x-api-key",
        b"x-request-id",
    ];
    let forwarded: &[u8] = b"x-forwarded-";
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
        || name.get(..forwarded.len()).is_some_and(|start| start.eq_ignore_ascii_case(forwarded))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MediaType {
    Events,
    Json,
    Opaque,
}

/// Returns the kind of a body's bytes, if they can be read as they are.
fn media_type(fields: &Fields) -> MediaType {
    if fields.is_encoded() {
        return MediaType::Opaque;
    }
    let value = fields.known(Known::ContentType).next().unwrap_or_default();
    // As most engines write it.
    if value == b"application/json" {
        return MediaType::Json;
    }
    let essence = super::class::trim(value.split(|&byte| byte == b';').next().unwrap_or_default());
    if essence.eq_ignore_ascii_case(b"text/event-stream") {
        MediaType::Events
    } else if essence.eq_ignore_ascii_case(b"application/json") {
        MediaType::Json
    } else {
        MediaType::Opaque
    }
}
