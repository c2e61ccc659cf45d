//! ZMTP 3.0 and 3.1 with the NULL mechanism, as bytes in and bytes out: the part of ZeroMQ that is needed to subscribe
//! and to ask a ROUTER. <https://rfc.zeromq.org/spec/37/>
//!
//! Written here because memory must stay bounded whatever the peer sends: the `zeromq` crate (0.6.0) reserves whatever
//! length a frame announces, panics on a command that is cut short, and ends a connection at a heartbeat.

use std::ops::Range;

use thiserror::Error;

use super::command;
use crate::limits::{KV_BYTES_KEPT, KV_MESSAGE_BYTES_MAX};

/// Length of the greeting, which both sides send first.
const GREETING_BYTES: usize = 64;
/// Most frames of a message. Engines send three or four.
const FRAMES_MAX: usize = 8;
/// Longest command.
const COMMAND_BYTES_MAX: usize = 4 << 10;
/// Least room for one read.
const ROOM_MIN: usize = 16 << 10;
/// Most bytes that wait for a peer to take them: a peer that asks has to read the answers.
const OUTBOX_BYTES_MAX: usize = 4 << 10;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The kind of our socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Subscribes to all topics that begin with this one.
    Subscriber(Vec<u8>),
    /// Sends requests to a ROUTER.
    Dealer,
}

impl Role {
    fn name(&self) -> &'static [u8] {
        match self {
            Role::Subscriber(_) => b"SUB",
            Role::Dealer => b"DEALER",
        }
    }

    fn speaks_with(&self, other: &[u8]) -> bool {
        match self {
            Role::Subscriber(_) => matches!(other, b"PUB" | b"XPUB"),
            Role::Dealer => matches!(other, b"ROUTER" | b"REP" | b"DEALER"),
        }
    }
}

/// Why a connection is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Broken {
    /// A wrong greeting, frame or command.
    #[error("it does not speak ZMTP: {0}")]
    Garbage(&'static str),
    /// The peer speaks an older version, or another security mechanism.
    #[error("it speaks ZMTP otherwise: {0}")]
    Otherwise(&'static str),
    /// The peer is no publisher, or no ROUTER.
    #[error("it is another kind of socket")]
    Stranger,
    /// The peer sent an ERROR.
    #[error("it refuses us with an ERROR")]
    Refused,
    /// A message beyond the bounds.
    #[error("a message is longer than {KV_MESSAGE_BYTES_MAX} bytes or has more than {FRAMES_MAX} frames")]
    TooLong,
    /// The peer asks without reading the answers.
    #[error("it takes no answers")]
    Deaf,
}

/// What the bytes so far have come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More bytes are needed.
    More,
    /// The handshake is done.
    Open,
    /// A message is here, until [`Wire::advance`] is called again.
    Message,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Greeting,
    Ready,
    Open,
}

/// One connection's bytes.
#[derive(Debug)]
pub struct Wire {
    role: Role,
    phase: Phase,
    /// The minor version of the peer, which speaks 3.x.
    minor: u8,
    /// `inbox[from..to]` was received and is still needed; its first `scanned` bytes were parsed.
    inbox: Vec<u8>,
    from: usize,
    to: usize,
    scanned: usize,
    /// Ranges of the message's frames, counted from `from`.
    frames: [Range<usize>; FRAMES_MAX],
    count: usize,
    whole: bool,
    outbox: Vec<u8>,
}

impl Wire {
    /// Makes the state of a new connection, with our greeting to be sent.
    pub fn new(role: Role) -> Wire {
        let (inbox, frames) = (Vec::new(), std::array::from_fn(|_| 0..0));
        let (from, to, scanned, count) = (0, 0, 0, 0);
        let outbox = greeting().to_vec();
        Wire { role, phase: Phase::Greeting, minor: 0, inbox, from, to, scanned, frames, count, whole: false, outbox }
    }

