//! Hands connections to other shards' rings, and takes theirs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::ring::Purpose;
use super::state::Kind;
use super::{SocketId, Tag, Uring};
use crate::driver::{Completion, HandOver};

impl Uring {
    fn watch_bell(&mut self, id: SocketId) -> io::Result<()> {
        let Some(bell) = self.sockets.get_mut(id).filter(|bell| bell.kind == Kind::Bell) else { return Ok(()) };
        bell.under_way.begin(Purpose::Bell);
        self.ring.poll_readable(Purpose::Bell, id, bell.fd.as_fd())
    }

    /// Silences the bell, then waits for it again: a ring in between is heard at once.
    pub(super) fn rung(&mut self, id: SocketId) -> Option<Completion> {
        let bell = self.sockets.get_mut(id)?;
        let _ = rustix::io::read(&bell.fd, &mut [0; 8]);
        let outcome = self.watch_bell(id);
        self.note(outcome);
        None
    }
}

impl HandOver for Uring {
    fn hear(&mut self, bell: OwnedFd) -> io::Result<()> {
        let id = self.register(bell, Tag(0), Kind::Bell);
        self.watch_bell(id)
    }

    fn give(&mut self, id: SocketId) -> Option<OwnedFd> {
        let fresh =
            self.sockets.get(id).is_some_and(|socket| socket.kind == Kind::Fresh && socket.under_way.is_empty());
        if fresh { self.sockets.remove(id).map(|socket| socket.fd) } else { None }
    }

    fn take(&mut self, connection: OwnedFd) -> Option<SocketId> {
        Some(self.register(connection, Tag(0), Kind::Fresh))
    }
}
