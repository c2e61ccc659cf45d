//! Endpoints and their state, as control sees them and shards read them.

mod belief;
mod rates;
mod trials;
mod turnover;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::limits::{ENDPOINTS_MAX, LABELLED_POOLS_MAX, TOKENS_MAX};
pub use belief::{METHODS, Method, Rung};
use rates::Rates;
use trials::Trials;
pub use turnover::Turnover;

/// Where an endpoint's counters lie (`slot`), and which tenant of that slot is meant (`generation`).
/// A slot is given to another endpoint only when its in-flight count is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndpointId {
    /// Index into [`crate::counters::Counters`] and [`crate::snapshot::Snapshot::endpoints`].
    pub slot: u16,
    /// Counts the tenants of the slot.
    pub generation: u32,
}

/// May an endpoint be chosen?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// Not yet probed: chosen, since a failed connect moves on to another.
    Unknown,
    /// Answers its probes.
    Up,
    /// Fails its probes: walked past, probed on.
    Down,
    /// Being taken out: finishes what it has, gets nothing new.
    Draining,
    /// Failed its requests, whatever its probes say: walked past for a while, then tried.
    Ejected,
    /// Failed its requests some time ago: gets one at a time beside what is open there from before, and is back in
    /// service when one ends well.
    Trial,
}

impl Health {
    /// Whether new requests may go there.
    #[inline]
    pub fn takes_requests(self) -> bool {
        matches!(self, Health::Unknown | Health::Up | Health::Trial)
    }
}

/// What an engine's `/metrics` says of its load. Absent values drop their terms.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct EngineLoad {
    /// Requests running, summed over data-parallel ranks.
    pub running: Option<u32>,
    /// Requests waiting, summed over data-parallel ranks.
    pub waiting: Option<u32>,
    /// KV cache in use, 0..=1, mean over ranks.
    pub kv_use: Option<f32>,
    /// KV capacity in tokens, summed over ranks.
    pub kv_capacity_tokens: Option<u64>,
    /// Prompt tokens processed since the engine's start.
    pub prompt_tokens_total: Option<u64>,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries_total: Option<u64>,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits_total: Option<u64>,
    /// Tokens generated since the engine's start.
    pub generation_tokens_total: Option<u64>,
    /// Requests that have ended since.
    pub requests_total: Option<u64>,
}

/// One vLLM or SGLang server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Slot and generation.
    pub id: EndpointId,
    /// The name its ring points are made from: configured, else `host:port` of its URL.
    pub name: Arc<str>,
    /// Where shards connect to.
    pub address: SocketAddr,
    /// Share of the load relative to the others; at least 1.
    pub weight: u32,
    /// May it be chosen?
    pub health: Health,
    /// What the engine reported at its last scrape.
    pub engine: EngineLoad,
    /// Load on this endpoint that is not ours: the engine's running + waiting beyond our own at the scrape.
    pub foreign: u32,
    /// [`Loads::dispatched`] when the scrape of `engine` began: what was dispatched since may be missing in it.
    pub dispatched_at: u64,
    /// [`Loads::resident`] at that moment: what came and what went since is missing in it.
    pub resident_at: u64,
    /// How much of its cache was replaced of late, 0..=1: see [`Turnover`].
    pub turnover: f32,
    /// How much of its cache holds nothing yet, as far as the index knows, 0..=1.
    pub vacant: f32,
    /// Most requests of ours in flight there, whatever the load elsewhere; [`Endpoint::NO_CAP`]: as many as come.
    pub cap: u32,
    /// How much of its weight counts, in percent: less than [`Endpoint::WHOLE`] while it starts slowly.
    pub share_percent: u8,
    /// Its kernel refused or reset the last two probes: nobody is there who could still answer.
    pub refuses_probes: bool,
    /// How far is believed what is known of its cache.
    pub rung: Rung,
}

