//! Counts what rows say. For tests.

use super::{HOLDERS, Holder, LINE, Row, Rows, SHARED, TAG, sole};
use crate::atomics::Ordering;

impl Rows {
    /// Rows in use and bits set, once nobody writes; an error says what does not fit.
    pub(in crate::index) fn audit(&self) -> Result<(usize, usize), String> {
        let (mut used, mut set) = (0, 0);
        for row in (0..self.buckets * LINE as u32).map(Row) {
            let key = self.key(row).load(Ordering::Acquire);
            if sole(key).is_some() || key & HOLDERS == 0 {
                used += usize::from(sole(key).is_some());
                set += usize::from(sole(key).is_some());
                continue;
            }
            let holders = (key & HOLDERS & !SHARED) as usize;
            let bits = (0..self.words).map(|word| self.bits(row, word).load(Ordering::Acquire).count_ones() as usize);
            let bits: usize = bits.sum();
            if bits != holders {
                return Err(format!("{row:?} counts {holders} holders and has {bits} bits"));
            }
            used += 1;
            set += bits;
        }
        Ok((used, set))
    }
}

impl Holder<'_> {
    /// Whether the row is its own, and its block's tag.
    pub(in crate::index) fn tag(self, row: Row) -> Option<u64> {
        let key = self.rows.key(row).load(Ordering::Acquire);
        self.is_kept(row, key).then_some(key & TAG)
    }
}
