//! The paged KV cache: fixed blocks, shared by hash, reused in least-recently-used order.
//!
//! The rules are those of vLLM's block pool, except that only one of several copies of a block can be found (see
//! [`Cache::publish`]). A block in use has references and is never taken. A block without references stays findable
//! under its hash and waits in the free list until it is needed for something else. The list is kept in order of
//! release, the last blocks of a sequence before its first ones, so that a prefix outlives what was built on it. A
//! block that is not full, which cannot be found, goes before all of them (`bench/real/simulated.py` holds both against
//! real engines).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const NONE: u32 = u32::MAX;

/// For keys that are hashes or counters already: they need no second hash.
#[derive(Default)]
pub struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        // hashbrown takes its tag from the top bits: spread counters there too.
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A map keyed by a hash or a counter.
pub type ByHash<V> = HashMap<u64, V, BuildHasherDefault<Identity>>;

#[derive(Clone, Copy)]
struct Block {
    references: u32,
    /// Set while `by_hash` points here.
    hash: Option<u64>,
    /// Neighbours in the free list, `NONE` at its ends and outside it.
    before: u32,
    after: u32,
}

/// A change of blocks that a listener is told of, by their hashes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The block can be found from here on; another copy may have been there before, as vLLM tells of each.
    Stored(u64),
    /// The block can be found no longer.
    Removed(u64),
    /// No block can be found any longer.
    Cleared,
}

/// All KV blocks of one engine.
pub struct Cache {
    blocks: Vec<Block>,
    by_hash: ByHash<u32>,
    oldest: u32,
    newest: u32,
    free: usize,
    /// Changes since they were taken last; `None` if nobody listens.
    changes: Option<Vec<Change>>,
}

impl Cache {
    /// Makes a cold cache of `blocks` blocks.
    pub fn new(blocks: u32) -> Cache {
        let empty = Block { references: 0, hash: None, before: NONE, after: NONE };
        let mut cache = Cache {
            blocks: vec![empty; blocks as usize],
            by_hash: ByHash::default(),
            oldest: NONE,
            newest: NONE,
            free: 0,
            changes: None,
        };
        for block in 0..blocks {
            cache.push_newest(block);
        }
        cache
    }

