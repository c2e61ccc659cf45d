//! The io_uring backend: one ring and its receive buffers for all sockets of a shard.
//!
//! One connection's path: a poll tells [`accepting`] that a client waits, or [`arrivals`] that a connect of ours is
//! over; an accepted connection may go to another shard ([`handover`]). [`arming`] begins the operations that go on
//! until they are cancelled; [`arrivals`] says what each completion means, and what the shard is told; [`reading`]
//! takes large pieces, [`splicing`] has them pass inside the kernel. Bytes to send gather in [`outbox`]; [`sending`]
//! hands them over at the turn's end, and deals with the results. [`closing`] ends operations, then the socket. Below
//! them are [`ring`], the kernel's two queues, [`buffers`] to receive into, and [`state`], what is kept of a socket.
//!
//! A connection that we opened has one receive that goes on completing, into small buffers that the kernel chooses,
//! while it brings small pieces (streams). For long replies, and for whatever clients send, a poll waits, and they are
//! read in large pieces. New connections are accepted after a poll too, no more than there are places for. Sends are
//! gathered during a turn and handed over at its end, in the one system call that also waits. They do not wait for
//! room, so that all are over when it returns; the rest is kept, and sent once a poll finds room. A descriptor is
//! closed after the last completion of every operation on it.

mod accepting;
mod arming;
mod arrivals;
mod buffers;
mod closing;
mod handover;
mod outbox;
pub mod probe;
mod reading;
mod ring;
mod sending;
mod splicing;
mod state;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::net::Shutdown;

use super::backlog::{SEGMENTS_MAX, transmit};
use super::descriptors::Descriptors;
use super::not_now::NotNow;
use super::splice::Pipes;
use super::{Completion, Driver, Lease, Segment, SocketId, Tag, socket};
use crate::slots::Slots;
use buffers::Buffers;
use outbox::Outbox;
use ring::{Completed, Ring, SIZES};
use state::{Kind, Socket};

/// What the driver itself has to tell the shard, besides what the kernel completed.
#[derive(Clone, Copy)]
enum News {
    /// The kernel did not take all that was sent to this socket.
    Full(SocketId),
    /// Bytes or an end came while the connection was paused.
    Parked(SocketId),
    Fault(SocketId),
    /// This socket may have bytes to read or to splice.
    Visit(SocketId),
    /// This listener may accept so many more connections in this turn.
    Accept(SocketId, u32),
}

/// Wait before a smaller ring is tried: the kernel gives back a closed ring's memory only some milliseconds later.
const GIVEN_BACK: Duration = Duration::from_millis(20);
/// It seldom takes far longer: the smallest ring is tried again so often, each time after so long.
const GIVEN_BACK_LATE: (usize, Duration) = (3, Duration::from_millis(100));

/// One shard's ring.
pub struct Uring {
    // Dropped before the buffers that it writes into.
    ring: Ring,
    buffers: Buffers,
    sockets: Slots<Socket>,
    outbox: Outbox,
    /// What the kernel completed, and how many of these were handed out.
    completed: Vec<Completed>,
    handed_out: usize,
    /// Enters so far, to tell which operations the kernel has not taken yet.
    turns: u32,
    /// The last enter did not make completions of all that had happened.
    puts_off: bool,
    news: VecDeque<News>,
    /// The buffer of the lease that is held now.
    leased: Option<u16>,
    /// Connections that may have more bytes in the next turn, or whose receive found no buffer.
    hungry: Vec<SocketId>,
    buffers_out: u64,
    pipes: Pipes,
    /// Told to accept or not when one of the last places is taken or gets free, without a walk of `sockets`.
    listeners: Vec<SocketId>,
    accepting: bool,
    /// Number of closed sockets that still keep their descriptors.
    closing: usize,
    descriptors: Descriptors,
    not_now: NotNow,
    /// Why the ring can no longer be used; the next wait returns this.
    failure: Option<io::Error>,
}

impl Uring {
    /// A driver without sockets, for the calling thread only, with queues as large as memory allows.
    ///
    /// # Errors
    /// When the kernel gives no ring: forbidden, too old, or no memory for it (`RLIMIT_MEMLOCK`).
    pub fn new() -> io::Result<Uring> {
        Uring::with_queues(&SIZES)
    }

