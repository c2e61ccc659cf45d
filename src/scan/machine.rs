//! Bytes into structure: the states of a push parser for one JSON object.
//!
//! Each step uses some bytes of the piece and leaves a state that says what the next byte is. What is open
//! is a small stack of frames where meaning is looked for, and a mere counter of brackets in what is skipped.

use super::facts::{Facts, Opaque, Word};
use super::fields::{Field, Inner};
use super::kernel::{self, Skip};
use super::text::{Decoder, Ended};
use super::{Api, Fault, Needs, Plan, Progress, SESSION_FIELDS_MAX};

/// Deepest nesting in which meaning is looked for; below it values are skipped.
const FRAMES_MAX: usize = 16;
/// Longest number that is read; a longer one is unknown, not an error.
const SCALAR_BYTES_MAX: usize = 24;

/// One scan, reused from body to body.
pub struct Scan {
    pub(super) api: Api,
    pub(super) needs: Needs,
    pub(super) names: SessionNames,
    pub(super) state: State,
    /// Offset in the body of the next byte to be read.
    pub(super) at: u64,
    pub(super) frames: Frames,
    /// The top-level field whose value is being read.
    pub(super) field: Field,
    /// The field of a message or part whose value is being read.
    pub(super) inner: Inner,
    /// Where the top-level value began.
    pub(super) value_start: u64,
    /// Set of top-level fields whose value has begun.
    pub(super) seen: u32,
    pub(super) skip: Skip,
    pub(super) skipped_to: SkippedTo,
    pub(super) decoder: Decoder,
    pub(super) word: Word,
    pub(super) opaque: Opaque,
    pub(super) scalar: Scalar,
    pub(super) facts: Facts,
}

/// What the next byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The body's first byte, or white space before its object.
    Start,
    /// The rest of a byte order mark, this many bytes of it read.
    ByteOrderMark(u8),
    /// Behind `{`: a key or `}`.
    FirstKey,
    /// Behind `,` in an object: a key.
    NextKey,
    /// Inside a key.
    Key,
    /// Behind a key.
    Colon,
    /// A value's first byte.
    Value,
    /// Behind `[`: a value or `]`.
    FirstElement,
    /// Inside a string of the prompt.
    Text,
    /// Inside a string that is kept.
    Word,
    /// Inside a string of which the hash is kept.
    Opaque,
    /// Inside a string or container that is skipped.
    Skip,
    /// Inside a number or literal.
    Scalar,
    /// Behind a value: `,` or the closing bracket.
    AfterValue,
    /// Behind the object: white space.
    Closed,
    /// All needs are met.
    Enough,
    /// The body cannot be scanned.
    Failed(Fault),
}

/// Who gets the raw bytes of a skipped value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SkippedTo {
    Nobody,
    Prompt,
}

/// An open container in which meaning is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    /// The body's object.
    Top,
    /// An array of prompts or messages.
    Items,
    /// The same, of token ids.
    Ids,
    /// One message, or another item.
    Message,
    /// An array of content parts.
    Parts,
    /// One content part.
    Part,
}

impl Frame {
    fn is_array(self) -> bool {
        matches!(self, Frame::Items | Frame::Ids | Frame::Parts)
    }
}

/// The open frames.
pub(super) struct Frames {
    open: [Frame; FRAMES_MAX],
    depth: usize,
}

impl Frames {
    /// The innermost one.
    #[inline]
    pub fn top(&self) -> Frame {
        self.open.get(self.depth).copied().unwrap_or(Frame::Top)
    }

    /// Opens a frame, unless there is no room.
    pub fn push(&mut self, frame: Frame) -> bool {
        match self.open.get_mut(self.depth + 1) {
            Some(slot) => {
                *slot = frame;
                self.depth += 1;
                true
            }
            None => false,
        }
    }

    /// Frames above the body's object.
    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// Closes all but the body's object.
    pub fn unwind(&mut self) {
        self.depth = 0;
    }

    pub fn replace_top(&mut self, frame: Frame) {
        if let Some(slot) = self.open.get_mut(self.depth) {
            *slot = frame;
        }
    }
}

/// Names of session fields, end to end.
pub(super) struct SessionNames {
    bytes: Vec<u8>,
    ends: [usize; SESSION_FIELDS_MAX],
    count: usize,
}

impl SessionNames {
    fn set(&mut self, names: &[Box<[u8]>]) {
        self.bytes.clear();
        self.count = 0;
        for (name, end) in names.iter().zip(&mut self.ends) {
            self.bytes.extend_from_slice(name);
            *end = self.bytes.len();
            self.count += 1;
        }
    }

