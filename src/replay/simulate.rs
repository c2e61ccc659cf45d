//! One run: requests arrive, a policy chooses, engines make their steps, all in simulated time.
//!
//! At one instant steps end and the next ones begin before metrics are scraped and requests arrive: an engine does
//! not wait for the client that has just read its last token. Nothing reads a clock, and what is random comes
//! from seeds, so the same run twice is the same to the nanosecond.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use super::chooser::{Asked, Chooser, Placed, Turn};
use super::events::Publisher;
use super::fleet::Fleet;
use super::traffic::{Request, Source, Traffic, Window};
use super::waiting::Waiting;
use crate::engine::batch::Outline;
use crate::engine::cache::{ByHash, Change};
use crate::engine::profile::Profile;

/// What is the same in a run whatever the policy.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// The traffic.
    pub source: &'a dyn Source,
    /// Multiple of the traffic's own rate.
    pub load: f64,
    /// The profile of an engine of weight 1.
    pub profile: &'a Profile,
    /// The engines' weights, one each.
    pub weights: &'a [u32],
    /// Tenants among which requests are divided: the first asks nine of ten.
    pub tenants: u16,
}

/// How one request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it arrived.
    pub arrival_ns: u64,
    /// From its arrival to its first token.
    pub ttft_ns: u64,
    /// From its first token to its last.
    pub rest_ns: u64,
    /// Prompt tokens.
    pub prompt: u32,
    /// Prompt tokens found in the cache.
    pub cached: u32,
    /// Prompt tokens that the choice predicted to be found, if it predicts that.
    pub predicted: Option<u32>,
    /// Tokens generated.
    pub output: u32,
    /// Engine that served it.
    pub engine: u16,
    /// Tenant that asked.
    pub tenant: u16,
}

/// How one run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Requests in order of their ends, those outside the window included.
    pub records: Vec<Record>,
    /// The time whose requests and tokens are counted.
    pub window: Window,
    /// Tokens generated inside the window.
    pub tokens: u64,
    /// End of the last request.
    pub end_ns: u64,
    /// Times inside the window that an engine ran out of blocks, and had to compute a sequence anew.
    pub preemptions: u64,
    /// Times that a request was refused inside the window. Its client asked again when it was told to, and its time to
    /// first token counts from its first request.
    pub refusals: u64,
    /// How many engines there were.
    pub engines: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    // In the order in which they happen at one instant.
    StepEnds(usize),
    Scrape,
    Retry,
    Arrives(u64),
}

/// A request in flight.
struct Live {
    request: Request,
    engine: usize,
    number: u64,
    predicted: Option<u32>,
    first_ns: u64,
    cached: u32,
    tokens: u32,
}

struct Simulation<'a> {
    fleet: Fleet,
    /// Present if the policy hears of the caches.
    publisher: Option<Publisher>,
    changes: Vec<Change>,
    chooser: Box<dyn Chooser + 'a>,
    traffic: Box<dyn Traffic + 'a>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Requests that will arrive, by number.
    coming: HashMap<u64, Request>,
    /// Number of the arrival at which the traffic is asked for its next request.
    pulled: Option<u64>,
    /// Arrived, and waiting in the front.
    waiting: Waiting,
    /// Whether a retry is already in the list of events.
    retries: bool,
    /// Requests in flight, by engine and their id there.
    live: Vec<ByHash<Live>>,
    block_tokens: u32,
    tenants: u16,
    arrivals: u64,
    run: Run,
}

