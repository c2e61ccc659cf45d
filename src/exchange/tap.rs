//! Watches a stream of server-sent events (WHATWG HTML, 9.2.6): for its first data event, since vLLM sends the head,
//! and comments, before the request has left its queue; for an error inside a 200; and for where an event ends.

use std::sync::LazyLock;

use memchr::memmem::{self, Finder};

use crate::scan::Api;

/// What is known of a stream, at any cut of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tap {
    first: FirstData,
    /// Its events have names.
    named: bool,
    /// The current line as far as it came, see [`with_byte`].
    line: u64,
    /// The last name was of an event that opens an answer, and its data has not come.
    opens: bool,
    /// The last bytes that came, behind zeros while there were fewer.
    last: [u8; 16],
}

/// Finds the first line that begins with `data:`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum FirstData {
    /// So many bytes of `data:` stand at the beginning of the current line.
    #[default]
    Start,
    /// Inside `data:`.
    Partial(u8),
    /// Inside some other line.
    Line,
    /// Found; nothing more is looked at.
    Found,
    /// What came instead was an error; nothing more is looked at.
    Refused,
}

const FIELD: &[u8] = b"data:";
/// How vLLM begins the event of an error. In a token's text the quotes would be escaped.
static ERROR_EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"data: {\"error\""));
/// How vLLM and SGLang begin it where they speak as Anthropic,
static MESSAGES_ERROR_EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"data: {\"type\":\"error\""));
/// and what says there whose error it is.
const MESSAGES_ERROR_TYPE: &[u8] = b"\"error\":{\"type\":\"";
/// SGLang, there, of whatever went wrong behind the stream's head: a full queue, a prompt that is too long, itself.
const ANY_ERROR: &[u8] = b"\"message\":\"Stream processing error\"";
/// vLLM, there, of an error that it wrote for a chat and does not know again: of what it could not read Python prints
/// the end, and there is the code.
const PRINTED_CODE: &[u8] = b"'code': ";
/// In that event: the server's error,
const SERVER_ERROR: [&[u8]; 2] = [b"\"code\": 5", b"\"code\":5"];
/// or the client's.
const CLIENT_ERROR: [&[u8]; 2] = [b"\"code\": 4", b"\"code\":4"];
/// And it is not that something failed: SGLang has enough to do, and says so in a stream, whose head it has written.
const BUSY: [&[u8]; 2] = [b"\"code\": 503", b"\"code\":503"];
/// Events of `/v1/responses` that vLLM writes before the request has left its queue.
const OPENING: [u64; 3] =
    [line(b"event: response.created"), line(b"event: response.queued"), line(b"event: response.in_progress")];

/// What an error inside a stream says of its engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// It failed.
    Failed,
    /// It has enough to do.
    Busy,
    /// One of both, or the client asked for what cannot be done.
    MayBeTheClients,
    /// Nothing: the client did.
    TheClients,
}

impl Tap {
    /// Of replies of this API.
    pub fn of(api: Api) -> Tap {
        Tap { named: api == Api::Responses, ..Tap::default() }
    }

    /// Looks at more of the stream.
    pub fn watch(&mut self, bytes: &[u8]) {
        self.last = match bytes.last_chunk() {
            Some(tail) => *tail,
            None => {
                let last = u128::from_be_bytes(self.last);
                bytes.iter().fold(last, |last, &byte| last << 8 | u128::from(byte)).to_be_bytes()
            }
        };
        if self.waits() {
            self.look_for_data(bytes);
        }
    }

    /// What came first was no data of an answer.
    pub fn was_refused(&mut self) {
        self.first = FirstData::Refused;
    }

    /// Whether the first data event has begun.
    pub fn spoke(&self) -> bool {
        self.first == FirstData::Found
    }

    /// Whether neither that has come, nor an error in its place.
    pub fn waits(&self) -> bool {
        !matches!(self.first, FirstData::Found | FirstData::Refused)
    }

    /// Whether a further event may stand here: at the beginning, or behind an empty line, but not behind the event
    /// that says that the stream is done.
    pub fn between_events(&self) -> bool {
        let last = &self.last;
        let ends = [&b"\n\n"[..], b"\r\r", b"\r\n\r\n"].into_iter().find_map(|end| last.strip_suffix(end));
        *last == [0; 16] || ends.is_some_and(|line| !line.ends_with(b"[DONE]"))
    }

