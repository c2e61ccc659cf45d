//! How requests ended, by pool alone, as one shard sees it: the counts for objectives (SLOs) and alarms. Series of
//! finished requests by endpoint, status and reason begin with their first request and end with their engine, so that
//! rates of rare events miss much. These series begin at 0 and never end.

use std::sync::atomic::{AtomicU64, Ordering};

use super::stats::{add, labelled};
use crate::limits::LABELLED_POOLS_MAX;

/// What came of a request, from its client's view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Ended {
    /// It got a whole answer.
    Served,
    /// It failed by its own fault: a 4xx, as a status or as the code of an error in a stream, or a fault in the rest of
    /// its body; or it asked for something that no engine has (501, 505).
    Refused,
    /// It was refused for load: 429.
    Busy,
    /// It got another error, or nothing because the front ended.
    Failed,
    /// Its reply began well and broke off, or told of an error that was not its client's.
    Broken,
    /// Its client left, or took none of its reply.
    Left,
}

impl Ended {
    /// All of them, in the order of their numbers.
    pub const ALL: [Ended; 6] = [Ended::Served, Ended::Refused, Ended::Busy, Ended::Failed, Ended::Broken, Ended::Left];

    /// Its label in metrics.
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

    /// What a reply with this status counts as; `whole`: the client got all of it. Never [`Ended::Left`].
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

/// One shard's counts, by pool: written by the shard, read by control.
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
