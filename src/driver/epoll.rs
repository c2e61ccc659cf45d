//! The epoll backend: edge-triggered, one receive buffer for all sockets of the shard.
//!
//! A socket that may have more to give is in `ready`; a turn visits those that were there when it began, once each, so
//! that a fast peer cannot hold the others back.
//!
//! One connection's path: [`Epoll::note`] writes down what the kernel announces; a visit ([`arrivals`]) accepts,
//! receives, finds room or an end, or has [`splicing`] move bytes inside the kernel. Bytes are sent at once, and what
//! the kernel does not take waits in the backlog until there is room. A close is over at once. [`handover`] takes a
//! connection to another shard, [`state`] is what is kept for each socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::Shutdown;

mod arrivals;
mod handover;
mod splicing;
mod state;

use super::backlog::{JOINED_BYTES_MAX, SEGMENTS_MAX, transmit};
use super::descriptors::Descriptors;
use super::not_now::NotNow;
use super::splice::Pipes;
use super::{Completion, Driver, Lease, Segment, SocketId, Tag, socket};
use crate::limits::RECEIVE_BYTES;
use crate::slots::Slots;
use state::{Kind, Socket};

/// Most events taken from the kernel at once.
const EVENTS_PER_WAIT: usize = 512;

/// One shard's epoll.
pub struct Epoll {
    epoll: OwnedFd,
    sockets: Slots<Socket>,
    ready: VecDeque<SocketId>,
    /// Visits left in this turn.
    visits: usize,
    /// Connections accepted in this turn.
    accepted: u32,
    /// Kept beside `sockets`: they accept again each time that one of the last places gets free, without a walk of that
    /// table.
    listeners: Vec<SocketId>,
    accepting: bool,
    descriptors: Descriptors,
    not_now: NotNow,
    events: Vec<epoll::Event>,
    buffer: Box<[u8]>,
    /// Buffer in which short pieces of one send are joined.
    joined: Vec<u8>,
    pipes: Pipes,
}

impl Epoll {
    /// A driver without sockets.
    ///
    /// # Errors
    /// When the kernel gives no epoll descriptor.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: Slots::default(),
            ready: VecDeque::with_capacity(EVENTS_PER_WAIT),
            visits: 0,
            accepted: 0,
            listeners: Vec::new(),
            accepting: true,
            descriptors: Descriptors::default(),
            not_now: NotNow::default(),
            events: Vec::with_capacity(EVENTS_PER_WAIT),
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            joined: Vec::with_capacity(JOINED_BYTES_MAX),
            pipes: Pipes::default(),
        })
    }

    fn register(&mut self, fd: OwnedFd, tag: Tag, kind: Kind) -> io::Result<SocketId> {
        let id = self.sockets.insert(Socket::new(fd, tag, kind));
        if kind != Kind::Fresh
            && let Err(error) = self.watch(id)
        {
            self.sockets.remove(id);
            return Err(error.into());
        }
        Ok(id)
    }

    fn watch(&mut self, id: SocketId) -> Result<(), Errno> {
        use epoll::EventFlags as On;
        let Some(socket) = self.sockets.get(id) else { return Ok(()) };
        let flags = match socket.kind {
            Kind::Listener | Kind::Bell => On::IN | On::ET,
            _ => On::IN | On::OUT | On::RDHUP | On::ET,
        };
        epoll::add(&self.epoll, &socket.fd, epoll::EventData::new_u64(id.to_u64()), flags)
    }

    fn enqueue(ready: &mut VecDeque<SocketId>, id: SocketId, socket: &mut Socket) {
        if !socket.queued {
            socket.queued = true;
            ready.push_back(id);
        }
    }

    /// Notes what the kernel announced; the visit does the rest.
    fn note(&mut self, id: SocketId, flags: epoll::EventFlags) {
        use epoll::EventFlags as On;
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let hung_up = flags.intersects(On::ERR | On::HUP);
        socket.readable |= hung_up || flags.intersects(On::IN | On::RDHUP);
        socket.hung_up |= hung_up || flags.contains(On::RDHUP);
        // A hang-up alone is also what two FINs make.
        if flags.contains(On::ERR)
            && socket.kind == Kind::Stream
            && let Ok(Err(error)) = rustix::net::sockopt::socket_error(&socket.fd)
        {
            socket.breakage.note(error);
        }
        let may_write = flags.contains(On::OUT) && (socket.starved || socket.kind == Kind::Connecting);
        socket.writable = may_write;
        if may_write || hung_up || (socket.readable && !socket.paused) {
            Self::enqueue(&mut self.ready, id, socket);
        }
    }
}

