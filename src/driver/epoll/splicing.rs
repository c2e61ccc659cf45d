//! Bytes that go from one connection to another inside the kernel, on epoll.

use super::Epoll;
use super::state::Kind;
use crate::driver::splice::Stop;
use crate::driver::{Completion, SocketId};

impl Epoll {
    pub(super) fn begin_splice(&mut self, from: SocketId, to: SocketId, len: u64) -> bool {
        let both = [from, to].map(|id| self.sockets.get(id).is_some_and(|socket| socket.kind == Kind::Stream));
        let (true, Some(socket)) = (both == [true; 2], self.sockets.get_mut(from)) else { return false };
        if socket.splice.is_none() {
            socket.splice = self.pipes.begin(to, len);
        }
        socket.splice.is_some()
    }

    /// Moves the bytes that a readable connection has.
    pub(super) fn splice_on(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id).filter(|socket| socket.readable)?;
        let tag = socket.tag;
        let mut splice = socket.splice.take()?;
        let to = splice.to;
        let (Some(from), Some(reader)) = (self.sockets.get(id), self.sockets.get(to)) else {
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
        if let (Stop::Full | Stop::LostReader(_), Some(reader)) = (stop, self.sockets.get_mut(to)) {
            reader.full_owed |= !reader.starved;
            reader.starved = true;
            if let Stop::LostReader(error) = stop {
                reader.breakage.note(error);
            }
            Self::enqueue(&mut self.ready, to, reader);
        }
        let socket = self.sockets.get_mut(id)?;
        match stop {
            Stop::Full | Stop::LostReader(_) => {}
            Stop::Dry => socket.readable = socket.hung_up,
            Stop::Failed(error) => socket.breakage.note(error),
            Stop::Done | Stop::Visited | Stop::Ended => {}
        }
        if moved == 0 && matches!(stop, Stop::Ended | Stop::Failed(_)) {
            // The splice ends with the connection, whose end is told as any other.
            let splice = socket.splice.take()?;
            self.pipes.end(*splice);
            return self.receive(id);
        }
        if !matches!(stop, Stop::Full | Stop::LostReader(_)) && socket.readable {
            Self::enqueue(&mut self.ready, id, socket);
        }
        None
    }
}