    fn look_for_data(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let matched = match self.first {
                FirstData::Start => 0,
                FirstData::Partial(matched) => matched,
                FirstData::Line | FirstData::Found | FirstData::Refused => u8::MAX,
            };
            if self.named {
                self.look_for_name(byte);
            }
            self.first = match byte {
                b'\n' | b'\r' => FirstData::Start,
                _ if FIELD.get(matched as usize) != Some(&byte) => FirstData::Line,
                _ if matched as usize + 1 < FIELD.len() => FirstData::Partial(matched + 1),
                _ if std::mem::take(&mut self.opens) => FirstData::Line,
                _ => FirstData::Found,
            };
            if self.first == FirstData::Found {
                return;
            }
        }
    }

    fn look_for_name(&mut self, byte: u8) {
        if !matches!(byte, b'\n' | b'\r') {
            self.line = with_byte(self.line, byte);
            return;
        }
        self.opens |= OPENING.contains(&std::mem::take(&mut self.line));
    }
}

/// A line, and one more byte of it: of some thirty that are looked for no two are equal, and one that is taken for
/// another moves a deadline.
const fn with_byte(line: u64, byte: u8) -> u64 {
    (line ^ byte as u64).wrapping_mul(0x0100_0000_01b3).wrapping_add(1)
}

const fn line(bytes: &[u8]) -> u64 {
    let (mut line, mut place) = (0, 0);
    while place < bytes.len() {
        line = with_byte(line, bytes[place]);
        place += 1;
    }
    line
}

/// Where in these bytes of a stream the event of an engine's error begins, and what it says. An event that is cut in
/// two is not seen: this only tells of an engine's health, and engines write an event in one piece.
pub fn tells_of_error(bytes: &[u8], api: Api) -> Option<(usize, Told)> {
    let (begins, told) = match ERROR_EVENT.find(bytes) {
        Some(begins) => (begins, told_by_code(line_at(bytes, begins))?),
        None if api == Api::Messages => {
            let begins = MESSAGES_ERROR_EVENT.find(bytes)?;
            (begins, told_by_type(line_at(bytes, begins)))
        }
        None => return None,
    };
    Some((begins, told))
}

fn line_at(bytes: &[u8], begins: usize) -> &[u8] {
    let event = bytes.get(begins..).unwrap_or_default();
    event.split(|&byte| byte == b'\n').next().unwrap_or_default()
}

fn told_by_code(line: &[u8]) -> Option<Told> {
    let says = |words: &[u8]| memmem::find(line, words).is_some();
    match SERVER_ERROR.into_iter().any(says) {
        true if BUSY.into_iter().any(says) => Some(Told::Busy),
        true => Some(Told::Failed),
        false => CLIENT_ERROR.into_iter().any(says).then_some(Told::TheClients),
    }
}

fn told_by_type(line: &[u8]) -> Told {
    let behind = |at: usize| line.get(at + MESSAGES_ERROR_TYPE.len()..);
    let named = memmem::find(line, MESSAGES_ERROR_TYPE).and_then(behind).unwrap_or_default();
    match named.split(|&byte| byte == b'"').next().unwrap_or_default() {
        b"overloaded_error" | b"rate_limit_error" => Told::Busy,
        b"invalid_request_error" | b"not_found_error" | b"request_too_large" => Told::TheClients,
        b"api_error" if memmem::find(line, ANY_ERROR).is_some() => Told::MayBeTheClients,
        b"internal_error" => told_by_printed_code(line),
        _ => Told::Failed,
    }
}

