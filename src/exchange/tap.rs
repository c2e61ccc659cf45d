//! Watches a stream of server-sent events (WHATWG HTML, 9.2.6): for its first data event, since vLLM sends the head,
//! and comments, before the request has left its queue; for an error inside a 200; and for where an event ends.

use std::sync::LazyLock;

use memchr::memmem::{self, Finder};

/// What is known of a stream, at any cut of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tap {
    first: FirstData,
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
}

const FIELD: &[u8] = b"data:";
/// How vLLM begins the event of an error. In a token's text the quotes would be escaped.
static ERROR_EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"data: {\"error\""));
/// In that event: the server's error, not the client's.
const SERVER_ERROR: [&[u8]; 2] = [b"\"code\": 5", b"\"code\":5"];

impl Tap {
    /// Looks at more of the stream.
    pub fn watch(&mut self, bytes: &[u8]) {
        self.last = match bytes.last_chunk() {
            Some(tail) => *tail,
            None => {
                let last = u128::from_be_bytes(self.last);
                bytes.iter().fold(last, |last, &byte| last << 8 | u128::from(byte)).to_be_bytes()
            }
        };
        if self.first != FirstData::Found {
            self.look_for_data(bytes);
        }
    }

    /// Whether the first data event has begun.
    pub fn spoke(&self) -> bool {
        self.first == FirstData::Found
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
                FirstData::Line | FirstData::Found => u8::MAX,
            };
            self.first = match byte {
                b'\n' | b'\r' => FirstData::Start,
                _ if FIELD.get(matched as usize) != Some(&byte) => FirstData::Line,
                _ if matched as usize + 1 == FIELD.len() => FirstData::Found,
                _ => FirstData::Partial(matched + 1),
            };
            if self.first == FirstData::Found {
                return;
            }
        }
    }
}

/// Whether these bytes of a stream hold the event of an engine's error. An event that is cut in two is not seen: this
/// only tells of an engine's health, and vLLM writes an event in one piece.
pub fn tells_of_error(bytes: &[u8]) -> bool {
    let Some(begins) = ERROR_EVENT.find(bytes) else { return false };
    let event = bytes.get(begins..).unwrap_or_default();
    let line = event.split(|&byte| byte == b'\n').next().unwrap_or_default();
    SERVER_ERROR.into_iter().any(|code| memmem::find(line, code).is_some())
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
            (&br#"data: {"error": {"message": "EngineCore", "type": "InternalServerError", "code": 500}}"#[..], true),
            (b"data: {\"id\":1}\n\ndata: {\"error\":{\"code\":503}}\n\ndata: [DONE]\n\n", true),
            (b"data: {\"error\":{\"code\":400}}\n\ndata: {\"code\":500}\n\n", false),
            (br#"data: {"text":"data: {\"error\": {\"code\": 500}}"}"#, false),
            (b"data: {\"id\":1}\n\n", false),
        ] {
            assert_eq!(tells_of_error(piece), expected, "{}", piece.escape_ascii());
        }
    }
}
