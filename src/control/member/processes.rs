//! The processes that answer at one address: which of them is new.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many processes at one address are known apart, the last that came: more than a gateway has behind it.
const PROCESSES: usize = 512;
/// Those that do not say when they began are no new ones where they follow one another sooner than this.
const BY_TURNS: Duration = Duration::from_secs(30);

/// The processes that answered at one address. Of several that do so by turns, as behind a gateway, none is new: slow
/// starts would never end there, and faults be forgotten each second.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    /// When they began, those that say so.
    began: VecDeque<f64>,
    /// When it last seemed that another one answers, of those that do not.
    renewed: Option<Instant>,
}

impl Processes {
    /// It seems that another process answers than before. `before` and `began`: when each began, if it says so. Answers
    /// whether it is new, and not one that is back.
    pub fn join(&mut self, before: Option<f64>, began: Option<f64>, now: Instant) -> bool {
        let Some(began) = began.filter(|began| before != Some(*began)) else {
            let renewed = self.renewed.replace(now);
            return renewed.is_none_or(|renewed| now.saturating_duration_since(renewed) >= BY_TURNS);
        };
        before.into_iter().for_each(|before| _ = self.know(before));
        !self.know(began)
    }

    /// Whether it was known.
    fn know(&mut self, began: f64) -> bool {
        let is_known = self.began.contains(&began);
        if !is_known {
            self.began.truncate(PROCESSES - 1);
            self.began.push_front(began);
        }
        is_known
    }
}
