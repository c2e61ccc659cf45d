//! What a shard is doing, for who watches it from outside.

use crate::atomics::{AtomicU8, Ordering};

/// A part of a shard's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Doing {
    /// In the kernel: sleeps, or submits and collects what it completed. The only part that may take long.
    Waits,
    /// Takes new connections in.
    Accepts,
    /// Bytes or the end of a client.
    ServesClient,
    /// A connect, bytes or the end of an engine.
    ServesEngine,
    /// Deadlines that passed.
    LooksAtDeadlines,
    /// Idle connections, accounts, statistics.
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

    /// As log and metrics name it.
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

/// Where one shard says what it does. Written by the shard alone, a plain store for each completion.
#[derive(Debug, Default)]
pub struct DoingCell(AtomicU8);

impl DoingCell {
    /// From now on it does this.
    #[inline]
    pub fn begin(&self, doing: Doing) {
        self.0.store(doing as u8, Ordering::Relaxed);
    }

    /// What it does.
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
