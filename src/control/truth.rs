//! Compares predictions of one endpoint's cache with what its engine says: reply by reply, or by its counters in
//! `/metrics` if replies do not tell.

use std::time::Instant;

use super::answers::{Answered, Answers};
use super::calibration::Calibration;
use super::ladder::{Ladder, Tells, WINDOW_REQUESTS, WINDOW_TOKENS};
use super::scrape::Reading;
use crate::counters::{Asked, Compared, Predictions, Text};
use crate::fleet::{EngineLoad, METHODS, Method};

/// What this front had sent to an engine when its `/metrics` was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ours {
    /// Requests in flight there, without those that have ended and stay charged.
    pub in_flight: u32,
    /// [`crate::fleet::Loads::several`], before it was asked.
    pub several: u32,
    /// [`crate::fleet::Loads::dispatched`], before it was asked.
    pub dispatched: u64,
    /// [`crate::fleet::Loads::resident`], before it was asked.
    pub resident: u64,
    /// [`crate::fleet::Loads::prompted`], before it was asked.
    pub prompted: u64,
    /// [`crate::fleet::Loads::pending`], before it was asked.
    pub pending: u64,
    /// What was predicted for it, before it was asked.
    pub asked: Asked,
}

/// All of this for one endpoint.
#[derive(Debug)]
pub struct Truth {
    /// Bytes that a token of it stands for.
    pub calibration: Calibration,
    /// How far it is believed.
    pub ladder: Ladder,
    lookups: Lookups,
    answers: Answers,
    /// Its slot's counters at the last reading; `None`: they are still the former endpoint's.
    seen: Option<([Compared; METHODS], Text)>,
    /// Comparisons by scrapes that are not taken yet.
    untold: Compared,
    /// It went to another rung, which is not reported yet.
    moved: bool,
}

impl Truth {
    /// For a new endpoint.
    pub fn new(now: Instant) -> Truth {
        Truth {
            calibration: Calibration::default(),
            ladder: Ladder::new(now),
            lookups: Lookups::default(),
            answers: Answers::default(),
            seen: None,
            untold: Compared::default(),
            moved: false,
        }
    }

    /// For the same process in another slot, where shards count from 0, and where nobody listens to it yet.
    pub fn renumbered(&self, now: Instant) -> Truth {
        let (calibration, ladder) = (self.calibration.renumbered(), self.ladder.clone());
        let mut truth = Truth { calibration, ladder, ..Truth::new(now) };
        truth.tells(Tells::Nothing, now);
        truth
    }

    /// Takes in a reading of its engine's `/metrics`. `alone`: only this front asks it.
    pub fn scraped(&mut self, ours: &Ours, reading: &Reading, alone: bool, now: Instant) {
        self.calibration.read(ours.prompted, ours.pending > 0, reading.load.prompt_tokens_total, alone);
        self.answers.read(&reading.load);
        if let Some(caches) = reading.prefix_caching {
            self.moved |= self.ladder.caches(caches, now);
        }
        if let Some(compared) = self.lookups.read(ours.asked, &reading.load, alone) {
            self.untold.add(compared);
            self.moved |= self.ladder.compared(compared, now);
        }
    }

    /// Takes how long its answers were that ended since the last call.
    pub fn answered(&mut self) -> Option<Answered> {
        self.answers.take()
    }

    /// Sets how much its engine tells of its cache from now on.
    pub fn tells(&mut self, tells: Tells, now: Instant) {
        self.moved |= self.ladder.tells(tells, now);
    }

    /// Notes that another process may answer there.
    pub fn restarted(&mut self, now: Instant) {
        self.lookups = Lookups::default();
        self.moved |= self.ladder.restarted(now);
    }

    /// Forgets the calibration, since another model is served there: its tokens stand for other bytes, and what the one
    /// before told would outweigh a million of them.
    pub fn serves_another_model(&mut self) {
        self.calibration = Calibration::default();
    }

    /// Takes in what replies told since. True: it is on another rung than at the last call.
    pub(super) fn look(&mut self, slot: u16, predictions: &Predictions, now: Instant) -> bool {
        let here = (Method::ALL.map(|method| predictions.compared(slot, method)), predictions.text(slot));
        let (compared, text) = self.seen.replace(here).unwrap_or(here);
        if here.1 != text {
            let bytes = here.1.bytes.wrapping_sub(text.bytes);
            self.calibration.told(bytes, here.1.tokens.wrapping_sub(text.tokens));
        }
        for (here, before) in here.0.iter().zip(compared) {
            let told = here.since(before);
            if told.requests > 0 {
                self.moved |= self.ladder.compared(told, now);
            }
        }
        self.moved |= self.ladder.tries_again(now);
        std::mem::take(&mut self.moved)
    }

