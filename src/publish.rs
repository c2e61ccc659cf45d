//! What control and shards share: snapshot and rules, each replaced as a whole, and the few flags of the process.

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
    /// Rules that replace those that the shards began with.
    rules: ArcSwapOption<Rules>,
}

/// A shard's reader.
pub type Reader = Cache<&'static ArcSwap<Snapshot>, Arc<Snapshot>>;
/// A shard's reader of rules that replace its own.
pub type RulesReader = Cache<&'static ArcSwapOption<Rules>, Option<Arc<Rules>>>;

impl Published {
    /// Makes it with the snapshot `first`. It lives as long as the process, so that shards may hold plain references.
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

    /// Returns the current snapshot, for control and the admin listener.
    pub fn current(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Makes a reader for one shard.
    pub fn reader(&'static self) -> Reader {
        Cache::new(&self.snapshot)
    }

    /// Makes a reader of rules.
    pub fn rules_reader(&'static self) -> RulesReader {
        Cache::new(&self.rules)
    }
}

/// What control and shards tell each other beside the snapshot.
#[derive(Debug)]
pub struct Process {
    leaving: AtomicBool,
    draining: AtomicBool,
    handing_on: AtomicBool,
    has_successor: AtomicBool,
    cut: AtomicU64,
    shards: Box<[CachePadded<ShardState>]>,
}

impl Process {
    /// Makes it for `shards` shards, none of them serving yet. It lives as long as the process.
    pub fn leak(shards: usize) -> &'static Process {
        let shards = (0..shards).map(|_| CachePadded::new(ShardState::default())).collect();
        let [leaving, draining, handing_on, has_successor] = [false; 4].map(AtomicBool::new);
        Box::leak(Box::new(Process { leaving, draining, handing_on, has_successor, cut: AtomicU64::new(0), shards }))
    }

    /// Notes that the process was told to end, and drains next: `/readyz` says so, and no other process may take its
    /// place.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Whether the process was told to end.
    pub fn leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Whether connections are to be finished and no new ones taken. Shards ask once a turn.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether the process ends, or was told to: nothing new may begin.
    pub fn is_ending(&self) -> bool {
        self.leaving() || self.draining()
    }

    /// Begins the drain and wakes sleeping shards; it cannot be taken back.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.shards.iter().for_each(|shard| shard.wake());
    }

    /// Sets whether another process is being started to take this one's place.
    pub fn hands_on(&self, handing_on: bool) {
        self.handing_on.store(handing_on, Ordering::Release);
    }

    /// Whether another process, which reads the configuration anew, may soon serve in this one's place.
    pub fn is_handing_on(&self) -> bool {
        self.handing_on.load(Ordering::Acquire)
    }

    /// Begins the drain because another process serves from the same sockets: connections on which the client may ask
    /// at this moment are not closed.
    pub fn give_way(&self) {
        self.has_successor.store(true, Ordering::Release);
        self.drain();
    }

    /// Whether clients whose connection ends find another process at once.
    pub fn has_successor(&self) -> bool {
        self.has_successor.load(Ordering::Acquire)
    }

    /// Counts a request that was cut because it lasted longer than a drain may.
    pub fn count_cut(&self) {
        self.cut.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of requests that were cut, complete once all shards have ended.
    pub fn cut(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }

    /// One entry for each shard. A shard writes only its own.
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
    /// The driver in use, and why.
    driver: OnceLock<(DriverInUse, String)>,
    bell: ArcSwapOption<OwnedFd>,
    doing: DoingCell,
    records: Records,
    toolsets: ArrayQueue<Wanted>,
    stalls: AtomicU64,
    wedged: AtomicBool,
}

/// Most sets of tools of one shard that wait for control.
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
    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            DriverInUse::Epoll => "epoll",
            DriverInUse::Uring => "uring",
        }
    }
}

impl ShardState {
    /// Notes that the shard's listeners are open and that it moves bytes with `driver`, for the reason `why`.
    pub fn now_serves(&self, driver: DriverInUse, why: &str) {
        self.driver.get_or_init(|| (driver, why.to_owned()));
        self.phase.store(Phase::Serving as u8, Ordering::Release);
    }

    /// Sets the eventfd `bell`, at which the shard's driver returns from its wait. To be called before the shard
    /// serves.
    pub fn wakes_by(&self, bell: Arc<OwnedFd>) {
        self.bell.store(Some(bell));
    }

    /// Has the shard take a turn now. A shard without a bell takes one within a second.
    fn wake(&self) {
        if let Some(bell) = self.bell.load_full() {
            // It fails if the bell is ringing already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Notes that the shard's thread ends, and needs no bell.
    pub fn now_ends(&self) {
        self.bell.store(None);
        self.phase.store(Phase::Ended as u8, Ordering::Release);
    }

    /// Returns where the shard is in its life.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Starting,
            1 => Phase::Serving,
            _ => Phase::Ended,
        }
    }

    /// What the shard is doing.
    pub fn doing(&self) -> &DoingCell {
        &self.doing
    }

    /// The shard's records for the access log and receipts.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Sets of tools for which the shard wants to know how chats with them are written.
    pub fn toolsets(&self) -> &ArrayQueue<Wanted> {
        &self.toolsets
    }

    /// Sets whether control sees the shard stand still for long.
    pub fn set_wedged(&self, wedged: bool) {
        self.wedged.store(wedged, Ordering::Relaxed);
    }

    /// Whether control sees the shard stand still for long.
    pub fn is_wedged(&self) -> bool {
        self.wedged.load(Ordering::Relaxed)
    }

    /// Counts that control saw the shard stand still.
    pub fn count_stall(&self) {
        self.stalls.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the shard was seen to stand still.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Returns the driver's name in metrics, and why it is in use, in words.
    pub fn driver(&self) -> (&'static str, &str) {
        self.driver.get().map_or(("undecided", ""), |(driver, why)| (driver.as_str(), why))
    }
}
