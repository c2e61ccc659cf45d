//! The processes that answer at one address: which of them is new.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How many processes at one address are told apart, the last that came: more than a gateway has behind it.
const PROCESSES: usize = 512;
/// Processes that do not say when they began do not count as new if they follow one another sooner than this.
const BY_TURNS: Duration = Duration::from_secs(30);

/// The processes that answered at one address. If several answer by turns, as behind a gateway, none of them counts as
/// new: slow starts would never end there, and faults would be forgotten each second.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    /// When the processes that say so began.
    began: VecDeque<f64>,
    /// When another process last seemed to answer, if they do not say when they began.
    renewed: Option<Instant>,
}

impl Processes {
    /// Takes in that another process seems to answer than before. `before` and `began`: when each began, if it says so.
    /// Returns whether it is a new one, and not one that was there before.
    pub fn join(&mut self, before: Option<f64>, began: Option<f64>, now: Instant) -> bool {
        let Some(began) = began.filter(|began| before != Some(*began)) else {
            let renewed = self.renewed.replace(now);
            return renewed.is_none_or(|renewed| now.saturating_duration_since(renewed) >= BY_TURNS);
        };
        before.into_iter().for_each(|before| _ = self.know(before));
        !self.know(began)
    }

    /// Notes a process; whether it was known.
    fn know(&mut self, began: f64) -> bool {
        let is_known = self.began.contains(&began);
        if !is_known {
            self.began.truncate(PROCESSES - 1);
            self.began.push_front(began);
        }
        is_known
    }
}
