//! The kernel behind a small interface: sockets, bytes received, bytes to send. Knows nothing of HTTP.
//!
//! The interface is of completions, so that both readiness (epoll) and rings (io_uring) fit behind it. A turn is:
//! [`Driver::wait`], then [`Driver::next`] until it answers `None`. Bytes received are *leased*: they stay in the
//! driver's buffer and are valid until the next call of [`Driver::next`].

mod backlog;
mod descriptors;
pub mod epoll;
mod fault;
mod not_now;
pub mod socket;
mod splice;
pub mod uring;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

pub use crate::slots::Key as SocketId;

/// Most connections accepted from one listener in a row.
const ACCEPTS_PER_VISIT: u32 = 16;

/// The shard's name for a socket, which comes back with each of its completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub u64);

/// The right to read a received buffer until the next call of [`Driver::next`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Number of the driver's buffer.
    pub buffer: u16,
    /// How many bytes of it were filled, at most [`RECEIVE_BYTES`](crate::limits::RECEIVE_BYTES).
    pub len: u32,
}

/// Bytes to send: the caller's, or part of a lease, which a ring may send from where they are.
#[derive(Clone, Debug)]
pub enum Segment<'a> {
    /// The caller's.
    Bytes(&'a [u8]),
    /// A range of a lease.
    Leased(Lease, Range<usize>),
}

impl Segment<'_> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Segment::Bytes(bytes) => bytes.len(),
            Segment::Leased(_, range) => range.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What happened to a socket.
#[derive(Clone, Copy, Debug)]
pub enum Completion {
    /// A listener has a new connection. It is not read from before [`Driver::adopt`] names it.
    Accepted {
        /// The new connection.
        socket: SocketId,
        /// The client's address.
        peer: SocketAddr,
    },
    /// A connect succeeded.
    Connected(Tag),
    /// Bytes came.
    Received(Tag, Lease),
    /// The peer sends no more (FIN).
    Ended(Tag),
    /// The connection is broken, or a connect failed: told once, also after `Ended`. The shard still has to close it.
    Failed(Tag),
    /// A paused connection is broken: told once. Bytes received before may still be read after [`Driver::resume`],
    /// and `Failed` follows them.
    Reset(Tag),
    /// The kernel did not take all that was sent, which [`Driver::send`] could not know yet. `Drained` follows.
    Full(Tag),
    /// So many bytes went to the connection that [`Driver::splice`] was given.
    Spliced(Tag, u64),
    /// The kernel has taken all that was queued, or, after a short [`Driver::offer`], there is room again.
    Drained(Tag),
}

/// How a connection goes from one shard to another. If a driver cannot do this, its shard keeps all connections that
/// its listeners get.
pub trait HandOver {
    /// Has [`Driver::wait`] return when `bell` (an eventfd) is rung; no completion follows.
    ///
    /// # Errors
    /// When `bell` cannot be waited for.
    fn hear(&mut self, bell: OwnedFd) -> io::Result<()>;

    /// Gives away an accepted connection that was not adopted.
    fn give(&mut self, socket: SocketId) -> Option<OwnedFd>;

    /// Takes a connection that another driver gave away, as if it had been accepted here.
    fn take(&mut self, connection: OwnedFd) -> Option<SocketId>;
}

/// What one shard asks of the kernel.
pub trait Driver: HandOver {
    /// The backend's name in tests' messages.
    const NAME: &'static str;

