//! Visits ready sockets: takes connections and bytes, and notices room or an end.

use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Epoll;
use super::state::Kind;
use crate::driver::descriptors::Arrival;
use crate::driver::fault::Fault;
use crate::driver::{ACCEPTS_PER_VISIT, Completion, Driver, Lease, SocketId, Tag};

impl Epoll {
    /// Does the next thing for one ready socket; puts it back while it may have more.
    pub(super) fn visit(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id)?;
        socket.queued = false;
        match socket.kind {
            Kind::Listener => return self.accept(id),
            Kind::Fresh | Kind::Bell => return None,
            // A connect fails once: the error is taken, and a second look would find none.
            Kind::Connecting if socket.over => return None,
            Kind::Connecting => {
                // Bytes that came with the connection are announced only once.
                if socket.readable {
                    Self::enqueue(&mut self.ready, id, socket);
                }
                return socket.connected();
            }
            Kind::Stream => {}
        }
        if std::mem::take(&mut socket.full_owed) {
            // There may be room again by now, which is announced only once.
            if socket.breakage.broken || socket.writable {
                Self::enqueue(&mut self.ready, id, socket);
            }
            return Some(Completion::Full(socket.tag));
        }
        if socket.starved && std::mem::take(&mut socket.writable) && socket.flush() {
            let tag = socket.tag;
            if socket.readable && !socket.paused {
                Self::enqueue(&mut self.ready, id, socket);
            }
            return Some(Completion::Drained(tag));
        }
        if socket.over {
            return if socket.breakage.broken { socket.breakage.tell(Fault::Failed, socket.tag) } else { None };
        }
        if socket.paused {
            return if socket.breakage.broken { socket.breakage.tell(Fault::Reset, socket.tag) } else { None };
        }
        if socket.splice.is_some() { self.splice_on(id) } else { self.receive(id) }
    }

    fn accept(&mut self, id: SocketId) -> Option<Completion> {
        if !self.accepting {
            return None;
        }
        let listener = self.sockets.get_mut(id)?;
        for _ in 0..ACCEPTS_PER_VISIT {
            match self.descriptors.accept(&listener.fd) {
                Arrival::Connection(fd, peer) => {
                    self.accepted += 1;
                    listener.queued = true;
                    if self.accepted.is_multiple_of(ACCEPTS_PER_VISIT) {
                        self.ready.push_back(id);
                    } else {
                        self.ready.push_front(id);
                        self.visits += 1;
                    }
                    let socket = self.register(fd, Tag(0), Kind::Fresh).ok()?;
                    return Some(Completion::Accepted { socket, peer });
                }
                Arrival::Died => {}
                Arrival::Nothing => return None,
                Arrival::NotNow => {
                    self.not_now.note(id, self.now());
                    return None;
                }
            }
        }
        // Many connections died in a row, and those after them are not announced again.
        Self::enqueue(&mut self.ready, id, listener);
        None
    }

    /// Tries again, once it is time, the listeners that gave no connection; returns how long to sleep at most until
    /// then.
    pub(super) fn try_again(&mut self) -> Duration {
        if self.not_now.is_empty() {
            return Duration::MAX;
        }
        let now = self.now();
        for id in self.not_now.take_due(now) {
            if let Some(socket) = self.sockets.get_mut(id) {
                Self::enqueue(&mut self.ready, id, socket);
            }
        }
        self.not_now.wait(now)
    }

    pub(super) fn receive(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id)?;
        if !socket.readable {
            return None;
        }
        match rustix::net::recv(&socket.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                socket.over = true;
                if socket.breakage.reset {
                    return socket.breakage.tell(Fault::Failed, socket.tag);
                }
                // It broke after its FIN, before either was seen: the end is told first, the fault in the next turn.
                if socket.breakage.broken {
                    Self::enqueue(&mut self.ready, id, socket);
                }
                Some(Completion::Ended(socket.tag))
            }
            Ok((len, _)) => {
                socket.readable = len == self.buffer.len() || socket.hung_up;
                let tag = socket.tag;
                if socket.readable {
                    Self::enqueue(&mut self.ready, id, socket);
                }
                Some(Completion::Received(tag, Lease { buffer: 0, len: len as u32 }))
            }
            Err(Errno::AGAIN) => {
                socket.readable = false;
                None
            }
            Err(Errno::INTR) => {
                Self::enqueue(&mut self.ready, id, socket);
                None
            }
            Err(_) => {
                socket.over = true;
                socket.breakage.tell(Fault::Failed, socket.tag)
            }
        }
    }
}
