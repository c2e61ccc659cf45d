//! How our requests are spread over endpoints, counted by all shards together.

use std::ops::Range;

use super::PoolId;
use super::flights::{Caps, Flights};
use super::rates::Rate;
use super::trials::Trial;
use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::limits::{ENDPOINTS_MAX, POOLS_MAX, TOKENS_MAX};

/// What choices read about our requests; [`crate::counters`] is the only writer.
#[derive(Debug)]
pub struct Loads {
    /// By slot.
    endpoints: Box<[Cells; ENDPOINTS_MAX]>,
    mean_prompt: Box<[AtomicU32; POOLS]>,
    mean_held: Box<[AtomicU32; POOLS]>,
    mean_answer: Box<[AtomicU32; POOLS]>,
}

/// The counts of one endpoint, in a cache line of their own: a request that comes or goes takes that one line from the
/// other cores, and none that they need for other endpoints.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Cells {
    /// From the choice to the last byte of the response.
    pub(crate) in_flight: Flights,
    /// See [`Loads::pending`].
    pub(crate) pending: AtomicU64,
    /// See [`Loads::dispatched`].
    pub(crate) dispatched: AtomicU64,
    /// See [`Loads::resident`].
    pub(crate) resident: AtomicU64,
    prompted: AtomicU64,
    /// See [`Loads::several`].
    pub(crate) several: AtomicU32,
    prefill_rate: Rate,
    pub(crate) trial: Trial,
}

#[cfg(not(feature = "modelled"))]
const _: () = assert!(size_of::<Cells>() == 64, "one line");

impl Default for Loads {
    fn default() -> Self {
        Loads {
            endpoints: Box::new(std::array::from_fn(|_| Cells::default())),
            mean_prompt: Box::new(std::array::from_fn(|_| AtomicU32::new(FIRST_MEAN_TOKENS * MEAN_SCALE))),
            mean_held: Box::new(std::array::from_fn(|_| AtomicU32::new(0))),
            mean_answer: Box::new(std::array::from_fn(|_| AtomicU32::new(FIRST_MEAN_ANSWER * MEAN_SCALE))),
        }
    }
}

/// Number of pools that have means.
const POOLS: usize = if cfg!(feature = "modelled") { 1 } else { POOLS_MAX };

/// Mean lengths of a pool at one moment, in units of [`MEAN_SCALE`].
#[derive(Clone, Copy, Debug)]
pub struct Means {
    prompt: u32,
    held: u32,
    answer: u32,
}

/// Tokens of its answer that a request counts in `dispatched` at once, beside the new tokens of its prompt.
pub(crate) const ANSWER_TOKENS: u64 = 64;
/// Assumed length of a pool's prompts, in tokens, before the first one.
const FIRST_MEAN_TOKENS: u32 = 1_000;
/// Assumed length of a pool's answers, in tokens, before the first one.
const FIRST_MEAN_ANSWER: u32 = 64;
/// Means are kept in sixteenths of a token: in whole tokens they would not move for differences below a hundred.
const MEAN_SCALE: u32 = 16;
/// A prompt's weight in the mean is one part of so many.
const MEAN_PROMPTS: i64 = 100;

impl Loads {
    /// Our requests in flight on one endpoint; 0 for a slot that cannot exist.
    ///
    /// Acquire, so that control, once it has seen 0, also sees all that the released requests did.
    #[inline]
    pub fn in_flight(&self, slot: u16) -> u32 {
        self.cells(slot).map_or(0, |cells| cells.in_flight.counted(Ordering::Acquire))
    }

    /// Our requests on one endpoint that run: a failed request stays charged for a while, but does not count here.
    #[inline]
    pub fn running(&self, slot: u16) -> u32 {
        self.cells(slot).map_or(0, |cells| cells.in_flight.running())
    }

    /// Whether one endpoint may get another request.
    #[inline]
    pub fn is_below(&self, slot: u16, caps: Caps) -> bool {
        self.cells(slot).is_some_and(|cells| cells.in_flight.is_below(caps))
    }

    /// Our requests in flight on one endpoint that were open there before its trial began; 0 if no trial is under way.
    #[inline]
    pub fn open_before(&self, slot: u16) -> u32 {
        let Some((cells, own)) = self.cells(slot).and_then(|cells| Some((cells, cells.trial.own()?))) else { return 0 };
        let in_flight = self.in_flight(slot);
        // The trial's own are read before and after: a request of its own that comes or goes meanwhile (not both) is
        // not taken for one from before.
        in_flight.saturating_sub(cells.trial.own().map_or(u32::MAX, |after| own.max(after)))
    }

