//! What shards count together: requests in flight by endpoint, raised at the choice by compare-and-swap
//! and released exactly once by a guard. Never reset: an endpoint that fails its probes still has what it has.
//!
//! What each shard counts for itself stands in [`stats`].

mod events;
mod histogram;
mod outcomes;
mod requests;
pub mod stats;

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::fleet::{EndpointId, Loads};
use crate::limits::ENDPOINTS_MAX;
pub use outcomes::{Outcome, Outcomes};

/// The shared counters of one process.
#[derive(Debug)]
pub struct Counters {
    loads: Loads,
    outcomes: Outcomes,
    /// Failed connects by slot since start; control reads them between probes.
    connect_failures: Box<[AtomicU32; ENDPOINTS_MAX]>,
    /// Releases that found nothing to release.
    underflow: AtomicU64,
}

impl Counters {
    /// New counters, all zero, that live as long as the process, so that guards need no reference count.
    pub fn leak() -> &'static Counters {
        Box::leak(Box::new(Counters {
            loads: Loads::default(),
            outcomes: Outcomes::default(),
            connect_failures: Box::new(std::array::from_fn(|_| AtomicU32::new(0))),
            underflow: AtomicU64::new(0),
        }))
    }

    /// What choices read.
    #[inline]
    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// How requests ended, by endpoint.
    #[inline]
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
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

    /// Counts a request at the choice, before anything is awaited, so that a burst never sees zeros.
    /// `None` when the endpoint has `slots` requests by now: choose again. Without a bound (and with a
    /// slot that exists) it always admits.
    #[inline]
    pub fn try_admit(&'static self, id: EndpointId, slots: Option<u32>) -> Option<Admission> {
        let cell = self.loads.cell(id.slot)?;
        let slots = slots.unwrap_or(u32::MAX);
        let raised = |count: u32| if count < slots { count.checked_add(1) } else { None };
        cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raised).ok()?;
        Some(Admission { counters: self, endpoint: id })
    }

    /// A connect to this endpoint failed.
    pub fn connect_failed(&self, slot: u16) {
        if let Some(cell) = self.connect_failures.get(slot as usize) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Failed connects to this slot since start (wraps); compare with the value read before.
    pub fn connect_failures(&self, slot: u16) -> u32 {
        self.connect_failures.get(slot as usize).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Releases that found nothing to release: always 0 unless the front has a fault.
    pub fn underflow(&self) -> u64 {
        self.underflow.load(Ordering::Relaxed)
    }

    /// Takes one request off; at zero it stays zero and is counted, since a wrapped counter would keep
    /// its endpoint out of every choice for ever.
    fn release(&self, slot: u16) {
        let Some(cell) = self.loads.cell(slot) else { return };
        // Release: who reads 0 also sees all that this request did (`Loads::in_flight` acquires).
        let lowered = cell.fetch_update(Ordering::Release, Ordering::Relaxed, |count| count.checked_sub(1));
        if lowered.is_err() {
            self.underflow.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One request in flight on one endpoint. Dropping it, on whatever exit, is the one release.
#[derive(Debug)]
#[must_use = "dropping an admission releases it"]
pub struct Admission {
    counters: &'static Counters,
    endpoint: EndpointId,
}

impl Admission {
    /// Where the request is counted.
    #[inline]
    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.counters.release(self.endpoint.slot);
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
    fn a_release_too_many_is_counted_and_leaves_zero() {
        let counters = Counters::leak();
        counters.release(1);
        assert_eq!((counters.in_flight(1), counters.underflow()), (0, 1));
    }

    #[test]
    fn a_slot_that_cannot_exist_admits_nothing() {
        let counters = Counters::leak();
        let beyond = EndpointId { slot: ENDPOINTS_MAX as u16, generation: 0 };
        assert!(counters.try_admit(beyond, None).is_none());
        assert_eq!(counters.in_flight(u16::MAX), 0);
    }

    #[test]
    fn failed_connects_are_counted_by_slot() {
        let counters = Counters::leak();
        counters.connect_failed(1);
        counters.connect_failed(u16::MAX);
        assert_eq!((counters.connect_failures(1), counters.connect_failures(2)), (1, 0));
    }
}
