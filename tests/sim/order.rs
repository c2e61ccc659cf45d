//! One order over all shards: what a front of one shard and one of four make of the same clients.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use warmfront::config::Config;
use warmfront::driver::Tag;
use warmfront::exchange::{QueueRules, Rules};
use warmfront::policy::{Policy, Queueing, Settings};
use warmfront::publish::Process;
use warmfront::shard::Shard;
use warmfront::shard::handover::Neighbours;

use crate::draw;
use crate::driver::Simulated;
use crate::network::{Knobs, Network};
use crate::pipe::Stage;
use crate::random::Random;
use crate::schedule::{shard, statics};
use crate::shadow::slot_of;
use crate::wire::{Framing, Reader};

const ENGINES: usize = 8;
const SERVICE: u64 = 40_000;
/// They ask again as soon as they are answered.
const CLIENTS: usize = 100;
const TENANTS: [(&str, u32); 2] = [("heavy", 3), ("light", 1)];
/// A cache that one request fills.
const CACHE_TOKENS: u64 = 160;
/// From here on it is looked at.
const WARM: u64 = 2_000_000;
const UNTIL: u64 = 4_000_000;
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

struct Client {
    pipe: usize,
    tenant: usize,
    got: Vec<u8>,
}

struct Asked {
    client: usize,
    at: u64,
}

struct Engine {
    slot: usize,
    reader: Reader,
}

/// What was seen of those that began once it was warm.
#[derive(Default, Debug)]
struct Seen {
    /// By tenant, in microseconds.
    waits: [Vec<u64>; TENANTS.len()],
    /// How many of its tenant each went past that had asked before it.
    passed: Vec<usize>,
    /// How long its engine had had nothing to do.
    unused: Vec<u64>,
    /// Whether who was to look next waited at the second shard, as the first one sees it; asked where they share nothing.
    at_second: bool,
}

struct Play {
    network: Rc<RefCell<Network>>,
    shards: Vec<Shard<Simulated>>,
    /// Whether they hear each other.
    shared: bool,
    /// One that does not turn in the second half of what is looked at.
    stuck: Option<usize>,
    random: Random,
    clients: Vec<Client>,
    /// By connection.
    engines: HashMap<usize, Engine>,
    /// By number.
    asked: Vec<Asked>,
    /// Numbers of those that no engine has.
    waiting: BTreeSet<usize>,
    /// What engines answer when, and on which connection.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// When each engine answered last.
    ended: [u64; ENGINES],
    seen: Seen,
}

fn knobs() -> Knobs {
    Knobs {
        lease_max: 65_536,
        room_min: 1 << 20,
        room_max: 1,
        late: 0,
        short: 0,
        refused: 0,
        swallowed: 0,
        scarce: 0,
        dead: Vec::new(),
        portless: None,
        connect: 1,
        turn: 1,
    }
}

fn rules() -> Arc<Rules> {
    let mut config = Config::default();
    config.queue.tenant_header = "x-tenant".into();
    config.queue.weights = TENANTS.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect();
    Arc::new(Rules { queue: QueueRules::from(&config), ..Rules::default() })
}

fn publish(shards: usize) {
    let settings = Settings { policy: Policy::Warm, queue: Queueing::On, replication: 4, ..Settings::default() };
    let endpoint = |slot| Some(draw::with_cache(draw::endpoint(slot, 0), Some(CACHE_TOKENS)));
    let endpoints: Vec<_> = (0..ENGINES).map(endpoint).collect();
    statics(shards).published.publish(draw::snapshot(&endpoints, &Arc::new(settings)));
}

fn request(number: usize, tenant: usize) -> String {
    let mut random = Random::new(number as u64);
    let words: String = (0..25).map(|_| format!("{:016x}", random.next())).collect();
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{words}"}}]}}"#);
    let (name, length) = (TENANTS[tenant].0, body.len());
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n";
    format!("{head}x-request-id: {number}\r\nx-tenant: {name}\r\ncontent-length: {length}\r\n\r\n{body}")
}

