//! What an engine says of its cache, as a consumer sees it: views into a [`super::Batch`].

use super::msgpack::{Reader, Value};

/// One event.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Event<'a> {
    /// Blocks are in a cache now.
    Stored(Stored<'a>),
    /// Blocks are in one cache no more.
    Removed(Removed<'a>),
    /// The engine holds nothing any more.
    Cleared,
}

/// Blocks of one chain, each with its predecessor before it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stored<'a> {
    /// The engine's names for them. They say nothing of what is in them: where a process draws its root at random,
    /// equal blocks of two engines have different names.
    pub hashes: &'a [u64],
    /// The block before the first of them; none where a prompt begins.
    pub parent: Option<u64>,
    /// What is in them. Empty where a cache beyond the GPU's names blocks alone.
    pub tokens: &'a [u32],
    /// Tokens in each of them.
    pub block_size: u32,
    /// Where they are; none is the GPU.
    pub medium: Option<&'a [u8]>,
    /// The adapter that computed them.
    pub lora_name: Option<&'a [u8]>,
    /// The salt of the prompts that they are of, where it stands apart from the extra keys.
    pub salt: Option<&'a [u8]>,
    /// An adapter computed them of which only a number is told.
    pub nameless: bool,
    /// Which of a hybrid model's groups of layers they belong to. Groups differ in block size, and tell of the same
    /// tokens again.
    pub group: Option<u32>,
    /// What layers of that group look at, such as `full_attention` or `sliding_window`.
    pub attention: Option<&'a [u8]>,
    /// How far back they look.
    pub window: Option<u32>,
    /// What tells them from blocks with equal tokens: one for each block, or none at all.
    pub extras: Extras<'a>,
}

impl<'a> Stored<'a> {
    /// The tokens of the block at `place`; none where the event does not say them.
    pub fn tokens_of(&self, place: usize) -> Option<&'a [u32]> {
        let size = self.block_size as usize;
        let said = size > 0 && self.tokens.len() == size.checked_mul(self.hashes.len())?;
        self.tokens.get(place * size..(place + 1) * size).filter(|_| said && place < self.hashes.len())
    }
}

/// Blocks that one cache has given up; another tier may hold them still.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Removed<'a> {
    /// The names under which they were stored.
    pub hashes: &'a [u64],
    /// Which cache gave them up; none is the GPU.
    pub medium: Option<&'a [u8]>,
    /// Which group of layers.
    pub group: Option<u32>,
}

/// Extra keys of an event's blocks, as msgpack that has been read through once.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Extras<'a> {
    /// Where the keys of each block end in `bytes`; they begin where those before end.
    pub(super) ends: &'a [u32],
    pub(super) begin: u32,
    pub(super) bytes: &'a [u8],
}

impl<'a> Extras<'a> {
    /// The keys of the block at `place` as the engine wrote them: equal bytes are equal keys. Empty: it has none.
    pub fn raw(&self, place: usize) -> &'a [u8] {
        let begin = place.checked_sub(1).map_or(Some(&self.begin), |before| self.ends.get(before));
        let range = begin.zip(self.ends.get(place)).and_then(|(from, to)| self.bytes.get(*from as usize..*to as usize));
        range.unwrap_or_default()
    }

    /// The keys of the block at `place`: adapter, multimodal hashes, cache salt, those that it has, in this order.
    pub fn keys(&self, place: usize) -> impl Iterator<Item = ExtraKey<'a>> + use<'a> {
        let mut reader = Reader::new(self.raw(place));
        let mut left = match reader.clone().value() {
            Ok(Value::Array(length)) => reader.value().map_or(0, |_| length),
            Ok(_) => 1,
            Err(_) => 0,
        };
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let from = reader.at();
            match reader.clone().value().ok()? {
                Value::Text(text) => reader.skip().ok().map(|()| ExtraKey::Text(text)),
                _ => reader.skip().ok().map(|()| ExtraKey::Other(reader.since(from))),
            }
        })
    }
}

/// What an extra key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtraKey<'a> {
    /// A name, a salt, a hash in text.
    Text(&'a [u8]),
    /// Anything else, as msgpack.
    Other(&'a [u8]),
}
