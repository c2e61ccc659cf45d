//! What shards count together: requests in flight by endpoint, raised at the choice by compare-and-swap
//! and released exactly once by a guard. Never reset: an endpoint that fails its probes still has its requests.
//!
//! What each shard counts for itself is in [`stats`].

mod counts;
mod credentials;
mod deeds;
mod ended;
mod first_tokens;
mod histogram;
mod outcomes;
mod predictions;
pub mod queue;
mod requests;
mod shadows;
pub mod stats;
mod stored;
mod tokens;
mod without;

use crate::atomics::{AtomicU64, Ordering};
use crate::fleet::{ANSWER_TOKENS, Caps, Cells, EndpointId, Loads, PoolId};
use crate::limits::{ENDPOINTS_MAX, TOKENS_MAX};
pub use credentials::{Credential, Credentials, Realm};
pub use deeds::{Counted, Deeds};
pub use outcomes::{Barred, Given, Outcome, Outcomes, Telling};
pub use predictions::{Asked, BELIEVED_TOKEN_BYTES, Compared, Prediction, Predictions, Text};
use queue::Queue;
pub use stored::{Stored, StoredId};
pub use without::{Own, Without};

/// The shared counters of one process.
#[derive(Debug)]
pub struct Counters {
    loads: Loads,
    outcomes: Outcomes,
    predictions: Predictions,
    queue: Queue,
    credentials: Credentials,
    stored: Stored,
    /// Releases at a count of 0.
    underflow: AtomicU64,
}

