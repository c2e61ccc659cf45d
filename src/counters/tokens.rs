//! Tokens of prompts and answers by pool, as choices take them and as replies tell them, as one shard sees them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::stats::{add, labelled};
use crate::limits::LABELLED_POOLS_MAX;

/// Which tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TokenCount {
    /// Of prompts, by the usage in replies.
    ToldPrompt,
    /// Of these, the ones that were in the engine's cache.
    ToldCached,
    /// Of answers, likewise.
    ToldCompletion,
    /// Of prompts, thought to be held where they were sent.
    Held,
    /// Of prompts, thought to be computed there.
    New,
}

impl TokenCount {
    /// All of them, in the order of their numbers.
    pub const ALL: [TokenCount; 5] =
        [TokenCount::ToldPrompt, TokenCount::ToldCached, TokenCount::ToldCompletion, TokenCount::Held, TokenCount::New];
}

/// Written by one shard, read by control.
#[derive(Debug)]
pub(super) struct TokenCounts(Box<[[AtomicU64; TokenCount::ALL.len()]]>);

impl Default for TokenCounts {
    fn default() -> Self {
        TokenCounts((0..=LABELLED_POOLS_MAX).map(|_| [const { AtomicU64::new(0) }; TokenCount::ALL.len()]).collect())
    }
}

impl TokenCounts {
    #[inline]
    pub(super) fn add(&self, pool: u16, which: TokenCount, tokens: u64) {
        add(&self.0[labelled(pool)][which as usize], tokens);
    }

    pub(super) fn of(&self, pool: u16, which: TokenCount) -> u64 {
        self.0[labelled(pool)][which as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_number() {
        TokenCount::ALL.iter().enumerate().for_each(|(number, which)| assert_eq!(*which as usize, number));
    }
}
