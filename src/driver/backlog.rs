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

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Sends what it can; how many bytes still wait.
    pub(super) fn send(&mut self, socket: &OwnedFd) -> Result<usize, Errno> {
        self.sent += transmit(socket, &[IoSlice::new(&self.bytes[self.sent..])])?;
        Ok(self.len())
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
