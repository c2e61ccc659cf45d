//! One request and what must come back, and the ways it can fail.

use std::time::{Duration, Instant};

use peers::content::{self, Pace, Request};
use peers::http;
use peers::verify::Expected;

/// What a client does in one exchange.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A request of 1 KB and its reply, on a kept connection.
    Short,
    /// The same on a connection of its own.
    Fresh,
    /// The same, hundreds of connections at once.
    Burst,
    /// Tokens in decode steps, read as they come.
    Stream,
    /// 128 KB to 1 MB of prompt, a short reply.
    Prompt,
    /// 1 MB of audio.
    Speech,
    /// A long reply, read a few KB at a time.
    Slow,
    /// The client leaves in the middle.
    Vanishing,
}

impl Kind {
    pub const ALL: [Kind; 8] =
        [Kind::Short, Kind::Fresh, Kind::Burst, Kind::Stream, Kind::Prompt, Kind::Speech, Kind::Slow, Kind::Vanishing];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Short => "short",
            Kind::Fresh => "fresh",
            Kind::Burst => "burst",
            Kind::Stream => "stream",
            Kind::Prompt => "prompt",
            Kind::Speech => "speech",
            Kind::Slow => "slow",
            Kind::Vanishing => "vanishing",
        }
    }
}

/// When a client that vanishes does so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// After so many bytes of its request, and a while.
    Sent(usize, Duration),
    /// After so many events of its stream.
    Events(u32),
}

pub struct Exchange {
    pub kind: Kind,
    pub bytes: Vec<u8>,
    pub sent: usize,
    pub expected: Expected,
    /// When the request was due, whether sent then or not.
    pub started: Instant,
    pub first_event: Option<Instant>,
    /// Port of the engine that the reply comes from, once its head has come.
    pub engine: Option<u16>,
    pub leave: Option<Leave>,
    pub head_seen: bool,
    pub closes: bool,
    /// The reply's status, if it is not 200, and what follows its head.
    pub refusal: Option<(u16, Vec<u8>)>,
}

impl Exchange {
    /// The bytes that are to be sent: a client that vanishes may send fewer than all.
    pub fn send_until(&self) -> usize {
        match self.leave {
            Some(Leave::Sent(bytes, _)) => bytes.min(self.bytes.len()),
            _ => self.bytes.len(),
        }
    }

    /// Half a request that nobody completes: a front may end its connection without an answer.
    pub fn stays_unanswered(&self) -> bool {
        matches!(self.leave, Some(Leave::Sent(..))) && self.send_until() < self.bytes.len()
    }

    pub fn head(&mut self, head: &[u8]) {
        self.head_seen = true;
        let text = |name| http::header(head, name).and_then(|value| std::str::from_utf8(value).ok());
        self.engine = text("x-engine").and_then(|port| port.parse().ok());
        self.closes = text("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let status = head.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        if status != Some(200) {
            self.refusal = Some((status.unwrap_or(0), Vec::new()));
        }
    }

    /// Takes a piece of the reply's body; returns how many events it completed.
    pub fn body(&mut self, piece: &[u8]) -> Result<u64, Cause> {
        if let Some((_, words)) = &mut self.refusal {
            words.extend_from_slice(piece.get(..piece.len().min(400)).unwrap_or_default());
            return Ok(0);
        }
        if piece.starts_with(b"data: {\"error\"") {
            return Err(Cause::Told(String::from_utf8_lossy(piece).trim().to_string()));
        }
        let events = self.expected.body(piece).map_err(Cause::Wrong)?;
        if events > 0 && self.first_event.is_none() {
            self.first_event = Some(Instant::now());
        }
        Ok(events)
    }

    pub fn end(&mut self) -> Result<(), Cause> {
        if let Some((status, words)) = self.refusal.take() {
            return Err(Cause::Refused(status, String::from_utf8_lossy(&words).into_owned()));
        }
        if self.sent < self.bytes.len() {
            return Err(Cause::Wrong("a reply before the whole request was sent".into()));
        }
        self.expected.end().map_err(Cause::Wrong)
    }
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub enum Cause {
    /// Another status than 200, and its body.
    Refused(u16, String),
    /// An event in its stream says that the engine broke off.
    Told(String),
    /// The connection ended within the reply.
    Cut(String),
    /// The connection ended, or could not be made, before any byte of the reply.
    NoReply(String),
    /// Nothing came for too long.
    Late,
    /// Bytes came that the engine did not send. No fault explains that.
    Wrong(String),
}

impl Cause {
    pub fn name(&self) -> String {
        match self {
            Cause::Refused(status, _) => status.to_string(),
            Cause::Told(_) => "told in the stream".into(),
            Cause::Cut(_) => "cut".into(),
            Cause::NoReply(_) => "no reply".into(),
            Cause::Late => "late".into(),
            Cause::Wrong(_) => "wrong bytes".into(),
        }
    }

