//! The separate parts of a prompt, and what sets apart the texts in them.

use xxhash_rust::xxh64::xxh64;

use super::digest::Digest;
use super::facts::Counts;
use super::kernel::Kernel;

/// The separate parts of a prompt, in canonical order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Section {
    /// `tools`, raw.
    Tools,
    /// `system` of Anthropic's messages, `instructions` of responses; media that stand beside a prompt.
    System,
    /// What the prompt is named in this API.
    Main,
    /// Counted, never part of the prefix: `documents`, `text_2`.
    Extra,
}

/// What sets texts apart. None of these bytes occurs in UTF-8, so no text can forge one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Mark {
    /// A message begins; its role follows.
    Message = 0xf8,
    /// A role that came later than `HELD_MAX` bytes of its message, or a second one.
    Role = 0xf9,
    /// Text begins.
    Text = 0xfa,
    /// An image or another medium; eight bytes follow that tell it from others, in a chain again and again.
    Media = 0xfb,
    /// Raw JSON follows: tool calls, names, arguments.
    Raw = 0xfc,
    /// Token ids follow, four bytes each, little-endian.
    Ids = 0xfd,
}

/// The hash of these sections' hashes, each behind its place; those of which no byte took part aside.
pub(super) fn joined(sections: [&SectionState; 3]) -> u64 {
    let (mut joined, mut length) = ([[0; 9]; 3], 0);
    for (place, section) in sections.into_iter().enumerate().filter(|(_, section)| section.hashed > 0) {
        if let Some([name, value @ ..]) = joined.get_mut(length) {
            (*name, *value) = (place as u8, section.digest.value().to_le_bytes());
            length += 1;
        }
    }
    xxh64(joined.get(..length).unwrap_or_default().as_flattened(), 0)
}

/// One section's hash and counts.
pub(super) struct SectionState {
    pub digest: Digest,
    pub hashed: u64,
    pub counts: Counts,
    /// Bare strings and lists in it that are over: prompts of a batch.
    pub items: u32,
    /// What there was when the first of these was.
    pub first: Counts,
    pub seen: bool,
    pub ended: bool,
    /// Not only marks and roles took part.
    pub has_text: bool,
    /// No further byte takes part in the prefix.
    pub closed: bool,
}

impl SectionState {
    pub fn new(kernel: &'static Kernel) -> Self {
        SectionState {
            digest: Digest::new(kernel),
            hashed: 0,
            counts: Counts::default(),
            items: 0,
            first: Counts::default(),
            seen: false,
            ended: false,
            has_text: false,
            closed: false,
        }
    }

    pub fn reset(&mut self, prefixes_max: usize) {
        self.digest.reset(prefixes_max);
        (self.hashed, self.items) = (0, 0);
        (self.counts, self.first) = (Counts::default(), Counts::default());
        (self.seen, self.ended, self.has_text, self.closed) = (false, false, false, false);
    }

    /// Hashes up to the limit; the section closes at the first byte beyond it. `text` is the place of the
    /// first byte in `run` that is text, if any. Returns how many bytes took part.
    #[inline]
    pub fn take(&mut self, limit: u64, run: &[u8], text: Option<usize>) -> usize {
        if self.closed {
            return 0;
        }
        let fits = run.len().min(usize::try_from(limit - self.hashed).unwrap_or(usize::MAX));
        self.digest.update(run.get(..fits).unwrap_or(run));
        self.hashed += fits as u64;
        self.has_text |= text.is_some_and(|place| place < fits);
        self.closed = fits < run.len();
        fits
    }

    /// Room for bytes to be hashed, where there is enough up to the limit.
    #[inline]
    pub fn room(&mut self, limit: u64) -> &mut [u8] {
        let room = self.digest.room();
        if self.closed || limit - self.hashed < room.len() as u64 { &mut [] } else { room }
    }

    /// A prompt of a batch is over: those behind it take no part in the prefix.
    pub fn item_ends(&mut self) {
        if self.items == 0 {
            self.first = self.counts;
        }
        self.items = self.items.saturating_add(1);
        self.closed = true;
    }

    /// Room for bytes that take no part: what is written there is left.
    #[inline]
    pub fn room_to_count(&mut self) -> &mut [u8] {
        self.digest.room()
    }

    /// So many bytes of the room are written.
    #[inline]
    pub fn written(&mut self, length: usize) {
        if self.closed {
            return;
        }
        self.digest.written(length);
        self.hashed += length as u64;
        self.has_text |= length > 0;
    }
}
