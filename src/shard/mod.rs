//! One pinned thread: complete, advance, drive, submit. It owns its clients, its upstream connections
//! and its driver; with the rest of the process it shares the published snapshot, the in-flight
//! counters and its statistics.

mod ahead;
mod audit;
pub mod choice;
mod client;
mod clock;
mod deadlines;
mod drain;
mod drive;
pub mod handover;
mod listeners;
pub mod memory;
mod owner;
pub mod panics;
pub mod placement;
mod queue;
mod shed;
pub mod start;
mod timers;
pub mod topology;
mod upstream;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::counters::Counters;
use crate::counters::stats::{Count, Gauge, ShardStats};
use crate::driver::Driver;
use crate::exchange::{self, Action, Actions, Context, Ending, Lender, Micros, Peer, Random, Rules, Toolsets};
use crate::publish::{Doing, DoingCell, Process, Published, Reader, Records, RulesReader};
use crate::slots::{Key, Slots};
use crate::snapshot::Snapshot;
pub use audit::Audit;
use client::Client;
pub use clock::stopwatch;
use handover::Neighbours;
use owner::Owner;
use queue::Waiters;
use timers::Timers;
use upstream::Upstream;

/// A shard that has nothing to do wakes this often, to show that it lives.
const HEARTBEAT: Micros = 1_000_000;

/// What a shard is made of.
pub struct Setup {
    /// Which of the process's shards it is.
    pub index: u16,
    /// Listeners of its own.
    pub listeners: Vec<OwnedFd>,
    /// Where snapshots appear.
    pub published: &'static Published,
    /// Flags of the process: draining; and where shards say what they are doing.
    pub process: &'static Process,
    /// Where it leaves what the access log is told.
    pub records: &'static Records,
    /// In-flight counts of the fleet.
    pub counters: &'static Counters,
    /// Its statistics.
    pub stats: &'static ShardStats,
    /// Configuration, until other rules are published.
    pub rules: Arc<Rules>,
    /// For its random choices.
    pub seed: u64,
    /// Nanoseconds, to time the scan and the choice with: [`stopwatch`] where time is real.
    pub stopwatch: fn() -> u64,
}

/// What exchanges see of their shard.
struct Desk {
    now: Micros,
    stopwatch: fn() -> u64,
    snapshot: Arc<Snapshot>,
    counters: &'static Counters,
    stats: &'static ShardStats,
    rules: Arc<Rules>,
    leaving: bool,
    draining: bool,
    has_successor: bool,
    lender: Lender,
    actions: Actions,
}

impl Desk {
    fn context(&mut self) -> Context<'_> {
        Context {
            now: self.now,
            stopwatch: self.stopwatch,
            snapshot: &self.snapshot,
            counters: self.counters,
            stats: self.stats,
            rules: &self.rules,
            leaving: self.leaving,
            draining: self.draining,
            has_successor: self.has_successor,
            lender: &mut self.lender,
            actions: &mut self.actions,
        }
    }

    /// Calls `read`, which reads a head that `peer` began at `since`, or refuses half of one. `None`: a fault of ours
    /// broke that off, and the client is to be ended. There is no exchange that could give back memory taken for it, so
    /// that the account is set back to what it was.
    fn read_head<T>(&mut self, peer: Peer, since: Micros, read: impl FnOnce(&mut Context<'_>) -> T) -> Option<T> {
        self.actions.clear();
        let held_bytes = self.lender.held_bytes;
        let read = panics::contained(|| read(&mut self.context())).ok();
        if read.is_none() {
            self.lender.held_bytes = held_bytes;
            exchange::tell_fault(peer, since, &mut self.context());
            self.end_torn();
        }
        read
    }

    /// A fault of ours was contained: all actions are dropped, and the client is ended.
    fn end_torn(&mut self) {
        self.stats.count(Count::Panicked);
        self.actions.clear();
        self.actions.push(Action::End(Ending::Abort));
    }
}

