//! What one endpoint holds, in the order in which it will go: exactly the least recently used first, and of what was
//! used together the deepest first.
//!
//! Blocks form a tree, since a block's hash includes those before it. Using a prompt makes all its blocks as young as
//! its last one; so it is enough to remember the time of *ends*. A list holds every leaf, and the inner blocks with
//! which some prompt ended, from the newest to the oldest. The oldest entry is the next to go if it is a leaf. If it
//! is not, something younger lies below it and it is taken off the list. A leaf that goes leaves its
//! place in the list to its parent, which was last used when the leaf was,
//! unless the parent has a younger place itself.
//!
//! Hence using a prompt again costs the same whatever its length, and a new block costs one cell. One thread at a time
//! writes a ledger (see [`super::Index`]); look-ups read only the rows.

mod audit;
mod cell;
mod list;
mod lookahead;
mod promised;
mod room;
mod saved;

use super::promises::Promises;
use super::rows::{Holder, Kept, Row, Rows};
pub(super) use cell::Chunk;
use cell::{Cell, FREE, NONE, PROMISED, UNLISTED};
use lookahead::{Lookahead, PART};

/// Blocks whose memory is asked for before they are evicted.
const EVICTED_AHEAD: u32 = 16;

/// How far the list is searched for a parent when a block is taken out, which engines do from the old end on.
const STEPS_MAX: usize = 64;

/// What an insert did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inserted {
    /// Leading blocks that were held before.
    pub before: u32,
    /// Leading blocks that are held now; fewer than were given only where no room could be made.
    pub now: u32,
    /// Blocks of other prompts that went for them; before it was known whether each finds a row.
    pub evicted: u32,
}

/// The blocks of one endpoint.
#[derive(Debug)]
pub(super) struct Ledger {
    chunks: Vec<Chunk>,
    /// The list of chunks has room for so many at least.
    listed_least: usize,
    /// Cells of a chunk: two to the power of this.
    shift: u32,
    capacity: u32,
    held: u32,
    /// Cells from here on were never used.
    unused: u32,
    free: u32,
    newest: u32,
    oldest: u32,
    /// Where promises are kept.
    pub(super) promises: Option<Promises>,
}

impl Ledger {
    /// A ledger without room. Its list of chunks grows, by an allocation of control's, if it is given more than
    /// `chunks`.
    pub(super) fn new(shift: u32, chunks: usize) -> Ledger {
        Ledger {
            chunks: Vec::with_capacity(chunks),
            listed_least: chunks,
            shift,
            capacity: 0,
            held: 0,
            unused: 0,
            free: NONE,
            newest: NONE,
            oldest: NONE,
            promises: None,
        }
    }

    /// Blocks held.
    pub(super) fn held(&self) -> u32 {
        self.held
    }

    /// Most blocks it holds.
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Drops everything, and keeps no promises any more.
    pub(super) fn clear(&mut self, holder: Holder<'_>) {
        // By what was held, not by what there is room for: an engine may say again and again that it holds nothing.
        for at in 0..self.unused {
            let row = std::mem::replace(self.cell_mut(at), FREE).row;
            if row != FREE.row && !holder.leave(row) {
                *self.bucket(row) = NONE;
            }
        }
        (self.held, self.unused, self.free, self.newest, self.oldest) = (0, 0, NONE, NONE, NONE);
        self.promises = None;
    }

    /// Holds this prompt, or part of one, from here on, as the youngest. `before` of its blocks are held, the last of
    /// them in row `end`; with none, `end` is the block before the part. A block that comes again, as none does of a
    /// prompt, may lie there several times ([`lookahead`]).
    pub(super) fn insert(
        &mut self,
        holder: Holder<'_>,
        chain: &[u64],
        before: usize,
        end: Option<Row>,
        promised: bool,
    ) -> Inserted {
        let mut inserted = Inserted { before: before as u32, now: before as u32, evicted: 0 };
        if self.capacity == 0 {
            return inserted;
        }
        let mut end = end.map_or(NONE, |row| self.find(holder.rows, row));
        debug_assert!(end != NONE || before == 0, "a held block has a cell");
        if end != NONE {
            self.unlist(end);
        }
        if !promised {
            self.confirm(end);
        }
        // What is on the path to `end` is no leaf, and `end` is not in the list: none of it can go.
        let chain = &chain[before..];
        let mut lookahead = Lookahead::of(holder, chain);
        inserted.evicted = self.make_room(holder, chain.len(), end);
        'full: for (at, hashes) in chain.chunks(PART).enumerate() {
            for (&hash, &place) in hashes.iter().zip(lookahead.go_on(at)) {
                if self.held >= self.capacity {
                    break 'full;
                }
                let at = self.next_cell();
                let Some((row, kept)) = holder.hold(hash, at, place) else { break 'full };
                self.grow(at, end, promised, row, kept);
                end = at;
                inserted.now += 1;
            }
        }
        if end != NONE {
            self.list_newest(end);
        }
        inserted
    }

