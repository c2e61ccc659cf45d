//! The room of a ledger: chunks that come from the pool and go back to it, whether anything is held or not.

use super::{Cell, Chunk, FREE, Ledger, NONE, PROMISED, UNLISTED};
use crate::index::rows::{Holder, Rows};

impl Ledger {
    /// The capacity, and the chunks that it needs: more are taken from the pool, and surplus ones go back to it. What
    /// is beyond a smaller capacity goes; answers how many blocks that are. No list of chunks stays longer than it need
    /// be: otherwise each would be as long as all there are, sooner or later.
    pub(in crate::index) fn resize(&mut self, holder: Holder<'_>, blocks: u32, pool: &mut Vec<Chunk>) -> u32 {
        let chunks = self.chunks.len();
        let wanted = (blocks as usize).div_ceil(1 << self.shift);
        let evicted = self.shrink(holder, blocks);
        if wanted < chunks {
            self.pack(holder.rows, (wanted << self.shift) as u32);
            pool.extend(self.chunks.drain(wanted..));
            self.chunks.shrink_to(self.listed_least);
        }
        let more = wanted.saturating_sub(chunks).min(pool.len());
        self.chunks.reserve_exact(more);
        self.chunks.extend(pool.drain(pool.len() - more..));
        if self.chunks.len() != chunks {
            self.find_anew(holder.rows);
        }
        self.capacity = blocks.min(self.cells());
        evicted
    }

    /// Holds no more than so many blocks; answers how many of the oldest went for that. The chunks stay.
    pub(in crate::index) fn shrink(&mut self, holder: Holder<'_>, blocks: u32) -> u32 {
        self.capacity = blocks.min(self.cells());
        let held = self.held;
        while self.held > self.capacity && self.evict(holder, NONE, self.held - self.capacity) {}
        held - self.held
    }

    fn cells(&self) -> u32 {
        (self.chunks.len() << self.shift) as u32
    }

    /// Moves what is held into the first `limit` cells, which are enough for it. Shared rows are found again by
    /// [`Ledger::find_anew`] alone.
    fn pack(&mut self, rows: &Rows, limit: u32) {
        self.free = NONE;
        let below = self.unused.min(limit);
        for at in (0..below).rev() {
            if self.cell(at).row == FREE.row {
                self.cell_mut(at).next = self.free;
                self.free = at;
            }
        }
        for at in limit..self.unused {
            if self.cell(at).row != FREE.row {
                let free = self.free;
                self.free = self.cell(free).next;
                self.relocate(rows, at, free);
            }
        }
        self.unused = below;
        if self.held == 0 {
            (self.unused, self.free) = (0, NONE);
        }
    }

    /// Has another cell stand for a block, with all that names it but its bucket.
    fn relocate(&mut self, rows: &Rows, from: u32, to: u32) {
        let cell = std::mem::replace(self.cell_mut(from), FREE);
        let Cell { row, sibling_before, sibling_after, newer, older, first_child, .. } = cell;
        let parent = cell.parent();
        *self.cell_mut(to) = cell;
        match sibling_before {
            NONE if parent != NONE => self.cell_mut(parent).first_child = to,
            NONE => {}
            before => self.cell_mut(before).sibling_after = to,
        }
        if sibling_after != NONE {
            self.cell_mut(sibling_after).sibling_before = to;
        }
        if newer != UNLISTED {
            self.link(newer, older, to, to);
        }
        let mut child = first_child;
        while child != NONE {
            let cell = self.cell_mut(child);
            cell.stem = cell.stem & PROMISED | to;
            child = cell.sibling_after;
        }
        if rows.is_sole(row) {
            rows.keep_in(row, to);
        }
    }

    /// Puts all cells of shared rows into buckets, after these have become more or fewer.
    fn find_anew(&mut self, rows: &Rows) {
        self.chunks.iter_mut().for_each(|chunk| chunk.buckets.fill(NONE));
        for at in 0..self.unused {
            let row = self.cell(at).row;
            if row != FREE.row && !rows.is_sole(row) {
                let bucket = std::mem::replace(self.bucket(row), at);
                self.cell_mut(at).next = bucket;
            }
        }
    }
}
