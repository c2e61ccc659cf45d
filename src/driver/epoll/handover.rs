//! Hands connections to other shards' drivers, and takes theirs.

use std::io;
use std::os::fd::OwnedFd;

use super::state::Kind;
use super::{Epoll, SocketId, Tag};
use crate::driver::HandOver;

impl HandOver for Epoll {
    /// Each ring is announced anew, as the wait is edge-triggered: the bell need not be read.
    fn hear(&mut self, bell: OwnedFd) -> io::Result<()> {
        self.register(bell, Tag(0), Kind::Bell).map(|_| ())
    }

    fn give(&mut self, id: SocketId) -> Option<OwnedFd> {
        let fresh = self.sockets.get(id).is_some_and(|socket| socket.kind == Kind::Fresh);
        if fresh { self.sockets.remove(id).map(|socket| socket.fd) } else { None }
    }

    fn take(&mut self, connection: OwnedFd) -> Option<SocketId> {
        self.register(connection, Tag(0), Kind::Fresh).ok()
    }
}
