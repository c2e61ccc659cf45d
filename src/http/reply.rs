//! Answers of our own, in the shape of vLLM's errors, and the two verdicts on bytes that break the rules: a [`Fault`]
//! says what is wrong with them, a client's or an engine's, a [`Refusal`] answers the client.

use super::chunk::SizeLine;
use super::digits::write_decimal;
use super::rewrite::{ToClient, write_connection, write_field};
use super::shape::{self, Shape};

/// Why an exchange went wrong: the label of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Cause {
    /// Start line or fields break the grammar.
    BadHead,
    /// The peer speaks another protocol than HTTP.
    OtherProtocol,
    /// The request target is not one that we serve, or contradicts Host.
    BadTarget,
    /// Host is missing, repeated or malformed.
    BadHost,
    /// The version is neither HTTP/1.0 nor HTTP/1.1.
    BadVersion,
    /// The head has too many bytes or fields.
    HeadTooLarge,
    /// The length of the body is not given in one clear way.
    BadFraming,
    /// A field has a forbidden value: an unknown expectation, a Connection list with end-to-end fields.
    BadField,
    /// A chunked body breaks the grammar.
    BadChunk,
    /// A chunked body's trailer section breaks the grammar or a bound.
    BadTrailers,
    /// The body is longer than allowed.
    BodyTooLarge,
    /// The connection closed before the end of the message.
    EarlyEnd,
    /// The engine sent 101 without having been asked.
    BadSwitch,
    /// The client was too slow.
    ClientTimeout,
    /// The engine was too slow.
    EngineTimeout,
    /// No endpoint could be connected to.
    Unreachable,
    /// Nothing serves the request's model.
    UnknownModel,
    /// No engine had room for the request in time: the queue was full, or it was pushed out of it, or waited too long.
    Shed,
    /// Every engine has as many requests as it may have.
    AllAtCap,
    /// Request bodies hold as much memory as they may.
    OverBudget,
    /// No descriptor was left for a connection to an engine.
    NoDescriptor,
}

impl Cause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Cause; 21] = [
        Cause::BadHead,
        Cause::OtherProtocol,
        Cause::BadTarget,
        Cause::BadHost,
        Cause::BadVersion,
        Cause::HeadTooLarge,
        Cause::BadFraming,
        Cause::BadField,
        Cause::BadChunk,
        Cause::BadTrailers,
        Cause::BodyTooLarge,
        Cause::EarlyEnd,
        Cause::BadSwitch,
        Cause::ClientTimeout,
        Cause::EngineTimeout,
        Cause::Unreachable,
        Cause::UnknownModel,
        Cause::Shed,
        Cause::AllAtCap,
        Cause::OverBudget,
        Cause::NoDescriptor,
    ];

    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::BadHead => "bad_head",
            Cause::OtherProtocol => "other_protocol",
            Cause::BadTarget => "bad_target",
            Cause::BadHost => "bad_host",
            Cause::BadVersion => "bad_version",
            Cause::HeadTooLarge => "head_too_large",
            Cause::BadFraming => "bad_framing",
            Cause::BadField => "bad_field",
            Cause::BadChunk => "bad_chunk",
            Cause::BadTrailers => "bad_trailers",
            Cause::BodyTooLarge => "body_too_large",
            Cause::EarlyEnd => "early_end",
            Cause::BadSwitch => "bad_switch",
            Cause::ClientTimeout => "client_timeout",
            Cause::EngineTimeout => "engine_timeout",
            Cause::Unreachable => "unreachable",
            Cause::UnknownModel => "unknown_model",
            Cause::Shed => "shed",
            Cause::AllAtCap => "all_at_cap",
            Cause::OverBudget => "over_budget",
            Cause::NoDescriptor => "no_descriptor",
        }
    }

    /// Whether the request may succeed when it is tried again: nothing is wrong with it.
    pub fn is_for_now(self) -> bool {
        let for_load = [Cause::Shed, Cause::AllAtCap, Cause::OverBudget, Cause::NoDescriptor];
        self == Cause::Unreachable || for_load.contains(&self)
    }
}

