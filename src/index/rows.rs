//! The table of blocks: one row for each block that anybody holds, with one bit for each holder. All threads
//! read and write it together, without locks.
//!
//! A row is two things. Its *key* is one word: the block's tag, how often the row has had another tenant, and who holds
//! it: one *sole* slot by its number, or how many *share* it. The *bits* of a shared row say who they are. A holder
//! counts itself in the key before it sets its bit, and clears its bit before it counts itself out. A reader compares
//! the key read after the bits with the key read before them: bits of a later tenant are never taken for this one's.
//!
//! Most blocks have one holder, and for them the key is all that is read. A sole row is its holder's alone to change:
//! it is left by a plain store, and its first word of bits keeps the holder's cell (see [`super::ledger`]). A second
//! holder makes a row of its own and shares that one; the next join it there. So a block has two rows at most, but for
//! threads that make one at the same time, and for a chain that names it again; all are right, and a reader takes the
//! holders of each.
//!
//! A block has two buckets of [`LINE`] rows where its row may lie (two choices: Azar, Broder, Karlin, Upfal,
//! "Balanced Allocations"; rows are never moved): the emptier one, or the first while it has three free rows and nobody
//! holds the block ([`place`]). There are never more rows than blocks held by each endpoint, summed.
//!
//! Cost: a look reads two cache lines of keys, and one of bits where the block is shared.

mod audit;
mod place;
mod prefetch;
mod saved;

use std::array;

use crate::atomics::{AtomicU64, Ordering};
use crate::pages::filled;
pub(super) use place::Place;
pub(super) use prefetch::prefetch;
pub use saved::Saved;

/// Words of a cache line, and rows of a bucket.
pub(super) const LINE: usize = if cfg!(feature = "modelled") { 2 } else { 8 };

/// A line of keys, of bits, or of lengths.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [AtomicU64; LINE]);

impl Default for Line {
    /// In one piece: an index has a million of these, and a front that a test starts makes them without optimisation.
    #[cfg(not(feature = "modelled"))]
    fn default() -> Self {
        Line([const { AtomicU64::new(0) }; LINE])
    }

    #[cfg(feature = "modelled")]
    fn default() -> Self {
        Line(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Who holds it, in twelve bits. 0: nobody, the row is free. Below [`SHARED`]: the sole holder's slot, plus one. Else
/// so many.
const HOLDERS: u64 = 0xfff;
const SHARED: u64 = 0x800;
const HOLDER: u64 = 1;
/// Tenants: eight bits. A reader that sleeps through 256 of them between two loads, of which the last is the block it
/// asked for, may take holders of another block for its own.
const TURN: u64 = 0xff << 12;
const TURN_ONE: u64 = 1 << 12;
/// The rest tells blocks apart, together with the bucket: the upper 44 bits of their hashes.
const TAG: u64 = !(TURN | HOLDERS);
const TAG_FROM: u32 = TAG.trailing_zeros();

const _: () = assert!(crate::limits::ENDPOINTS_MAX < SHARED as usize - 1, "all endpoints may hold one block");

/// The row of a block. As long as its holder keeps it, it is nobody else's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Row(pub(super) u32);

/// A row that a slot holds, and what its ledger has to know of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// Its alone: this is its cell.
    Sole(u32),
    /// With others, or once with others: its cell is found by the ledger's buckets.
    Shared,
}

/// All rows.
#[derive(Debug)]
pub(super) struct Rows {
    /// Bucket by bucket: a line of keys, then as many lines of bits as a row has words.
    lines: Box<[Line]>,
    buckets: u32,
    words: usize,
}

/// The rows as one slot has its part in them, for who writes for it: to them, what they say of it is exact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'a> {
    pub(super) rows: &'a Rows,
    slot: u16,
}

impl Rows {
    /// Buckets for `blocks` different blocks. Half of the rows are in use then, and of 10^7 new blocks less than one
    /// finds both of its buckets full (21 of 5.4 * 10^8 did; at three quarters it would be one of a hundred: rows go in
    /// another order than they came, which evens out less than their filling does).
    pub(super) fn buckets(blocks: usize) -> Option<u32> {
        let buckets = blocks.checked_mul(2)?.div_ceil(LINE).max(1);
        u32::try_from(buckets.checked_mul(LINE)?).ok().map(|_| buckets as u32)
    }

    /// Bytes of so many buckets with so many words a row.
    pub(super) fn bytes(buckets: u32, words: usize) -> Option<usize> {
        (buckets as usize).checked_mul(1 + words)?.checked_mul(size_of::<Line>())
    }

    pub(super) fn new(buckets: u32, words: usize) -> Rows {
        Rows { lines: filled(buckets as usize * (1 + words), Line::default), buckets, words }
    }

