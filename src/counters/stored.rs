//! Which engine made which stored response: what is asked of one later only that engine can answer.
//!
//! A hint and no more. Another id may have the same hash, a place is given away to whose hash falls there next, and its
//! endpoint's slot may have another tenant by now: who goes by it and finds nothing asks on.

use std::num::NonZeroU32;

use crate::atomics::{AtomicU32, Ordering};
use crate::limits::ENDPOINTS_MAX;

/// So many responses at most. What tells a hash from others of its place leaves as many bits for a slot.
const PLACES: u32 = 16 << 10;
const _: () = assert!(ENDPOINTS_MAX < PLACES as usize, "a slot, and one more so that an empty place names none");

/// The hash of a stored response's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredId(NonZeroU32);

impl StoredId {
    /// By a hash of which any bits will do.
    pub fn of(hash: u64) -> StoredId {
        StoredId(NonZeroU32::new(hash as u32).unwrap_or(NonZeroU32::MIN))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Stored(Box<[AtomicU32]>);

impl Default for Stored {
    fn default() -> Self {
        let places = if cfg!(feature = "modelled") { 1 } else { PLACES };
        Stored((0..places).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Stored {
    /// The response of this id lies there.
    pub fn lies(&self, id: StoredId, slot: u16) {
        self.place(id).store(told_apart(id) | (u32::from(slot) + 1), Ordering::Relaxed);
    }

    /// Where it lies, as far as is known.
    pub fn slot(&self, id: StoredId) -> Option<u16> {
        let place = self.place(id).load(Ordering::Relaxed);
        let slot = (place ^ told_apart(id)).checked_sub(1)?;
        u16::try_from(slot).ok().filter(|slot| usize::from(*slot) < ENDPOINTS_MAX)
    }

    fn place(&self, id: StoredId) -> &AtomicU32 {
        &self.0[id.0.get() as usize % self.0.len()]
    }
}

fn told_apart(id: StoredId) -> u32 {
    id.0.get() & !(PLACES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_lies_where_it_was_made_last_until_its_place_is_anothers() {
        let stored = Stored::default();
        let ids @ [one, other, none] = [0x0001_4007, 0x0001_8007, 0].map(StoredId::of);
        assert_eq!(ids.map(|id| stored.slot(id)), [None; 3]);
        for slot in [0, ENDPOINTS_MAX as u16 - 1] {
            stored.lies(one, slot);
            assert_eq!(ids.map(|id| stored.slot(id)), [Some(slot), None, None]);
        }
        stored.lies(other, 3);
        stored.lies(none, 0);
        assert_eq!(ids.map(|id| stored.slot(id)), [None, Some(3), Some(0)]);
    }
}