    /// Keeps changes from here on, until [`Cache::take_changes`].
    pub fn listen(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// Moves the changes to the end of `into`.
    pub fn take_changes(&mut self, into: &mut Vec<Change>) {
        if let Some(changes) = &mut self.changes {
            into.append(changes);
        }
    }

    fn tell(&mut self, change: Change) {
        if let Some(changes) = &mut self.changes {
            changes.push(change);
        }
    }

    /// Number of blocks.
    pub fn capacity(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks that no sequence uses, findable ones included.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Counts how many of `hashes`, from the first, are held, and how many of those no sequence uses now: a sequence
    /// that takes them withdraws these from the free ones.
    pub fn lookup(&self, hashes: &[u64]) -> (usize, usize) {
        let mut idle = 0;
        for (depth, hash) in hashes.iter().enumerate() {
            match self.by_hash.get(hash) {
                Some(block) => idle += usize::from(self.blocks[*block as usize].references == 0),
                None => return (depth, idle),
            }
        }
        (hashes.len(), idle)
    }

    /// Takes a reference on each block held under `hashes`, which [`Cache::lookup`] has found.
    pub fn take_held(&mut self, hashes: &[u64], into: &mut Vec<u32>) {
        for hash in hashes {
            let Some(&block) = self.by_hash.get(hash) else { return };
            if self.blocks[block as usize].references == 0 {
                self.unlink(block);
            }
            self.blocks[block as usize].references += 1;
            into.push(block);
        }
    }

    /// Takes `count` blocks, oldest first, which forget what they held; or takes none and returns false.
    pub fn take_free(&mut self, count: usize, into: &mut Vec<u32>) -> bool {
        if count > self.free {
            return false;
        }
        for _ in 0..count {
            let block = self.oldest;
            self.unlink(block);
            if let Some(hash) = self.blocks[block as usize].hash.take() {
                self.by_hash.remove(&hash);
                self.tell(Change::Removed(hash));
            }
            self.blocks[block as usize].references = 1;
            into.push(block);
        }
        true
    }

    /// Makes a full block findable. vLLM keeps every copy findable until it is taken. Here one copy is: of two the one
    /// in use, which mostly lives longer. If that one goes first after all, the other is not found.
    pub fn publish(&mut self, block: u32, hash: u64) {
        self.tell(Change::Stored(hash));
        if let Some(&other) = self.by_hash.get(&hash) {
            if other == block || self.blocks[other as usize].references > 0 {
                return;
            }
            self.blocks[other as usize].hash = None;
        }
        self.blocks[block as usize].hash = Some(hash);
        self.by_hash.insert(hash, block);
    }

    /// Drops one reference on each of a sequence's blocks, given in the sequence's order. The first `full` of them are
    /// full: engines find these by hashes of their own, whether there is a hash here or not.
    pub fn release(&mut self, blocks: &mut Vec<u32>, full: usize) {
        while let Some(block) = blocks.pop() {
            let held = &mut self.blocks[block as usize];
            held.references -= 1;
            match held.references {
                0 if blocks.len() < full => self.push_newest(block),
                0 => self.push_oldest(block),
                _ => {}
            }
        }
    }

    /// Forgets everything that can be found; sequences in flight keep their blocks.
    pub fn forget(&mut self) {
        for block in self.by_hash.drain().map(|(_, block)| block) {
            self.blocks[block as usize].hash = None;
        }
        self.tell(Change::Cleared);
    }

    fn push_newest(&mut self, block: u32) {
        let before = self.newest;
        let entry = &mut self.blocks[block as usize];
        (entry.before, entry.after) = (before, NONE);
        match before {
            NONE => self.oldest = block,
            _ => self.blocks[before as usize].after = block,
        }
        self.newest = block;
        self.free += 1;
    }

    fn push_oldest(&mut self, block: u32) {
        let after = self.oldest;
        let entry = &mut self.blocks[block as usize];
        (entry.before, entry.after) = (NONE, after);
        match after {
            NONE => self.newest = block,
            _ => self.blocks[after as usize].before = block,
        }
        self.oldest = block;
        self.free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { before, after, .. } = self.blocks[block as usize];
        match before {
            NONE => self.oldest = after,
            _ => self.blocks[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            _ => self.blocks[after as usize].before = before,
        }
        self.free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence of `hashes` computed anew, published and released again.
    fn pass(cache: &mut Cache, hashes: &[u64]) {
        let mut blocks = Vec::new();
        assert!(cache.take_free(hashes.len(), &mut blocks));
        for (block, hash) in blocks.iter().zip(hashes) {
            cache.publish(*block, *hash);
        }
        cache.release(&mut blocks, hashes.len());
    }

    #[test]
    fn the_least_recently_used_goes_first_and_of_it_the_tail() {
        let mut cache = Cache::new(6);
        pass(&mut cache, &[1, 2, 3]);
        pass(&mut cache, &[11, 12, 13]);
        let mut taken = Vec::new();
        assert!(cache.take_free(2, &mut taken));
        assert_eq!(cache.lookup(&[1, 2, 3]).0, 1, "the tail of the older went");
        assert_eq!(cache.lookup(&[11, 12, 13]).0, 3);
    }

    #[test]
    fn what_is_not_full_goes_before_all_that_is() {
        let mut cache = Cache::new(3);
        pass(&mut cache, &[1, 2]);
        let mut blocks = Vec::new();
        assert!(cache.take_free(1, &mut blocks), "the one that was never used");
        cache.release(&mut blocks, 0);
        assert!(cache.take_free(1, &mut blocks), "the same again, though it was released last");
        assert_eq!(cache.lookup(&[1, 2]).0, 2);
        cache.release(&mut blocks, 1);
        assert!(cache.take_free(1, &mut blocks), "full, though of no hash that is known here: the oldest goes");
        assert_eq!(cache.lookup(&[1, 2]).0, 1);
    }

    #[test]
    fn a_hit_renews() {
        let mut cache = Cache::new(6);
        pass(&mut cache, &[1, 2, 3]);
        pass(&mut cache, &[11, 12, 13]);
        let mut held = Vec::new();
        cache.take_held(&[1, 2, 3], &mut held);
        cache.release(&mut held, usize::MAX);
        let mut taken = Vec::new();
        assert!(cache.take_free(3, &mut taken));
        assert_eq!(cache.lookup(&[1, 2, 3]).0, 3);
        assert_eq!(cache.lookup(&[11, 12, 13]).0, 0);
    }

    #[test]
    fn shared_blocks_outlive_one_of_their_users() {
        let mut cache = Cache::new(4);
        let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
        assert!(cache.take_free(2, &mut first));
        cache.publish(first[0], 1);
        cache.publish(first[1], 2);
        cache.take_held(&[1, 2], &mut second);
        assert_eq!(cache.free(), 2);
        cache.release(&mut first, 2);
        assert_eq!(cache.free(), 2, "the second user still holds both");
        assert!(!cache.take_free(3, &mut third), "none is taken when not all can be");
        assert_eq!(cache.free(), 2);
        cache.release(&mut second, 2);
        assert_eq!(cache.free(), 4);
        assert_eq!(cache.lookup(&[1, 2]), (2, 2));
    }

    #[test]
    fn forgetting_keeps_references() {
        let mut cache = Cache::new(2);
        let mut held = Vec::new();
        assert!(cache.take_free(1, &mut held));
        cache.publish(held[0], 9);
        cache.forget();
        assert_eq!(cache.lookup(&[9]).0, 0);
        assert_eq!(cache.free(), 1);
        cache.release(&mut held, usize::MAX);
        assert_eq!(cache.free(), 2);
    }

    #[test]
    fn a_listener_hears_what_can_be_found_and_what_no_longer() {
        use Change::{Cleared, Removed, Stored};
        let (mut cache, mut heard) = (Cache::new(3), Vec::new());
        pass(&mut cache, &[1, 2]);
        cache.take_changes(&mut heard);
        assert_eq!(heard, [], "nobody listened");
        cache.listen();
        pass(&mut cache, &[3, 4]);
        cache.take_changes(&mut heard);
        assert_eq!(heard, [Removed(2), Stored(3), Stored(4)], "one was empty, of the older the tail went");
        let mut held = Vec::new();
        assert!(cache.take_free(2, &mut held), "1 and the tail of the younger");
        cache.publish(held[0], 3);
        cache.release(&mut held, usize::MAX);
        let mut all = Vec::new();
        assert!(cache.take_free(2, &mut all), "the idle copy of 3 has no hash any more");
        heard.clear();
        cache.take_changes(&mut heard);
        assert_eq!(heard, [Removed(1), Removed(4), Stored(3)]);
        cache.forget();
        heard.clear();
        cache.take_changes(&mut heard);
        assert_eq!((heard, cache.lookup(&[3]).0), (vec![Cleared], 0));
    }

    #[test]
    fn a_copy_in_use_replaces_an_idle_one() {
        let mut cache = Cache::new(3);
        pass(&mut cache, &[5]);
        let (mut held, mut rest) = (Vec::new(), Vec::new());
        assert!(cache.take_free(1, &mut held));
        cache.publish(held[0], 5);
        assert!(cache.take_free(2, &mut rest), "the idle copy is free for anything");
        assert_eq!(cache.lookup(&[5]).0, 1);
    }
}
