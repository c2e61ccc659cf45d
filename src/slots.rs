//! A table whose keys go stale: a slot number is used again, its generation is not.
//!
//! Entries live in pages that are never moved, so that ten thousand idle connections cost what they
//! hold and growth copies nothing.

/// Names one entry for as long as it lives; afterwards it names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// The key as one word, for the kernel's user data.
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The key behind [`Key::to_u64`]. Any word is safe to look up: it finds its entry or nothing.
    pub fn from_u64(word: u64) -> Key {
        Key { index: word as u32, generation: (word >> 32) as u32 }
    }
}

/// Generations wrap at 30 bits, so that a key and two bits more fit one word.
const GENERATIONS: u32 = u32::MAX >> 2;
const PAGE: usize = 128;

struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

/// Of a length that is known when it is compiled: a place in it needs no check. It begins with a line of the cache, so
/// that a slot of 64 bytes is one: among many connections each is looked up where no cache holds it.
#[repr(align(64))]
struct Page<T>([Slot<T>; PAGE]);

/// The table.
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
    /// Entries alive.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is alive.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores `entry` under a key that names nothing else: of one slot they come again after 2^30 uses, which takes
    /// days, and whoever keeps a stale one does so for half a minute at most.
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

    /// The entry under `key`, unless it is gone.
    pub fn get(&self, key: Key) -> Option<&T> {
        self.slot(key)?.entry.as_ref()
    }

    /// The entry under `key`, unless it is gone.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slot_mut(key)?.entry.as_mut()
    }

    /// Reads where this key's entry is, and waits for nothing of it: it may have come from memory by the time it is
    /// asked for.
    pub fn touch(&self, key: Key) {
        if let Some(page) = self.pages.get(key.index as usize / PAGE) {
            let slot = &page.0[key.index as usize % PAGE];
            // They may lie in two lines of the cache.
            std::hint::black_box((slot.generation, slot.entry.is_some()));
        }
    }

    /// Takes the entry out; the key is stale from here on.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slot_mut(key)?;
        let entry = slot.entry.take()?;
        slot.generation = (slot.generation + 1) & GENERATIONS;
        self.free.push(key.index);
        self.len -= 1;
        Some(entry)
    }

    /// The keys alive, in slot order. Walks the whole table: for shutdown and reports.
    pub fn keys(&self) -> Vec<Key> {
        self.keys_where(|_| true)
    }

    /// The same of entries of a kind.
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
