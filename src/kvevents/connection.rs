//! One TCP connection that speaks ZMTP, with a limit to every wait. It holds no more than one message: further bytes
//! wait in the kernel and then at the publisher, which drops what it cannot send and leaves a hole in its numbers.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::settings::{Endpoint, Pace};
use super::zmtp::{Broken, Progress, Role, Wire};
use crate::resolver;
use crate::want::is_want;

/// Why a connection ended, or did not begin.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Ended {
    /// No connection, or no port to wait on.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// The peer's host could not be looked up.
    #[error("no connection: {0}: {1}")]
    Unknown(String, String),
    /// There was no descriptor or memory to connect or wait with; nothing is known of the peer.
    #[error("nothing is left to connect with: {0}")]
    Want(String),
    /// The peer closed it, or its machine did.
    #[error("the peer closed the connection")]
    Closed,
    /// The handshake took too long.
    #[error("the handshake took too long")]
    Slow,
    /// The peer gave no sign of life when it was asked for one.
    #[error("the peer gave no sign of life")]
    Silent,
    /// The peer sent something wrong.
    #[error("{0}")]
    Broken(#[from] Broken),
    /// The peer has an address that is not one of the engine's.
    #[error("{0} is no address of this engine; to hear it all the same, write kv_events = \"told\" below its `url`")]
    Stranger(IpAddr),
}

impl Ended {
    /// Makes the reason why there is no connection of this error.
    pub(super) fn before(error: &io::Error) -> Ended {
        if is_want(error) { Ended::Want(error.to_string()) } else { Ended::Unreachable(error.to_string()) }
    }
}

/// What came from the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// The handshake is done.
    Open,
    /// A message, in [`Connection::message`].
    Message,
}

/// Which peers may be at the other end.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// The peer's addresses, the one in use first; `None`: any is allowed.
    pub addresses: Option<Arc<[IpAddr]>>,
    /// The host name of these addresses; empty: there is none.
    pub host: String,
}

impl Peer {
    /// Whether the peer may have this address.
    pub fn has(&self, address: IpAddr) -> bool {
        let is_it = |own: &IpAddr| own.to_canonical() == address.to_canonical();
        self.addresses.as_ref().is_none_or(|addresses| addresses.iter().any(is_it))
    }

    /// Whether the peer is known to have this address.
    pub fn is_known_at(&self, address: IpAddr) -> bool {
        self.addresses.is_some() && self.has(address)
    }

    /// Returns the addresses of `to`. The peer's own host needs no look-up, as its addresses are known.
    async fn at(&self, to: &Endpoint) -> Result<Vec<SocketAddr>, Ended> {
        if let Some(own) = self.addresses.as_ref().filter(|_| to.host == self.host) {
            return Ok(own.iter().map(|ip| SocketAddr::new(*ip, to.port)).collect());
        }
        resolver::addresses(&to.host, to.port).await.map_err(|error| match Ended::before(&error) {
            Ended::Unreachable(why) => Ended::Unknown(to.host.clone(), why),
            want => want,
        })
    }
}

/// Connects to one of the host's addresses, and only to addresses that the peer may have: the front connects nowhere
/// just because an engine names a place. Each address gets its part of the time, since one that swallows all packets
/// would otherwise hide the others for ever.
async fn reached(to: &Endpoint, peer: &Peer, within: Duration) -> Result<TcpStream, Ended> {
    let all = peer.at(to).await?;
    let theirs: Vec<SocketAddr> = all.iter().copied().filter(|address| peer.has(address.ip())).collect();
    if let (true, Some(other)) = (theirs.is_empty(), all.first()) {
        return Err(Ended::Stranger(other.ip()));
    }
    let ends = Instant::now() + within;
    let mut ended = Ended::Unreachable("its host has no address".into());
    for (place, address) in theirs.iter().enumerate() {
        let part = ends.saturating_duration_since(Instant::now()) / (theirs.len() - place) as u32;
        match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => ended = Ended::before(&error),
            Err(_) => ended = Ended::Unreachable("nobody took the connection in time".into()),
        }
    }
    Err(ended)
}

