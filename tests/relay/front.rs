//! A front of one shard in this process, before endpoints given by address.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use warmfront::counters::stats::{Count, Ended, Stats, TokenCount};
use warmfront::counters::{Counters, Telling};
use warmfront::driver::{Driver, socket};
use warmfront::exchange::{Record, Rules};
use warmfront::fleet::{Endpoint, EndpointId, Health};
use warmfront::index::{Capacity, Index};
use warmfront::limits::{LABELLED_POOLS_MAX, RECORDS_MAX};
use warmfront::policy::{Policy, Settings};
use warmfront::publish::{Process, Published};
use warmfront::ring::Ring;
use warmfront::shard::{Setup, Shard, stopwatch};
use warmfront::snapshot::{Pool, PoolId, Snapshot};

use crate::client::{Client, Reply};

/// No test waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(25);

pub struct Front {
    pub address: SocketAddr,
    pub counters: &'static Counters,
    pub stats: &'static Stats,
    pub published: &'static Published,
    process: &'static Process,
    thread: Option<JoinHandle<()>>,
}

/// What a test may change before the front starts.
pub struct Options {
    pub rules: Rules,
    pub settings: Settings,
    /// Served ids and the endpoints (by place) that serve them; empty: one pool of all.
    pub pools: Vec<(&'static str, Vec<u16>)>,
    /// Their policies, where they are not that of the settings.
    pub policies: Vec<Policy>,
    /// What each engine's cache holds, where that is known.
    pub capacity_tokens: Option<u64>,
    /// Tokens of the longest prompt that the engines take, where that is known.
    pub context: Option<u32>,
    /// Engines are known to ask for keys before the first of them refuses one.
    pub asks_keys: bool,
    /// Asked before and behind each choice, in the middle of a turn.
    pub stopwatch: fn() -> u64,
}

impl Front {
    pub fn start(upstreams: &[SocketAddr]) -> Front {
        Front::with(upstreams, |_| {})
    }

    pub fn with(upstreams: &[SocketAddr], change: impl FnOnce(&mut Options)) -> Front {
        let (mut front, setup) = Front::prepared(upstreams, change);
        front.thread = Some(std::thread::spawn(move || serve(crate::driver(), setup)));
        front
    }

    /// One whose shard has yet to be made of what is returned beside it.
    pub fn prepared(upstreams: &[SocketAddr], change: impl FnOnce(&mut Options)) -> (Front, Setup) {
        let settings = Settings { policy: Policy::RoundRobin, ..Settings::default() };
        let mut rules = Rules { half_close_leaves: true, ..Rules::default() };
        // A test that failed leaves clients behind: its front must not wait for them.
        rules.limits.drain_timeout_ms = 1_000;
        // What failed is in flight for as long, and most tests wait until nothing is.
        rules.limits.failed_charge_ms = 50;
        let (pools, policies) = (Vec::new(), Vec::new());
        let (capacity_tokens, context, asks_keys) = (None, None, false);
        let mut options = Options { rules, settings, pools, policies, capacity_tokens, context, asks_keys, stopwatch };
        change(&mut options);
        options.rules.telling = Telling::of(&options.rules.limits);
        let published = Published::leak(snapshot(upstreams, &options));
        let (counters, stats, process) = (Counters::leak(), Stats::leak(1), Process::leak(1));
        counters.queue().islands_are(&published.current().islands());
        let records = process.shards()[0].records();
        if options.rules.access_log || options.rules.receipts > 0 {
            records.open(RECORDS_MAX);
        }
        let listener = socket::listener("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket::bound_address(&listener).unwrap();
        let setup = Setup {
            index: 0,
            listeners: vec![listener],
            published,
            process,
            records,
            counters,
            stats: stats.shard(0),
            rules: Arc::new(options.rules),
            seed: 1,
            stopwatch: options.stopwatch,
        };
        (Front { address, counters, stats, published, process, thread: None }, setup)
    }

    /// A client's connection.
    pub fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client::new(stream)
    }

    /// Sends `request` on a connection of its own and reads the reply.
    pub fn ask(&self, request: impl AsRef<[u8]>) -> Reply {
        self.connect().ask(request)
    }

    pub fn count(&self, event: Count) -> u64 {
        self.stats.total(event)
    }

    /// How many requests ended so.
    pub fn ended(&self, ended: Ended) -> u64 {
        (0..=LABELLED_POOLS_MAX as u16).map(|pool| self.stats.ended(pool, ended)).sum()
    }

    /// Of requests of any model.
    pub fn tokens(&self, which: TokenCount) -> u64 {
        (0..=LABELLED_POOLS_MAX as u16).map(|pool| self.stats.tokens(pool, which)).sum()
    }

    /// Tokens that replies told of: of prompts, those that were cached, of answers.
    pub fn told(&self) -> [u64; 3] {
        [TokenCount::ToldPrompt, TokenCount::ToldCached, TokenCount::ToldCompletion].map(|which| self.tokens(which))
    }

