//! What is known of a broken connection, and what was told of it.

use rustix::io::Errno;

use super::{Completion, Tag};

/// The worst that the shard was told of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug, Default)]
pub(super) enum Fault {
    #[default]
    None,
    Reset,
    /// Nothing is told after it.
    Failed,
}

/// Whether and how one connection broke.
#[derive(Default)]
pub(super) struct Breakage {
    /// It broke. The shard is told so even after a FIN, and while it is paused.
    pub(super) broken: bool,
    /// It broke before a FIN came. A receive no longer shows this once a send, or a look, took the error.
    pub(super) reset: bool,
    told: Fault,
}

impl Breakage {
    /// Notes an error. After a FIN (CLOSE-WAIT) a reset shows as EPIPE, else as ECONNRESET (tcp_reset in
    /// net/ipv4/tcp_input.c).
    pub(super) fn note(&mut self, error: Errno) {
        self.broken = true;
        self.reset |= error != Errno::PIPE;
    }

    /// Returns how many bytes of a send were taken. An error takes none; it is noted unless it only means that there is
    /// no room.
    pub(super) fn taken(&mut self, sent: Result<usize, Errno>) -> usize {
        sent.unwrap_or_else(|error| {
            if !matches!(error, Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR | Errno::CANCELED) {
                self.note(error);
            }
            0
        })
    }

    /// Tells of `fault`, unless that or worse was told before.
    pub(super) fn tell(&mut self, fault: Fault, tag: Tag) -> Option<Completion> {
        if self.told >= fault {
            return None;
        }
        self.told = fault;
        Some(if fault == Fault::Failed { Completion::Failed(tag) } else { Completion::Reset(tag) })
    }
}
