//! Islands: the engines that may stand in for each other, which are those of one pool and of pools with engines in
//! common. A request that waits for one island can never go to another, so each is a queue of its own, with its own
//! ends, open places and tenants' turns.

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::limits::ENDPOINTS_MAX;

/// The islands. An island's number is one of its endpoints' slots.
#[derive(Debug)]
pub struct Islands {
    /// The island of each endpoint, by slot.
    of: Box<[AtomicU32]>,
    /// By island: the number, among all ends, of the last request that ended there...
    last: Box<[AtomicU64]>,
    /// ... and how many of the places so left no request has taken yet, as far as is known.
    open: Box<[AtomicU32]>,
}

impl Default for Islands {
    /// One island of all endpoints.
    fn default() -> Self {
        Islands {
            of: (0..ENDPOINTS_MAX).map(|_| AtomicU32::new(0)).collect(),
            last: (0..ENDPOINTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            open: (0..ENDPOINTS_MAX).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl Islands {
    /// Sets the island of each endpoint, by slot; endpoints beyond the list are islands of their own. A request that
    /// waits meanwhile is on its new island at its next look. Returns whether any island changed.
    pub fn are(&self, islands: &[u16]) -> bool {
        let mut changed = false;
        for (slot, at) in self.of.iter().enumerate() {
            let island = islands.get(slot).map_or(slot as u32, |island| (*island).into());
            changed |= at.swap(island, Ordering::Relaxed) != island;
        }
        changed
    }

    #[inline]
    pub fn of(&self, endpoint: u16) -> u16 {
        self.of.get(usize::from(endpoint)).map_or(0, |island| island.load(Ordering::Relaxed) as u16)
    }

    /// Notes that a request ended on an island, the `end`-th of all.
    pub fn ended(&self, island: u16, end: u64) {
        if let Some((last, open)) = self.last.get(usize::from(island)).zip(self.open.get(usize::from(island))) {
            open.fetch_add(1, Ordering::Relaxed);
            last.fetch_max(end, Ordering::Release);
        }
    }

    /// The greatest `end` that [`Islands::ended`] was told for this island.
    #[inline]
    pub fn last_end(&self, island: u16) -> u64 {
        self.last.get(usize::from(island)).map_or(0, |last| last.load(Ordering::Acquire))
    }

    pub fn open(&self, island: u16) -> u32 {
        self.open.get(usize::from(island)).map_or(0, |open| open.load(Ordering::Relaxed))
    }

    /// Takes one of its open places.
    pub fn takes_place(&self, island: u16) {
        if let Some(open) = self.open.get(usize::from(island)) {
            let _ = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1));
        }
    }

    /// Sets its open places to none: no request that looked fits them.
    pub fn none_open(&self, island: u16) {
        if let Some(open) = self.open.get(usize::from(island)) {
            open.store(0, Ordering::Relaxed);
        }
    }
}
