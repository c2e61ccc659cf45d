//! What a message's number says: whether the message is the next one, one seen before, one after a hole, or from an
//! engine that began anew.
//!
//! A number alone does not tell a restarted engine from a message that comes twice, as happens if a replay has run
//! ahead of the subscription. The batch's time does: a process that began later stamps later times.

/// The messages of one rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sequence {
    /// The number that comes next.
    next: u64,
    /// Time of the last batch that was applied.
    time: f64,
    /// Messages with lower numbers may have come by a replay, and come by the subscription again.
    replayed_below: u64,
    /// Whether no message was missed since its process began, or since its cache was emptied.
    complete: bool,
}

/// What to do with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Apply it.
    Next,
    /// Drop it.
    Duplicate,
    /// Messages before it are missing.
    Hole,
    /// The engine began anew: what is known of it no longer holds.
    Restarted,
}

impl Sequence {
    /// Makes a sequence for an engine of which nothing is known yet.
    pub(super) fn new() -> Sequence {
        Sequence { next: 0, time: 0.0, replayed_below: 0, complete: true }
    }

    /// Makes a sequence for an engine whose messages up to `next` another process of ours has applied, the last of them
    /// with this time.
    pub(super) fn resumed(next: u64, time: f64, complete: bool) -> Sequence {
        Sequence { next, time, replayed_below: 0, complete }
    }

    pub(super) fn time(&self) -> f64 {
        self.time
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Judges a message that was published.
    pub(super) fn live(&self, number: u64, time: f64) -> Verdict {
        if number >= self.next {
            return self.ahead(number);
        }
        let again = number + 1 == self.next && time == self.time;
        let overlaps = number < self.replayed_below && time <= self.time;
        if again || overlaps { Verdict::Duplicate } else { Verdict::Restarted }
    }

    /// Judges an answer to a replay that began at the last known message or after it.
    pub(super) fn replayed(&self, number: u64, time: f64) -> Verdict {
        if number >= self.next {
            return self.ahead(number);
        }
        if number + 1 == self.next && time != self.time { Verdict::Restarted } else { Verdict::Duplicate }
    }

    fn ahead(&self, number: u64) -> Verdict {
        if number == self.next { Verdict::Next } else { Verdict::Hole }
    }

    /// Notes that the next message was applied. `clears`: it told that the cache is empty, so that what was missed
    /// before it does not matter.
    pub(super) fn applied(&mut self, time: f64, clears: bool) {
        (self.next, self.time) = (self.next + 1, time);
        self.complete |= clears;
    }

    /// The same for a message that came by a replay.
    pub(super) fn applied_replayed(&mut self, time: f64, clears: bool) {
        self.applied(time, clears);
        self.replayed_below = self.next;
    }

    /// Notes that the messages missing before `number` will not come.
    pub(super) fn give_up_before(&mut self, number: u64) {
        (self.next, self.complete) = (number, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(numbers: u64) -> Sequence {
        let mut sequence = Sequence::new();
        (0..numbers).for_each(|number| sequence.applied(100.0 + number as f64, false));
        sequence
    }

    #[test]
    fn a_first_message_is_next_only_if_it_is_the_first_of_all() {
        assert_eq!(Sequence::new().live(0, 5.0), Verdict::Next);
        assert_eq!(Sequence::new().live(3, 5.0), Verdict::Hole);
        assert_eq!(Sequence::new().replayed(0, 5.0), Verdict::Next);
    }

    #[test]
    fn numbers_go_up_by_one() {
        let sequence = after(10);
        assert_eq!(sequence.live(10, 200.0), Verdict::Next);
        assert_eq!(sequence.live(11, 200.0), Verdict::Hole);
        assert_eq!(sequence.replayed(10, 200.0), Verdict::Next);
        assert_eq!(sequence.replayed(12, 200.0), Verdict::Hole);
        assert!(sequence.is_complete());
    }

    #[test]
    fn a_number_that_goes_back_is_a_restart() {
        let sequence = after(10);
        assert_eq!(sequence.live(0, 200.0), Verdict::Restarted);
        assert_eq!(sequence.live(9, 200.0), Verdict::Restarted, "the same number of another process");
        assert_eq!(sequence.live(9, 109.0), Verdict::Duplicate, "the same message");
        assert_eq!(sequence.replayed(9, 109.0), Verdict::Duplicate);
        assert_eq!(sequence.replayed(9, 200.0), Verdict::Restarted);
    }

    #[test]
    fn what_a_replay_brought_first_is_no_restart_when_it_is_published() {
        let mut sequence = after(4);
        (4..8).for_each(|number| sequence.applied_replayed(100.0 + f64::from(number), false));
        for number in 4..8 {
            assert_eq!(sequence.live(number, 100.0 + number as f64), Verdict::Duplicate);
        }
        assert_eq!(sequence.live(4, 300.0), Verdict::Restarted, "later than all that was replayed");
        assert_eq!(sequence.live(8, 300.0), Verdict::Next);
    }

    #[test]
    fn a_hole_given_up_leaves_it_incomplete_until_its_cache_is_emptied() {
        let mut sequence = after(4);
        sequence.give_up_before(9);
        assert_eq!((sequence.live(9, 200.0), sequence.is_complete()), (Verdict::Next, false));
        sequence.applied(200.0, false);
        assert_eq!((sequence.next(), sequence.is_complete()), (10, false));
        sequence.applied(201.0, true);
        assert_eq!((sequence.next(), sequence.is_complete()), (11, true));
        sequence.give_up_before(12);
        assert!(!sequence.is_complete(), "another one");
    }
}
