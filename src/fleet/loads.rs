//! How our requests are spread over endpoints, as all shards count it together.

use std::ops::Range;

use super::PoolId;
use super::flights::{Caps, Flights};
use super::rates::Rate;
use super::trials::Trial;
use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::limits::{ENDPOINTS_MAX, POOLS_MAX, TOKENS_MAX};

/// What choices read of the requests of ours; [`crate::counters`] is the only writer.
#[derive(Debug)]
pub struct Loads {
    /// By slot.
    endpoints: Box<[Cells; ENDPOINTS_MAX]>,
    mean_prompt: Box<[AtomicU32; POOLS]>,
    mean_held: Box<[AtomicU32; POOLS]>,
    mean_answer: Box<[AtomicU32; POOLS]>,
}

/// What is counted of one endpoint, in a line of memory of its own: a request that comes or goes takes that one line
/// from the other cores, and none that they need for other endpoints.
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

/// Means are kept of so many pools.
const POOLS: usize = if cfg!(feature = "modelled") { 1 } else { POOLS_MAX };

/// Mean lengths of a pool at one moment, as they are kept.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    prompt: u32,
    held: u32,
    answer: u32,
}

/// Tokens of its answer that a request counts in `dispatched` at once, beside the new ones of its prompt.
pub(crate) const ANSWER_TOKENS: u64 = 64;
/// What prompts of a pool are taken for before there was one.
const FIRST_MEAN_TOKENS: u32 = 1_000;
/// What answers of a pool are taken for before there was one.
const FIRST_MEAN_ANSWER: u32 = 64;
/// Means are kept in sixteenths of a token, or they would not move by less than a hundred.
const MEAN_SCALE: u32 = 16;
/// The weight of one prompt in the mean is one part of so many.
const MEAN_PROMPTS: i64 = 100;

impl Loads {
    /// Our requests in flight on one endpoint; 0 for a slot that cannot exist.
    ///
    /// Acquire, so that control, once it has seen 0, also sees all that the released requests did.
    #[inline]
    pub fn in_flight(&self, slot: u16) -> u32 {
        self.cells(slot).map_or(0, |cells| cells.in_flight.counted(Ordering::Acquire))
    }

    /// Those of them that run: a failed request stays charged for a while, and takes no place.
    #[inline]
    pub fn running(&self, slot: u16) -> u32 {
        self.cells(slot).map_or(0, |cells| cells.in_flight.running())
    }

    /// Whether one endpoint may have another.
    #[inline]
    pub fn is_below(&self, slot: u16, caps: Caps) -> bool {
        self.cells(slot).is_some_and(|cells| cells.in_flight.is_below(caps))
    }

    /// Of those, the ones that were open there before its trial began; 0 where none is under way.
    #[inline]
    pub fn open_before(&self, slot: u16) -> u32 {
        let Some((cells, own)) = self.cells(slot).and_then(|cells| Some((cells, cells.trial.own()?))) else { return 0 };
        let in_flight = self.in_flight(slot);
        // Asked on both sides: one of its own that comes or goes meanwhile (not both) is not taken for one from before.
        in_flight.saturating_sub(cells.trial.own().map_or(u32::MAX, |after| own.max(after)))
    }

    /// One request less at an endpoint, on its trial if it is on one. For a copy that nobody shares.
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

