//! How requests ended, by pool alone, as one shard sees it: what objectives and alarms are reckoned from. Finished
//! requests by endpoint, status and reason begin at their first and end with their engines, so that of what is rare
//! rates miss much; these begin at 0, and never end.

use std::sync::atomic::{AtomicU64, Ordering};

use super::stats::{add, labelled};
use crate::limits::LABELLED_POOLS_MAX;

/// What came of a request, for who counts on an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Ended {
    /// With a whole answer.
    Served,
    /// By its own fault: a 4xx, or what was wrong with the rest of its body; or what nobody has here (501, 505).
    Refused,
    /// For load: 429.
    Busy,
    /// With another error, or with nothing because the front ended.
    Failed,
    /// In the midst of a reply that had begun well, or with an error that such a reply told of.
    Broken,
    /// Its client left, or took none of its reply.
    Left,
}

impl Ended {
    /// All of them, in the order of their numbers.
    pub const ALL: [Ended; 6] = [Ended::Served, Ended::Refused, Ended::Busy, Ended::Failed, Ended::Broken, Ended::Left];

    /// As metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Ended::Served => "served",
            Ended::Refused => "refused",
            Ended::Busy => "busy",
            Ended::Failed => "failed",
            Ended::Broken => "broken",
            Ended::Left => "left",
        }
    }

    /// With this status, whether its client has all of that or not; of who left it says nothing.
    pub fn by_status(status: u16, whole: bool) -> Ended {
        match status {
            429 => Ended::Busy,
            400..=499 | 501 | 505 => Ended::Refused,
            1..400 if whole => Ended::Served,
            1..400 => Ended::Broken,
            _ => Ended::Failed,
        }
    }
}

/// Written by one shard, read by control.
#[derive(Debug)]
pub(super) struct Endings(Box<[[AtomicU64; Ended::ALL.len()]]>);

impl Default for Endings {
    fn default() -> Self {
        Endings((0..=LABELLED_POOLS_MAX).map(|_| [const { AtomicU64::new(0) }; Ended::ALL.len()]).collect())
    }
}

impl Endings {
    #[inline]
    pub(super) fn count(&self, pool: u16, ended: Ended) {
        add(&self.0[labelled(pool)][ended as usize], 1);
    }

    pub(super) fn of(&self, pool: u16, ended: Ended) -> u64 {
        self.0[labelled(pool)][ended as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_came_of_a_request() {
        for (status, whole, ended) in [
            (200, true, Ended::Served),
            (101, true, Ended::Served),
            (307, true, Ended::Served),
            (200, false, Ended::Broken),
            (400, true, Ended::Refused),
            (404, false, Ended::Refused),
            (429, true, Ended::Busy),
            (500, true, Ended::Failed),
            (501, true, Ended::Refused),
            (505, true, Ended::Refused),
            (503, false, Ended::Failed),
            (0, false, Ended::Failed),
            (999, true, Ended::Failed),
        ] {
            assert_eq!(Ended::by_status(status, whole), ended, "{status} {whole}");
        }
    }

    #[test]
    fn each_has_its_number() {
        Ended::ALL.iter().enumerate().for_each(|(number, ended)| assert_eq!(*ended as usize, number));
    }
}
