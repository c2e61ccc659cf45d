//! Turns bytes into structure: a push parser for one JSON object.
//!
//! Each step uses some bytes of the piece and leaves a state that says what the next byte is. Open brackets are a small
//! stack of frames where meaning is looked for, and a mere count in skipped values.

use super::facts::Facts;
use super::fields::{Field, Inner};
use super::frames::{Frame, Frames};
use super::kernel::{Kernel, Skip, ends_scalar, is_scalar, white_space};
use super::multipart::Multipart;
use super::sample::Sample;
use super::text::{Decoder, Ended, Taker};
use super::words::{Opaque, Scalar, SessionNames, Word};
use super::{Api, Fault, MODEL_BYTES_MAX, Needs, Plan, Progress};

/// One scan, reused from body to body.
pub struct Scan {
    kernel: &'static Kernel,
    pub(super) api: Api,
    pub(super) needs: Needs,
    /// What it was begun with.
    pub(super) plan: Plan,
    pub(super) names: SessionNames,
    pub(super) state: State,
    /// Offset in the body of the next byte to be read.
    pub(super) at: u64,
    pub(super) frames: Frames,
    /// The top-level field whose value is being read.
    pub(super) field: Field,
    /// The field of a message or part whose value is being read.
    pub(super) inner: Inner,
    /// Set of top-level fields whose value has begun, and whether the prompt ends with the model.
    pub(super) seen: u32,
    pub(super) sealed_by_model: bool,
    pub(super) skip: Skip,
    pub(super) skipped_to: SkippedTo,
    pub(super) sample: Sample,
    pub(super) decoder: Decoder,
    pub(super) word: Word,
    pub(super) opaque: Opaque,
    pub(super) scalar: Scalar,
    pub(super) facts: Facts,
    pub(super) form: Multipart,
}

/// What the next byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The body's first byte, or white space before its object.
    Start,
    /// The rest of a byte order mark, this many bytes of it read.
    ByteOrderMark(u8),
    /// After `{`: a key or `}`.
    FirstKey,
    /// After `,` in an object: a key.
    NextKey,
    /// Inside a key.
    Key,
    /// After a key.
    Colon,
    /// A value's first byte.
    Value,
    /// After `[`: a value or `]`.
    FirstElement,
    /// Inside a string of the prompt.
    Text,
    /// Inside a short string that is kept.
    Word,
    /// Inside a string of which only the hash is kept.
    Opaque,
    /// Inside a string, object or array that is skipped.
    Skip,
    /// Inside a number or literal.
    Scalar,
    /// After a value: `,` or the closing bracket.
    AfterValue,
    /// After the object: white space.
    Closed,
    /// Inside a `multipart/form-data` body.
    Form,
    /// All needs are met.
    Enough,
    /// The body cannot be scanned.
    Failed(Fault),
}

impl State {
    /// Whether the next byte is white space or structure.
    #[inline]
    fn is_between(self) -> bool {
        use State::*;
        matches!(self, Start | FirstKey | NextKey | Colon | Value | FirstElement | AfterValue | Closed)
    }
}

/// Where the raw bytes of a skipped value go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SkippedTo {
    Nobody,
    Prompt,
    /// To the hash that tells a medium from others.
    Sample,
}

impl Default for Scan {
    fn default() -> Self {
        Scan::new()
    }
}

impl Scan {
    /// Makes a scan that has not begun; about 17 KiB, so keep it boxed.
    pub fn new() -> Self {
        Scan::with(Kernel::detected())
    }

    /// Makes a scan that uses this kernel; the facts do not depend on it.
    pub fn with(kernel: &'static Kernel) -> Self {
        Scan {
            kernel,
            api: Api::Other,
            needs: Needs::NONE,
            plan: Plan::default(),
            names: SessionNames::new(),
            state: State::Start,
            at: 0,
            frames: Frames::new(),
            field: Field::Ignored,
            inner: Inner::Ignored,
            seen: 0,
            sealed_by_model: false,
            skip: Skip::default(),
            skipped_to: SkippedTo::Nobody,
            sample: Sample::new(kernel),
            decoder: Decoder::default(),
            word: Word::new(),
            opaque: Opaque::new(),
            scalar: Scalar::new(),
            facts: Facts::new(kernel),
            form: Multipart::new(),
        }
    }

