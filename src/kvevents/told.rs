//! What a consumer of a subscription is told.

use super::batch::Batch;
use super::connection::Ended;
use super::msgpack::Malformed;

/// What a consumer is told, in the order in which it has to act on it.
#[derive(Debug)]
pub enum Told<'a> {
    /// The engine is heard.
    Connected,
    /// It has answered to the end what was asked for when it was heard: nothing that it had published before is missing
    /// but what [`Told::Incomplete`] names.
    Abreast,
    /// What changed next in the caches of the rank it names.
    Batch(&'a Batch),
    /// The rank's process began anew: what is known of it holds no longer.
    Restarted {
        /// Which.
        rank: u32,
    },
    /// Of the rank, something has been missed that will not come. What is known may be used; that something is not
    /// known means nothing.
    Incomplete {
        /// Which.
        rank: u32,
        /// Why it will not come.
        why: Hole,
    },
    /// A message made no sense and is taken for missing.
    Malformed(Malformed),
    /// The engine is not heard any more, or not yet. It is tried again: ask for the next news.
    Offline(Ended),
}

/// Why something that was missed will not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hole {
    /// The engine has no replay socket that we know of.
    NotOffered,
    /// It does not answer to the end.
    Unanswered,
    /// It does not have it any more, or what it has makes no sense.
    Gone,
}

/// Where a process stands in the messages of one rank.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reached {
    /// Whose they are.
    pub rank: u32,
    /// Number of the message that comes next.
    pub next: u64,
    /// Time of the one before.
    pub time: f64,
    /// Whether none before was missed.
    pub is_whole: bool,
}
