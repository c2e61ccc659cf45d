//! Bytes that go from one connection to another inside the kernel, by splice(2) and not the ring.

use super::state::{End, Kind};
use super::{News, Uring};
use crate::driver::splice::Stop;
use crate::driver::{Completion, SocketId};

impl Uring {
    /// Begins a splice, once the receive under way has ended; bytes that the receive still brings are handed out.
    pub(super) fn begin_splice(&mut self, from: SocketId, to: SocketId, len: u64) -> bool {
        self.send_now(to);
        let both = [from, to].map(|id| self.sockets.get(id).is_some_and(|socket| socket.kind == Kind::Stream));
        let (true, Some(socket)) = (both == [true; 2], self.sockets.get_mut(from)) else { return false };
        if socket.splice.is_some() {
            return true;
        }
        // Parked bytes were received before, and are not among those that a splice would count.
        if socket.parked.is_some() {
            return false;
        }
        socket.splice = self.pipes.begin(to, len);
        let begun = socket.splice.is_some();
        if begun {
            self.cancel_receive(from);
        }
        begun
    }

    /// Counts bytes that were received although a splice was to move them.
    pub(super) fn came_otherwise(&mut self, id: SocketId, len: u32) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        if let Some(splice) = socket.splice.take_if(|splice| splice.came(u64::from(len))) {
            self.pipes.end(*splice);
        }
    }

    /// Moves the bytes that a connection has.
    pub(super) fn splice_on(&mut self, id: SocketId) -> Option<Completion> {
        let ready = |socket: &&mut super::Socket| {
            socket.kind == Kind::Stream
                && !socket.paused
                && !socket.is_receiving()
                && !socket.over
                && socket.parked.is_none()
        };
        let socket = self.sockets.get_mut(id).filter(ready)?;
        let tag = socket.tag;
        let mut splice = socket.splice.take()?;
        let to = splice.to;
        // Bytes received before go first.
        self.send_now(to);
        let reader = self.sockets.get(to).filter(|reader| reader.kind == Kind::Stream);
        let (Some(from), Some(reader)) = (self.sockets.get(id), reader) else {
            self.pipes.end(*splice);
            return None;
        };
        // If the reader is full, this connection is resumed once there is room.
        let (moved, stop) = if reader.starved { (0, Stop::Full) } else { splice.step(&from.fd, &reader.fd) };
        if stop == Stop::Done {
            self.pipes.end(*splice);
        } else if let Some(from) = self.sockets.get_mut(id) {
            from.splice = Some(splice);
        }
        self.note_stop(id, to, moved, stop).or((moved > 0).then_some(Completion::Spliced(tag, moved)))
    }

    /// Acts on why a visit ended. The connection's own end is told only if no bytes are to be told of first.
    fn note_stop(&mut self, id: SocketId, to: SocketId, moved: u64, stop: Stop) -> Option<Completion> {
        match stop {
            Stop::Done => self.arm(id),
            Stop::Dry => self.await_bytes(id),
            Stop::Full | Stop::LostReader(_) => self.reader_full(to, stop),
            Stop::Ended | Stop::Failed(_) if moved == 0 => {
                let socket = self.sockets.get_mut(id)?;
                if let Stop::Failed(error) = stop {
                    socket.breakage.note(error);
                }
                if let Some(splice) = socket.splice.take() {
                    self.pipes.end(*splice);
                }
                return self.ended(id, End::Fin);
            }
            Stop::Failed(error) => {
                self.sockets.get_mut(id)?.breakage.note(error);
                self.next_turn(id);
            }
            // It is visited again in the next turn, like the others.
            Stop::Visited | Stop::Ended => self.next_turn(id),
        }
        None
    }

    fn reader_full(&mut self, to: SocketId, stop: Stop) {
        let Some(reader) = self.sockets.get_mut(to).filter(|reader| !reader.starved) else { return };
        reader.starved = true;
        if let Stop::LostReader(error) = stop {
            reader.breakage.note(error);
        }
        self.news.push_back(News::Full(to));
        self.starve(to);
    }
}