    /// The same, with the first of these sizes (operations, completions) that there is memory for.
    ///
    /// # Errors
    /// As of [`Uring::new`].
    pub fn with_queues(sizes: &[(u32, u32)]) -> io::Result<Uring> {
        let mut last = io::Error::from(io::ErrorKind::Unsupported);
        let (times, late) = GIVEN_BACK_LATE;
        let again = sizes.last().into_iter().cycle().take(times);
        for (tried, &size) in sizes.iter().chain(again).enumerate() {
            if tried > 0 {
                thread::sleep(if tried < sizes.len() { GIVEN_BACK } else { late });
            }
            match Uring::of_size(size) {
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => last = error,
                made => return made,
            }
        }
        Err(last)
    }

    fn of_size(size: (u32, u32)) -> io::Result<Uring> {
        let ring = Ring::new(size)?;
        let buffers = Buffers::register(&ring)?;
        ring.enable()?;
        Ok(Uring {
            ring,
            buffers,
            sockets: Slots::default(),
            outbox: Outbox::new(),
            completed: Vec::new(),
            handed_out: 0,
            turns: 0,
            puts_off: false,
            news: VecDeque::new(),
            leased: None,
            hungry: Vec::new(),
            buffers_out: 0,
            pipes: Pipes::default(),
            listeners: Vec::new(),
            accepting: true,
            closing: 0,
            descriptors: Descriptors::default(),
            not_now: NotNow::default(),
            failure: None,
        })
    }

    /// Returns the entries of the two queues, operations and completions: fewer than wanted if memory is short.
    pub fn queue_sizes(&self) -> (u32, u32) {
        self.ring.sizes()
    }

    /// Returns a socket that the shard has not closed.
    fn living(&self, id: SocketId) -> Option<&Socket> {
        self.sockets.get(id).filter(|socket| socket.kind != Kind::Closing)
    }

    /// The same, to change it.
    fn live(&mut self, id: SocketId) -> Option<&mut Socket> {
        self.sockets.get_mut(id).filter(|socket| socket.kind != Kind::Closing)
    }

    fn note(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
    }

    /// Leases a filled buffer, which the shard may read until the next call.
    fn lease(&mut self, name: u16) {
        self.buffers.take(name);
        self.leased = Some(name);
    }

    fn release_lease(&mut self) {
        if let Some(name) = self.leased.take() {
            self.buffers.release(name);
        }
    }

    fn register(&mut self, fd: OwnedFd, tag: Tag, kind: Kind) -> SocketId {
        self.sockets.insert(Socket::new(fd, tag, kind))
    }
}

impl Driver for Uring {
    const NAME: &'static str = "uring";

    fn listen(&mut self, listener: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        self.descriptors.begin(&listener);
        let id = self.register(listener, Tag(0), Kind::Listener);
        self.listeners.push(id);
        self.arm(id);
        Ok(())
    }

    fn accept_connections(&mut self, accept: bool) {
        self.accepting = accept;
        for place in 0..self.listeners.len() {
            let id = self.listeners[place];
            if accept { self.arm(id) } else { self.cancel_receive(id) }
        }
    }

    fn stop_listening(&mut self) {
        std::mem::take(&mut self.listeners).into_iter().for_each(|id| self.close(id));
    }

    fn accept_last(&mut self) -> Option<(SocketId, SocketAddr)> {
        self.accept_now()
    }

    fn adopt(&mut self, id: SocketId, tag: Tag) {
        if let Some(socket) = self.live(id) {
            (socket.tag, socket.kind) = (tag, Kind::Stream);
            self.arm(id);
        }
    }

    fn rename(&mut self, id: SocketId, tag: Tag) {
        if let Some(socket) = self.live(id) {
            socket.tag = tag;
        }
    }

    fn foresee(&self, id: SocketId) {
        self.sockets.touch(id);
    }

    fn connect(&mut self, address: SocketAddr, tag: Tag) -> io::Result<SocketId> {
        let mut connecting = socket::connect(address);
        if connecting.as_ref().is_err_and(socket::is_want) && self.let_go() {
            connecting = socket::connect(address);
        }
        let id = self.register(connecting?, tag, Kind::Connecting);
        self.watch_room(id);
        Ok(id)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.release_lease();
        if self.handed_out == self.completed.len() {
            self.completed.clear();
            self.handed_out = 0;
        }
        self.arm_again();
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.buffers.publish();
        let pending = !self.news.is_empty() || !self.completed.is_empty();
        let tries_again = !self.not_now.is_empty() && self.accepting;
        let pause = if tries_again { self.not_now.wait(self.now()) } else { Duration::MAX };
        self.enter(if pending { Duration::ZERO } else { timeout.min(pause) })
    }

