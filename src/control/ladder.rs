//! How far the front believes what it knows of one endpoint's cache: down a rung when predictions are wrong for a
//! while, up when they are right again. Predictions go on while they are not believed.
//!
//! Only predicting too much is wrong. Predicting too little is common and harmless: answers are in the cache and not in
//! the index, and others fill it too.

use std::time::{Duration, Instant};

use crate::counters::Compared;
use crate::fleet::Rung;

/// Least predicted tokens of a window: a KV block more or less of each prompt weighs little then.
pub const WINDOW_TOKENS: u64 = 20_000;
/// Least requests of a window: one long prompt is chance.
pub const WINDOW_REQUESTS: u64 = 8;
/// A window is wrong if more percent of its predicted tokens were not in the cache: an engine that had the better half
/// of them is better believed. Simulated engines with room show 1, those whose caches are just full 5 to 29, those that
/// are asked for far more than they hold 70 to 100, and one without a cache 100; a vLLM with room 3 to 6.
pub const WRONG_PERCENT: u64 = 50;
/// A window with this percentage at most is right; between the two it is neither, lest an endpoint goes up and down at
/// one limit.
pub const RIGHT_PERCENT: u64 = 25;
/// Wrong windows in a row that lead down: requests sent together with the same new prompt fill one or two, since they
/// are predicted before the first of them is computed.
pub const WRONG_ROW: u32 = 3;
/// Right windows in a row that lead up.
pub const RIGHT_ROW: u32 = 4;

/// How long an endpoint is not believed before it is tried again, whatever is known by then: as it counts as holding
/// nothing, it may get no request by which it could prove right...
pub const DOUBT: Duration = Duration::from_secs(10);
/// ... doubled each time that this was too soon, up to this.
pub const DOUBT_MAX: Duration = Duration::from_secs(600);

/// Why an endpoint is on another rung.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Its engine had not cached what was predicted, window after window.
    Overpredicted,
    /// Its engine says that it caches no prefixes.
    CacheOff,
    /// Its engine had cached what was predicted, window after window.
    RightAgain,
    /// Its engine says that it caches prefixes now.
    CacheOn,
    /// It has been disbelieved for long enough.
    TriedAgain,
    /// Another process may be there now.
    Restarted,
    /// Its engine says what it holds, and nothing of that is missing.
    Told,
    /// Its engine is asked for events that were missed.
    Missed,
    /// Its events are not heard, or not all of them.
    Untold,
}

/// How much an engine tells of its own cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tells {
    /// Nothing, or too little.
    #[default]
    Nothing,
    /// It is being asked for events that were missed.
    Replaying,
    /// All that it holds.
    All,
}

impl Why {
    /// The words for it in the log and in `/endpoints`.
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Overpredicted => "overpredicted",
            Why::CacheOff => "prefix_caching_off",
            Why::RightAgain => "right_again",
            Why::CacheOn => "prefix_caching_on",
            Why::TriedAgain => "tried_again",
            Why::Restarted => "restarted",
            Why::Told => "events",
            Why::Missed => "events_missed",
            Why::Untold => "no_events",
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Ladder {
    /// Whether choices count what the index says of it.
    is_believed: bool,
    tells: Tells,
    since: Instant,
    why: Option<Why>,
    window: Compared,
    wrong: u32,
    right: u32,
    cache_off: bool,
    /// How long it will not be believed the next time.
    doubt: Duration,
}

impl Ladder {
    /// The ladder of an engine that is believed and tells nothing yet.
    pub fn new(now: Instant) -> Ladder {
        Ladder {
            is_believed: true,
            tells: Tells::Nothing,
            since: now,
            why: None,
            window: Compared::default(),
            wrong: 0,
            right: 0,
            cache_off: false,
            doubt: DOUBT,
        }
    }

    /// The rung that it is on.
    pub fn rung(&self) -> Rung {
        match (self.is_believed, self.tells) {
            (false, _) => Rung::Hash,
            (true, Tells::Nothing) => Rung::Approximate,
            (true, Tells::Replaying) => Rung::Replaying,
            (true, Tells::All) => Rung::Exact,
        }
    }

    /// How much its engine tells.
    pub fn said(&self) -> Tells {
        self.tells
    }

    /// Since when it is on that rung.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Why it is on that rung, if it was ever on another.
    pub fn why(&self) -> Option<Why> {
        self.why
    }

    /// Takes in further comparisons. True: it is on another rung.
    pub fn compared(&mut self, more: Compared, now: Instant) -> bool {
        self.window.add(more);
        if self.window.predicted < WINDOW_TOKENS || self.window.requests < WINDOW_REQUESTS {
            return false;
        }
        let Compared { predicted, over, .. } = std::mem::take(&mut self.window);
        let over_percent = over.saturating_mul(100) / predicted;
        self.wrong = if over_percent > WRONG_PERCENT { self.wrong + 1 } else { 0 };
        self.right = if over_percent <= RIGHT_PERCENT { self.right + 1 } else { 0 };
        if self.right >= RIGHT_ROW {
            self.doubt = DOUBT;
        }
        match self.is_believed {
            true if self.wrong >= WRONG_ROW => self.believe(false, Why::Overpredicted, now),
            false if self.right >= RIGHT_ROW && !self.cache_off => self.believe(true, Why::RightAgain, now),
            _ => false,
        }
    }

