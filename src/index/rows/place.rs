//! Where a block will go that its holder does not hold yet.

use super::{HOLDERS, Holder, LINE, Row, is_tagged, sole};
use crate::atomics::{AtomicU64, Ordering};

/// So many rows of its first bucket are free where a block that nobody holds goes there without a look at the second.
const SPARE_MIN: u32 = if cfg!(feature = "modelled") { 1 } else { 3 };

/// Where a block is or may be, and the key that was seen there.
#[derive(Clone, Copy, Debug)]
pub(in crate::index) struct Place {
    pub(super) row: Row,
    pub(super) key: u64,
    /// Of a free row: the block has another holder already.
    pub(super) shared: bool,
}

impl Place {
    /// Whether nobody held the block when this was looked up.
    #[inline]
    pub(in crate::index) fn is_alone(&self) -> bool {
        !self.shared && self.key & HOLDERS == 0
    }
}

impl Holder<'_> {
    /// The block's row to join, else a free one in the emptier of its buckets. `None`: it holds the block alone, or
    /// both are full.
    #[inline]
    pub(in crate::index) fn place_for(self, hash: u64) -> Option<Place> {
        self.place_in(self.rows.places(hash), hash)
    }

    /// The same behind another thread, which was there first, or where nobody looked ahead.
    #[cold]
    #[inline(never)]
    pub(super) fn place_anew(self, buckets: [u32; 2], hash: u64) -> Option<Place> {
        self.place_in(buckets, hash)
    }

    #[inline]
    fn place_in(self, buckets: [u32; 2], hash: u64) -> Option<Place> {
        let (mut same, mut free) = ([0u32; 2], [0u32; 2]);
        for at in 0..2 {
            for (place, key) in self.rows.keys(buckets[at]).iter().enumerate() {
                let key = key.load(Ordering::Relaxed);
                same[at] |= u32::from(is_tagged(key, hash)) << place;
                free[at] |= u32::from(key & HOLDERS == 0) << place;
            }
            same[at] &= !free[at];
        }
        let mut shared = false;
        if same[0] | same[1] != 0 {
            let mut own = false;
            let mut join = None;
            self.rows.rows_in(buckets, hash, |row, key| {
                own |= sole(key) == Some(self.slot);
                shared = true;
                if sole(key).is_none() {
                    join = join.or(Some(Place { row, key, shared }));
                }
                false
            });
            if own || join.is_some() {
                return join.filter(|_| !own);
            }
        }
        let at = usize::from(free[1].count_ones() > free[0].count_ones());
        if free[at] == 0 {
            return None;
        }
        let row = Row(buckets[at] * LINE as u32 + free[at].trailing_zeros());
        let key = self.rows.key(row).load(Ordering::Relaxed);
        // Another thread may just have taken it: then the exchange must fail.
        Some(Place { row, key: if key & HOLDERS == 0 { key } else { !key }, shared })
    }

    /// A row for a block that nobody holds, if its first bucket has enough that are free. Its second one is not looked
    /// at, whose memory would have to be waited for as well.
    #[inline]
    pub(in crate::index) fn place_alone(self, hash: u64) -> Option<Place> {
        let bucket = self.rows.first_place(hash);
        let free = self.free_in(bucket);
        // Not counted: plain x86-64 has no instruction for that.
        let beyond = (1..SPARE_MIN).fold(free, |free, _| free & free.wrapping_sub(1));
        if beyond == 0 { None } else { self.alone_at(bucket, free) }
    }

    /// The same in the emptier of both. `None`: both are full.
    #[inline]
    pub(in crate::index) fn place_alone_in_two(self, hash: u64) -> Option<Place> {
        let [first, second] = self.rows.places(hash);
        let (free, free_there) = (self.free_in(first), self.free_in(second));
        match free_there.count_ones() > free.count_ones() {
            true => self.alone_at(second, free_there),
            false => self.alone_at(first, free),
        }
    }

    /// The free rows of a bucket, a bit for each: the lowest is the last row's.
    #[inline]
    fn free_in(self, bucket: u32) -> u32 {
        let is_free = |key: &AtomicU64| u32::from(key.load(Ordering::Relaxed) & HOLDERS == 0);
        self.rows.keys(bucket).iter().fold(0, |free, key| free + free + is_free(key))
    }

    /// The last of its free rows, unless there is none or another thread has just taken it.
    #[inline]
    fn alone_at(self, bucket: u32, free: u32) -> Option<Place> {
        if free == 0 {
            return None;
        }
        let at = (LINE - 1) - free.trailing_zeros() as usize;
        let key = self.rows.keys(bucket)[at % LINE].load(Ordering::Relaxed);
        let row = Row(bucket * LINE as u32 + at as u32);
        (key & HOLDERS == 0).then_some(Place { row, key, shared: false })
    }
}
