//! One schedule: everything drawn from its seed, some shards, and their turns.

use std::cell::{Cell, RefCell};
use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;

use warmfront::counters::stats::{Gauge, Stats};
use warmfront::counters::{Counters, Telling};
use warmfront::exchange::{Record, Rules};
use warmfront::limits::RECORDS_MAX;
use warmfront::policy::{Policy, Queueing, Settings, ShadowPolicy};
use warmfront::publish::{Process, Published, Records};
use warmfront::shard::handover::Neighbours;
use warmfront::shard::{Setup, Shard};
use warmfront::snapshot::Snapshot;

use crate::client::Client;
use crate::control::Control;
use crate::draw;
use crate::driver::Simulated;
use crate::engine::{Engine, Play};
use crate::network::Network;
use crate::plan::Style;
use crate::random::Random;
use crate::shadow::{ENDPOINTS, Shadow};
use crate::tally::Tally;

/// More turns than any schedule needs: it hangs.
const TURNS_MAX: usize = 600_000;
/// Simulated time by which every connection has ended by itself.
const MICROS_MAX: u64 = 4 * 3_600 * 1_000_000;
const SHARDS_MAX: usize = 4;
/// More than end in one turn.
const RECORDS: usize = 1_024;

/// What lives as long as the process, used by one schedule of a thread after the other.
#[derive(Clone, Copy)]
pub struct Statics {
    pub published: &'static Published,
    pub counters: &'static Counters,
    pub stats: &'static Stats,
    pub records: &'static [Records],
}

thread_local! {
    /// By the number of shards less one.
    static LEAKED: [Statics; SHARDS_MAX] = std::array::from_fn(|more| Statics {
        published: Published::leak(Snapshot::default()),
        counters: Counters::leak(),
        stats: Stats::leak(1 + more),
        records: Box::leak((0..=more).map(|_| Records::default()).collect()),
    });
    /// Has the first look at the stopwatch, the second, and so on, panic: a fault of ours in the middle of an exchange,
    /// or before there is one. 0: none.
    pub static FAULT: Cell<u32> = const { Cell::new(0) };
    /// How often it did.
    pub static FAULTS: Cell<u64> = const { Cell::new(0) };
}

/// A fault comes with one of so many looks: a request has two for its head, two for each piece of its body, and two for
/// its choice.
const FAULT_LOOKS: usize = 6;

/// What the panic of such a fault says.
pub const FAULT_WORDS: &str = "a fault of ours";

fn faulty_stopwatch() -> u64 {
    let left = FAULT.get();
    FAULT.set(left.saturating_sub(1));
    if left == 1 {
        FAULTS.set(FAULTS.get() + 1);
        panic!("{FAULT_WORDS}");
    }
    0
}

pub fn statics(shards: usize) -> Statics {
    LEAKED.with(|leaked| leaked[shards - 1])
}

/// A shard without listeners: connections come from the network.
pub fn shard(
    network: &Rc<RefCell<Network>>,
    statics: Statics,
    place: usize,
    process: &'static Process,
    rules: &Arc<Rules>,
    seed: u64,
) -> Shard<Simulated> {
    network.borrow_mut().drain_micros = rules.limits.drain_timeout_ms * 1_000;
    let setup = Setup {
        index: place as u16,
        listeners: Vec::new(),
        published: statics.published,
        process,
        records: &statics.records[place],
        counters: statics.counters,
        stats: statics.stats.shard(place),
        rules: Arc::clone(rules),
        seed,
        stopwatch: faulty_stopwatch,
    };
    Shard::new(Simulated::new(Rc::clone(network), place), setup).expect("no listeners")
}

pub struct Schedule {
    pub random: Random,
    pub style: Style,
    pub statics: Statics,
    pub process: &'static Process,
    pub network: Rc<RefCell<Network>>,
    /// None once it has ended.
    pub shards: Vec<Option<Shard<Simulated>>>,
    pub rules: Arc<Rules>,
    pub play: Play,
    pub clients: Vec<Client>,
    pub engines: Vec<Engine>,
    jumps: usize,
    pub thorough: bool,
    /// What the access log is told.
    pub told: Vec<Record>,
    /// Statistics and faults as they stood before it.
    pub before: Tally,
}

