//! Accepting: a poll tells that clients wait, and then they are taken, a few a turn.
//!
//! A multishot accept of the ring would take all that wait before anything could stop it: more than there are places or
//! descriptors for.

use std::net::SocketAddr;

use super::state::Kind;
use super::{News, Uring};
use crate::driver::descriptors::Arrival;
use crate::driver::{Completion, Driver, SocketId, Tag};

/// How often the kernel is asked to end the polls at listeners: before them it may have to end the operations of tens
/// of thousands of closed clients.
const UNWATCH_TRIES: u32 = 4_096;

impl Uring {
    /// Accepts without a poll. A poll that is under way would keep its listener open beyond the close, for a turn in
    /// which the kernel takes connections that nobody serves. So polls end first, and so do the operations of closed
    /// connections, whose descriptors may be needed.
    pub(super) fn accept_now(&mut self) -> Option<(SocketId, SocketAddr)> {
        self.accept_connections(false);
        self.end_now(UNWATCH_TRIES, |uring| {
            uring.closing == 0 && !uring.listeners.iter().any(|id| uring.is_polled(*id))
        });
        let Uring { sockets, descriptors, listeners, not_now, .. } = self;
        let listeners = listeners.iter().filter_map(|id| Some(&sockets.get(*id)?.fd));
        let (connection, peer) = descriptors.accept_living(listeners, &mut not_now.times)?;
        Some((self.register(connection, Tag(0), Kind::Fresh), peer))
    }

    fn is_polled(&self, listener: SocketId) -> bool {
        self.sockets.get(listener).is_some_and(|listener| !listener.under_way.is_empty())
    }

    /// Takes the next connection, at most `most` in this turn; none if the shard does not accept.
    pub(super) fn accept_next(&mut self, id: SocketId, most: u32) -> Option<Completion> {
        if !self.accepting {
            return None;
        }
        let listener = self.sockets.get(id).filter(|socket| socket.kind == Kind::Listener && !socket.is_receiving())?;
        for left in (0..most).rev() {
            match self.descriptors.accept(&listener.fd) {
                Arrival::Connection(connection, peer) => {
                    self.news.push_back(News::Accept(id, left));
                    let socket = self.register(connection, Tag(0), Kind::Fresh);
                    return Some(Completion::Accepted { socket, peer });
                }
                Arrival::Died => {}
                Arrival::Nothing => break,
                Arrival::NotNow => {
                    self.not_now.note(id, self.now());
                    return None;
                }
            }
        }
        self.arm(id);
        None
    }
}
