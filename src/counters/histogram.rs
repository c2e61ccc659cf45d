//! Histograms with fixed bounds.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds per histogram; one more cell counts what is above the last.
pub const BOUNDS: usize = 24;

/// Upper bounds in microseconds: 0.1 ms to 1,000 s, finer where tokens and first tokens fall.
pub const MICROS: [u64; BOUNDS] = [
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    30_000,
    50_000,
    100_000,
    200_000,
    300_000,
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
    1_000_000_000,
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
        assert!(MICROS.is_sorted_by(|a, b| a < b) && NANOS.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn bounds_are_inclusive() {
        let histogram = Histogram::default();
        for value in [0, 100, 101, 1_000_000_000, 1_000_000_001] {
            histogram.observe(&MICROS, value);
        }
        let mut reading = Reading::new(&MICROS);
        histogram.add_to(&mut reading);
        assert_eq!((reading.cells[0], reading.cells[1], reading.cells[23], reading.cells[24]), (2, 1, 1, 1));
        assert_eq!((reading.count(), reading.sum), (5, 2_000_000_202));
    }
}
