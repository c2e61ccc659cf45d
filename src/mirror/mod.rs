//! What one engine rank holds, as it tells by its KV events: events of token blocks in, links of chains out.
//!
//! An engine names its blocks by hashes that say nothing of their content, and tells each block's tokens once, when it
//! is stored. A tree of all named blocks is kept here. Each has the state of hashing at its end ([`text`]), so that a
//! following block's links can be made from that block's tokens alone ([`tree`]). [`settle`] has the rules by which
//! blocks come and go, [`links`] counts how many blocks own each link, [`saved`] writes all of it down.
//!
//! A block is *held* if the engine has it and all blocks before it, and if all of them can be read as text: then a
//! prompt that begins with this text is cached. The [`Sink`] is told of a link when the first block that owns it comes
//! to be held, and when the last one is held no more. At any time the links told are closed under prefixes: earlier
//! links of a prompt come first, and go last.
//!
//! - A name that is stored again counts as a copy, and is gone when as many are removed: vLLM tells of each physical
//!   block. If a request asks for that (`kv_cache_report_mode`), vLLM also tells of reused blocks again, and removes
//!   each only once: such blocks count as there until the cache is cleared, or until there are more than the engine can
//!   hold ([`Mirror::is_overfull`]).
//! - A name that is stored after two different blocks is ambiguous: the first meaning stays, blocks stored after it are
//!   not read, and one removal ends both. SGLang's older versions name pages by their own tokens alone.
//! - A block whose predecessor is not known is an orphan, and so are all blocks after it, until it is stored again
//!   itself.
//! - A block for whose links there is no room is not read, nor are the blocks after it: they are not held, and nothing
//!   else is wrong.
//! - If a block goes while others that follow it stay, these are no longer held either. They are held again once the
//!   block is stored again with the same text.
//!
//! An event costs in proportion to its size; but if a block goes or comes before others that follow it, the sink is
//! told of all that follow, each time. Engines remove leaves first, so that each block is told of once as it comes and
//! once as it goes. A cache of an engine that does otherwise again and again is given up ([`Mirror::overflowed`]), so
//! that no message costs more than the blocks that it names and a million more. Long work is done in pieces ([`walk`]).
//! Memory is bounded by [`Mirror::bytes`].

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

/// Receives news of the links that are held.
pub trait Sink {
    /// `link` is held from now on, and follows `after`, the link of the last whole block of text before it. `tokens`:
    /// how many tokens of a prompt that matches up to it are cached; if blocks of several lengths own the link, as the
    /// first of them says.
    fn hold(&mut self, after: Option<u64>, link: u64, tokens: u32);
    /// A held link stands for so many cached tokens from now on.
    fn worth(&mut self, link: u64, tokens: u32);
    /// This link is held no more.
    fn release(&mut self, link: u64);
}

/// How an engine's blocks are read.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// The tokens of the engine's model.
    pub vocabulary: &'a Vocabulary,
    /// Gives the roots of its prompts' chains.
    pub root: Root<'a>,
}

/// Returns the root of prompts with this adapter and this salt.
pub type Root<'a> = &'a dyn Fn(Option<&[u8]>, Option<&[u8]>) -> u64;

