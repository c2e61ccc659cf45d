//! `warm` with a queue in front of the engines: requests whose endpoint has no room wait in the queue of the data plane
//! ([`crate::counters::queue`]), if its rule says that waiting pays.
//!
//! A waiting request is chosen for anew when a request ended anywhere, the engines were scraped, or [`RETRY_NS`]
//! passed, unless one before it that needs no more looked in vain ([`Look`]); the first of all looks first. A request
//! that waits longer than [`PATIENCE_NS`], finds the queue full or is pushed out, is refused; its client asks again
//! when it was told to. There is one front, however many other policies have.

use std::collections::HashMap;

use super::chooser::{Asked, Chooser, Placed, Stage, Turn};
use super::fleet::Fleet;
use super::own::Own;
use crate::counters::queue::{Look, Newcomer, Place, Tenant};
use crate::engine::core::Figures;
use crate::policy::{Choice, Policy, Queueing, Settings};

/// Most requests that wait.
const WAITING_MAX: u32 = 1_024;
/// Longest wait.
const PATIENCE_NS: u64 = 30_000_000_000;
/// Time after which the next request is chosen for again, even if nothing ended.
const RETRY_NS: u64 = 20_000_000;

/// See the top of this file.
pub struct Queued {
    own: Own,
    waiting: HashMap<u64, Place>,
    /// Requests to refuse.
    refused: Vec<u64>,
    /// Engines whose waiting requests need not be chosen for until something changes.
    look: Look,
    /// When a request that waits for this engine was last chosen for, by engine.
    looked_ns: Vec<u64>,
    /// When waiting requests were last looked through for those that have waited too long.
    swept_ns: u64,
}

impl Queued {
    /// Makes an empty queue.
    pub fn new(stage: &Stage<'_>, queue: Queueing) -> Queued {
        Queued {
            own: Own::new(stage, Settings { policy: Policy::Warm, queue, ..Settings::default() }),
            waiting: HashMap::new(),
            refused: Vec::new(),
            look: Look::default(),
            looked_ns: vec![0; stage.engines()],
            swept_ns: 0,
        }
    }

    fn joins(&mut self, asked: &Asked, choice: &Choice) {
        match self.own.queue().join(&newcomer(asked, choice), WAITING_MAX, asked.now_ns / 1_000) {
            Some(place) => {
                if !choice.room {
                    place.aims_at(choice.endpoint.slot, place.needs(), self.own.queue().seen());
                }
                self.waiting.insert(asked.number, place);
                self.look.opens(choice.endpoint.slot);
            }
            None => self.refused.push(asked.number),
        }
    }

    /// Finds the requests that were pushed out or have waited too long.
    fn sweep(&mut self, now_ns: u64) {
        if now_ns < self.swept_ns + RETRY_NS {
            return;
        }
        self.swept_ns = now_ns;
        let over = |place: &Place| !place.stands() || place.waited(now_ns / 1_000) >= PATIENCE_NS / 1_000;
        let mut refused: Vec<u64> = self.waiting.extract_if(|_, place| over(place)).map(|(number, _)| number).collect();
        // A map has no order of its own: the figures must not depend on it.
        refused.sort_unstable_by(|one, other| other.cmp(one));
        self.refused.extend(refused);
    }

    /// Returns the first request that waits for an engine which may have room, and that engine.
    fn next(&self) -> Option<(u64, usize)> {
        let looks = self.waiting.iter().filter(|(_, place)| place.stands() && self.look.lets(place));
        let first = looks.min_by_key(|(_, place)| place.order());
        first.map(|(number, place)| (*number, usize::from(place.endpoint())))
    }
}

fn tenant(asked: &Asked) -> Tenant {
    Tenant { lane: asked.tenant as u8, weight: 1 }
}

