//! What a policy that only looks on would have done, beside what was done: by pool and by that policy.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

use super::stats::add;
use crate::limits::LABELLED_POOLS_MAX;

/// What is counted. Tokens are those of requests whose prompts were looked up and for which both chose somebody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Shadowed {
    /// Choices of the endpoint that was chosen.
    Agreed,
    /// Choices of another one.
    Differed,
    /// Choices of nobody.
    Nobody,
    /// Requests not looked at because too many were chosen for in one turn of their shard.
    Skipped,
    /// Tokens of prompts that the endpoint chosen was thought to hold,
    HeldThere,
    /// that it had to compute,
    NewThere,
    /// and these with those that it had to compute before.
    CostThere,
    /// The same of the endpoint that would have been chosen,
    HeldInstead,
    /// to compute,
    NewInstead,
    /// and with those before.
    CostInstead,
}

impl Shadowed {
    const COUNT: usize = Shadowed::CostInstead as usize + 1;
}

/// Numbers of policies that there are places for.
pub const POLICIES: usize = 7;

type Cells = CachePadded<[[AtomicU64; Shadowed::COUNT]; POLICIES]>;

/// The counts of one shard; none of its memory is there before the first.
#[derive(Debug, Default)]
pub struct Shadows(OnceLock<Box<[Cells]>>);

impl Shadows {
    /// For the shard alone: two writers would lose counts.
    #[inline]
    pub(super) fn add(&self, pool: u16, policy: u8, what: Shadowed, n: u64) {
        let pools = self.0.get_or_init(|| (0..=LABELLED_POOLS_MAX).map(|_| Cells::default()).collect());
        let cells = pools.get((pool as usize).min(LABELLED_POOLS_MAX)).and_then(|cells| cells.get(policy as usize));
        if let Some(cells) = cells {
            add(&cells[what as usize], n);
        }
    }

    pub(super) fn of(&self, pool: u16, policy: u8, what: Shadowed) -> u64 {
        let pools = self.0.get();
        let cells = pools.and_then(|pools| pools.get((pool as usize).min(LABELLED_POOLS_MAX))?.get(policy as usize));
        cells.map_or(0, |cells| cells[what as usize].load(Ordering::Relaxed))
    }
}