    /// What they are to this slot.
    #[inline]
    pub(super) fn of(&self, slot: u16) -> Holder<'_> {
        Holder { rows: self, slot }
    }

    /// The first bucket of a block.
    #[inline]
    fn first_place(&self, hash: u64) -> u32 {
        // By those bits foremost that the tag leaves out.
        self.bucket_of(hash.rotate_right(TAG_FROM))
    }

    /// The two buckets of a block: one only if there are no two.
    #[inline]
    fn places(&self, hash: u64) -> [u32; 2] {
        let (first, second) = (self.first_place(hash), self.bucket_of(hash.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        if first != second {
            return [first, second];
        }
        // With one bucket to go to, blocks of a small index would often find it full.
        [first, if second + 1 < self.buckets { second + 1 } else { 0 }]
    }

    #[inline]
    fn bucket_of(&self, spread: u64) -> u32 {
        (((spread >> 32) * u64::from(self.buckets)) >> 32) as u32
    }

    #[inline]
    fn keys(&self, bucket: u32) -> &[AtomicU64; LINE] {
        &self.lines[bucket as usize * (1 + self.words)].0
    }

    #[inline]
    fn key(&self, row: Row) -> &AtomicU64 {
        &self.keys(row.0 / LINE as u32)[row.0 as usize % LINE]
    }

    #[inline]
    fn bits(&self, row: Row, word: usize) -> &AtomicU64 {
        let bucket = row.0 as usize / LINE;
        let word = row.0 as usize % LINE * self.words + word;
        &self.lines[bucket * (1 + self.words) + 1 + word / LINE].0[word % LINE]
    }

    /// Calls `found` with each row of this block and its key, until it answers true.
    #[inline(always)]
    fn rows(&self, hash: u64, found: impl FnMut(Row, u64) -> bool) {
        self.rows_in(self.places(hash), hash, found);
    }

    #[inline(always)]
    fn rows_in(&self, [first, second]: [u32; 2], hash: u64, mut found: impl FnMut(Row, u64) -> bool) {
        for (at, bucket) in [first, second].into_iter().enumerate() {
            if at == 1 && first == second {
                return;
            }
            let keys = self.keys(bucket);
            // Without a branch for each key: all are compared before any is looked at.
            let mut same = 0u32;
            for (place, key) in keys.iter().enumerate() {
                same |= u32::from(is_tagged(key.load(Ordering::Acquire), hash)) << place;
            }
            while same != 0 {
                let place = same.trailing_zeros();
                same &= same - 1;
                let key = keys[place as usize % LINE].load(Ordering::Acquire);
                if is_of(key, hash) && found(Row(bucket * LINE as u32 + place), key) {
                    return;
                }
            }
        }
    }

    /// Who of `among` holds this block. `W` is the number of words of a row.
    #[inline]
    pub(super) fn holders<const W: usize>(&self, hash: u64, among: &[u64; W]) -> [u64; W] {
        let mut holders = [0; W];
        self.rows(hash, |row, key| {
            if let Some(slot) = sole(key) {
                let (word, bit) = bit(slot);
                if let Some(word) = holders.get_mut(word) {
                    *word |= bit;
                }
                return false;
            }
            let bits: [u64; W] = array::from_fn(|word| self.bits(row, word).load(Ordering::Acquire));
            // The same tenant still? Its holders may have changed meanwhile, the block has not.
            if (self.key(row).load(Ordering::Relaxed) ^ key) & (TAG | TURN) == 0 {
                holders = array::from_fn(|word| holders[word] | bits[word]);
            }
            false
        });
        array::from_fn(|word| holders[word] & among[word])
    }

    /// How the slot that has this row keeps it: changes by [`Rows::keep_in`] alone while it does.
    #[inline]
    pub(super) fn kept(&self, row: Row) -> Kept {
        match sole(self.key(row).load(Ordering::Relaxed)) {
            Some(_) => Kept::Sole(self.bits(row, 0).load(Ordering::Relaxed) as u32),
            None => Kept::Shared,
        }
    }

    /// The cell of a block that its holder has alone is another one from now on. For the holder.
    pub(super) fn keep_in(&self, row: Row, cell: u32) {
        // Release: a thread that sees these bits while it looks for a former tenant's also sees that the row has
        // another tenant by now.
        self.bits(row, 0).store(cell.into(), Ordering::Release);
    }

    /// Whether the slot that has this row has it alone. Reads no bits.
    #[inline]
    pub(super) fn is_sole(&self, row: Row) -> bool {
        sole(self.key(row).load(Ordering::Relaxed)).is_some()
    }
}

impl Holder<'_> {
    /// The row in which it holds the block.
    #[inline]
    pub(super) fn held(self, hash: u64) -> Option<Row> {
        self.held_in(self.rows.places(hash), hash)
    }

    #[inline]
    fn held_in(self, buckets: [u32; 2], hash: u64) -> Option<Row> {
        let mut held = None;
        self.rows.rows_in(buckets, hash, |row, key| {
            // The same tenant still? The next one may keep a cell's number where this one has its bits.
            let now = || self.rows.key(row).load(Ordering::Relaxed);
            let here = self.is_kept(row, key) && (now() ^ key) & (TAG | TURN) == 0;
            held = here.then_some(row);
            here
        });
        held
    }

    /// Whether it is one of those that hold a row of this key.
    #[inline]
    fn is_kept(self, row: Row, key: u64) -> bool {
        let (word, bit) = bit(self.slot);
        sole(key).map_or_else(|| self.rows.bits(row, word).load(Ordering::Acquire) & bit != 0, |sole| sole == self.slot)
    }

    /// Makes it a holder of the block, whose cell is `cell`. `None`: it is one already, or both buckets are full.
    /// `place` is where it may go, if that was looked up.
    #[inline]
    pub(super) fn hold(self, hash: u64, cell: u32, place: Option<Place>) -> Option<(Row, Kept)> {
        self.hold_in(|| self.rows.places(hash), hash, cell, place)
    }

    #[inline]
    fn hold_in(
        self,
        buckets: impl Fn() -> [u32; 2],
        hash: u64,
        cell: u32,
        place: Option<Place>,
    ) -> Option<(Row, Kept)> {
        let Holder { rows, slot } = self;
        let mut place = place.or_else(|| self.place_anew(buckets(), hash))?;
        // Each turn around means that another thread got on.
        for _ in 0..64 {
            let Place { row, key, shared } = place;
            let joins = is_of(key, hash);
            let next = match joins {
                true => key + HOLDER,
                false => hash & TAG | key.wrapping_add(TURN_ONE) & TURN | (u64::from(slot) + 1),
            };
            // Acquire: the tenant that left the row is done with its bits. Release: a thread that sees the row sees it
            // so.
            if rows.key(row).compare_exchange(key, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let (word, bit) = bit(slot);
                if joins {
                    // Release: a thread that sees this bit sees this tenant or a later one, not the one before.
                    if rows.bits(row, word).fetch_or(bit, Ordering::Release) & bit == 0 {
                        return Some((row, Kept::Shared));
                    }
                    // A chain with the same block twice: it was counted before, and stays a holder.
                    rows.key(row).fetch_sub(HOLDER, Ordering::Relaxed);
                    return None;
                }
                if shared {
                    self.share(row, next);
                    return Some((row, Kept::Shared));
                }
                // Release: as above.
                rows.bits(row, 0).store(cell.into(), Ordering::Release);
                return Some((row, Kept::Sole(cell)));
            }
            place = self.place_anew(buckets(), hash)?;
        }
        None
    }

    /// Lets others join a row that it has just made. Nobody else changes it before.
    #[cold]
    fn share(self, row: Row, key: u64) {
        let (own, bit) = bit(self.slot);
        for word in 0..self.rows.words {
            self.rows.bits(row, word).store(if word == own { bit } else { 0 }, Ordering::Release);
        }
        self.rows.key(row).store(key & (TAG | TURN) | SHARED | HOLDER, Ordering::Release);
    }

    /// Takes it off the holders of a row that it holds; the last one leaves the row free. Answers whether it had it
    /// alone.
    #[inline]
    pub(super) fn leave(self, row: Row) -> bool {
        let key = self.rows.key(row);
        let seen = key.load(Ordering::Relaxed);
        if sole(seen).is_some() {
            // Release: the next tenant finds the row as it was left.
            key.store(seen & TURN, Ordering::Release);
            return true;
        }
        self.leave_to_others(row, seen);
        false
    }

    #[cold]
    fn leave_to_others(self, row: Row, mut seen: u64) {
        let key = self.rows.key(row);
        let (word, bit) = bit(self.slot);
        self.rows.bits(row, word).fetch_and(!bit, Ordering::Relaxed);
        loop {
            let next = if seen & HOLDERS == SHARED | HOLDER { seen & TURN } else { seen - HOLDER };
            // Release: the next tenant finds the bit cleared. Acquire, so that the last to leave passes on what
            // the others cleared.
            match key.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// Whether the tag, which is all above turn and holders, is this block's.
#[inline]
fn is_tagged(key: u64, hash: u64) -> bool {
    key ^ hash < 1 << TAG_FROM
}

#[inline]
fn is_of(key: u64, hash: u64) -> bool {
    is_tagged(key, hash) && key & HOLDERS != 0
}

/// The slot that holds a row of this key alone.
#[inline]
fn sole(key: u64) -> Option<u16> {
    let holders = key & HOLDERS;
    (holders != 0 && holders & SHARED == 0).then(|| holders as u16 - 1)
}

#[inline]
fn bit(slot: u16) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}
