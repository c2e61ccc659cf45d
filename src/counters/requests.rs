//! Finished requests by pool, endpoint, status and reason: a fixed table, no allocation, no lock. Once it is full, new
//! combinations are counted by their status alone: they may be what an alarm waits for.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::LABELLED_POOLS_MAX;

/// Rows of one shard's table: 256 KiB. 500 endpoints with 30 combinations each fit.
const ROWS: usize = 16 << 10;
/// How many rows are tried for a key; then the request is counted as overflow.
const PROBES_MAX: usize = 64;
/// Statuses of up to three digits, and 0.
const STATUSES: usize = 1_000;
/// Set in every key, so that none is 0.
const TAKEN: u64 = 1 << 63;

/// What finished requests are counted by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestKey {
    /// Endpoint slot; [`RequestKey::NONE`] when none was chosen, or a lack of ours kept the request from it.
    pub slot: u16,
    /// Labelled pool; [`RequestKey::NONE`] when none was selected.
    pub pool: u16,
    /// Status sent to the client; 0 when it left, or the front ended, before one was.
    pub status: u16,
    /// [`crate::policy::Reason`] as a number; [`RequestKey::NO_REASON`] when nothing was chosen.
    pub reason: u8,
}

impl RequestKey {
    /// No pool, no slot.
    pub const NONE: u16 = u16::MAX;
    /// No reason.
    pub const NO_REASON: u8 = u8::MAX;

    /// The key of a request without a row.
    fn of_status(status: u16) -> RequestKey {
        let (pool, slot, reason) = (LABELLED_POOLS_MAX as u16, RequestKey::NONE, RequestKey::NO_REASON);
        RequestKey { pool, slot, status, reason }
    }

    fn pack(self) -> u64 {
        let (pool, slot) = (u64::from(self.pool), u64::from(self.slot));
        TAKEN | pool << 40 | slot << 24 | u64::from(self.status) << 8 | u64::from(self.reason)
    }

    fn unpack(key: u64) -> RequestKey {
        RequestKey { pool: (key >> 40) as u16, slot: (key >> 24) as u16, status: (key >> 8) as u16, reason: key as u8 }
    }
}

/// One shard's table: written by the shard, read by control.
#[derive(Debug)]
pub(super) struct Requests {
    /// Key (0: free) and count.
    rows: Box<[(AtomicU64, AtomicU64)]>,
    /// Requests that found no row, by status.
    rowless: Box<[AtomicU64]>,
    overflow: AtomicU64,
}

impl Default for Requests {
    fn default() -> Self {
        let rows = (0..ROWS).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect();
        let rowless = (0..STATUSES).map(|_| AtomicU64::new(0)).collect();
        Requests { rows, rowless, overflow: AtomicU64::new(0) }
    }
}

impl Requests {
    #[inline]
    pub(super) fn count(&self, key: RequestKey) {
        let packed = key.pack();
        // Fibonacci hashing: the top bits of the product depend on all of the key.
        let start = (packed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
        for probe in 0..PROBES_MAX {
            let (taken, count) = &self.rows[(start + probe) % ROWS];
            match taken.load(Ordering::Relaxed) {
                0 => taken.store(packed, Ordering::Relaxed),
                other if other != packed => continue,
                _ => {}
            }
            // A reader between the two stores sees a count of 0, which is not wrong.
            return super::stats::add(count, 1);
        }
        super::stats::add(&self.overflow, 1);
        if let Some(count) = self.rowless.get(usize::from(key.status)) {
            super::stats::add(count, 1);
        }
    }

    /// Appends the counts at wanted slots, in no order.
    pub(super) fn add_to(&self, counts: &mut Vec<(RequestKey, u64)>, wanted: &impl Fn(u16) -> bool) {
        let taken = self.rows.iter().map(|(taken, count)| (taken.load(Ordering::Relaxed), count));
        let rows = taken.filter(|(key, _)| *key != 0).map(|(key, count)| (RequestKey::unpack(key), count));
        let rowless = (0..).zip(&self.rowless).map(|(status, count)| (RequestKey::of_status(status), count));
        let rowless = rowless.filter(|(_, count)| count.load(Ordering::Relaxed) > 0);
        let all = rows.chain(rowless).filter(|(key, _)| wanted(key.slot));
        counts.extend(all.map(|(key, count)| (key, count.load(Ordering::Relaxed))));
    }

    pub(super) fn overflow(&self) -> u64 {
        self.overflow.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_unpack_to_themselves() {
        for key in [
            RequestKey { pool: 0, slot: 0, status: 0, reason: 0 },
            RequestKey { pool: 63, slot: 1023, status: 599, reason: 11 },
            RequestKey { pool: u16::MAX, slot: u16::MAX, status: u16::MAX, reason: u8::MAX },
        ] {
            assert_eq!(RequestKey::unpack(key.pack()), key);
        }
    }

    #[test]
    fn a_full_table_counts_overflow_and_loses_nothing() {
        let requests = Requests::default();
        let mut counted = 0;
        for slot in 0..1024 {
            for status in 200..220 {
                for _ in 0..2 {
                    requests.count(RequestKey { pool: 1, slot, status, reason: 3 });
                    counted += 1;
                }
            }
        }
        // In an outage.
        requests.count(RequestKey { pool: 1, slot: 7, status: 502, reason: 3 });
        let mut sums = Vec::new();
        requests.add_to(&mut sums, &|_| true);
        assert!(requests.overflow() > 1 && sums.len() > ROWS * 3 / 4, "{} rows", sums.len());
        assert_eq!(sums.iter().map(|(_, count)| count).sum::<u64>(), counted + 1);
        let of_502 = sums.iter().filter(|(key, _)| key.status == 502).map(|(_, count)| count);
        assert_eq!(of_502.sum::<u64>(), 1);
        let (rowless, with_rows): (Vec<_>, Vec<_>) =
            sums.into_iter().partition(|(key, _)| key.slot == RequestKey::NONE);
        assert!(with_rows.iter().all(|(_, count)| *count == 2));
        assert_eq!(rowless.iter().map(|(_, count)| count).sum::<u64>(), requests.overflow());
    }
}