/// One engine rank's cache.
pub struct Mirror {
    names: HashMap<u64, u32, Seeded>,
    tree: Tree,
    links: Links,
    /// Number of links of all blocks that are there, held or not.
    links_kept: usize,
    links_max: usize,
    blocks: u32,
    blocks_max: u32,
    /// For how many blocks of usual size there is room.
    room: u32,
    group: Group,
    extent: Extent,
    /// How many more blocks the sink may be told of beyond those that events name, and whether there were too many.
    patience: u32,
    gives_up: bool,
    /// What the sink is still to be told of because of the block that was named last.
    walk: Option<Walk>,
    /// What reading has cost since that was last charged to a [`Stint`].
    toil: u32,
    counts: Counts,
    /// Reused buffers: texts of tokens, links of the block being read.
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
    /// Makes a mirror with room for so many blocks. Its memory is reserved at once and touched as it fills.
    pub fn new(blocks_max: u32) -> Mirror {
        let room = Room::of(blocks_max);
        let blocks_max = blocks_max.min(MIRROR_BLOCKS_MAX);
        Mirror {
            names: table(room.nodes),
            tree: Tree::new(room.nodes),
            links: Links::new(room.links),
            links_kept: 0,
            links_max: room.links,
            blocks: 0,
            blocks_max,
            room: blocks_max,
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

    /// Sets how many blocks the engine may tell of at once, if that is fewer than there is room for: large blocks have
    /// the room of several each.
    pub fn bound(&mut self, blocks: u32) {
        self.blocks_max = blocks.min(self.room);
    }

    /// Makes a mirror without room that only carries counts, in the place of another.
    pub fn counted(counts: Counts) -> Mirror {
        Mirror { counts, ..Mirror::new(0) }
    }

    /// Returns for how many blocks to make room, if an engine has so many blocks of this size (in tokens): there
    /// are [`MIRROR_LINKS_PER_BLOCK`] links for each, and large blocks have more.
    pub fn blocks_for(blocks: u32, block_size: u32) -> u32 {
        blocks.saturating_mul(parts(block_size)).min(MIRROR_BLOCKS_MAX)
    }

    /// Returns the most memory, in bytes, that a mirror takes.
    pub const fn bytes(blocks_max: u32) -> usize {
        Room::of(blocks_max).bytes()
    }

    /// Runs [`Mirror::stored_on`] to its end, however long that takes. False: all was given up instead, and nothing
    /// that the sink was told of is held any more. For tests and benches.
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

    /// Takes blocks that are stored now, in pieces, each of which ends with `stint`. `done`: how many of the blocks
    /// were taken, 0 at first. No other event may be given before this one is through.
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

    /// Runs [`Mirror::removed_on`] to its end, as [`Mirror::stored`] does.
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

    /// Takes blocks that are removed, in pieces, as [`Mirror::stored_on`] does.
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

    /// Gives up all that is known, after more was told of than is allowed or than the engine can hold. The engine is
    /// known again once it says that it begins anew, or has told of nearly all its blocks anew. Takes as long as
    /// [`Mirror::cleared`], and no sink is told either.
    pub fn give_up(&mut self) {
        self.counts.beyond += u64::from(self.blocks);
        self.cleared();
        self.extent = Extent::GivenUp;
    }

    /// Forgets all blocks, as the engine holds none. No sink is told. Takes some 50 ns for each block that was there.
    pub fn cleared(&mut self) {
        self.names.clear();
        self.tree.clear();
        self.links.clear();
        (self.links_kept, self.blocks, self.walk) = (0, 0, None);
        (self.extent, self.gives_up) = (Extent::Within, false);
    }

    /// Returns how many blocks there are, held or not.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns for how many blocks of usual size there is room.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Whether a held block owns this link.
    pub fn owns(&self, link: u64) -> bool {
        self.links.owned(link)
    }

    /// Returns how often the engine told what.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether, since the last clear, the engine told of more than it should be able to hold, or of what no cache does.
    pub fn overflowed(&self) -> bool {
        matches!(self.extent, Extent::Beyond | Extent::GivenUp)
    }

    /// Whether the engine has told only of blocks of layers that see a part of a prompt, from which nobody can know
    /// what a prompt finds cached.
    pub fn is_partial(&self) -> bool {
        matches!(self.group, Group::OthersAlone)
    }

    /// Whether some known blocks must be gone from the engine, as more were stored than it can hold.
    /// [`Mirror::give_up`] ends that.
    pub fn is_overfull(&self) -> bool {
        matches!(self.extent, Extent::Beyond)
    }

    fn store(&mut self, block: Block<'_>, reading: &Reading<'_>, sink: &mut impl Sink) {
        let known = self.names.get(&block.name).copied();
        if let Some(at) = known.filter(|at| self.tree.get(*at).copies > 0) {
            return self.store_again(at, block, reading, sink);
        }
        if self.blocks >= self.blocks_max {
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

/// How many tokens are looked up in the time in which the sink is told of one link.
const TOKENS_FOR_ONE: u32 = 64;

/// Returns as how many blocks one of this size, in tokens, counts.
fn parts(block_size: u32) -> u32 {
    block_size.div_ceil(8 * MIRROR_LINKS_PER_BLOCK).max(1)
}

/// Whether a block is on the GPU: vLLM names it on every build, older engines name no tier.
fn on_gpu(medium: Option<&[u8]>) -> bool {
    medium.is_none_or(|medium| medium.eq_ignore_ascii_case(b"GPU"))
}

/// Whether these layers look at everything before a token. Blocks of other layers (windows, states) are of no use by
/// themselves. If a model has both, its engine reuses no more than both have, which may be less than is held here.
fn sees_all(stored: &Stored<'_>) -> bool {
    let Some(kind) = stored.attention else { return true };
    match kind {
        b"full_attention" | b"mla_attention" | b"sink_full_attention" => true,
        // vLLM's word for a group of several kinds, as of a model and its draft model; it gives a window if they have
        // one in common.
        b"unknown" => stored.window.is_none(),
        _ => false,
    }
}