    /// Place of a name in the list.
    pub fn place(&self, name: &[u8]) -> Option<u8> {
        let mut start = 0;
        for (place, &end) in self.ends.iter().take(self.count).enumerate() {
            if self.bytes.get(start..end) == Some(name) {
                return Some(place as u8);
            }
            start = end;
        }
        None
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// A number or literal.
pub(super) struct Scalar {
    bytes: [u8; SCALAR_BYTES_MAX],
    length: usize,
    over: bool,
}

impl Scalar {
    pub fn clear(&mut self) {
        (self.length, self.over) = (0, false);
    }

    fn put(&mut self, run: &[u8]) {
        let end = self.length + run.len();
        match self.bytes.get_mut(self.length..end) {
            Some(free) => {
                free.copy_from_slice(run);
                self.length = end;
            }
            None => self.over = true,
        }
    }

    pub fn get(&self) -> &[u8] {
        self.bytes.get(..self.length).filter(|_| !self.over).unwrap_or_default()
    }

    /// The whole number it is; `None` for everything else, fractions and more than 64 bits included.
    pub fn integer(&self) -> Option<u64> {
        let digits = self.get();
        if digits.is_empty() {
            return None;
        }
        digits.iter().try_fold(0u64, |value, &byte| {
            let digit = (byte as char).to_digit(10)?;
            value.checked_mul(10)?.checked_add(digit as u64)
        })
    }
}

impl Default for Scan {
    fn default() -> Self {
        Scan::new()
    }
}

impl Scan {
    /// A scan that has not begun; about 8 KiB, so keep it boxed.
    pub fn new() -> Self {
        Scan {
            api: Api::Other,
            needs: Needs::NONE,
            names: SessionNames { bytes: Vec::new(), ends: [0; SESSION_FIELDS_MAX], count: 0 },
            state: State::Start,
            at: 0,
            frames: Frames { open: [Frame::Top; FRAMES_MAX], depth: 0 },
            field: Field::Ignored,
            inner: Inner::Ignored,
            value_start: 0,
            seen: 0,
            skip: Skip::default(),
            skipped_to: SkippedTo::Nobody,
            decoder: Decoder::default(),
            word: Word::new(),
            opaque: Opaque::new(),
            scalar: Scalar { bytes: [0; SCALAR_BYTES_MAX], length: 0, over: false },
            facts: Facts::new(),
        }
    }

    /// Starts over with a new body.
    pub fn begin(&mut self, api: Api, plan: &Plan, needs: Needs) {
        (self.api, self.needs) = (api, needs);
        self.names.set(if needs.contains(Needs::SESSION) { &plan.session_fields } else { &[] });
        self.state = if needs.is_empty() { State::Enough } else { State::Start };
        (self.at, self.seen, self.value_start) = (0, 0, 0);
        self.frames.unwind();
        self.facts.reset();
        self.facts.prompt.reset(plan.prefix, plan.prefix_chars, plan.prefix_bytes, needs.contains(Needs::WHOLE));
    }

    /// What is known of the body's bytes read so far.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Reads the next piece of the body. After [`Progress::Enough`] or [`Progress::Failed`] pieces are ignored.
    pub fn push(&mut self, piece: &[u8]) -> Progress {
        let mut rest = piece;
        while !rest.is_empty() {
            let used = match self.state {
                State::Enough | State::Failed(_) => break,
                _ => self.step(rest),
            };
            self.at += used as u64;
            rest = rest.get(used..).unwrap_or_default();
        }
        self.progress()
    }

    /// The body is over.
    pub fn finish(&mut self) -> Progress {
        match self.state {
            State::Closed => return Progress::Done,
            State::Start if self.at == 0 => self.state = State::Failed(Fault::Empty),
            State::Enough | State::Failed(_) => {}
            _ => self.state = State::Failed(Fault::Truncated),
        }
        self.progress()
    }

    fn progress(&self) -> Progress {
        match self.state {
            State::Enough => Progress::Enough { at: self.at },
            State::Failed(fault) => Progress::Failed(fault),
            _ => Progress::More,
        }
    }

    /// Uses some bytes of `bytes`, which are not none. A step that uses none changes the state.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::Text => self.text(bytes),
            State::Key => self.key(bytes),
            State::Word => self.kept_string(bytes),
            State::Opaque => self.hashed_string(bytes),
            State::Skip => self.skipped(bytes),
            State::Scalar => self.scalar(bytes),
            State::ByteOrderMark(read) => self.byte_order_mark(bytes, read),
            _ => {
                let space = kernel::white_space(bytes);
                match bytes.get(space) {
                    None => space,
                    Some(&byte) => {
                        self.structure(byte, self.at + space as u64);
                        // A number's first byte belongs to the number.
                        space + (self.state != State::Scalar) as usize
                    }
                }
            }
        }
    }