impl Schedule {
    pub fn new(seed: u64, thorough: bool) -> Schedule {
        let mut random = Random::new(seed);
        let style = draw::style(&mut random);
        let knobs = draw::knobs(style, &mut random);
        let limits = draw::limits(style, &mut random);
        let rules = Arc::new(Rules {
            telling: Telling::of(&limits),
            limits,
            half_close_leaves: random.chance(50),
            stream_error_event: random.chance(80),
            access_log: !seed.is_multiple_of(8),
            access_chain: seed.is_multiple_of(3),
            receipts: if seed.is_multiple_of(16) { RECORDS_MAX } else { 0 },
            queue: draw::queue(style, &mut random),
            ..Rules::default()
        });
        let count = random.pick(&[1, 1, 2, 2, 3, SHARDS_MAX]);
        let statics = statics(count);
        statics.records.iter().for_each(|records| assert!(records.open(RECORDS).is_empty()));
        let network = Rc::new(RefCell::new(Network::new(random.next(), count, knobs)));
        draw_fleet(&network, statics, style, &rules, count, &mut random);
        let process = Process::leak(count);
        let mut shards: Vec<_> =
            (0..count).map(|place| shard(&network, statics, place, process, &rules, random.next())).collect();
        if count > 1 && random.chance(70) {
            let neighbours = Neighbours::of_all(statics.stats).expect("bells");
            shards
                .iter_mut()
                .zip(neighbours)
                .for_each(|(shard, neighbours)| shard.share(neighbours).expect("it hears"));
        }
        let mut play = Play::default();
        let leaves = rules.half_close_leaves;
        let count = 1 + random.below(5) + style.crowd;
        let clients = (0..count).map(|_| draw::client(&mut play, style, leaves, &mut random)).collect();
        // Half of them while clients come.
        let within = random.pick(&[3_000_000, 20_000_000]);
        let drains_at = (!style.calm && random.chance(20)).then(|| 1_000_000 + random.below(within) as u64);
        network.borrow_mut().drains = drains_at.map(|at| (at, process));
        let jumps = random.pick(&[50, 1_000, usize::MAX]);
        FAULT.set(0);
        Schedule {
            random,
            style,
            statics,
            process,
            network,
            shards: shards.into_iter().map(Some).collect(),
            rules,
            play,
            clients,
            engines: Vec::new(),
            jumps,
            thorough,
            told: Vec::new(),
            before: Tally::of_stats(statics.stats),
        }
    }

    /// Runs until every connection has ended by itself.
    pub fn run(mut self) -> Tally {
        let mut turns = 0;
        loop {
            turns += 1;
            self.peers_act();
            self.happen();
            self.turn();
            // Walking all connections is dear: a replay does it behind every turn.
            if self.thorough || turns % 32 == 0 {
                self.check();
            }
            if self.shards.iter().all(Option::is_none) || self.is_over() {
                break;
            }
            let now = self.network.borrow().now;
            let audits = || self.shards.iter().flatten().map(Shard::audit).collect::<Vec<_>>();
            assert!(turns < TURNS_MAX && now < MICROS_MAX, "it hangs: {:?}", audits());
        }
        self.check();
        self.let_charges_expire();
        let process = self.process;
        let mut tally = self.check_end();
        // A process is for ever, and keeps descriptors until then.
        process.shards().iter().for_each(|shard| shard.now_ends());
        tally.turns = turns;
        tally
    }

    /// One turn of the shard that has something to do, or wakes first, or of any.
    fn turn(&mut self) {
        let place = self.next_shard();
        let Some(shard) = &mut self.shards[place] else { return };
        let goes_on = shard.turn().expect("a kernel that does not fail");
        let records = self.statics.records[place].queue();
        self.told.extend(std::iter::from_fn(|| records?.pop()).map(|record| *record));
        self.after_turn(place, goes_on);
        if !goes_on {
            self.check_ended(place);
        }
    }

    fn after_turn(&mut self, place: usize, goes_on: bool) {
        let network = &mut *self.network.borrow_mut();
        if let Some(shadow) = &mut network.shadow {
            shadow.turn_ends();
        }
        // Nor is anybody lost on the way to a shard that drains.
        for (at, line) in &mut network.in_transit {
            assert!(!matches!(line.read(&mut [0; 8]), Ok(0)), "{at} was handed over and dropped");
        }
        if !goes_on {
            network.ports[place].wakes_at = u64::MAX;
            assert!(!network.ports[place].listening);
        }
    }

    fn next_shard(&mut self) -> usize {
        let network = &*self.network.borrow();
        let alive: Vec<usize> = (0..self.shards.len()).filter(|place| self.shards[*place].is_some()).collect();
        if alive.len() == 1 || self.random.chance(5) {
            return self.random.pick(&alive);
        }
        let due = |place: &usize| network.ports[*place].wakes_at <= network.now || network.any_ready(Some(*place));
        let due: Vec<usize> = alive.iter().copied().filter(due).collect();
        let first = alive.into_iter().min_by_key(|place| network.ports[*place].wakes_at);
        if due.is_empty() { first.unwrap_or(0) } else { self.random.pick(&due) }
    }

