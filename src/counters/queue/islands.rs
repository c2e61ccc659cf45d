//! Which engines may stand in for each other: those of one pool, and of pools that have engines in common. What waits
//! for one island can never go to another, so each is a queue of its own, with ends, open places and tenants' turns of
//! its own.

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::limits::ENDPOINTS_MAX;

/// An island is known by one of its endpoints' slots.
#[derive(Debug)]
pub struct Islands {
    /// By endpoint.
    of: Box<[AtomicU32]>,
    /// By island: which of all requests that ended was the last there...
    last: Box<[AtomicU64]>,
    /// ... and how many of those left a place that nobody took since, as far as it is known.
    open: Box<[AtomicU32]>,
}

impl Default for Islands {
    /// One.
    fn default() -> Self {
        Islands {
            of: (0..ENDPOINTS_MAX).map(|_| AtomicU32::new(0)).collect(),
            last: (0..ENDPOINTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            open: (0..ENDPOINTS_MAX).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl Islands {
    /// The island of each endpoint, by slot; those behind them are alone. Who waits while they change is on another
    /// from one look to the next. Answers whether any is another than before.
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

    /// A request ended there, so many-th of all.
    pub fn ended(&self, island: u16, end: u64) {
        if let Some((last, open)) = self.last.get(usize::from(island)).zip(self.open.get(usize::from(island))) {
            open.fetch_add(1, Ordering::Relaxed);
            last.fetch_max(end, Ordering::Release);
        }
    }

    /// See [`Islands::ended`].
    #[inline]
    pub fn last_end(&self, island: u16) -> u64 {
        self.last.get(usize::from(island)).map_or(0, |last| last.load(Ordering::Acquire))
    }

    pub fn open(&self, island: u16) -> u32 {
        self.open.get(usize::from(island)).map_or(0, |open| open.load(Ordering::Relaxed))
    }

    /// One of its open places is taken.
    pub fn takes_place(&self, island: u16) {
        if let Some(open) = self.open.get(usize::from(island)) {
            let _ = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1));
        }
    }

    /// What is open there suits nobody who looked.
    pub fn none_open(&self, island: u16) {
        if let Some(open) = self.open.get(usize::from(island)) {
            open.store(0, Ordering::Relaxed);
        }
    }
}
