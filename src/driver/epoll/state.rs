//! What the epoll backend keeps of one socket, and how it sends.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::driver::backlog::Backlog;
use crate::driver::fault::Fault;
use crate::driver::splice::Splice;
use crate::driver::{Completion, Tag};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Listener,
    /// Rung by other shards.
    Bell,
    /// Accepted, not adopted yet.
    Fresh,
    Connecting,
    Stream,
}

/// What is kept of one socket.
pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    pub(super) tag: Tag,
    pub(super) kind: Kind,
    /// Stands in `ready`.
    pub(super) queued: bool,
    /// There may be bytes (or connections) to take.
    pub(super) readable: bool,
    pub(super) paused: bool,
    /// FIN, or an error, was announced: a short read does not mean that nothing follows.
    pub(super) hung_up: bool,
    /// The connection's end was told to the shard: nothing more comes from it.
    pub(super) over: bool,
    /// The connection broke: told once more behind a FIN, and while paused.
    pub(super) broken: bool,
    /// It broke before a FIN came. Reading does not tell so once a send, or a look, took the error.
    pub(super) reset: bool,
    /// What was told of that.
    pub(super) told: Fault,
    /// The kernel took less than it was given; `Drained` is owed.
    pub(super) starved: bool,
    /// There may be room again since.
    pub(super) writable: bool,
    pub(super) finish: bool,
    pub(super) backlog: Option<Box<Backlog>>,
    /// A splice found it full; that is to be told.
    pub(super) full_owed: bool,
    /// What is received goes there.
    pub(super) splice: Option<Box<Splice>>,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd, tag: Tag, kind: Kind) -> Socket {
        Socket {
            fd,
            tag,
            kind,
            queued: false,
            readable: false,
            paused: false,
            hung_up: false,
            over: false,
            broken: false,
            reset: false,
            told: Fault::None,
            starved: false,
            writable: false,
            finish: false,
            backlog: None,
            full_owed: false,
            splice: None,
        }
    }

    /// What became of the connect.
    pub(super) fn connected(&mut self) -> Option<Completion> {
        match rustix::net::sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => {
                self.kind = Kind::Stream;
                Some(Completion::Connected(self.tag))
            }
            _ => {
                self.over = true;
                self.tell(Fault::Failed)
            }
        }
    }

    /// Sends the backlog; true when nothing is left of it. A broken connection shows when it is read.
    pub(super) fn flush(&mut self) -> bool {
        if let Some(backlog) = &mut self.backlog {
            match backlog.send(&self.fd) {
                Ok(0) => self.backlog = None,
                Ok(_) => return false,
                Err(error) => {
                    self.note_error(error);
                    return false;
                }
            }
        }
        self.starved = false;
        if self.finish {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        }
        true
    }

    pub(super) fn tell(&mut self, fault: Fault) -> Option<Completion> {
        self.told.tell(fault, self.tag)
    }

    /// Behind a FIN (CLOSE-WAIT) a reset shows as EPIPE, else as ECONNRESET (tcp_reset in net/ipv4/tcp_input.c).
    pub(super) fn note_error(&mut self, error: Errno) {
        self.broken = true;
        self.reset |= error != Errno::PIPE;
    }

    /// How many bytes were taken. An error takes none: the read side tells of it.
    pub(super) fn note_outcome(&mut self, sent: Result<usize, Errno>) -> usize {
        sent.unwrap_or_else(|error| {
            self.note_error(error);
            0
        })
    }
}
