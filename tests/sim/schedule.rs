//! One schedule: everything drawn from its seed, one shard, and what must hold after every turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use warmfront::counters::Counters;
use warmfront::counters::stats::{Event, Gauge, Stats};
use warmfront::exchange::Rules;
use warmfront::fleet::{Endpoint, Health};
use warmfront::limits::Limits;
use warmfront::policy::{Policy, Settings};
use warmfront::publish::{Process, Published};
use warmfront::shard::{Setup, Shard};
use warmfront::snapshot::Snapshot;

use crate::client::Client;
use crate::draw;
use crate::driver::Simulated;
use crate::engine::{Engine, Play};
use crate::network::Network;
use crate::plan::Style;
use crate::random::Random;

/// More turns than any schedule needs: it hangs.
const TURNS_MAX: usize = 300_000;
/// Simulated time by which every connection has ended by itself.
const MICROS_MAX: u64 = 4 * 3_600 * 1_000_000;
const ENDPOINTS: usize = 4;

/// What lives as long as the process, used by one schedule of a thread after the other.
#[derive(Clone, Copy)]
pub struct Statics {
    pub published: &'static Published,
    pub counters: &'static Counters,
    pub stats: &'static Stats,
}

thread_local! {
    static LEAKED: Statics = Statics {
        published: Published::leak(Snapshot::default()),
        counters: Counters::leak(),
        stats: Stats::leak(1),
    };
}

/// What a schedule came to.
#[derive(Default, Debug)]
pub struct Tally {
    pub turns: usize,
    pub requests: usize,
    pub executed: usize,
    pub replies: usize,
    pub by_engines: usize,
    pub tunnelled: usize,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.turns += more.turns;
        self.requests += more.requests;
        self.executed += more.executed;
        self.replies += more.replies;
        self.by_engines += more.by_engines;
        self.tunnelled += more.tunnelled;
    }
}

pub struct Schedule {
    random: Random,
    style: Style,
    statics: Statics,
    process: &'static Process,
    network: Rc<RefCell<Network>>,
    shard: Shard<Simulated>,
    limits: Limits,
    settings: Arc<Settings>,
    endpoints: Vec<Option<Endpoint>>,
    /// How many fleets were published.
    fleet: usize,
    play: Play,
    clients: Vec<Client>,
    engines: Vec<Engine>,
    drains_at: Option<u64>,
    /// One turn of so many has a jump of the clock, or a change of the fleet.
    jumps: usize,
    changes: usize,
    panics_before: u64,
    /// Checks after every turn.
    thorough: bool,
}

impl Schedule {
    pub fn new(seed: u64, thorough: bool) -> Schedule {
        let mut random = Random::new(seed);
        let style = draw::style(&mut random);
        let knobs = draw::knobs(style, &mut random);
        let rules = Rules {
            limits: draw::limits(style, &mut random),
            half_close_leaves: random.chance(50),
            ..Rules::default()
        };
        let policies = [Policy::Random, Policy::RoundRobin, Policy::LeastLoad, Policy::Session, Policy::PrefixHash];
        let settings = Arc::new(Settings { policy: random.pick(&policies), replication: 4, ..Settings::default() });
        let network = Rc::new(RefCell::new(Network::new(random.next(), knobs)));
        let statics = statics();
        let process = Process::leak(1);
        let endpoints: Vec<_> = (0..1 + random.below(ENDPOINTS)).map(|slot| Some(draw::endpoint(slot, 0))).collect();
        let (limits, half_close_leaves) = (rules.limits.clone(), rules.half_close_leaves);
        (0..ENDPOINTS).for_each(|slot| statics.counters.outcomes().forget(slot as u16));
        statics.published.publish(draw::snapshot(&endpoints, &settings));
        let shard = shard(&network, statics, process, rules, random.next());
        let mut play =
            Play { plans: Vec::new(), executed: Vec::new(), seen: Vec::new(), fleet_at: Vec::new(), tunnelled: 0 };
        let clients =
            (0..1 + random.below(6)).map(|_| draw::client(&mut play, style, half_close_leaves, &mut random)).collect();
        let drains_at = (!style.calm && random.chance(20)).then(|| random.below(20_000_000) as u64);
        let (jumps, changes) = (random.pick(&[50, 1_000, usize::MAX]), random.pick(&[20, 300, usize::MAX]));
        let panics_before = statics.stats.total(Event::Panicked);
        Schedule {
            random,
            style,
            statics,
            process,
            network,
            shard,
            limits,
            settings,
            endpoints,
            fleet: 0,
            play,
            clients,
            engines: Vec::new(),
            drains_at,
            jumps,
            changes,
            panics_before,
            thorough,
        }
    }

