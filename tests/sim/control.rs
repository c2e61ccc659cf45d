//! Control, drawn: it reads what requests learnt, bars, unbars and tries again, and publishes fleets, late ones too.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmfront::config;
use warmfront::control::health::{Course, Failure, How, Turn};
use warmfront::counters::{Barred, Counters};
use warmfront::fleet::{Endpoint, EndpointId, Health};
use warmfront::index::Index;
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
    /// The same for all fleets, as the product's is.
    pub index: Option<Arc<Index>>,
    /// Engines ask for keys.
    pub asks_keys: bool,
    random: Random,
    /// Tenants that a slot had.
    generations: Vec<u32>,
    /// When a fleet with its last tenant was published last.
    left_at: Vec<u64>,
    before: VecDeque<Vec<Option<Endpoint>>>,
    /// Slots to which no connect succeeds; none: all may fail, and tenants come and go.
    gentle: Option<Vec<bool>>,
    /// What the product's control makes of each endpoint.
    courses: Vec<Course>,
    draining: Vec<bool>,
    rules: config::Health,
    began: Instant,
    /// How often it acts: once in so many looks.
    pub every: usize,
    /// Publications.
    pub fleets: usize,
    /// Slots that were given to another.
    pub slots_given: u64,
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
        let (rules, began) = (config::Health::default(), Instant::now());
        let mut random = Random::new(seed);
        let index = settings.counts_tokens().then(|| draw::index(ENDPOINTS, random.pick(&[64, 1 << 10])));
        for endpoint in endpoints.iter().flatten() {
            index.iter().for_each(|index| assert!(index.assign(endpoint.id, None).is_ok()));
        }
        Control {
            published,
            counters,
            settings,
            endpoints,
            index,
            asks_keys: false,
            random,
            generations: vec![0; count],
            left_at: vec![0; count],
            before: VecDeque::new(),
            gentle,
            courses: vec![Course::new(true, &rules, began); count],
            draining: vec![false; count],
            rules,
            began,
            every,
            fleets: 0,
            slots_given: 0,
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
        let mut snapshot = draw::snapshot_over(&endpoints, &self.settings, self.index.clone());
        Arc::make_mut(&mut snapshot.models_answer).asks_keys = self.asks_keys;
        snapshot.pools.iter_mut().for_each(|pool| pool.asks_keys = self.asks_keys);
        self.published.publish(snapshot);
        shadow.published = Rc::new(endpoints);
    }

    /// One thing that control does.
    fn act(&mut self, now: u64, shadow: &mut Shadow) {
        let slot = self.random.below(self.endpoints.len());
        match &self.gentle {
            Some(dead) => {
                let dead = dead[slot];
                self.act_gently(slot, dead, shadow);
            }
            None => self.act_roughly(slot, now, shadow),
        }
    }

    /// So that every request can still be answered.
    fn act_gently(&mut self, slot: usize, dead: bool, shadow: &mut Shadow) {
        let (weight, foreign) = (1 + self.random.below(4) as u32, self.random.below(5) as u32);
        let health = self.random.pick(&[Health::Up, Health::Unknown, Health::Down]);
        let outcomes = self.counters.outcomes();
        match self.random.below(4) {
            0 if dead => self.change(slot, |endpoint| endpoint.health = health),
            1 => self.change(slot, |endpoint| (endpoint.weight, endpoint.foreign) = (weight, foreign)),
            _ if outcomes.is_barred(slot as u16) => {
                outcomes.on_trial(slot as u16);
                shadow.control(slot, |outcome| (outcome.in_a_row, outcome.barred) = (2, None));
            }
            _ => return,
        }
        self.publish(shadow);
    }

    fn act_roughly(&mut self, slot: usize, now: u64, shadow: &mut Shadow) {
        let at = self.began + Duration::from_micros(now);
        match self.random.below(20) {
            0..4 => {
                let how = if self.random.chance(60) { How::Refused } else { How::Otherwise };
                let failure = Failure { why: "drawn".into(), how };
                let outcome = if self.random.chance(65) { Ok(()) } else { Err(failure) };
                self.courses[slot].probed(outcome, true, &self.rules, at);
            }
            4..10 => self.look(slot, at, shadow),
            10 => self.courses[slot].step(&self.rules, at),
            11 => {
                let (weight, foreign) = (1 + self.random.below(4) as u32, self.random.below(5) as u32);
                let cap = self.random.pick(&[Endpoint::NO_CAP, Endpoint::NO_CAP, 1, 3]);
                self.change(slot, |endpoint| {
                    (endpoint.weight, endpoint.foreign, endpoint.cap) = (weight, foreign, cap);
                });
            }
            12 | 17 => self.move_tenant(slot, now, shadow),
            13 => {
                self.counters.outcomes().bar(slot as u16);
                shadow.control(slot, |outcome| outcome.barred = outcome.barred.or(Some(Barred::ByItsWord)));
            }
            14 | 18 => return self.publish_late(now, shadow),
            15 => self.resize(slot),
            16 => self.restart(slot, shadow),
            _ => self.draining[slot] = self.random.chance(30),
        }
        self.show_course(slot);
        self.publish(shadow);
    }

    fn show_course(&mut self, slot: usize) {
        let (course, draining) = (&self.courses[slot], self.draining[slot]);
        if let Some(endpoint) = &mut self.endpoints[slot] {
            endpoint.health = if draining { Health::Draining } else { course.health() };
            endpoint.share_percent = course.share_percent();
            endpoint.refuses_probes = course.refuses_probes();
        }
    }

    fn change(&mut self, slot: usize, change: impl FnOnce(&mut Endpoint)) {
        if let Some(endpoint) = &mut self.endpoints[slot] {
            change(endpoint);
        }
    }

    /// As the product's control does it, but for whether one more may be ejected.
    fn look(&mut self, slot: usize, at: Instant, shadow: &mut Shadow) {
        let outcomes = self.counters.outcomes();
        let found = outcomes.read(slot as u16);
        assert_eq!(found, shadow.outcome(slot), "control sees what the shards did");
        let may_eject = self.random.chance(70);
        match self.courses[slot].looked(found, outcomes.given(slot as u16), may_eject, &self.rules, at) {
            Some(Turn::Trial) => {
                self.counters.on_trial(slot as u16);
                shadow.on_trial[slot] = true;
                shadow.control(slot, |outcome| (outcome.in_a_row, outcome.barred) = (2, None));
            }
            Some(Turn::Spared | Turn::SparedAgain) => {
                outcomes.spare(slot as u16);
                shadow.control(slot, |outcome| (outcome.in_a_row, outcome.barred) = (0, None));
            }
            Some(Turn::Recovered | Turn::Ejected(..)) => {
                self.counters.trial_over(slot as u16);
                shadow.on_trial[slot] = false;
            }
            _ => {}
        }
    }

    /// Whatever came, an endpoint whose probes are good takes requests again.
    pub fn check_ways_out(&mut self, now: u64, shadow: &mut Shadow) {
        if self.gentle.is_some() {
            return;
        }
        for slot in 0..self.endpoints.len() {
            let mut at = self.began + Duration::from_micros(now);
            for _ in 0..20 {
                at += Duration::from_secs(10);
                self.courses[slot].probed(Ok(()), true, &self.rules, at);
                self.look(slot, at, shadow);
            }
            let health = self.courses[slot].health();
            assert!(health.takes_requests(), "slot {slot} stays {health:?}");
        }
    }

    /// A tenant goes at any time; the next comes once nothing of its is in flight and no shard can see it any more.
    fn move_tenant(&mut self, slot: usize, now: u64, shadow: &mut Shadow) {
        if self.endpoints[slot].take().is_some() {
            self.left_at[slot] = now;
            self.index.iter().for_each(|index| assert_eq!(index.forget(slot as u16), Ok(())));
        } else if now > self.left_at[slot] + QUARANTINE && self.counters.in_flight(slot as u16) == 0 {
            self.generations[slot] += 1;
            self.counters.outcomes().forget(slot as u16);
            self.counters.trial_over(slot as u16);
            shadow.on_trial[slot] = false;
            shadow.control(slot, |outcome| (outcome.in_a_row, outcome.barred) = (0, None));
            self.endpoints[slot] = Some(draw::endpoint(slot, self.generations[slot]));
            self.courses[slot] = Course::new(false, &self.rules, self.began + Duration::from_micros(now));
            self.draining[slot] = false;
            self.slots_given += 1;
            self.empty(EndpointId { slot: slot as u16, generation: self.generations[slot] }, shadow);
        }
    }

    /// Its engine has started anew, and no request of the one before is under way.
    fn restart(&mut self, slot: usize, shadow: &mut Shadow) {
        if let Some(id) = self.endpoints[slot].as_ref().map(|endpoint| endpoint.id)
            && self.counters.in_flight(slot as u16) == 0
        {
            self.empty(id, shadow);
        }
    }

    /// Gives a slot, empty.
    fn empty(&mut self, id: EndpointId, shadow: &mut Shadow) {
        let Some(index) = &self.index else { return };
        assert!(index.assign(id, None).is_ok());
        assert_eq!(index.figures(id.slot).blocks, 0, "{id:?} begins with what was another's");
        shadow.emptied(id);
    }

    /// There is room for more of what it holds, or for less.
    fn resize(&mut self, slot: usize) {
        let blocks = self.random.pick(&[0, 7, 16, 100, 300]);
        if let (Some(index), Some(endpoint)) = (&self.index, &self.endpoints[slot]) {
            let got = index.resize(endpoint.id, blocks).expect("nobody else writes");
            assert!(got <= blocks && index.figures(slot as u16).blocks <= got);
        }
    }

    /// The index agrees with itself, and slots that are nobody's hold nothing.
    pub fn check_index(&self) {
        let Some(index) = &self.index else { return };
        index.audit().unwrap_or_else(|fault| panic!("the index: {fault}"));
        for slot in (0..self.endpoints.len()).filter(|slot| self.endpoints[*slot].is_none()) {
            assert_eq!(index.figures(slot as u16).blocks, 0, "slot {slot} is nobody's");
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
        for slot in 0..ENDPOINTS as u16 {
            counters.outcomes().forget(slot);
            // Before any connection of the next schedule.
            counters.outcomes().kept_died(slot, 0);
            counters.trial_over(slot);
        }
    }
}

impl Network {
    /// Control is a thread of its own: it may act between any two things that a shard does.
    pub fn control_acts(&mut self, seldom: usize) {
        self.may_drain();
        let (Some(control), Some(shadow)) = (&mut self.control, &mut self.shadow) else { return };
        if control.every < usize::MAX && control.random.below(control.every.saturating_mul(seldom)) == 0 {
            control.act(self.now, shadow);
        }
    }

    /// Once: it rings for all shards, and nobody sleeps who is rung for all the time.
    fn may_drain(&mut self) {
        let Network { drains, now, random, .. } = self;
        let Some((_, process)) = drains.take_if(|(at, _)| *at < *now && random.chance(30)) else { return };
        process.drain();
        if let Some(shadow) = &mut self.shadow {
            shadow.draining = true;
        }
    }
}