    /// Tokens sent to one endpoint that it has to compute before it answers: not in its cache as far as we know, and no
    /// first token seen.
    #[inline]
    pub fn pending(&self, slot: u16) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.pending.load(Ordering::Relaxed))
    }

    /// Tokens that one endpoint's cache was given to hold since the process began; never falls.
    #[inline]
    pub fn dispatched(&self, slot: u16) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.dispatched.load(Ordering::Relaxed))
    }

    /// Tokens of our requests in flight on one endpoint, prompts and what is expected of their answers: what they
    /// occupy of its cache where they share nothing.
    #[inline]
    pub fn resident(&self, slot: u16) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.resident.load(Ordering::Relaxed))
    }

    /// Of our requests in flight on one endpoint, those each of which its engine counts as several: batches, and those
    /// for several answers.
    #[inline]
    pub fn several(&self, slot: u16) -> u32 {
        self.cells(slot).map_or(0, |cells| cells.several.load(Ordering::Relaxed))
    }

    /// Bytes of the prompts sent to one endpoint since the process began, without those that it refused; falls where it
    /// refuses one.
    #[inline]
    pub fn prompted(&self, slot: u16) -> u64 {
        self.cells(slot).map_or(0, |cells| cells.prompted.load(Ordering::Relaxed))
    }

    /// A prompt of so many bytes was sent to an endpoint; less than nothing, wrapped: it was refused.
    pub(crate) fn prompt_sent(&self, slot: u16, bytes: u64) {
        if let Some(cells) = self.cells(slot) {
            cells.prompted.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Tokens a second from a request to its first token, as one endpoint did of late; at least 1.
    #[inline]
    pub fn prefill_rate(&self, slot: u16) -> u32 {
        self.cells(slot).map_or(1, |cells| cells.prefill_rate.get())
    }

    /// A first token came so long after a request to compute so many.
    pub(crate) fn prefilled(&self, slot: u16, tokens: u32, micros: u64) {
        if let Some(cells) = self.cells(slot) {
            cells.prefill_rate.timed(tokens, micros);
        }
    }

    /// The slot is another endpoint's from now on. All else is 0 without requests, or never falls and is compared with
    /// what it was.
    pub(crate) fn forget(&self, slot: u16) {
        if let Some(cells) = self.cells(slot) {
            cells.trial.end();
            cells.prefill_rate.forget();
        }
    }

    /// Mean length of the prompts of a pool in tokens, the last hundred of them counting most.
    #[inline]
    pub fn mean_prompt(&self, pool: PoolId) -> u32 {
        (mean_cell(&self.mean_prompt, pool).load(Ordering::Relaxed) / MEAN_SCALE).max(1)
    }

    /// How much of these prompts the chosen endpoints were thought to hold, 0..=1.
    #[inline]
    pub fn held_share(&self, pool: PoolId) -> f32 {
        let [held, all] =
            [&self.mean_held, &self.mean_prompt].map(|mean| mean_cell(mean, pool).load(Ordering::Relaxed));
        (held as f32 / all.max(1) as f32).min(1.0)
    }

    /// Mean of what the chosen endpoints were thought not to hold of these prompts, in tokens.
    #[inline]
    pub fn mean_new(&self, pool: PoolId) -> u32 {
        let [held, all] =
            [&self.mean_held, &self.mean_prompt].map(|mean| mean_cell(mean, pool).load(Ordering::Relaxed));
        all.saturating_sub(held) / MEAN_SCALE
    }

    /// A further prompt of a pool, of which so many tokens are held. Two at once may count as one.
    #[inline]
    pub(crate) fn prompt(&self, pool: PoolId, tokens: u32, held: u32) {
        moves(mean_cell(&self.mean_prompt, pool), tokens);
        moves(mean_cell(&self.mean_held, pool), held);
    }

    /// Mean length of the answers of a pool in tokens, the last hundred of those that told it counting most.
    #[inline]
    pub fn mean_answer(&self, pool: PoolId) -> u32 {
        (mean_cell(&self.mean_answer, pool).load(Ordering::Relaxed) / MEAN_SCALE).max(1)
    }

    /// A further answer of a pool. Two at once may count as one.
    #[inline]
    pub(crate) fn answer(&self, pool: PoolId, tokens: u32) {
        moves(mean_cell(&self.mean_answer, pool), tokens);
    }

    /// The means of a pool as they are now.
    #[inline]
    pub fn means(&self, pool: PoolId) -> Means {
        let [prompt, held, answer] = [&self.mean_prompt, &self.mean_held, &self.mean_answer]
            .map(|means| mean_cell(means, pool).load(Ordering::Relaxed));
        Means { prompt, held, answer }
    }

    /// Becomes what `seen` is at these slots, with these means of a pool, so that it can be changed. For a copy that
    /// nobody shares.
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

    /// What is counted of an endpoint, for the counters alone: a choice only reads.
    #[inline]
    pub(crate) fn cells(&self, slot: u16) -> Option<&Cells> {
        self.endpoints.get(slot as usize)
    }
}

/// Pools beyond the last, of which there are none but where models of all this are tried, share its mean.
fn mean_cell(means: &[AtomicU32; POOLS], pool: PoolId) -> &AtomicU32 {
    &means[usize::from(pool.0).min(POOLS - 1)]
}

/// A mean takes one more length in.
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