/// A request that is answered here and nowhere else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status of the answer.
    pub status: u16,
    /// `error.type` of its body.
    pub kind: &'static str,
    /// `error.message` of its body.
    pub message: &'static str,
    /// The cause that it is counted under.
    pub cause: Cause,
}

impl Refusal {
    /// A refusal whose `kind` is the usual one of `status`.
    pub const fn new(status: u16, cause: Cause, message: &'static str) -> Refusal {
        Refusal { status, kind: kind(status), message, cause }
    }
}

/// Why a message cannot be relayed any further: a request, or an engine's reply (answered 502, or cut visibly once its
/// head was passed on).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The cause that it is counted under.
    pub cause: Cause,
    /// The rule that was broken.
    pub message: &'static str,
}

impl Fault {
    /// Makes a fault.
    pub const fn new(cause: Cause, message: &'static str) -> Fault {
        Fault { cause, message }
    }

    /// Returns the answer to a client whose request has this fault.
    pub const fn refusal(self) -> Refusal {
        let status = match self.cause {
            Cause::HeadTooLarge => 431,
            Cause::BadVersion => 505,
            _ => 400,
        };
        Refusal::new(status, self.cause, self.message)
    }

    /// Returns the answer to a client if an engine's reply has this fault.
    pub const fn bad_gateway(self) -> Refusal {
        Refusal::new(502, self.cause, self.message)
    }
}

/// The content of one error answer.
#[derive(Clone, Copy, Debug)]
pub struct ErrorReply<'a> {
    /// The status, also `error.code`.
    pub status: u16,
    /// `error.type`.
    pub kind: &'a str,
    /// `error.message`; any bytes, they are escaped.
    pub message: &'a [u8],
    /// `error.param`.
    pub param: Option<&'a str>,
    /// The shape of errors that the client knows.
    pub shape: Shape,
}

/// The 100 (Continue) for a client that expects one.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Appends an error answer: head and JSON body. `extra` fields follow the usual ones.
pub fn write_error(out: &mut Vec<u8>, error: &ErrorReply, extra: &[(&str, &str)], to: &ToClient) {
    let mut body = Vec::with_capacity(96 + error.message.len());
    shape::write_body(&mut body, error);
    write_json(out, error.status, &body, extra, to);
}

/// Appends a chunk with one error event of a stream, in the shape of its API.
pub fn write_error_event(out: &mut Vec<u8>, error: &ErrorReply) {
    let mut event = Vec::with_capacity(128 + error.message.len());
    shape::write_event(&mut event, error);
    out.extend_from_slice(SizeLine::new(event.len() as u64).as_bytes());
    out.extend_from_slice(&event);
    out.extend_from_slice(b"\r\n");
}

/// Appends an answer with a JSON body. A HEAD request gets the same head and no body.
pub fn write_json(out: &mut Vec<u8>, status: u16, body: &[u8], extra: &[(&str, &str)], to: &ToClient) {
    out.extend_from_slice(b"HTTP/1.1 ");
    write_decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
    write_field(out, b"content-type", b"application/json");
    out.extend_from_slice(b"content-length: ");
    write_decimal(out, body.len() as u64);
    out.extend_from_slice(b"\r\n");
    if let Some(id) = to.request_id {
        write_field(out, b"x-request-id", id);
    }
    if let Some(text) = to.explain {
        write_field(out, super::rewrite::EXPLAIN_FIELD, text);
    }
    for (name, value) in extra {
        write_field(out, name.as_bytes(), value.as_bytes());
    }
    write_connection(out, to.version, to.keep_alive);
    out.extend_from_slice(b"\r\n");
    if !to.head_request {
        out.extend_from_slice(body);
    }
}

/// Appends `text` as a JSON string. Bytes that are not UTF-8 become U+FFFD.
pub fn write_json_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for piece in text.utf8_chunks() {
        for byte in piece.valid().bytes() {
            match byte {
                b'"' => out.extend_from_slice(b"\\\""),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                0..0x20 | 0x7f => {
                    let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble & 15)];
                    out.extend_from_slice(b"\\u00");
                    out.extend_from_slice(&[digit(byte >> 4), digit(byte)]);
                }
                _ => out.push(byte),
            }
        }
        if !piece.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
}