    /// Runs until every connection has ended by itself.
    pub fn run(mut self) -> Tally {
        let mut tally = Tally { requests: self.play.plans.len(), ..Tally::default() };
        loop {
            tally.turns += 1;
            self.peers_act();
            self.happen();
            let goes_on = self.shard.turn().expect("a kernel that does not fail");
            // Walking all connections is dear: a replay does it behind every turn.
            if self.thorough || tally.turns.is_multiple_of(8) {
                self.check();
            }
            if !goes_on || self.is_over() {
                break;
            }
            let now = self.network.borrow().now;
            assert!(tally.turns < TURNS_MAX && now < MICROS_MAX, "it hangs: {:?}", self.shard.audit());
        }
        self.check();
        self.check_end();
        tally.executed = self.play.executed.iter().sum::<u32>() as usize;
        tally.replies = self.clients.iter().map(|client| client.replies).sum();
        tally.by_engines = self.clients.iter().map(|client| client.by_engines).sum();
        tally.tunnelled = self.play.tunnelled;
        tally
    }

    fn peers_act(&mut self) {
        let network = &mut *self.network.borrow_mut();
        let Style { calm, faults, .. } = self.style;
        for pipe in 0..network.pipes.len() {
            let is_new = network.pipes[pipe].stands && !self.engines.iter().any(|engine| engine.pipe == pipe);
            if is_new {
                let mut engine = Engine::new(pipe, faults, calm, &mut self.random);
                engine.greet(network, &mut self.random);
                self.engines.push(engine);
            }
        }
        for client in &mut self.clients {
            if self.random.chance(70) {
                client.step(network, &mut self.play, &mut self.random, self.fleet);
            }
        }
        for engine in &mut self.engines {
            if self.random.chance(70) {
                engine.step(network, &mut self.play, &mut self.random);
            }
        }
        network.peers_next = peers_next(&self.clients, &self.engines, network);
        if !network.arrivals.is_empty() && network.accepting && network.listening {
            network.peers_next = Some(network.now);
        }
    }

    /// What comes from outside: time passes, fleets change, the process is told to end.
    fn happen(&mut self) {
        let now = self.network.borrow().now;
        if self.drains_at.is_some_and(|at| at + 1_000_000 < now) {
            self.process.drain();
        }
        if self.style.calm {
            return;
        }
        if self.random.below(self.jumps) == 0 {
            let jump = self.random.pick(&[20_000, 600_000, 3_000_000, 12_000_000, 70_000_000]);
            self.network.borrow_mut().now += self.random.below(jump) as u64;
        }
        if self.random.below(self.changes) == 0 {
            self.change_fleet();
        }
    }

    fn change_fleet(&mut self) {
        let slot = self.random.below(self.endpoints.len());
        let idle = self.statics.counters.in_flight(slot as u16) == 0;
        match &mut self.endpoints[slot] {
            Some(endpoint) if self.random.chance(60) => {
                endpoint.health =
                    self.random.pick(&[Health::Up, Health::Up, Health::Unknown, Health::Down, Health::Draining]);
            }
            // A slot has another tenant only once nothing is in flight for the one before.
            place if idle => {
                let generation = place.as_ref().map_or(self.fleet as u32 + 1, |endpoint| endpoint.id.generation + 1);
                *place = self.random.chance(70).then(|| draw::endpoint(slot, generation));
            }
            _ => {}
        }
        self.fleet += 1;
        self.statics.published.publish(draw::snapshot(&self.endpoints, &self.settings));
    }

