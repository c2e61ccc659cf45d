//! What each shard counts for itself: one writer, on cache lines of its own, read by control without locks.
//!
//! The memory of one shard is a sum: 264 KiB of requests, 65 pools with 4 histograms of 208 bytes (57 KiB with what
//! pads them), 16 KiB and 208 bytes an endpoint of first tokens, 3 KiB of how requests ended, 3 KiB of tokens, and
//! 2 KiB of counters; 41 KiB more where a policy is compared with another.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

pub use super::counts::Count;
pub use super::ended::Ended;
pub use super::histogram::{BOUNDS, Reading};
pub use super::requests::RequestKey;
pub use super::shadows::{POLICIES, Shadowed};
pub use super::tokens::TokenCount;

use super::ended::Endings;
use super::first_tokens::FirstTokens;
use super::histogram::{FIRST_TOKEN, Histogram, INTER_TOKEN, NANOS, WHOLE};
use super::requests::Requests;
use super::shadows::Shadows;
use super::tokens::TokenCounts;
use crate::limits::LABELLED_POOLS_MAX;

/// Times of requests, by pool, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Timing {
    /// From the request's last byte to the first token, the wait in the queue included.
    FirstToken,
    /// Between two reads of a stream after its first token.
    InterToken,
    /// From the request's first byte to the reply's last.
    Total,
    /// In the queue, for requests that were released from it.
    Queue,
}

impl Timing {
    /// All of them, in the order of their numbers.
    pub const ALL: [Timing; 4] = [Timing::FirstToken, Timing::InterToken, Timing::Total, Timing::Queue];

    /// What it is told apart by.
    fn bounds(self) -> &'static [u64; BOUNDS] {
        match self {
            Timing::FirstToken => &FIRST_TOKEN,
            Timing::InterToken => &INTER_TOKEN,
            Timing::Total | Timing::Queue => &WHOLE,
        }
    }
}

/// Times of the shard's own work, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Work {
    /// Scanning one body.
    Scan,
    /// Choosing an endpoint.
    Choose,
}

impl Work {
    /// All of them, in the order of their numbers.
    pub const ALL: [Work; 2] = [Work::Scan, Work::Choose];
}

/// What a shard has at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Gauge {
    /// Client connections.
    Connections,
    /// Connections to engines, busy or idle.
    Upstreams,
    /// Bytes of held bodies and heads.
    HeldBytes,
    /// Most of these bytes that it may have.
    HeldBytesMax,
    /// Requests that it has counted in flight at endpoints.
    InFlight,
}

impl Gauge {
    /// All of them, in the order of their numbers.
    pub const ALL: [Gauge; 5] =
        [Gauge::Connections, Gauge::Upstreams, Gauge::HeldBytes, Gauge::HeldBytesMax, Gauge::InFlight];
}

/// Adds by load and store: a cell has one writer, so that no locked instruction is needed.
#[inline]
pub(super) fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// The statistics of all shards.
#[derive(Debug)]
pub struct Stats {
    shards: Box<[CachePadded<ShardStats>]>,
}