    /// Lets time pass. True: it is on another rung.
    pub fn tries_again(&mut self, now: Instant) -> bool {
        if self.is_believed || self.cache_off || now.saturating_duration_since(self.since) < self.doubt {
            return false;
        }
        self.doubt = (2 * self.doubt).min(DOUBT_MAX);
        self.believe(true, Why::TriedAgain, now)
    }

    /// Sets how much the engine tells of its cache from now on. True: it is on another rung.
    pub fn tells(&mut self, tells: Tells, now: Instant) -> bool {
        let before = self.rung();
        self.tells = tells;
        let why = match tells {
            Tells::Nothing => Why::Untold,
            Tells::Replaying => Why::Missed,
            Tells::All => Why::Told,
        };
        self.moved_from(before, why, now)
    }

    /// Takes in whether the engine says that it caches prefixes. True: it is on another rung.
    pub fn caches(&mut self, prefixes: bool, now: Instant) -> bool {
        let was_off = std::mem::replace(&mut self.cache_off, !prefixes);
        match (was_off, self.cache_off) {
            (false, true) => self.believe(false, Why::CacheOff, now),
            (true, false) => self.believe(true, Why::CacheOn, now),
            _ => false,
        }
    }

    /// Takes in that its engine may be another process, of which no fault is known; nor that it caches nothing, before
    /// it says so itself. True: it is on another rung.
    pub fn restarted(&mut self, now: Instant) -> bool {
        (self.doubt, self.cache_off) = (DOUBT, false);
        self.believe(true, Why::Restarted, now)
    }

    fn believe(&mut self, is_believed: bool, why: Why, now: Instant) -> bool {
        let before = self.rung();
        (self.window, self.wrong, self.right) = (Compared::default(), 0, 0);
        self.is_believed = is_believed;
        self.moved_from(before, why, now)
    }

