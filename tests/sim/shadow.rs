//! What the shared counters must show: told by what the kernel hands to the front and what the front asks of it, one
//! completion at a time.
//!
//! A *leg* is what the front counts in flight: from a connect, or the first byte on a kept connection, to the reply's last
//! byte or the connection's end. Where the front alone knows why it closed (a deadline, or its client), either is taken.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use warmfront::counters::{Counters, Outcome};
use warmfront::fleet::{Endpoint, Health};

use crate::script::{Script, Verdict};

pub const ENDPOINTS: usize = 4;
/// So many faults in a row bar an endpoint.
const FAULTS_MAX: u32 = 3;

/// What one thing that happened does to an endpoint's account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    Fault,
    Good,
    Bar,
}

struct Leg {
    slot: usize,
    connecting: bool,
    /// On a connection that served before.
    reused: bool,
    /// Its request was offered to the connection.
    offered: bool,
    /// In which step it began.
    step: u64,
    /// Where in the connection's bytes.
    base: u64,
    /// Its engine had the whole request.
    executed: bool,
    /// It stays charged behind its end.
    charged: bool,
    /// The step with which the front may have blamed its endpoint.
    doubtful: u64,
}

/// One connection to an engine.
#[derive(Default)]
struct Line {
    leg: Option<Leg>,
    heard: u64,
    /// The replies on it, each with where it begins.
    scripts: VecDeque<(u64, Rc<Script>)>,
}

/// In which part of its turn a shard is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Client,
    Engine,
    /// Behind the last completion: deadlines, and requests that were read ahead.
    Late,
}

pub struct Shadow {
    counters: &'static Counters,
    charge: u64,
    outcomes: [Outcome; ENDPOINTS],
    legs: [u32; ENDPOINTS],
    lines: HashMap<usize, Line>,
    /// By shard: until when failed requests stay charged, and where.
    kept: Vec<VecDeque<(u64, usize)>>,
    effects: Vec<(usize, Effect)>,
    /// Legs that ended in this step, of which only the front knows whether it blames their endpoint.
    doubtful: Vec<usize>,
    step: u64,
    part: Part,
    begun_in_step: u32,
    shard: usize,
    now: u64,
    pub draining: bool,
    pub published: Rc<Vec<Option<Endpoint>>>,
    /// The fleet as each shard has it in this turn.
    seen: Vec<Rc<Vec<Option<Endpoint>>>>,
    /// How often each request was offered to an engine, and by shard how many were so again.
    offered: HashMap<String, u32>,
    pub again: Vec<u32>,
}

/// Every tenant of a slot has an address of its own, which tells of both.
pub fn slot_of(address: SocketAddr) -> (usize, u32) {
    let SocketAddr::V4(address) = address else { panic!("an address of ours: {address}") };
    let [_, high, low, slot] = address.ip().octets();
    (slot as usize, u32::from(high) << 8 | u32::from(low))
}

impl Shadow {
    pub fn new(counters: &'static Counters, shards: usize, failed_charge_ms: u64) -> Shadow {
        Shadow {
            counters,
            charge: failed_charge_ms * 1_000,
            outcomes: std::array::from_fn(|slot| counters.outcomes().read(slot as u16)),
            legs: [0; ENDPOINTS],
            lines: HashMap::new(),
            kept: vec![VecDeque::new(); shards],
            effects: Vec::new(),
            doubtful: Vec::new(),
            step: 0,
            part: Part::Late,
            begun_in_step: 0,
            shard: 0,
            now: 0,
            draining: false,
            published: Rc::default(),
            seen: vec![Rc::default(); shards],
            offered: HashMap::new(),
            again: vec![0; shards],
        }
    }

    /// A shard has slept and begins its turn.
    pub fn turn_begins(&mut self, shard: usize, now: u64) {
        (self.shard, self.now, self.part) = (shard, now, Part::Late);
        self.seen[shard] = Rc::clone(&self.published);
        self.begin_step();
    }

    /// The next completion is handed out; `None`: none is left.
    pub fn hands_out(&mut self, to_client: Option<bool>) {
        self.part = match to_client {
            Some(true) => Part::Client,
            Some(false) => Part::Engine,
            None => Part::Late,
        };
        self.begin_step();
    }

    fn begin_step(&mut self) {
        self.step += 1;
        self.begun_in_step = 0;
    }

    pub fn turn_ends(&mut self) {
        self.settle_outcomes();
        let kept = &mut self.kept[self.shard];
        // Those that ended with the drain itself came behind the expiry; their time is not over either.
        while kept.front().is_some_and(|(until, _)| *until <= self.now) {
            kept.pop_front();
        }
        self.check_in_flight();
    }

    pub fn connects(&mut self, at: Option<usize>, address: SocketAddr) {
        let (slot, generation) = slot_of(address);
        self.check_choice(slot, generation);
        match at {
            Some(at) => {
                self.lines.insert(at, Line::default());
                self.begin_leg(at, slot, true);
            }
            None => {
                self.begun_in_step += 1;
                if self.part == Part::Engine {
                    self.effects.push((slot, Effect::Fault));
                    self.keep(slot);
                } else {
                    // The request's own next bytes may have ended it before it heard of this.
                    self.doubtful.push(slot);
                }
            }
        }
    }

