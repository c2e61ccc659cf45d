//! Every bound of the front is real: crowds of half-open, idle, slow and unreading clients against the binary itself,
//! whose memory, descriptors and CPU time are read from `/proc`. On both drivers.
//!
//! `cargo test --test floods -- --nocapture | grep '^|'` prints the figures.

mod client;
mod crowd;
mod engine;
mod front;
#[path = "../relay/untested.rs"]
mod untested;

mod arrivals;
mod buffers;
mod descriptors;
mod drains;
mod heads;
mod storms;
mod streams;
mod uploads;

/// Each scene once on each driver.
macro_rules! on_both_drivers {
    ($($scene:ident),+ $(,)?) => {
        mod epoll {
            $(#[test] fn $scene() { super::$scene("epoll"); })+
        }
        mod uring {
            $(#[test] fn $scene() {
                if crate::untested::has_ring("floods on io_uring") {
                    super::$scene("uring");
                }
            })+
        }
    };
}
use on_both_drivers;
