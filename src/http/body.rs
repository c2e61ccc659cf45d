//! The state of one message's body while it is passed on, whatever its framing.

use super::chunk::{Chunked, Kind, Part};
use super::framing::BodyLength;
use super::reply::{Cause, Fault};

/// A body, as far as it has come.
#[derive(Debug)]
pub struct Body(State);

#[derive(Debug)]
enum State {
    /// This many bytes are to come.
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    /// Ended by the close of its connection.
    Closed,
}

// There is one for each direction of every connection.
const _: () = assert!(size_of::<Body>() <= 64, "a body's state is small");

impl Body {
    /// Makes a body of which nothing has come.
    pub const fn new(length: BodyLength) -> Body {
        Body(match length {
            BodyLength::None => State::Length(0),
            BodyLength::Length(length) => State::Length(length),
            BodyLength::Chunked => State::Chunked(Chunked::new()),
            BodyLength::UntilClose => State::UntilClose,
        })
    }

    /// Says what a leading part of `bytes` is. Call again with the bytes after it until [`Body::done`]; bytes after the
    /// body's end belong to the next message and are never taken.
    #[inline]
    pub fn next(&mut self, bytes: &[u8]) -> Result<Part, Fault> {
        match &mut self.0 {
            State::Chunked(chunked) => chunked.next(bytes),
            State::Length(left) => {
                let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= len as u64;
                Ok(Part { len, kind: Kind::Pass { start: 0, end: len } })
            }
            State::UntilClose => Ok(Part { len: bytes.len(), kind: Kind::Pass { start: 0, end: bytes.len() } }),
            State::Closed => Ok(Part { len: 0, kind: Kind::Pass { start: 0, end: 0 } }),
        }
    }

    /// Whether all of it has come.
    #[inline]
    pub fn done(&self) -> bool {
        match &self.0 {
            State::Length(left) => *left == 0,
            State::Chunked(chunked) => chunked.done(),
            State::UntilClose => false,
            State::Closed => true,
        }
    }

    /// Notes that the peer sends no more. A fault unless the body was over, or ends with its connection.
    pub fn on_close(&mut self) -> Result<(), Fault> {
        if matches!(self.0, State::UntilClose) {
            self.0 = State::Closed;
        }
        match self.done() {
            true => Ok(()),
            false => Err(Fault::new(Cause::EarlyEnd, "the connection closed before the end of the body")),
        }
    }

    /// Whether a chunk of ours may follow what has come.
    pub fn between_chunks(&self) -> bool {
        matches!(&self.0, State::Chunked(chunked) if chunked.at_start())
    }

    /// Counts bytes of a body of known length that were passed on another way.
    pub fn passed(&mut self, len: u64) {
        if let State::Length(left) = &mut self.0 {
            *left = left.saturating_sub(len);
        }
    }

    /// Returns the number of bytes to come, if it is known.
    pub fn left(&self) -> Option<u64> {
        match &self.0 {
            State::Length(left) => Some(*left),
            State::Closed => Some(0),
            State::Chunked(_) | State::UntilClose => None,
        }
    }

    /// Appends the end that takes the place of a part of [`Kind::End`]; nothing for a body without chunks.
    pub fn write_end(&self, out: &mut Vec<u8>) {
        if let State::Chunked(chunked) = &self.0 {
            chunked.write_end(out);
        }
    }
}
