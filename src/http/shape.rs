//! The shapes in which clients of each API read errors, as the official SDKs do.

use super::digits::write_decimal;
use super::reply::{ErrorReply, write_json_string};

/// The shape of errors that a path's clients know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shape {
    /// OpenAI's, as vLLM writes them.
    #[default]
    OpenAi,
    /// The same, except in streams, where each event has a name and a type.
    Responses,
    /// Anthropic's.
    Anthropic,
}

impl Shape {
    /// Returns the shape for a path, by its beginning.
    #[inline]
    pub fn of_path(path: &[u8]) -> Shape {
        match path {
            _ if path.starts_with(b"/v1/messages") => Shape::Anthropic,
            _ if path.starts_with(b"/v1/responses") => Shape::Responses,
            _ => Shape::OpenAi,
        }
    }
}

/// Appends the body of an error answer.
pub(super) fn write_body(out: &mut Vec<u8>, error: &ErrorReply) {
    if error.shape == Shape::Anthropic {
        return write_anthropic(out, error);
    }
    out.extend_from_slice(b"{\"error\":");
    write_object(out, error);
    out.push(b'}');
}

/// Appends an error as an event of a stream.
pub(super) fn write_event(out: &mut Vec<u8>, error: &ErrorReply) {
    match error.shape {
        Shape::OpenAi => out.extend_from_slice(b"data: "),
        Shape::Anthropic | Shape::Responses => out.extend_from_slice(b"event: error\ndata: "),
    }
    match error.shape {
        Shape::OpenAi | Shape::Anthropic => write_body(out, error),
        Shape::Responses => write_responses(out, error),
    }
    out.extend_from_slice(b"\n\n");
}

fn write_object(out: &mut Vec<u8>, error: &ErrorReply) {
    out.extend_from_slice(b"{\"message\":");
    write_json_string(out, error.message);
    out.extend_from_slice(b",\"type\":");
    write_json_string(out, error.kind.as_bytes());
    out.extend_from_slice(b",\"param\":");
    match error.param {
        Some(param) => write_json_string(out, param.as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"code\":");
    write_decimal(out, u64::from(error.status));
    out.push(b'}');
}

fn write_anthropic(out: &mut Vec<u8>, error: &ErrorReply) {
    out.extend_from_slice(b"{\"type\":\"error\",\"error\":{\"type\":");
    write_json_string(out, anthropic_kind(error.status).as_bytes());
    out.extend_from_slice(b",\"message\":");
    write_json_string(out, error.message);
    out.extend_from_slice(b"}}");
}

/// Appends the documented event, which the SDKs pass on like any other, with an `error` in it, for which they raise an
/// error with its message. A sequence number is required, but not known here.
fn write_responses(out: &mut Vec<u8>, error: &ErrorReply) {
    out.extend_from_slice(b"{\"type\":\"error\",\"sequence_number\":0,\"code\":\"server_error\",\"message\":");
    write_json_string(out, error.message);
    out.extend_from_slice(b",\"param\":null,\"error\":");
    write_object(out, error);
    out.push(b'}');
}

/// Returns `error.type` as Anthropic names it for a status.
const fn anthropic_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_the_shapes_of_their_sdks() {
        for (path, shape) in [
            ("/v1/messages", Shape::Anthropic),
            ("/v1/messages/count_tokens?beta=true", Shape::Anthropic),
            ("/v1/responses/r_1?stream=true", Shape::Responses),
            ("/v1/chat/completions", Shape::OpenAi),
            ("", Shape::OpenAi),
        ] {
            assert_eq!(Shape::of_path(path.as_bytes()), shape, "{path}");
        }
    }

    #[test]
    fn statuses_have_the_names_that_anthropics_sdks_know() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (405, "invalid_request_error"),
            (408, "invalid_request_error"),
            (413, "request_too_large"),
            (429, "rate_limit_error"),
            (431, "invalid_request_error"),
            (500, "api_error"),
            (501, "api_error"),
            (502, "api_error"),
            (503, "overloaded_error"),
            (504, "api_error"),
            (505, "api_error"),
            (529, "overloaded_error"),
        ] {
            assert_eq!(anthropic_kind(status), kind, "{status}");
        }
    }

    #[test]
    fn each_shape_has_its_fields() {
        let written = |shape, write: fn(&mut Vec<u8>, &ErrorReply)| {
            let mut out = Vec::new();
            write(&mut out, &ErrorReply { status: 502, kind: "BadGatewayError", message: b"a\"", param: None, shape });
            String::from_utf8(out).unwrap()
        };
        let object = r#"{"message":"a\"","type":"BadGatewayError","param":null,"code":502}"#;
        let anthropic = r#"{"type":"error","error":{"type":"api_error","message":"a\""}}"#;
        assert_eq!(written(Shape::OpenAi, write_body), format!("{{\"error\":{object}}}"));
        assert_eq!(written(Shape::Responses, write_body), format!("{{\"error\":{object}}}"));
        assert_eq!(written(Shape::Anthropic, write_body), anthropic);
        assert_eq!(written(Shape::OpenAi, write_event), format!("data: {{\"error\":{object}}}\n\n"));
        assert_eq!(written(Shape::Anthropic, write_event), format!("event: error\ndata: {anthropic}\n\n"));
        let responses =
            r#"{"type":"error","sequence_number":0,"code":"server_error","message":"a\"","param":null,"error":"#;
        assert_eq!(written(Shape::Responses, write_event), format!("event: error\ndata: {responses}{object}}}\n\n"));
    }
}