    /// Takes what was compared by scrapes alone since the last call, by method: no slot counts it.
    pub(super) fn untold(&mut self) -> Option<[Compared; METHODS]> {
        let untold = std::mem::take(&mut self.untold);
        let method = if self.ladder.rung().is_exact() { Method::Precise } else { Method::Warm };
        let of = |other| if other == method { untold } else { Compared::default() };
        (untold.requests > 0).then(|| Method::ALL.map(of))
    }
}

/// How many times the tokens that this front sent, by its estimate, an engine may count. Beyond that others ask it,
/// too, that no scrape has seen.
const FOREIGN_FACTOR: u64 = 2;

/// How many percent more tokens than those of its prompts an engine may have looked up, such as those of prompts
/// without a first token yet. If an engine counts a prompt again each time that it waits for room, hits are mostly that
/// prompt's; within this bound a right prediction still reads as right ([`super::ladder::RIGHT_PERCENT`]).
const BEYOND_PERCENT: u64 = 25;

/// Compares what was sent to an engine whose replies do not tell with what it says of all prompts together.
///
/// Requests under way are in one of the two and not in the other, so the cached parts are compared, over as many
/// scrapes as fill a window.
#[derive(Debug, Default)]
struct Lookups {
    before: Option<(Asked, Counted)>,
}

/// Tokens as an engine counts them since its start.
#[derive(Clone, Copy, Debug)]
struct Counted {
    prompts: u64,
    queries: u64,
    hits: u64,
}

impl Counted {
    fn of(load: &EngineLoad) -> Option<Counted> {
        let prompts = load.prompt_tokens_total?;
        // A vLLM without prefix caching counts neither.
        let (queries, hits) = (load.prefix_queries_total.unwrap_or(0), load.prefix_hits_total?);
        Some(Counted { prompts, queries, hits })
    }
}