impl Play {
    /// Clients' connections stand, evenly spread.
    fn new(shards: usize, seed: u64) -> Play {
        let mut play = Play::unshared(shards, seed);
        let neighbours = Neighbours::of_all(statics(shards).stats).expect("bells");
        let all = play.shards.iter_mut().zip(neighbours);
        all.for_each(|(shard, neighbours)| shard.share(neighbours).expect("it hears"));
        Play { shared: true, ..play }
    }

    fn unshared(shards: usize, seed: u64) -> Play {
        let network = Rc::new(RefCell::new(Network::new(seed, shards, knobs())));
        publish(shards);
        let (process, rules) = (Process::leak(shards), rules());
        let new = |place| shard(&network, statics(shards), place, process, &rules, seed + place as u64);
        let all = (0..shards).map(new).collect();
        let client = |at: usize| {
            let mut network = network.borrow_mut();
            let pipe = network.add(None, at % shards, Stage::Fresh, Tag(0));
            network.ports[at % shards].arrivals.push_back(pipe);
            Client { pipe, tenant: at / shards % TENANTS.len(), got: Vec::new() }
        };
        let clients = (0..CLIENTS).map(client).collect();
        Play {
            network,
            shards: all,
            shared: false,
            stuck: None,
            random: Random::new(seed),
            clients,
            engines: HashMap::new(),
            asked: Vec::new(),
            waiting: BTreeSet::new(),
            due: BinaryHeap::new(),
            ended: [0; ENGINES],
            seen: Seen::default(),
        }
    }

    fn run(mut self) -> Seen {
        while self.network.borrow().any_ready(None) {
            self.turn();
        }
        (0..self.clients.len()).for_each(|client| self.ask(client));
        while self.now() < UNTIL {
            self.engines_act();
            self.clients_act();
            self.network.borrow_mut().peers_next = self.due.peek().map(|Reverse((at, _))| *at);
            self.turn();
            if !self.shared && !self.seen.at_second {
                self.seen.at_second = statics(self.shards.len()).counters.queue().next_elsewhere(0) == Some(1);
            }
        }
        self.seen
    }

    fn now(&self) -> u64 {
        self.network.borrow().now
    }

    /// Of a shard that something came for, that a bell rings for, or that wakes.
    fn turn(&mut self) {
        let half = self.now() >= (WARM + UNTIL) / 2;
        let mut places: Vec<usize> = (0..self.shards.len()).filter(|at| !half || self.stuck != Some(*at)).collect();
        self.random.shuffle(&mut places);
        let place = {
            let network = self.network.borrow();
            let ready = |place: &&usize| network.any_ready(Some(**place)) || network.ports[**place].is_rung();
            let first = || places.iter().min_by_key(|place| network.ports[**place].wakes_at);
            *places.iter().find(ready).or_else(first).expect("a shard")
        };
        assert!(self.shards[place].turn().expect("a kernel that does not fail"));
    }

    fn ask(&mut self, client: usize) {
        let (number, at) = (self.asked.len(), self.now());
        let Client { pipe, tenant, .. } = self.clients[client];
        self.asked.push(Asked { client, at });
        self.waiting.insert(number);
        self.network.borrow_mut().peer_send(pipe, request(number, tenant).as_bytes(), usize::MAX);
    }