    /// Returns room for received bytes; [`Wire::received`] then says how many came.
    pub fn room(&mut self) -> &mut [u8] {
        if self.inbox.len() - self.to < ROOM_MIN {
            self.inbox.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        if self.inbox.len() - self.to < ROOM_MIN {
            // It grows only by what has come, never by what is announced. No message is longer than the bound, which
            // ends this.
            let length = (2 * self.inbox.len()).max(self.to + ROOM_MIN).min(KV_MESSAGE_BYTES_MAX + KV_BYTES_KEPT);
            self.inbox.resize(length, 0);
        }
        self.inbox.get_mut(self.to..).unwrap_or_default()
    }

    /// Notes that so many bytes were put into the room.
    pub fn received(&mut self, bytes: usize) {
        self.to = (self.to + bytes).min(self.inbox.len());
    }

    /// Bytes of memory held for the peer.
    pub fn held(&self) -> usize {
        self.inbox.capacity() + self.outbox.capacity()
    }

    /// Bytes to be sent to the peer.
    pub fn outbox(&self) -> &[u8] {
        &self.outbox
    }

    /// Notes that so many bytes of the outbox were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outbox.drain(..bytes.min(self.outbox.len()));
    }

    /// Queues a message to be sent.
    pub fn send(&mut self, frames: &[&[u8]]) {
        for (place, frame) in frames.iter().enumerate() {
            let more = if place + 1 < frames.len() { MORE } else { 0 };
            put_frame(&mut self.outbox, more, &[frame]);
        }
    }

    /// Asks the peer for a sign of life. False: its version has none.
    pub fn ping(&mut self) -> bool {
        let can = self.minor >= 1 && self.phase == Phase::Open;
        if can {
            put_frame(&mut self.outbox, COMMAND, &[command::PING_WITHOUT_LIMIT]);
        }
        can
    }

