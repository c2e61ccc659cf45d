//! Whether a stream has shown anything of an answer, up to what it shows first. vLLM ends what waits when it ends
//! itself, is put to sleep or told to abort it, as if that had been answered: by a 200, the event that opens a chat,
//! usage where it was asked for, and `[DONE]`. Of version 0.32 none of them says that it was aborted: it leaves out
//! what has no token.

use memchr::memmem::find;
use memchr::memrchr;

use super::usage::LOOK_BYTES;

/// How much of an answer a stream has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Shown {
    /// No data that is whole.
    #[default]
    Nothing,
    /// Only what stands around an answer.
    Frame,
    /// The first of it, which is still to be taken to account.
    First,
    /// That was; nothing more is looked at.
    Answer,
}

/// As vLLM opens a chat, beside its first token. What is empty otherwise stands for a token without text.
const OPENS: [&[u8]; 2] = [b"\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", b"\"finish_reason\":null"];
/// Of usage alone.
const NO_CHOICES: &[u8] = b"\"choices\":[]";
const ABORTED: [&[u8]; 2] = [b"\"finish_reason\":\"abort\"", b"\"finish_reason\": \"abort\""];
/// The same where it speaks as Anthropic,
const MESSAGE: [&[u8]; 3] = [b"{\"type\":\"message_start\"", b"{\"type\":\"message_stop\"", b"{\"type\":\"ping\""];
/// and has counted no token.
const MESSAGE_ENDS: &[u8] = b"{\"type\":\"message_delta\"";
const NO_TOKENS: [&[u8]; 2] = [b"\"output_tokens\":0}", b"\"output_tokens\":0,"];

impl Shown {
    /// Whether what comes is to be looked at.
    #[inline]
    pub fn is_open(self) -> bool {
        matches!(self, Shown::Nothing | Shown::Frame)
    }

    /// Looks at more of a stream: a `cut` line, once it is whole, and the lines behind it.
    pub fn look(&mut self, cut: Option<&[u8]>, lines: &[u8]) {
        let whole = memrchr(b'\n', lines).map_or(0, |end| end + 1);
        let (lines, _) = lines.split_at(whole);
        for line in cut.into_iter().chain(lines.split(|byte| *byte == b'\n')) {
            // The beginning of a longer one was not kept.
            let data =
                if cut == Some(line) && line.len() >= LOOK_BYTES { Some(line) } else { line.strip_prefix(b"data:") };
            match data.map(<[u8]>::trim_ascii) {
                None => {}
                Some(data) if is_frame(data) => *self = Shown::Frame,
                Some(_) => {
                    *self = Shown::First;
                    return;
                }
            }
        }
    }
}

/// In what a model wrote, the quotes would be escaped.
fn is_frame(data: &[u8]) -> bool {
    let says = |words: &[u8]| find(data, words).is_some();
    data == b"[DONE]"
        || OPENS.into_iter().all(says)
        || ABORTED.into_iter().any(says)
        || says(NO_CHOICES)
        || MESSAGE.into_iter().any(|message| data.starts_with(message))
        || data.starts_with(MESSAGE_ENDS) && NO_TOKENS.into_iter().any(says)
}

#[cfg(test)]
mod tests {
    use super::super::usage::Reader;
    use super::*;
    use crate::scan::Api;

