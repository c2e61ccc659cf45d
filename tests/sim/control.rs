//! Control, drawn: it reads what requests learnt, bars, unbars and tries again, and publishes fleets, late ones too.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use warmfront::counters::Counters;
use warmfront::fleet::{Endpoint, Health};
use warmfront::policy::Settings;
use warmfront::publish::Published;

use crate::draw;
use crate::network::Network;
use crate::random::Random;
use crate::shadow::{ENDPOINTS, Shadow};

/// A slot rests so long behind its tenant.
const QUARANTINE: u64 = 2_000_000;
const HISTORY: usize = 4;

pub struct Control {
    pub published: &'static Published,
    pub counters: &'static Counters,
    pub settings: Arc<Settings>,
    pub endpoints: Vec<Option<Endpoint>>,
    random: Random,
    /// Tenants that a slot had.
    generations: Vec<u32>,
    /// When a fleet with its last tenant was published last.
    left_at: Vec<u64>,
    before: VecDeque<Vec<Option<Endpoint>>>,
    /// Slots to which no connect succeeds; none: all may fail, and tenants come and go.
    gentle: Option<Vec<bool>>,
    /// How often it acts: once in so many looks.
    pub every: usize,
    /// Publications.
    pub fleets: usize,
}

impl Control {
    pub fn new(
        published: &'static Published,
        counters: &'static Counters,
        settings: Arc<Settings>,
        endpoints: Vec<Option<Endpoint>>,
        gentle: Option<Vec<bool>>,
        every: usize,
        seed: u64,
    ) -> Control {
        let count = endpoints.len();
        Control {
            published,
            counters,
            settings,
            endpoints,
            random: Random::new(seed),
            generations: vec![0; count],
            left_at: vec![0; count],
            before: VecDeque::new(),
            gentle,
            every,
            fleets: 0,
        }
    }

    pub fn publish(&mut self, shadow: &mut Shadow) {
        let endpoints = self.endpoints.clone();
        self.before.push_back(endpoints.clone());
        if self.before.len() > HISTORY {
            self.before.pop_front();
        }
        self.show(endpoints, shadow);
    }

    fn show(&mut self, endpoints: Vec<Option<Endpoint>>, shadow: &mut Shadow) {
        self.fleets += 1;
        self.published.publish(draw::snapshot(&endpoints, &self.settings));
        shadow.published = Rc::new(endpoints);
    }

    /// One thing that control does.
    fn act(&mut self, now: u64, shadow: &mut Shadow) {
        let slot = self.random.below(self.endpoints.len());
        let gentle = self.gentle.as_ref().map(|dead| dead[slot]);
        match (self.random.below(8), gentle) {
            (0..2, None) | (0, Some(true)) => {
                let health =
                    self.random.pick(&[Health::Up, Health::Up, Health::Unknown, Health::Down, Health::Draining]);
                let dead = if health == Health::Draining { Health::Down } else { health };
                self.change(slot, |endpoint| endpoint.health = if gentle.is_some() { dead } else { health });
            }
            (2, _) => {
                let (weight, foreign) = (1 + self.random.below(4) as u32, self.random.below(5) as u32);
                self.change(slot, |endpoint| (endpoint.weight, endpoint.foreign) = (weight, foreign));
            }
            (3, None) => self.move_tenant(slot, now, shadow),
            (4, None) => {
                self.counters.outcomes().bar(slot as u16);
                shadow.control(slot, |outcome| outcome.barred = true);
            }
            (5, None) => return self.publish_late(now, shadow),
            (6.., _) => self.look(slot, shadow),
            _ => return,
        }
        self.publish(shadow);
    }

    fn change(&mut self, slot: usize, change: impl FnOnce(&mut Endpoint)) {
        if let Some(endpoint) = &mut self.endpoints[slot] {
            change(endpoint);
        }
    }

    /// Who was barred is taken out, or tried again.
    fn look(&mut self, slot: usize, shadow: &mut Shadow) {
        let outcomes = self.counters.outcomes();
        let found = outcomes.read(slot as u16);
        assert_eq!(found, shadow.outcome(slot), "control sees what the shards did");
        if !found.barred {
            return;
        }
        if self.random.chance(50) && self.gentle.is_none() {
            return self.change(slot, |endpoint| endpoint.health = Health::Down);
        }
        outcomes.on_trial(slot as u16);
        shadow.control(slot, |outcome| (outcome.in_a_row, outcome.barred) = (2, false));
        self.change(slot, |endpoint| endpoint.health = Health::Up);
    }

    /// A tenant goes at any time; the next comes once nothing of its is in flight and no shard can see it any more.
    fn move_tenant(&mut self, slot: usize, now: u64, shadow: &mut Shadow) {
        if self.endpoints[slot].take().is_some() {
            self.left_at[slot] = now;
        } else if now > self.left_at[slot] + QUARANTINE && self.counters.in_flight(slot as u16) == 0 {
            self.generations[slot] += 1;
            self.counters.outcomes().forget(slot as u16);
            shadow.control(slot, |outcome| (outcome.in_a_row, outcome.barred) = (0, false));
            self.endpoints[slot] = Some(draw::endpoint(slot, self.generations[slot]));
        }
    }

    /// What was true a while ago, of the tenants that are not replaced since.
    fn publish_late(&mut self, now: u64, shadow: &mut Shadow) {
        let Some(mut late) = self.before.front().cloned() else { return };
        for (slot, endpoint) in late.iter_mut().enumerate() {
            *endpoint = endpoint.take().filter(|endpoint| endpoint.id.generation == self.generations[slot]);
            self.left_at[slot] = now;
        }
        self.show(late, shadow);
    }

    pub fn forget_all(counters: &Counters) {
        (0..ENDPOINTS).for_each(|slot| counters.outcomes().forget(slot as u16));
    }
}

impl Network {
    /// Control is a thread of its own: it may act between any two things that a shard does.
    pub fn control_acts(&mut self, seldom: usize) {
        let (Some(control), Some(shadow)) = (&mut self.control, &mut self.shadow) else { return };
        if control.every < usize::MAX && control.random.below(control.every.saturating_mul(seldom)) == 0 {
            control.act(self.now, shadow);
        }
    }
}
