//! What each endpoint is due where there is not room for all.

use super::capacity::Shape;
use super::{Capacity, Index};

/// All of what an endpoint wants, as a part of it: so fine that it tells each block of the largest want.
const WHOLE: u64 = 1 << 32;

impl Index {
    /// What an endpoint gets whose own capacity is not known.
    pub fn share(&self) -> u32 {
        self.share
    }

    /// What is due to each slot of those that want so many blocks: the same part of what it wants, but never less than
    /// [`super::Capacity::share`] unless it wants less. Whoever has no more than that leaves every other room for it.
    pub fn shares(&self, wants: &[u32]) -> Vec<u32> {
        let needed = |part: u64| -> usize { wants.iter().map(|&want| self.chunks_of(want, part)).sum() };
        let (mut part, mut over) = (0, WHOLE + 1);
        while part + 1 < over {
            let middle = part.midpoint(over);
            if needed(middle) <= self.chunks { part = middle } else { over = middle }
        }
        // Equal wants get their next chunk at the same part of them: what is left for that, some get before others.
        let mut left = self.chunks.saturating_sub(needed(part));
        let due = |&want: &u32| {
            let more = usize::from(left > 0 && self.chunks_of(want, part) < self.chunks_of(want, WHOLE));
            left -= more;
            let blocks = (self.chunks_of(want, part) + more) << self.shift;
            want.min(u32::try_from(blocks).unwrap_or(u32::MAX))
        };
        wants.iter().map(due).collect()
    }

    /// Whether all of what these want is due to them in an index that is made for so much.
    pub fn is_enough(capacity: Capacity, wants: &[u32]) -> bool {
        let Ok(Shape { shift, chunks, .. }) = capacity.shape() else { return false };
        wants.iter().map(|want| want.div_ceil(1 << shift) as usize).sum::<usize>() <= chunks
    }

    /// Chunks for so many parts, of [`WHOLE`], of what an endpoint wants.
    fn chunks_of(&self, want: u32, part: u64) -> usize {
        let (want, least) = (u64::from(want), self.chunks / self.seats.len().max(1));
        let in_chunks = |blocks: u64| blocks.div_ceil(1 << self.shift) as usize;
        in_chunks(want * part / WHOLE).max(least).min(in_chunks(want))
    }
}