fn bytes_of<'a>(segment: &Segment<'a>, buffer: &'a [u8]) -> &'a [u8] {
    match segment {
        Segment::Bytes(bytes) => bytes,
        Segment::Leased(_, range) => buffer.get(range.clone()).unwrap_or_default(),
    }
}

impl Driver for Epoll {
    const NAME: &'static str = "epoll";

    fn listen(&mut self, listener: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        self.descriptors.begin(&listener);
        let id = self.register(listener, Tag(0), Kind::Listener)?;
        self.listeners.push(id);
        Ok(())
    }

    fn accept_connections(&mut self, accept: bool) {
        self.accepting = accept;
        for &id in self.listeners.iter().filter(|_| accept) {
            if let Some(socket) = self.sockets.get_mut(id) {
                Self::enqueue(&mut self.ready, id, socket);
            }
        }
    }

    fn stop_listening(&mut self) {
        for id in std::mem::take(&mut self.listeners) {
            if let Some(socket) = self.sockets.remove(id) {
                // Closing alone would not remove it: a process that takes this one's place has the same open file.
                let _ = epoll::delete(&self.epoll, &socket.fd);
            }
        }
    }

    fn accept_last(&mut self) -> Option<(SocketId, SocketAddr)> {
        let Epoll { sockets, descriptors, listeners, not_now, .. } = self;
        let listeners = listeners.iter().filter_map(|id| Some(&sockets.get(*id)?.fd));
        let (connection, peer) = descriptors.accept_living(listeners, &mut not_now.times)?;
        Some((self.register(connection, Tag(0), Kind::Fresh).ok()?, peer))
    }

