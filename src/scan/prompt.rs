//! The prompt in canonical order, and the hash of its prefix.
//!
//! Text reaches this module decoded; everything between texts (roles, images, tool calls) is set apart by marks, bytes
//! that no UTF-8 text contains. Fields that may be in any order in the body (`tools`, `system`, `messages`) are hashed
//! apart and joined by [`Prompt::prefix`] (in [`results`]), so their order does not matter.

mod attribution;
mod both;
mod results;
mod sections;

use super::Plan;
use super::PrefixMode;
use super::kernel::Kernel;
use super::section::{Mark, Section, SectionState};
use super::text::Taker;
use crate::limits::LINKS_MAX;
use attribution::Line;
pub(super) use both::Prompts;

/// Most bytes of a message that are held until its role is known.
pub(super) const HELD_MAX: usize = 4096;
/// Canonical bytes of a medium after its mark: about as many as text of as many tokens (`image_tokens`) has, so that
/// the cached part of a prompt, and the room that it takes in a cache, counts its media.
pub(super) const MEDIUM_BYTES: u64 = 4_000;

/// Whose text the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Speaker {
    /// A bare string or token ids, outside any message.
    Bare,
    /// A message whose role was not read yet: its text is held.
    Unknown,
    /// A message of the role `user`.
    User,
    /// A message of the role `system`.
    System,
    /// A message of another role, or one whose role came too late.
    Other,
}

/// The whole prompt's state.
pub(super) struct Prompt {
    mode: PrefixMode,
    chars_max: u64,
    bytes_max: u64,
    /// Most links that each section leaves.
    links_max: usize,
    /// Whether everything is counted to its end, whatever takes part in the prefix. So it is if tokens count: of a
    /// batch only the first prompt is hashed, but its engine computes all.
    counts_all: bool,
    /// Whether token ids take the place of messages and tools.
    replaced: bool,
    current: Section,
    sections: [SectionState; 4],
    speaker: Speaker,
    /// State of a billing line in the current text.
    line: Line,
    held: [u8; HELD_MAX],
    held_length: usize,
    /// Place of the first byte of text in `held`, if there is any.
    held_text: Option<usize>,
    /// `first-user`: characters (or ids) that take part so far.
    chars: u64,
}

impl Prompt {
    pub fn new(kernel: &'static Kernel) -> Self {
        Prompt {
            mode: PrefixMode::FirstUser,
            chars_max: 0,
            bytes_max: 0,
            links_max: 0,
            counts_all: false,
            replaced: false,
            current: Section::Main,
            sections: std::array::from_fn(|_| SectionState::new(kernel)),
            speaker: Speaker::Bare,
            line: Line::Past,
            held: [0; HELD_MAX],
            held_length: 0,
            held_text: None,
            chars: 0,
        }
    }

    pub fn reset(&mut self, plan: &Plan, counts_all: bool) {
        self.mode = if plan.chain { PrefixMode::Conversation } else { plan.prefix };
        self.chars_max = u64::from(plan.prefix_chars);
        (self.bytes_max, self.links_max) =
            if plan.chain { (u64::MAX, LINKS_MAX) } else { (u64::from(plan.prefix_bytes), 0) };
        self.begin_anew(counts_all || plan.chain);
    }

    /// Resets as if the plan had no chain; nothing is counted.
    pub fn reset_plain(&mut self, plan: &Plan) {
        (self.mode, self.chars_max) = (plan.prefix, u64::from(plan.prefix_chars));
        (self.bytes_max, self.links_max) = (u64::from(plan.prefix_bytes), 0);
        self.begin_anew(false);
    }

    fn begin_anew(&mut self, counts_all: bool) {
        (self.counts_all, self.replaced) = (counts_all, false);
        self.sections.iter_mut().for_each(|section| section.reset(self.links_max));
        self.hold_nothing(Speaker::Bare);
        (self.line, self.chars) = (Line::Past, 0);
    }

    // Messages.

    /// Begins a message, whose role may come at any place in it.
    pub fn message_begins(&mut self) {
        self.hold_nothing(Speaker::Unknown);
    }