impl Stats {
    /// Statistics of `shards` shards, all zero, that live as long as the process.
    pub fn leak(shards: usize) -> &'static Stats {
        Box::leak(Box::new(Stats { shards: (0..shards).map(|_| CachePadded::default()).collect() }))
    }

    /// What one shard writes. Panics when there is no such shard, which is a fault of the start.
    pub fn shard(&self, shard: usize) -> &ShardStats {
        &self.shards[shard]
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The oldest epoch that any shard chooses by: all choose by its snapshot or a later one.
    pub fn epoch(&self) -> u64 {
        self.shards.iter().map(|shard| shard.epoch.load(Ordering::Acquire)).min().unwrap_or(0)
    }

    /// How often an event was counted.
    pub fn total(&self, count: Count) -> u64 {
        self.shards.iter().map(|shard| shard.counts[count as usize].load(Ordering::Relaxed)).sum()
    }

    /// A gauge over all shards.
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.shards.iter().map(|shard| shard.gauges[gauge as usize].load(Ordering::Relaxed)).sum()
    }

    /// Finished requests at wanted slots, in the order of their keys; sorted once at the end, since there may be a
    /// million rows.
    pub fn requests(&self, wanted: impl Fn(u16) -> bool) -> Vec<(RequestKey, u64)> {
        let mut sums = Vec::new();
        self.shards.iter().for_each(|shard| shard.requests.add_to(&mut sums, &wanted));
        sums.sort_unstable_by_key(|(key, _)| *key);
        sums.dedup_by(|(key, more), (before, sum)| {
            let is_same = key == before;
            *sum += if is_same { *more } else { 0 };
            is_same
        });
        sums
    }

    /// Finished requests that found no row in a shard's table, and are counted by their status alone.
    pub fn requests_overflow(&self) -> u64 {
        self.shards.iter().map(|shard| shard.requests.overflow()).sum()
    }

    /// How many of a pool's requests ended like this; pools from [`LABELLED_POOLS_MAX`] on, and requests of no pool,
    /// are one.
    pub fn ended(&self, pool: u16, ended: Ended) -> u64 {
        self.shards.iter().map(|shard| shard.endings.of(pool, ended)).sum()
    }

    /// Tokens of a pool's requests; pools from [`LABELLED_POOLS_MAX`] on, and none, are one.
    pub fn tokens(&self, pool: u16, which: TokenCount) -> u64 {
        self.shards.iter().map(|shard| shard.tokens.of(pool, which)).sum()
    }

    /// Times of one pool's requests; pools from [`LABELLED_POOLS_MAX`] on share one histogram.
    pub fn timing(&self, pool: u16, timing: Timing) -> Reading {
        let mut reading = Reading::new(timing.bounds());
        self.shards.iter().for_each(|shard| shard.pools[labelled(pool)][timing as usize].add_to(&mut reading));
        reading
    }

    /// A count of what a shadow policy, given by its number, would have done in a pool; pools from
    /// [`LABELLED_POOLS_MAX`] on are one.
    pub fn shadowed(&self, pool: u16, policy: u8, what: Shadowed) -> u64 {
        self.shards.iter().map(|shard| shard.shadows.of(pool, policy, what)).sum()
    }

    /// Times to first token of the requests sent to a slot.
    pub fn first_tokens(&self, slot: u16) -> Reading {
        let mut reading = Reading::new(&FIRST_TOKEN);
        self.shards.iter().for_each(|shard| shard.first_tokens.add_to(slot, &mut reading));
        reading
    }

    /// Times of the shards' own work.
    pub fn work(&self, work: Work) -> Reading {
        let mut reading = Reading::new(&NANOS);
        self.shards.iter().for_each(|shard| shard.work[work as usize].add_to(&mut reading));
        reading
    }
}

/// The row of a pool: its own, or the one that all further pools share.
#[inline]
pub(super) fn labelled(pool: u16) -> usize {
    (pool as usize).min(LABELLED_POOLS_MAX)
}

/// What one shard writes and control reads. Its methods that write are for that shard alone: two
/// writers would lose counts.
#[derive(Debug)]
pub struct ShardStats {
    turns: CachePadded<AtomicU64>,
    epoch: AtomicU64,
    counts: [AtomicU64; Count::ALL.len()],
    gauges: [AtomicU64; Gauge::ALL.len()],
    work: [Histogram; Work::ALL.len()],
    pools: Box<[CachePadded<[Histogram; Timing::ALL.len()]>]>,
    first_tokens: FirstTokens,
    requests: Requests,
    endings: Endings,
    tokens: TokenCounts,
    shadows: Shadows,
}

impl Default for ShardStats {
    fn default() -> Self {
        ShardStats {
            turns: CachePadded::default(),
            epoch: AtomicU64::new(0),
            counts: [const { AtomicU64::new(0) }; Count::ALL.len()],
            gauges: [const { AtomicU64::new(0) }; Gauge::ALL.len()],
            work: Default::default(),
            pools: (0..=LABELLED_POOLS_MAX).map(|_| CachePadded::default()).collect(),
            first_tokens: FirstTokens::default(),
            requests: Requests::default(),
            endings: Endings::default(),
            tokens: TokenCounts::default(),
            shadows: Shadows::default(),
        }
    }
}

impl ShardStats {
    /// Counts an event.
    #[inline]
    pub fn count(&self, count: Count) {
        self.add(count, 1);
    }

