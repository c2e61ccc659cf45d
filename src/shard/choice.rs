//! Which driver the shards run on: the one asked for, or what this machine has and was measured to be best.

use crate::config::Driver;
use crate::driver::uring::probe::{self, Unusable};
use crate::publish::DriverInUse;

/// A driver, and why it was taken.
#[derive(Clone, Debug)]
pub struct DriverChoice {
    /// What the shards begin with; one that gets no ring for itself falls back to epoll.
    pub driver: DriverInUse,
    /// In words, for log, metrics and `check`.
    pub why: String,
}

/// The driver that was asked for cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}; or leave `driver` at \"auto\"")]
pub struct NotToBeHad(Unusable);

impl NotToBeHad {
    /// Whether another start may do better, without anything changed.
    pub fn is_for_now(&self) -> bool {
        self.0.is_for_now()
    }
}

/// Chooses, and tries io_uring out where it may be taken.
///
/// # Errors
/// When io_uring was asked for and cannot be used; says why.
pub fn choose(asked: Driver) -> Result<DriverChoice, NotToBeHad> {
    let (driver, why) = match asked {
        Driver::Epoll => (DriverInUse::Epoll, "as configured".into()),
        Driver::Uring => {
            probe::usable().map_err(NotToBeHad)?;
            (DriverInUse::Uring, "as configured".into())
        }
        Driver::Auto => match probe::usable() {
            // It is the cheaper on token streams, which are most of what a front does, and about even elsewhere
            // (bench/README.md, Drivers).
            Ok(()) => (DriverInUse::Uring, "it works here and is measured to be the cheaper on token streams".into()),
            Err(why) => (DriverInUse::Epoll, why.to_string()),
        },
    };
    Ok(DriverChoice { driver, why })
}
