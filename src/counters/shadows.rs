//! What a shadow policy would have done, beside what was done; by pool and shadow policy.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

use super::stats::add;
use crate::limits::LABELLED_POOLS_MAX;

/// What is counted. Tokens are those of requests whose prompts were looked up and for which both policies chose an
/// endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Shadowed {
    /// Requests for which the shadow chose the same endpoint.
    Agreed,
    /// Requests for which it chose another one.
    Differed,
    /// Requests for which it chose none.
    Nobody,
    /// Requests that the shadow skipped because too many were chosen for in one turn of their shard.
    Skipped,
    /// Prompt tokens that the chosen endpoint was thought to hold.
    HeldThere,
    /// Prompt tokens that it had to compute.
    NewThere,
    /// The same, with the tokens of other requests that it had to compute before them.
    CostThere,
    /// [`Shadowed::HeldThere`] of the shadow's endpoint.
    HeldInstead,
    /// [`Shadowed::NewThere`] of the shadow's endpoint.
    NewInstead,
    /// [`Shadowed::CostThere`] of the shadow's endpoint.
    CostInstead,
}

impl Shadowed {
    const COUNT: usize = Shadowed::CostInstead as usize + 1;
}

/// How many policies there are places for.
pub const POLICIES: usize = 7;

type Cells = CachePadded<[[AtomicU64; Shadowed::COUNT]; POLICIES]>;

/// The counts of one shard. Its memory is allocated at the first.
#[derive(Debug, Default)]
pub struct Shadows(OnceLock<Box<[Cells]>>);

impl Shadows {
    /// Adds `n`. For the shard alone: two writers would lose counts.
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