/// Runs the traffic until its last request has ended. `ended` counts the ended requests meanwhile.
pub fn run(setting: &Setting<'_>, chooser: Box<dyn Chooser + '_>, ended: &AtomicU64) -> Run {
    let Setting { source, load, profile, weights, tenants } = *setting;
    let profile = Profile { block_size: source.block_tokens(), ..profile.clone() };
    let mut simulation = Simulation {
        fleet: Fleet::new(&profile, weights, chooser.pools_caches()),
        publisher: chooser.hears_events().then(Publisher::default),
        changes: Vec::new(),
        chooser,
        traffic: source.traffic(load),
        events: BinaryHeap::new(),
        coming: HashMap::new(),
        pulled: None,
        waiting: Waiting::default(),
        retries: false,
        live: weights.iter().map(|_| ByHash::default()).collect(),
        block_tokens: source.block_tokens(),
        tenants,
        arrivals: 0,
        run: Run {
            records: Vec::new(),
            window: source.window(load),
            tokens: 0,
            end_ns: 0,
            preemptions: 0,
            refusals: 0,
            engines: weights.len(),
        },
    };
    if simulation.publisher.is_some() {
        simulation.fleet.listen();
    }
    simulation.pull();
    if simulation.chooser.scrape_every_ns().is_some() {
        simulation.events.push(Reverse((0, Event::Scrape)));
    }
    while let Some(Reverse((now_ns, event))) = simulation.events.pop() {
        match event {
            Event::StepEnds(engine) => simulation.step_ends(engine, now_ns, ended),
            Event::Scrape => simulation.scrape(now_ns),
            Event::Retry => simulation.retry(now_ns),
            Event::Arrives(number) => simulation.arrives(number, now_ns),
        }
    }
    simulation.run
}