fn newcomer(asked: &Asked, choice: &Choice) -> Newcomer {
    let held = choice.tokens.map_or(0, |tokens| tokens.held) as f32;
    Newcomer {
        priority: 0,
        tenant: tenant(asked),
        held: held / asked.request.prompt as f32,
        new: choice.tokens.map_or(0, |tokens| tokens.new),
        needs: choice.needs,
        endpoint: choice.endpoint.slot,
        shard: 0,
    }
}

impl Chooser for Queued {
    fn choose(&mut self, asked: &Asked, _fleet: &Fleet) -> Option<Placed> {
        let Some(choice) = self.own.decide(asked) else {
            self.waiting.get(&asked.number).inspect(|place| self.look.closes(place.endpoint()));
            return None;
        };
        let pays = self.own.holds(&choice);
        let holds = pays && !choice.room;
        match self.waiting.get(&asked.number).map(Place::endpoint) {
            // Although there is room, others may come before it: it is chosen for again at its turn.
            None if holds || pays && !self.own.queue().lets_pass(&newcomer(asked, &choice)) => {
                self.joins(asked, &choice);
                None
            }
            None => {
                self.own.queue().passed(&newcomer(asked, &choice));
                self.own.place(asked, &choice)
            }
            Some(aimed) if holds => {
                let seen = self.own.queue().seen();
                let place = self.waiting.get(&asked.number)?;
                let (engine, needs) = (choice.endpoint.slot, choice.needs);
                if engine != aimed {
                    self.look.in_vain(aimed, place.needs(), place);
                }
                self.look.in_vain(engine, needs, place);
                place.aims_at(engine, needs, seen);
                None
            }
            Some(_) => {
                let tokens = choice.tokens.map_or(0, |tokens| tokens.new);
                self.waiting.remove(&asked.number)?.released(tokens, asked.now_ns / 1_000);
                self.own.place(asked, &choice)
            }
        }
    }

    fn turn(&mut self, now_ns: u64, _first: u64) -> Option<Turn> {
        self.sweep(now_ns);
        if let Some(number) = self.refused.pop() {
            return Some(Turn::Refuse(number, self.own.queue().wait_seconds(0, now_ns / 1_000)));
        }
        for (engine, looked_ns) in self.looked_ns.iter().enumerate() {
            if now_ns >= looked_ns + RETRY_NS {
                self.look.opens(engine as u16);
            }
        }
        let (number, engine) = self.next()?;
        self.looked_ns[engine] = now_ns;
        Some(Turn::Ask(number))
    }

    fn retry_every_ns(&self) -> Option<u64> {
        Some(RETRY_NS)
    }

    fn first_token(&mut self, number: u64) {
        self.own.first_token(number);
    }

    fn ended(&mut self, number: u64, engine: usize, tokens: u32) {
        self.own.ended(number, engine, tokens);
        // The first request of all may go there.
        self.look.begins();
        self.own.queue().freed(engine as u16);
    }

    fn scrape_every_ns(&self) -> Option<u64> {
        self.own.scrape_every_ns()
    }

