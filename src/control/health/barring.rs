//! What becomes of an endpoint that shards barred: whether it is taken out, and for how long.

use std::time::{Duration, Instant};

use super::{Bar, Course, Trouble, Turn, Why};
use crate::config::Health as Rules;
use crate::counters::{Barred, Given};
use crate::fleet::Health;

impl Course {
    /// Shards have stopped sending requests there, and control decides for how long.
    pub(super) fn barred(
        &mut self,
        barred: Barred,
        given: Given,
        may_eject: bool,
        rules: &Rules,
        now: Instant,
    ) -> Option<Turn> {
        let why = match (self.bar, barred) {
            (_, Barred::ByItsWord) => Why::Drain,
            (Bar::Trial, Barred::ForFaults) => Why::Trial,
            (_, Barred::ForFaults) => Why::Faults,
        };
        self.trouble = Some(Trouble { why, last: given.last });
        if why == Why::Faults && !may_eject {
            self.kept = Some(given.gave);
            let shortest = Duration::from_millis(rules.eject_ms);
            let lately = self.spared.is_some_and(|at| now.saturating_duration_since(at) < shortest);
            if lately {
                return Some(Turn::SparedAgain);
            }
            self.spared = Some(now);
            return Some(Turn::Spared);
        }
        let in_service = now.saturating_duration_since(self.since);
        if self.health() == Health::Up && in_service >= self.last {
            self.row = 0;
        }
        self.eject(rules, now);
        Some(Turn::Ejected(why, self.last))
    }

    /// Ejects it, for twice as long as the last time in a row.
    fn eject(&mut self, rules: &Rules, now: Instant) {
        let doubled = rules.eject_ms.saturating_mul(1 << self.row.min(32));
        self.last = Duration::from_millis(doubled.min(rules.eject_ms_max));
        self.row = self.row.saturating_add(1);
        (self.bar, self.kept) = (Bar::Until(now + self.last), None);
    }

    /// Another rank of its server was tried before it, and said that the server ends: this one would say the same.
    pub fn ends_with_another(&mut self, rules: &Rules, now: Instant) {
        if matches!(self.bar, Bar::Until(end) if now >= end) {
            self.trouble = Some(Trouble { why: Why::Drain, last: None });
            self.eject(rules, now);
        }
    }
}
