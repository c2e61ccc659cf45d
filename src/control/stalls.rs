//! Finds shards that stand still in the middle of a turn, and logs what they were doing;
//! and how late control itself is.
//!
//! A shard serves thousands of streams: while it is busy with one thing, all others wait. Work in the kernel may take
//! long; anything else is either a fault of ours or a machine that gives the shard too little time.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::counters::stats::{Count, Stats};
use crate::publish::{Doing, Phase, Process};

/// How often shards are looked at: each look wakes control, even if there is nothing to do.
const LOOK: Duration = Duration::from_millis(20);
/// How long a turn has to stand still between looks to be logged; it began up to one look before the first.
const STALL: Duration = Duration::from_millis(40);
/// How long a shard has to sleep to be logged: each wakes every second, whether there is something to do or not.
const OVERSLEPT: Duration = Duration::from_secs(3);

/// Looks, 10 s or more, for which a shard has to stand still to be given up. Looks are counted, and no time is
/// measured: while the machine or the process stands still, control does not look.
const WEDGED: u32 = 500;

/// The worst lateness of control is told for one to two of these windows.
const WINDOW: Duration = Duration::from_secs(10);
/// Control says so if it was this late in two such windows in a row.
const LATE: Duration = Duration::from_secs(1);

/// Control says so if it was this late once: it looked at nothing meanwhile; nor did shards, if the whole process stood
/// still.
const PAUSE: Duration = Duration::from_secs(3);
/// Looks, a second, within which each shard has counted that it stood still as well, if it did.
const COUNTED: u32 = 50;

static LATE_MICROS: AtomicU64 = AtomicU64::new(0);

/// How late control was at worst in the last ten or twenty seconds.
pub(super) fn late() -> Duration {
    Duration::from_micros(LATE_MICROS.load(Ordering::Relaxed))
}

/// How late control wakes: probes, scrapes, engines' events and the admin listener share one thread.
#[derive(Debug)]
struct Lateness {
    since: Instant,
    worst: Duration,
    /// The worst lateness of the window before.
    before: Duration,
    said: bool,
}

impl Lateness {
    fn new(now: Instant) -> Lateness {
        Lateness { since: now, worst: Duration::ZERO, before: Duration::ZERO, said: false }
    }

    /// Notes how late control woke. True: lateness lasts, and was not logged yet.
    fn woke(&mut self, late: Duration, now: Instant) -> bool {
        self.worst = self.worst.max(late);
        if now.saturating_duration_since(self.since) < WINDOW {
            return false;
        }
        let lasts = self.worst.min(self.before) >= LATE;
        (self.since, self.before) = (now, mem::take(&mut self.worst));
        !mem::replace(&mut self.said, lasts) && lasts
    }

    fn most(&self) -> Duration {
        self.worst.max(self.before)
    }
}

/// A pause in which control did not look.
#[derive(Debug, Default)]
struct Pause {
    /// How long it was, and how many looks there were since then.
    untold: Option<(Duration, u32)>,
    /// How often shards had stood still before it.
    before: u64,
}

impl Pause {
    /// Notes how late control woke (`late`), and how often shards have stood still (`stood`). Returns how long a pause
    /// was, and whether each of the `shards` shards stood still in it.
    fn look(&mut self, late: Duration, stood: u64, shards: usize) -> Option<(Duration, bool)> {
        if late >= PAUSE {
            self.untold = Some((late, 0));
        }
        let told = match &mut self.untold {
            Some((length, looks)) => {
                *looks += 1;
                let all = stood.saturating_sub(self.before) >= shards as u64;
                (all || *looks > COUNTED).then_some((*length, all))
            }
            None => {
                self.before = stood;
                None
            }
        };
        if told.is_some() {
            *self = Pause { untold: None, before: stood };
        }
        told
    }
}

fn say_paused(length: Duration, all: bool) {
    let milliseconds = length.as_millis() as u64;
    match all {
        true => tracing::warn!(
            milliseconds,
            "the whole process stood still, and all requests with it: it was stopped or throttled, or its machine paused"
        ),
        false => tracing::warn!(
            milliseconds,
            "control stood still, and not all shards with it: its CPU ran others, or one thing took it so long; engines were not looked at meanwhile"
        ),
    }
}

/// One shard as it was last seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    turns: u64,
    doing: Doing,
    since: Instant,
    told: bool,
    /// Looks since then.
    looks: u32,
}

/// What a look finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// It has stood still for long enough to tell.
    Stands(Doing, Duration),
    /// It goes on, after at least this long.
    GoesOn(Doing, Duration),
}

impl Seen {
    fn new(turns: u64, doing: Doing, now: Instant) -> Seen {
        Seen { turns, doing, since: now, told: false, looks: 0 }
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
        (self.doing, self.looks) = (doing, self.looks.saturating_add(1));
        let longest = if sleeps { OVERSLEPT } else { STALL };
        if self.told || stood < longest {
            return None;
        }
        self.told = true;
        Some(Found::Stands(doing, stood))
    }

    /// Notes that control did not look for this long: what the shard did meanwhile is not known.
    fn unseen(&mut self, length: Duration) {
        self.since += length;
    }

    fn is_wedged(&self) -> bool {
        self.looks >= WEDGED
    }
}

