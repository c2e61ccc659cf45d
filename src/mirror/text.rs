//! What stands in a block: its place in a prompt, and the text of its tokens.

use super::{Counts, Reading};
use crate::kvevents::{ExtraKey, Stored};
use crate::limits::{BLOCK_BYTES, LINKS_MAX};
use crate::scan::{Cut, Step};
use crate::vocabulary::{Run, Vocabulary};

/// Links behind so many bytes are of no use: no prompt is asked for further than this.
pub(super) const TEXT_BYTES_MAX: u64 = (LINKS_MAX * BLOCK_BYTES) as u64;
/// Texts of tokens are gathered before they are hashed, since most are a few bytes.
pub(super) const STAGE_BYTES: usize = 1 << 10;

/// A prompt from its begin to the end of one of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Text {
    pub root: u64,
    pub cut: Cut,
    pub tokens: u32,
    /// Of its tokens.
    pub run: Run,
}

/// Why the text of a block is not known. What follows it is not known for the same reason. Saved by its number: one
/// that was given away is not given again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Unread {
    /// The block before it is not known, or its name stands for two.
    Orphan = 0,
    /// There is more in it than text: an image, an adapter without a name, or a token that stands for nothing.
    Opaque = 1,
    /// The event does not say what is in it.
    Malformed = 3,
    /// It begins behind the longest prompt that is looked at.
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
    /// That of a prompt of which nothing is there yet.
    pub fn begin(root: u64, vocabulary: &Vocabulary) -> Text {
        Text { root, cut: Cut::default(), tokens: 0, run: Run::begin(vocabulary) }
    }

    /// The text of the block at `place`, which follows this; `step` is called with the steps that end in it.
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
                // No block of any engine: nor are the gigabytes that one message may name hashed.
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

/// The root of a prompt that begins with the first block of an event.
pub(super) fn root(stored: &Stored<'_>, place: usize, reading: &Reading<'_>) -> Result<u64, Unread> {
    let salt = keys(stored, place, true)?.or(stored.salt);
    Ok((reading.root)(stored.lora_name, salt))
}

/// The salt among what tells a block from others with equal tokens; an error where there is more than an adapter and a
/// salt.
///
/// Engines do not say which key is which. A text that is no adapter's name is taken for a salt on a prompt's first
/// block. It may be the hash of an image that lies in this block whole, without a salt: what follows is then held below
/// a root that nobody asks for, unless with that very hash as a salt. Longer images have keys in later blocks, too, and
/// are stopped at there; beside a salt they are a second key. SGLang says
/// the salt apart, from 0.5.18 on, and its `extra_key` never; who says neither (before that, and vLLM before 0.11) has
/// such prompts taken for plain ones.
pub(super) fn keys<'a>(stored: &Stored<'a>, place: usize, first: bool) -> Result<Option<&'a [u8]>, Unread> {
    if stored.nameless {
        // Who asks for the adapter names it, and what the model computes without it is something else.
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