impl Simulation<'_> {
    /// Asks the traffic for its next request that follows on no other.
    fn pull(&mut self) {
        self.pulled = self.traffic.next().map(|request| self.announce(request));
    }

    fn announce(&mut self, request: Request) -> u64 {
        let number = self.arrivals;
        self.arrivals += 1;
        self.events.push(Reverse((request.arrival_ns, Event::Arrives(number))));
        self.coming.insert(number, request);
        number
    }

    fn arrives(&mut self, number: u64, now_ns: u64) {
        if self.pulled == Some(number) {
            self.pull();
        }
        let Some(request) = self.coming.remove(&number) else { return };
        let behind_others = !self.waiting.is_empty() && self.chooser.retry_every_ns().is_none();
        self.waiting.arrives(number, request);
        // If others wait, it waits for its turn.
        if !behind_others && !self.place(number, now_ns) {
            self.place_waiting(now_ns);
        }
    }

    /// Has waiting requests chosen for, each at its turn, until one waits on and no other has a turn.
    fn place_waiting(&mut self, now_ns: u64) {
        while let Some(first) = self.waiting.first()
            && let Some(turn) = self.chooser.turn(now_ns, first)
        {
            match turn {
                Turn::Ask(number) if self.place(number, now_ns) || self.chooser.retry_every_ns().is_some() => {}
                Turn::Ask(_) => return,
                Turn::Refuse(number, seconds) => self.refuse(number, now_ns, seconds),
            }
        }
        if let Some(every_ns) = self.chooser.retry_every_ns().filter(|_| !self.waiting.is_empty() && !self.retries) {
            self.retries = true;
            self.events.push(Reverse((now_ns + every_ns.max(1), Event::Retry)));
        }
    }

    fn retry(&mut self, now_ns: u64) {
        self.retries = false;
        self.place_waiting(now_ns);
    }

    /// Refuses a request; its client asks again later.
    fn refuse(&mut self, number: u64, now_ns: u64, seconds: u32) {
        let Some(request) = self.waiting.leaves(number) else { return };
        self.run.refusals += u64::from(self.run.window.holds(now_ns));
        self.events.push(Reverse((now_ns + u64::from(seconds.max(1)) * 1_000_000_000, Event::Arrives(number))));
        self.coming.insert(number, request);
    }

    /// Has an engine chosen; false if the request waits on.
    fn place(&mut self, number: u64, now_ns: u64) -> bool {
        let Some(request) = self.waiting.get(number) else { return false };
        let tenant = request.tenant(self.tenants);
        let asked = Asked { number, now_ns, request, block_tokens: self.block_tokens, tenant };
        let Some(Placed { engine, predicted }) = self.chooser.choose(&asked, &self.fleet) else { return false };
        let Some(request) = self.waiting.leaves(number) else { return false };
        // The last token of a prompt is always computed.
        let most = request.findable(self.block_tokens).len() as u32 * self.block_tokens;
        let predicted = predicted.map(|tokens| tokens.min(most));
        let blocks = request.blocks.clone();
        if let Some(publisher) = &mut self.publisher {
            publisher.knows(&blocks);
        }
        let outline = Outline { prompt: request.prompt, output: request.output, blocks };
        if let (Some(id), Some(live)) = (self.fleet.submit(engine, now_ns, &outline), self.live.get_mut(engine)) {
            live.insert(id, Live { request, engine, number, predicted, first_ns: 0, cached: 0, tokens: 0 });
        }
        self.begin(engine, now_ns);
        true
    }

    fn begin(&mut self, engine: usize, now_ns: u64) {
        let preempted = self.fleet.preemptions(engine);
        let ends_ns = self.fleet.begin(engine, now_ns);
        if self.run.window.holds(now_ns) {
            self.run.preemptions += self.fleet.preemptions(engine) - preempted;
        }
        if let Some(ends_ns) = ends_ns {
            self.events.push(Reverse((ends_ns, Event::StepEnds(engine))));
            self.publish(engine, now_ns);
        }
    }

    /// Publishes what the step that begins has changed in its engine's cache.
    fn publish(&mut self, engine: usize, now_ns: u64) {
        let Some(publisher) = &self.publisher else { return };
        self.changes.clear();
        self.fleet.take_changes(engine, &mut self.changes);
        if let Some(batch) = publisher.batch(&self.changes) {
            self.chooser.published(now_ns, engine, &batch);
        }
    }

    fn step_ends(&mut self, engine: usize, now_ns: u64, ended: &AtomicU64) {
        let tokens = self.fleet.end(engine);
        if self.run.window.holds(now_ns) {
            self.run.tokens += tokens.len() as u64;
        }
        let Some(lives) = self.live.get_mut(engine) else { return };
        let mut finished = Vec::new();
        for token in tokens {
            let Some(live) = lives.get_mut(&token.id) else { continue };
            live.tokens += 1;
            if let Some(first) = token.first {
                live.first_ns = now_ns;
                live.cached = first.cached;
                self.chooser.first_token(live.number);
            }
            if token.finish.is_some() {
                finished.extend(lives.remove(&token.id));
            }
        }
        for live in finished {
            ended.fetch_add(1, Ordering::Relaxed);
            self.finish(live, now_ns);
        }
        self.place_waiting(now_ns);
        // The next steps begin before clients that have just read their ends can ask again.
        self.begin(engine, now_ns);
        if self.fleet.shares_cache() {
            (0..self.fleet.len()).for_each(|other| self.begin(other, now_ns));
        }
    }

    fn finish(&mut self, live: Live, now_ns: u64) {
        self.chooser.ended(live.number, live.engine, live.tokens);
        self.run.end_ns = now_ns;
        self.run.records.push(Record {
            arrival_ns: live.request.arrival_ns,
            ttft_ns: live.first_ns - live.request.arrival_ns,
            rest_ns: now_ns - live.first_ns,
            prompt: live.request.prompt,
            cached: live.cached,
            predicted: live.predicted,
            output: live.tokens,
            engine: live.engine as u16,
            tenant: live.request.tenant(self.tenants),
        });
        if let Some(next) = self.traffic.after(&live.request, now_ns) {
            self.announce(next);
        }
    }

    fn scrape(&mut self, now_ns: u64) {
        let Some(every_ns) = self.chooser.scrape_every_ns() else { return };
        let figures: Vec<_> = (0..self.fleet.len()).map(|engine| self.fleet.figures(engine)).collect();
        self.chooser.scraped(now_ns, &figures);
        self.place_waiting(now_ns);
        // Nothing can happen any more unless an event is still to come.
        if !self.events.is_empty() {
            self.events.push(Reverse((now_ns + every_ns.max(1), Event::Scrape)));
        }
    }
}
