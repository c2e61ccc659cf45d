//! What an engine tells of its cache, as a consumer sees it: views into a [`super::Batch`].

use super::msgpack::{Reader, Value};

/// One event.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Event<'a> {
    /// Blocks are in a cache now.
    Stored(Stored<'a>),
    /// Blocks are no longer in one cache.
    Removed(Removed<'a>),
    /// The engine's cache is empty.
    Cleared,
}

/// Blocks of one chain, each with its predecessor before it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stored<'a> {
    /// The engine's names for them. They say nothing of the content: if a process draws its root at random, equal
    /// blocks of two engines have different names.
    pub hashes: &'a [u64],
    /// The block before the first of them; `None` if a prompt begins with it.
    pub parent: Option<u64>,
    /// Their tokens, one block after the other. Empty if the cache is not the GPU's and tells only names.
    pub tokens: &'a [u32],
    /// Number of tokens in each of them.
    pub block_size: u32,
    /// The cache that they are in; `None`: the GPU's.
    pub medium: Option<&'a [u8]>,
    /// Name of the adapter that computed them.
    pub lora_name: Option<&'a [u8]>,
    /// The salt of their prompts, if it is told apart from the extra keys.
    pub salt: Option<&'a [u8]>,
    /// Whether an adapter computed them of which only a number is told.
    pub nameless: bool,
    /// Which of a hybrid model's groups of layers they belong to. Groups differ in block size, and each tells of the
    /// same tokens.
    pub group: Option<u32>,
    /// What layers of that group attend to, such as `full_attention` or `sliding_window`.
    pub attention: Option<&'a [u8]>,
    /// How far back they attend, in tokens.
    pub window: Option<u32>,
    /// Keys that tell them from blocks with equal tokens: for each block, or for none at all.
    pub extras: Extras<'a>,
}

impl<'a> Stored<'a> {
    /// Returns the tokens of the block at `place`; `None` if the event does not tell them.
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
    /// The cache that gave them up; `None`: the GPU's.
    pub medium: Option<&'a [u8]>,
    /// The group of layers that they belong to.
    pub group: Option<u32>,
}

/// Extra keys of an event's blocks, as well-formed msgpack.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Extras<'a> {
    /// Where the keys of each block end in `bytes`; they begin where those of the block before end.
    pub(super) ends: &'a [u32],
    pub(super) begin: u32,
    pub(super) bytes: &'a [u8],
}

impl<'a> Extras<'a> {
    /// Returns the keys of the block at `place` as the engine wrote them: equal bytes are equal keys. Empty: it has
    /// none.
    pub fn raw(&self, place: usize) -> &'a [u8] {
        let begin = place.checked_sub(1).map_or(Some(&self.begin), |before| self.ends.get(before));
        let range = begin.zip(self.ends.get(place)).and_then(|(from, to)| self.bytes.get(*from as usize..*to as usize));
        range.unwrap_or_default()
    }

    /// Returns the keys of the block at `place`: those that it has of adapter, multimodal hashes and cache salt, in
    /// this order.
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

/// One extra key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtraKey<'a> {
    /// A name, a salt, or a hash as text.
    Text(&'a [u8]),
    /// Anything else, as msgpack.
    Other(&'a [u8]),
}