    fn adopt(&mut self, id: SocketId, tag: Tag) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        (socket.tag, socket.kind) = (tag, Kind::Stream);
        if let Err(error) = self.watch(id)
            && let Some(socket) = self.sockets.get_mut(id)
        {
            // The kernel would never tell of this socket: the shard is told now that it failed.
            self.not_now.times += 1;
            socket.over = true;
            socket.breakage.note(error);
            Self::enqueue(&mut self.ready, id, socket);
        }
    }

    fn rename(&mut self, id: SocketId, tag: Tag) {
        if let Some(socket) = self.sockets.get_mut(id) {
            socket.tag = tag;
        }
    }

    fn foresee(&self, id: SocketId) {
        self.sockets.touch(id);
    }

    fn connect(&mut self, address: SocketAddr, tag: Tag) -> io::Result<SocketId> {
        self.register(socket::connect(address)?, tag, Kind::Connecting)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = timeout.min(self.try_again());
        let timeout = if self.ready.is_empty() { timeout } else { Duration::ZERO };
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            self.note(SocketId::from_u64(event.data.u64()), event.flags);
        }
        self.events = events;
        self.visits = self.ready.len();
        self.accepted = 0;
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        while self.visits > 0 {
            self.visits -= 1;
            let id = self.ready.pop_front()?;
            if let Some(completion) = self.visit(id) {
                return Some(completion);
            }
        }
        None
    }

    fn bytes(&self, lease: Lease) -> &[u8] {
        &self.buffer[..lease.len as usize]
    }

    fn send(&mut self, id: SocketId, segments: &[Segment<'_>]) -> usize {
        debug_assert!(segments.len() <= SEGMENTS_MAX);
        let Some(socket) = self.sockets.get_mut(id) else { return 0 };
        let total: usize = segments.iter().map(Segment::len).sum();
        let mut pieces = [IoSlice::new(&[]); SEGMENTS_MAX];
        let mut count = 0;
        if segments.len() > 1 && total <= JOINED_BYTES_MAX {
            self.joined.clear();
            segments.iter().for_each(|segment| self.joined.extend_from_slice(bytes_of(segment, &self.buffer)));
            pieces[0] = IoSlice::new(&self.joined);
            count = 1;
        } else {
            for (piece, segment) in pieces.iter_mut().zip(segments) {
                *piece = IoSlice::new(bytes_of(segment, &self.buffer));
                count += 1;
            }
        }
        let pieces = &pieces[..count];
        let sent = if socket.starved { Ok(0) } else { transmit(&socket.fd, pieces) };
        let taken = socket.breakage.taken(sent);
        if socket.breakage.broken {
            Self::enqueue(&mut self.ready, id, socket);
        }
        if taken < total {
            socket.starved = true;
            socket.backlog.get_or_insert_default().push_rest(pieces.iter().copied(), taken);
        }
        socket.backlog.as_ref().map_or(0, |backlog| backlog.len())
    }

    fn flush(&mut self, id: SocketId) -> usize {
        let backlog = self.sockets.get(id).and_then(|socket| socket.backlog.as_ref());
        backlog.map_or(0, |backlog| backlog.len())
    }

    fn offer(&mut self, id: SocketId, bytes: &[u8]) -> usize {
        let Some(socket) = self.sockets.get_mut(id).filter(|socket| !socket.starved) else { return 0 };
        let sent = transmit(&socket.fd, &[IoSlice::new(bytes)]);
        let taken = socket.breakage.taken(sent);
        socket.starved = taken < bytes.len();
        if socket.breakage.broken {
            Self::enqueue(&mut self.ready, id, socket);
        }
        taken
    }

    fn splice(&mut self, from: SocketId, to: SocketId, len: u64) -> bool {
        self.begin_splice(from, to, len)
    }

    fn pause(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.get_mut(id) {
            socket.paused = true;
        }
    }

    fn resume(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.get_mut(id)
            && std::mem::take(&mut socket.paused)
            && socket.readable
        {
            Self::enqueue(&mut self.ready, id, socket);
        }
    }

    fn finish(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.get_mut(id) {
            socket.finish = true;
            if !socket.starved {
                let _ = rustix::net::shutdown(&socket.fd, Shutdown::Write);
            }
        }
    }

    fn close(&mut self, id: SocketId) {
        let Some(mut socket) = self.sockets.remove(id) else { return };
        if let Some(splice) = socket.splice.take() {
            self.pipes.end(*splice);
        }
        if socket.starved {
            socket::reset_on_close(&socket.fd);
        }
    }

    fn abort(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.get(id) {
            socket::reset_on_close(&socket.fd);
            self.close(id);
        }
    }

    fn is_quiet(&self, id: SocketId) -> bool {
        let is_quiet = |socket: &Socket| {
            // A socket that is still spliced would send the next reply where the last one went.
            !socket.readable && !socket.hung_up && !socket.over && !socket.breakage.broken && socket.splice.is_none()
        };
        self.sockets.get(id).is_some_and(is_quiet)
    }

    fn nothing_waits(&self, id: SocketId) -> bool {
        self.sockets.get(id).is_none_or(|socket| self.is_quiet(id) && socket::nothing_waits(&socket.fd))
    }

    fn acknowledged(&self, id: SocketId) -> Option<u64> {
        socket::acknowledged(self.sockets.get(id)?.fd.as_fd())
    }

    fn accept_stalls(&self) -> u64 {
        self.not_now.times
    }
}
