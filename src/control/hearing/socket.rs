//! One of an engine's sockets: how far it is heard, and whether it still is the same process's.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kvevents::{Counts, Reached, Settings};

/// Seconds after its beginning in which no process tells of its cache; processes say when they began to the second.
const SLACK_SECONDS: f64 = 1.0;

/// How far one of an engine's sockets is heard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Course {
    /// Not at all.
    #[default]
    Silent,
    /// It is connected, and whether its messages continue those before is not known; it is asked if it can be.
    Asking,
    /// They do, and some may still be missing.
    Answering,
    /// All its messages are heard.
    Heard,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Socket {
    pub course: Course,
    pub counts: Counts,
    /// Counts of its connections before the present one.
    pub earlier: Counts,
    turned_away: Arc<AtomicU64>,
    pub reached: Vec<Reached>,
    /// Its address.
    pub at: String,
    /// Whether it has a replay socket, by which it can be asked for missed messages.
    replays: bool,
}

impl Socket {
    pub fn new(settings: &Settings) -> Socket {
        Socket { replays: settings.replay.is_some(), at: settings.events.to_string(), ..Socket::default() }
    }

    /// Whether it was ever heard.
    pub fn has_connected(&self) -> bool {
        self.counts.connected + self.earlier.connected > 0
    }

    /// How many of its messages have come.
    pub fn messages(&self) -> u64 {
        self.counts.messages + self.earlier.messages
    }

    /// Whether it is being asked for what was missed.
    pub fn is_asked(&self) -> bool {
        self.replays && matches!(self.course, Course::Asking | Course::Answering)
    }

    /// Notes that another process may be there. True: it is to be asked on a new connection;
    /// else its next message will tell.
    pub fn doubt(&mut self) -> bool {
        self.course = if self.replays { Course::Silent } else { self.course.min(Course::Asking) };
        self.replays
    }

    /// Notes that the process there began at `began`, by the engine's clock. Returns the ranks that told of themselves
    /// before that, which have to begin anew. `since`: when what is known of a rank began.
    pub fn forget_before(&mut self, began: f64, since: impl Fn(u32) -> Option<f64>) -> Vec<u32> {
        let is_older = |reached: &Reached| {
            let first = since(reached.rank).unwrap_or(reached.time).min(reached.time);
            // 0: the rank does not say when, or has told nothing.
            first > 0.0 && first < began + SLACK_SECONDS
        };
        let older: Vec<u32> = self.reached.iter().filter(|reached| is_older(reached)).map(|known| known.rank).collect();
        self.reached.retain(|reached| !older.contains(&reached.rank));
        if !older.is_empty() {
            self.course = Course::Silent;
        }
        older
    }

    /// Prepares it for a new connection.
    pub fn begin_anew(&mut self) {
        self.course = Course::Silent;
        self.earlier.add(&mem::take(&mut self.counts));
    }

    /// Sets where connections that are turned away are counted from now on.
    pub fn counts_strangers(&mut self, turned_away: Arc<AtomicU64>) {
        let before = mem::replace(&mut self.turned_away, turned_away);
        self.earlier.strangers += before.load(Ordering::Relaxed);
    }

    /// How many connections were turned away since then.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Whether none of its messages is missing or unread.
    pub fn is_whole(&self) -> bool {
        self.counts.unread.is_none() && self.reached.iter().all(|rank| rank.is_whole)
    }
}
