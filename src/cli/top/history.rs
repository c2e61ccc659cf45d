//! The readings of the last seconds, of one front.

use std::collections::VecDeque;

use super::change::Change;
use super::reading::Reading;

/// Readings, the oldest first.
#[derive(Debug)]
pub(super) struct History {
    readings: VecDeque<Reading>,
    /// Seconds that rates are taken over.
    window: f64,
}

impl History {
    pub(super) fn new(window: u16) -> History {
        History { readings: VecDeque::new(), window: window.into() }
    }

    /// A further reading.
    pub(super) fn push(&mut self, reading: Reading) {
        // Another process answers: its counters began anew.
        if self.readings.back().is_some_and(|last| last.uptime >= reading.uptime) {
            self.readings.clear();
        }
        self.readings.push_back(reading);
        // The oldest is not needed if the second one is old enough.
        while self.readings.len() > 2 && self.age(1) >= self.window {
            self.readings.pop_front();
        }
    }

    /// The last reading beside the oldest.
    pub(super) fn change(&self) -> Option<Change<'_>> {
        let before = self.readings.front().filter(|_| self.readings.len() > 1);
        Some(Change { now: self.readings.back()?, before })
    }

    /// How many seconds a reading is older than the last, by the front's clock; rounded, since readings come a little
    /// late.
    fn age(&self, place: usize) -> f64 {
        let uptime = |reading: Option<&Reading>| reading.and_then(|reading| reading.uptime).unwrap_or(0.0);
        (uptime(self.readings.back()) - uptime(self.readings.get(place))).round()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_moves_and_ends_with_its_process() {
        let mut history = History::new(3);
        assert!(history.change().is_none());
        let mut seconds = |uptime| {
            history.push(Reading { uptime: Some(uptime), ..Reading::default() });
            history.change().unwrap().seconds().map(f64::round)
        };
        let spans = [10.0, 11.01, 12.0, 13.02, 14.0, 20.0, 1.0, 2.0].map(&mut seconds);
        assert_eq!(spans, [None, Some(1.0), Some(2.0), Some(3.0), Some(3.0), Some(6.0), None, Some(1.0)]);
    }
}
