//! Which links are held, and by how many blocks each: prompts that part within a block share its first steps, and the
//! same text may be cut into tokens in two ways.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Keys of 64 bits that are hashes already. They are hashed again, under a seed that nobody knows: clients choose the
/// texts and thereby the links, old engines name blocks by a function that anybody can compute, and who finds many that
/// fall into one place would make each look-up as long as the table.
#[derive(Clone)]
pub(super) struct Seeded(u64);

/// One key on its way.
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

/// A table of so many entries that never grows: half of its room stays free, so that what removals leave behind is
/// swept in place.
pub(super) fn table(entries_max: usize) -> HashMap<u64, u32, Seeded> {
    HashMap::with_capacity_and_hasher(2 * entries_max, Seeded::default())
}

/// How many blocks own each link.
pub(super) struct Links {
    owners: HashMap<u64, u32, Seeded>,
    /// Those of several.
    shared: usize,
}

impl Links {
    /// With room for so many.
    pub fn new(links_max: usize) -> Links {
        Links { owners: table(links_max), shared: 0 }
    }

    pub fn clear(&mut self) {
        self.owners.clear();
        self.shared = 0;
    }

    /// One block more; whether it is the first.
    pub fn own(&mut self, link: u64) -> bool {
        let owners = self.owners.entry(link).or_default();
        *owners += 1;
        self.shared += usize::from(*owners == 2);
        *owners == 1
    }

    /// One block less; whether it was the last.
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

    /// How many links are those of several blocks.
    pub fn shared(&self) -> usize {
        self.shared
    }
}
