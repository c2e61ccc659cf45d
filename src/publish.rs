//! Where control and shards meet: snapshot and rules, each replaced whole, and the few flags of the process.

mod doing;
mod records;

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption, Cache};
use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;

use crate::atomics::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::exchange::{Rules, Wanted};
use crate::snapshot::Snapshot;
pub use doing::{Doing, DoingCell};
pub use records::Records;

/// The shared pointers. Shards read them once a turn through a [`Cache`]: one atomic load each while unchanged.
#[derive(Debug)]
pub struct Published {
    snapshot: ArcSwap<Snapshot>,
    /// Rules that replace those the shards began with.
    rules: ArcSwapOption<Rules>,
}

/// A shard's reader.
pub type Reader = Cache<&'static ArcSwap<Snapshot>, Arc<Snapshot>>;
/// A shard's reader of rules that replace its own.
pub type RulesReader = Cache<&'static ArcSwapOption<Rules>, Option<Arc<Rules>>>;

impl Published {
    /// Starts with `first`. Lives as long as the process, so that shards may hold plain references.
    pub fn leak(mut first: Snapshot) -> &'static Published {
        first.seal();
        Box::leak(Box::new(Published { snapshot: ArcSwap::from_pointee(first), rules: ArcSwapOption::empty() }))
    }

    /// Replaces the snapshot.
    pub fn publish(&self, mut next: Snapshot) {
        next.seal();
        self.snapshot.store(Arc::new(next));
    }

    /// Replaces the rules, for requests in flight as well.
    pub fn publish_rules(&self, rules: Rules) {
        self.rules.store(Some(Arc::new(rules)));
    }

    /// The snapshot as it is now, for control and the admin listener.
    pub fn current(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// A reader for one shard.
    pub fn reader(&'static self) -> Reader {
        Cache::new(&self.snapshot)
    }

    /// The same for rules.
    pub fn rules_reader(&'static self) -> RulesReader {
        Cache::new(&self.rules)
    }
}

/// What control and shards tell each other beside the snapshot.
#[derive(Debug)]
pub struct Process {
    leaving: AtomicBool,
    draining: AtomicBool,
    has_successor: AtomicBool,
    cut: AtomicU64,
    shards: Box<[CachePadded<ShardState>]>,
}

impl Process {
    /// For `shards` shards, none of them serving yet. Lives as long as the process.
    pub fn leak(shards: usize) -> &'static Process {
        let shards = (0..shards).map(|_| CachePadded::new(ShardState::default())).collect();
        let [leaving, draining, has_successor] = [false; 3].map(AtomicBool::new);
        Box::leak(Box::new(Process { leaving, draining, has_successor, cut: AtomicU64::new(0), shards }))
    }

    /// The process was told to end, and drains next: `/readyz` says so, and no other process may take its place.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Whether it was told to end.
    pub fn leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Whether connections are to be finished and no new ones taken. Shards ask once a turn.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether it ends, or was told to: nothing new may begin.
    pub fn is_ending(&self) -> bool {
        self.leaving() || self.draining()
    }

    /// Begins the drain, also where shards sleep; there is no way back.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.shards.iter().for_each(|shard| shard.wake());
    }

    /// Another process serves from the same sockets: drains without closing connections
    /// that may be asked on this moment.
    pub fn give_way(&self) {
        self.has_successor.store(true, Ordering::Release);
        self.drain();
    }

    /// Whether clients whose connection ends find another process at once.
    pub fn has_successor(&self) -> bool {
        self.has_successor.load(Ordering::Acquire)
    }

    /// A request of a shard's has lasted longer than a drain may.
    pub fn count_cut(&self) {
        self.cut.fetch_add(1, Ordering::Relaxed);
    }

    /// How many have, once all shards have ended.
    pub fn cut(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }

    /// One entry a shard. A shard writes its own only.
    pub fn shards(&self) -> &[CachePadded<ShardState>] {
        &self.shards
    }

    /// Whether every shard accepts connections.
    pub fn all_serving(&self) -> bool {
        self.shards.iter().all(|shard| shard.phase() == Phase::Serving)
    }
}

/// What one shard shows of itself.
#[derive(Debug)]
pub struct ShardState {
    phase: AtomicU8,
    /// And why so.
    driver: OnceLock<(DriverInUse, String)>,
    bell: ArcSwapOption<OwnedFd>,
    doing: DoingCell,
    records: Records,
    toolsets: ArrayQueue<Wanted>,
    stalls: AtomicU64,
    wedged: AtomicBool,
}

/// A shard's wants that control has not seen yet, at most.
const WANTED_MAX: usize = 4;

impl Default for ShardState {
    fn default() -> Self {
        ShardState {
            phase: AtomicU8::default(),
            driver: OnceLock::new(),
            bell: ArcSwapOption::empty(),
            doing: DoingCell::default(),
            records: Records::default(),
            toolsets: ArrayQueue::new(WANTED_MAX),
            stalls: AtomicU64::default(),
            wedged: AtomicBool::default(),
        }
    }
}

/// Where a shard is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Not accepting yet.
    Starting,
    /// Its listeners are open.
    Serving,
    /// Its thread has ended.
    Ended,
}

/// How a shard moves bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriverInUse {
    /// epoll.
    Epoll,
    /// io_uring.
    Uring,
}

impl DriverInUse {
    /// As metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            DriverInUse::Epoll => "epoll",
            DriverInUse::Uring => "uring",
        }
    }
}

impl ShardState {
    /// The shard's listeners are open and it moves bytes with `driver`, for the reason `why`.
    pub fn now_serves(&self, driver: DriverInUse, why: &str) {
        self.driver.get_or_init(|| (driver, why.to_owned()));
        self.phase.store(Phase::Serving as u8, Ordering::Release);
    }

    /// The shard's driver returns from its wait when `bell`, an eventfd, is rung. To be said before it serves.
    pub fn wakes_by(&self, bell: Arc<OwnedFd>) {
        self.bell.store(Some(bell));
    }

    /// Has the shard take a turn now. One without a bell looks around by itself within a second.
    fn wake(&self) {
        if let Some(bell) = self.bell.load_full() {
            // It fails where the bell is ringing already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// The shard's thread ends, and needs no bell.
    pub fn now_ends(&self) {
        self.bell.store(None);
        self.phase.store(Phase::Ended as u8, Ordering::Release);
    }

    /// Where it is in its life.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Starting,
            1 => Phase::Serving,
            _ => Phase::Ended,
        }
    }

    /// What it is doing.
    pub fn doing(&self) -> &DoingCell {
        &self.doing
    }

    /// What it tells the access log.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Sets of tools of which it wants to know how chats with them are written.
    pub fn toolsets(&self) -> &ArrayQueue<Wanted> {
        &self.toolsets
    }

    /// Control sees whether it has stood still for long.
    pub fn set_wedged(&self, wedged: bool) {
        self.wedged.store(wedged, Ordering::Relaxed);
    }

    /// Whether control sees it stand still, and has for long.
    pub fn is_wedged(&self) -> bool {
        self.wedged.load(Ordering::Relaxed)
    }

    /// Control saw it stand still.
    pub fn count_stall(&self) {
        self.stalls.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it was seen to stand still.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// How it moves bytes, as metrics name it, and why so, in words.
    pub fn driver(&self) -> (&'static str, &str) {
        self.driver.get().map_or(("undecided", ""), |(driver, why)| (driver.as_str(), why))
    }
}