    fn clients_act(&mut self) {
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            client.got.extend(self.network.borrow_mut().peer_receive(client.pipe, usize::MAX));
            assert!(client.got.is_empty() || client.got.starts_with(b"HTTP/1.1 200"));
            if client.got.ends_with(b"\r\n\r\nok") {
                client.got.clear();
                self.ask(at);
            }
        }
    }

    fn engines_act(&mut self) {
        let now = self.now();
        while let Some(Reverse((_, pipe))) = self.due.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.due.pop();
            self.ended[self.engines[&pipe].slot] = now;
            self.network.borrow_mut().peer_send(pipe, REPLY, usize::MAX);
        }
        let stood = std::mem::take(&mut self.network.borrow_mut().stood);
        for pipe in stood {
            let slot = slot_of(self.network.borrow().pipes[pipe].address.expect("an engine's")).0;
            self.engines.insert(pipe, Engine { slot, reader: Reader::default() });
        }
        let mut begun = Vec::new();
        for (pipe, engine) in &mut self.engines {
            engine.reader.push(&self.network.borrow_mut().peer_receive(*pipe, usize::MAX));
            let Some(head) = engine.reader.head() else { continue };
            let mut framing = head.framing(Framing::Length(0));
            assert!(engine.reader.body(&mut framing, &mut Vec::new()), "it comes in one piece");
            begun.push((head.number("x-request-id").expect("a number"), *pipe, engine.slot));
        }
        begun.sort_unstable();
        begun.into_iter().for_each(|(number, pipe, slot)| self.begins(number, pipe, slot));
    }

    fn begins(&mut self, number: usize, pipe: usize, slot: usize) {
        let (now, Asked { client, at }) = (self.now(), &self.asked[number]);
        let service = SERVICE * (768 + Random::new(!(number as u64)).below(512) as u64) / 1_024;
        self.due.push(Reverse((now + service, pipe)));
        self.waiting.remove(&number);
        if now < WARM {
            return;
        }
        let tenant = self.clients[*client].tenant;
        // The order tells apart what came in different milliseconds.
        let earlier = |other: &Asked| self.clients[other.client].tenant == tenant && other.at / 1_000 < at / 1_000;
        let passed = self.waiting.range(..number).filter(|other| earlier(&self.asked[**other])).count();
        self.seen.waits[tenant].push(now - at);
        self.seen.passed.push(passed);
        self.seen.unused.push(now - self.ended[slot]);
    }
}

fn quantile(figures: &mut [u64], part: f64) -> f64 {
    figures.sort_unstable();
    figures[(figures.len() as f64 * part) as usize] as f64 / 1e3
}

fn mean(figures: impl ExactSizeIterator<Item = u64>) -> f64 {
    let count = figures.len() as f64;
    figures.sum::<u64>() as f64 / count
}

/// By tenant p50 and p99 of the waits in ms; how many of its tenant each passed; how long a place was unused, in ms.
fn figures(mut seen: Seen) -> ([[f64; 2]; TENANTS.len()], f64, f64) {
    let waits = std::array::from_fn(|tenant| [0.5, 0.99].map(|part| quantile(&mut seen.waits[tenant], part)));
    let passed = mean(seen.passed.iter().map(|passed| *passed as u64));
    (waits, passed, mean(seen.unused.iter().copied()) / 1e3)
}

#[test]
fn four_shards_release_in_the_order_of_one() {
    let [one, four] = [1, 4].map(|shards| figures(Play::new(shards, 1).run()));
    eprintln!("waits p50 and p99 by tenant, passed, unused: one {one:?}, four {four:?}");
    for (one, four) in one.0.iter().flatten().zip(four.0.iter().flatten()) {
        assert!((0.9..=1.1).contains(&(four / one)), "{four} ms instead of {one}");
    }
    assert!(one.1 < 0.5 && four.1 < 0.5, "each goes past {} and {} that had asked before it", one.1, four.1);
    assert!(one.2 < 2.0 && four.2 < 2.0, "a place stays unused for {} and {} ms", one.2, four.2);
}

/// What it has at the engines stays there, which is a quarter of them in the mean.
#[test]
fn one_that_does_not_turn_holds_nobody_up_for_long() {
    let began = |stuck: Option<usize>| -> Vec<usize> {
        (1..=2).map(|seed| Play { stuck, ..Play::new(4, seed) }.run().passed.len()).collect()
    };
    let (alone, all) = (began(Some(1)), began(None));
    eprintln!("{alone:?} of {all:?} began");
    let [alone, all] = [alone, all].map(|began| began.into_iter().sum::<usize>());
    assert!(alone > 3 * all / 4, "{alone} began where {all} did with all shards");
}

/// It goes on without a bell, and what waits there is none of the first shard's.
#[test]
fn who_shares_nothing_has_its_own_in_the_queue() {
    let seen = Play::unshared(2, 1).run();
    assert!(seen.at_second && !seen.passed.is_empty(), "{} began", seen.passed.len());
}
