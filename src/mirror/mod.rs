//! What one engine rank holds by its own word, as bytes: its KV events in, links of chains out.
//!
//! An engine names its blocks by hashes that say nothing of what is in them, and says each block's tokens once, when it
//! is stored. Here a tree of all named blocks is kept, each with the prompt down to its end as far as that is cut
//! ([`text`]), so that a block's links can be made from its tokens alone, whatever it follows ([`tree`]). [`settle`]
//! has the rules by which blocks come and go, [`links`] counts who owns which, [`saved`] writes all of it down.
//!
//! A block is *held* if the engine has it and all before it, and if all of these can be read as text: then a prompt
//! that begins with its bytes finds it cached. The [`Sink`] is told of links as blocks come to be held, and when the
//! last block that owns one is held no more. At any time the links told are closed under prefixes: the ones before come
//! first, and go last.
//!
//! - A name that is stored again counts as a copy, and is gone when as many are removed: vLLM tells of each physical
//!   block. It tells of reused ones again, too, where a request asks for that (`kv_cache_report_mode`), and removes
//!   them once: these are believed to be there until the cache is cleared, or there are more than the engine can hold
//!   ([`Mirror::is_overfull`]).
//! - A name that is stored behind two different blocks is ambiguous: the first stays, what follows is not read, and one
//!   removal ends both. SGLang's older versions name pages by their own tokens.
//! - A block whose predecessor is not known is an orphan, and so is all behind it, until it is stored again itself.
//! - A block whose links find no room is not read, nor is what is behind it: nothing of that is held,
//!   and nothing else is wrong.
//! - A block that goes while others that follow it stay takes these along; once it is stored again,
//!   with the same text, they are held again.
//!
//! An event costs what its size is; but where a block goes or comes before others that follow it, all below it are told
//! of, each time. Engines remove leaves first, so that each block is told of once as it comes and once as it goes. One
//! that does otherwise again and again is given up ([`Mirror::overflowed`]), so that no message costs more than what it
//! names and a million blocks. What is long is done in pieces ([`walk`]). Memory is bounded by [`Mirror::bytes`].

mod counts;
mod links;
mod room;
mod said;
mod saved;
mod settle;
mod text;
mod tree;
mod walk;

use std::collections::HashMap;
use std::fmt;

use crate::kvevents::{Removed, Stored};
use crate::limits::{MIRROR_BLOCKS_MAX, MIRROR_LINKS_PER_BLOCK};
use crate::vocabulary::Vocabulary;
pub use counts::Counts;
use links::{Links, Seeded, table};
use room::Room;
use said::{Extent, Group};
pub use saved::Refused;
use text::STAGE_BYTES;
use tree::{Node, Tree};
pub use walk::{Halt, Stint, Telling};
use walk::{Walk, patience_max};

/// Who is told of what is held.
pub trait Sink {
    /// This link is held from now on, behind the block's link `after`. `tokens`: what a prompt has cached that matches
    /// up to it; where blocks of several lengths own the link, as the first of them has it.
    fn hold(&mut self, after: Option<u64>, link: u64, tokens: u32);
    /// A link that is held is worth so many tokens from now on.
    fn worth(&mut self, link: u64, tokens: u32);
    /// And this one no more.
    fn release(&mut self, link: u64);
}

/// How an engine's blocks are read.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// Its model's tokens.
    pub vocabulary: &'a Vocabulary,
    /// Where its prompts' chains begin.
    pub root: Root<'a>,
}

/// The root of prompts with this adapter and this salt.
pub type Root<'a> = &'a dyn Fn(Option<&[u8]>, Option<&[u8]>) -> u64;

/// One engine rank's cache.
pub struct Mirror {
    names: HashMap<u64, u32, Seeded>,
    tree: Tree,
    links: Links,
    /// Links of all blocks that are there, held or not.
    links_kept: usize,
    links_max: usize,
    blocks: u32,
    blocks_max: u32,
    group: Group,
    extent: Extent,
    /// So many blocks may be told of yet beyond those that events name, and whether they were too many.
    patience: u32,
    gives_up: bool,
    /// What is yet to be told of behind the block that was named last.
    walk: Option<Walk>,
    /// What reading has cost since it was charged for.
    toil: u32,
    counts: Counts,
    /// Buffers that are used again: texts of tokens, links of the block that is read.
    stage: Vec<u8>,
    found: Vec<u64>,
}

