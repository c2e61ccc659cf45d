//! The memory of a ledger: a cell for each block.

use crate::index::rows::Row;
use crate::pages::filled;

/// No cell.
pub(super) const NONE: u32 = u32::MAX >> 1;
/// In `newer`: the cell is not in the list.
pub(super) const UNLISTED: u32 = NONE - 1;
/// Beside a cell's parent: the block is only promised. What lies below such a block is promised too.
pub(super) const PROMISED: u32 = 1 << 31;

/// One block held. Half a cache line.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub row: Row,
    /// The parent, and [`PROMISED`].
    pub stem: u32,
    pub first_child: u32,
    pub sibling_before: u32,
    pub sibling_after: u32,
    pub newer: u32,
    pub older: u32,
    /// The next cell of the same bucket, of shared rows; of a free cell, the next free one.
    pub next: u32,
}

pub(super) const FREE: Cell = Cell {
    row: Row(u32::MAX),
    stem: NONE,
    first_child: NONE,
    sibling_before: NONE,
    sibling_after: NONE,
    newer: UNLISTED,
    older: NONE,
    next: NONE,
};

const _: () = assert!(size_of::<Cell>() == 32);

impl Cell {
    pub(super) fn parent(&self) -> u32 {
        self.stem & !PROMISED
    }

    pub(super) fn is_promised(&self) -> bool {
        self.stem & PROMISED != 0
    }
}

/// Cells, and as many buckets by which those of shared rows are found; a sole row names its cell. Chunks move between
/// the pool and ledgers whole.
#[derive(Debug)]
pub(in crate::index) struct Chunk {
    pub(super) cells: Box<[Cell]>,
    pub(super) buckets: Box<[u32]>,
}

impl Chunk {
    pub(in crate::index) fn new(cells: usize) -> Chunk {
        Chunk { cells: filled(cells, || FREE), buckets: filled(cells, || NONE) }
    }

    /// Bytes of the memory it owns, by cell.
    pub(in crate::index) const CELL_BYTES: usize = size_of::<Cell>() + size_of::<u32>();
}