/// Looks at all shards, for ever.
pub(super) async fn watch(process: &'static Process, stats: &'static Stats) {
    let turns = |shard: usize| stats.shard(shard).turns();
    let begin = Instant::now();
    let mut seen: Vec<Seen> =
        (0..process.shards().len()).map(|shard| Seen::new(turns(shard), Doing::Waits, begin)).collect();
    let (mut lateness, mut pause) = (Lateness::new(begin), Pause::default());
    loop {
        let due = Instant::now() + LOOK;
        tokio::time::sleep(LOOK).await;
        let now = Instant::now();
        let late = now.saturating_duration_since(due);
        if late >= PAUSE {
            seen.iter_mut().for_each(|seen| seen.unseen(late));
        }
        // In a drain shards end one by one.
        let serving = process.shards().iter().filter(|shard| shard.phase() == Phase::Serving).count();
        if let Some((length, all)) = pause.look(late, stats.total(Count::StoodStill), serving.max(1)) {
            say_paused(length, all);
        }
        if lateness.woke(late, now) {
            tracing::warn!(
                milliseconds = lateness.most().as_millis() as u64,
                "control is late: what is known of engines is older than it should be; it has one thread, and a slow disk, many engines or their events may be too much for it"
            );
        }
        LATE_MICROS.store(lateness.most().as_micros() as u64, Ordering::Relaxed);
        for (shard, (seen, state)) in seen.iter_mut().zip(process.shards()).enumerate() {
            if state.phase() != Phase::Serving {
                *seen = Seen::new(turns(shard), Doing::Waits, now);
                state.set_wedged(false);
                continue;
            }
            let found = seen.look(turns(shard), state.doing().now(), now);
            state.set_wedged(seen.is_wedged());
            match found {
                Some(Found::Stands(doing, stood)) => {
                    state.count_stall();
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

/// The log line for what it is doing. A shard that sleeps wakes each second by itself, if the machine lets it.
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
        assert_eq!(seen.look(8, Doing::ServesEngine, at(1_030)), None);
        let stood = Found::Stands(Doing::ServesEngine, Duration::from_millis(40));
        assert_eq!(seen.look(8, Doing::ServesEngine, at(1_040)), Some(stood));
        assert_eq!(seen.look(8, Doing::ServesEngine, at(1_200)), None, "told before");
        let over = Found::GoesOn(Doing::ServesEngine, Duration::from_millis(210));
        assert_eq!(seen.look(9, Doing::ServesClient, at(1_210)), Some(over));
        assert_eq!(seen.look(9, Doing::Waits, at(1_300)), None);
        assert_eq!(seen.look(9, Doing::ServesClient, at(4_200)), None, "it slept, and has just woken");
    }

    #[test]
    fn a_stall_of_60_ms_is_told_and_none_shorter_than_40() {
        let begin = Instant::now();
        for first in 0..20 {
            let mut seen = Seen::new(7, Doing::Waits, begin);
            let mut looks = (0..).map(|look| begin + Duration::from_millis(first) + LOOK * look);
            let told = looks.find(|at| seen.look(8, Doing::ServesClient, *at).is_some()).unwrap() - begin;
            assert!((40..60).contains(&told.as_millis()), "{first}: {told:?}");
        }
    }

    #[test]
    fn a_shard_is_wedged_by_what_is_seen_and_not_by_the_clock() {
        let begin = Instant::now();
        let mut seen = Seen::new(7, Doing::ServesClient, begin);
        let after = |looks: u32| begin + Duration::from_secs(3_600) + LOOK * looks;
        for look in 1..WEDGED {
            seen.look(7, Doing::ServesClient, after(look));
            assert!(!seen.is_wedged(), "the machine stood still, and {look} looks are few");
        }
        seen.look(7, Doing::ServesEngine, after(WEDGED));
        assert!(seen.is_wedged());
        seen.look(8, Doing::ServesEngine, after(WEDGED + 1));
        assert!(!seen.is_wedged());
    }

    #[test]
    fn that_control_is_late_is_said_once_while_it_lasts() {
        let begin = Instant::now();
        let mut lateness = Lateness::new(begin);
        let mut said = Vec::new();
        for (second, late) in (0..).zip([0, 9, 0, 2, 2, 0, 0, 2, 2, 2, 0, 1, 0, 1, 1]) {
            let [middle, end] = [5, 10].map(|part| begin + Duration::from_secs(10 * second + part));
            assert!(!lateness.woke(Duration::from_secs(late), middle));
            assert!(lateness.most() >= Duration::from_secs(late));
            if lateness.woke(Duration::ZERO, end) {
                said.push(second);
            }
            assert_eq!(lateness.before, Duration::from_secs(late));
        }
        assert_eq!(said, [4, 8, 14]);
    }

    #[test]
    fn a_pause_is_told_once_all_shards_have_counted_it_or_some_have_not() {
        let (mut pause, late) = (Pause::default(), Duration::from_secs(12));
        let mut look = |late, stood| pause.look(late, stood, 2);
        assert_eq!([look(LATE, 4), look(late, 4), look(LOOK, 5)], [None; 3], "one has not woken yet");
        assert_eq!(look(Duration::ZERO, 6), Some((late, true)));
        assert_eq!([look(LATE, 6), look(late, 7)], [None; 2]);
        for _ in 1..COUNTED {
            assert_eq!(look(LATE, 7), None);
        }
        assert_eq!([look(LATE, 7), look(LATE, 9)], [Some((late, false)), None]);
    }

    #[test]
    fn a_shard_is_not_blamed_for_what_nobody_saw() {
        let begin = Instant::now();
        let mut seen = Seen::new(7, Doing::Waits, begin);
        seen.unseen(Duration::from_secs(12));
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(seen.look(7, Doing::Waits, at(12_500)), None);
        assert!(seen.look(7, Doing::Waits, at(15_000)).is_some(), "it does not wake behind it either");
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
