//! Operations that go on: how they are begun, cancelled and begun again.

use std::os::fd::AsFd;

use super::ring::Purpose;
use super::state::{Kind, Socket};
use super::{News, Uring};
use crate::driver::{Driver, SocketId};

impl Uring {
    /// Begins to receive, or to accept.
    pub(super) fn arm(&mut self, id: SocketId) {
        match self.sockets.get(id) {
            Some(socket) if socket.is_receiving() => {}
            // It was paused before it was connected.
            Some(socket) if socket.paused => self.watch_fault(id),
            Some(socket) if socket.splice.is_some() || socket.breakage.broken || socket.readable => self.visit_soon(id),
            _ => self.arm_ring(id),
        }
    }

    /// Has this socket read from, or spliced, in this turn still.
    fn visit_soon(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.get_mut(id).filter(|socket| !socket.due) {
            socket.due = true;
            self.news.push_back(News::Visit(id));
        }
    }

    /// Has this socket visited in the next turn, so that the others get theirs.
    pub(super) fn next_turn(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.get_mut(id).filter(|socket| !socket.due) {
            socket.due = true;
            self.hungry.push(id);
        }
    }

    /// Begins the operation that waits for a socket's bytes or connections, without a look at its state.
    pub(super) fn arm_ring(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let fd = socket.fd.as_fd();
        let (purpose, outcome) = match socket.kind {
            Kind::Listener => (Purpose::Accept, self.ring.poll_readable(Purpose::Accept, id, fd)),
            Kind::Stream if socket.bulk => return self.await_bytes(id),
            Kind::Stream => (Purpose::Receive, self.ring.receive(id, fd)),
            _ => return,
        };
        socket.under_way.begin(purpose);
        (socket.cancelled, socket.armed_in) = (false, self.turns);
        self.note(outcome);
    }

    pub(super) fn cancel_receive(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(id).filter(|socket| socket.is_receiving() && !socket.cancelled) else {
            return;
        };
        socket.cancelled = true;
        let purpose = if socket.kind == Kind::Listener { Purpose::Accept } else { Purpose::Receive };
        let outcome = self.ring.cancel(purpose, id);
        self.note(outcome);
    }

    /// Watches for a fault while nothing is received.
    pub(super) fn watch_fault(&mut self, id: SocketId) {
        let unwatched = |socket: &&mut Socket| !socket.under_way.has(Purpose::Fault) && !socket.breakage.broken;
        let Some(socket) = self.sockets.get_mut(id).filter(unwatched) else { return };
        socket.under_way.begin(Purpose::Fault);
        let outcome = self.ring.poll_fault(id, socket.fd.as_fd());
        self.note(outcome);
    }

    pub(super) fn await_bytes(&mut self, id: SocketId) {
        let unasked = |socket: &&mut Socket| !socket.under_way.has(Purpose::Bytes);
        let Some(socket) = self.sockets.get_mut(id).filter(unasked) else { return };
        socket.under_way.begin(Purpose::Bytes);
        let outcome = self.ring.poll_readable(Purpose::Bytes, id, socket.fd.as_fd());
        self.note(outcome);
    }

    pub(super) fn watch_room(&mut self, id: SocketId) {
        let unasked = |socket: &&mut Socket| !socket.under_way.has(Purpose::Room);
        let Some(socket) = self.sockets.get_mut(id).filter(unasked) else { return };
        socket.under_way.begin(Purpose::Room);
        let outcome = self.ring.poll_room(id, socket.fd.as_fd(), socket.kind == Kind::Stream);
        self.note(outcome);
    }

    /// Takes up again what was put off to this turn: connections with more to read, receives that found no buffer,
    /// listeners that gave no connection.
    pub(super) fn arm_again(&mut self) {
        // Nothing is added to `hungry` meanwhile; its memory is kept.
        for place in 0..self.hungry.len() {
            if let Some(id) = self.hungry.get(place).copied()
                && let Some(socket) = self.live(id)
            {
                socket.due = false;
                if !socket.paused && !socket.over {
                    self.arm(id);
                }
            }
        }
        self.hungry.clear();
        if !self.not_now.is_empty() && self.accepting {
            self.not_now.take_due(self.now()).into_iter().for_each(|id| self.arm(id));
        }
    }
}
