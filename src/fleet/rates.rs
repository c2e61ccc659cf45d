//! How fast endpoints compute prompts, measured by their first tokens.

use crate::atomics::{AtomicU32, Ordering};
use crate::limits::TOKENS_MAX;

/// A rate in tokens per second.
#[derive(Debug)]
pub(super) struct Rate(AtomicU32);

/// Assumed rate of an engine before a prompt was timed.
const FIRST_RATE: u32 = 4_000;
/// A timed prompt's weight in an engine's rate is one part of so many.
const TIMED_PROMPTS: i64 = 8;
/// Shortest prompt that is timed: shorter ones measure waiting, not computing.
const TIMED_TOKENS_MIN: u32 = 512;

impl Default for Rate {
    fn default() -> Self {
        Rate(AtomicU32::new(FIRST_RATE))
    }
}

impl Rate {
    /// Returns the rate, at least 1.
    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed).max(1)
    }

    /// Counts a prompt of so many tokens that took so long.
    pub(super) fn timed(&self, tokens: u32, micros: u64) {
        if tokens < TIMED_TOKENS_MIN {
            return;
        }
        let timed = (u64::from(tokens) * 1_000_000 / micros.max(1)).min(TOKENS_MAX.into()) as i64;
        let rate = i64::from(self.0.load(Ordering::Relaxed));
        self.0.store((rate + (timed - rate) / TIMED_PROMPTS) as u32, Ordering::Relaxed);
    }

    /// Resets the rate for another endpoint.
    pub(super) fn forget(&self) {
        self.0.store(FIRST_RATE, Ordering::Relaxed);
    }
}