    /// One byte between values, at offset `at`.
    fn structure(&mut self, byte: u8, at: u64) {
        match (self.state, byte) {
            (State::Start, b'{') => self.state = State::FirstKey,
            (State::Start, 0xef) if at == 0 => self.state = State::ByteOrderMark(1),
            (State::Start, _) => self.fail(Fault::NotObject),
            (State::FirstKey | State::NextKey, b'"') => {
                self.word.clear();
                self.decoder.reset();
                self.state = State::Key;
            }
            (State::Colon, b':') => self.state = State::Value,
            (State::FirstElement, b']') | (State::FirstKey, b'}') => self.frame_closes(),
            (State::Value | State::FirstElement, b'"') => self.string_begins(at),
            (State::Value | State::FirstElement, b'{' | b'[') => self.container_begins(byte, at),
            (State::Value | State::FirstElement, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {
                self.scalar_begins(at);
            }
            (State::AfterValue, b',') => {
                self.state = if self.frames.top().is_array() { State::Value } else { State::NextKey };
            }
            (State::AfterValue, b']') if self.frames.top().is_array() => self.frame_closes(),
            (State::AfterValue, b'}') if !self.frames.top().is_array() => self.frame_closes(),
            (State::Closed, _) => self.fail(Fault::Trailing),
            _ => self.fail(Fault::Syntax),
        }
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        self.state = State::Failed(fault);
    }

    fn byte_order_mark(&mut self, bytes: &[u8], read: u8) -> usize {
        match (read, bytes.first()) {
            (1, Some(0xbb)) => self.state = State::ByteOrderMark(2),
            (2, Some(0xbf)) => self.state = State::Start,
            _ => self.fail(Fault::NotObject),
        }
        1
    }

    fn key(&mut self, bytes: &[u8]) -> usize {
        let word = &mut self.word;
        let (used, ended) = self.decoder.decode(bytes, |run| {
            word.put(run);
            run.len()
        });
        match ended {
            Ended::Quote => {
                self.key_known();
                self.state = State::Colon;
            }
            Ended::Fault(fault) => self.fail(fault),
            Ended::Piece | Ended::Full => {}
        }
        used
    }

    fn kept_string(&mut self, bytes: &[u8]) -> usize {
        let word = &mut self.word;
        let (used, ended) = self.decoder.decode(bytes, |run| {
            word.put(run);
            run.len()
        });
        self.string_read(used, ended)
    }

    fn hashed_string(&mut self, bytes: &[u8]) -> usize {
        let opaque = &mut self.opaque;
        let (used, ended) = self.decoder.decode(bytes, |run| {
            opaque.put(run);
            run.len()
        });
        self.string_read(used, ended)
    }

    fn text(&mut self, bytes: &[u8]) -> usize {
        let prompt = &mut self.facts.prompt;
        let (used, ended) = self.decoder.decode(bytes, |run| prompt.text(run));
        self.string_read(used, ended)
    }

    fn string_read(&mut self, used: usize, ended: Ended) -> usize {
        match ended {
            Ended::Piece => {}
            Ended::Quote => self.value_ends(self.at + used as u64),
            Ended::Full => self.leave_section(true),
            Ended::Fault(fault) => self.fail(fault),
        }
        used
    }

    fn skipped(&mut self, bytes: &[u8]) -> usize {
        let ended = kernel::skip(&mut self.skip, bytes);
        let used = ended.unwrap_or(bytes.len());
        if self.skipped_to == SkippedTo::Prompt {
            self.facts.prompt.raw(bytes.get(..used).unwrap_or(bytes));
        }
        if ended.is_some() {
            self.value_ends(self.at + used as u64);
        }
        used
    }

    fn scalar(&mut self, bytes: &[u8]) -> usize {
        let length = bytes.iter().position(|&byte| !is_scalar(byte)).unwrap_or(bytes.len());
        self.scalar.put(bytes.get(..length).unwrap_or(bytes));
        match bytes.get(length) {
            None => {}
            Some(b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t') => self.scalar_ends(self.at + length as u64),
            Some(_) => self.fail(Fault::Syntax),
        }
        length
    }
}

#[inline]
fn is_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}
