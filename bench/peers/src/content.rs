//! What goes over the wire, known on both ends: a reply follows from the digest of its request's body, so that the load
//! generator can compare every byte, and a request altered on its way shows as a wrong reply.

use std::ops::Range;

use crate::sent;

const PLAIN_BYTES: usize = 1024;
const SPEECH_BYTES: usize = 1 << 20;
const CREATED: &str = "1795187630";

/// A digest that does not depend on how the bytes are cut into pieces: four lanes over 32-byte blocks.
pub struct Digest {
    lanes: [u64; 4],
    carry: [u8; 32],
    carried: usize,
    total: u64,
}

const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Digest {
    pub(crate) fn new() -> Digest {
        Digest { lanes: [1, 2, 3, 4], carry: [0; 32], carried: 0, total: 0 }
    }

    pub fn update(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if self.carried > 0 {
            let count = bytes.len().min(32 - self.carried);
            self.carry[self.carried..self.carried + count].copy_from_slice(&bytes[..count]);
            self.carried += count;
            bytes = &bytes[count..];
            if self.carried < 32 {
                return;
            }
            let block = self.carry;
            self.block(&block);
            self.carried = 0;
        }
        let mut blocks = bytes.chunks_exact(32);
        for block in &mut blocks {
            self.block(block);
        }
        let rest = blocks.remainder();
        self.carry[..rest.len()].copy_from_slice(rest);
        self.carried = rest.len();
    }

    fn block(&mut self, block: &[u8]) {
        for (lane, word) in self.lanes.iter_mut().zip(block.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("chunks of eight"));
            *lane = (*lane ^ word).wrapping_mul(ODD).rotate_left(29);
        }
    }

    pub fn finish(mut self) -> u64 {
        self.carry[self.carried..].fill(0);
        let block = self.carry;
        self.block(&block);
        self.lanes.iter().fold(self.total, |sum, lane| mix(sum ^ lane))
    }
}

pub fn digest(bytes: &[u8]) -> u64 {
    let mut digest = Digest::new();
    digest.update(bytes);
    digest.finish()
}

/// splitmix64's last step: every output bit depends on every input bit.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(ODD);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

pub fn hex(value: u64) -> [u8; 16] {
    std::array::from_fn(|at| b"0123456789abcdef"[(value >> (60 - 4 * at) & 15) as usize])
}

/// How a mock engine is to answer; travels in the header field `x-mock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// One reply of 1 KB, no stream.
    Plain,
    /// A stream as fast as the sockets take it, one event a turn.
    Flat,
    /// One long reply that is neither JSON nor a stream.
    Speech,
    /// All streams of an engine in one decode step of 20-30 ms, as continuous batching does.
    Step,
    /// Steps of 20-30 ms, each stream at a time of its own.
    Phase,
    /// Head and first event, then silence.
    Hold,
}

const PACES: [(Pace, &str); 6] = [
    (Pace::Plain, "plain"),
    (Pace::Speech, "speech"),
    (Pace::Flat, "flat"),
    (Pace::Step, "step"),
    (Pace::Phase, "phase"),
    (Pace::Hold, "hold"),
];

impl Pace {
    pub fn name(self) -> &'static str {
        PACES.iter().find(|(pace, _)| *pace == self).expect("all are listed").1
    }
}

impl std::str::FromStr for Pace {
    type Err = ();
    fn from_str(text: &str) -> Result<Pace, ()> {
        PACES.iter().find(|(_, name)| *name == text).map(|(pace, _)| *pace).ok_or(())
    }
}

/// `pace;tokens` as written by [`Request`].
pub fn parse_mock(value: &[u8]) -> Option<(Pace, u32)> {
    let (pace, tokens) = std::str::from_utf8(value).ok()?.split_once(';')?;
    Some((pace.parse().ok()?, tokens.parse().ok()?))
}

/// A chat request, with places for what changes from one sending to the next.
#[derive(Clone)]
pub struct Request {
    pub bytes: Vec<u8>,
    body_at: usize,
    id_at: usize,
    tokens_at: usize,
}

