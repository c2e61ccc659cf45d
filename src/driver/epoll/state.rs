//! What the driver keeps of one socket, and what leaves through it.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown};

use crate::driver::Tag;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Listener,
    /// Accepted, not adopted yet.
    Fresh,
    Connecting,
    Stream,
}

/// Bytes the kernel did not take yet.
#[derive(Default)]
struct Backlog {
    bytes: Vec<u8>,
    sent: usize,
}

pub(super) struct Socket {
    pub fd: OwnedFd,
    pub tag: Tag,
    pub kind: Kind,
    /// Stands in `ready`.
    pub queued: bool,
    /// There may be bytes (or connections) to take.
    pub readable: bool,
    pub paused: bool,
    /// FIN, or an error, was announced: a short read does not mean that nothing follows.
    pub hung_up: bool,
    /// The connection's end was told to the shard: nothing more comes from it.
    pub over: bool,
    /// An error was announced while paused and is to be told.
    pub reset: bool,
    /// The kernel took less than it was given; `Drained` is owed.
    pub starved: bool,
    finish: bool,
    backlog: Option<Box<Backlog>>,
}

impl Socket {
    pub fn new(fd: OwnedFd, tag: Tag, kind: Kind) -> Socket {
        Socket {
            fd,
            tag,
            kind,
            queued: false,
            readable: false,
            paused: false,
            hung_up: false,
            over: false,
            reset: false,
            starved: false,
            finish: false,
            backlog: None,
        }
    }

    /// Sends the pieces and keeps what the kernel does not take. Answers how many bytes wait.
    pub fn send(&mut self, pieces: &[IoSlice<'_>]) -> usize {
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut taken = if self.starved { 0 } else { transmit(&self.fd, pieces) };
        if total > taken {
            self.starved = true;
            let backlog = self.backlog.get_or_insert_default();
            for piece in pieces {
                let skip = taken.min(piece.len());
                taken -= skip;
                backlog.bytes.extend_from_slice(&piece[skip..]);
            }
        }
        self.backlog.as_ref().map_or(0, |backlog| backlog.bytes.len() - backlog.sent)
    }

    /// Sends what the kernel takes of the pieces and keeps nothing. Answers how many bytes it took.
    pub fn offer(&mut self, pieces: &[IoSlice<'_>], total: usize) -> usize {
        if self.starved {
            return 0;
        }
        let taken = transmit(&self.fd, pieces);
        self.starved = taken < total;
        taken
    }

    /// Sends the backlog; true when nothing is left of it. A broken connection shows when it is read.
    pub fn flush(&mut self) -> bool {
        if let Some(backlog) = &mut self.backlog {
            let taken = transmit(&self.fd, &[IoSlice::new(&backlog.bytes[backlog.sent..])]);
            backlog.sent += taken;
            if backlog.sent < backlog.bytes.len() {
                return false;
            }
            self.backlog = None;
        }
        self.starved = false;
        if self.finish {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        }
        true
    }

    /// Ends our side once all is sent.
    pub fn finish(&mut self) {
        self.finish = true;
        if !self.starved {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        }
    }
}

/// What the kernel took. An error takes nothing: the read side tells of it.
fn transmit(fd: &OwnedFd, pieces: &[IoSlice<'_>]) -> usize {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = match pieces {
        [one] => rustix::net::send(fd, one, flags),
        many => rustix::net::sendmsg(fd, many, &mut SendAncillaryBuffer::default(), flags),
    };
    sent.unwrap_or(0)
}
