//! Histograms with fixed bounds.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds per histogram; one more cell counts what is above the last.
pub const BOUNDS: usize = 24;

/// To the first token, upper bounds in microseconds: where promises are made (0.2 to 60 s),
/// and else those of vLLM's `time_to_first_token_seconds`, so that the two can be laid over each other.
pub const FIRST_TOKEN: [u64; BOUNDS] = [
    10_000,
    20_000,
    40_000,
    100_000,
    200_000,
    250_000,
    300_000,
    500_000,
    750_000,
    1_000_000,
    2_000_000,
    2_500_000,
    3_000_000,
    5_000_000,
    7_500_000,
    10_000_000,
    15_000_000,
    20_000_000,
    30_000_000,
    40_000_000,
    60_000_000,
    80_000_000,
    160_000_000,
    640_000_000,
];

/// Between tokens, likewise: all bounds up to 5 s of vLLM's `inter_token_latency_seconds`, and finer below 50 ms.
pub const INTER_TOKEN: [u64; BOUNDS] = [
    2_000, 5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 40_000, 50_000, 75_000, 100_000, 150_000, 200_000, 300_000,
    400_000, 500_000, 750_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 20_000_000, 40_000_000, 80_000_000,
];

/// Of whole requests and of waits in the queue, likewise: all bounds up to 960 s of vLLM's
/// `e2e_request_latency_seconds` and `request_queue_time_seconds`, 3 s, and finer below 0.3 s.
pub const WHOLE: [u64; BOUNDS] = [
    10_000,
    50_000,
    100_000,
    200_000,
    300_000,
    500_000,
    800_000,
    1_000_000,
    1_500_000,
    2_000_000,
    2_500_000,
    3_000_000,
    5_000_000,
    10_000_000,
    15_000_000,
    20_000_000,
    30_000_000,
    40_000_000,
    50_000_000,
    60_000_000,
    120_000_000,
    240_000_000,
    480_000_000,
    960_000_000,
];

/// Upper bounds in nanoseconds: 50 ns to 0.5 s, for what a shard does itself.
pub const NANOS: [u64; BOUNDS] = [
    50,
    100,
    150,
    200,
    300,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
];

/// A histogram written by one shard and read by control.
#[derive(Debug)]
pub(super) struct Histogram {
    cells: [AtomicU64; BOUNDS + 1],
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { cells: [const { AtomicU64::new(0) }; BOUNDS + 1], sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    #[inline]
    pub(super) fn observe(&self, bounds: &[u64; BOUNDS], value: u64) {
        let cell = bounds.partition_point(|&bound| bound < value);
        super::stats::add(&self.cells[cell], 1);
        super::stats::add(&self.sum, value);
    }

    pub(super) fn add_to(&self, reading: &mut Reading) {
        for (cell, sum) in self.cells.iter().zip(&mut reading.cells) {
            *sum += cell.load(Ordering::Relaxed);
        }
        reading.sum = reading.sum.wrapping_add(self.sum.load(Ordering::Relaxed));
    }
}

/// A histogram summed over shards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Upper bounds, inclusive, in the unit of the histogram.
    pub bounds: &'static [u64; BOUNDS],
    /// How many fell into each bucket (not cumulative); the last: above all bounds.
    pub cells: [u64; BOUNDS + 1],
    /// Sum of all values.
    pub sum: u64,
}

impl Reading {
    pub(super) fn new(bounds: &'static [u64; BOUNDS]) -> Reading {
        Reading { bounds, cells: [0; BOUNDS + 1], sum: 0 }
    }

    /// Adds another histogram with the same bounds.
    pub fn add(&mut self, more: &Reading) {
        self.cells.iter_mut().zip(more.cells).for_each(|(cell, more)| *cell += more);
        self.sum = self.sum.wrapping_add(more.sum);
    }

    /// Leaves the values that came since `before`.
    pub(super) fn take_off(&mut self, before: &Reading) {
        self.cells.iter_mut().zip(before.cells).for_each(|(cell, before)| *cell = cell.saturating_sub(before));
        self.sum = self.sum.wrapping_sub(before.sum);
    }

    /// How many values there were. Summed from the buckets, so that the two always agree.
    pub fn count(&self) -> u64 {
        self.cells.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend() {
        for bounds in [FIRST_TOKEN, INTER_TOKEN, WHOLE, NANOS] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }

    /// A part of requests within a time can be told at a bound alone; vLLM's own are told in one panel with ours.
    #[test]
    fn what_is_promised_is_a_bound() {
        let has = |bounds: &[u64; BOUNDS], seconds: &[f64]| {
            seconds.iter().all(|seconds| bounds.contains(&((seconds * 1e6).round() as u64)))
        };
        assert!(has(&FIRST_TOKEN, &[0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0]));
        assert!(has(&FIRST_TOKEN, &[0.01, 0.1, 0.25, 0.75, 2.5, 7.5, 40.0, 80.0, 160.0, 640.0]));
        assert!(has(&INTER_TOKEN, &[0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0]));
        assert!(has(&WHOLE, &[0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0]));
        assert!(has(&WHOLE, &[3.0, 120.0, 240.0, 480.0, 960.0]));
    }

    #[test]
    fn bounds_are_inclusive() {
        let histogram = Histogram::default();
        for value in [0, 10_000, 10_001, 640_000_000, 640_000_001] {
            histogram.observe(&FIRST_TOKEN, value);
        }
        let mut reading = Reading::new(&FIRST_TOKEN);
        histogram.add_to(&mut reading);
        assert_eq!((reading.cells[0], reading.cells[1], reading.cells[23], reading.cells[24]), (2, 1, 1, 1));
        assert_eq!((reading.count(), reading.sum), (5, 1_280_020_002));
    }
}
