//! How long tests wait for what is to come, and on which drivers they run.

use std::time::{Duration, Instant};

use crate::untested;

pub const PATIENCE: Duration = Duration::from_secs(20);
/// `auto` is io_uring, or epoll once more if this machine gives no ring.
pub const DRIVERS: [&str; 2] = ["epoll", "auto"];

pub fn until(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a test on both drivers, side by side: most of its time is waiting.
pub fn on_both(test: impl Fn(&'static str) + Sync) {
    untested::has_ring("fronts on io_uring");
    std::thread::scope(|scope| {
        for driver in DRIVERS {
            scope.spawn(|| test(driver));
        }
    });
}