/// The thread's state.
pub struct Shard<D> {
    driver: D,
    clients: Slots<Client>,
    upstreams: Slots<Upstream>,
    /// Idle upstream connections by endpoint slot, oldest first.
    idle: Vec<VecDeque<Key>>,
    /// None of them has been idle for too long before this instant.
    idle_look_at: Micros,
    timers: Timers,
    waiting: Waiters,
    /// Clients that wait for the turn's end with what was read ahead of them.
    line: VecDeque<Key>,
    /// Heads read in this turn.
    heads: u32,
    /// Exchanges that have a leg.
    legs: usize,
    /// When exchanges at endpoints that refuse their probes are looked at next.
    deserted_at: Micros,
    /// Clients whose exchanges have yet to be told that.
    deserted: Vec<Key>,
    /// For so many more turns, at most, deadlines wait for what came while the process stood still.
    catches_up: Option<u32>,
    /// When the time of day is looked at next: records and answers of ours need no look of their own.
    wall_look_at: Micros,
    /// When all accounts are compared entry by entry next.
    audit_at: Micros,
    accepting: bool,
    /// None where its driver cannot.
    neighbours: Option<Neighbours>,
    drain_until: Option<Micros>,
    /// While draining: when it looks for idle clients next.
    drain_look_at: Micros,
    /// Connections end with the reply under way, even if that did not say so: the process ends, and has no successor.
    sends_away: bool,
    /// Connections may still come that were accepted before, here or by a shard that knows of no drain yet.
    stay_until: Micros,
    process: &'static Process,
    doing: &'static DoingCell,
    records: &'static Records,
    reader: Reader,
    rules_reader: RulesReader,
    /// What held bodies may take where the rules leave it to the machine.
    memory_share: usize,
    desk: Desk,
}

impl<D: Driver> Shard<D> {
    /// A shard that listens, but does not serve before [`Shard::run`].
    ///
    /// # Errors
    /// When the driver does not take a listener.
    pub fn new(mut driver: D, setup: Setup) -> io::Result<Shard<D>> {
        for listener in setup.listeners {
            driver.listen(listener)?;
        }
        let mut reader = setup.published.reader();
        let now = driver.now();
        let snapshot = Arc::clone(reader.load());
        setup.stats.chooses_by(snapshot.epoch);
        let rules = setup.rules;
        let share = memory::budget(setup.process.shards().len());
        let budget_bytes = rules.limits.budget_of(share);
        let recorder = setup.records.recorder(&rules);
        let wall_ahead = Some(clock::wall_ahead(now));
        let (shard, state) = (setup.index, &setup.process.shards()[usize::from(setup.index)]);
        let (random, toolsets) = (Random::new(setup.seed), Toolsets::asking(state.toolsets()));
        let lender = Lender { random, budget_bytes, wall_ahead, recorder, toolsets, shard, ..Lender::default() };
        Ok(Shard {
            driver,
            clients: Slots::default(),
            upstreams: Slots::default(),
            idle: Vec::new(),
            idle_look_at: Micros::MAX,
            timers: Timers::new(now),
            waiting: Waiters::default(),
            line: VecDeque::new(),
            heads: 0,
            legs: 0,
            deserted_at: now,
            deserted: Vec::new(),
            catches_up: None,
            wall_look_at: now,
            // Each at a second of its own: a walk of many connections takes a moment of all their streams.
            audit_at: now + setup.seed % audit::WALK,
            accepting: true,
            neighbours: None,
            drain_until: None,
            drain_look_at: now,
            sends_away: false,
            stay_until: 0,
            process: setup.process,
            doing: state.doing(),
            records: setup.records,
            reader,
            rules_reader: setup.published.rules_reader(),
            memory_share: share,
            desk: Desk {
                now,
                stopwatch: setup.stopwatch,
                snapshot,
                counters: setup.counters,
                stats: setup.stats,
                rules,
                leaving: false,
                draining: false,
                has_successor: false,
                lender,
                actions: Actions::default(),
            },
        })
    }

    /// Serves until it is told to drain and its last client has left, or the time to drain is over.
    ///
    /// # Errors
    /// When the kernel fails the driver: nothing can be served then.
    pub fn run(&mut self) -> io::Result<()> {
        while self.turn()? {}
        // No snapshot is used any more.
        self.desk.stats.chooses_by(u64::MAX);
        Ok(())
    }

