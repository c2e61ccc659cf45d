//! What each endpoint is due where there is not room for all.

use super::capacity::Shape;
use super::{Capacity, Index};

impl Index {
    /// What an endpoint gets whose own capacity is not known.
    pub fn share(&self) -> u32 {
        self.share
    }

    /// What is due to each slot of those that want so many blocks: all of it, up to a level that is the same for all
    /// and as high as there is room for. So one that says that it wants far too much has no more than an even part
    /// before all others have theirs, and takes nothing from those that want less.
    pub fn shares(&self, wants: &[u32]) -> Vec<u32> {
        let in_chunks = |want: u32| want.div_ceil(1 << self.shift) as usize;
        let mut least_first: Vec<usize> = wants.iter().map(|&want| in_chunks(want)).collect();
        least_first.sort_unstable();
        let (mut left, mut level) = (self.chunks, usize::MAX);
        for (those_left, want) in (1..=wants.len()).rev().zip(least_first) {
            let even = left / those_left;
            if want > even {
                // Of what is left over when each of these has as many, some get a chunk more than others.
                (level, left) = (even, left % those_left);
                break;
            }
            left -= want;
        }
        let due = |&want: &u32| {
            let more = usize::from(left > 0 && in_chunks(want) > level);
            left -= more;
            let blocks = (in_chunks(want).min(level) + more) << self.shift;
            want.min(u32::try_from(blocks).unwrap_or(u32::MAX))
        };
        wants.iter().map(due).collect()
    }

    /// Whether all of what these want is due to them in an index that is made for so much.
    pub fn is_enough(capacity: Capacity, wants: &[u32]) -> bool {
        let Ok(Shape { shift, chunks, .. }) = capacity.shape() else { return false };
        wants.iter().map(|want| want.div_ceil(1 << shift) as usize).sum::<usize>() <= chunks
    }
}