    pub fn offers(&mut self, at: usize, address: SocketAddr, bytes: &[u8]) {
        let (slot, generation) = slot_of(address);
        if self.lines.entry(at).or_default().leg.is_none() {
            self.check_choice(slot, generation);
            self.begin_leg(at, slot, false);
        }
        let leg = self.lines.get_mut(&at).and_then(|line| line.leg.as_mut()).expect("begun above");
        if std::mem::replace(&mut leg.offered, true) {
            return;
        }
        // The head goes first, and in one piece.
        let Some(from) = memchr::memmem::find(bytes, b"x-request-id: ") else { return };
        let id = bytes[from + 14..].split(|&byte| byte == b'\r').next().unwrap_or_default();
        let times = self.offered.entry(String::from_utf8_lossy(id).into_owned()).or_default();
        *times += 1;
        if *times > 1 {
            self.again[self.shard] += 1;
        }
        assert!(*times <= 2, "{} was sent {times} times", String::from_utf8_lossy(id));
    }

    fn begin_leg(&mut self, at: usize, slot: usize, connecting: bool) {
        let line = self.lines.entry(at).or_default();
        let (step, base) = (self.step, line.heard);
        let reused = !connecting;
        line.leg = Some(Leg {
            slot,
            connecting,
            reused,
            offered: false,
            step,
            base,
            executed: false,
            charged: false,
            doubtful: 0,
        });
        self.legs[slot] += 1;
        self.begun_in_step += 1;
    }

    /// What a client asks first goes where the fleet, as the shard has it, takes requests, and to no barred endpoint
    /// while there is another.
    fn check_choice(&self, slot: usize, generation: u32) {
        let fleet = &self.seen[self.shard];
        let there = |health: &dyn Fn(Health) -> bool| -> Vec<usize> {
            let endpoints = fleet.iter().flatten().filter(|endpoint| health(endpoint.health));
            endpoints.map(|endpoint| endpoint.id.slot as usize).collect()
        };
        let tenant = fleet.get(slot).and_then(Option::as_ref).map(|endpoint| endpoint.id.generation);
        assert_eq!(tenant, Some(generation), "slot {slot} has another tenant in the shard's fleet");
        let mut open = there(&|health| matches!(health, Health::Up | Health::Unknown | Health::Trial));
        for health in [Health::Ejected, Health::Down] {
            if open.is_empty() {
                open = there(&|found| found == health);
            }
        }
        assert!(open.contains(&slot), "chosen although it takes no requests: {slot} of {open:?}");
        let cap = |slot: usize| fleet[slot].as_ref().map_or(0, |endpoint| endpoint.cap);
        let in_flight = |slot: usize| self.counters.in_flight(slot as u16);
        assert!(in_flight(slot) <= cap(slot), "{} in flight at {slot}, which may have {}", in_flight(slot), cap(slot));
        let on_trial = there(&|health| health == Health::Trial);
        if on_trial.contains(&slot) && 2 * on_trial.len() <= open.len() {
            assert_eq!(in_flight(slot), 1, "one at a time at {slot}");
        }
        let barred = |slot: &usize| self.counters.outcomes().is_barred(*slot as u16);
        if self.part == Part::Client && self.begun_in_step == 0 && barred(&slot) {
            let full = |other: &usize| in_flight(*other) >= cap(*other) || on_trial.contains(other);
            assert!(
                open.iter().all(|other| barred(other) || full(other)),
                "chosen although barred: {slot} of {open:?}"
            );
        }
    }

    /// An engine's reply is what it sends next on this connection.
    pub fn answers(&mut self, at: usize, begins: u64, script: Rc<Script>) {
        self.lines.entry(at).or_default().scripts.push_back((begins, script));
    }

    pub fn executes(&mut self, at: usize) {
        if let Some(leg) = self.lines.get_mut(&at).and_then(|line| line.leg.as_mut()) {
            leg.executed = true;
        }
    }

    /// The front was told that the connect was answered.
    pub fn connected(&mut self, at: usize, stands: bool) {
        let Some(leg) = self.lines.get_mut(&at).and_then(|line| line.leg.as_mut()) else { return };
        leg.connecting = false;
        if !stands {
            leg.charged = true;
            self.effects.push((leg.slot, Effect::Fault));
        }
    }

