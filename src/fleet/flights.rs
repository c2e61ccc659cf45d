//! Counts our requests on an endpoint, and how many of them run.

use crate::atomics::{AtomicU64, Ordering};

/// Most requests of ours that an endpoint may have, whatever the load elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Most requests in flight, including those that ended and stay charged.
    pub counted: u32,
    /// Most requests that run: those that ended do not count.
    pub running: u32,
}

impl Caps {
    /// No limits.
    pub const NONE: Caps = Caps { counted: u32::MAX, running: u32::MAX };

    /// Returns these limits, with no more in flight than `slots`.
    #[inline]
    #[must_use]
    pub fn and(self, slots: Option<u32>) -> Caps {
        Caps { counted: self.counted.min(slots.unwrap_or(u32::MAX)), ..self }
    }

    /// Returns the lower limit, if there is one.
    pub fn least(self) -> Option<u32> {
        Some(self.counted.min(self.running)).filter(|most| *most != u32::MAX)
    }
}

/// The lower half counts requests in flight, the upper half those of them that have ended and stay charged. They share
/// one word, so that a limit holds whatever ends meanwhile, and an uncharged request costs no more.
#[derive(Debug, Default)]
pub(crate) struct Flights(AtomicU64);

const CHARGED: u64 = 1 << u32::BITS;

fn counted(cell: u64) -> u32 {
    cell as u32
}

fn running(cell: u64) -> u32 {
    counted(cell).saturating_sub((cell >> u32::BITS) as u32)
}

#[inline]
fn is_below(cell: u64, caps: Caps) -> bool {
    counted(cell) < caps.counted && running(cell) < caps.running
}

impl Flights {
    /// Number of all requests in flight.
    #[inline]
    pub(crate) fn counted(&self, ordering: Ordering) -> u32 {
        counted(self.0.load(ordering))
    }

    /// Number of requests that run.
    #[inline]
    pub(crate) fn running(&self) -> u32 {
        running(self.0.load(Ordering::Acquire))
    }

    /// Whether another request may begin.
    #[inline]
    pub(crate) fn is_below(&self, caps: Caps) -> bool {
        is_below(self.0.load(Ordering::Acquire), caps)
    }

    /// Counts one more request, if it may begin.
    #[inline]
    pub(crate) fn begins(&self, caps: Caps) -> bool {
        let raised = |cell| (is_below(cell, caps) && counted(cell) < u32::MAX).then(|| cell + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, raised).is_ok()
    }

    /// Notes that a running request has ended and stays charged.
    pub(crate) fn charge(&self) {
        self.0.fetch_add(CHARGED, Ordering::Release);
    }

    /// Notes that a request, charged or running, is no longer in flight. False: there was none.
    #[inline]
    pub(crate) fn ends(&self, charged: bool) -> bool {
        let one = if charged { CHARGED + 1 } else { 1 };
        let lowered = |cell| (counted(cell) != 0).then(|| cell.wrapping_sub(one));
        // Release: a thread that reads 0 also sees all that this request did (`Loads::in_flight` acquires).
        self.0.fetch_update(Ordering::Release, Ordering::Relaxed, lowered).is_ok()
    }

    /// Copies the counts of `seen`.
    pub(crate) fn copy(&self, seen: &Flights) {
        self.0.store(seen.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_bounds_the_lower_one_holds() {
        let flights = Flights::default();
        let caps = Caps { counted: 3, running: u32::MAX }.and(Some(2));
        assert_eq!([(); 3].map(|()| flights.begins(caps)), [true, true, false]);
        assert!(flights.begins(Caps::NONE.and(Some(3))) && !flights.begins(caps.and(Some(9))));
        assert_eq!([caps, Caps { running: 1, ..caps }, Caps::NONE].map(Caps::least), [Some(2), Some(1), None]);
    }
}