    /// Returns the frames of the message that [`Progress::Message`] announced.
    pub fn message(&self) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        let unread = self.inbox.get(self.from..self.to).unwrap_or_default();
        let count = if self.whole { self.count } else { 0 };
        self.frames.iter().take(count).map(move |frame| unread.get(frame.clone()).unwrap_or_default())
    }

    /// Parses on to the next thing that happens.
    pub fn advance(&mut self) -> Result<Progress, Broken> {
        if self.whole {
            (self.whole, self.count) = (false, 0);
            self.release();
        }
        if self.phase == Phase::Greeting && !self.greeted()? {
            return Ok(Progress::More);
        }
        while let Some((flags, body)) = self.frame()? {
            if flags & COMMAND != 0 {
                if self.command(body)? {
                    return Ok(Progress::Open);
                }
                continue;
            }
            if self.phase != Phase::Open {
                return Err(Broken::Garbage("a message before the handshake"));
            }
            *self.frames.get_mut(self.count).ok_or(Broken::TooLong)? = body;
            self.count += 1;
            if flags & MORE == 0 {
                self.whole = true;
                return Ok(Progress::Message);
            }
        }
        Ok(Progress::More)
    }

    /// Lets go of the parsed bytes.
    fn release(&mut self) {
        self.from += std::mem::take(&mut self.scanned);
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            if self.inbox.len() > KV_BYTES_KEPT {
                self.inbox = Vec::new();
            }
        }
    }

    /// Whether the peer's greeting is here. A wrong one is refused at its first wrong byte.
    fn greeted(&mut self) -> Result<bool, Broken> {
        let unread = self.inbox.get(self.from..self.to).unwrap_or_default();
        let byte = |at: usize| unread.get(at).copied();
        if byte(0).is_some_and(|byte| byte != 0xff) || byte(9).is_some_and(|byte| byte != 0x7f) {
            return Err(Broken::Garbage("no greeting"));
        }
        if byte(10).is_some_and(|major| major < 3) {
            return Err(Broken::Otherwise("version 3 is the oldest that is spoken here"));
        }
        let Some(greeting) = unread.first_chunk::<GREETING_BYTES>() else { return Ok(false) };
        let [_, _, _, _, _, _, _, _, _, _, major, minor, mechanism @ ..] = greeting;
        if !mechanism.starts_with(b"NULL\0") {
            return Err(Broken::Otherwise("only the NULL mechanism is spoken here"));
        }
        self.minor = if *major > 3 { 1 } else { *minor };
        self.scanned = GREETING_BYTES;
        self.phase = Phase::Ready;
        self.release();
        put_frame(&mut self.outbox, COMMAND, &[command::READY, &command::socket_type(self.role.name())]);
        Ok(true)
    }

    /// Returns the next frame, if all of it is here: its flags, and the range of its body, counted from `from`.
    fn frame(&mut self) -> Result<Option<(u8, Range<usize>)>, Broken> {
        let unread = self.inbox.get(self.from + self.scanned..self.to).unwrap_or_default();
        let Some(&flags) = unread.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(Broken::Garbage("no such frame"));
        }
        let (header, length) = match (flags & LONG, unread) {
            (0, [_, length, ..]) => (2, u64::from(*length)),
            (LONG, [_, rest @ ..]) if rest.len() >= 8 => {
                (9, rest.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes)))
            }
            _ => return Ok(None),
        };
        let begin = self.scanned + header;
        let most = if flags & COMMAND != 0 { COMMAND_BYTES_MAX } else { KV_MESSAGE_BYTES_MAX };
        let length = usize::try_from(length).ok().filter(|length| *length <= most).ok_or(Broken::TooLong)?;
        let end = begin + length;
        if end > KV_MESSAGE_BYTES_MAX + COMMAND_BYTES_MAX {
            return Err(Broken::TooLong);
        }
        if self.from + end > self.to {
            return Ok(None);
        }
        self.scanned = end;
        Ok(Some((flags, begin..end)))
    }

    /// Handles a command; true if it completes the handshake. Commands may come between the frames of a message.
    fn command(&mut self, body: Range<usize>) -> Result<bool, Broken> {
        let bytes = self.inbox.get(self.from + body.start..self.from + body.end).unwrap_or_default();
        let (name, rest) = command::name(bytes).ok_or(Broken::Garbage("a command without a name"))?;
        let mut opened = false;
        match name {
            b"READY" if self.phase == Phase::Ready => {
                let other =
                    command::socket_type_of(rest).ok_or(Broken::Garbage("a READY without its kind of socket"))?;
                if !self.role.speaks_with(other) {
                    return Err(Broken::Stranger);
                }
                (self.phase, opened) = (Phase::Open, true);
                self.subscribe();
            }
            b"ERROR" => return Err(Broken::Refused),
            _ if self.phase == Phase::Ready => return Err(Broken::Garbage("a command before READY")),
            b"PING" => {
                let context = command::ping_context(rest).ok_or(Broken::Garbage("a PING that is too long or short"))?;
                put_frame(&mut self.outbox, COMMAND, &[command::PONG, context]);
                if self.outbox.len() > OUTBOX_BYTES_MAX {
                    return Err(Broken::Deaf);
                }
            }
            // A PONG only shows that bytes come. Other commands are unknown.
            _ => {}
        }
        if self.count == 0 {
            self.release();
        }
        Ok(opened)
    }

    fn subscribe(&mut self) {
        let Role::Subscriber(topic) = &self.role else { return };
        match self.minor {
            0 => put_frame(&mut self.outbox, 0, &[&[1], topic]),
            _ => put_frame(&mut self.outbox, COMMAND, &[command::SUBSCRIBE, topic]),
        }
    }
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    let (start, mechanism) = ([0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1], *b"NULL");
    greeting.iter_mut().zip(start.into_iter().chain(mechanism)).for_each(|(to, byte)| *to = byte);
    greeting
}

/// Writes one frame whose body is these parts.
fn put_frame(outbox: &mut Vec<u8>, flags: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    match u8::try_from(length) {
        Ok(length) => outbox.extend([flags, length]),
        Err(_) => {
            outbox.push(flags | LONG);
            outbox.extend((length as u64).to_be_bytes());
        }
    }
    parts.iter().for_each(|part| outbox.extend_from_slice(part));
}