    /// Counts one request less at an endpoint, and on its trial if it is on one. For a copy that nobody shares.
    pub(crate) fn take_one_off(&self, slot: u16) {
        if let Some(cells) = self.cells(slot) {
            cells.in_flight.ends(false);
            cells.trial.leave_any();
        }
    }

    /// Our requests in flight on a run of neighbouring slots.
    #[inline]
    pub fn sum(&self, run: Range<u16>) -> u64 {
        let endpoints = self.endpoints.get(run.start as usize..run.end as usize).unwrap_or(&[]);
        let count = |cells: &Cells| u64::from(cells.in_flight.counted(Ordering::Relaxed));
        // Two sums: one chain of additions would wait for itself.
        let (pairs, rest) = endpoints.as_chunks::<2>();
        let (mut even, mut odd) = (0u64, 0u64);
        for [a, b] in pairs {
            even += count(a);
            odd += count(b);
        }
        even + odd + rest.iter().map(count).sum::<u64>()
    }

    /// Tokens sent to one endpoint that it still has to compute: they were not in its cache as far as we know, and no
    /// first token was seen.
    #[inline]
    pub fn pending(&self, slot: u16) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.pending.load(Ordering::Relaxed))
    }

    /// Tokens that one endpoint's cache got to hold since the process began; never falls.
    #[inline]
    pub fn dispatched(&self, slot: u16) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.dispatched.load(Ordering::Relaxed))
    }

    /// Tokens of our requests in flight on one endpoint, prompts and expected answers: what they occupy in its cache if
    /// they share nothing.
    #[inline]
    pub fn resident(&self, slot: u16) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.resident.load(Ordering::Relaxed))
    }

    /// Our requests in flight on one endpoint that its engine counts as several each: batches, and requests for several
    /// answers.
    #[inline]
    pub fn several(&self, slot: u16) -> u32 {
        self.cells(slot).map_or(0, |cells| cells.several.load(Ordering::Relaxed))
    }

    /// Bytes of the prompts sent to one endpoint since the process began, except those that it refused; falls when it
    /// refuses one.
    #[inline]
    pub fn prompted(&self, slot: u16) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.prompted.load(Ordering::Relaxed))
    }

    /// Counts a prompt of so many bytes as sent to an endpoint; with a wrapped negative number takes back one that was
    /// refused.
    pub(crate) fn prompt_sent(&self, slot: u16, bytes: u64) {
        if let Some(cells) = self.cells(slot) {
            cells.prompted.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Tokens per second from a request to its first token, at one endpoint of late; at least 1.
    #[inline]
    pub fn prefill_rate(&self, slot: u16) -> u32 {
        self.cells(slot).map_or(1, |cells| cells.prefill_rate.get())
    }

    /// Notes that a first token came so many microseconds after a request to compute so many tokens.
    pub(crate) fn prefilled(&self, slot: u16, tokens: u32, micros: u64) {
        if let Some(cells) = self.cells(slot) {
            cells.prefill_rate.timed(tokens, micros);
        }
    }

    /// Resets a slot for another endpoint. All other counts are 0 without requests, or never fall and are compared with
    /// earlier values.
    pub(crate) fn forget(&self, slot: u16) {
        if let Some(cells) = self.cells(slot) {
            cells.trial.end();
            cells.prefill_rate.forget();
        }
    }

    /// Mean length of a pool's prompts in tokens; the last hundred count most.
    #[inline]
    pub fn mean_prompt(&self, pool: PoolId) -> u32 {
        (mean_cell(&self.mean_prompt, pool).load(Ordering::Relaxed) / MEAN_SCALE).max(1)
    }

    /// Part of a pool's prompts that the chosen endpoints were thought to hold, 0..=1.
    #[inline]
    pub fn held_share(&self, pool: PoolId) -> f32 {
        let [held, all] =
            [&self.mean_held, &self.mean_prompt].map(|mean| mean_cell(mean, pool).load(Ordering::Relaxed));
        (held as f32 / all.max(1) as f32).min(1.0)
    }

    /// Mean number of tokens per prompt of a pool that the chosen endpoints were thought not to hold.
    #[inline]
    pub fn mean_new(&self, pool: PoolId) -> u32 {
        let [held, all] =
            [&self.mean_held, &self.mean_prompt].map(|mean| mean_cell(mean, pool).load(Ordering::Relaxed));
        all.saturating_sub(held) / MEAN_SCALE
    }

    /// Counts a further prompt of a pool, of which so many tokens are held. Two at once may count as one.
    #[inline]
    pub(crate) fn prompt(&self, pool: PoolId, tokens: u32, held: u32) {
        moves(mean_cell(&self.mean_prompt, pool), tokens);
        moves(mean_cell(&self.mean_held, pool), held);
    }

    /// Mean length of a pool's answers in tokens; the last hundred that told it count most.
    #[inline]
    pub fn mean_answer(&self, pool: PoolId) -> u32 {
        (mean_cell(&self.mean_answer, pool).load(Ordering::Relaxed) / MEAN_SCALE).max(1)
    }

    /// Counts a further answer of a pool. Two at once may count as one.
    #[inline]
    pub(crate) fn answer(&self, pool: PoolId, tokens: u32) {
        moves(mean_cell(&self.mean_answer, pool), tokens);
    }

    /// Returns the means of a pool as they are now.
    #[inline]
    pub fn means(&self, pool: PoolId) -> Means {
        let [prompt, held, answer] = [&self.mean_prompt, &self.mean_held, &self.mean_answer]
            .map(|means| mean_cell(means, pool).load(Ordering::Relaxed));
        Means { prompt, held, answer }
    }

    /// Copies the counts of `seen` at these slots, with these means of a pool, so that they can be changed. For a copy
    /// that nobody shares.
    pub(crate) fn copy(&self, seen: &Loads, slots: &[u16], pool: PoolId, means: Means) {
        for &slot in slots {
            let Some((cells, seen)) = self.cells(slot).zip(seen.cells(slot)) else { continue };
            cells.in_flight.copy(&seen.in_flight);
            cells.pending.store(seen.pending.load(Ordering::Relaxed), Ordering::Relaxed);
            cells.dispatched.store(seen.dispatched.load(Ordering::Relaxed), Ordering::Relaxed);
            cells.resident.store(seen.resident.load(Ordering::Relaxed), Ordering::Relaxed);
            cells.trial.copy(&seen.trial);
        }
        mean_cell(&self.mean_prompt, pool).store(means.prompt, Ordering::Relaxed);
        mean_cell(&self.mean_held, pool).store(means.held, Ordering::Relaxed);
        mean_cell(&self.mean_answer, pool).store(means.answer, Ordering::Relaxed);
    }

    /// Returns the counts of an endpoint. For the counters alone: a choice only reads.
    #[inline]
    pub(crate) fn cells(&self, slot: u16) -> Option<&Cells> {
        self.endpoints.get(slot as usize)
    }
}

/// Returns a pool's cell. Pools beyond the last share its cell, which happens only when models of this are checked.
fn mean_cell(means: &[AtomicU32; POOLS], pool: PoolId) -> &AtomicU32 {
    &means[usize::from(pool.0).min(POOLS - 1)]
}

/// Moves a mean towards one more length.
fn moves(cell: &AtomicU32, tokens: u32) {
    let mean = i64::from(cell.load(Ordering::Relaxed));
    let moved = mean + (i64::from(tokens.min(TOKENS_MAX)) * i64::from(MEAN_SCALE) - mean) / MEAN_PROMPTS;
    cell.store(moved as u32, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_has_means_of_its_own() {
        let loads = Loads::default();
        let last = POOLS as u16 - 1;
        let lengths = [(0, 300), (63, 600), (64, 20_000), (65, 90), (last, 5_000)];
        for (pool, tokens) in lengths {
            (0..2_000).for_each(|_| loads.prompt(PoolId(pool), tokens, tokens / 2));
            (0..2_000).for_each(|_| loads.answer(PoolId(pool), tokens));
        }
        for (pool, tokens) in lengths {
            let means = [loads.mean_prompt(PoolId(pool)), loads.mean_answer(PoolId(pool))];
            assert!(means.iter().all(|mean| mean.abs_diff(tokens) <= 8), "{means:?} of {pool}");
        }
    }
}
