//! Whole fronts that choose by what engines tell of their caches: at the choice exactly that is known, and nothing that
//! they no longer say.

#[path = "../kvevents/frames.rs"]
mod frames;
#[allow(dead_code, reason = "shared with tests/fleet")]
#[path = "../fleet/front.rs"]
mod front;
#[path = "../kvevents/msgpack.rs"]
mod msgpack;
#[path = "../fleet/patience.rs"]
mod patience;
#[path = "../fleet/reserved.rs"]
mod reserved;
#[path = "../relay/untested.rs"]
mod untested;
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
mod ranked;
mod scene;
mod tokens;
mod tools;
mod unrendered;

use patience::{DRIVERS, PATIENCE, on_both, until};
