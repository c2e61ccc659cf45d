//! Reads without the ring: large pieces, one from each connection a turn, into a buffer that is warm in the CPU's
//! cache. The buffers that the kernel chooses from are cold, since it takes them in the order of their return.

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::state::{End, Kind};
use super::{News, Uring};
use crate::driver::{Completion, Lease, SocketId};
use crate::limits::RECEIVE_BYTES;

impl Uring {
    pub(super) fn bytes_came(&mut self, id: SocketId) -> Option<Completion> {
        self.sockets.get_mut(id)?.readable = true;
        self.look_for_bytes(id)
    }

    /// Looks for bytes of a socket that [`News::Visit`] named.
    pub(super) fn visit(&mut self, id: SocketId) -> Option<Completion> {
        self.sockets.get_mut(id)?.due = false;
        self.look_for_bytes(id)
    }

    fn look_for_bytes(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id).filter(|socket| socket.kind == Kind::Stream)?;
        if socket.splice.is_some() {
            return self.splice_on(id);
        }
        if socket.is_receiving() || socket.paused || socket.over || socket.parked.is_some() {
            return None;
        }
        self.read(id)
    }

    /// Reads a piece. A broken connection is read so to its end, too: the ring misses that end when it takes more than
    /// a few dozen buffers before it, and then waits for an announcement that was made long ago (io_recv_finish and
    /// io_poll_check_events in io_uring).
    fn read(&mut self, id: SocketId) -> Option<Completion> {
        let socket = self.sockets.get_mut(id)?;
        let (name, buffer) = self.buffers.free_large()?;
        match rustix::net::recv(&socket.fd, buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.ended(id, End::Fin),
            Ok((len, _)) => {
                let tag = socket.tag;
                socket.readable = len == RECEIVE_BYTES;
                socket.outgrows(len);
                if socket.readable || socket.breakage.broken {
                    self.next_turn(id);
                } else {
                    self.arm_ring(id);
                }
                self.lease(name);
                Some(Completion::Received(tag, Lease { buffer: name, len: len as u32 }))
            }
            Err(Errno::INTR) => {
                self.next_turn(id);
                None
            }
            // If the connection is broken, only one direction is.
            Err(Errno::AGAIN) => {
                socket.readable = false;
                self.arm_ring(id);
                None
            }
            Err(error) => {
                socket.breakage.note(error);
                self.ended(id, End::Fault)
            }
        }
    }

    /// Hands out a piece of what came while the connection was paused.
    pub(super) fn hand_out_parked(&mut self, id: SocketId) -> Option<Completion> {
        let (name, buffer) = self.buffers.free_large()?;
        let socket = self.sockets.get_mut(id).filter(|socket| socket.kind != Kind::Closing && !socket.paused)?;
        let mut parked = socket.parked.take()?;
        let (tag, end) = (socket.tag, parked.end);
        if parked.bytes.is_empty() {
            return self.tell_end(id, end?);
        }
        let len = parked.bytes.len().min(RECEIVE_BYTES);
        buffer[..len].copy_from_slice(&parked.bytes[..len]);
        parked.bytes.drain(..len);
        if parked.bytes.is_empty() && end.is_none() {
            self.arm(id);
        } else {
            socket.parked = Some(parked);
            self.news.push_back(News::Parked(id));
        }
        self.lease(name);
        Some(Completion::Received(tag, Lease { buffer: name, len: len as u32 }))
    }
}