    /// What the access log was told since this was asked last.
    pub fn records(&self) -> Vec<Record> {
        let queue = self.process.shards()[0].records().queue();
        std::iter::from_fn(|| queue?.pop()).map(|record| *record).collect()
    }

    /// What SIGTERM does.
    pub fn drain(&self) {
        self.process.drain();
        let _ = TcpStream::connect(self.address);
    }

    /// Waits until `met` holds.
    pub fn until(&self, what: &str, met: impl Fn(&Front) -> bool) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while !met(self) {
            assert!(std::time::Instant::now() < deadline, "{what} did not come about");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// All in-flight counts are back at zero and never went below.
    pub fn settles(&self) {
        self.until("in-flight zero", |front| (0..16).all(|slot| front.counters.in_flight(slot) == 0));
        assert!((0..16).all(|slot| self.counters.loads().pending(slot) == 0), "tokens are pending without a request");
        assert_eq!(self.counters.underflow(), 0);
        assert_eq!(self.count(Count::Panicked), 0);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.process.drain();
        // Wakes it: it looks at its flags once a turn.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the shard panicked");
        }
    }
}

fn serve<D: Driver>(driver: D, setup: Setup) {
    Shard::new(driver, setup).unwrap().run().unwrap();
}

/// Another snapshot, changed so.
pub fn republish(front: &Front, change: impl FnOnce(&mut Snapshot)) {
    let mut snapshot = Snapshot::clone(&front.published.current());
    snapshot.epoch += 1;
    change(&mut snapshot);
    front.published.publish(snapshot);
}

/// The same of every endpoint in it.
pub fn republish_each(front: &Front, change: impl Fn(&mut Endpoint)) {
    republish(front, |snapshot| snapshot.endpoints.iter_mut().flatten().for_each(change));
}

fn snapshot(upstreams: &[SocketAddr], options: &Options) -> Snapshot {
    let settings = Arc::new(options.settings.clone());
    let endpoints: Vec<_> =
        upstreams.iter().enumerate().map(|(place, &address)| Some(endpoint(place, address))).collect();
    let endpoints = endpoints.into_iter().map(|endpoint: Option<Endpoint>| {
        let mut endpoint = endpoint?;
        endpoint.engine.kv_capacity_tokens = options.capacity_tokens;
        endpoint.engine.kv_use = options.capacity_tokens.map(|_| 0.0);
        Some(endpoint)
    });
    let endpoints: Vec<_> = endpoints.collect();
    let all = ("tiny-llama", (0..upstreams.len() as u16).collect::<Vec<_>>());
    let named = if options.pools.is_empty() { vec![all] } else { options.pools.clone() };
    let of_pool = |place: usize| {
        let policy = options.policies.get(place).copied();
        Settings { policy: policy.unwrap_or(settings.policy), ..Settings::clone(&settings) }
    };
    let all: Vec<_> = (0..named.len()).map(of_pool).collect();
    let plan = Arc::new(settings.plan_among(&all));
    let mut snapshot = Snapshot { endpoints, plan, models_complete: true, ..Snapshot::default() };
    for (place, (name, members)) in named.into_iter().enumerate() {
        let id = PoolId(place as u16);
        let entries: Vec<_> =
            snapshot.endpoints.iter().flatten().filter(|endpoint| members.contains(&endpoint.id.slot)).collect();
        let entries: Vec<_> = entries.iter().map(|endpoint| (endpoint.id.slot, &*endpoint.name, 1)).collect();
        let ring = Arc::new(Ring::build(&entries, settings.replication));
        Arc::make_mut(&mut snapshot.models).insert(name.as_bytes().into(), id);
        let mut pool = Pool::new(id, name.into(), members.into(), ring, Arc::new(all[place].clone()));
        pool.context = options.context.unwrap_or(pool.context);
        pool.asks_keys = options.asks_keys;
        snapshot.pools.push(pool);
    }
    Arc::make_mut(&mut snapshot.models_answer).asks_keys = options.asks_keys;
    snapshot.session_headers = settings.session_headers.iter().map(|name| name.as_str().into()).collect();
    if all.iter().any(Settings::counts_tokens) {
        let index = Index::new(Capacity { endpoints: 64, blocks: 1 << 16, lengths: false }).unwrap();
        snapshot.endpoints.iter().flatten().for_each(|endpoint| assert!(index.assign(endpoint.id, None).is_ok()));
        snapshot.index = Some(Arc::new(index));
    }
    snapshot
}

pub fn endpoint(place: usize, address: SocketAddr) -> Endpoint {
    let id = EndpointId { slot: place as u16, generation: 0 };
    Endpoint { health: Health::Up, ..Endpoint::new(id, format!("engine-{place}").into(), address) }
}
