//! How fast endpoints compute prompts, as first tokens tell it.

use crate::atomics::{AtomicU32, Ordering};
use crate::limits::{ENDPOINTS_MAX, TOKENS_MAX};

/// Tokens a second by slot.
#[derive(Debug)]
pub(super) struct Rates(Box<[AtomicU32; ENDPOINTS_MAX]>);

/// Tokens a second that an engine is taken to compute before one was timed.
const FIRST_RATE: u32 = 4_000;
/// The weight of one timed prompt in an engine's rate is one part of so many; shorter ones tell of waiting, not of computing.
const TIMED_PROMPTS: i64 = 8;
const TIMED_TOKENS_MIN: u32 = 512;

impl Default for Rates {
    fn default() -> Self {
        Rates(Box::new(std::array::from_fn(|_| AtomicU32::new(FIRST_RATE))))
    }
}

impl Rates {
    /// At least 1.
    #[inline]
    pub(super) fn of(&self, slot: u16) -> u32 {
        self.0.get(slot as usize).map_or(1, |cell| cell.load(Ordering::Relaxed).max(1))
    }

    /// So many tokens took so long.
    pub(super) fn timed(&self, slot: u16, tokens: u32, micros: u64) {
        let Some(cell) = self.0.get(slot as usize).filter(|_| tokens >= TIMED_TOKENS_MIN) else { return };
        let timed = (u64::from(tokens) * 1_000_000 / micros.max(1)).min(TOKENS_MAX.into()) as i64;
        let rate = i64::from(cell.load(Ordering::Relaxed));
        cell.store((rate + (timed - rate) / TIMED_PROMPTS) as u32, Ordering::Relaxed);
    }

    /// The endpoint there was not timed yet.
    pub(super) fn forget(&self, slot: u16) {
        if let Some(cell) = self.0.get(slot as usize) {
            cell.store(FIRST_RATE, Ordering::Relaxed);
        }
    }
}