    fn next(&mut self) -> Option<Completion> {
        self.release_lease();
        loop {
            let completion = if let Some(news) = self.news.pop_front() {
                self.tell(news)
            } else {
                let completed = *self.completed.get(self.handed_out)?;
                self.handed_out += 1;
                self.complete(completed)
            };
            if completion.is_some() {
                return completion;
            }
        }
    }

    fn bytes(&self, lease: Lease) -> &[u8] {
        self.buffers.bytes(lease.buffer, lease.len as usize)
    }

    fn send(&mut self, id: SocketId, segments: &[Segment<'_>]) -> usize {
        debug_assert!(segments.len() <= SEGMENTS_MAX);
        let Some(socket) = self.live(id) else { return 0 };
        if socket.starved || !self.gather(id, segments) {
            return self.send_directly(id, segments);
        }
        0
    }

    fn flush(&mut self, id: SocketId) -> usize {
        self.send_now(id);
        self.sockets.get(id).map_or(0, |socket| socket.waiting())
    }

    fn offer(&mut self, id: SocketId, bytes: &[u8]) -> usize {
        self.send_now(id);
        let Some(socket) = self.live(id).filter(|socket| !socket.starved) else { return 0 };
        let sent = transmit(&socket.fd, &[IoSlice::new(bytes)]);
        let taken = socket.breakage.taken(sent);
        if taken < bytes.len() {
            socket.starved = true;
            self.starve(id);
        }
        taken
    }

    fn splice(&mut self, from: SocketId, to: SocketId, len: u64) -> bool {
        self.begin_splice(from, to, len)
    }

    fn pause(&mut self, id: SocketId) {
        let Some(socket) = self.live(id) else { return };
        socket.paused = true;
        if socket.breakage.broken {
            self.news.push_back(News::Fault(id));
        } else if socket.is_receiving() {
            self.cancel_receive(id);
        } else if socket.kind == Kind::Stream {
            self.watch_fault(id);
        }
    }

    fn resume(&mut self, id: SocketId) {
        let Some(socket) = self.live(id).filter(|socket| socket.paused) else { return };
        socket.paused = false;
        if socket.parked.is_some() {
            self.news.push_back(News::Parked(id));
        } else if !socket.over {
            self.arm(id);
        }
    }

    fn finish(&mut self, id: SocketId) {
        self.send_now(id);
        if let Some(socket) = self.live(id) {
            socket.finish = true;
            if !socket.starved {
                let _ = rustix::net::shutdown(&socket.fd, Shutdown::Write);
            }
        }
    }

    fn close(&mut self, id: SocketId) {
        self.begin_close(id);
    }

    fn abort(&mut self, id: SocketId) {
        self.send_now(id);
        if let Some(socket) = self.live(id) {
            socket::reset_on_close(&socket.fd);
            self.close(id);
        }
    }

    fn is_quiet(&self, id: SocketId) -> bool {
        let Some(socket) = self.living(id) else { return false };
        let told = socket.undelivered == 0 && !socket.over && !socket.breakage.broken && socket.parked.is_none();
        // A socket that is still spliced would send the next reply where the last one went.
        let told = told && socket.splice.is_none();
        // A receive tells of everything that came, unless the kernel has yet to take it or put off its completions.
        let asked = socket.is_receiving() && !socket.cancelled && socket.armed_in != self.turns && !self.puts_off;
        told && (asked || socket::nothing_waits(&socket.fd))
    }

    fn nothing_waits(&self, id: SocketId) -> bool {
        self.living(id).is_none_or(|socket| self.is_quiet(id) && socket::nothing_waits(&socket.fd))
    }

    fn acknowledged(&self, id: SocketId) -> Option<u64> {
        socket::acknowledged(self.living(id)?.fd.as_fd())
    }

    fn accept_stalls(&self) -> u64 {
        self.not_now.times
    }

    fn buffers_out(&self) -> u64 {
        self.buffers_out
    }

    fn overflows(&self) -> u64 {
        self.ring.overflows()
    }
}

impl Drop for Uring {
    /// The kernel may write into the buffers until the last receive is over.
    fn drop(&mut self) {
        if !self.end_all() {
            self.buffers.keep_for_good();
        }
    }
}
