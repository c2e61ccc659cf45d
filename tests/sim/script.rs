//! What the bytes of one engine's reply mean for the account of its endpoint, by the rules of the README and none of the
//! front's own code.

use std::ops::Range;

/// So much of an error's body is judged by its words.
const JUDGED_MAX: usize = 4 << 10;
/// Or what is there of them in so much, with its framing.
const FRAMED_MAX: usize = 8 << 10;

/// What a reply's head, and for some errors its body, say of the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Neutral,
    /// Enough to do, or an error to what is only read: charged, not blamed.
    Busy,
    Fault,
    /// A fault, and nothing more is to go there.
    Drains,
}

/// One reply as it is sent, with the places in it where something follows.
#[derive(Debug)]
pub struct Script {
    pub wire: Vec<u8>,
    /// The front must find it broken, and says where by itself.
    pub wild: bool,
    /// The final head ends here, and what is judged with it.
    pub head_end: usize,
    pub judged_end: usize,
    /// Its last byte has come; `None`: with the engine's FIN.
    pub end: Option<usize>,
    pub verdict: Verdict,
    /// Its last byte is a good answer.
    pub good: bool,
    /// Its final head tells that nothing was computed, or that its client is let in.
    pub refuses: bool,
    pub lets_in: bool,
    pub proves: bool,
    pub tunnel: bool,
    /// Where its body's bytes lie, piece by piece as they are framed.
    data: Vec<Range<usize>>,
    stream: bool,
    /// Where the event of an engine's own error becomes whole, in a stream that has one.
    error: Option<usize>,
}

/// How a reply is put together.
pub struct Shape<'a> {
    pub status: u16,
    /// To a request that an engine has to compute something for.
    pub proves: bool,
    pub names_a_time: bool,
    pub stream: bool,
    pub head: &'a [u8],
    /// The body as it is framed, and where in that its bytes lie.
    pub framed: &'a [u8],
    pub data: Vec<Range<usize>>,
    pub framing: Framed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framed {
    Nothing,
    Length,
    Chunks,
    UntilClose,
    Tunnel,
}

impl Script {
    pub fn new(shape: Shape<'_>) -> Script {
        let Shape { status, proves, names_a_time, stream, head, framed, data, framing } = shape;
        let head_end = head.len();
        let judges = matches!(status, 500 | 503) && matches!(framing, Framed::Length | Framed::Chunks);
        let runs = data.iter().filter(|_| judges).cloned().flatten();
        let judged: Vec<usize> = runs.take(JUDGED_MAX).collect();
        let words: Vec<u8> = judged.iter().map(|at| framed[*at]).collect();
        // Where there is less, it is known with the end.
        let judged_len = match judged.last() {
            Some(last) if judged.len() == JUDGED_MAX => last + 1,
            _ if judges => framed.len(),
            _ => 0,
        };
        let places: Vec<usize> =
            data.iter().filter(|_| stream).cloned().flatten().take_while(|at| *at < framed.len()).collect();
        let told: Vec<u8> = places.iter().map(|at| framed[*at]).collect();
        let error = error_end(&told).map(|at| head_end + places[at]);
        let is_for_now = names_a_time || framing == Framed::UntilClose;
        let wire = [head, framed].concat();
        // What is only read says nothing of the engine.
        let verdict = match verdict(status, is_for_now, &words) {
            Verdict::Fault if !proves => Verdict::Busy,
            verdict => verdict,
        };
        let end = matches!(framing, Framed::Nothing | Framed::Length | Framed::Chunks).then_some(wire.len());
        Script {
            wild: false,
            head_end,
            judged_end: head_end + if framing == Framed::Chunks { judged_len.min(FRAMED_MAX) } else { judged_len },
            end,
            verdict,
            good: proves && (200..300).contains(&status),
            refuses: (400..500).contains(&status) || status == 503 && says_full(&words) || verdict == Verdict::Drains,
            lets_in: (200..300).contains(&status),
            proves,
            tunnel: framing == Framed::Tunnel,
            data: data.into_iter().map(|run| run.start + head_end..run.end + head_end).collect(),
            stream,
            error,
            wire,
        }
    }

    /// A reply of which nothing is known but that the front must refuse it.
    pub fn wild(wire: Vec<u8>) -> Script {
        let len = wire.len();
        Script {
            wild: true,
            head_end: len,
            judged_end: len,
            end: None,
            verdict: Verdict::Neutral,
            good: false,
            refuses: false,
            lets_in: false,
            proves: false,
            tunnel: false,
            data: Vec::new(),
            stream: false,
            error: None,
            wire,
        }
    }

    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// Whether a stream has told of anything once so much of it was heard, in a whole line; what is no stream has by
    /// its head.
    pub fn spoke(&self, heard: u64) -> bool {
        let heard = self.wire.len().min(heard as usize);
        let runs = self.data.iter().flat_map(|run| &self.wire[run.start.min(heard)..run.end.min(heard)]);
        let body: Vec<u8> = runs.copied().collect();
        let mut lines = body.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
        !self.stream || lines.any(|line| line.starts_with(b"data:"))
    }

    /// Whether with these bytes of it the event of an engine's own error has become whole.
    pub fn tells_of_error(&self, read: Range<usize>) -> bool {
        self.error.is_some_and(|at| read.contains(&at))
    }
}

fn verdict(status: u16, is_for_now: bool, judged: &[u8]) -> Verdict {
    let says = |words: &str| memchr::memmem::find(judged, words.as_bytes()).is_some();
    match status {
        429 => Verdict::Busy,
        503 if says_full(judged) || is_for_now => Verdict::Busy,
        500 if says("cannot schedule new futures") => Verdict::Drains,
        500 | 502 | 503 | 504 => Verdict::Fault,
        _ => Verdict::Neutral,
    }
}

fn says_full(judged: &[u8]) -> bool {
    let says = |words: &str| memchr::memmem::find(judged, words.as_bytes()).is_some();
    says("is currently busy and cannot accept new requests") || says("The request queue is full")
}

/// Where the line ends that tells of an error.
fn error_end(body: &[u8]) -> Option<usize> {
    let at = memchr::memmem::find(body, b"data: {\"error\"")?;
    let end = at + memchr::memchr(b'\n', &body[at..])?;
    memchr::memmem::find(&body[at..end], b"\"code\": 5").map(|_| end)
}

/// Whether a client may be told of an error behind these bytes of a stream.
pub fn may_tell_behind(stream: &[u8]) -> bool {
    (stream.is_empty() || stream.ends_with(b"\n\n")) && !stream.ends_with(b"data: [DONE]\n\n")
}

/// Whether `got` is the beginning of a stream with one event of the front's behind it, perhaps cut.
pub fn is_told(got: &[u8], stream: &[u8]) -> bool {
    const EVENT: &[u8] = b"data: {\"error\":{\"message\":";
    let same = got.iter().zip(stream).take_while(|(a, b)| a == b).count();
    (same.saturating_sub(EVENT.len())..=same).any(|at| {
        let (before, told) = got.split_at(at);
        let begins = told.starts_with(EVENT) || EVENT.starts_with(told);
        let ends = memchr::memmem::find(told, b"\n\n").is_none_or(|end| end + 2 == told.len());
        begins && ends && may_tell_behind(before)
    })
}
