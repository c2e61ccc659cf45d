//! The separate parts of a prompt, and the marks that set apart the texts in them.

use xxhash_rust::xxh64::xxh64;

use super::digest::Digest;
use super::facts::Counts;
use super::kernel::Kernel;

/// The separate parts of a prompt, in canonical order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Section {
    /// `tools`, raw.
    Tools,
    /// `system` of Anthropic's messages, `instructions` of responses; media in fields beside a prompt.
    System,
    /// The prompt itself, by its name in this API.
    Main,
    /// Counted, never part of the prefix: `documents`, `text_2`.
    Extra,
}

/// Marks that set texts apart. None of these bytes occurs in UTF-8, so no text can forge one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Mark {
    /// A message begins; its role follows.
    Message = 0xf8,
    /// A role that came later than `HELD_MAX` bytes of its message, or a second one.
    Role = 0xf9,
    /// Text begins.
    Text = 0xfa,
    /// An image or another medium; eight bytes that tell it from others follow, many times over in a chain.
    Media = 0xfb,
    /// Raw JSON follows: tool calls, names, arguments.
    Raw = 0xfc,
    /// Token ids follow, four bytes each, little-endian.
    Ids = 0xfd,
}

/// Returns the hash of these sections' places and hashes, without sections of which no byte took part.
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
    /// Number of bare strings and lists in it that are over: prompts of a batch.
    pub items: u32,
    /// The counts when the first of them was over.
    pub first: Counts,
    pub seen: bool,
    pub ended: bool,
    /// Whether more than marks and roles took part.
    pub has_text: bool,
    /// Whether no further byte takes part in the prefix.
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

    /// Returns room for bytes to be hashed, if there is enough of it up to the limit.
    #[inline]
    pub fn room(&mut self, limit: u64) -> &mut [u8] {
        let room = self.digest.room();
        if self.closed || limit - self.hashed < room.len() as u64 { &mut [] } else { room }
    }

    /// Ends a prompt of a batch: those after it take no part in the prefix.
    pub fn item_ends(&mut self) {
        if self.items == 0 {
            self.first = self.counts;
        }
        self.items = self.items.saturating_add(1);
        self.closed = true;
    }

    /// Returns room for bytes that take no part: they are not used.
    #[inline]
    pub fn room_to_count(&mut self) -> &mut [u8] {
        self.digest.room()
    }

    /// Notes that so many bytes of the room are written.
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
