//! Whole fronts that choose by what engines tell of their caches: what engines say is known at the choice, exactly, and
//! nothing is that they do not say any more.

#[path = "../kvevents/frames.rs"]
mod frames;
#[allow(dead_code, reason = "shared with tests/fleet")]
#[path = "../fleet/front.rs"]
mod front;
#[path = "../kvevents/msgpack.rs"]
mod msgpack;
#[path = "../fleet/reserved.rs"]
mod reserved;
#[allow(dead_code, reason = "shared with tests/relay")]
#[path = "../relay/wire.rs"]
mod wire;

mod another;
mod courses;
mod disks;
mod engine;
mod holding;
mod hostile;
mod keeping;
mod missing;
mod publisher;
mod scene;
mod tokens;
mod tools;
mod unrendered;

use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const DRIVERS: [&str; 2] = ["epoll", "uring"];

fn until(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same on both drivers, at once: most of it is waiting.
fn on_both(test: impl Fn(&'static str) + Sync) {
    std::thread::scope(|scope| {
        for driver in DRIVERS {
            scope.spawn(|| test(driver));
        }
    });
}