fn told_by_printed_code(line: &[u8]) -> Told {
    let code = memmem::find(line, PRINTED_CODE).and_then(|at| line.get(at + PRINTED_CODE.len()..));
    match code {
        Some([b'4', ..]) => Told::TheClients,
        Some([b'5', b'0', b'3', ..]) => Told::Busy,
        _ => Told::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(stream: &[u8], cut: usize) -> Tap {
        let mut tap = Tap::default();
        let (before, after) = stream.split_at(cut);
        tap.watch(before);
        tap.watch(after);
        tap
    }

    #[test]
    fn comments_and_other_fields_are_not_tokens() {
        for (stream, expected) in [
            (&b"data: {}\n\n"[..], true),
            (b": keep-alive\n\n", false),
            (b": keep-alive\n\ndata: x", true),
            (b"event: data:\n", false),
            (b"event: message\r\ndata:{}", true),
            (b"dat", false),
            (b"dat\na:", false),
            (b" data: x", false),
        ] {
            for cut in 0..=stream.len() {
                assert_eq!(watched(stream, cut).spoke(), expected, "{stream:?} cut at {cut}");
            }
        }
    }

    /// As vLLM begins an answer, before it begins to compute one.
    #[test]
    fn what_opens_an_answer_is_no_token() {
        let opened =
            "event: response.created\ndata: {\"sequence_number\":0}\n\nevent: response.in_progress\ndata: {}\n\n";
        let token = "event: response.output_item.added\ndata: {}\n\n";
        for (stream, expected) in [
            (opened.to_owned(), false),
            (opened.replace('\n', "\r\n"), false),
            (format!("{opened}{token}"), true),
            (format!("{opened}data: {{}}\n\n"), true),
            (token.to_owned(), true),
            ("event: response.createdx\ndata: {}\n\n".to_owned(), true),
            ("event: response.queued\n: data: x\ndata: {}\n\n".to_owned(), false),
        ] {
            for cut in 0..=stream.len() {
                let (before, after) = stream.as_bytes().split_at(cut);
                let mut tap = Tap::of(Api::Responses);
                tap.watch(before);
                tap.watch(after);
                assert_eq!(tap.spoke(), expected, "{stream:?} cut at {cut}");
                assert!(watched(stream.as_bytes(), cut).spoke(), "a chat has no such events");
            }
        }
    }

    #[test]
    fn an_event_ends_with_an_empty_line() {
        for (stream, expected) in [
            (&b""[..], true),
            (b"data: x\n\n", true),
            (b"data: x\r\n\r\n", true),
            (b"data: x\r\r", true),
            (b"data: x\n", false),
            (b"data: x\r\n", false),
            (b"data: x\n\r\n", false),
            (b"data: x\n\ndata: y", false),
            (b"data: x\n\ndata: [DONE]\n\n", false),
            (b"data: x\r\n\r\ndata: [DONE]\r\n\r\n", false),
            (b"data: [DONE]x\n\n", true),
            (b"\n\n", true),
            (b"\n", false),
        ] {
            for cut in 0..=stream.len() {
                assert_eq!(watched(stream, cut).between_events(), expected, "{stream:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn an_engines_error_is_told_from_a_clients_and_from_text() {
        for (piece, expected) in [
            (
                &br#"data: {"error": {"message": "EngineCore", "type": "InternalServerError", "code": 500}}"#[..],
                Some((0, Told::Failed)),
            ),
            (
                br#"data: {"error": {"message": "The request queue is full.", "param": null, "code": 503}}"#,
                Some((0, Told::Busy)),
            ),
            (b"data: {\"id\":1}\n\ndata: {\"error\":{\"code\":503}}\n\ndata: [DONE]\n\n", Some((16, Told::Busy))),
            (b"data: {\"error\":{\"code\":400}}\n\ndata: {\"code\":500}\n\n", Some((0, Told::TheClients))),
            (b"data: {\"error\":{\"message\":\"no code\"}}\n\n", None),
            (br#"data: {"text":"data: {\"error\": {\"code\": 500}}"}"#, None),
            (b"data: {\"id\":1}\n\n", None),
        ] {
            for api in [Api::Chat, Api::Messages] {
                assert_eq!(tells_of_error(piece, api), expected, "{}", piece.escape_ascii());
            }
        }
        // As vLLM and SGLang write it in streams of messages, and others who speak as Anthropic.
        for (error, expected) in [
            (r#"{"type":"internal_error","message":"EngineCore"}"#, Told::Failed),
            (
                r#"{"type":"internal_error","message":"2 errors … [input_value={'error': {'message': 'Th...am': None, 'code': 400}}, in"}"#,
                Told::TheClients,
            ),
            (
                r#"{"type":"internal_error","message":"2 errors … [input_value={'error': {'message': 'Th...am': None, 'code': 503}}, in"}"#,
                Told::Busy,
            ),
            (
                r#"{"type":"internal_error","message":"2 errors … [input_value={'error': {'message': 'En...am': None, 'code': 500}}, in"}"#,
                Told::Failed,
            ),
            (r#"{"type":"api_error","message":"The engine broke off"}"#, Told::Failed),
            (r#"{"type":"api_error","message":"Stream processing error"}"#, Told::MayBeTheClients),
            (r#"{"type":"overloaded_error","message":"Overloaded"}"#, Told::Busy),
            (r#"{"type":"rate_limit_error","message":""}"#, Told::Busy),
            (r#"{"type":"invalid_request_error","message":"overloaded_error"}"#, Told::TheClients),
            ("null", Told::Failed),
        ] {
            let piece = format!("event: error\ndata: {{\"type\":\"error\",\"error\":{error}}}\n\n");
            assert_eq!(tells_of_error(piece.as_bytes(), Api::Messages), Some((13, expected)), "{error}");
            assert_eq!(tells_of_error(piece.as_bytes(), Api::Chat), None, "{error}: there it may be anything");
            let said = piece.replace('"', "\\\"");
            let text = format!("event: content_block_delta\ndata: {{\"delta\":{{\"text\":\"{said}\"}}}}\n\n");
            assert_eq!(tells_of_error(text.as_bytes(), Api::Messages), None, "{error}");
        }
    }
}