    fn moved_from(&mut self, before: Rung, why: Why, now: Instant) -> bool {
        let moved = self.rung() != before;
        if moved {
            (self.why, self.since) = (Some(why), now);
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One window in which so many percent were wrong.
    fn window(percent: u64) -> Compared {
        Compared { requests: 10, ..Compared::of(10, WINDOW_TOKENS, WINDOW_TOKENS * (100 - percent) / 100) }
    }

    fn after(windows: &[u64]) -> Ladder {
        let now = Instant::now();
        let mut ladder = Ladder::new(now);
        windows.iter().for_each(|percent| {
            ladder.compared(window(*percent), now);
        });
        ladder
    }

    #[test]
    fn wrong_windows_lead_down_and_right_ones_up() {
        for (windows, rung) in [
            (&[100, 100][..], Rung::Approximate),
            (&[100, 100, 100], Rung::Hash),
            (&[51, 51, 51], Rung::Hash),
            (&[50, 50, 50, 50, 50, 50], Rung::Approximate),
            (&[100, 100, 40, 100, 100, 0, 100, 100], Rung::Approximate),
            (&[100, 100, 100, 0, 0, 0], Rung::Hash),
            (&[100, 100, 100, 0, 0, 0, 0], Rung::Approximate),
            (&[100, 100, 100, 25, 25, 25, 25], Rung::Approximate),
            (&[100, 100, 100, 0, 0, 0, 26, 0, 0, 0], Rung::Hash),
            (&[100, 100, 100, 0, 0, 0, 0, 100, 100], Rung::Approximate),
            (&[100, 100, 100, 0, 0, 0, 0, 100, 100, 100], Rung::Hash),
        ] {
            assert_eq!(after(windows).rung(), rung, "{windows:?}");
        }
        assert_eq!(after(&[100, 100, 100]).why(), Some(Why::Overpredicted));
    }

    #[test]
    fn few_tokens_or_few_requests_are_no_window() {
        let now = Instant::now();
        let mut ladder = Ladder::new(now);
        // Long prompts, seven of them: chance.
        for _ in 0..WINDOW_REQUESTS - 1 {
            assert!(!ladder.compared(Compared::of(1, 10 * WINDOW_TOKENS, 0), now));
        }
        assert_eq!((ladder.wrong, ladder.window.requests), (0, WINDOW_REQUESTS - 1));
        ladder.compared(Compared::of(1, 0, 0), now);
        assert_eq!((ladder.wrong, ladder.window.requests), (1, 0));
        // Prompts that nobody was thought to hold are none either, however many.
        (0..10_000).for_each(|_| assert!(!ladder.compared(Compared::of(1, 0, 500), now)));
        assert_eq!((ladder.wrong, ladder.right), (1, 0));
    }

    #[test]
    fn an_engine_without_a_cache_is_not_believed_whatever_is_compared() {
        let now = Instant::now();
        let mut ladder = Ladder::new(now);
        assert!(ladder.caches(false, now) && !ladder.caches(false, now));
        assert_eq!((ladder.rung(), ladder.why()), (Rung::Hash, Some(Why::CacheOff)));
        (0..10).for_each(|_| assert!(!ladder.compared(window(0), now)));
        assert!(ladder.caches(true, now));
        assert_eq!((ladder.rung(), ladder.why()), (Rung::Approximate, Some(Why::CacheOn)));
        assert!(!ladder.caches(true, now));
    }

    #[test]
    fn a_new_process_is_believed() {
        let mut ladder = after(&[100, 100, 100]);
        assert!(ladder.restarted(Instant::now()) && ladder.rung() == Rung::Approximate);
        let mut ladder = after(&[]);
        ladder.caches(false, Instant::now());
        assert!(ladder.restarted(Instant::now()) && ladder.rung() == Rung::Approximate, "it says nothing of its cache");
        assert!(ladder.caches(false, Instant::now()) && ladder.rung() == Rung::Hash, "it says that it has none");
        let mut ladder = after(&[100, 100]);
        assert!(!ladder.restarted(Instant::now()));
        ladder.compared(window(100), Instant::now());
        assert_eq!(ladder.rung(), Rung::Approximate, "the two before were another's");
    }

    #[test]
    fn one_that_gets_no_request_is_believed_again_and_each_time_later() {
        let mut now = Instant::now();
        let mut ladder = Ladder::new(now);
        let falls = |ladder: &mut Ladder, now| (0..WRONG_ROW).any(|_| ladder.compared(window(100), now));
        for doubt in [10, 20, 40, 80, 160, 320, 600, 600].map(Duration::from_secs) {
            assert!(!ladder.tries_again(now) && falls(&mut ladder, now));
            now += doubt - Duration::from_millis(1);
            assert!(!ladder.tries_again(now) && ladder.rung() == Rung::Hash, "after {doubt:?}");
            now += Duration::from_millis(1);
            assert!(ladder.tries_again(now) && ladder.rung() == Rung::Approximate);
            assert_eq!(ladder.why(), Some(Why::TriedAgain));
        }
        for _ in 0..RIGHT_ROW {
            ladder.compared(window(0), now);
        }
        assert!(falls(&mut ladder, now));
        assert!(ladder.tries_again(now + DOUBT), "it was right in between");
        ladder.caches(false, now);
        assert!(!ladder.tries_again(now + 2 * DOUBT_MAX), "it says so itself");
    }

    #[test]
    fn what_an_engine_tells_counts_as_long_as_it_is_believed() {
        let now = Instant::now();
        let mut ladder = Ladder::new(now);
        assert!(!ladder.tells(Tells::Nothing, now) && ladder.rung() == Rung::Approximate);
        assert!(ladder.tells(Tells::Replaying, now) && ladder.rung() == Rung::Replaying);
        assert!(ladder.tells(Tells::All, now) && !ladder.tells(Tells::All, now));
        assert_eq!((ladder.rung(), ladder.why()), (Rung::Exact, Some(Why::Told)));
        for _ in 0..WRONG_ROW {
            ladder.compared(window(100), now);
        }
        assert_eq!((ladder.rung(), ladder.why()), (Rung::Hash, Some(Why::Overpredicted)));
        assert!(!ladder.tells(Tells::Nothing, now) && !ladder.tells(Tells::All, now));
        for _ in 0..RIGHT_ROW {
            ladder.compared(window(0), now);
        }
        assert_eq!((ladder.rung(), ladder.why()), (Rung::Exact, Some(Why::RightAgain)));
        assert!(ladder.tells(Tells::Nothing, now) && ladder.why() == Some(Why::Untold));
    }

    proptest! {
        /// However it is cut into comparisons: too little never leads down, nor does what is right.
        #[test]
        fn only_too_much_leads_down(
            each in prop::collection::vec((0u64..9_000, 0u64..=100, 0u64..9_000), 1..400),
        ) {
            let now = Instant::now();
            let mut ladder = Ladder::new(now);
            for (predicted, part, beyond) in each {
                // At least half are there, and often more than was predicted.
                let cached = predicted * (50 + part / 2).min(100) / 100 + 1 + if part > 50 { beyond } else { 0 };
                ladder.compared(Compared::of(1, predicted, cached), now);
                prop_assert_eq!(ladder.rung(), Rung::Approximate);
            }
        }

        /// Down only behind so many tokens predicted wrongly.
        #[test]
        fn it_takes_whole_windows(each in prop::collection::vec((0u64..30_000, 0u64..30_000), 1..200)) {
            let now = Instant::now();
            let mut ladder = Ladder::new(now);
            let (mut predicted, mut requests) = (0, 0);
            for (held, cached) in each {
                predicted += held;
                requests += 1;
                let fell = ladder.compared(Compared::of(1, held, cached), now);
                prop_assert!(!fell || predicted >= u64::from(WRONG_ROW) * WINDOW_TOKENS);
                prop_assert!(!fell || requests >= u64::from(WRONG_ROW) * WINDOW_REQUESTS);
                if fell {
                    (predicted, requests) = (0, 0);
                }
            }
        }
    }
}