/// Returns `error.type` as vLLM names it for a status.
pub const fn kind(status: u16) -> &'static str {
    match status {
        400 | 405 | 417 | 431 => "BadRequestError",
        401 => "AuthenticationError",
        403 => "PermissionDeniedError",
        404 => "NotFoundError",
        408 => "RequestTimeoutError",
        413 => "RequestTooLargeError",
        429 => "RateLimitError",
        501 | 505 => "NotImplementedError",
        502 => "BadGatewayError",
        503 => "ServiceUnavailableError",
        504 => "GatewayTimeoutError",
        _ => "InternalServerError",
    }
}

/// Returns the reason phrase of a status; empty if we never send that status.
pub const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::head::Version;
    use super::*;

    fn to(keep_alive: bool) -> ToClient<'static> {
        ToClient { version: Version::Http11, keep_alive, head_request: false, request_id: None, explain: None }
    }

    #[test]
    fn causes_index_their_own_list() {
        for (place, cause) in Cause::ALL.iter().enumerate() {
            assert_eq!(*cause as usize, place);
        }
    }

    #[test]
    fn an_error_reads_as_vllms_does() {
        let mut out = Vec::new();
        let error = ErrorReply {
            status: 404,
            kind: "NotFoundError",
            message: b"The model `x` does not exist.",
            param: Some("model"),
            shape: Shape::OpenAi,
        };
        write_error(&mut out, &error, &[("retry-after", "1")], &ToClient { request_id: Some(b"r1"), ..to(false) });
        let body = r#"{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}"#;
        let head = format!(
            "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {}\r\nx-request-id: r1\r\n\
             retry-after: 1\r\nconnection: close\r\n\r\n",
            body.len()
        );
        assert_eq!(String::from_utf8_lossy(&out), format!("{head}{body}"));
    }

    #[test]
    fn statuses_have_their_names() {
        for (status, kind_of, reason_of) in [
            (200, "InternalServerError", "OK"),
            (204, "InternalServerError", "No Content"),
            (400, "BadRequestError", "Bad Request"),
            (401, "AuthenticationError", "Unauthorized"),
            (403, "PermissionDeniedError", "Forbidden"),
            (404, "NotFoundError", "Not Found"),
            (405, "BadRequestError", "Method Not Allowed"),
            (408, "RequestTimeoutError", "Request Timeout"),
            (413, "RequestTooLargeError", "Content Too Large"),
            (417, "BadRequestError", "Expectation Failed"),
            (429, "RateLimitError", "Too Many Requests"),
            (431, "BadRequestError", "Request Header Fields Too Large"),
            (500, "InternalServerError", "Internal Server Error"),
            (501, "NotImplementedError", "Not Implemented"),
            (502, "BadGatewayError", "Bad Gateway"),
            (503, "ServiceUnavailableError", "Service Unavailable"),
            (504, "GatewayTimeoutError", "Gateway Timeout"),
            (505, "NotImplementedError", "HTTP Version Not Supported"),
            (299, "InternalServerError", ""),
        ] {
            assert_eq!((kind(status), reason(status)), (kind_of, reason_of), "{status}");
        }
    }

    #[test]
    fn head_requests_get_the_length_and_no_body() {
        let mut out = Vec::new();
        write_json(&mut out, 200, b"{}", &[], &ToClient { head_request: true, ..to(true) });
        assert_eq!(out, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n");
    }

    #[test]
    fn any_message_is_valid_json() {
        let all: Vec<u8> = (0..=255).collect();
        let mut out = Vec::new();
        write_json_string(&mut out, &all);
        let text: String = serde_json::from_slice(&out).expect("a JSON string");
        assert_eq!(text, String::from_utf8_lossy(&all));
        assert!(!out.contains(&b'\n') && !out.contains(&b'\r'));
    }

    #[test]
    fn no_field_of_ours_can_break_its_line() {
        let mut out = Vec::new();
        let hostile = ToClient { request_id: Some(b"a\r\nset-cookie: x"), explain: Some(b"\n\r\0"), ..to(true) };
        write_json(&mut out, 200, b"", &[("retry-after", "1\r\nx: y")], &hostile);
        let text = String::from_utf8_lossy(&out).into_owned();
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(!text.contains("\nset-cookie") && !text.contains("\nx:"));
    }
}