    fn peers_act(&mut self) {
        let network = &mut *self.network.borrow_mut();
        let Style { calm, faults, .. } = self.style;
        for pipe in std::mem::take(&mut network.stood) {
            let mut engine = Engine::new(pipe, faults, calm, &mut self.random);
            engine.greet(network, &mut self.random);
            self.engines.push(engine);
        }
        for client in &mut self.clients {
            if self.random.chance(70) {
                client.step(network, &mut self.play, &mut self.random);
            }
        }
        for engine in &mut self.engines {
            if self.random.chance(70) {
                engine.step(network, &mut self.play, &mut self.random);
            }
        }
        self.engines.retain(|engine| !engine.is_over());
        network.peers_next = peers_next(&self.clients, &self.engines, network);
    }

    /// What comes from outside: time passes, fleets change, something of ours breaks, the process is told to end.
    fn happen(&mut self) {
        let network = &mut *self.network.borrow_mut();
        network.control_acts(1);
        if self.style.calm {
            return;
        }
        if self.random.below(self.jumps) == 0 {
            let jump = self.random.pick(&[20_000, 600_000, 3_000_000, 12_000_000, 70_000_000]);
            network.now += self.random.below(jump) as u64;
        }
        if self.random.below(10_000) < self.style.panics {
            FAULT.set(1 + self.random.below(FAULT_LOOKS) as u32);
        }
    }

    fn is_over(&self) -> bool {
        let network = self.network.borrow();
        let open = self.statics.stats.gauge(Gauge::Connections) + self.statics.stats.gauge(Gauge::Upstreams);
        open == 0
            && network.in_transit.is_empty()
            && peers_next(&self.clients, &self.engines, &network).is_none()
            && self.clients.iter().all(|client| client.pipe.is_some())
            && network.ports.iter().all(|port| port.arrivals.is_empty())
    }
}

/// The first fleet, its control, and the shadow of its accounts.
fn draw_fleet(
    network: &Rc<RefCell<Network>>,
    statics: Statics,
    style: Style,
    rules: &Rules,
    shards: usize,
    random: &mut Random,
) {
    let policies =
        [Policy::Random, Policy::RoundRobin, Policy::LeastLoad, Policy::Session, Policy::PrefixHash, Policy::Warm];
    let (policy, queue) = match style.waits {
        true => (Policy::Warm, Queueing::On),
        false => (random.pick(&policies), random.pick(&[Queueing::Off, Queueing::On])),
    };
    // What only looks on changes nothing of all that is told here.
    let shadow_policy = ShadowPolicy(random.chance(60).then(|| random.pick(&policies)));
    let settings = Arc::new(Settings { policy, shadow_policy, queue, replication: 4, ..Settings::default() });
    let count = if style.waits { 1 + random.below(2) } else { 1 + random.below(ENDPOINTS) };
    let capacity = if style.waits { Some(100) } else { random.pick(&[None, Some(10), Some(300)]) };
    let endpoints: Vec<_> = (0..count).map(|slot| Some(draw::with_cache(draw::endpoint(slot, 0), capacity))).collect();
    let alive = random.below(count);
    let dead: Vec<bool> = (0..count).map(|slot| style.dead && slot != alive && random.chance(70)).collect();
    let every = random.pick(&[20, 300, usize::MAX]);
    let gentle = style.calm.then(|| dead.clone());
    Control::forget_all(statics.counters);
    let mut shadow = Shadow::new(statics.counters, shards, rules.limits.failed_charge_ms);
    let (published, counters) = (statics.published, statics.counters);
    let mut control = Control::new(published, counters, settings, endpoints, gentle, every, random.next());
    control.asks_keys = style.keys > 0;
    control.publish(&mut shadow);
    let network = &mut *network.borrow_mut();
    network.knobs.dead = dead;
    (network.shadow, network.control) = (Some(shadow), Some(control));
}

/// When a client or an engine does something next.
fn peers_next(clients: &[Client], engines: &[Engine], network: &Network) -> Option<u64> {
    let clients = clients.iter().filter_map(|client| client.next(network));
    clients.chain(engines.iter().filter_map(|engine| engine.next(network))).min()
}

/// How many faults of ours there were on this thread.
pub fn faults() -> u64 {
    FAULTS.get()
}
