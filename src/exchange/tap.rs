//! Watches a stream of server-sent events (WHATWG HTML, 9.2.6): for its first data event, since vLLM sends the head,
//! and comments, before the request has left its queue; and for where an event ends.

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
/// Events of `/v1/responses` that vLLM writes before the request has left its queue.
const OPENING: [u64; 3] =
    [line(b"event: response.created"), line(b"event: response.queued"), line(b"event: response.in_progress")];

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

    /// Whether neither the first data event nor an error in its place has come.
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
}
