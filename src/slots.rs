//! A table whose keys go stale: a slot number is used again, but with another generation.
//!
//! Entries live in pages that are never moved: growth copies nothing.

/// Names one entry while it is in the table, and nothing afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Returns the key as one word, for the kernel's user data.
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the key of a word that [`Key::to_u64`] made. Any word is safe to look up: it finds its entry or nothing.
    pub fn from_u64(word: u64) -> Key {
        Key { index: word as u32, generation: (word >> 32) as u32 }
    }
}

/// Generations wrap at 30 bits, so that a key and two more bits fit into one word.
const GENERATIONS: u32 = u32::MAX >> 2;
const PAGE: usize = 128;

struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

/// A page of constant length, so that a place in it needs no bounds check. It is aligned to a cache line, so that a
/// slot of 64 bytes is one line: with many connections each look-up misses the cache.
#[repr(align(64))]
struct Page<T>([Slot<T>; PAGE]);

/// A table of entries under [`Key`]s.
pub struct Slots<T> {
    pages: Vec<Box<Page<T>>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { pages: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slots<T> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores `entry` under a new key. A slot's keys repeat after 2^30 uses, which takes days, while a stale key is
    /// kept for half a minute at most.
    pub fn insert(&mut self, entry: T) -> Key {
        if self.free.is_empty() {
            self.grow();
        }
        let index = self.free.pop().expect("grown above");
        let slot = &mut self.pages[index as usize / PAGE].0[index as usize % PAGE];
        slot.entry = Some(entry);
        self.len += 1;
        Key { index, generation: slot.generation }
    }

    fn grow(&mut self) {
        let first = (self.pages.len() * PAGE) as u32;
        self.pages.push(Box::new(Page(std::array::from_fn(|_| Slot { generation: 0, entry: None }))));
        self.free.extend((first..first + PAGE as u32).rev());
    }

    fn slot(&self, key: Key) -> Option<&Slot<T>> {
        let slot = self.pages.get(key.index as usize / PAGE)?.0.get(key.index as usize % PAGE)?;
        (slot.generation == key.generation).then_some(slot)
    }

    fn slot_mut(&mut self, key: Key) -> Option<&mut Slot<T>> {
        let slot = self.pages.get_mut(key.index as usize / PAGE)?.0.get_mut(key.index as usize % PAGE)?;
        (slot.generation == key.generation).then_some(slot)
    }

    /// Returns the entry under `key`, unless it is gone.
    pub fn get(&self, key: Key) -> Option<&T> {
        self.slot(key)?.entry.as_ref()
    }

    /// Returns the entry under `key`, unless it is gone.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slot_mut(key)?.entry.as_mut()
    }

    /// Reads the memory of this key's entry without waiting for it, so that it may be in the cache by the time it is
    /// needed.
    pub fn touch(&self, key: Key) {
        if let Some(page) = self.pages.get(key.index as usize / PAGE) {
            let slot = &page.0[key.index as usize % PAGE];
            // The two may be in different cache lines.
            std::hint::black_box((slot.generation, slot.entry.is_some()));
        }
    }

    /// Takes the entry out; the key is stale from then on.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slot_mut(key)?;
        let entry = slot.entry.take()?;
        slot.generation = (slot.generation + 1) & GENERATIONS;
        self.free.push(key.index);
        self.len -= 1;
        Some(entry)
    }

    /// Returns the keys of all entries, in slot order. Walks the whole table: for shutdown and reports.
    pub fn keys(&self) -> Vec<Key> {
        self.keys_where(|_| true)
    }

    /// Returns the same for entries for which `is` holds.
    pub fn keys_where(&self, is: impl Fn(&T) -> bool) -> Vec<Key> {
        let slots = self.pages.iter().flat_map(|page| page.0.iter());
        let alive = slots.enumerate().filter(|(_, slot)| slot.entry.as_ref().is_some_and(&is));
        alive.map(|(index, slot)| Key { index: index as u32, generation: slot.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_keys_find_nothing() {
        let mut slots = Slots::default();
        let first = slots.insert("first");
        assert_eq!(slots.get(first), Some(&"first"));
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_eq!(second.index, first.index, "slots are used again");
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(Key::from_u64(second.to_u64()), second);
        assert_eq!((slots.get(second), slots.len()), (Some(&"second"), 1));
    }

    #[test]
    fn any_word_is_safe_to_look_up() {
        let mut slots = Slots::default();
        slots.insert(1u8);
        for word in [0, 1, u64::MAX, 1 << 32, 127, 128] {
            let expected = (word == 0).then_some(&1);
            assert_eq!(slots.get(Key::from_u64(word)), expected);
        }
    }
}
