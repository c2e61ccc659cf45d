//! Rows of an index of equal shape.

use super::{Holder, Kept, LINE, Row, Rows, TAG, TAG_FROM};
use crate::atomics::Ordering;

/// A row as it is saved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Saved {
    /// Its bucket.
    pub bucket: u32,
    /// What of a block's hash it keeps.
    pub tag: u64,
}

impl Rows {
    /// Equal where a block has the same buckets and tag.
    pub(in crate::index) fn layout(&self) -> u64 {
        u64::from(TAG_FROM) << 48 | (LINE as u64) << 32 | u64::from(self.buckets)
    }

    pub(in crate::index) fn has_bucket(&self, saved: Saved) -> bool {
        saved.bucket < self.buckets
    }

    /// A row that is held, and keeps its tag meanwhile.
    pub(in crate::index) fn saved(&self, row: Row) -> Saved {
        Saved { bucket: row.0 / LINE as u32, tag: self.key(row).load(Ordering::Relaxed) & TAG }
    }
}

impl Holder<'_> {
    /// [`Holder::held`] of a row that was saved.
    pub(in crate::index) fn held_saved(self, saved: Saved) -> Option<Row> {
        if self.rows.has_bucket(saved) { self.held_in([saved.bucket; 2], saved.tag & TAG) } else { None }
    }

    /// [`Holder::hold`] of one that was saved. A block that another endpoint holds in its other bucket gets a row more.
    pub(in crate::index) fn hold_saved(self, saved: Saved, cell: u32) -> Option<(Row, Kept)> {
        if self.rows.has_bucket(saved) { self.hold_in(|| [saved.bucket; 2], saved.tag & TAG, cell, None) } else { None }
    }
}
