//! Sending without waiting, and the bytes that the kernel did not take yet.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

/// Most pieces of one send: a head, a body, a chunk's frame around data.
pub(super) const SEGMENTS_MAX: usize = 8;
/// Pieces with no more bytes than this in all are copied into one: cheaper than to name each to the kernel.
pub(super) const JOINED_BYTES_MAX: usize = 8 << 10;

/// Bytes that the kernel did not take yet.
#[derive(Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
    sent: usize,
}

impl Backlog {
    /// Returns how many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Keeps the bytes of `pieces` after the first `taken`.
    pub(super) fn push_rest<'a>(&mut self, pieces: impl Iterator<Item = IoSlice<'a>>, taken: usize) {
        let mut skip = taken;
        for piece in pieces {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            self.bytes.extend_from_slice(&piece[skipped..]);
        }
    }

    /// Sends as much of a socket's backlog as the kernel takes; true if nothing is left of it.
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

/// Sends `pieces` without waiting; returns how many bytes the kernel took.
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
