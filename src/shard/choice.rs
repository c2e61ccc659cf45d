//! Which driver the shards run on: the one asked for, or what this machine has and was measured to be best.

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

/// The driver that was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}; or leave `driver` at \"auto\"")]
pub struct NotToBeHad(Unusable);

impl NotToBeHad {
    /// Whether another start may do better, without anything changed.
    pub fn is_for_now(&self) -> bool {
        self.0.is_for_now()
    }
}

/// Chooses: `None` is "auto". Tries io_uring out where it may be taken.
///
/// # Errors
/// When io_uring was asked for and cannot be used; says why.
pub fn choose(asked: Option<DriverInUse>) -> Result<DriverChoice, NotToBeHad> {
    let usable = match asked {
        Some(DriverInUse::Uring) => probe::usable(),
        Some(DriverInUse::Epoll) => {
            return Ok(DriverChoice { driver: DriverInUse::Epoll, why: "as configured".into() });
        }
        None => probe::usable(),
    };
    match (asked, usable) {
        (Some(_), Ok(())) => Ok(DriverChoice { driver: DriverInUse::Uring, why: "as configured".into() }),
        (Some(_), Err(why)) => Err(NotToBeHad(why)),
        // It is the cheaper on token streams, which are most of what a front does, and about even elsewhere
        // (bench/README.md, Drivers).
        (None, Ok(())) => Ok(DriverChoice {
            driver: DriverInUse::Uring,
            why: "it works here and is measured to be the cheaper on token streams".into(),
        }),
        (None, Err(why)) => Ok(DriverChoice { driver: DriverInUse::Epoll, why: why.to_string() }),
    }
}
