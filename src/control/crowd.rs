//! Logs when shards have as many clients as they may, or no descriptors or memory for more. Further clients wait in the
//! kernel's queue, and to them the front seems to hang: no refusal and no measured time tells of them. Also logs when
//! there are more kinds of finished requests than a shard tells apart: their figures seem to stand still.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::keeper::Keeper;
use crate::counters::stats::{Count, Stats};

/// How often shards are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long it must not have happened to count as over; it is logged again if it comes again.
const QUIET: Duration = Duration::from_secs(60);

/// A count as it was last seen.
#[derive(Debug, Default)]
struct Seen {
    count: u64,
    /// The count before the first event of the present bout.
    before: u64,
    /// When the count last grew.
    grew: Option<Instant>,
}

impl Seen {
    /// Takes in the count; whether a line is to be logged.
    fn look(&mut self, count: u64, now: Instant) -> bool {
        if count == self.count {
            return false;
        }
        let before = std::mem::replace(&mut self.count, count);
        let grew = self.grew.replace(now);
        let begins = grew.is_none_or(|grew| now.saturating_duration_since(grew) >= QUIET);
        if begins {
            self.before = before;
        }
        begins
    }

    /// How often it happened, once it is over; for events that are counted on while they last.
    fn over(&mut self, now: Instant) -> Option<u64> {
        self.grew.take_if(|grew| now.saturating_duration_since(*grew) >= QUIET).map(|_| self.count - self.before)
    }

    /// Whether a line is to be logged, for events that are never over.
    fn begins(&mut self, count: u64) -> bool {
        std::mem::replace(&mut self.count, count) == 0 && count > 0
    }
}

/// The counts that are looked at.
#[derive(Debug, Default)]
struct Crowd {
    full: Seen,
    scarce: Seen,
    uncounted: Seen,
}

/// The lines that are to be logged.
#[derive(Debug)]
struct Said {
    full: bool,
    scarce: bool,
    /// It is over, and happened so often.
    scarce_no_more: Option<u64>,
    uncounted: bool,
}

impl Crowd {
    fn look(&mut self, stats: &Stats, now: Instant) -> Said {
        Said {
            full: self.full.look(stats.total(Count::AcceptPaused), now),
            scarce: self.scarce.look(stats.total(Count::AcceptStalled), now),
            scarce_no_more: self.scarce.over(now),
            uncounted: self.uncounted.begins(stats.requests_overflow()),
        }
    }
}

/// Looks at all shards, for ever.
pub(super) async fn watch(keeper: Arc<Keeper>, stats: &'static Stats) {
    let mut seen = Crowd::default();
    loop {
        sleep(LOOK).await;
        let said = seen.look(stats, Instant::now());
        if said.full {
            let connections_max = keeper.config().limits.connections_max;
            tracing::warn!(
                connections_max,
                "a shard has as many clients as it may: further ones wait, unanswered, until one leaves; see `connections_max` in [limits]"
            );
        }
        if said.scarce {
            tracing::warn!(
                "no descriptor, memory or room to watch clients (fs.epoll.max_user_watches) is left to accept them, or the kernel refuses, which a line of its own says: they wait, unanswered, until that is over; `warmfront check` says how many descriptors are needed"
            );
        }
        if let Some(times) = said.scarce_no_more {
            tracing::info!(
                times,
                "clients are accepted again; accepting was put off so often, but not in the last minute"
            );
        }
        if said.uncounted {
            tracing::warn!(
                "a shard has met more combinations of model, endpoint, status and reason than it counts apart: in warmfront_requests_total further ones are of no endpoint, so that those of endpoints are too few (warmfront_requests_uncounted_total); with SIGUSR2 a new process begins anew"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::stats::RequestKey;

    #[test]
    fn that_requests_cannot_be_told_apart_any_more_is_said() {
        let (stats, mut seen, now) = (Stats::leak(1), Crowd::default(), Instant::now());
        let mut counts = |slots: std::ops::Range<u16>| {
            let keys = slots.flat_map(|slot| (200..220).map(move |status| (slot, status)));
            keys.for_each(|(slot, status)| stats.shard(0).request(RequestKey { slot, pool: 1, status, reason: 3 }));
            seen.look(stats, now).uncounted
        };
        assert_eq!([0..500, 500..1_024, 0..1_024].map(&mut counts), [false, true, false]);
        let rare = RequestKey { slot: 5, pool: 7, status: 499, reason: 4 };
        stats.shard(0).request(rare);
        assert!(!seen.look(stats, now + 10 * QUIET).uncounted, "that is never over");
    }

    #[test]
    fn it_is_said_again_when_it_has_not_been_so_for_a_while() {
        let (mut seen, begin) = (Seen::default(), Instant::now());
        let mut at = |count, seconds| seen.look(count, begin + Duration::from_secs(seconds));
        assert_eq!(
            [at(0, 0), at(1, 1), at(1, 2), at(5, 50), at(6, 109), at(6, 170)],
            [false, true, false, false, false, false]
        );
        assert!(at(7, 171));
    }

    #[test]
    fn that_it_is_over_is_said_once_and_how_often_it_was() {
        let (mut seen, begin) = (Seen::default(), Instant::now());
        let mut at = |count, seconds| {
            let now = begin + Duration::from_secs(seconds);
            (seen.look(count, now), seen.over(now))
        };
        assert_eq!(
            [at(0, 0), at(2, 1), at(9, 40), at(9, 99)],
            [(false, None), (true, None), (false, None), (false, None)]
        );
        assert_eq!([at(9, 100), at(9, 101)], [(false, Some(9)), (false, None)]);
        assert_eq!([at(12, 102), at(12, 162)], [(true, None), (false, Some(3))]);
    }
}