impl Request {
    /// `body_bytes` is exact. The body is as the openai SDK writes it: messages first, `model` after them.
    pub fn new(pace: Pace, body_bytes: usize) -> Request {
        let stream = if matches!(pace, Pace::Plain | Pace::Speech) { "" } else { ",\"stream\":true" };
        let tail = format!("\"}}],\"model\":\"tiny\",\"max_tokens\":100,\"temperature\":0.7{stream}}}");
        let id = "0000000000000000";
        let conversation_bytes = body_bytes.saturating_sub(tail.len() + id.len());
        let mut body = conversation(conversation_bytes);
        let id_at = body.len();
        body.extend_from_slice(id.as_bytes());
        body.extend_from_slice(tail.as_bytes());
        let before = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n\
                      Content-Type: application/json\r\nUser-Agent: OpenAI/Python 2.8.0\r\n\
                      Authorization: Bearer sk-bench\r\nx-mock: ";
        let head = format!("{before}{};{:06}\r\nContent-Length: {}\r\n\r\n", pace.name(), 0, body.len());
        let tokens_at = before.len() + pace.name().len() + 1;
        let body_at = head.len();
        let mut bytes = head.into_bytes();
        bytes.append(&mut body);
        Request { bytes, body_at, id_at: body_at + id_at, tokens_at }
    }

    /// Makes the request unlike any other from its first words on, not only by its last ones: a prompt that nobody
    /// holds.
    pub fn fresh(mut self) -> Request {
        let first = self.bytes[self.body_at..].windows(FIRST_WORDS.len()).position(|words| words == FIRST_WORDS);
        self.id_at = self.body_at + first.expect("a conversation begins with them");
        self
    }

    /// Makes this sending unlike any other. Returns the digest from which the reply follows.
    pub fn stamp(&mut self, id: u64, tokens: u32) -> u64 {
        self.bytes[self.id_at..self.id_at + 16].copy_from_slice(&hex(id));
        self.bytes[self.tokens_at..self.tokens_at + 6].copy_from_slice(format!("{tokens:06}").as_bytes());
        digest(&self.bytes[self.body_at..])
    }
}

/// What a conversation's first message begins with: at least as long as an id.
const FIRST_WORDS: &[u8] = b"You are a helpful assistant";

/// The open start of a conversation, `bytes` long: turns of about 2 KB, with the escapes and the odd
/// non-ASCII letter that prose and code bring into JSON.
fn conversation(bytes: usize) -> Vec<u8> {
    const OPEN: &str = "{\"messages\":[{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"}";
    const WORDS: [&str; 16] = [
        "the ",
        "cache ",
        "holds ",
        "a prefix ",
        "of ",
        "every ",
        "prompt, ",
        "and ",
        "routes ",
        "requests ",
        "to ",
        "engines.\\n",
        "It said \\\"yes\\\" ",
        "na\u{ef}ve ",
        "fn main() ",
        "1,024 ",
    ];
    let mut text = String::from(OPEN);
    let mut seed = 1;
    let mut turn_ends_at = 0;
    let mut turn = 0;
    loop {
        if text.len() >= turn_ends_at {
            // A turn that would not fit whole is not begun; the rest is padded below.
            if turn > 0 && text.len() + 200 > bytes {
                break;
            }
            let role = if turn % 2 == 0 { "user" } else { "assistant" };
            if turn > 0 {
                text.push_str("\"}");
            }
            text.push_str(&format!(",{{\"role\":\"{role}\",\"content\":\""));
            turn += 1;
            turn_ends_at = text.len() + 2000;
        }
        seed = mix(seed);
        let word = WORDS[(seed % 16) as usize];
        if text.len() + word.len() > bytes {
            break;
        }
        text.push_str(word);
    }
    let mut text = text.into_bytes();
    text.resize(text.len().max(bytes), b'x');
    text
}

/// The 1 KB reply.
pub fn plain_reply(digest: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity(PLAIN_BYTES);
    body.extend_from_slice(b"{\"id\":\"chatcmpl-");
    body.extend_from_slice(&hex(digest));
    body.extend_from_slice(b"\",\"object\":\"chat.completion\",\"created\":");
    body.extend_from_slice(CREATED.as_bytes());
    body.extend_from_slice(
        b",\"model\":\"tiny\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"",
    );
    let tail =
        b"\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":27,\"total_tokens\":127,\
                 \"completion_tokens\":100}}";
    let mut step = 0;
    while body.len() < PLAIN_BYTES - tail.len() {
        let text = hex(mix(digest.wrapping_add(step)));
        let count = text.len().min(PLAIN_BYTES - tail.len() - body.len());
        body.extend_from_slice(&text[..count]);
        step += 1;
    }
    body.extend_from_slice(tail);
    body
}