    const OPENING: &str = r#"data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}"#;
    const DONE: &str = "data: [DONE]";
    const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0}}"#;
    const START: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[]}}";
    const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}";

    fn shown(stream: &str, cuts: &[usize]) -> Shown {
        let (mut shown, mut reader, mut from) = (Shown::default(), Reader::default(), 0);
        for &to in cuts.iter().chain([&stream.len()]) {
            let lines = reader.join(&stream.as_bytes()[from..to]);
            if shown.is_open() {
                shown.look(reader.joined(), lines);
            }
            reader.stream(lines, Api::Chat);
            from = to;
        }
        shown
    }

    #[test]
    fn what_stands_around_an_answer_is_none() {
        let delta = |rest: &str| format!(r#"data: {{"choices":[{{"index":0,{rest}}}]}}"#);
        let said = delta(r#""delta":{"content":"\"finish_reason\":\"abort\" \"choices\":[]"},"finish_reason":null"#);
        let long = delta(&format!(r#""delta":{{"content":"{}"}},"finish_reason":null"#, "a".repeat(1_200)));
        let ends = |tokens: u32| {
            format!(
                r#"data: {{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},"usage":{{"input_tokens":3,"output_tokens":{tokens}}}}}"#
            )
        };
        for (events, expected) in [
            (vec![], Shown::Nothing),
            (vec![": keep-alive"], Shown::Nothing),
            (vec![DONE], Shown::Frame),
            (vec![OPENING], Shown::Frame),
            (vec![OPENING, USAGE, DONE], Shown::Frame),
            (vec![OPENING, OPENING, DONE], Shown::Frame),
            (vec![OPENING, &delta(r#""delta":{"content":""},"finish_reason":"abort""#), DONE], Shown::Frame),
            (vec![&delta(r#""text":"","finish_reason": "abort""#), DONE], Shown::Frame),
            (vec![START, &ends(0), STOP], Shown::Frame),
            // A first token that ends the answer, a thought, a call, or one without text as yet.
            (vec![OPENING, &delta(r#""delta":{"content":""},"finish_reason":"stop""#), DONE], Shown::First),
            (vec![OPENING, &delta(r#""delta":{"reasoning":"a"},"finish_reason":null"#), DONE], Shown::First),
            (vec![OPENING, &delta(r#""delta":{"tool_calls":[{"id":"a"}]},"finish_reason":null"#)], Shown::First),
            (vec![OPENING, &delta(r#""delta":{"content":""},"finish_reason":null"#), DONE], Shown::First),
            (vec![&OPENING.replace(":null}]", ":\"stop\"}]"), DONE], Shown::First),
            (vec![&OPENING.replace("\"\"}", "\"a\"}"), DONE], Shown::First),
            (vec![OPENING, &said, DONE], Shown::First),
            (vec![&long, DONE], Shown::First),
            (vec![START, &ends(1), STOP], Shown::First),
            (vec![START, &ends(10), STOP], Shown::First),
            (vec!["data: a", DONE], Shown::First),
        ] {
            for end in ["\n\n", "\r\n\r\n"] {
                let stream: String = events.iter().flat_map(|event| [*event, end]).collect();
                for cut in 0..=stream.len() {
                    assert_eq!(shown(&stream, &[cut]), expected, "{stream} at {cut}");
                }
                for size in [1, 7, 100] {
                    let cuts: Vec<_> = (0..stream.len()).step_by(size).collect();
                    assert_eq!(shown(&stream, &cuts), expected, "{stream} by {size}");
                }
            }
        }
    }

    /// As vLLM 0.32 wrote them: of each there is an answer, behind whatever opens it.
    #[test]
    fn recorded_streams_show_an_answer() {
        for stream in [
            include_str!("../../tests/fixtures/vllm-0.32.0/chat-stream.response"),
            include_str!("../../tests/fixtures/vllm-0.32.0/chat-stream-usage.response"),
            include_str!("../../tests/fixtures/vllm-0.32.0/chat-stream-usage-continuous.response"),
            include_str!("../../tests/fixtures/vllm-0.32.0/chat-n2-stream.response"),
            include_str!("../../tests/fixtures/vllm-0.32.0/chat-tools-named-stream.response"),
            include_str!("../../tests/fixtures/vllm-0.32.0/completion-stream.response"),
            include_str!("../../tests/fixtures/vllm-0.32.0/messages-stream.response"),
        ] {
            assert_eq!(shown(stream, &[]), Shown::First);
            let opened = stream.match_indices("data: ").map(|(at, _)| shown(stream.split_at(at).0, &[]));
            let frames = opened.filter(|shown| *shown == Shown::Frame).count();
            let opens = usize::from(!stream.contains("text_completion"));
            assert!(frames >= opens, "{stream}");
        }
    }
}