impl Lookups {
    fn read(&mut self, asked: Asked, load: &EngineLoad, alone: bool) -> Option<Compared> {
        let counted = Counted::of(load)?;
        let (asked_before, before) = self.before.replace((asked, counted))?;
        let hits = counted.hits.checked_sub(before.hits)?;
        let queries = counted.queries.checked_sub(before.queries)?;
        let prompts = counted.prompts.checked_sub(before.prompts)?;
        if !alone || asked.told != asked_before.told {
            return None;
        }
        let requests = asked.requests.wrapping_sub(asked_before.requests);
        let tokens = asked.tokens.wrapping_sub(asked_before.tokens);
        let held = asked.held.wrapping_sub(asked_before.held);
        let looked_up = if queries > 0 { queries } else { prompts };
        if looked_up > FOREIGN_FACTOR * tokens + WINDOW_TOKENS {
            return None;
        }
        let part = |of: u64| (u128::from(held) * u128::from(of) / u128::from(tokens.max(1))) as u64;
        let predicted = part(looked_up).min(looked_up);
        if predicted < WINDOW_TOKENS || requests < WINDOW_REQUESTS {
            // Not enough yet: goes on from where it began.
            self.before = Some((asked_before, before));
            return None;
        }
        if queries > prompts + prompts * BEYOND_PERCENT / 100 {
            return None;
        }
        Some(Compared::of(requests, predicted, hits.min(looked_up)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Prediction;
    use crate::fleet::Rung;

    /// Figures of an engine that was asked for so many tokens and found so many.
    fn load(queries: u64, hits: u64) -> EngineLoad {
        EngineLoad {
            prompt_tokens_total: Some(queries),
            prefix_queries_total: Some(queries),
            prefix_hits_total: Some(hits),
            ..EngineLoad::default()
        }
    }

    fn asked(tokens: u64, held: u64) -> Asked {
        Asked { requests: tokens / 1_000, tokens, held, told: 0 }
    }

    #[test]
    fn what_replies_do_not_tell_is_compared_with_what_engines_count() {
        let mut lookups = Lookups::default();
        assert_eq!(lookups.read(asked(5_000, 1_000), &load(700, 100), true), None, "where counting begins");
        assert_eq!(lookups.read(asked(25_000, 17_000), &load(20_700, 15_100), true), None, "16,000 are no window");
        let compared = lookups.read(asked(45_000, 31_000), &load(40_700, 28_100), true).unwrap();
        assert_eq!(compared, Compared::of(40, 30_000, 28_000));
        // Estimates are half as long as the engine's tokens, and some requests are still under way: parts are compared.
        let compared = lookups.read(asked(85_000, 61_000), &load(100_700, 28_100), true).unwrap();
        assert_eq!(compared, Compared::of(40, 45_000, 0));
    }

    /// As vLLM did at each step for the first that waited for room.
    #[test]
    fn what_is_looked_up_again_and_again_is_left_out() {
        let counted = |prompts, queries, hits| EngineLoad { prompt_tokens_total: Some(prompts), ..load(queries, hits) };
        let mut lookups = Lookups::default();
        lookups.read(Asked::default(), &counted(0, 0, 0), true);
        // A prompt of 10,000 tokens of which nothing is there, ten times.
        assert_eq!(lookups.read(asked(100_000, 90_000), &counted(100_000, 190_000, 90_000), true), None);
        // It is over, and the next window is one of its own.
        let compared = lookups.read(asked(200_000, 180_000), &counted(200_000, 290_000, 180_000), true);
        assert_eq!(compared, Some(Compared::of(100, 90_000, 90_000)));
        // Some have no first token yet.
        let compared = lookups.read(asked(300_000, 270_000), &counted(280_000, 390_000, 270_000), true);
        assert_eq!(compared, Some(Compared::of(100, 90_000, 90_000)));
        // Of a window that is not full yet all may be so.
        assert_eq!(lookups.read(asked(305_000, 274_500), &counted(280_000, 395_000, 274_500), true), None);
        let compared = lookups.read(asked(345_000, 310_500), &counted(320_000, 435_000, 310_000), true);
        assert_eq!(compared, Some(Compared::of(45, 40_500, 40_000)));
    }

    #[test]
    fn what_an_engine_counts_for_others_or_for_whom_replies_told_is_left_out() {
        let whole = |told| Asked { told, ..asked(100_000, 90_000) };
        let after = |next: Asked, engine: EngineLoad, alone: bool| {
            let mut lookups = Lookups::default();
            lookups.read(Asked::default(), &load(0, 0), true);
            lookups.read(next, &engine, alone)
        };
        assert!(after(whole(0), load(100_000, 0), true).is_some());
        assert_eq!(after(whole(0), load(100_000, 0), false), None, "others ask it");
        assert_eq!(after(whole(0), load(500_000, 0), true), None, "others must have");
        assert!(after(whole(0), load(220_000, 0), true).is_some(), "estimates may be half as long");
        assert_eq!(after(whole(0), load(220_001, 0), true), None);
        let long = |requests| Asked { requests, ..whole(0) };
        assert_eq!(after(long(WINDOW_REQUESTS - 1), load(100_000, 0), true), None, "a few long ones are chance");
        assert!(after(long(WINDOW_REQUESTS), load(100_000, 0), true).is_some());
        assert_eq!(after(whole(1), load(100_000, 0), true), None, "a reply told");
        assert_eq!(after(whole(0), EngineLoad::default(), true), None, "it counts nothing");
        // Prefix caching is off: vLLM counts prompts and looks nothing up.
        let off = EngineLoad { prefix_queries_total: Some(0), prompt_tokens_total: Some(100_000), ..load(0, 0) };
        assert_eq!(after(whole(0), off, true), Some(Compared::of(100, 90_000, 0)));
        // A restart begins anew.
        let mut lookups = Lookups::default();
        lookups.read(asked(0, 0), &load(900_000, 500_000), true);
        assert_eq!(lookups.read(asked(100_000, 90_000), &load(50_000, 10), true), None);
        assert!(lookups.read(asked(200_000, 180_000), &load(150_000, 80_010), true).is_some());
    }

    #[test]
    fn what_a_former_tenant_was_told_is_not_counted() {
        let predictions = Predictions::default();
        let prediction = Prediction {
            method: Method::Warm,
            tokens: 30_000,
            held: 30_000,
            text_bytes: 90_000,
            batch: false,
            omits_zero: false,
        };
        let tell = |times: u64| (0..times).for_each(|_| predictions.told(2, &prediction, 30_000, Some(0)));
        tell(100);
        let now = Instant::now();
        let mut truth = Truth::new(now);
        assert!(!truth.look(2, &predictions, now));
        assert_eq!(truth.calibration.token_bytes(), None);
        tell(8);
        assert!(!truth.look(2, &predictions, now));
        assert_eq!(truth.calibration.token_bytes(), Some(3.0));
        tell(8);
        truth.look(2, &predictions, now);
        tell(8);
        assert!(truth.look(2, &predictions, now) && truth.ladder.rung() == Rung::Hash);
        assert!(!truth.look(2, &predictions, now), "told once");
        truth.restarted(now);
        assert!(truth.look(2, &predictions, now) && truth.ladder.rung() == Rung::Approximate);
        truth.tells(Tells::All, now);
        assert!(truth.look(2, &predictions, now) && truth.ladder.rung() == Rung::Exact);
    }
}