    /// Evicts for so many blocks, as far as there is what may go; answers how many.
    fn make_room(&mut self, holder: Holder<'_>, blocks: usize, end: u32) -> u32 {
        let (held, allowed) = (self.held, self.capacity.saturating_sub(blocks as u32));
        while self.held > allowed && self.evict(holder, end, self.held - allowed) {}
        held - self.held
    }

    /// Drops the block in this row and what lies below it; answers how many.
    pub(super) fn remove(&mut self, holder: Holder<'_>, row: Row) -> u32 {
        let top = self.find(holder.rows, row);
        self.fell(holder, top)
    }

    /// The same for the line from there to `end`, but not for blocks on which another line was built since: that one
    /// counts on them. What was built on the end goes too, if that is one line.
    pub(super) fn remove_line(&mut self, holder: Holder<'_>, row: Row, end: Row) -> u32 {
        let (top, mut at) = (self.find(holder.rows, row), self.find(holder.rows, end));
        let mut below = at;
        while below != NONE {
            below = self.cell(below).first_child;
            if below != NONE && self.cell(below).sibling_after != NONE {
                return 0;
            }
        }
        while at != top {
            let parent = self.cell(at).parent();
            // `end` does not lie below `top`: another's block was taken for one of them.
            if parent == NONE {
                return 0;
            }
            if self.cell(parent).first_child != at || self.cell(at).sibling_after != NONE {
                break;
            }
            at = parent;
        }
        self.fell(holder, at)
    }

    fn fell(&mut self, holder: Holder<'_>, top: u32) -> u32 {
        let held = self.held;
        let mut at = top;
        while at != NONE {
            while self.cell(at).first_child != NONE {
                at = self.cell(at).first_child;
            }
            let parent = self.cell(at).parent();
            self.drop_leaf(holder, at, NONE);
            at = if at == top { NONE } else { parent };
        }
        held - self.held
    }

    /// Drops the oldest leaf, and those before it that are the oldest when it has gone: of its line, and no more than
    /// `most`. `end` is not in the list and stays out of it. False: there is none.
    fn evict(&mut self, holder: Holder<'_>, end: u32, most: u32) -> bool {
        while self.oldest != NONE && self.cell(self.oldest).first_child != NONE {
            self.unlist(self.oldest);
        }
        let oldest = self.oldest;
        if oldest == NONE {
            return false;
        }
        let (mut at, newer) = (oldest, self.cell(oldest).newer);
        let mut going = (0..most.min(EVICTED_AHEAD)).fold(at, |going, _| self.prefetch(holder, going));
        for _ in 1..most {
            going = self.prefetch(holder, going);
            let Cell { row, sibling_before, sibling_after, .. } = *self.cell(at);
            let parent = self.cell(at).parent();
            // A parent that is in the list itself, or has another child, goes when its own turn comes.
            let stays = parent == NONE || parent == end || (sibling_before, sibling_after) != (NONE, NONE);
            if stays || self.cell(parent).newer != UNLISTED {
                break;
            }
            self.let_go(holder, at, row);
            at = parent;
        }
        if at != oldest {
            // The place of those that went was handed on to it.
            self.list_between(at, newer, NONE);
        }
        self.drop_leaf(holder, at, end);
        true
    }

    /// Asks the memory for what a block's going will change; answers its parent.
    fn prefetch(&self, holder: Holder<'_>, at: u32) -> u32 {
        if at == NONE {
            return NONE;
        }
        let cell = self.cell(at);
        holder.rows.prefetch_key(cell.row);
        cell.parent()
    }

