//! Finds shards that stand still in the middle of a turn, and says what they were doing.
//!
//! A shard serves thousands of streams: while it is busy with one thing for long, all others wait. What it does in
//! the kernel may take long, anything else is either a fault of ours or a machine that lends us too little time.

use std::time::{Duration, Instant};

use crate::counters::stats::Stats;
use crate::publish::{Doing, Phase, Process};

/// How often shards are looked at.
const LOOK: Duration = Duration::from_millis(10);
/// A turn that stands still for so long is told.
const STALL: Duration = Duration::from_millis(50);
/// A sleep of this length is told: each shard wakes every second, whether there is something to do or not.
const OVERSLEPT: Duration = Duration::from_secs(3);

/// One shard as it was seen last.
#[derive(Clone, Copy, Debug)]
struct Seen {
    turns: u64,
    doing: Doing,
    since: Instant,
    told: bool,
}

/// What a look finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// It has stood still for long enough to tell.
    Stands(Doing, Duration),
    /// It goes on, after so long at least.
    GoesOn(Doing, Duration),
}

impl Seen {
    fn new(turns: u64, doing: Doing, now: Instant) -> Seen {
        Seen { turns, doing, since: now, told: false }
    }

    fn look(&mut self, turns: u64, doing: Doing, now: Instant) -> Option<Found> {
        let stood = now.saturating_duration_since(self.since);
        let sleeps = doing == Doing::Waits;
        let goes_on = turns != self.turns || sleeps != (self.doing == Doing::Waits);
        if goes_on {
            let told = self.told.then_some(Found::GoesOn(self.doing, stood));
            *self = Seen::new(turns, doing, now);
            return told;
        }
        self.doing = doing;
        let longest = if sleeps { OVERSLEPT } else { STALL };
        if self.told || stood < longest {
            return None;
        }
        self.told = true;
        Some(Found::Stands(doing, stood))
    }
}

/// Looks at all shards, for ever.
pub(super) async fn watch(process: &'static Process, stats: &'static Stats) {
    let turns = |shard: usize| stats.shard(shard).turns();
    let begin = Instant::now();
    let mut seen: Vec<Seen> =
        (0..process.shards().len()).map(|shard| Seen::new(turns(shard), Doing::Waits, begin)).collect();
    loop {
        tokio::time::sleep(LOOK).await;
        let now = Instant::now();
        for (shard, (seen, state)) in seen.iter_mut().zip(process.shards()).enumerate() {
            if state.phase() != Phase::Serving {
                *seen = Seen::new(turns(shard), Doing::Waits, now);
                continue;
            }
            match seen.look(turns(shard), state.doing().now(), now) {
                Some(Found::Stands(doing, stood)) => {
                    state.stalled();
                    tracing::warn!(
                        shard,
                        doing = doing.as_str(),
                        milliseconds = stood.as_millis() as u64,
                        "{}",
                        stands(doing)
                    );
                }
                Some(Found::GoesOn(doing, stood)) => {
                    tracing::warn!(
                        shard,
                        doing = doing.as_str(),
                        milliseconds = stood.as_millis() as u64,
                        "the shard goes on"
                    );
                }
                None => {}
            }
        }
    }
}

/// What can be said of it. One that sleeps wakes each second by itself, if it is let.
fn stands(doing: Doing) -> &'static str {
    match doing {
        Doing::Waits => "a shard does not wake: its CPU may run others (README, Tuning), or the machine stood still",
        _ => "a shard stands still",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_stands_still_is_told_once_and_when_it_goes_on() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut seen = Seen::new(7, Doing::Waits, begin);
        assert_eq!(seen.look(7, Doing::Waits, at(900)), None, "it may sleep");
        assert_eq!(seen.look(8, Doing::ServesClient, at(1_000)), None);
        assert_eq!(seen.look(8, Doing::ServesEngine, at(1_040)), None);
        let stood = Found::Stands(Doing::ServesEngine, Duration::from_millis(50));
        assert_eq!(seen.look(8, Doing::ServesEngine, at(1_050)), Some(stood));
        assert_eq!(seen.look(8, Doing::ServesEngine, at(1_200)), None, "told before");
        let over = Found::GoesOn(Doing::ServesEngine, Duration::from_millis(210));
        assert_eq!(seen.look(9, Doing::ServesClient, at(1_210)), Some(over));
        assert_eq!(seen.look(9, Doing::Waits, at(1_300)), None);
        assert_eq!(seen.look(9, Doing::ServesClient, at(4_200)), None, "it slept, and has just woken");
    }

    #[test]
    fn a_shard_that_does_not_wake_is_told() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut seen = Seen::new(7, Doing::Waits, begin);
        assert_eq!(seen.look(7, Doing::Waits, at(2_990)), None);
        let stood = Found::Stands(Doing::Waits, OVERSLEPT);
        assert_eq!(seen.look(7, Doing::Waits, at(3_000)), Some(stood));
        let over = Found::GoesOn(Doing::Waits, Duration::from_millis(4_000));
        assert_eq!(seen.look(8, Doing::Waits, at(4_000)), Some(over));
    }
}
