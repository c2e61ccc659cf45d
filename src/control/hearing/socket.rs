//! One of an engine's sockets: how far it is heard, and whether the same process is still behind it.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kvevents::{Counts, Reached, Settings};

/// Processes say to the second when they began; none tells of its cache within so many.
const SLACK_SECONDS: f64 = 1.0;

/// How far one of an engine's sockets is heard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Course {
    /// Not at all.
    #[default]
    Silent,
    /// It has not said yet how that continues what it said before; it is asked, where it can be.
    Asking,
    /// It does, and may not have said all of it.
    Answering,
    /// All that it says.
    Heard,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Socket {
    pub course: Course,
    pub counts: Counts,
    /// Those of its connections before it was asked anew.
    pub earlier: Counts,
    turned_away: Arc<AtomicU64>,
    pub reached: Vec<Reached>,
    /// Where it is.
    pub at: String,
    /// It can be asked what it knows.
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

    /// How many messages it has published to us.
    pub fn messages(&self) -> u64 {
        self.counts.messages + self.earlier.messages
    }

    /// Whether it is being asked for what was missed.
    pub fn is_asked(&self) -> bool {
        self.replays && matches!(self.course, Course::Asking | Course::Answering)
    }

    /// Another process may be there. True: it is to be asked, on a connection of its own;
    /// else its next message says so.
    pub fn doubt(&mut self) -> bool {
        self.course = if self.replays { Course::Silent } else { self.course.min(Course::Asking) };
        self.replays
    }

    /// A process is there that began at this time, by the engine's clock. Answers the ranks that told of themselves
    /// before that, by `since`: when what is known of them began. They have to begin anew.
    pub fn forget_before(&mut self, began: f64, since: impl Fn(u32) -> Option<f64>) -> Vec<u32> {
        let is_older = |reached: &Reached| {
            let first = since(reached.rank).unwrap_or(reached.time).min(reached.time);
            // 0: it does not say, or has told nothing.
            first > 0.0 && first < began + SLACK_SECONDS
        };
        let older: Vec<u32> = self.reached.iter().filter(|reached| is_older(reached)).map(|known| known.rank).collect();
        self.reached.retain(|reached| !older.contains(&reached.rank));
        if !older.is_empty() {
            self.course = Course::Silent;
        }
        older
    }

    /// It is asked on another connection.
    pub fn begin_anew(&mut self) {
        self.course = Course::Silent;
        self.earlier.add(&mem::take(&mut self.counts));
    }

    /// Those that are turned away are counted there from now on.
    pub fn counts_strangers(&mut self, turned_away: Arc<AtomicU64>) {
        let before = mem::replace(&mut self.turned_away, turned_away);
        self.earlier.strangers += before.load(Ordering::Relaxed);
    }

    /// How many there were since, as of now.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Whether nothing is missing of what it said.
    pub fn is_whole(&self) -> bool {
        self.counts.unread.is_none() && self.reached.iter().all(|rank| rank.is_whole)
    }
}