impl Endpoint {
    /// See [`Endpoint::cap`].
    pub const NO_CAP: u32 = u32::MAX;
    /// See [`Endpoint::share_percent`].
    pub const WHOLE: u8 = 100;

    /// One of weight 1 that nothing is known of yet.
    pub fn new(id: EndpointId, name: Arc<str>, address: SocketAddr) -> Endpoint {
        Endpoint {
            id,
            name,
            address,
            weight: 1,
            health: Health::Unknown,
            engine: EngineLoad::default(),
            foreign: 0,
            dispatched_at: 0,
            resident_at: 0,
            turnover: 0.0,
            vacant: 0.0,
            cap: Endpoint::NO_CAP,
            share_percent: Endpoint::WHOLE,
            refuses_probes: false,
            rung: Rung::default(),
        }
    }
}

/// What choices read of the requests of ours, by slot: dense and plain, so that a choice goes over hundreds of endpoints
/// in some tens of nanoseconds; [`crate::counters`] is the only writer.
#[derive(Debug)]
pub struct Loads {
    /// From the choice to the last byte of the response.
    in_flight: Box<[AtomicU32; ENDPOINTS_MAX]>,
    trials: Trials,
    pending: Box<[AtomicU64; ENDPOINTS_MAX]>,
    dispatched: Box<[AtomicU64; ENDPOINTS_MAX]>,
    resident: Box<[AtomicU64; ENDPOINTS_MAX]>,
    prompted: Box<[AtomicU64; ENDPOINTS_MAX]>,
    prefill_rates: Rates,
    mean_prompt: Box<[AtomicU32; LABELLED_POOLS_MAX]>,
    mean_held: Box<[AtomicU32; LABELLED_POOLS_MAX]>,
    mean_answer: Box<[AtomicU32; LABELLED_POOLS_MAX]>,
}

impl Default for Loads {
    fn default() -> Self {
        let zeros = || Box::new(std::array::from_fn(|_| AtomicU64::new(0)));
        Loads {
            in_flight: Box::new(std::array::from_fn(|_| AtomicU32::new(0))),
            trials: Trials::default(),
            pending: zeros(),
            dispatched: zeros(),
            resident: zeros(),
            prompted: zeros(),
            prefill_rates: Rates::default(),
            mean_prompt: Box::new(std::array::from_fn(|_| AtomicU32::new(FIRST_MEAN_TOKENS * MEAN_SCALE))),
            mean_held: Box::new(std::array::from_fn(|_| AtomicU32::new(0))),
            mean_answer: Box::new(std::array::from_fn(|_| AtomicU32::new(FIRST_MEAN_ANSWER * MEAN_SCALE))),
        }
    }
}