    /// So many bytes of a reply were handed out, or went on unseen.
    pub fn hears(&mut self, at: usize, len: u64) {
        let Some(line) = self.lines.get_mut(&at) else { return };
        let before = line.heard;
        line.heard += len;
        let Some(leg) = &mut line.leg else { return };
        let Some((begins, script)) = line.scripts.iter().find(|(begins, _)| *begins >= leg.base) else { return };
        let (from, to) = ((before - begins) as usize, (line.heard - begins) as usize);
        if script.wild {
            leg.doubtful = self.step;
        }
        if script.wild || script.tunnel {
            return;
        }
        let slot = leg.slot;
        if from < script.judged_end && to >= script.judged_end {
            let blamed = matches!(script.verdict, Verdict::Fault | Verdict::Drains);
            if blamed {
                self.effects.push((slot, Effect::Fault));
            }
            if script.verdict == Verdict::Drains {
                self.effects.push((slot, Effect::Bar));
            }
            leg.charged |= script.verdict != Verdict::Neutral;
        }
        if to >= script.judged_end && !leg.charged && script.tells_of_error(from..to.min(script.wire.len())) {
            leg.charged = true;
            self.effects.push((slot, Effect::Fault));
        }
        if script.end.is_some_and(|end| to >= end) {
            if script.good && !leg.charged {
                self.effects.push((slot, Effect::Good));
            }
            self.end_leg(at);
        }
    }

    /// The front was told that the engine sends no more, or that its connection is broken.
    pub fn gone(&mut self, at: usize, fin: bool) {
        let Some(line) = self.lines.get_mut(&at) else { return };
        let Some(leg) = &mut line.leg else { return };
        if leg.connecting {
            return self.connected(at, false);
        }
        let (heard, base) = (line.heard, leg.base);
        let script = line.scripts.iter().find(|(begins, _)| *begins >= base).map(|(_, script)| script);
        let answered = heard > base;
        let in_body = script.is_some_and(|script| answered && !script.wild && heard - base >= script.head_end as u64);
        let tunnel = in_body && script.is_some_and(|script| script.tunnel);
        let ends = fin && in_body && script.is_some_and(|script| script.end.is_none());
        match () {
            // An idle connection that went stale says nothing of its engine, if that saw nothing.
            () if fin && leg.reused && !answered => leg.doubtful = self.step,
            () if tunnel || leg.charged => {}
            () if ends => {
                if script.is_some_and(|script| script.good) {
                    self.effects.push((leg.slot, Effect::Good));
                }
            }
            () => {
                leg.charged = true;
                self.effects.push((leg.slot, Effect::Fault));
            }
        }
    }

    /// The front closes the connection.
    pub fn closes(&mut self, at: usize) {
        let Some(line) = self.lines.get_mut(&at) else { return };
        let Some(leg) = &mut line.leg else { return };
        let overdue = self.part == Part::Late && leg.step < self.step && !leg.charged;
        if overdue {
            let script = line.scripts.iter().find(|(begins, _)| *begins >= leg.base).map(|(_, script)| script);
            let headless = script.is_none_or(|script| line.heard - leg.base < script.judged_end as u64);
            if !self.draining && (leg.connecting || leg.executed && headless) {
                leg.charged = true;
                self.effects.push((leg.slot, Effect::Fault));
            } else {
                leg.doubtful = self.step;
            }
        }
        self.end_leg(at);
        self.lines.remove(&at);
    }

    fn end_leg(&mut self, at: usize) {
        let Some(leg) = self.lines.get_mut(&at).and_then(|line| line.leg.take()) else { return };
        self.legs[leg.slot] -= 1;
        if leg.charged {
            self.keep(leg.slot);
        } else if leg.doubtful == self.step {
            self.doubtful.push(leg.slot);
        }
    }

    fn keep(&mut self, slot: usize) {
        self.kept[self.shard].push_back((self.now + self.charge, slot));
    }

    /// Compares what the counters show with what must have come of the last step.
    pub fn settle(&mut self) {
        self.settle_outcomes();
        self.check_in_flight();
    }

    fn settle_outcomes(&mut self) {
        for slot in 0..ENDPOINTS {
            let found = self.counters.outcomes().read(slot as u16);
            let mut expected = self.outcomes[slot];
            let here = self.effects.iter().filter(|(at, _)| *at == slot);
            here.for_each(|(_, effect)| apply(&mut expected, *effect));
            let doubtful = self.doubtful.iter().filter(|at| **at == slot).count();
            let certain = expected;
            for _ in 0..doubtful {
                if found == expected {
                    break;
                }
                apply(&mut expected, Effect::Fault);
                self.keep(slot);
            }
            assert_eq!(
                found, expected,
                "outcomes of slot {slot}, {certain:?} or {doubtful} faults more; before {:?}, of {:?} while {:?}",
                self.outcomes[slot], self.effects, self.part
            );
            self.outcomes[slot] = found;
        }
        self.effects.clear();
        self.doubtful.clear();
    }

    fn check_in_flight(&self) {
        for slot in 0..ENDPOINTS {
            let kept = self.kept.iter().flatten().filter(|(_, at)| *at == slot).count() as u32;
            let found = self.counters.in_flight(slot as u16);
            assert_eq!(found, self.legs[slot] + kept, "in flight at {slot}: {} legs, {kept} charged", self.legs[slot]);
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
            outcome.barred |= outcome.in_a_row >= FAULTS_MAX;
        }
        Effect::Good if outcome.in_a_row > 0 => {
            outcome.in_a_row = 0;
            outcome.recoveries = outcome.recoveries.wrapping_add(1);
        }
        Effect::Good => {}
        Effect::Bar => outcome.barred = true,
    }
}