    /// What was seen of the failure, in words.
    pub fn words(&self) -> &str {
        match self {
            Cause::Refused(_, words)
            | Cause::Told(words)
            | Cause::Cut(words)
            | Cause::NoReply(words)
            | Cause::Wrong(words) => words,
            Cause::Late => "",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: Kind,
    pub cause: Cause,
    pub engine: Option<u16>,
    pub started: Instant,
    pub at: Instant,
    /// Requests that the connection had served before.
    pub served: u32,
}

/// Requests to choose from, made once; each sending is stamped and unlike any other.
pub struct Book {
    next_id: u64,
    random: u64,
    short: Request,
    stream: Request,
    flat: Request,
    speech: Request,
    prompts: Vec<Request>,
}

/// Conversations that go on: each has its own beginning, and so its own home.
const CONVERSATIONS: u64 = 64;
/// Bytes before a first user message.
const FIRST_WORDS: &[u8] = b"\"role\":\"user\",\"content\":\"";
const PROMPT_BYTES: [usize; 4] = [128 << 10, 256 << 10, 512 << 10, 1 << 20];

impl Book {
    pub fn new() -> Book {
        Book {
            next_id: u64::from(std::process::id()) << 32,
            random: 1,
            short: Request::new(Pace::Plain, 1024),
            stream: Request::new(Pace::Step, 2048),
            flat: Request::new(Pace::Flat, 2048),
            speech: Request::new(Pace::Speech, 1024),
            prompts: PROMPT_BYTES.map(|bytes| Request::new(Pace::Plain, bytes)).to_vec(),
        }
    }

    pub fn random(&mut self, below: u64) -> u64 {
        self.random = content::mix(self.random);
        self.random % below.max(1)
    }

    /// A request of this kind; streams have from `tokens.0` to `tokens.1` tokens.
    pub fn write(&mut self, kind: Kind, tokens: (u32, u32), started: Instant) -> Exchange {
        self.next_id += 1;
        let id = self.next_id;
        let conversation = content::hex(content::mix(self.random(CONVERSATIONS)));
        let tokens = tokens.0 + self.random(u64::from(tokens.1 - tokens.0) + 1) as u32;
        let (long, vanishes_as, at) = (self.random(2) == 0, self.random(4), self.random(PROMPT_BYTES.len() as u64));
        let (request, tokens) = match kind {
            Kind::Short | Kind::Fresh | Kind::Burst => (&mut self.short, 0),
            Kind::Stream => (&mut self.stream, tokens),
            Kind::Speech => (&mut self.speech, 0),
            Kind::Slow if long => (&mut self.speech, 0),
            Kind::Slow => (&mut self.flat, 3000),
            Kind::Vanishing if vanishes_as < 3 => (&mut self.stream, tokens),
            Kind::Prompt | Kind::Vanishing => (&mut self.prompts[at as usize], 0),
        };
        let place = request.bytes.windows(FIRST_WORDS.len()).position(|words| words == FIRST_WORDS);
        let place = place.map_or(0, |place| place + FIRST_WORDS.len());
        request.bytes[place..place + conversation.len()].copy_from_slice(&conversation);
        let digest = request.stamp(id, tokens);
        let expected = match kind {
            Kind::Speech => Expected::speech(digest),
            Kind::Slow if long => Expected::speech(digest),
            _ if tokens > 0 => Expected::stream(digest, tokens),
            _ => Expected::plain(digest),
        };
        let bytes = request.bytes.clone();
        let leave = (kind == Kind::Vanishing).then(|| self.leave(vanishes_as, bytes.len(), tokens));
        Exchange {
            kind,
            bytes,
            sent: 0,
            expected,
            started,
            first_event: None,
            engine: None,
            leave,
            head_seen: false,
            closes: false,
            refusal: None,
        }
    }

    /// Draws when a client leaves: before the end of the head, with the whole request sent, in the stream, or with half
    /// a body.
    fn leave(&mut self, how: u64, length: usize, tokens: u32) -> Leave {
        let wait = Duration::from_millis(self.random(300));
        match how {
            0 => Leave::Sent(1 + self.random(200) as usize, wait),
            1 => Leave::Sent(length, wait / 20),
            2 => Leave::Events(1 + self.random(u64::from(tokens)) as u32),
            _ => Leave::Sent(1000 + self.random(length as u64 - 1000) as usize, wait),
        }
    }
}
