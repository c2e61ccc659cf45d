//! Watches a stream of server-sent events for its first data event: vLLM sends the head, and comments,
//! before the request has left its queue.

/// Finds the first line that begins with `data:` (WHATWG HTML, 9.2.6), at any cut of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FirstData {
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

impl FirstData {
    /// Looks at more of the stream; true when the first data event has begun.
    pub fn watch(&mut self, bytes: &[u8]) -> bool {
        if *self == FirstData::Found {
            return true;
        }
        for &byte in bytes {
            let matched = match *self {
                FirstData::Start => 0,
                FirstData::Partial(matched) => matched,
                FirstData::Line | FirstData::Found => u8::MAX,
            };
            *self = match byte {
                b'\n' | b'\r' => FirstData::Start,
                _ if FIELD.get(matched as usize) != Some(&byte) => FirstData::Line,
                _ if matched as usize + 1 == FIELD.len() => FirstData::Found,
                _ => FirstData::Partial(matched + 1),
            };
            if *self == FirstData::Found {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(stream: &[u8], cut: usize) -> bool {
        let mut tap = FirstData::default();
        let (before, after) = stream.split_at(cut);
        tap.watch(before);
        tap.watch(after)
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
                assert_eq!(found(stream, cut), expected, "{stream:?} cut at {cut}");
            }
        }
    }
}
