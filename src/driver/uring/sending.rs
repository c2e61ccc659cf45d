//! Sending: bytes gathered during a turn, or sent at once if they cannot wait, and what came of it.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::buffers::{self, Buffers};
use super::outbox::{Chain, PIECES_MAX, QUEUED_BYTES_MAX};
use super::ring::Purpose;
use super::state::Socket;
use super::{News, Uring};
use crate::driver::backlog::{JOINED_BYTES_MAX, SEGMENTS_MAX, transmit};
use crate::driver::{Segment, SocketId};

impl Uring {
    /// Keeps what the kernel did not take of `pieces`.
    fn keep<'a>(socket: &mut Socket, taken: usize, pieces: impl Iterator<Item = IoSlice<'a>>) {
        socket.starved = true;
        socket.backlog.get_or_insert_default().push_rest(pieces, taken);
    }

    /// Waits for room after the kernel took less than all, or has the fault told if the connection is broken.
    pub(super) fn starve(&mut self, id: SocketId) {
        match self.sockets.get(id) {
            Some(socket) if socket.breakage.broken => self.news.push_back(News::Fault(id)),
            Some(_) => self.watch_room(id),
            None => {}
        }
    }

    /// Sends at once what the turn has gathered for this socket, for calls that cannot wait for the turn's end.
    pub(super) fn send_now(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let Some(chain) = socket.outgoing.take() else { return };
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX as usize + SEGMENTS_MAX];
        let (mut count, mut total) = (0, 0);
        for (piece, slice) in pieces.iter_mut().zip(self.outbox.slices(chain, &self.buffers)) {
            *piece = slice;
            (count, total) = (count + 1, total + slice.len());
        }
        let sent = transmit(&socket.fd, &pieces[..count]);
        let taken = socket.breakage.taken(sent);
        if taken < total {
            Self::keep(socket, taken, pieces[..count].iter().copied());
        }
        self.outbox.release(chain, &mut self.buffers);
        if taken < total {
            self.news.push_back(News::Full(id));
            self.starve(id);
        }
    }

    /// Sends these segments at once, after everything gathered.
    pub(super) fn send_directly(&mut self, id: SocketId, segments: &[Segment<'_>]) -> usize {
        self.send_now(id);
        let Some(socket) = self.sockets.get_mut(id) else { return 0 };
        let mut pieces = [IoSlice::new(&[]); SEGMENTS_MAX];
        let (mut count, mut total) = (0, 0);
        for (piece, segment) in pieces.iter_mut().zip(segments) {
            *piece = IoSlice::new(bytes_of(segment, &self.buffers));
            (count, total) = (count + 1, total + piece.len());
        }
        let pieces = &pieces[..count];
        let was_starved = socket.starved;
        let sent = if was_starved { Ok(0) } else { transmit(&socket.fd, pieces) };
        let taken = socket.breakage.taken(sent);
        if taken < total {
            Self::keep(socket, taken, pieces.iter().copied());
        }
        let waiting = socket.waiting();
        if taken < total && !was_starved {
            self.starve(id);
        }
        waiting
    }

    /// Gathers these segments. False: there is no room for them in this turn.
    pub(super) fn gather(&mut self, id: SocketId, segments: &[Segment<'_>]) -> bool {
        let Some(socket) = self.sockets.get_mut(id) else { return true };
        let total: usize = segments.iter().map(Segment::len).sum();
        let waits = |segment: &Segment<'_>| matches!(segment, Segment::Leased(lease, range) if !self.buffers.may_wait(lease.buffer, range.len()));
        let crowded = socket.outgoing.is_some_and(|chain| {
            usize::from(chain.count.get()) + segments.len() > PIECES_MAX as usize
                || chain.bytes as usize + total > QUEUED_BYTES_MAX
        });
        if crowded || segments.iter().any(waits) || !self.outbox.has_room(total) {
            return false;
        }
        let join = segments.len() > 1 && total <= JOINED_BYTES_MAX;
        for segment in segments.iter().filter(|segment| !segment.is_empty()) {
            match segment {
                Segment::Leased(lease, range) if !join && range.len() > buffers::copied_max(lease.buffer) => {
                    self.buffers.hold(lease.buffer);
                    self.outbox.refer(id, &mut socket.outgoing, lease.buffer, range.start, range.len());
                }
                _ => self.outbox.copy(id, &mut socket.outgoing, bytes_of(segment, &self.buffers)),
            }
        }
        true
    }

    /// Hands the gathered sends and all else that is queued to the kernel, waits, and deals with the sends' results.
    pub(super) fn enter(&mut self, timeout: Duration) -> io::Result<()> {
        let sockets = &mut self.sockets;
        self.outbox.submit(&mut self.ring, &self.buffers, |id| {
            let socket = sockets.get_mut(id)?;
            let chain = socket.outgoing.take()?;
            Some((socket.fd.as_raw_fd(), chain))
        })?;
        let before = self.completed.len();
        self.ring.enter(timeout, &mut self.completed)?;
        self.turns = self.turns.wrapping_add(1);
        self.note_completed(before);
        let batch = self.outbox.sent();
        for &(id, chain) in &batch {
            self.settle(id, chain);
        }
        self.outbox.clear(batch);
        Ok(())
    }

    /// Notes what must be known of completions before they are handed out; those from place `before` on are new.
    pub(super) fn note_completed(&mut self, before: usize) {
        self.puts_off = self.ring.puts_off();
        for completed in &self.completed[before..] {
            match completed.purpose {
                Purpose::Receive => {
                    if let Some(socket) = self.sockets.get_mut(completed.id) {
                        socket.undelivered += 1;
                    }
                }
                Purpose::Send => {
                    if let Some(socket) = self.sockets.get_mut(completed.id) {
                        socket.send_result = Some(completed.result);
                    }
                }
                _ => {}
            }
        }
    }

    /// Deals with the result of one socket's send, which is over.
    fn settle(&mut self, id: SocketId, chain: Chain) {
        let result = self.sockets.get_mut(id).and_then(|socket| Some((socket.send_result.take()?, socket)));
        if let Some((result, socket)) = result {
            let sent = usize::try_from(result).map_err(|_| rustix::io::Errno::from_raw_os_error(-result));
            let taken = socket.breakage.taken(sent);
            Self::keep(socket, taken, self.outbox.slices(chain, &self.buffers));
            // Before any other news: the end of the side that these bytes came from may follow, and be the last event
            // of the exchange.
            self.news.push_front(News::Full(id));
            self.starve(id);
        }
        self.outbox.release(chain, &mut self.buffers);
    }
}

fn bytes_of<'a>(segment: &Segment<'a>, buffers: &'a Buffers) -> &'a [u8] {
    match segment {
        Segment::Bytes(bytes) => bytes,
        Segment::Leased(lease, range) => {
            buffers.bytes(lease.buffer, lease.len as usize).get(range.clone()).unwrap_or_default()
        }
    }
}
