//! The accounts themselves: how each endpoint's requests ended, who is charged, who is in flight.

use warmfront::counters::{Barred, Outcome};

use super::{ENDPOINTS, Effect, Shadow};

/// So many faults in a row bar an endpoint.
const FAULTS_MAX: u32 = 3;

impl Shadow {
    pub(super) fn keep(&mut self, slot: usize) {
        self.kept[self.shard].push_back((self.now + self.charge, slot));
    }

    /// Compares what the counters show with what must have come of the last step.
    pub fn settle(&mut self) {
        self.settle_outcomes();
        self.check_in_flight();
    }

    pub(super) fn settle_outcomes(&mut self) {
        for slot in 0..ENDPOINTS {
            let found = self.counters.outcomes().read(slot as u16);
            let mut expected = self.outcomes[slot];
            let here = self.effects.iter().filter(|(at, _)| *at == slot);
            here.for_each(|(_, effect)| apply(&mut expected, *effect));
            let count = |slots: &[usize]| slots.iter().filter(|at| **at == slot).count();
            let (silent, doubtful) = (count(&self.silent), count(&self.doubtful));
            let certain = expected;
            if found.recoveries != expected.recoveries && self.begun.contains(&slot) {
                apply(&mut expected, Effect::Good);
            }
            let mut faults = 0;
            while faults < silent + doubtful && found != expected {
                apply(&mut expected, Effect::Fault);
                faults += 1;
            }
            assert_eq!(
                found, expected,
                "outcomes of slot {slot}, {certain:?} or {silent} or {doubtful} faults more; before {:?}, of {:?} while {:?}",
                self.outcomes[slot], self.effects, self.part
            );
            self.outcomes[slot] = found;
            // Who was blamed stays charged, and who was silent; of the others it shows.
            let charged = faults.saturating_sub(silent);
            for number in 0..doubtful {
                if number < charged || self.in_flight(slot) < self.counters.in_flight(slot as u16) {
                    self.keep(slot);
                }
            }
        }
        self.effects.clear();
        self.doubtful.clear();
        self.silent.clear();
        self.begun.clear();
    }

    /// As it must be.
    fn in_flight(&self, slot: usize) -> u32 {
        self.legs[slot] + self.kept.iter().flatten().filter(|(_, at)| *at == slot).count() as u32
    }

    pub(super) fn check_in_flight(&self) {
        for slot in 0..ENDPOINTS {
            let (found, expected) = (self.counters.in_flight(slot as u16), self.in_flight(slot));
            assert_eq!(found, expected, "in flight at {slot}: {} legs, the others charged", self.legs[slot]);
            assert_eq!(self.counters.loads().running(slot as u16), self.legs[slot], "run at {slot}");
        }
    }

    /// Control changes an account.
    pub fn control(&mut self, slot: usize, changes: impl FnOnce(&mut Outcome)) {
        changes(&mut self.outcomes[slot]);
    }

    /// With a shard's end its charges go.
    pub fn shard_ends(&mut self, shard: usize) {
        self.kept[shard].clear();
    }

    /// How many requests were offered to an engine.
    pub fn offered(&self) -> usize {
        self.offered.len()
    }

    pub fn outcome(&self, slot: usize) -> Outcome {
        self.outcomes[slot]
    }
}

fn apply(outcome: &mut Outcome, effect: Effect) {
    match effect {
        Effect::Fault => {
            outcome.faults = outcome.faults.wrapping_add(1);
            outcome.in_a_row += 1;
            let barred = (outcome.in_a_row >= FAULTS_MAX).then_some(Barred::ForFaults);
            outcome.barred = outcome.barred.or(barred);
        }
        Effect::Good if outcome.in_a_row > 0 => {
            outcome.in_a_row = 0;
            outcome.recoveries = outcome.recoveries.wrapping_add(1);
        }
        Effect::Good => {}
        Effect::Bar => outcome.barred = outcome.barred.or(Some(Barred::ByItsWord)),
    }
}