/// Mean lengths of a pool at one moment, as they are kept.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    prompt: u32,
    held: u32,
    answer: u32,
}

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
        self.in_flight.get(slot as usize).map_or(0, |cell| cell.load(Ordering::Acquire))
    }

    /// Of those, the ones that were open there before its trial began; 0 where none is under way.
    #[inline]
    pub fn open_before(&self, slot: u16) -> u32 {
        let Some(own) = self.trials.own(slot) else { return 0 };
        let in_flight = self.in_flight(slot);
        // Asked on both sides: one of its own that comes or goes meanwhile is not taken for one from before.
        in_flight.saturating_sub(self.trials.own(slot).map_or(u32::MAX, |after| own.max(after)))
    }

    /// The endpoint of a slot is on trial from now on: what is in flight there is from before.
    pub(crate) fn begin_trial(&self, slot: u16) {
        self.trials.begin(slot);
    }

    /// It is so no more.
    pub(crate) fn end_trial(&self, slot: u16) {
        self.trials.end(slot);
    }

    /// A request is about to be counted at an endpoint; what this answers is for [`Loads::leave_trial`], once it no longer is.
    #[inline]
    pub(crate) fn join_trial(&self, slot: u16) -> u32 {
        self.trials.join(slot)
    }

    /// See [`Loads::join_trial`].
    #[inline]
    pub(crate) fn leave_trial(&self, slot: u16, trial: u32) {
        self.trials.leave(slot, trial);
    }

    /// One request less at an endpoint, on its trial if it is on one. For a copy that nobody shares.
    pub(crate) fn take_one_off(&self, slot: u16) {
        if let Some(cell) = self.cell(slot) {
            cell.store(self.in_flight(slot).saturating_sub(1), Ordering::Relaxed);
        }
        self.trials.leave_any(slot);
    }

    /// Our requests in flight on a run of neighbouring slots.
    #[inline]
    pub fn sum(&self, run: Range<u16>) -> u64 {
        let cells = self.in_flight.get(run.start as usize..run.end as usize).unwrap_or(&[]);
        // Two sums: one chain of additions would wait for itself.
        let (pairs, rest) = cells.as_chunks::<2>();
        let (mut even, mut odd) = (0u64, 0u64);
        for [a, b] in pairs {
            even += u64::from(a.load(Ordering::Relaxed));
            odd += u64::from(b.load(Ordering::Relaxed));
        }
        even + odd + rest.iter().map(|cell| u64::from(cell.load(Ordering::Relaxed))).sum::<u64>()
    }

    /// Tokens sent to one endpoint that it has to compute before it answers: not in its cache as far as we know, and no first
    /// token seen.
    #[inline]
    pub fn pending(&self, slot: u16) -> u64 {
        self.pending.get(slot as usize).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Tokens that one endpoint's cache was given to hold since the process began; never falls.
    #[inline]
    pub fn dispatched(&self, slot: u16) -> u64 {
        self.dispatched.get(slot as usize).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Tokens of our requests in flight on one endpoint, prompts and what is expected of their answers: what they occupy of its cache
    /// where they share nothing.
    #[inline]
    pub fn resident(&self, slot: u16) -> u64 {
        self.resident.get(slot as usize).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Bytes of the prompts sent to one endpoint since the process began; never falls.
    #[inline]
    pub fn prompted(&self, slot: u16) -> u64 {
        self.prompted.get(slot as usize).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// A prompt of so many bytes was sent to an endpoint.
    pub(crate) fn prompt_sent(&self, slot: u16, bytes: u64) {
        if let Some(cell) = self.prompted.get(slot as usize) {
            cell.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Tokens a second from a request to its first token, as one endpoint did of late; at least 1.
    #[inline]
    pub fn prefill_rate(&self, slot: u16) -> u32 {
        self.prefill_rates.of(slot)
    }

    /// A first token came so long after a request to compute so many.
    pub(crate) fn prefilled(&self, slot: u16, tokens: u32, micros: u64) {
        self.prefill_rates.timed(slot, tokens, micros);
    }

    /// The slot is another endpoint's from now on. All else is 0 without requests, or never falls and is compared with what it was.
    pub(crate) fn forget(&self, slot: u16) {
        self.trials.end(slot);
        self.prefill_rates.forget(slot);
    }

    /// Mean length of the prompts of a pool in tokens, the last hundred of them counting most.
    #[inline]
    pub fn mean_prompt(&self, pool: u16) -> u32 {
        (mean_cell(&self.mean_prompt, pool).load(Ordering::Relaxed) / MEAN_SCALE).max(1)
    }

    /// How much of these prompts the chosen endpoints were thought to hold, 0..=1.
    #[inline]
    pub fn held_share(&self, pool: u16) -> f32 {
        let [held, all] =
            [&self.mean_held, &self.mean_prompt].map(|mean| mean_cell(mean, pool).load(Ordering::Relaxed));
        (held as f32 / all.max(1) as f32).min(1.0)
    }

    /// Mean of what the chosen endpoints were thought not to hold of these prompts, in tokens.
    #[inline]
    pub fn mean_new(&self, pool: u16) -> u32 {
        let [held, all] =
            [&self.mean_held, &self.mean_prompt].map(|mean| mean_cell(mean, pool).load(Ordering::Relaxed));
        all.saturating_sub(held) / MEAN_SCALE
    }

    /// A further prompt of a pool, of which so many tokens are held. Two at once may count as one.
    #[inline]
    pub(crate) fn prompt(&self, pool: u16, tokens: u32, held: u32) {
        moves(mean_cell(&self.mean_prompt, pool), tokens);
        moves(mean_cell(&self.mean_held, pool), held);
    }

    /// Mean length of the answers of a pool in tokens, the last hundred of those that told it counting most.
    #[inline]
    pub fn mean_answer(&self, pool: u16) -> u32 {
        (mean_cell(&self.mean_answer, pool).load(Ordering::Relaxed) / MEAN_SCALE).max(1)
    }

    /// A further answer of a pool. Two at once may count as one.
    #[inline]
    pub(crate) fn answer(&self, pool: u16, tokens: u32) {
        moves(mean_cell(&self.mean_answer, pool), tokens);
    }

    /// The cell of resident tokens of a slot, for the counters alone.
    #[inline]
    pub(crate) fn resident_cell(&self, slot: u16) -> Option<&AtomicU64> {
        self.resident.get(slot as usize)
    }

    /// The means of a pool as they are now.
    #[inline]
    pub fn means(&self, pool: u16) -> Means {
        let [prompt, held, answer] = [&self.mean_prompt, &self.mean_held, &self.mean_answer]
            .map(|means| mean_cell(means, pool).load(Ordering::Relaxed));
        Means { prompt, held, answer }
    }

    /// Becomes what `seen` is at these slots, with these means of a pool, so that it can be changed. For a copy that nobody
    /// shares.
    pub(crate) fn copy(&self, seen: &Loads, slots: &[u16], pool: u16, means: Means) {
        for &slot in slots {
            let cells = self.cell(slot).zip(self.token_cells(slot)).zip(self.resident_cell(slot));
            let Some(((in_flight, (pending, dispatched)), resident)) = cells else { continue };
            in_flight.store(seen.in_flight(slot), Ordering::Relaxed);
            pending.store(seen.pending(slot), Ordering::Relaxed);
            dispatched.store(seen.dispatched(slot), Ordering::Relaxed);
            resident.store(seen.resident(slot), Ordering::Relaxed);
            self.trials.copy(&seen.trials, slot);
        }
        mean_cell(&self.mean_prompt, pool).store(means.prompt, Ordering::Relaxed);
        mean_cell(&self.mean_held, pool).store(means.held, Ordering::Relaxed);
        mean_cell(&self.mean_answer, pool).store(means.answer, Ordering::Relaxed);
    }

    /// The cells of tokens of a slot, for the counters alone: pending, dispatched.
    #[inline]
    pub(crate) fn token_cells(&self, slot: u16) -> Option<(&AtomicU64, &AtomicU64)> {
        Some((self.pending.get(slot as usize)?, self.dispatched.get(slot as usize)?))
    }

    /// The cell of a slot, for the counters alone: a choice only reads.
    #[inline]
    pub(crate) fn cell(&self, slot: u16) -> Option<&AtomicU32> {
        self.in_flight.get(slot as usize)
    }
}

/// Pools beyond the last share its mean.
fn mean_cell(means: &[AtomicU32; LABELLED_POOLS_MAX], pool: u16) -> &AtomicU32 {
    &means[(pool as usize).min(LABELLED_POOLS_MAX - 1)]
}

/// A mean takes one more length in.
fn moves(cell: &AtomicU32, tokens: u32) {
    let mean = i64::from(cell.load(Ordering::Relaxed));
    let moved = mean + (i64::from(tokens.min(TOKENS_MAX)) * i64::from(MEAN_SCALE) - mean) / MEAN_PROMPTS;
    cell.store(moved as u32, Ordering::Relaxed);
}