    /// Starts over with a new body.
    pub fn begin(&mut self, api: Api, plan: &Plan, needs: Needs) {
        // A chain waits for fields that may follow the prompt: some have all of it computed anew, whatever a cache
        // holds (`prompt_logprobs`), some say with whom its cache is shared (`cache_salt`), one how urgent it is.
        let to_end = plan.chain && needs.contains(Needs::PREFIX);
        (self.api, self.needs) = (api, if to_end { needs | Needs::WHOLE } else { needs });
        if !self.is_by(plan) {
            self.plan = plan.clone();
        }
        self.names.set(if needs.contains(Needs::SESSION) { &plan.session_fields } else { &[] });
        self.state = if needs.is_empty() { State::Enough } else { State::Start };
        (self.at, self.seen, self.sealed_by_model) = (0, 0, false);
        self.frames.unwind();
        self.facts.reset(api);
        self.facts.prompt.reset(plan, needs.contains(Needs::WHOLE));
    }

    /// Returns what is known from the bytes read so far.
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

    /// Ends the body.
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

    /// Uses some bytes of `bytes`, which is not empty. A step that uses none changes the state.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::Text => self.text(bytes),
            State::Key => self.key(bytes),
            State::Word => self.kept_string(bytes),
            State::Opaque => self.hashed_string(bytes),
            State::Skip => self.skipped(bytes),
            State::Scalar => self.scalar(bytes),
            State::Form => self.form(bytes),
            State::ByteOrderMark(read) => self.byte_order_mark(bytes, read),
            State::Value if self.frames.top() == Frame::Ids => self.token_ids(bytes),
            _ => self.between(bytes),
        }
    }

    /// Reads white space and bytes of structure, up to the content of a value or key.
    fn between(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while self.state.is_between() {
            let rest = bytes.get(used..).unwrap_or_default();
            let space = white_space(rest);
            used += space;
            let Some(&byte) = rest.get(space) else { break };
            self.structure(byte, self.at + used as u64);
            // A number's first byte belongs to the number.
            used += (self.state != State::Scalar) as usize;
            if self.state == State::Value && self.frames.top() == Frame::Ids {
                break;
            }
        }
        used
    }

    /// Reads elements of a list of token ids while they are plain numbers, then the next one as any value.
    fn token_ids(&mut self, bytes: &[u8]) -> usize {
        let (used, written) = self.kernel.token_ids(bytes, self.facts.prompt.room());
        self.facts.prompt.ids_written(written);
        if used == 0 { self.between(bytes) } else { used }
    }

    /// Reads one byte between values, at offset `at`.
    fn structure(&mut self, byte: u8, at: u64) {
        match (self.state, byte) {
            (State::Start, b'{') => self.state = State::FirstKey,
            (State::Start, 0xef) if at == 0 => self.state = State::ByteOrderMark(1),
            (State::Start, _) => self.fail(Fault::NotObject),
            (State::FirstKey | State::NextKey, b'"') => self.key_begins(),
            (State::Colon, b':') => self.state = State::Value,
            (State::FirstElement, b']') | (State::FirstKey, b'}') => self.frame_closes(),
            (State::Value | State::FirstElement, b'"') => self.string_begins(),
            (State::Value | State::FirstElement, b'{' | b'[') => self.container_begins(byte),
            (State::Value | State::FirstElement, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {
                self.scalar_begins();
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
        if let Some(name) = self.whole_word(bytes) {
            self.key_ends(self.named(Some(name)));
            return self.value_behind(bytes, name.len() + 1);
        }
        let (used, ended) = self.decoder.decode(self.kernel, bytes, &mut self.word);
        match ended {
            Ended::Quote => self.key_ends(self.named(self.word.get())),
            Ended::Fault(fault) => self.fail(fault),
            Ended::Piece | Ended::Full => {}
        }
        used
    }

    /// After a key: reads at once what nearly every client writes there, a colon and a quote. Anything else is left.
    #[inline]
    fn value_behind(&mut self, bytes: &[u8], used: usize) -> usize {
        match bytes.get(used..) {
            Some([b':', b'"', ..]) => {
                self.state = State::Value;
                self.string_begins();
                used + 2
            }
            _ => used,
        }
    }

    /// After a value of an object: reads a comma and the next key's quote in the same way.
    #[inline]
    fn key_behind(&mut self, bytes: &[u8], used: usize) -> usize {
        match bytes.get(used..) {
            Some([b',', b'"', ..]) if self.state == State::AfterValue && !self.frames.top().is_array() => {
                self.key_begins();
                used + 2
            }
            _ => used,
        }
    }

    fn key_begins(&mut self) {
        self.word.clear();
        self.decoder.reset();
        self.state = State::Key;
    }

    fn kept_string(&mut self, bytes: &[u8]) -> usize {
        let frame = self.frames.top();
        if let Some(text) = self.whole_word(bytes) {
            self.facts.keep(frame, Some(text));
            let used = self.string_read(text.len() + 1, Ended::Quote);
            return self.key_behind(bytes, used);
        }
        let (used, ended) = self.decoder.decode(self.kernel, bytes, &mut self.word);
        if ended == Ended::Quote {
            self.facts.keep(frame, self.word.get());
        }
        self.string_read(used, ended)
    }

    /// Returns a string that can be read in place: it begins and ends in these bytes, without an escape.
    #[inline]
    fn whole_word<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if !self.word.is_empty() || !self.decoder.is_idle() {
            return None;
        }
        let run = self.kernel.text_run(bytes);
        bytes.get(..run).filter(|_| run <= MODEL_BYTES_MAX && bytes.get(run) == Some(&b'"'))
    }

    fn hashed_string(&mut self, bytes: &[u8]) -> usize {
        let (used, ended) = self.decoder.decode(self.kernel, bytes, &mut self.opaque);
        self.string_read(used, ended)
    }

    fn text(&mut self, bytes: &[u8]) -> usize {
        let (used, ended) = self.decoder.decode(self.kernel, bytes, &mut self.facts.prompt);
        self.string_read(used, ended)
    }

    fn string_read(&mut self, used: usize, ended: Ended) -> usize {
        match ended {
            Ended::Piece => {}
            Ended::Quote => self.value_ends(),
            Ended::Full => self.leave_section(),
            Ended::Fault(fault) => self.fail(fault),
        }
        used
    }

    fn skipped(&mut self, bytes: &[u8]) -> usize {
        // In small parts, so that the bytes are still in the core's cache when they are sampled.
        let most = if self.skipped_to == SkippedTo::Sample { SAMPLED_AT_ONCE } else { bytes.len() };
        let bytes = bytes.get(..most).unwrap_or(bytes);
        let ended = self.kernel.skip(&mut self.skip, bytes);
        let used = ended.unwrap_or(bytes.len());
        let skipped = bytes.get(..used).unwrap_or(bytes);
        match self.skipped_to {
            SkippedTo::Nobody => {}
            SkippedTo::Prompt => self.facts.prompt.raw(skipped),
            SkippedTo::Sample => self.sample.take(skipped),
        }
        if ended.is_some() {
            if self.skipped_to == SkippedTo::Sample {
                self.facts.prompt.media(self.sample.value());
            }
            self.value_ends();
        }
        used
    }

    fn scalar(&mut self, bytes: &[u8]) -> usize {
        let length = bytes.iter().position(|&byte| !is_scalar(byte)).unwrap_or(bytes.len());
        self.scalar.put(bytes.get(..length).unwrap_or(bytes));
        match bytes.get(length) {
            None => {}
            Some(&behind) if ends_scalar(behind) => self.scalar_ends(),
            Some(_) => self.fail(Fault::Syntax),
        }
        length
    }
}

/// Most bytes of a medium that are skipped before they are sampled.
const SAMPLED_AT_ONCE: usize = 128 << 10;
