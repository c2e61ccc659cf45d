//! One TCP connection that speaks ZMTP, with a limit to every wait. Memory is that of one message: what is not read
//! stays with the kernel and then with the publisher, which drops what it cannot send and leaves a hole in its numbers.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};

use super::settings::{Endpoint, Pace};
use super::zmtp::{Broken, Progress, Role, Wire};

/// Why a connection ended, or did not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Ended {
    /// No connection, or no port to wait on.
    #[error("no connection: {0}")]
    Unreachable(ErrorKind),
    /// The peer closed it, or its machine did.
    #[error("the peer closed the connection")]
    Closed,
    /// The handshake took too long.
    #[error("the handshake took too long")]
    Slow,
    /// No sign of life when one was asked for.
    #[error("the peer gave no sign of life")]
    Silent,
    /// The peer sent what should not be sent.
    #[error("{0}")]
    Broken(#[from] Broken),
    /// It has an address that the engine has not.
    #[error("{0} is no address of this engine; to hear it all the same, write kv_events = \"told\" below its `url`")]
    Stranger(IpAddr),
}

/// What came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// The handshake is done.
    Open,
    /// A message, in [`Link::message`].
    Message,
}

/// Addresses of which the other end has one; `None`: it may have any.
pub(super) type Peers<'a> = Option<&'a [IpAddr]>;

/// Whether it is one of these that has this address.
pub(super) fn is_of(peers: Peers<'_>, address: IpAddr) -> bool {
    peers.is_none_or(|peers| peers.iter().any(|peer| peer.to_canonical() == address.to_canonical()))
}

/// A connection to one of the addresses that the host stands for, as far as these may be the other end's: whom an engine
/// names is not to be spoken to because it says so.
async fn reached(to: &Endpoint, peers: Peers<'_>) -> Result<TcpStream, Ended> {
    let unreachable = |error: io::Error| Ended::Unreachable(error.kind());
    let all: Vec<SocketAddr> = lookup_host((&*to.host, to.port)).await.map_err(unreachable)?.collect();
    let theirs: Vec<SocketAddr> = all.iter().copied().filter(|address| is_of(peers, address.ip())).collect();
    match (theirs.is_empty(), all.first()) {
        (true, Some(other)) => Err(Ended::Stranger(other.ip())),
        _ => TcpStream::connect(&*theirs).await.map_err(unreachable),
    }
}

#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    wire: Wire,
    pace: Pace,
    open: bool,
    /// When the connection began, or the last bytes came, or a sign of life was asked for.
    since: Instant,
    asked: bool,
}

impl Link {
    pub(super) fn new(stream: TcpStream, role: Role, pace: Pace) -> Link {
        // Only small things are sent; without this they are late, never lost.
        let _ = stream.set_nodelay(true);
        Link { stream, wire: Wire::new(role), pace, open: false, since: Instant::now(), asked: false }
    }

    /// Connects, and brings the handshake to its end.
    pub(super) async fn connected(to: &Endpoint, peers: Peers<'_>, role: Role, pace: Pace) -> Result<Link, Ended> {
        match timeout(pace.connect, reached(to, peers)).await {
            Ok(reached) => Link::new(reached?, role, pace).opened().await,
            Err(_) => Err(Ended::Unreachable(ErrorKind::TimedOut)),
        }
    }

    pub(super) async fn opened(mut self) -> Result<Link, Ended> {
        while self.came().await? != Came::Open {}
        Ok(self)
    }

    /// Waits for what comes next. May be dropped while it waits, once the handshake is done: nothing is lost.
    pub(super) async fn came(&mut self) -> Result<Came, Ended> {
        loop {
            match self.wire.advance()? {
                Progress::Open => {
                    // The subscription is part of it: who is told of a connection may rely on being heard.
                    while !self.wire.outbox().is_empty() {
                        self.wait(Interest::WRITABLE).await?;
                        self.write()?;
                    }
                    (self.open, self.since) = (true, Instant::now());
                    return Ok(Came::Open);
                }
                Progress::Message => return Ok(Came::Message),
                Progress::More => {}
            }
            let sending = !self.wire.outbox().is_empty();
            let interest = if sending { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
            let Some(ready) = self.wait(interest).await? else { continue };
            if ready.is_writable() && sending {
                self.write()?;
            }
            if ready.is_readable() && self.read()? {
                // A publisher that always has more must not keep others from running.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Until the connection is ready, or none where a sign of life has to be asked for first.
    async fn wait(&mut self, interest: Interest) -> Result<Option<Ready>, Ended> {
        let limit = if self.open { self.pace.heartbeat } else { self.pace.handshake };
        match timeout_at(self.since + limit, self.stream.ready(interest)).await {
            Ok(ready) => ready.map(Some).map_err(|_| Ended::Closed),
            Err(_) => self.silent().map(|()| None),
        }
    }

    /// Frames of the message that came.
    pub(super) fn message(&self) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.wire.message()
    }

    /// To be sent with the next wait.
    pub(super) fn send(&mut self, frames: &[&[u8]]) {
        self.wire.send(frames);
    }

    /// Bytes of memory held for the peer.
    pub(super) fn held(&self) -> usize {
        self.wire.held()
    }

    fn silent(&mut self) -> Result<(), Ended> {
        if !self.open {
            return Err(Ended::Slow);
        }
        if self.asked {
            return Err(Ended::Silent);
        }
        // Version 3.0 knows no heartbeats: such a peer is believed until its connection ends.
        self.asked = self.wire.ping();
        self.since = Instant::now();
        Ok(())
    }

    fn write(&mut self) -> Result<(), Ended> {
        match self.stream.try_write(self.wire.outbox()) {
            Ok(bytes) => self.wire.sent(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Err(Ended::Closed),
        }
        Ok(())
    }

    /// Whether something was there.
    fn read(&mut self) -> Result<bool, Ended> {
        match self.stream.try_read(self.wire.room()) {
            Ok(0) => Err(Ended::Closed),
            Ok(bytes) => {
                self.wire.received(bytes);
                if self.open {
                    (self.since, self.asked) = (Instant::now(), false);
                }
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(Ended::Closed),
        }
    }
}