    /// One turn; answers whether another is to follow. [`Shard::run`] takes all of them. Public for tests whose driver
    /// is a clock and a kernel of its own ([`Driver::now`]).
    ///
    /// # Errors
    /// When the kernel fails the driver.
    pub fn turn(&mut self) -> io::Result<bool> {
        let sleep = self.sleep();
        self.doing.begin(Doing::Waits);
        self.driver.wait(Duration::from_micros(sleep))?;
        if self.desk.lender.shadows.any() {
            self.look_at_shadows();
        }
        let now = self.driver.now();
        let mut quiet = !self.stood_still(now, sleep);
        self.begin_turn(now);
        // Connections handed over by others come first: they count when it is decided who keeps those accepted next.
        self.doing.begin(Doing::Accepts);
        self.take_in();
        while let Some(completion) = self.driver.next() {
            quiet = false;
            self.complete(completion);
        }
        // Once more, as the loop above has silenced the bell: what was rung for before is found now, and later rings
        // end the next wait.
        self.doing.begin(Doing::Accepts);
        self.take_in();
        self.serve_line();
        self.doing.begin(Doing::LooksAtDeadlines);
        self.look_at_deadlines(quiet);
        self.serve_queue();
        self.tidy_up();
        let ended = self.process.draining() && self.drained();
        self.tell_statistics();
        Ok(!ended)
    }

    /// How long the kernel is waited for at most.
    fn sleep(&self) -> Micros {
        if !self.line.is_empty() || !self.deserted.is_empty() || self.desk.lender.shadows.any() {
            return 0;
        }
        let most = if self.desk.draining { self.drain_sleep() } else { HEARTBEAT };
        let charged = self.desk.lender.charges.due().map_or(most, |due| due.saturating_sub(self.desk.now));
        let most = self.waiting.sleep(self.desk.now, most.min(charged));
        self.timers.sleep(self.desk.now, most)
    }

    /// What holds for all of this turn: the instant, the fleet, the rules.
    fn begin_turn(&mut self, now: Micros) {
        (self.desk.now, self.heads) = (now, 0);
        self.desk.stats.beat();
        self.desk.leaving = self.process.leaving();
        let snapshot = self.reader.load();
        if !Arc::ptr_eq(snapshot, &self.desk.snapshot) {
            self.desk.snapshot = Arc::clone(snapshot);
            self.desk.stats.chooses_by(snapshot.epoch);
        }
        if let Some(rules) = self.rules_reader.load()
            && !Arc::ptr_eq(rules, &self.desk.rules)
        {
            self.desk.rules = Arc::clone(rules);
            self.desk.lender.budget_bytes = rules.limits.budget_of(self.memory_share);
            self.desk.lender.recorder = self.records.recorder(rules);
            // The new rules may close idle connections sooner.
            self.idle_look_at = 0;
            self.accept_or_not();
        }
        if self.desk.now >= self.wall_look_at {
            self.wall_look_at = self.desk.now + HEARTBEAT;
            self.desk.lender.wall_ahead = Some(clock::wall_ahead(self.driver.now()));
        }
    }

    /// What no completion asks for.
    fn tidy_up(&mut self) {
        self.doing.begin(Doing::TidiesUp);
        self.close_idle();
        self.desk.lender.charges.expire(self.desk.now);
        self.check_accounts();
        self.look_for_deserted();
    }

    /// What the driver has counted, and what is open and held now.
    fn tell_statistics(&mut self) {
        let stats = self.desk.stats;
        stats.stands_at(Count::BuffersOut, self.driver.buffers_out());
        stats.stands_at(Count::CompletionsOver, self.driver.overflows());
        stats.stands_at(Count::AcceptStalled, self.driver.accept_stalls());
        stats.set(Gauge::Connections, self.clients.len() as u64);
        stats.set(Gauge::Upstreams, self.upstreams.len() as u64);
        stats.set(Gauge::HeldBytes, self.desk.lender.held_bytes as u64);
        stats.set(Gauge::HeldBytesMax, self.desk.lender.budget_bytes as u64);
    }

    /// Asks second policies about the choices of the turn before, whose actions the kernel has by now.
    fn look_at_shadows(&mut self) {
        self.doing.begin(Doing::TidiesUp);
        let Desk { snapshot, counters, stats, lender, .. } = &mut self.desk;
        if panics::contained(|| lender.shadows.look(snapshot, counters, stats)).is_err() {
            stats.count(Count::Panicked);
        }
    }
}
