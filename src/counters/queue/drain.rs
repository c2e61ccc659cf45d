//! How fast an island's queue drains: releases of the last seconds.

use crate::atomics::{AtomicU64, Ordering};

/// Seconds to look back on, without the current one.
const SECONDS: u64 = 8;
const CELLS: usize = 16;
/// Longest estimate in seconds, and the one if nothing was released lately.
const SECONDS_MAX: u32 = 60;
/// Estimate in seconds before the first release.
const SECONDS_UNKNOWN: u32 = 5;
const COUNT_BITS: u32 = 24;

/// One cell for each of the last seconds: which second it is, and how many requests were released in it.
#[derive(Debug)]
pub struct Drain([AtomicU64; CELLS]);

impl Default for Drain {
    fn default() -> Self {
        Drain(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Drain {
    /// Counts a released request; `now` in microseconds.
    pub fn released(&self, now: u64) {
        let second = second(now);
        let counted = |cell: u64| match cell >> COUNT_BITS == second {
            true => Some(cell + 1),
            false => Some(second << COUNT_BITS | 1),
        };
        let _ = self.0[second as usize % CELLS].fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
    }

    /// Seconds until `count` more requests are released, 1..=[`SECONDS_MAX`].
    pub fn seconds_for(&self, count: u32, now: u64) -> u32 {
        let second = second(now);
        let released = |back: u64| {
            let wanted = second.checked_sub(back).filter(|wanted| *wanted > 0)?;
            let cell = self.0[wanted as usize % CELLS].load(Ordering::Relaxed);
            (cell >> COUNT_BITS == wanted).then_some(cell & ((1 << COUNT_BITS) - 1))
        };
        // Seconds before the first release say nothing: the queue had not begun to move.
        let since = (1..=SECONDS).rev().find(|back| released(*back).is_some());
        let (counted, over) = match since {
            Some(since) => ((1..=since).filter_map(released).sum(), since * 1_000_000),
            // It has moved for less than a second.
            None => (released(0).unwrap_or(0), now % 1_000_000),
        };
        if counted == 0 {
            let never = self.0.iter().all(|cell| cell.load(Ordering::Relaxed) == 0);
            return if never { SECONDS_UNKNOWN } else { SECONDS_MAX };
        }
        let micros = u64::from(count) * over / counted;
        micros.div_ceil(1_000_000).clamp(1, u64::from(SECONDS_MAX)) as u32
    }
}

/// The number of a second; never 0, which is the word of a cell that counted nothing.
fn second(now: u64) -> u64 {
    now / 1_000_000 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn the_wait_is_what_releases_were_lately() {
        let drain = Drain::default();
        assert_eq!(drain.seconds_for(1, 5 * SECOND), SECONDS_UNKNOWN);
        for second in 10..20 {
            (0..10).for_each(|release| drain.released(second * SECOND + release));
        }
        assert_eq!(drain.seconds_for(10, 20 * SECOND), 1);
        assert_eq!(drain.seconds_for(95, 20 * SECOND), 10);
        assert_eq!(drain.seconds_for(10_000, 20 * SECOND), SECONDS_MAX);
        assert_eq!(drain.seconds_for(40, 24 * SECOND), 8, "it stood still for four of the last eight");
        assert_eq!(drain.seconds_for(1, 40 * SECOND), SECONDS_MAX);
    }

    #[test]
    fn what_moves_since_half_a_second_is_believed() {
        let drain = Drain::default();
        (0..50).for_each(|_| drain.released(7 * SECOND));
        assert_eq!(drain.seconds_for(200, 7 * SECOND + SECOND / 2), 2);
    }
}
