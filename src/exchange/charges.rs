//! The requests that a shard has counted in flight: those that run, and those that failed a moment ago and stay
//! charged to their endpoint for a while, so that an endpoint which fails at once does not look idle.

use std::collections::VecDeque;

use super::Micros;
use crate::counters::Admission;

/// Most requests charged behind their end; the oldest is let go for a further one.
const KEPT_MAX: usize = 16 << 10;

/// See the module. Each admission of a shard is counted in here and let go in here.
#[derive(Debug, Default)]
pub struct Charges {
    /// Failed requests and until when they stay charged, in order, since all stay equally long. After a reload that
    /// shortened the time, later ones stay until those before them go.
    kept: VecDeque<(Micros, Admission)>,
    counted: usize,
}

impl Charges {
    /// A request was counted in.
    pub(super) fn count(&mut self) {
        self.counted += 1;
    }

    /// It is in flight no more.
    pub(super) fn release(&mut self, admission: Admission) {
        self.counted -= 1;
        drop(admission);
    }

    /// It failed, and stays charged until then: it counts as load, and takes nobody's place.
    pub(super) fn keep(&mut self, mut admission: Admission, until: Micros) {
        admission.stays_charged();
        if self.kept.len() == KEPT_MAX
            && let Some((_, oldest)) = self.kept.pop_front()
        {
            self.release(oldest);
        }
        self.kept.push_back((until, admission));
    }

    /// Lets go of those whose time is over.
    pub fn expire(&mut self, now: Micros) {
        while self.kept.front().is_some_and(|(until, _)| *until <= now)
            && let Some((_, admission)) = self.kept.pop_front()
        {
            self.release(admission);
        }
    }

    /// When the next one's time is over.
    pub fn due(&self) -> Option<Micros> {
        self.kept.front().map(|(until, _)| *until)
    }

    /// Those that stay charged behind their end.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The slots at which they are charged.
    pub fn slots(&self) -> impl Iterator<Item = u16> {
        self.kept.iter().map(|(_, admission)| admission.endpoint().slot)
    }

    /// All that are counted in flight: as many as exchanges have legs, and [`Charges::kept`].
    pub fn counted(&self) -> usize {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;
    use crate::fleet::EndpointId;

    #[test]
    fn failed_requests_stay_charged_for_their_time() {
        let counters = Counters::leak();
        let mut charges = Charges::default();
        let admit = |charges: &mut Charges| {
            charges.count();
            counters.try_admit(EndpointId { slot: 0, generation: 1 }, None).expect("no bound")
        };
        let (first, second, third) = (admit(&mut charges), admit(&mut charges), admit(&mut charges));
        charges.keep(first, 10);
        charges.keep(second, 20);
        charges.release(third);
        assert_eq!((counters.in_flight(0), charges.counted(), charges.kept(), charges.due()), (2, 2, 2, Some(10)));
        assert_eq!(counters.loads().running(0), 0);
        charges.expire(9);
        assert_eq!(charges.kept(), 2);
        charges.expire(10);
        assert_eq!((counters.in_flight(0), charges.counted(), charges.due()), (1, 1, Some(20)));
        charges.expire(30);
        assert_eq!((counters.in_flight(0), charges.counted(), charges.due()), (0, 0, None));
        for _ in 0..=KEPT_MAX {
            let admission = admit(&mut charges);
            charges.keep(admission, 40);
        }
        assert_eq!((counters.in_flight(0), charges.counted()), (KEPT_MAX as u32, KEPT_MAX));
    }
}
