//! What is read without the ring: large pieces, one of each connection a turn, into the driver's one buffer. It stays
//! warm, where buffers for the kernel to choose from would be as cold as the pool of them is large.

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::ring::Completed;
use super::state::{End, Kind};
use super::{OWN, Told, Uring};
use crate::driver::{Completion, Lease, SocketId};
use crate::limits::RECEIVE_BYTES;

impl Uring {
    pub(super) fn bytes_came(&mut self, completed: Completed) -> Option<Completion> {
        let socket = self.sockets.get_mut(completed.id)?;
        socket.operations -= 1;
        (socket.awaits_bytes, socket.readable) = (false, true);
        self.look_for_bytes(completed.id)
    }

    /// Its turn has come.
    pub(super) fn visit(&mut self, id: SocketId) -> Option<Completion> {
        self.sockets.get_mut(id)?.due = false;
        self.look_for_bytes(id)
    }

    fn look_for_bytes(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id).filter(|socket| socket.kind == Kind::Stream)?;
        if socket.splice.is_some() {
            return self.splice_on(id);
        }
        if socket.receiving || socket.paused || socket.over || socket.parked.is_some() {
            return None;
        }
        self.read(id)
    }

    /// Reads a piece. So goes a broken connection too, to its end: the ring does not see that end when it takes more
    /// than a few dozen buffers before it, and then waits for an announcement that was made long ago (io_recv_finish
    /// and io_poll_check_events in io_uring).
    fn read(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id)?;
        match rustix::net::recv(&socket.fd, &mut self.own[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.ended(id, End::Fin),
            Ok((len, _)) => {
                let tag = socket.tag;
                socket.readable = len == RECEIVE_BYTES;
                socket.outgrows(len);
                if socket.readable || socket.broken {
                    self.next_turn(id);
                } else {
                    self.arm_ring(id);
                }
                Some(Completion::Received(tag, Lease { buffer: OWN, len: len as u32 }))
            }
            Err(Errno::INTR) => {
                self.next_turn(id);
                None
            }
            // Of a broken connection: only one direction is.
            Err(Errno::AGAIN) => {
                socket.readable = false;
                self.arm_ring(id);
                None
            }
            Err(error) => {
                socket.note_error(error);
                self.ended(id, End::Fault)
            }
        }
    }

    /// A piece of what came while the connection was paused.
    pub(super) fn hand_out_parked(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.live(id).filter(|socket| !socket.paused)?;
        let mut parked = socket.parked.take()?;
        let (tag, end) = (socket.tag, parked.end);
        if parked.bytes.is_empty() {
            return self.tell_end(id, end?);
        }
        let rest = parked.bytes.split_off(parked.bytes.len().min(RECEIVE_BYTES));
        let bytes = std::mem::replace(&mut parked.bytes, rest);
        if parked.bytes.is_empty() && end.is_none() {
            self.arm(id);
        } else {
            socket.parked = Some(parked);
            self.told.push_back(Told::Parked(id));
        }
        self.own[..bytes.len()].copy_from_slice(&bytes);
        Some(Completion::Received(tag, Lease { buffer: OWN, len: bytes.len() as u32 }))
    }
}
