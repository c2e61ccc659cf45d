//! Sending without waiting, and the bytes that the kernel did not take yet.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

/// Pieces one send may have: a head, a body, a chunk's frame around data.
pub(super) const SEGMENTS_MAX: usize = 8;
/// Pieces no longer than this together are copied into one: cheaper than telling the kernel of several.
pub(super) const JOINED_BYTES_MAX: usize = 8 << 10;

/// Bytes the kernel did not take yet.
#[derive(Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
    sent: usize,
}

impl Backlog {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Keeps what is left of `pieces` behind the first `taken` bytes.
    pub(super) fn push_rest<'a>(&mut self, pieces: impl Iterator<Item = IoSlice<'a>>, taken: usize) {
        let mut skip = taken;
        for piece in pieces {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            self.bytes.extend_from_slice(&piece[skipped..]);
        }
    }

    /// Sends what it can of what a socket has waiting; true when nothing is left of it.
    pub(super) fn flush(waiting: &mut Option<Box<Backlog>>, socket: &OwnedFd) -> Result<bool, Errno> {
        if let Some(backlog) = waiting {
            backlog.sent += transmit(socket, &[IoSlice::new(&backlog.bytes[backlog.sent..])])?;
            if backlog.len() > 0 {
                return Ok(false);
            }
            *waiting = None;
        }
        Ok(true)
    }
}

/// What the kernel took of `pieces`, from their start.
pub(super) fn transmit(socket: &OwnedFd, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = match pieces {
        [one] => rustix::net::send(socket, one, flags),
        many => rustix::net::sendmsg(socket, many, &mut SendAncillaryBuffer::default(), flags),
    };
    match sent {
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Ok(0),
        sent => sent,
    }
}