    fn is_over(&self) -> bool {
        let network = self.network.borrow();
        let open = self.statics.stats.gauge(Gauge::Connections) + self.statics.stats.gauge(Gauge::Upstreams);
        open == 0
            && peers_next(&self.clients, &self.engines, &network).is_none()
            && self.clients.iter().all(|client| client.pipe.is_some())
            && network.arrivals.is_empty()
    }

    /// What holds between any two turns.
    fn check(&self) {
        let audit = self.shard.audit();
        for slot in 0..ENDPOINTS {
            let counted = [&audit.legs, &audit.charged].iter().filter_map(|by_slot| by_slot.get(slot)).sum::<u32>();
            assert_eq!(self.statics.counters.in_flight(slot as u16), counted, "in flight at {slot}: {audit:?}");
        }
        assert_eq!(self.statics.counters.underflow(), 0);
        assert_eq!(self.statics.stats.total(Event::Panicked), self.panics_before, "an exchange panicked");
        assert_eq!(audit.held_bytes, audit.held_account, "{audit:?}");
        assert_eq!(audit.unwatched, 0, "clients without a timer: {audit:?}");
        let network = self.network.borrow();
        let lease = network.knobs.lease_max;
        let limits = &self.limits;
        assert!(audit.ahead_bytes_most <= limits.head_bytes_max.max(limits.read_ahead_bytes) + lease, "{audit:?}");
        // What was read ahead is held at once.
        let held_most = limits.head_bytes_max + limits.hold_bytes + limits.read_ahead_bytes + 2 * lease + 1_024;
        assert!(audit.held_bytes_most <= held_most, "{audit:?}");
        let backlog = network.pipes.iter().map(|pipe| pipe.backlog.len()).max().unwrap_or(0);
        assert!(backlog <= 3 * lease + 2 * limits.head_bytes_max + 40_000, "{backlog} bytes wait for one socket");
        let counts = self.play.executed.iter().zip(&self.play.seen);
        for (plan, (&executed, &seen)) in self.play.plans.iter().zip(counts) {
            assert!(executed <= 1 && seen <= 1, "{} was executed {executed} times, read {seen} times", plan.id);
        }
    }

    fn check_end(&self) {
        let audit = self.shard.audit();
        assert_eq!((audit.clients, audit.held_account), (0, 0), "{audit:?}");
        let network = self.network.borrow();
        let clients = network.pipes.iter().filter(|pipe| pipe.address.is_none() && pipe.open).count();
        let upstreams = network.pipes.iter().filter(|pipe| pipe.address.is_some() && pipe.open).count();
        assert_eq!(upstreams, audit.upstreams, "sockets of engines nobody owns");
        assert_eq!(clients, network.arrivals.len(), "sockets of clients nobody owns");
        if self.style.calm {
            self.clients.iter().for_each(|client| client.assert_served(&self.play));
        }
    }
}

thread_local! {
    /// Has the next look at the stopwatch panic: a fault of ours in the middle of an exchange.
    pub static FAULT: Cell<bool> = const { Cell::new(false) };
}

fn faulty_stopwatch() -> u64 {
    assert!(!FAULT.take(), "a fault of ours");
    0
}

pub fn statics() -> Statics {
    LEAKED.with(|leaked| *leaked)
}

/// A shard without listeners: connections come from the network.
pub fn shard(
    network: &Rc<RefCell<Network>>,
    statics: Statics,
    process: &'static Process,
    rules: Rules,
    seed: u64,
) -> Shard<Simulated> {
    let setup = Setup {
        listeners: Vec::new(),
        published: statics.published,
        process,
        doing: process.shards()[0].doing(),
        counters: statics.counters,
        stats: statics.stats.shard(0),
        rules: Arc::new(rules),
        seed,
        stopwatch: faulty_stopwatch,
    };
    Shard::new(Simulated::new(Rc::clone(network)), setup).expect("no listeners")
}

/// When a client or an engine does something next.
fn peers_next(clients: &[Client], engines: &[Engine], network: &Network) -> Option<u64> {
    let clients = clients.iter().filter_map(|client| client.next(network));
    clients.chain(engines.iter().filter_map(|engine| engine.next(network))).min()
}