    /// How often an event was counted.
    pub fn count_of(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Counts an event `n` times, or that many bytes.
    #[inline]
    pub fn add(&self, count: Count, n: u64) {
        add(&self.counts[count as usize], n);
    }

    /// Takes over what the shard's driver counts for itself: its total, for a count that nobody else adds to.
    #[inline]
    pub fn stands_at(&self, count: Count, total: u64) {
        self.counts[count as usize].store(total, Ordering::Relaxed);
    }

    /// Counts a finished request; pools from [`LABELLED_POOLS_MAX`] on as that number.
    #[inline]
    pub fn request(&self, key: RequestKey) {
        let pool = if key.pool == RequestKey::NONE { key.pool } else { labelled(key.pool) as u16 };
        self.requests.count(RequestKey { pool, ..key });
    }

    /// Counts how one of the pool's requests ended; [`RequestKey::NONE`]: of no pool.
    #[inline]
    pub fn ends(&self, pool: u16, ended: Ended) {
        self.endings.count(pool, ended);
    }

    /// Counts tokens of one of the pool's requests; of no pool as [`RequestKey::NONE`].
    #[inline]
    pub fn count_tokens(&self, pool: u16, which: TokenCount, tokens: u32) {
        self.tokens.add(pool, which, tokens.into());
    }

    /// Counts a time of one of the pool's requests.
    #[inline]
    pub fn observe(&self, pool: u16, timing: Timing, micros: u64) {
        self.pools[labelled(pool)][timing as usize].observe(timing.bounds(), micros);
    }

    /// Counts what a shadow policy would have done for one of the pool's requests.
    #[inline]
    pub fn shadow(&self, pool: u16, policy: u8, what: Shadowed, n: u64) {
        self.shadows.add(pool, policy, what, n);
    }

    /// Counts the time from the sending of a request to the endpoint in `slot` until its first token.
    #[inline]
    pub fn first_token_of(&self, slot: u16, micros: u64) {
        self.first_tokens.observe(slot, micros);
    }

    /// Counts a time of the shard's own work.
    #[inline]
    pub fn worked(&self, work: Work, nanos: u64) {
        self.work[work as usize].observe(&NANOS, nanos);
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&self, gauge: Gauge, value: u64) {
        self.gauges[gauge as usize].store(value, Ordering::Relaxed);
    }

    /// A gauge of this shard.
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.gauges[gauge as usize].load(Ordering::Relaxed)
    }

    /// The shard begins a turn of its loop: its heartbeat.
    #[inline]
    pub fn beat(&self) {
        add(&self.turns, 1);
    }

    /// From now on the shard chooses by the snapshot of this epoch.
    pub fn chooses_by(&self, epoch: u64) {
        // Release: a reader also sees the choices by snapshots before.
        self.epoch.store(epoch, Ordering::Release);
    }

    /// Turns so far. A shard that has work and makes no turns hangs.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_sum_over_shards() {
        let stats = Stats::leak(3);
        let key = RequestKey { pool: 2, slot: 5, status: 200, reason: 3 };
        for shard in 0..stats.shards() {
            let shard = stats.shard(shard);
            shard.count(Count::Accepted);
            shard.add(Count::BytesIn, 100);
            shard.request(key);
            shard.observe(2, Timing::FirstToken, 1_500);
            shard.worked(Work::Choose, 90);
            shard.set(Gauge::Connections, 7);
            shard.beat();
        }
        assert_eq!((stats.total(Count::Accepted), stats.total(Count::BytesIn)), (3, 300));
        assert_eq!(stats.total(Count::BytesOut), 0);
        assert_eq!(stats.requests(|_| true), [(key, 3)]);
        assert_eq!(stats.requests(|slot| slot != 5), []);
        assert_eq!((stats.timing(2, Timing::FirstToken).sum, stats.timing(2, Timing::Total).count()), (4_500, 0));
        assert_eq!((stats.work(Work::Choose).count(), stats.work(Work::Scan).count()), (3, 0));
        assert_eq!((stats.gauge(Gauge::Connections), stats.shard(1).turns()), (21, 1));
    }

    #[test]
    fn first_tokens_are_read_by_endpoint() {
        let stats = Stats::leak(2);
        stats.shard(0).first_token_of(5, 1_500);
        stats.shard(1).first_token_of(5, 500);
        stats.shard(1).first_token_of(6, 70);
        stats.shard(1).first_token_of(u16::MAX, 9);
        let of = |slot| (stats.first_tokens(slot).count(), stats.first_tokens(slot).sum);
        assert_eq!((of(5), of(6), of(7), of(u16::MAX)), ((2, 2_000), (1, 70), (0, 0), (0, 0)));
    }

    #[test]
    fn pools_without_a_label_share_a_row() {
        let stats = Stats::leak(1);
        let beyond = LABELLED_POOLS_MAX as u16;
        stats.shard(0).observe(beyond, Timing::Total, 1);
        stats.shard(0).observe(beyond + 900, Timing::Total, 1);
        assert_eq!(stats.timing(beyond + 5, Timing::Total).count(), 2);
        let key = RequestKey { pool: beyond + 900, slot: 1, status: 200, reason: 0 };
        stats.shard(0).request(key);
        stats.shard(0).request(RequestKey { pool: RequestKey::NONE, ..key });
        let pools: Vec<u16> = stats.requests(|_| true).into_iter().map(|(key, _)| key.pool).collect();
        assert_eq!(pools, [beyond, RequestKey::NONE]);
    }
}
