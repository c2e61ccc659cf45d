//! How fast endpoints compute prompts, as first tokens tell it.

use crate::atomics::{AtomicU32, Ordering};
use crate::limits::TOKENS_MAX;

/// Tokens a second.
#[derive(Debug)]
pub(super) struct Rate(AtomicU32);

/// Tokens a second that an engine is taken to compute before one was timed.
const FIRST_RATE: u32 = 4_000;
/// The weight of one timed prompt in an engine's rate is one part of so many; shorter ones tell of waiting, not of
/// computing.
const TIMED_PROMPTS: i64 = 8;
const TIMED_TOKENS_MIN: u32 = 512;

impl Default for Rate {
    fn default() -> Self {
        Rate(AtomicU32::new(FIRST_RATE))
    }
}

impl Rate {
    /// At least 1.
    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed).max(1)
    }

    /// So many tokens took so long.
    pub(super) fn timed(&self, tokens: u32, micros: u64) {
        if tokens < TIMED_TOKENS_MIN {
            return;
        }
        let timed = (u64::from(tokens) * 1_000_000 / micros.max(1)).min(TOKENS_MAX.into()) as i64;
        let rate = i64::from(self.0.load(Ordering::Relaxed));
        self.0.store((rate + (timed - rate) / TIMED_PROMPTS) as u32, Ordering::Relaxed);
    }

    /// The endpoint there was not timed yet.
    pub(super) fn forget(&self) {
        self.0.store(FIRST_RATE, Ordering::Relaxed);
    }
}
