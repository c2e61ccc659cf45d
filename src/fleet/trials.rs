//! Counts which requests in flight on an endpoint on trial belong to the trial, and were not open there before.

use crate::atomics::{AtomicU64, Ordering};

/// The upper half is the number of the endpoint's trial, odd while one is under way; the lower half counts the requests
/// that were admitted on this trial and have not ended. The number tells them from requests of earlier trials, which no
/// longer count.
#[derive(Debug, Default)]
pub(crate) struct Trial(AtomicU64);

fn number(cell: u64) -> u32 {
    (cell >> u32::BITS) as u32
}

fn is_under_way(cell: u64) -> bool {
    number(cell) % 2 == 1
}

impl Trial {
    fn update(&self, update: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, update).ok()
    }

    /// Begins a trial, without requests of its own yet.
    pub(crate) fn begin(&self) {
        self.update(|cell| Some(u64::from(number(cell).wrapping_add(1) | 1) << u32::BITS));
    }

    /// Ends the trial, if one is under way.
    pub(crate) fn end(&self) {
        self.update(|cell| is_under_way(cell).then(|| u64::from(number(cell).wrapping_add(1)) << u32::BITS));
    }

    /// Counts a request that is about to begin. Returns the number of the trial that it belongs to; 0 if none is under
    /// way.
    #[inline]
    pub(crate) fn join(&self) -> u32 {
        // Usually none is under way, and nothing is written.
        if self.own().is_none() {
            return 0;
        }
        self.update(|cell| is_under_way(cell).then(|| cell + 1)).map_or(0, number)
    }

    /// Counts the end of a request of this trial.
    #[inline]
    pub(crate) fn leave(&self, trial: u32) {
        if trial != 0 {
            self.update(|cell| if number(cell) == trial { less_one(cell) } else { None });
        }
    }

    /// Counts the end of a request, whichever trial is under way.
    pub(crate) fn leave_any(&self) {
        self.update(less_one);
    }

    /// Returns how many requests the trial under way has; `None` if there is no trial.
    #[inline]
    pub(crate) fn own(&self) -> Option<u32> {
        let cell = self.0.load(Ordering::Acquire);
        is_under_way(cell).then_some(cell as u32)
    }

    /// Copies the state of `seen`.
    pub(crate) fn copy(&self, seen: &Trial) {
        self.0.store(seen.0.load(Ordering::Relaxed), Ordering::Relaxed);
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
        // Another trial follows at once, as control may look late.
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
        assert_eq!((counters.loads().cells(3).unwrap().trial.own(), counters.underflow()), (Some(0), 0));
    }
}
