//! The clocks that are read beside the driver's.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::exchange::Micros;

/// Nanoseconds of a monotone clock.
pub fn stopwatch() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// How far the time, in microseconds since 1970, is ahead of the driver's clock, which shows `now`.
pub(super) fn wall_ahead(now: Micros) -> Micros {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    wall.wrapping_sub(now)
}
