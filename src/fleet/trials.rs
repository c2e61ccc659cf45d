//! Which of the requests in flight on an endpoint on trial are its trial's own, and not open there from before.

use crate::atomics::{AtomicU64, Ordering};
use crate::limits::ENDPOINTS_MAX;

/// By slot: in the upper half the number of its trial, odd while one is under way, in the lower how many requests were
/// admitted on it and have not ended. The number tells them from those of the trials before, which count no more.
#[derive(Debug)]
pub(super) struct Trials(Box<[AtomicU64; ENDPOINTS_MAX]>);

impl Default for Trials {
    fn default() -> Self {
        Trials(Box::new(std::array::from_fn(|_| AtomicU64::new(0))))
    }
}

fn number(cell: u64) -> u32 {
    (cell >> u32::BITS) as u32
}

fn is_under_way(cell: u64) -> bool {
    number(cell) % 2 == 1
}

impl Trials {
    fn update(&self, slot: u16, update: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        self.0.get(slot as usize)?.fetch_update(Ordering::AcqRel, Ordering::Relaxed, update).ok()
    }

    /// One begins, and has no request of its own yet.
    pub(super) fn begin(&self, slot: u16) {
        self.update(slot, |cell| Some(u64::from(number(cell).wrapping_add(1) | 1) << u32::BITS));
    }

    /// None is under way.
    pub(super) fn end(&self, slot: u16) {
        self.update(slot, |cell| is_under_way(cell).then(|| u64::from(number(cell).wrapping_add(1)) << u32::BITS));
    }

    /// A request is about to count there. Answers the number of the trial that it is one of; 0: of none.
    #[inline]
    pub(super) fn join(&self, slot: u16) -> u32 {
        // Mostly none is under way, and nothing is written.
        if self.own(slot).is_none() {
            return 0;
        }
        self.update(slot, |cell| is_under_way(cell).then(|| cell + 1)).map_or(0, number)
    }

    /// It counts there no more.
    #[inline]
    pub(super) fn leave(&self, slot: u16, trial: u32) {
        if trial != 0 {
            self.update(slot, |cell| if number(cell) == trial { less_one(cell) } else { None });
        }
    }

    /// The same, whichever trial it is.
    pub(super) fn leave_any(&self, slot: u16) {
        self.update(slot, less_one);
    }

    /// How many requests of its own the trial has that is under way.
    #[inline]
    pub(super) fn own(&self, slot: u16) -> Option<u32> {
        let cell = self.0.get(slot as usize)?.load(Ordering::Acquire);
        is_under_way(cell).then_some(cell as u32)
    }

    /// Becomes what `seen` is at this slot.
    pub(super) fn copy(&self, seen: &Trials, slot: u16) {
        if let Some((cell, seen)) = self.0.get(slot as usize).zip(seen.0.get(slot as usize)) {
            cell.store(seen.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

fn less_one(cell: u64) -> Option<u64> {
    (cell as u32 != 0).then(|| cell - 1)
}

#[cfg(test)]
mod tests {
    use crate::counters::Counters;
    use crate::fleet::EndpointId;

    #[test]
    fn a_request_of_an_earlier_trial_is_open_before_the_next() {
        let counters = Counters::leak();
        let admit = || counters.try_admit(EndpointId { slot: 3, generation: 0 }, None).unwrap();
        let seen = || (counters.in_flight(3), counters.loads().open_before(3));
        let first = admit();
        counters.on_trial(3);
        assert_eq!(seen(), (1, 1));
        let second = admit();
        assert_eq!(seen(), (2, 1));
        counters.trial_over(3);
        assert_eq!(seen(), (2, 0), "nobody asks");
        let third = admit();
        counters.on_trial(3);
        assert_eq!(seen(), (3, 3));
        // At once another: control may look late.
        counters.on_trial(3);
        let fourth = admit();
        assert_eq!(seen(), (4, 3));
        drop((second, first));
        assert_eq!(seen(), (2, 1));
        drop(fourth);
        assert_eq!(seen(), (1, 1));
        drop(third);
        assert_eq!(seen(), (0, 0));
        assert!(counters.try_admit(EndpointId { slot: 3, generation: 0 }, Some(0)).is_none());
        assert_eq!((counters.loads().trials.own(3), counters.underflow()), (Some(0), 0));
    }
}