    /// Takes the role of the current message.
    pub fn role(&mut self, role: &[u8]) {
        let known = self.speaker != Speaker::Unknown;
        if !known {
            self.speaker = match role {
                b"user" => Speaker::User,
                b"system" => Speaker::System,
                _ => Speaker::Other,
            };
        }
        if self.mode == PrefixMode::Conversation {
            self.mark(if known { Mark::Role } else { Mark::Message });
            self.hash(role, None);
        }
        if !known && (self.mode == PrefixMode::Conversation || self.speaker == Speaker::User) {
            self.release();
        }
    }

    /// Ends the message. The first one of the role `user` is all that `first-user` looks at.
    pub fn message_ends(&mut self) {
        match (self.mode, self.speaker) {
            (PrefixMode::FirstUser, Speaker::User) => self.close(),
            (PrefixMode::Conversation, Speaker::Unknown) if !self.is_attribution() => self.give_up_role(),
            _ => {}
        }
        self.hold_nothing(Speaker::Bare);
    }

    /// Ends a bare string or list of an array: further ones are prompts of their own (a batch), and the first decides
    /// where all of them go.
    pub fn item_ends(&mut self) {
        self.section().item_ends();
    }

    /// Whether text at this place is to be decoded, and not skipped unseen.
    pub fn wants_text(&self) -> bool {
        self.counts_all
            || match self.mode {
                PrefixMode::FirstUser => !self.is_none_of_users() && !self.section_ref().closed,
                PrefixMode::Conversation => !self.section_ref().closed,
            }
    }

    // Contents.

    /// Begins a content, or a bare string. Texts of one content are joined without a mark.
    pub fn content_begins(&mut self) {
        self.mark(Mark::Text);
    }

    /// Counts an image or another medium that begins; true if it takes part in the prefix.
    pub fn media_begins(&mut self) -> bool {
        self.section().counts.media += 1;
        self.mode == PrefixMode::Conversation && !self.section_ref().closed
    }

    /// Ends a medium, which `sample` tells from others. In a chain it takes about as many bytes as text of as many
    /// tokens.
    pub fn media(&mut self, sample: u64) {
        const SAMPLE: usize = size_of::<u64>();
        if self.mode == PrefixMode::Conversation {
            let mut bytes = [Mark::Media as u8; 1 + MEDIUM_BYTES as usize];
            bytes[1..].as_chunks_mut::<SAMPLE>().0.fill(sample.to_le_bytes());
            let bytes = if self.links_max > 0 { &bytes } else { bytes.get(..1 + SAMPLE).unwrap_or_default() };
            self.canonical(bytes, Some(0));
        }
    }

    /// Begins raw JSON.
    pub fn raw_begins(&mut self) {
        self.mark(Mark::Raw);
    }

    /// Takes raw JSON, always all of it: whether the prefix is full is seen at the end of the value, so that the place
    /// does not depend on how the body was cut.
    pub fn raw(&mut self, bytes: &[u8]) {
        if self.mode == PrefixMode::Conversation {
            self.canonical(bytes, Some(0));
        }
        self.section().counts.text_bytes += bytes.len() as u64;
    }

    /// Begins token ids.
    pub fn ids_begin(&mut self) {
        self.mark(Mark::Ids);
        if self.mode == PrefixMode::FirstUser && self.speaker == Speaker::Bare && !self.section_ref().closed {
            self.hash(&[Mark::Ids as u8], None);
        }
    }

    /// Takes one token id, which counts as a character.
    #[inline]
    pub fn id(&mut self, id: u32) {
        match self.mode {
            PrefixMode::Conversation => {
                self.canonical(&id.to_le_bytes(), Some(0));
            }
            PrefixMode::FirstUser if self.speaker != Speaker::Bare || self.section_ref().closed => {}
            PrefixMode::FirstUser if self.chars == self.chars_max => self.close(),
            PrefixMode::FirstUser => {
                self.chars += 1;
                self.hash(&id.to_le_bytes(), Some(0));
            }
        }
        self.section().counts.ids += 1;
    }

    /// Notes that so many token ids were written into the room.
    pub fn ids_written(&mut self, count: usize) {
        self.section().written(4 * count);
        self.section().counts.ids += count as u64;
    }

    // Below: where bytes go.

    fn section(&mut self) -> &mut SectionState {
        &mut self.sections[self.current as usize]
    }

    fn section_ref(&self) -> &SectionState {
        &self.sections[self.current as usize]
    }

    fn close(&mut self) {
        self.section().closed = true;
    }

    /// Whether the message has another role than `user`.
    fn is_none_of_users(&self) -> bool {
        matches!(self.speaker, Speaker::System | Speaker::Other)
    }

