//! What a shard is doing, so that control can see it from outside.

use crate::atomics::{AtomicU8, Ordering};

/// A part of a shard's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Doing {
    /// It is in the kernel: sleeps, or submits operations and collects completions. The only part that may take long.
    Waits,
    /// Takes new connections.
    Accepts,
    /// Handles bytes or the end of a client.
    ServesClient,
    /// Handles a connect, bytes or the end of an engine.
    ServesEngine,
    /// Handles deadlines that passed.
    LooksAtDeadlines,
    /// Looks after idle connections, accounts and statistics.
    TidiesUp,
}

impl Doing {
    const ALL: [Doing; 6] = [
        Doing::Waits,
        Doing::Accepts,
        Doing::ServesClient,
        Doing::ServesEngine,
        Doing::LooksAtDeadlines,
        Doing::TidiesUp,
    ];

    /// The name in log and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Doing::Waits => "waits",
            Doing::Accepts => "accepts",
            Doing::ServesClient => "serves_client",
            Doing::ServesEngine => "serves_engine",
            Doing::LooksAtDeadlines => "looks_at_deadlines",
            Doing::TidiesUp => "tidies_up",
        }
    }
}

/// What one shard is doing. Written only by that shard, with a plain store for each completion.
#[derive(Debug, Default)]
pub struct DoingCell(AtomicU8);

impl DoingCell {
    /// Sets what it does from now on.
    #[inline]
    pub fn begin(&self, doing: Doing) {
        self.0.store(doing as u8, Ordering::Relaxed);
    }

    /// Returns what it does.
    pub fn now(&self) -> Doing {
        Doing::ALL.get(usize::from(self.0.load(Ordering::Relaxed))).copied().unwrap_or(Doing::Waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_is_read() {
        let cell = DoingCell::default();
        assert_eq!(cell.now(), Doing::Waits);
        for doing in Doing::ALL {
            cell.begin(doing);
            assert_eq!(cell.now(), doing);
        }
    }
}
