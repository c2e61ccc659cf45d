//! What a completion means for its socket, and what the shard is told of it.

use rustix::io::Errno;

use super::ring::{Completed, Purpose};
use super::state::{End, Kind};
use super::{News, Uring};
use crate::driver::fault::Fault;
use crate::driver::{ACCEPTS_PER_VISIT, Completion, Lease, SocketId};

impl Uring {
    pub(super) fn tell(&mut self, news: News) -> Option<Completion> {
        match news {
            News::Full(id) => self.live(id).map(|socket| Completion::Full(socket.tag)),
            News::Parked(id) => self.hand_out_parked(id),
            News::Fault(id) => self.fault(id),
            News::Visit(id) => self.visit(id),
            News::Accept(id, most) => self.accept_next(id, most),
        }
    }

    pub(super) fn complete(&mut self, completed: Completed) -> Option<Completion> {
        if let Some(socket) = self.sockets.get_mut(completed.id)
            && !completed.more
        {
            socket.under_way.end(completed.purpose);
        }
        let completion = match completed.purpose {
            Purpose::Accept => self.accept_next(completed.id, ACCEPTS_PER_VISIT),
            Purpose::Receive => self.receive_completed(completed),
            Purpose::Room => self.room_completed(completed.id),
            Purpose::Fault => self.fault_completed(completed),
            Purpose::Bytes => self.bytes_came(completed.id),
            Purpose::Bell => self.rung(completed.id),
            // Sends were settled after the enter; a cancel that completes found nothing and came too late.
            Purpose::Send | Purpose::Cancel => None,
        };
        self.drop_if_over(completed.id);
        completion
    }

    fn receive_completed(&mut self, completed: Completed) -> Option<Completion> {
        let (id, last) = (completed.id, !completed.more);
        let socket = self.sockets.get_mut(id)?;
        socket.undelivered -= 1;
        let filled = completed.buffer.inspect(|name| self.buffers.take(*name));
        if socket.kind == Kind::Closing {
            filled.into_iter().for_each(|name| self.buffers.release(name));
            return None;
        }
        match (completed.error(), filled) {
            (None, Some(name)) if completed.result > 0 => self.received(id, name, completed.result as u32, last),
            (None, filled) => {
                filled.into_iter().for_each(|name| self.buffers.release(name));
                self.ended(id, End::Fin)
            }
            (Some(Errno::NOBUFS), _) => {
                self.buffers_out += 1;
                self.receive_again(id)
            }
            (Some(Errno::CANCELED | Errno::INTR | Errno::AGAIN), _) => self.receive_again(id),
            (Some(error), _) => {
                socket.breakage.note(error);
                self.ended(id, End::Fault)
            }
        }
    }

    fn received(&mut self, id: SocketId, name: u16, len: u32, last: bool) -> Option<Completion> {
        self.came_otherwise(id, len);
        let socket = self.sockets.get_mut(id)?;
        let (tag, paused) = (socket.tag, socket.paused);
        if paused {
            socket.park(self.buffers.bytes(name, len as usize));
            self.buffers.release(name);
            if last {
                self.watch_fault(id);
            }
            return None;
        }
        let outgrows = socket.outgrows(len as usize);
        if last {
            self.arm(id);
        } else if outgrows {
            // It is read in large pieces once this receive has ended.
            self.cancel_receive(id);
        }
        self.leased = Some(name);
        Some(Completion::Received(tag, Lease { buffer: name, len }))
    }

    /// Begins a receive again that ended though its connection did not.
    fn receive_again(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id)?;
        if socket.paused {
            self.watch_fault(id);
            return self.fault(id);
        }
        if !socket.is_receiving() {
            // It waits until this turn's buffers were given back. Meanwhile no receive would tell of a fault.
            self.next_turn(id);
            self.watch_fault(id);
        }
        None
    }

    pub(super) fn ended(&mut self, id: SocketId, end: End) -> Option<Completion> {
        let socket = self.sockets.get_mut(id)?;
        let paused = socket.paused;
        if paused || socket.parked.is_some() {
            socket.park_end(end);
            let broken = socket.breakage.broken;
            self.watch_fault(id);
            return if paused && broken { self.fault(id) } else { None };
        }
        self.tell_end(id, end)
    }

    pub(super) fn tell_end(&mut self, id: SocketId, end: End) -> Option<Completion> {
        let socket = self.sockets.get_mut(id)?;
        let (tag, broken) = (socket.tag, socket.breakage.broken);
        socket.over = true;
        if end == End::Fault || socket.breakage.reset {
            return socket.breakage.tell(Fault::Failed, socket.tag);
        }
        if broken {
            self.news.push_back(News::Fault(id));
        }
        self.watch_fault(id);
        Some(Completion::Ended(tag))
    }

    fn room_completed(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id)?;
        match socket.kind {
            Kind::Connecting => self.connected(id),
            Kind::Stream if socket.starved => {
                let (tag, empty) = (socket.tag, socket.flush());
                if !empty {
                    self.starve(id);
                }
                empty.then_some(Completion::Drained(tag))
            }
            _ => None,
        }
    }

    fn connected(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id)?;
        let tag = socket.tag;
        if let Ok(Ok(())) = rustix::net::sockopt::socket_error(&socket.fd) {
            socket.kind = Kind::Stream;
            self.arm(id);
            return Some(Completion::Connected(tag));
        }
        socket.over = true;
        socket.breakage.tell(Fault::Failed, socket.tag)
    }

    fn fault_completed(&mut self, completed: Completed) -> Option<Completion> {
        let id = completed.id;
        let socket = self.sockets.get_mut(id)?;
        // Without an error it is only a FIN, of which a receive or a read tells.
        if let Ok(Err(error)) = rustix::net::sockopt::socket_error(&socket.fd) {
            socket.breakage.note(error);
            return self.fault(id);
        }
        // The poll ended because it found the completion queue full.
        if !completed.more && socket.kind == Kind::Stream {
            self.watch_fault(id);
        }
        None
    }

    /// Tells of a broken connection if no receive will.
    pub(super) fn fault(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.live(id).filter(|socket| socket.kind == Kind::Stream && socket.breakage.broken)?;
        if socket.over && socket.parked.is_none() {
            socket.breakage.tell(Fault::Failed, socket.tag)
        } else if socket.paused {
            socket.breakage.tell(Fault::Reset, socket.tag)
        } else {
            self.cancel_receive(id);
            self.arm(id);
            None
        }
    }
}