impl Counters {
    /// New counters, all zero, that live as long as the process, so that guards need no reference count.
    pub fn leak() -> &'static Counters {
        Box::leak(Box::new(Counters {
            loads: Loads::default(),
            outcomes: Outcomes::default(),
            predictions: Predictions::default(),
            queue: Queue::default(),
            credentials: Credentials::default(),
            stored: Stored::default(),
            underflow: AtomicU64::new(0),
        }))
    }

    /// The loads that choices read.
    #[inline]
    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// How requests ended, by endpoint.
    #[inline]
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// What was predicted of caches, and what replies told.
    #[inline]
    pub fn predictions(&self) -> &Predictions {
        &self.predictions
    }

    /// The requests that wait for room.
    #[inline]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The credentials that engines have let in.
    #[inline]
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Where stored responses lie.
    #[inline]
    pub fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Our requests in flight on one endpoint. Control gives a slot to another endpoint only at 0.
    #[inline]
    pub fn in_flight(&self, slot: u16) -> u32 {
        self.loads.in_flight(slot)
    }

    /// Our requests in flight on all endpoints: 0 once all shards have ended.
    pub fn in_flight_in_all(&self) -> u64 {
        self.loads.sum(0..ENDPOINTS_MAX as u16)
    }

    /// Counts a request at the choice, before anything is awaited, so that no request of a burst sees zeros.
    /// `None` if the endpoint has `slots` requests by now: choose again. Without a bound, and at a
    /// slot that exists, it always admits.
    #[inline]
    pub fn try_admit(&'static self, id: EndpointId, slots: Option<u32>) -> Option<Admission> {
        self.try_admit_below(id, Caps { counted: slots.unwrap_or(u32::MAX), ..Caps::NONE })
    }

    /// The same with more bounds: also on what runs there.
    #[inline]
    pub fn try_admit_below(&'static self, id: EndpointId, caps: Caps) -> Option<Admission> {
        let Cells { in_flight, trial, .. } = self.loads.cells(id.slot)?;
        // It joins before it is counted and leaves after, so that it never looks like a request from before the trial.
        let joined = trial.join();
        if !in_flight.begins(caps) {
            trial.leave(joined);
            return None;
        }
        Some(Admission {
            counters: self,
            endpoint: id,
            trial: joined,
            several: false,
            charged: false,
            settled: false,
            pending: 0,
            resident: 0,
        })
    }

    /// Begins a trial of an endpoint; called by control. See [`Outcomes::on_trial`]. Requests in flight there are no
    /// part of the trial.
    pub fn on_trial(&self, slot: u16) {
        if let Some(cells) = self.loads.cells(slot) {
            cells.trial.begin();
        }
        self.outcomes.on_trial(slot);
    }

    /// Ends its trial, however it went; called by control.
    pub fn trial_over(&self, slot: u16) {
        if let Some(cells) = self.loads.cells(slot) {
            cells.trial.end();
        }
    }

    /// Forgets what was learnt of a slot's endpoint; called by control before another one gets the slot.
    pub fn forget(&self, slot: u16) {
        self.outcomes.forget(slot);
        self.predictions.forget(slot);
        self.loads.forget(slot);
    }

    /// Counts a choice for a prompt of `tokens` tokens, of which the chosen endpoint holds `held`, into the pool's
    /// means.
    #[inline]
    pub fn prompt(&self, pool: PoolId, tokens: u32, held: u32) {
        self.loads.prompt(pool, tokens, held);
    }

    /// Counts an answer of `tokens` tokens into the pool's mean.
    #[inline]
    pub fn answer(&self, pool: PoolId, tokens: u32) {
        self.loads.answer(pool, tokens);
    }

    /// Counts `count` answers of `tokens` tokens in the mean.
    pub fn answers(&self, pool: PoolId, count: u64, tokens: u32) {
        (0..count.min(ANSWERS_MAX)).for_each(|_| self.loads.answer(pool, tokens));
    }

    /// Releases at a count of 0: there are none unless the front has a fault.
    pub fn underflow(&self) -> u64 {
        self.underflow.load(Ordering::Relaxed)
    }

    /// Takes one request off. A count of 0 stays 0, and that is counted: a wrapped counter would keep
    /// its endpoint out of every choice for ever.
    fn release(&self, slot: u16, charged: bool) {
        let Some(Cells { in_flight, .. }) = self.loads.cells(slot) else { return };
        if !in_flight.ends(charged) {
            self.underflow.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes off tokens that are no longer pending; like [`Counters::release`] never below 0.
    fn settle(&self, slot: u16, tokens: u32) {
        if let Some(Cells { pending, .. }) = self.loads.cells(slot) {
            self.lower(pending, tokens);
        }
    }

    fn lower(&self, cell: &AtomicU64, tokens: u32) {
        let lowered = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| sum.checked_sub(u64::from(tokens)));
        if lowered.is_err() {
            self.underflow.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One request in flight on one endpoint. Dropping it, on whichever exit, is its only release.
#[derive(Debug)]
#[must_use = "dropping an admission releases it"]
pub struct Admission {
    counters: &'static Counters,
    endpoint: EndpointId,
    /// The trial of the endpoint that it is part of; 0: of none.
    trial: u32,
    /// Its engine counts it as several.
    several: bool,
    /// It has ended, and stays charged ([`Admission::stays_charged`]).
    charged: bool,
    /// `pending` is taken off the endpoint's count, and kept here for its rate.
    settled: bool,
    /// Tokens that it has pending there.
    pending: u32,
    /// Tokens that it is taken to occupy there until its end.
    resident: u32,
}

/// After so many answers of one length a mean moves no further.
const ANSWERS_MAX: u64 = 500;

impl Admission {
    /// The endpoint at which the request is counted.
    #[inline]
    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    /// Whether it is part of its endpoint's trial.
    pub fn is_of_trial(&self) -> bool {
        self.trial != 0
    }

    /// Takes it out of its endpoint's trial: it counts like a request from before.
    pub fn give_up_trial(&mut self) {
        if let Some(Cells { trial, .. }) = self.counters.loads.cells(self.endpoint.slot) {
            trial.leave(std::mem::take(&mut self.trial));
        }
    }

    /// Counts the prompt tokens that its endpoint has to compute. To be called once, when the prompt was sent or is
    /// about to be.
    pub fn computes(&mut self, tokens: u32) {
        let tokens = tokens.min(TOKENS_MAX);
        if let Some(Cells { pending, dispatched, .. }) = self.counters.loads.cells(self.endpoint.slot) {
            pending.fetch_add(u64::from(tokens), Ordering::Relaxed);
            dispatched.fetch_add(u64::from(tokens) + ANSWER_TOKENS, Ordering::Relaxed);
            self.pending += tokens;
        }
    }

    /// Counts the tokens that its prompt and its expected answer occupy there until its end. To be called once, too.
    pub fn occupies(&mut self, tokens: u32) {
        let tokens = tokens.min(TOKENS_MAX);
        if let Some(Cells { resident, .. }) = self.counters.loads.cells(self.endpoint.slot) {
            resident.fetch_add(u64::from(tokens), Ordering::Relaxed);
            self.resident += tokens;
        }
    }

    /// Counts the bytes of its prompt, which was sent.
    pub fn prompted(&self, bytes: u64) {
        self.counters.loads.prompt_sent(self.endpoint.slot, bytes);
    }

    /// Takes these bytes off again: its endpoint refused it, and counts none of them.
    pub fn unprompted(&self, bytes: u64) {
        self.counters.loads.prompt_sent(self.endpoint.slot, bytes.wrapping_neg());
    }

    /// Leaves it counted in flight for choices after its end. No cap and no wait for room counts it any more.
    pub fn stays_charged(&mut self) {
        if let Some(Cells { in_flight, .. }) = self.counters.loads.cells(self.endpoint.slot).filter(|_| !self.charged) {
            self.vacates();
            in_flight.charge();
            self.charged = true;
        }
    }

    /// Takes off what it occupies at its engine.
    fn vacates(&mut self) {
        let Some(Cells { resident, several, .. }) = self.counters.loads.cells(self.endpoint.slot) else { return };
        if std::mem::take(&mut self.several) {
            several.fetch_sub(1, Ordering::Relaxed);
        }
        let occupied = std::mem::take(&mut self.resident);
        if occupied != 0 {
            self.counters.lower(resident, occupied);
        }
    }

    /// Whether its engine counts it as several requests.
    pub fn is_of_several(&self) -> bool {
        self.several
    }

    /// Notes that its engine counts it as several requests.
    pub fn counts_several(&mut self) {
        if let Some(Cells { several, .. }) = self.counters.loads.cells(self.endpoint.slot).filter(|_| !self.several) {
            several.fetch_add(1, Ordering::Relaxed);
            self.several = true;
        }
    }

    /// How long its endpoint may take to compute its pending tokens, in microseconds; 0: it has none.
    pub fn prefill_micros(&self) -> u64 {
        let pending = if self.settled { 0 } else { self.pending };
        u64::from(pending) * 1_000_000 / u64::from(self.counters.loads.prefill_rate(self.endpoint.slot))
    }

    /// Like [`Admission::computed`], and learns its endpoint's rate: the first token came `micros` after the request
    /// was sent.
    pub fn timed(&mut self, micros: u64) {
        self.counters.loads.prefilled(self.endpoint.slot, self.pending, micros);
        self.computed();
    }

    /// The first token is there: no prompt tokens are pending any more. Does nothing the second time.
    #[inline]
    pub fn computed(&mut self) {
        if self.pending != 0 {
            self.may_be_computed();
            (self.pending, self.settled) = (0, false);
        }
    }

    /// Takes its prompt tokens off the pending ones before it is known whether they were computed; its endpoint's rate
    /// may still be learnt from them.
    pub fn may_be_computed(&mut self) {
        if self.pending != 0 && !std::mem::replace(&mut self.settled, true) {
            self.counters.settle(self.endpoint.slot, self.pending);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.computed();
        self.vacates();
        let Some(Cells { trial, .. }) = self.counters.loads.cells(self.endpoint.slot) else { return };
        self.counters.release(self.endpoint.slot, self.charged);
        trial.leave(self.trial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: EndpointId = EndpointId { slot: 1, generation: 7 };

    #[test]
    fn an_admission_is_released_once() {
        let counters = Counters::leak();
        let first = counters.try_admit(ONE, Some(2)).expect("below the bound");
        let second = counters.try_admit(ONE, Some(2)).expect("below the bound");
        assert!(counters.try_admit(ONE, Some(2)).is_none());
        assert_eq!((counters.in_flight(1), first.endpoint()), (2, ONE));
        drop(first);
        assert_eq!(counters.in_flight(1), 1);
        let third = counters.try_admit(ONE, None).expect("no bound");
        drop((second, third));
        assert_eq!((counters.in_flight(1), counters.underflow()), (0, 0));
    }

    #[test]
    fn what_is_only_charged_takes_no_place() {
        let counters = Counters::leak();
        let caps = Caps { running: 1, ..Caps::NONE };
        let mut failed = counters.try_admit_below(ONE, caps).expect("below the cap");
        assert!(counters.try_admit_below(ONE, caps).is_none() && !counters.loads().is_below(1, caps));
        failed.stays_charged();
        failed.stays_charged();
        assert!(counters.loads().is_below(1, caps) && counters.try_admit(ONE, Some(1)).is_none(), "it is load");
        let next = counters.try_admit_below(ONE, caps).expect("its place");
        assert_eq!((counters.in_flight(1), counters.loads().running(1)), (2, 1));
        drop(failed);
        assert!(counters.try_admit_below(ONE, caps).is_none());
        drop(next);
        assert_eq!((counters.in_flight(1), counters.loads().running(1), counters.underflow()), (0, 0, 0));
    }

    #[test]
    fn tokens_are_pending_from_the_choice_to_the_first_token() {
        let counters = Counters::leak();
        let loads = counters.loads();
        let mut first = counters.try_admit(ONE, None).expect("no bound");
        let mut second = counters.try_admit(ONE, None).expect("no bound");
        first.computes(1_000);
        second.computes(500);
        assert_eq!((loads.pending(1), loads.dispatched(1)), (1_500, 1_500 + 2 * ANSWER_TOKENS));
        first.computed();
        first.computed();
        assert_eq!((loads.pending(1), loads.in_flight(1)), (500, 2));
        drop(second);
        drop(first);
        assert_eq!((loads.pending(1), loads.in_flight(1), counters.underflow()), (0, 0, 0));
        assert_eq!(loads.dispatched(1), 1_500 + 2 * ANSWER_TOKENS, "it never falls");
        counters.settle(1, 1);
        assert_eq!((loads.pending(1), counters.underflow()), (0, 1));
    }

    #[test]
    fn tokens_are_resident_until_the_end() {
        let counters = Counters::leak();
        let loads = counters.loads();
        let mut first = counters.try_admit(ONE, None).expect("no bound");
        let mut second = counters.try_admit(ONE, None).expect("no bound");
        first.occupies(1_000);
        second.occupies(u32::MAX);
        first.computed();
        assert_eq!(loads.resident(1), 1_000 + u64::from(TOKENS_MAX));
        drop(second);
        assert_eq!((loads.resident(1), loads.resident(2), loads.resident(u16::MAX)), (1_000, 0, 0));
        drop(first);
        assert_eq!((loads.resident(1), counters.underflow()), (0, 0));
    }

    #[test]
    fn the_rate_of_an_endpoint_follows_its_first_tokens() {
        let counters = Counters::leak();
        let rate = || counters.loads().prefill_rate(1);
        let time = |tokens: u32, micros: u64| {
            let mut admission = counters.try_admit(ONE, None).expect("no bound");
            admission.computes(tokens);
            if tokens == 1_000 {
                admission.may_be_computed();
            }
            admission.timed(micros);
        };
        assert_eq!(rate(), 4_000);
        (0..100).for_each(|_| time(100, 1_000_000));
        assert_eq!(rate(), 4_000, "short prompts tell of waiting");
        let mut opened = counters.try_admit(ONE, None).expect("no bound");
        opened.computes(1_000);
        (0..2).for_each(|_| opened.may_be_computed());
        assert_eq!((opened.prefill_micros(), counters.loads().pending(1)), (0, 0));
        drop(opened);
        assert_eq!((rate(), counters.underflow()), (4_000, 0), "it was never computed");
        (0..100).for_each(|_| time(1_000, 100_000));
        assert!((9_900..=10_000).contains(&rate()), "{}", rate());
        (0..100).for_each(|_| time(u32::MAX, 0));
        assert!(rate() <= TOKENS_MAX);
        let mut admission = counters.try_admit(ONE, None).expect("no bound");
        assert_eq!(admission.prefill_micros(), 0);
        admission.computes(rate());
        assert_eq!(admission.prefill_micros(), 1_000_000);
        drop(admission);
        assert_eq!((counters.loads().pending(1), counters.underflow()), (0, 0));
    }

    #[test]
    fn mean_lengths_follow_the_last_hundred() {
        let counters = Counters::leak();
        let mean = |pool| counters.loads().mean_prompt(PoolId(pool));
        assert_eq!((mean(0), mean(u16::MAX)), (1_000, 1_000));
        (0..1_000).for_each(|_| counters.prompt(PoolId(0), 10_000, 4_000));
        assert!((9_900..=10_000).contains(&mean(0)), "{}", mean(0));
        let new = |pool| counters.loads().mean_new(PoolId(pool));
        assert!((5_900..=6_000).contains(&new(0)) && new(1) == 1_000, "{}", new(0));
        (0..100).for_each(|_| counters.prompt(PoolId(0), 0, 0));
        assert!((3_500..3_800).contains(&mean(0)), "one part in e is left: {}", mean(0));
        assert_eq!(mean(1), 1_000);
        assert_eq!(counters.loads().mean_answer(PoolId(0)), 64);
        (0..1_000).for_each(|_| counters.answer(PoolId(0), 500));
        assert!(
            (490..=500).contains(&counters.loads().mean_answer(PoolId(0))),
            "{}",
            counters.loads().mean_answer(PoolId(0))
        );
        assert_eq!(counters.loads().mean_answer(PoolId(1)), 64);
    }

    #[test]
    fn a_release_too_many_is_counted_and_leaves_zero() {
        let counters = Counters::leak();
        counters.release(1, false);
        assert_eq!((counters.in_flight(1), counters.underflow()), (0, 1));
    }

    /// Replies of the engine that was there told what was cached. This one's may tell nothing: that is no zero.
    #[test]
    fn who_gets_a_slot_is_not_taken_to_leave_zeros_out() {
        let counters = Counters::leak();
        let method = crate::fleet::Method::Warm;
        let prediction = Prediction { method, tokens: 1_000, held: 500, text_bytes: 0, batch: false, omits_zero: true };
        let told = |cached| {
            counters.predictions().told(1, &prediction, 1_000, cached);
            counters.predictions().compared(1, method).requests
        };
        assert_eq!((told(Some(0)), told(None)), (1, 2));
        counters.forget(1);
        assert_eq!(told(None), 2);
    }

    #[test]
    fn a_slot_that_cannot_exist_admits_nothing() {
        let counters = Counters::leak();
        let beyond = EndpointId { slot: ENDPOINTS_MAX as u16, generation: 0 };
        assert!(counters.try_admit(beyond, None).is_none());
        assert_eq!(counters.in_flight(u16::MAX), 0);
    }
}
