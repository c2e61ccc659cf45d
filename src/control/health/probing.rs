//! What becomes of an endpoint by its probes.

use std::time::Instant;

use super::{Course, Failure, How, Probes, Turn};
use crate::config::Health as Rules;

impl Course {
    /// Takes it to serve until a probe says otherwise, as another process has it in service. Its silence is a doubt
    /// then, as that of one that is up: it may be as busy as all the others.
    pub fn presume(&mut self) {
        self.presumed = true;
    }

    /// Takes in a probe, which was answered with 200 or failed. `may_go`: one more may be taken out for silence.
    pub fn probed(&mut self, outcome: Result<(), Failure>, may_go: bool, rules: &Rules, now: Instant) -> Option<Turn> {
        let before = self.health();
        let turn = match outcome {
            Ok(()) => {
                (self.failures, self.refusals, self.successes) = (0, 0, self.successes.saturating_add(1));
                (self.answered, self.silent) = (true, false);
                (self.absent, self.probe_error) = (None, None);
                let was_slow = std::mem::take(&mut self.slow);
                self.good_probe(rules, now).or(was_slow.then_some(Turn::InTime))
            }
            Err(failure) => {
                (self.successes, self.failures) = (0, self.failures.saturating_add(1));
                self.refusals = if failure.how == How::Refused { self.refusals.saturating_add(1) } else { 0 };
                self.silent = failure.how == How::Silent && (self.silent || self.probes != Probes::Failing);
                let is_absent = matches!(failure.how, How::Refused | How::Unconnected);
                self.absent = is_absent.then(|| self.absent.unwrap_or(now));
                self.probe_error = Some(failure.why);
                self.failed_probe(may_go, rules)
            }
        };
        self.moved_from(before, now);
        turn
    }

    /// Takes in a failed probe. A refusal or another status is certain. Silence is not: under load `/health` waits for
    /// the tokens of all streams, and if each slow engine left its part to the others, these would be slow next.
    fn failed_probe(&mut self, may_go: bool, rules: &Rules) -> Option<Turn> {
        if self.failures < rules.failures_down || self.probes == Probes::Failing {
            return None;
        }
        if self.silent && (self.probes == Probes::Good || self.presumed) && !may_go {
            return (!std::mem::replace(&mut self.slow, true)).then_some(Turn::Slow);
        }
        (self.probes, self.slow) = (Probes::Failing, false);
        Some(Turn::Down)
    }

    fn good_probe(&mut self, rules: &Rules, now: Instant) -> Option<Turn> {
        if self.probes == Probes::Good || self.successes < rules.successes_up {
            return None;
        }
        let returns = self.probes == Probes::Failing;
        self.probes = Probes::Good;
        if self.is_barred() {
            return Some(Turn::Answers);
        }
        // The first good probe of all begins no slow start: a fleet that starts cold together has nothing to
        // spare. Engines that return together take over each other's parts, so nothing is lost there.
        if returns {
            self.start_slowly(rules, now);
        }
        Some(Turn::Up)
    }
}