    fn mark(&mut self, mark: Mark) {
        if self.mode == PrefixMode::Conversation {
            self.canonical(&[mark as u8], None);
        }
    }

    /// `first-user`: takes characters of the first user message up to their limit.
    fn user_text(&mut self, run: &[u8]) -> usize {
        if self.section_ref().closed || self.is_none_of_users() {
            return run.len();
        }
        if self.speaker == Speaker::Unknown {
            self.hold(run);
            return run.len();
        }
        let mut fits = 0;
        for byte in run {
            if byte & 0xc0 != 0x80 {
                if self.chars == self.chars_max {
                    break;
                }
                self.chars += 1;
            }
            fits += 1;
        }
        self.hash(run.get(..fits).unwrap_or(run), Some(0));
        if fits < run.len() {
            self.close();
        }
        fits
    }

    /// `conversation`: takes canonical bytes, which are held while the role of their message is unknown.
    #[inline]
    fn canonical(&mut self, run: &[u8], text: Option<usize>) -> usize {
        if self.section_ref().closed {
            return 0;
        }
        if self.speaker != Speaker::Unknown {
            return self.hash(run, text);
        }
        if self.held_length < HELD_MAX {
            self.held_text = self.held_text.or(text.map(|place| self.held_length + place));
        }
        let held = self.hold(run);
        if held == run.len() {
            return held;
        }
        self.give_up_role();
        held + self.hash(run.get(held..).unwrap_or_default(), text)
    }

    fn hold_nothing(&mut self, speaker: Speaker) {
        (self.speaker, self.held_length, self.held_text) = (speaker, 0, None);
    }

    /// Holds as many bytes as there is room for; returns how many.
    fn hold(&mut self, run: &[u8]) -> usize {
        let fits = run.len().min(HELD_MAX - self.held_length);
        let end = self.held_length + fits;
        if let (Some(free), Some(run)) = (self.held.get_mut(self.held_length..end), run.get(..fits)) {
            free.copy_from_slice(run);
            self.held_length = end;
        }
        fits
    }

    /// Goes on without a role, as there is no room to wait for it, or as the message has none.
    fn give_up_role(&mut self) {
        self.speaker = Speaker::Other;
        self.mark(Mark::Message);
        self.release();
    }

    /// Takes the held bytes.
    fn release(&mut self) {
        if self.held_length == 0 {
            return;
        }
        let held = self.held;
        let held = held.get(..self.held_length).unwrap_or_default();
        match self.mode {
            PrefixMode::FirstUser => self.user_text(held),
            PrefixMode::Conversation => self.hash(held, self.held_text),
        };
        self.held_length = 0;
    }

    /// Hashes in the current section; see [`SectionState::take`].
    #[inline]
    fn hash(&mut self, run: &[u8], text: Option<usize>) -> usize {
        let limit = if self.mode == PrefixMode::Conversation { self.bytes_max } else { u64::MAX };
        self.section().take(limit, run, text)
    }
}

/// Takes the decoded text of the prompt.
impl Taker for Prompt {
    /// Takes a run. If fewer bytes are taken than given, the prefix is full, and nothing more is wanted here.
    #[inline]
    fn take(&mut self, run: &[u8]) -> usize {
        if self.line != Line::Past {
            return self.take_past_line(run);
        }
        let taken = match self.mode {
            PrefixMode::FirstUser => self.user_text(run),
            PrefixMode::Conversation => self.canonical(run, Some(0)),
        };
        let counted = if self.counts_all { run.len() } else { taken };
        self.section().counts.text_bytes += counted as u64;
        counted
    }

    /// There is room in a conversation, unless a role is waited for or the limit is near, and if bytes are only
    /// counted. There is none for bytes that may be left out.
    #[inline]
    fn room(&mut self) -> &mut [u8] {
        if self.line != Line::Past {
            return &mut [];
        }
        if self.counts_all && self.section_ref().closed {
            return self.section().room_to_count();
        }
        let limit = self.bytes_max;
        let plain = self.mode == PrefixMode::Conversation && self.speaker != Speaker::Unknown;
        if plain { self.section().room(limit) } else { &mut [] }
    }

    #[inline]
    fn written(&mut self, length: usize) {
        self.section().written(length);
        self.section().counts.text_bytes += length as u64;
    }
}
