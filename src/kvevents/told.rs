//! What a consumer of a subscription is told.

use super::batch::Batch;
use super::connection::Ended;
use super::msgpack::Malformed;

/// What a consumer is told, in the order in which it has to act on it.
#[derive(Debug)]
pub enum Told<'a> {
    /// The engine is heard.
    Connected,
    /// The engine has answered the whole replay that was asked for when the connection began: nothing that it published
    /// before is missing, except what [`Told::Incomplete`] names.
    Abreast,
    /// The next changes in the cache of the rank that the batch names.
    Batch(&'a Batch),
    /// The rank's process began anew: what is known of it no longer holds.
    Restarted {
        /// The rank.
        rank: u32,
    },
    /// A message of the rank was missed and will not come. What is known may still be used, but nothing follows from a
    /// block not being known.
    Incomplete {
        /// The rank.
        rank: u32,
        /// Why the message will not come.
        why: Hole,
    },
    /// A message made no sense and counts as missing.
    Malformed(Malformed),
    /// The engine is not heard, no longer or not yet. It is tried again when the next news are asked for.
    Offline(Ended),
}

/// Why a missed message will not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hole {
    /// No replay socket of the engine is known.
    NotOffered,
    /// The engine does not answer to the end.
    Unanswered,
    /// The engine no longer has the message, or the message makes no sense.
    Gone,
}

/// How far a process has come in the messages of one rank.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reached {
    /// The rank.
    pub rank: u32,
    /// Number of the message that comes next.
    pub next: u64,
    /// Time of the message before, in seconds of the engine's clock.
    pub time: f64,
    /// Whether no message before was missed, since the cache was emptied last.
    pub is_whole: bool,
}