/// Tries whether a connection is taken at `to`, and closes it at once. `peers`: the engine's addresses, if they are
/// known; `host`: their host name.
///
/// # Errors
/// Why there is no connection.
pub async fn reach(to: &Endpoint, peers: Option<Arc<[IpAddr]>>, host: &str, within: Duration) -> Result<(), Ended> {
    reached(to, &Peer { addresses: peers, host: host.to_owned() }, within).await.map(drop)
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    wire: Wire,
    pace: Pace,
    open: bool,
    /// When the connection began, the last bytes came, or a sign of life was asked for, whichever was last.
    since: Instant,
    asked: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, role: Role, pace: Pace) -> Connection {
        // Only short commands are sent; without this they come late, but are not lost.
        let _ = stream.set_nodelay(true);
        Connection { stream, wire: Wire::new(role), pace, open: false, since: Instant::now(), asked: false }
    }

    /// Connects, and completes the handshake.
    pub(super) async fn connected(to: &Endpoint, peer: &Peer, role: Role, pace: Pace) -> Result<Connection, Ended> {
        Connection::new(reached(to, peer, pace.connect).await?, role, pace).opened().await
    }

    pub(super) async fn opened(mut self) -> Result<Connection, Ended> {
        while self.came().await? != Came::Open {}
        Ok(self)
    }

    /// Waits for what comes next. Once the handshake is done, the future may be dropped while it waits: nothing is
    /// lost.
    pub(super) async fn came(&mut self) -> Result<Came, Ended> {
        loop {
            match self.wire.advance()? {
                Progress::Open => {
                    // The subscription has to be sent first: once a connection is reported, everything published is
                    // heard.
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

    /// Waits until the connection is ready; `None` if a sign of life has to be asked for first.
    async fn wait(&mut self, interest: Interest) -> Result<Option<Ready>, Ended> {
        let limit = if self.open { self.pace.heartbeat } else { self.pace.handshake };
        match timeout_at(self.since + limit, self.stream.ready(interest)).await {
            Ok(ready) => ready.map(Some).map_err(|_| Ended::Closed),
            Err(_) => self.silent().map(|()| None),
        }
    }

    /// Returns the frames of the message that came.
    pub(super) fn message(&self) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.wire.message()
    }

    /// Queues a message, which is sent with the next wait.
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
        // ZMTP 3.0 has no heartbeats: such a peer counts as alive until its connection ends.
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

    /// Reads what is there; false if nothing is.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of engines that are not heard must not keep control's other threads waiting.
    #[tokio::test]
    async fn a_name_waits_for_its_turn() {
        let engine = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = engine.local_addr().unwrap().port();
        let to = Endpoint { host: "localhost".into(), port, waits: false };
        let others = resolver::LOOKUPS.acquire_many(resolver::LOOKUPS_MAX as u32).await.unwrap();
        let connects = async move { reached(&to, &Peer::default(), Duration::from_secs(10)).await.is_ok() };
        let connects = tokio::spawn(connects);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!connects.is_finished());
        drop(others);
        assert!(connects.await.unwrap());
    }

    #[test]
    fn why_there_is_no_connection_is_said_in_words() {
        let of = |number| Ended::before(&io::Error::from_raw_os_error(number)).to_string();
        assert_eq!(of(libc::EPROTO), "no connection: Protocol error (os error 71)");
        assert_eq!(of(libc::ENFILE), "nothing is left to connect with: Too many open files in system (os error 23)");
    }

    #[tokio::test]
    async fn a_host_that_nobody_knows_is_told_from_one_that_cannot_be_reached() {
        // Longer than a label may be, so that no name server is asked.
        let to = Endpoint { host: "a".repeat(64), port: 1, waits: false };
        let ended = reach(&to, None, "", Duration::from_secs(10)).await.unwrap_err();
        assert!(matches!(&ended, Ended::Unknown(host, _) if *host == to.host), "{ended:?}");
        assert!(!ended.to_string().contains("uncategorized"), "{ended}");
    }
}
