//! What the epoll backend keeps for each socket, and how it sends a backlog.

use std::os::fd::OwnedFd;

use rustix::net::Shutdown;

use crate::driver::backlog::Backlog;
use crate::driver::fault::{Breakage, Fault};
use crate::driver::splice::Splice;
use crate::driver::{Completion, Tag};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Listener,
    /// The eventfd that other shards ring.
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
    /// It is in `ready`.
    pub(super) queued: bool,
    /// There may be bytes (or connections) to take.
    pub(super) readable: bool,
    pub(super) paused: bool,
    /// FIN, or an error, was announced: a short read does not mean that nothing follows.
    pub(super) hung_up: bool,
    /// The connection's end was told to the shard: nothing more comes from it.
    pub(super) over: bool,
    pub(super) breakage: Breakage,
    /// The kernel took fewer bytes than it was given; `Drained` is owed.
    pub(super) starved: bool,
    /// There may be room again by now.
    pub(super) writable: bool,
    pub(super) finish: bool,
    pub(super) backlog: Option<Box<Backlog>>,
    /// A splice found it full, of which the shard is still to be told.
    pub(super) full_owed: bool,
    /// Where its bytes go inside the kernel.
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
            breakage: Breakage::default(),
            starved: false,
            writable: false,
            finish: false,
            backlog: None,
            full_owed: false,
            splice: None,
        }
    }

    /// Returns what became of the connect.
    pub(super) fn connected(&mut self) -> Option<Completion> {
        match rustix::net::sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => {
                self.kind = Kind::Stream;
                Some(Completion::Connected(self.tag))
            }
            _ => {
                self.over = true;
                self.breakage.tell(Fault::Failed, self.tag)
            }
        }
    }

    /// Sends the backlog; true if nothing is left of it. A broken connection is noticed when it is read.
    pub(super) fn flush(&mut self) -> bool {
        let flushed = Backlog::flush(&mut self.backlog, &self.fd).inspect_err(|error| self.breakage.note(*error));
        if flushed != Ok(true) {
            return false;
        }
        self.starved = false;
        if self.finish {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        }
        true
    }
}
