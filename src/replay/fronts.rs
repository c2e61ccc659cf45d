//! Several fronts before one fleet, sharing nothing: requests are dealt among them at random, each has an index,
//! counters and a mean prompt of its own, and knows of the others what the engines' metrics tell.

use std::collections::HashMap;

use super::chooser::{Asked, Chooser, Placed, Stage, draws};
use super::events::Batch;
use super::fleet::Fleet;
use super::own::Own;
use super::traffic::chain::mix;
use crate::engine::core::Figures;
use crate::policy::Settings;

/// One front or more, with the same settings.
pub struct Fronts {
    fronts: Vec<Own>,
    seed: u64,
    /// Front of each request in flight, by the request's number.
    dealt: HashMap<u64, usize>,
}

impl Fronts {
    /// Makes as many fronts as the stage has.
    pub fn new(stage: &Stage<'_>, settings: &Settings) -> Fronts {
        let stage_of = |front: usize| Stage { seed: stage.seed.wrapping_add(front as u64), ..*stage };
        let fronts = (0..stage.fronts.max(1)).map(|front| Own::new(&stage_of(front), settings.clone())).collect();
        Fronts { fronts, seed: mix(stage.seed, draws::FRONT), dealt: HashMap::new() }
    }
}

impl Chooser for Fronts {
    fn choose(&mut self, asked: &Asked, fleet: &Fleet) -> Option<Placed> {
        let front = (mix(self.seed, asked.number) % self.fronts.len() as u64) as usize;
        self.dealt.insert(asked.number, front);
        self.fronts.get_mut(front)?.choose(asked, fleet)
    }

    fn first_token(&mut self, number: u64) {
        if let Some(front) = self.dealt.get(&number).and_then(|front| self.fronts.get_mut(*front)) {
            front.first_token(number);
        }
    }

    fn ended(&mut self, number: u64, engine: usize, tokens: u32) {
        if let Some(front) = self.dealt.remove(&number).and_then(|front| self.fronts.get_mut(front)) {
            front.ended(number, engine, tokens);
        }
    }

    fn scrape_every_ns(&self) -> Option<u64> {
        self.fronts.first().and_then(Chooser::scrape_every_ns)
    }

    fn scraped(&mut self, now_ns: u64, figures: &[Figures]) {
        self.fronts.iter_mut().for_each(|front| front.scraped(now_ns, figures));
    }

    fn hears_events(&self) -> bool {
        self.fronts.iter().any(Chooser::hears_events)
    }

    fn published(&mut self, now_ns: u64, engine: usize, batch: &Batch) {
        self.fronts.iter_mut().for_each(|front| front.published(now_ns, engine, batch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::replay::events::Delivery;
    use crate::replay::peers::trial::Trial;

    fn trial(policy: Policy, fronts: usize) -> Trial<Fronts> {
        let events = Delivery::default();
        let stage = Stage { weights: &[1; 4], blocks: 5_500, block_tokens: 16, fronts, events, seed: 1 };
        Trial::new(Fronts::new(&stage, &Settings { policy, ..Settings::default() }), 4)
    }

    #[test]
    fn a_front_knows_of_another_what_metrics_tell() {
        let mut two = trial(Policy::LeastLoad, 2);
        let busy = |engine| Figures { running: if engine == 0 { 0 } else { 3 }, waiting: 2, ..Figures::default() };
        two.chooser.scraped(0, &(0..4).map(busy).collect::<Vec<_>>());
        assert_eq!(two.ask(&[(1, 100)]).1, 0, "the others have more, of whomever");
        assert_eq!(two.chooser.scrape_every_ns(), Some(1_000_000_000));
        assert_eq!(trial(Policy::LeastLoad, 1).chooser.scrape_every_ns(), None, "there are no others");
    }

    #[test]
    fn what_one_front_sent_another_does_not_find() {
        let held = |fronts| {
            let mut trial = trial(Policy::Warm, fronts);
            let first = trial.ask(&[(1, 4_000)]);
            trial.chooser.first_token(first.0);
            trial.chooser.ended(first.0, first.1, 1);
            // An engine that holds nothing does not take a full cache; without this all prompts would meet there by the
            // ring.
            let full = |engine| Figures { kv_usage: if engine == first.1 { 1.0 } else { 0.0 }, ..Figures::default() };
            trial.chooser.scraped(0, &(0..4).map(full).collect::<Vec<_>>());
            (0..20).filter(|more| trial.ask(&[(1, 4_000), (2 + more, 16)]).1 == first.1).count()
        };
        assert_eq!(held(1), 20);
        assert!(held(3) < 20);
    }

    #[test]
    fn answers_take_the_room_of_what_was_asked_before() {
        let predicted = |answer: u32| {
            let events = Delivery::default();
            let stage = Stage { weights: &[1], blocks: 5_500, block_tokens: 16, fronts: 1, events, seed: 1 };
            let settings = Settings { policy: Policy::Warm, ..Settings::default() };
            let mut trial = Trial::new(Fronts::new(&stage, &settings), 1);
            for _ in 0..1_000 {
                let (number, engine) = trial.ask(&[(9, 16)]);
                trial.chooser.ended(number, engine, answer);
            }
            // Of 88,000 tokens these are 80,000.
            for prompt in 1..6 {
                trial.ask(&[(prompt, 16_000)]);
            }
            trial.place(&[(1, 16_000)]).1.predicted.unwrap()
        };
        assert_eq!(predicted(1), 16_000);
        assert!((4_000..12_000).contains(&predicted(4_000)), "{}", predicted(4_000));
    }

    #[test]
    fn requests_are_dealt_evenly_and_end_where_they_went() {
        let mut three = trial(Policy::Random, 3);
        let asked: Vec<(u64, usize)> = (0..300).map(|_| three.ask(&[(1, 16)])).collect();
        let share = |front| three.chooser.dealt.values().filter(|dealt| **dealt == front).count();
        assert!((0..3).all(|front| (70..130).contains(&share(front))));
        asked.iter().for_each(|(number, engine)| three.chooser.ended(*number, *engine, 1));
        assert!(three.chooser.dealt.is_empty());
        assert!(three.chooser.fronts.iter().all(|front| front.in_flight() == 0));
    }
}