/// A block that an event stores.
#[derive(Clone, Copy)]
struct Block<'a> {
    name: u64,
    parent: Option<u64>,
    stored: &'a Stored<'a>,
    place: usize,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Mirror").field("blocks", &self.blocks).field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Mirror {
    /// For an engine of so many blocks. Its memory is asked for at once and touched as it fills.
    pub fn new(blocks_max: u32) -> Mirror {
        let room = Room::of(blocks_max);
        Mirror {
            names: table(room.nodes),
            tree: Tree::new(room.nodes),
            links: Links::new(room.links),
            links_kept: 0,
            links_max: room.links,
            blocks: 0,
            blocks_max: blocks_max.min(MIRROR_BLOCKS_MAX),
            group: Group::Unknown,
            extent: Extent::Within,
            patience: patience_max(blocks_max),
            gives_up: false,
            walk: None,
            toil: 0,
            counts: Counts::default(),
            stage: Vec::with_capacity(STAGE_BYTES),
            found: Vec::with_capacity(room.found),
        }
    }

    /// One without room, for an engine of which so much is counted: it stands in for another.
    pub fn counted(counts: Counts) -> Mirror {
        Mirror { counts, ..Mirror::new(0) }
    }

    /// What to make a mirror for, where an engine has so many blocks of this size: there are [`MIRROR_LINKS_PER_BLOCK`]
    /// links for each, and large blocks have more.
    pub fn blocks_for(blocks: u32, block_size: u32) -> u32 {
        blocks.saturating_mul(parts(block_size)).min(MIRROR_BLOCKS_MAX)
    }

    /// The most memory that one takes.
    pub const fn bytes(blocks_max: u32) -> usize {
        Room::of(blocks_max).bytes()
    }

    /// [`Mirror::stored_on`] in one piece, however long that takes. False: all was given up instead, and
    /// nothing that the sink was told of is held. For tests and benches.
    pub fn stored(&mut self, stored: &Stored<'_>, reading: &Reading<'_>, sink: &mut impl Sink) -> bool {
        let mut done = 0;
        loop {
            match self.stored_on(stored, &mut done, reading, sink, &mut Stint::default()) {
                Halt::Through => return true,
                Halt::Midway => {}
                Halt::GivesUp => {
                    self.give_up();
                    return false;
                }
            }
        }
    }

    /// Blocks are there now. It is told in pieces, of which one ends with `stint`. `done`: how many of the blocks were
    /// named, 0 at first. Nothing else is told before that is through.
    pub fn stored_on(
        &mut self,
        stored: &Stored<'_>,
        done: &mut usize,
        reading: &Reading<'_>,
        sink: &mut impl Sink,
        stint: &mut Stint,
    ) -> Halt {
        if !on_gpu(stored.medium) {
            self.counts.tiers += stored.hashes.len() as u64;
            return Halt::Through;
        }
        match self.group {
            Group::Unknown | Group::OthersAlone if sees_all(stored) => self.group = Group::Read(stored.group),
            Group::Unknown if *done == 0 => self.group = Group::OthersAlone,
            _ => {}
        }
        if self.group != Group::Read(stored.group) && *done == 0 {
            self.counts.groups += stored.hashes.len() as u64;
            return Halt::Through;
        }
        loop {
            let place = *done;
            let name = match self.next(stored.hashes, done, sink, stint) {
                Ok(name) => name,
                Err(halt) => return halt,
            };
            let parent = place.checked_sub(1).map_or(stored.parent, |before| stored.hashes.get(before).copied());
            self.store(Block { name, parent, stored, place }, reading, sink);
            stint.spend(1 + std::mem::take(&mut self.toil) + stored.block_size / TOKENS_FOR_ONE);
        }
    }

    /// [`Mirror::removed_on`] in one piece, as [`Mirror::stored`].
    pub fn removed(&mut self, removed: &Removed<'_>, sink: &mut impl Sink) -> bool {
        let mut done = 0;
        loop {
            match self.removed_on(removed, &mut done, sink, &mut Stint::default()) {
                Halt::Through => return true,
                Halt::Midway => {}
                Halt::GivesUp => {
                    self.give_up();
                    return false;
                }
            }
        }
    }

    /// Blocks are there no more. In pieces, as [`Mirror::stored_on`].
    pub fn removed_on(
        &mut self,
        removed: &Removed<'_>,
        done: &mut usize,
        sink: &mut impl Sink,
        stint: &mut Stint,
    ) -> Halt {
        if !on_gpu(removed.medium) {
            self.counts.tiers += removed.hashes.len() as u64;
            return Halt::Through;
        }
        if matches!(self.group, Group::Read(group) if removed.group.is_some() && group != removed.group) {
            self.counts.groups += removed.hashes.len() as u64;
            return Halt::Through;
        }
        loop {
            let name = match self.next(removed.hashes, done, sink, stint) {
                Ok(name) => name,
                Err(halt) => return halt,
            };
            stint.spend(1);
            let Some(at) = self.names.get(&name).copied().filter(|at| self.tree.get(*at).copies > 0) else {
                self.counts.unknown += 1;
                continue;
            };
            self.counts.removed += 1;
            let node = self.tree.get_mut(at);
            node.copies -= 1;
            if node.copies == 0 || node.ambiguous {
                self.take_away(at);
            }
        }
    }

    /// More was told of than is borne, or than an engine can hold: all of it goes, and the engine is known again once
    /// it says that it begins anew, or has told of nearly all that it has. Takes as long as [`Mirror::cleared`], and no
    /// sink is told either.
    pub fn give_up(&mut self) {
        self.counts.beyond += u64::from(self.blocks);
        self.cleared();
        self.extent = Extent::GivenUp;
    }

    /// Nothing is there any more. No sink is told. Takes some 50 ns for each block that was there.
    pub fn cleared(&mut self) {
        self.names.clear();
        self.tree.clear();
        self.links.clear();
        (self.links_kept, self.blocks, self.walk) = (0, 0, None);
        (self.extent, self.gives_up) = (Extent::Within, false);
    }

    /// How many blocks there are, held or not.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// How many there can be.
    pub fn blocks_max(&self) -> u32 {
        self.blocks_max
    }

    /// Whether a block is held that this link ends in.
    pub fn owns(&self, link: u64) -> bool {
        self.links.owned(link)
    }

    /// How often what was told.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether the engine has said since the last clear that it holds more than it should be able to, or what no cache
    /// does.
    pub fn overflowed(&self) -> bool {
        matches!(self.extent, Extent::Beyond | Extent::GivenUp)
    }

    /// Whether the engine has told of blocks, and of none by which it is known what a prompt finds: all are of layers
    /// that see a part of it.
    pub fn is_partial(&self) -> bool {
        matches!(self.group, Group::OthersAlone)
    }

    /// Whether there is something in what is known that the engine holds no more: more was stored than it can hold.
    /// [`Mirror::give_up`] ends that.
    pub fn is_overfull(&self) -> bool {
        matches!(self.extent, Extent::Beyond)
    }

    fn store(&mut self, block: Block<'_>, reading: &Reading<'_>, sink: &mut impl Sink) {
        let known = self.names.get(&block.name).copied();
        if let Some(at) = known.filter(|at| self.tree.get(*at).copies > 0) {
            return self.store_again(at, block, reading, sink);
        }
        if self.blocks == self.blocks_max {
            self.counts.beyond += 1;
            self.extent = Extent::Beyond;
            return;
        }
        self.blocks += 1;
        self.counts.stored += 1;
        let at = known.unwrap_or_else(|| {
            let at = self.tree.insert(Node::new(block.name));
            self.names.insert(block.name, at);
            at
        });
        let node = self.tree.get_mut(at);
        (node.parent, node.copies) = (block.parent, 1);
        self.settle(at, block, reading, sink);
    }

    fn store_again(&mut self, at: u32, block: Block<'_>, reading: &Reading<'_>, sink: &mut impl Sink) {
        self.counts.copies += 1;
        let before = block.parent.and_then(|parent| self.names.get(&parent)).map(|before| self.tree.get(*before));
        let unclear = before.is_some_and(|before| before.ambiguous);
        let settled = self.tree.above(at).is_some() || block.parent.is_none();
        let node = self.tree.get_mut(at);
        if node.parent != block.parent || unclear {
            node.ambiguous = true;
            self.counts.ambiguous += 1;
            return;
        }
        node.copies = node.copies.saturating_add(1);
        if node.text.is_err() || !settled {
            self.settle(at, block, reading, sink);
        }
    }
}

/// So many tokens are looked up in the time in which a link is told of.
const TOKENS_FOR_ONE: u32 = 64;

/// For as many blocks one of this size counts.
fn parts(block_size: u32) -> u32 {
    block_size.div_ceil(8 * MIRROR_LINKS_PER_BLOCK).max(1)
}

/// vLLM names the GPU on every build, older engines name no tier.
fn on_gpu(medium: Option<&[u8]>) -> bool {
    medium.is_none_or(|medium| medium.eq_ignore_ascii_case(b"GPU"))
}

/// Whether these layers look at all that is before a token. What others keep is of no use by itself: windows, states.
/// Where a model has both, its engine reuses no more than both have, which may be less than is held here.
fn sees_all(stored: &Stored<'_>) -> bool {
    let Some(kind) = stored.attention else { return true };
    match kind {
        b"full_attention" | b"mla_attention" | b"sink_full_attention" => true,
        // vLLM's word for a group of several kinds, as of a model and what drafts for it; it names a window where that
        // is what they have in common.
        b"unknown" => stored.window.is_none(),
        _ => false,
    }
}