    fn scraped(&mut self, now_ns: u64, figures: &[Figures]) {
        self.own.scraped(now_ns, figures);
        self.look.begins();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::events::Delivery;
    use crate::replay::peers::trial::prompt;

    const MS: u64 = 1_000_000;

    /// One engine whose cache holds 10,000 tokens, and of which the last scrape left 2,000 free.
    struct Trial {
        queued: Queued,
        fleet: Fleet,
    }

    impl Trial {
        fn new(queue: Queueing) -> Trial {
            let events = Delivery::default();
            let stage = Stage { weights: &[1], blocks: 625, block_tokens: 16, fronts: 1, events, seed: 1 };
            let fleet = Fleet::new(&crate::engine::profile::Profile::default(), &[1], false);
            let mut trial = Trial { queued: Queued::new(&stage, queue), fleet };
            assert_eq!(trial.ask(0, 0, &[(100, 8_000 - 64)], 0), Some(0), "nothing is known of its cache yet");
            trial.queued.scraped(0, &[Figures { running: 1, kv_usage: 0.8, ..Figures::default() }]);
            trial
        }

        fn ask(&mut self, number: u64, now_ns: u64, pieces: &[(u64, u32)], tenant: u16) -> Option<usize> {
            let request = prompt(pieces);
            let asked = Asked { number, now_ns, request: &request, block_tokens: 16, tenant };
            self.queued.choose(&asked, &self.fleet).map(|placed| placed.engine)
        }
    }

    #[test]
    fn one_without_room_goes_when_another_ends() {
        let mut trial = Trial::new(Queueing::On);
        assert_eq!(trial.ask(1, 0, &[(1, 1_500)], 0), None);
        assert_eq!(trial.queued.turn(0, 1), Some(Turn::Ask(1)), "others may have come before it");
        assert_eq!(trial.ask(1, 0, &[(1, 1_500)], 0), None);
        assert_eq!((trial.queued.turn(0, 1), trial.queued.turn(19 * MS, 1)), (None, None));
        assert_eq!(trial.queued.turn(20 * MS, 1), Some(Turn::Ask(1)));
        assert_eq!(trial.ask(1, 20 * MS, &[(1, 1_500)], 0), None);
        assert_eq!(trial.queued.turn(21 * MS, 1), None);
        trial.queued.ended(0, 0, 1);
        assert_eq!(trial.queued.turn(21 * MS, 1), Some(Turn::Ask(1)));
        assert_eq!(trial.ask(1, 21 * MS, &[(1, 1_500)], 0), Some(0));
        assert_eq!((trial.queued.turn(60 * MS, 1), trial.queued.own.queue().waiting()), (None, 0));
    }

    #[test]
    fn who_waits_too_long_is_refused() {
        let mut trial = Trial::new(Queueing::On);
        assert_eq!(trial.ask(1, 0, &[(1, 1_500)], 0), None);
        trial.queued.turn(0, 1);
        let patience = PATIENCE_NS;
        assert_eq!(trial.queued.turn(patience - 1, 1), Some(Turn::Ask(1)));
        assert_eq!(trial.ask(1, patience - 1, &[(1, 1_500)], 0), None);
        assert!(matches!(trial.queued.turn(patience + RETRY_NS, 1), Some(Turn::Refuse(1, _))));
        assert_eq!((trial.queued.turn(patience + RETRY_NS, 1), trial.queued.own.queue().waiting()), (None, 0));
    }

    #[test]
    fn who_fits_passes_but_not_one_whose_tenant_was_served_less() {
        let mut trial = Trial::new(Queueing::On);
        assert_eq!(trial.ask(1, 0, &[(1, 1_500)], 1), None);
        assert_eq!(trial.ask(2, 0, &[(2, 32)], 1), Some(0), "the same tenant's");
        assert_eq!(trial.ask(3, 0, &[(3, 32)], 2), Some(0), "it begins where the first is");
        trial.queued.turn(0, 1);
        assert_eq!(trial.ask(4, 0, &[(4, 32)], 2), None, "its tenant has had more by now");
        assert_eq!(trial.ask(5, 0, &[(5, 320)], 1), Some(0), "and the first's less");
    }

    #[test]
    fn nobody_waits_where_that_does_not_pay() {
        assert_eq!(Trial::new(Queueing::Off).ask(1, 0, &[(1, 1_500)], 0), Some(0));
        let mut trial = Trial::new(Queueing::Auto);
        assert_eq!(trial.ask(1, 0, &[(1, 1_500)], 0), None);
        (1_000..3_000).for_each(|number| trial.queued.own.ended(number, 0, 8_000));
        let beginning = trial.ask(2, 0, &[(100, 7_936), (2, 320)], 0);
        assert_eq!(beginning, Some(0), "nearly all of it is there, and answers are long");
    }
}