/// The 1 MB reply: its first bytes tell the request, the others differ from place to place.
pub fn speech_reply(digest: u64) -> Vec<u8> {
    static REST: std::sync::LazyLock<Vec<u8>> =
        std::sync::LazyLock::new(|| (0..SPEECH_BYTES as u64 / 8).flat_map(|place| mix(place).to_le_bytes()).collect());
    let mut body = REST.clone();
    body[..16].copy_from_slice(&hex(digest));
    body
}

const EVENT_START: &[u8] = b"data: {\"id\":\"chatcmpl-";
const EVENT_CREATED: &[u8] = b"\",\"object\":\"chat.completion.chunk\",\"created\":";
const SENT_AT: usize = EVENT_START.len() + 16 + EVENT_CREATED.len();
/// Where an event says when it was sent; `[DONE]` does not.
pub const SENT: Range<usize> = SENT_AT..SENT_AT + sent::DIGITS;

/// Appends event `index` of a stream of `tokens`, sent at `sent_us`: 0 opens the role, 1 to `tokens` are tokens,
/// one more is `[DONE]`. The shape and length are those of vLLM's events.
pub fn push_event(out: &mut Vec<u8>, digest: u64, index: u32, tokens: u32, sent_us: u64) {
    if index > tokens {
        out.extend_from_slice(b"data: [DONE]\n\n");
        return;
    }
    out.extend_from_slice(EVENT_START);
    out.extend_from_slice(&hex(digest));
    out.extend_from_slice(EVENT_CREATED);
    out.extend_from_slice(&sent::write(sent_us));
    out.extend_from_slice(b",\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{");
    if index == 0 {
        out.extend_from_slice(b"\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],");
        out.extend_from_slice(b"\"prompt_token_ids\":null,\"prompt_text\":null}\n\n");
    } else {
        out.extend_from_slice(b"\"content\":\" tok");
        let mut digits = [0; 6];
        let mut rest = index;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        out.extend_from_slice(&digits);
        out.extend_from_slice(b"\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_does_not_depend_on_the_cut() {
        let bytes: Vec<u8> = (0..200u8).collect();
        for cut in 0..=bytes.len() {
            let mut pieces = Digest::new();
            pieces.update(&bytes[..cut]);
            pieces.update(&bytes[cut..]);
            assert_eq!(pieces.finish(), digest(&bytes), "cut at {cut}");
        }
        assert_ne!(digest(&bytes), digest(&bytes[1..]));
        assert_ne!(digest(b"a"), digest(b"a\0"));
    }

    #[test]
    fn sizes_are_what_the_scenarios_say() {
        for body_bytes in [1024, 131_072, 1_000_000] {
            let request = Request::new(Pace::Plain, body_bytes);
            assert_eq!(request.bytes.len() - request.body_at, body_bytes);
        }
        assert_eq!(plain_reply(7).len(), PLAIN_BYTES);
        let mut event = Vec::new();
        push_event(&mut event, 7, 1, 100, 3);
        assert!((200..=240).contains(&event.len()), "{}", event.len());
    }

    #[test]
    fn a_fresh_request_is_another_from_its_first_words_on() {
        let mut request = Request::new(Pace::Plain, 4_096);
        let said = request.bytes[request.body_at..].to_vec();
        let begins_alike = |request: &Request| request.bytes[request.body_at..].starts_with(&said[..200]);
        request.stamp(7, 100);
        assert!(begins_alike(&request));
        let mut request = Request::new(Pace::Plain, 4_096).fresh();
        assert!(begins_alike(&request));
        assert_ne!(request.stamp(7, 100), request.stamp(8, 100));
        assert!(!begins_alike(&request) && request.bytes[request.body_at..].starts_with(&said[..40]));
        assert_eq!(request.bytes.len() - request.body_at, 4_096);
    }

    #[test]
    fn a_stamp_changes_the_digest_and_the_mock_field() {
        let mut request = Request::new(Pace::Flat, 1024);
        assert_ne!(request.stamp(1, 100), request.stamp(2, 100));
        let head = &request.bytes[..request.body_at];
        let mock = crate::http::header(head, "x-mock").unwrap();
        assert_eq!(parse_mock(mock), Some((Pace::Flat, 100)));
    }
}