    fn drop_leaf(&mut self, holder: Holder<'_>, at: u32, end: u32) {
        let Cell { row, sibling_before, sibling_after, .. } = *self.cell(at);
        let parent = self.cell(at).parent();
        match sibling_before {
            NONE if parent != NONE => self.cell_mut(parent).first_child = sibling_after,
            NONE => {}
            before => self.cell_mut(before).sibling_after = sibling_after,
        }
        if sibling_after != NONE {
            self.cell_mut(sibling_after).sibling_before = sibling_before;
        }
        if parent != NONE && parent != end && self.inherits(parent, at) {
            self.unlist(parent);
            self.list_instead(parent, at);
        } else {
            self.unlist(at);
        }
        self.let_go(holder, at, row);
    }

    /// Frees a cell that nothing names any more.
    fn let_go(&mut self, holder: Holder<'_>, at: u32, row: Row) {
        if !holder.leave(row) {
            self.lose(row, at);
        }
        let free = self.free;
        *self.cell_mut(at) = Cell { next: free, ..FREE };
        self.free = at;
        self.held -= 1;
    }

    /// Whether the place of a leaf that goes is its parent's: the parent is not in the list, or further behind. (The
    /// oldest leaf's is of no use to a parent with other children.)
    /// A place more than [`STEPS_MAX`] behind stays what it is.
    fn inherits(&self, parent: u32, at: u32) -> bool {
        if self.cell(parent).newer == UNLISTED {
            return self.cell(parent).first_child == NONE || at != self.oldest;
        }
        let older = std::iter::successors(Some(self.cell(at).older), |&at| (at != NONE).then(|| self.cell(at).older));
        older.take(STEPS_MAX).take_while(|&at| at != NONE).any(|at| at == parent)
    }

    /// The next cell is this block's, below `parent` and not in the list. There is room: fewer are held than the
    /// capacity.
    fn grow(&mut self, at: u32, parent: u32, promised: bool, row: Row, kept: Kept) {
        let next = match kept {
            Kept::Sole(_) => NONE,
            Kept::Shared => std::mem::replace(self.bucket(row), at),
        };
        let mut sibling_after = NONE;
        if parent != NONE {
            sibling_after = std::mem::replace(&mut self.cell_mut(parent).first_child, at);
        }
        if sibling_after != NONE {
            self.cell_mut(sibling_after).sibling_before = at;
        }
        let stem = if promised { parent | PROMISED } else { parent };
        let cell = self.cell_mut(at);
        let free = std::mem::replace(cell, Cell { row, stem, sibling_after, next, ..FREE }).next;
        if at == self.unused {
            self.unused += 1;
        } else {
            self.free = free;
        }
        self.held += 1;
    }

    /// Where the next block goes.
    #[inline]
    fn next_cell(&self) -> u32 {
        if self.free == NONE { self.unused } else { self.free }
    }

    /// The cell of a row that this slot holds.
    fn find(&mut self, rows: &Rows, row: Row) -> u32 {
        if let Kept::Sole(at) = rows.kept(row) {
            return at;
        }
        let mut at = *self.bucket(row);
        while at != NONE && self.cell(at).row != row {
            at = self.cell(at).next;
        }
        at
    }

    /// Takes a cell of a shared row out of its bucket.
    fn lose(&mut self, row: Row, at: u32) {
        let next = self.cell(at).next;
        let mut before = *self.bucket(row);
        if before == at {
            *self.bucket(row) = next;
            return;
        }
        while before != NONE {
            let cell = self.cell_mut(before);
            if cell.next == at {
                cell.next = next;
                return;
            }
            before = cell.next;
        }
    }

    #[inline]
    fn cell(&self, at: u32) -> &Cell {
        &self.chunks[(at >> self.shift) as usize].cells[(at & ((1 << self.shift) - 1)) as usize]
    }

    #[inline]
    fn cell_mut(&mut self, at: u32) -> &mut Cell {
        &mut self.chunks[(at >> self.shift) as usize].cells[(at & ((1 << self.shift) - 1)) as usize]
    }

    #[inline]
    fn bucket(&mut self, row: Row) -> &mut u32 {
        let spread = u64::from(row.0.wrapping_mul(0x9E37_79B1));
        let at = ((spread * ((self.chunks.len() as u64) << self.shift)) >> 32) as usize;
        &mut self.chunks[at >> self.shift].buckets[at & ((1 << self.shift) - 1)]
    }
}
