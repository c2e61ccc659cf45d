//! The kernel behind a small interface: sockets, bytes received, bytes to send. Knows nothing of HTTP.
//!
//! The interface is of completions, so that readiness (epoll) and rings (io_uring) fit behind it alike.
//! A turn is: [`Driver::wait`], then [`Driver::next`] until it answers `None`. Bytes received are
//! *leased*: they stay in the driver's buffer and are valid until the next call of [`Driver::next`].

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

/// Connections accepted from one listener in a row.
const ACCEPTS_PER_VISIT: u32 = 16;

/// What the shard calls a socket; comes back with each of its completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub u64);

/// Right to a received buffer until the next call of [`Driver::next`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Which of the driver's buffers.
    pub buffer: u16,
    /// How many bytes of it were filled, at most [`RECEIVE_BYTES`](crate::limits::RECEIVE_BYTES).
    pub len: u32,
}

/// Bytes to send: owned by the caller, or part of a lease (which a ring may send from where they lie).
#[derive(Clone, Debug)]
pub enum Segment<'a> {
    /// The caller's.
    Bytes(&'a [u8]),
    /// A range of a lease.
    Leased(Lease, Range<usize>),
}

impl Segment<'_> {
    /// How many bytes it is.
    pub fn len(&self) -> usize {
        match self {
            Segment::Bytes(bytes) => bytes.len(),
            Segment::Leased(_, range) => range.len(),
        }
    }

    /// Whether it is none.
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
        /// Who connected.
        peer: SocketAddr,
    },
    /// A connect succeeded.
    Connected(Tag),
    /// Bytes came.
    Received(Tag, Lease),
    /// The peer sends no more (FIN).
    Ended(Tag),
    /// The connection is broken, or a connect failed: told once, also behind `Ended`. The shard still closes it.
    Failed(Tag),
    /// A paused connection is broken: told once. Bytes received before may still be read after [`Driver::resume`],
    /// and `Failed` follows them.
    Reset(Tag),
    /// The kernel did not take all that was sent: [`Driver::send`] could not know yet. `Drained` follows.
    Full(Tag),
    /// So many bytes went on to where [`Driver::splice`] has them go.
    Spliced(Tag, u64),
    /// All that was queued has been taken by the kernel, or after a short [`Driver::offer`]: there is room again.
    Drained(Tag),
}

/// How a connection goes from one shard to another. A driver that cannot keeps those that its listeners get.
pub trait HandOver {
    /// Has [`Driver::wait`] return when `bell` (an eventfd) is rung; no completion tells of it.
    ///
    /// # Errors
    /// When it cannot be waited for.
    fn hear(&mut self, bell: OwnedFd) -> io::Result<()>;

    /// Gives an accepted connection away that was not adopted.
    fn give(&mut self, socket: SocketId) -> Option<OwnedFd>;

    /// Takes a connection that another driver gave away, as if it had been accepted here.
    fn take(&mut self, connection: OwnedFd) -> Option<SocketId>;
}

/// One shard's kernel.
pub trait Driver: HandOver {
    /// The name in tests' messages.
    const NAME: &'static str;

    /// The instant, in microseconds of a clock that never goes back. A simulated kernel has one of its own.
    fn now(&self) -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed().as_micros() as u64
    }

    /// Accepts from `listener`. Once for each listener.
    fn listen(&mut self, listener: OwnedFd) -> io::Result<()>;

    /// Stops (or resumes) accepting; waiting connections stay in the kernel's queue.
    fn accept_connections(&mut self, accept: bool);

    /// Closes all listeners: what connects from here on is refused by the kernel.
    fn stop_listening(&mut self);

    /// The next connection that waits at a listener, this instant: for who stops listening next, which resets those
    /// that still wait. From the first on no other way leads to them, so that the listeners are closed at once then.
    fn accept_last(&mut self) -> Option<(SocketId, SocketAddr)> {
        None
    }

    /// Gives an accepted socket its name and begins to read from it.
    fn adopt(&mut self, socket: SocketId, tag: Tag);

    /// Gives a connection another name: what is told of it from here on comes with this one.
    fn rename(&mut self, socket: SocketId, tag: Tag);

    /// Says that this connection is likely to be sent to, so that what is kept of it can come from memory while the
    /// bytes are looked at.
    fn foresee(&self, _socket: SocketId) {}

    /// Begins to connect; answered by `Connected` or `Failed`.
    ///
    /// # Errors
    /// When no socket can be had ([`socket::is_want`]), or the address is refused at once.
    fn connect(&mut self, address: SocketAddr, tag: Tag) -> io::Result<SocketId>;

    /// Submits what is queued and sleeps until something completes, at most `timeout`.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// The next completion of this turn.
    fn next(&mut self) -> Option<Completion>;

    /// The bytes behind a lease.
    fn bytes(&self, lease: Lease) -> &[u8];

    /// Sends all of `segments`, in order; what the kernel does not take is copied and sent later. Answers how
    /// many bytes are known to wait; if any do, `Drained` will follow. A driver that sends with the end of the
    /// turn answers 0 and may have [`Completion::Full`] follow.
    fn send(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> usize;

    /// Sends what was kept for the turn's end now, and answers how many bytes the kernel did not take.
    fn flush(&mut self, socket: SocketId) -> usize;

    /// Offers bytes and answers how many were taken. Fewer than offered: `Drained` will follow.
    fn offer(&mut self, socket: SocketId, bytes: &[u8]) -> usize;

    /// Has the next `len` bytes of one connection go to another inside the kernel, unseen; each piece that has gone is
    /// told by [`Completion::Spliced`]. Bytes that were received before it began come by `Received`, and count. False:
    /// it cannot be had now, all bytes come as before.
    fn splice(&mut self, from: SocketId, to: SocketId, len: u64) -> bool {
        let _ = (from, to, len);
        false
    }

    /// Stops reading: the peer is held back by its window. A reset is still noticed.
    fn pause(&mut self, socket: SocketId);

    /// Reads again.
    fn resume(&mut self, socket: SocketId);

    /// Sends FIN once everything queued is sent.
    fn finish(&mut self, socket: SocketId);

    /// Closes. What the kernel has not taken is dropped, and the end is then a reset, so that the peer cannot take
    /// what it has for all of it. The socket's name is stale from here on.
    fn close(&mut self, socket: SocketId);

    /// Closes with a reset in any case, so that the peer cannot take the end for a proper one.
    fn abort(&mut self, socket: SocketId);

    /// Whether nothing has come from the peer that was not handed out: no byte, no end.
    fn is_quiet(&self, socket: SocketId) -> bool;

    /// The same, and the kernel is asked whether anything waits there that nobody was told of yet. Nothing does where
    /// the socket is gone.
    fn nothing_waits(&self, socket: SocketId) -> bool {
        self.is_quiet(socket)
    }

    /// How many bytes the peer's kernel has acknowledged (`tcpi_bytes_acked`, RFC 4898),
    /// if it can be told: one at least.
    fn acknowledged(&self, socket: SocketId) -> Option<u64>;

    /// How often accepting was put off because descriptors are scarce, or the kernel refuses.
    fn accept_stalls(&self) -> u64 {
        0
    }

    /// How often a connection had bytes and no receive buffer was left for them; it waited for the next turn.
    fn buffers_out(&self) -> u64 {
        0
    }

    /// How often the kernel kept back what had happened, as there was no room to tell of it, until it was asked again.
    fn overflows(&self) -> u64 {
        0
    }
}
