//! What is worth a line in the log.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use crate::counters::stats::Count;
use crate::limits::FAULTS_IN_A_ROW_MAX;

/// Why an endpoint was barred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Requests in a row failed by its fault.
    Faults,
    /// One request failed while it was on trial.
    Trial,
    /// It said that it is shutting down.
    Drain,
}

impl Why {
    /// In words.
    pub fn as_str(self) -> &'static str {
        const _: () = assert!(FAULTS_IN_A_ROW_MAX == 3, "the words below say so");
        match self {
            Why::Faults => "3 requests in a row failed by its fault",
            Why::Trial => "its request on trial failed",
            Why::Drain => "it says that it is shutting down",
        }
    }
}

/// Why an endpoint was barred, and what the last fault was, by its name in `upstream_faults`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// Why it was.
    pub why: Why,
    /// The fault for which it was barred, if it was for one.
    pub last: Option<Count>,
}

impl Display for Trouble {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str(self.why.as_str())?;
        match (self.why, self.last) {
            (Why::Faults, Some(last)) => write!(to, ", the last by {}", last.name()),
            (Why::Trial, Some(last)) => write!(to, " by {}", last.name()),
            _ => Ok(()),
        }
    }
}

/// A change that is worth a line in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Answers its probes, and serves; its models may be others than before.
    Up,
    /// Answers its probes, and has yet to stand its trial; its models may be others than before.
    Answers,
    /// Fails its probes.
    Down,
    /// Does not answer them in time, and stays, because too many others are out.
    Slow,
    /// Answers them in time again.
    InTime,
    /// Gets nothing new for this time.
    Ejected(Why, Duration),
    /// Failed, and stays, because too many others are out.
    Spared,
    /// Failed, and stays; too soon to be logged again, since faults may go on as fast as requests come.
    SparedAgain,
    /// Gets one request at a time, beside what is open there from before.
    Trial,
    /// Stood its trial.
    Recovered,
    /// Is another process than the one that was barred.
    Anew,
}
