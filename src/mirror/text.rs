//! The content of a block: its place in a prompt, and the text of its tokens.

use super::{Counts, Reading};
use crate::kvevents::{ExtraKey, Stored};
use crate::limits::{BLOCK_BYTES, LINKS_MAX};
use crate::scan::{Cut, Step};
use crate::vocabulary::{Run, Vocabulary};

/// Bytes of text beyond which links are of no use: no prompt is looked up further than this.
pub(super) const TEXT_BYTES_MAX: u64 = (LINKS_MAX * BLOCK_BYTES) as u64;
/// Bytes of tokens' texts that are gathered before they are hashed, since most tokens have a few bytes.
pub(super) const STAGE_BYTES: usize = 1 << 10;

/// A prompt from its beginning to the end of one of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Text {
    pub root: u64,
    pub cut: Cut,
    pub tokens: u32,
    /// State of turning its tokens into text.
    pub run: Run,
}

/// Why the text of a block is not known. What follows it is not known for the same reason. It is saved by its number,
/// so that a number is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Unread {
    /// The block before it is not known, or its name stands for two.
    Orphan = 0,
    /// It contains more than text: an image, an adapter without a name, or a token that has no text.
    Opaque = 1,
    /// The event does not tell its tokens.
    Malformed = 3,
    /// It begins beyond the longest prompt that is looked at.
    Deep = 4,
    /// There is no room for its links.
    Beyond = 5,
}

impl Unread {
    pub(super) const ALL: [Unread; 5] =
        [Unread::Orphan, Unread::Opaque, Unread::Malformed, Unread::Deep, Unread::Beyond];

    pub(super) fn count(self, counts: &mut Counts) {
        let count = match self {
            Unread::Orphan => &mut counts.orphans,
            Unread::Opaque => &mut counts.opaque,
            Unread::Malformed => &mut counts.malformed,
            Unread::Deep => &mut counts.deep,
            Unread::Beyond => &mut counts.beyond,
        };
        *count += 1;
    }
}

impl Text {
    /// Returns the text of a prompt of which no block is there yet.
    pub fn begin(root: u64, vocabulary: &Vocabulary) -> Text {
        Text { root, cut: Cut::default(), tokens: 0, run: Run::begin(vocabulary) }
    }

    /// Reads the block at `place`, which follows this text, and returns the text to its end; `step` is called with the
    /// steps that end in it.
    pub fn read(
        mut self,
        (stored, place): (&Stored<'_>, usize),
        vocabulary: &Vocabulary,
        stage: &mut Vec<u8>,
        mut step: impl FnMut(Step),
    ) -> Result<Text, Unread> {
        let tokens = stored.tokens_of(place).ok_or(Unread::Malformed)?;
        if self.cut.bytes() >= TEXT_BYTES_MAX {
            return Err(Unread::Deep);
        }
        self.tokens =
            u32::try_from(tokens.len()).ok().and_then(|more| self.tokens.checked_add(more)).ok_or(Unread::Deep)?;
        stage.clear();
        for token in tokens {
            let text = self.run.text(vocabulary, *token).ok_or(Unread::Opaque)?;
            if stage.len() + text.len() > STAGE_BYTES {
                self.cut.push(self.root, stage, &mut step);
                stage.clear();
            }
            if self.cut.bytes() > TEXT_BYTES_MAX + TEXT_BYTES_MAX {
                // No engine has such a block, and the gigabytes that one message may name are not hashed.
                return Err(Unread::Deep);
            }
            if text.len() > STAGE_BYTES {
                self.cut.push(self.root, text, &mut step);
            } else {
                stage.extend_from_slice(text);
            }
        }
        self.cut.push(self.root, stage, &mut step);
        Ok(self)
    }
}

/// Returns the root of a prompt that begins with the first block of an event.
pub(super) fn root(stored: &Stored<'_>, place: usize, reading: &Reading<'_>) -> Result<u64, Unread> {
    let salt = keys(stored, place, true)?.or(stored.salt);
    Ok((reading.root)(stored.lora_name, salt))
}

/// Returns the salt among a block's extra keys, which tell it from others with equal tokens; an error if there is more
/// than an adapter and a salt.
///
/// Engines do not say which key is which. On a prompt's first block, a text that is not the adapter's name is taken for
/// a salt. It may be the hash of an image that is in this block whole, of a prompt without a salt: the blocks are then
/// held below a root that nobody asks for, unless with that very hash as a salt. Longer images have keys in later
/// blocks, too, and are refused there; beside a salt they are a second key. SGLang tells the salt apart from 0.5.18 on,
/// and never its `extra_key`. Engines that tell neither (SGLang before that, and vLLM before 0.11) have such prompts
/// taken for plain ones.
pub(super) fn keys<'a>(stored: &Stored<'a>, place: usize, first: bool) -> Result<Option<&'a [u8]>, Unread> {
    if stored.nameless {
        // Requests name their adapter, and blocks without its name must not be taken for the model's own.
        return Err(Unread::Opaque);
    }
    let mut keys = stored.extras.keys(place).peekable();
    if let Some(adapter) = stored.lora_name {
        keys.next_if_eq(&ExtraKey::Text(adapter));
    }
    match (keys.next(), keys.next()) {
        (None, _) => Ok(None),
        (Some(ExtraKey::Text(salt)), None) if first => Ok(Some(salt)),
        _ => Err(Unread::Opaque),
    }
}
