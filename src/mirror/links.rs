//! Counts which links are held, and by how many blocks each: prompts that part within a block share its first steps,
//! and the same text may be cut into tokens in two ways.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Hashes keys of 64 bits, which are hashes already, again under a random seed. Clients choose the texts and thereby
/// the links, and old engines name blocks by a function that anybody can compute: without the seed, anybody could find
/// many keys that fall into one place and make each look-up as long as the table.
#[derive(Clone)]
pub(super) struct Seeded(u64);

/// The hash of one key.
pub(super) struct Mixed(u64);

impl Default for Seeded {
    fn default() -> Seeded {
        Seeded(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mixed;

    fn build_hasher(&self) -> Mixed {
        Mixed(self.0)
    }
}

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Makes a table for so many entries that never grows: half of its room stays free, so that the places of removed
/// entries are cleaned up in place.
pub(super) fn table(entries_max: usize) -> HashMap<u64, u32, Seeded> {
    HashMap::with_capacity_and_hasher(2 * entries_max, Seeded::default())
}

/// How many blocks own each link.
pub(super) struct Links {
    owners: HashMap<u64, u32, Seeded>,
    /// Number of links that several blocks own.
    shared: usize,
}

impl Links {
    /// Makes one with room for so many links.
    pub fn new(links_max: usize) -> Links {
        Links { owners: table(links_max), shared: 0 }
    }

    pub fn clear(&mut self) {
        self.owners.clear();
        self.shared = 0;
    }

    /// Adds an owner; true if it is the first.
    pub fn own(&mut self, link: u64) -> bool {
        let owners = self.owners.entry(link).or_default();
        *owners += 1;
        self.shared += usize::from(*owners == 2);
        *owners == 1
    }

    /// Takes away an owner; true if it was the last.
    pub fn disown(&mut self, link: u64) -> bool {
        let Some(owners) = self.owners.get_mut(&link) else { return false };
        *owners -= 1;
        self.shared -= usize::from(*owners == 1);
        let last = *owners == 0;
        if last {
            self.owners.remove(&link);
        }
        last
    }

    pub fn owned(&self, link: u64) -> bool {
        self.owners.contains_key(&link)
    }
    pub fn is_shared(&self, link: u64) -> bool {
        self.owners.get(&link).is_some_and(|owners| *owners > 1)
    }

    /// Returns how many links several blocks own.
    pub fn shared(&self) -> usize {
        self.shared
    }
}
