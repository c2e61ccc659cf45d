//! What lies between the texts of two messages, as nearly every client writes it, read at once: of a long conversation a seventh of the scan
//! went into its bytes one by one. Whatever else is written there is left to [`super::machine`], and so is this where a piece ends in it.

use super::fields::Inner;
use super::frames::Frame;
use super::machine::{Scan, State};

/// How JSON is written without spaces, and as Python's `json` does by default: up to the message's bracket, up to its role, behind that.
const STYLES: [[&[u8]; 3]; 2] =
    [[b"},{", b"\"role\":\"", b"\",\"content\":\""], [b"}, {", b"\"role\": \"", b"\", \"content\": \""]];

const ROLES: [&[u8]; 5] = [b"assistant", b"user", b"tool", b"system", b"developer"];

/// The end of a message, and the next one up to its text.
struct Turn {
    role: &'static [u8],
    /// Bytes up to its bracket, with it.
    opened: usize,
    /// Bytes up to its role's closing quote, with it.
    named: usize,
    /// Bytes up to its text.
    whole: usize,
}

impl Turn {
    #[inline]
    fn of(bytes: &[u8]) -> Option<Turn> {
        let [bracket, key, tail] = *STYLES.iter().find(|[bracket, ..]| bytes.starts_with(bracket))?;
        let behind = bytes.strip_prefix(bracket)?.strip_prefix(key)?;
        let role = *ROLES.iter().find(|role| behind.starts_with(role))?;
        behind.strip_prefix(role)?.starts_with(tail).then(|| {
            let (opened, named) = (bracket.len(), bracket.len() + key.len() + role.len() + 1);
            Turn { role, opened, named, whole: named - 1 + tail.len() }
        })
    }
}

impl Scan {
    /// Behind a message's text, `used` bytes into `bytes`: goes on to the text of the next one, if that is what follows. Does what these bytes do one
    /// by one, and stops where they would end the section. Says how many bytes are used by now.
    #[inline]
    pub(super) fn turn_behind(&mut self, bytes: &[u8], used: usize) -> usize {
        if self.state != State::AfterValue || self.frames.top() != Frame::Message {
            return used;
        }
        let Some(turn) = bytes.get(used..).and_then(Turn::of) else { return used };
        self.frame_closes();
        if self.state != State::AfterValue || self.frames.top() != Frame::Items {
            return used + 1;
        }
        self.container_begins(b'{', self.at + used as u64);
        if self.state != State::FirstKey {
            return used + turn.opened;
        }
        self.inner = Inner::Role;
        self.facts.keep(Frame::Message, Some(turn.role));
        self.value_ends(self.at + (used + turn.named) as u64);
        if self.state != State::AfterValue {
            return used + turn.named;
        }
        self.inner = Inner::Content;
        self.string_begins(self.at + (used + turn.whole) as u64);
        used + turn.whole
    }
}
