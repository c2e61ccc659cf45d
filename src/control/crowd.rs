//! Says when shards have as many clients as they may, or nothing left to take more with. Further ones wait in the
//! kernel's queue, and to them the front seems to hang: neither a refusal nor a time that was measured tells of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::keeper::Keeper;
use crate::counters::stats::{Count, Stats};

/// How often shards are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// It is said again when it has not been so for this long.
const QUIET: Duration = Duration::from_secs(60);

/// As it was seen last.
#[derive(Debug, Default)]
struct Seen {
    count: u64,
    /// When there were more of them last.
    grew: Option<Instant>,
}

impl Seen {
    /// Whether it is to be said.
    fn look(&mut self, count: u64, now: Instant) -> bool {
        if count == self.count {
            return false;
        }
        self.count = count;
        let before = self.grew.replace(now);
        before.is_none_or(|before| now.saturating_duration_since(before) >= QUIET)
    }
}

/// Looks at all shards, for ever.
pub(super) async fn watch(keeper: Arc<Keeper>, stats: &'static Stats) {
    let (mut full, mut scarce) = (Seen::default(), Seen::default());
    loop {
        sleep(LOOK).await;
        if full.look(stats.total(Count::AcceptPaused), Instant::now()) {
            let connections_max = keeper.config().limits.connections_max;
            tracing::warn!(
                connections_max,
                "a shard has as many clients as it may: further ones wait, unanswered, until one leaves; see `connections_max` in [limits]"
            );
        }
        if scarce.look(stats.total(Count::AcceptStalled), Instant::now()) {
            tracing::warn!(
                "no descriptor, memory or room to watch them (fs.epoll.max_user_watches) is left to take clients with, or the kernel refuses, which a line of its own says: further ones wait, unanswered, until that is over; `warmfront check` says how many descriptors it takes"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