    /// Returns the time in microseconds, of a clock that never goes back. A simulated kernel has a clock of its own.
    fn now(&self) -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed().as_micros() as u64
    }

    /// Begins to accept from `listener`; called once for each listener.
    fn listen(&mut self, listener: OwnedFd) -> io::Result<()>;

    /// Stops (or resumes) accepting; waiting connections stay in the kernel's queue.
    fn accept_connections(&mut self, accept: bool);

    /// Closes all listeners: from then on the kernel refuses connections.
    fn stop_listening(&mut self);

    /// Returns the next connection that waits at a listener right now. It is called just before the listeners are
    /// closed, which resets those that still wait. After the first call no completion tells of new connections any
    /// more, so that the listeners must be closed soon.
    fn accept_last(&mut self) -> Option<(SocketId, SocketAddr)> {
        None
    }

    /// Gives an accepted socket its name and begins to read from it.
    fn adopt(&mut self, socket: SocketId, tag: Tag);

    /// Gives a connection another name, which its later completions carry.
    fn rename(&mut self, socket: SocketId, tag: Tag);

    /// Says that this connection is likely to be sent to soon, so that its state can be fetched from memory while the
    /// bytes are looked at.
    fn foresee(&self, _socket: SocketId) {}

    /// Begins to connect; `Connected` or `Failed` follows.
    ///
    /// # Errors
    /// When no socket can be had ([`socket::is_want`]), or the address is refused at once.
    fn connect(&mut self, address: SocketAddr, tag: Tag) -> io::Result<SocketId>;

    /// Submits what is queued and sleeps until something completes, at most `timeout`.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// Returns the next completion of this turn.
    fn next(&mut self) -> Option<Completion>;

    /// Returns the bytes of a lease.
    fn bytes(&self, lease: Lease) -> &[u8];

    /// Sends all of `segments`, in order; what the kernel does not take is copied and sent later. Returns how many
    /// bytes are known to wait; if any do, `Drained` follows. A driver that sends at the end of the turn returns 0, and
    /// [`Completion::Full`] may follow.
    fn send(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> usize;

    /// Sends at once what was kept for the turn's end, and returns how many bytes the kernel did not take.
    fn flush(&mut self, socket: SocketId) -> usize;

    /// Offers bytes and returns how many were taken. If these are fewer than offered, `Drained` follows.
    fn offer(&mut self, socket: SocketId, bytes: &[u8]) -> usize;

    /// Has the next `len` bytes of one connection go to another inside the kernel, unseen; [`Completion::Spliced`]
    /// tells of each piece that went. Bytes that were received before the splice began come by `Received`, and count
    /// towards `len`. False: no splice can be had now, and all bytes come by `Received`.
    fn splice(&mut self, from: SocketId, to: SocketId, len: u64) -> bool {
        let _ = (from, to, len);
        false
    }

    /// Stops reading, so that TCP's window holds the peer back. A reset is still noticed.
    fn pause(&mut self, socket: SocketId);

    /// Reads again after a pause.
    fn resume(&mut self, socket: SocketId);

    /// Sends FIN once everything queued was sent.
    fn finish(&mut self, socket: SocketId);

    /// Closes the connection. If there are bytes that the kernel has not taken, they are dropped and the connection is
    /// reset, so that the peer cannot take what it has for all of it. The socket's name is stale from then on.
    fn close(&mut self, socket: SocketId);

    /// Closes with a reset in any case, so that the peer cannot take the end for a proper one.
    fn abort(&mut self, socket: SocketId);

    /// Whether everything that came from the peer was handed out: no byte and no end is left.
    fn is_quiet(&self, socket: SocketId) -> bool;

    /// The same, and asks the kernel whether anything waits that it has not announced yet. True if the socket is gone.
    fn nothing_waits(&self, socket: SocketId) -> bool {
        self.is_quiet(socket)
    }

    /// Returns how many bytes the peer's kernel has acknowledged (`tcpi_bytes_acked`, RFC 4898), at least 1; `None` if
    /// this cannot be told.
    fn acknowledged(&self, socket: SocketId) -> Option<u64>;

    /// Counts how often accepting was put off because descriptors were scarce or the kernel refused.
    fn accept_stalls(&self) -> u64 {
        0
    }

    /// Counts how often no receive buffer was left for a connection's bytes, which then waited for the next turn.
    fn buffers_out(&self) -> u64 {
        0
    }

    /// Counts how often the kernel kept completions back because their queue was full.
    fn overflows(&self) -> u64 {
        0
    }
}
