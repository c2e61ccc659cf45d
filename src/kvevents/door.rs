//! How a subscription gets its connection: by connecting to the engine, or by waiting for the engine to connect.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::connection::{Connection, Ended, Peer};
use super::settings::{Endpoint, Pace};
use super::zmtp::Role;
use crate::limits::KV_STRANGERS_MAX;
use crate::resolver;

/// Most connections in their handshake at once; further ones wait in the kernel's queue.
const KNOCKING_MAX: usize = 8;

/// Port for a socket that sends nothing; any would do.
const DISCARD_PORT: u16 = 9;

#[derive(Debug)]
pub(super) struct Door {
    endpoint: Endpoint,
    /// Which peers may connect, and be connected to.
    peer: Peer,
    role: Role,
    pace: Pace,
    /// Attempts to connect since a message came.
    attempts: u32,
    listener: Option<TcpListener>,
    /// Whether the engine itself waits at the address at which we were to wait.
    is_theirs: bool,
    knocking: JoinSet<Result<Connection, Ended>>,
    /// Strangers that were reported: peers at addresses not known as the engine's.
    strangers: Vec<IpAddr>,
    /// How many strangers were turned away without a report.
    turned_away: Arc<AtomicU64>,
}

impl Door {
    pub(super) fn new(endpoint: Endpoint, peer: Peer, role: Role, pace: Pace) -> Door {
        let (listener, knocking, strangers) = (None, JoinSet::new(), Vec::new());
        let (attempts, is_theirs, turned_away) = (0, false, Arc::default());
        Door { endpoint, peer, role, pace, attempts, listener, is_theirs, knocking, strangers, turned_away }
    }

    /// Sets the host name of the peer's addresses.
    pub(super) fn set_host(&mut self, host: String) {
        self.peer.host = host;
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Notes that the connection proved useful: the next one is tried for at once.
    pub(super) fn proved(&mut self) {
        self.attempts = 0;
    }

    /// Returns a connection with its handshake done.
    pub(super) async fn opened(&mut self) -> Result<Connection, Ended> {
        if self.waits() {
            return self.admitted(true).await;
        }
        let wait = self.wait();
        self.attempts = self.attempts.saturating_add(1);
        sleep(wait).await;
        let connected = self.connected().await;
        self.is_theirs &= connected.is_ok();
        connected
    }

    async fn connected(&self) -> Result<Connection, Ended> {
        Connection::connected(&self.there(), &self.peer, self.role.clone(), self.pace).await
    }

    fn waits(&self) -> bool {
        self.endpoint.waits && !self.is_theirs
    }

    /// Returns where to connect to: a peer that waits at all addresses (`*`) is on this machine.
    fn there(&self) -> Endpoint {
        let host = if self.endpoint.host == "*" { "127.0.0.1" } else { &self.endpoint.host };
        Endpoint { host: host.into(), ..self.endpoint.clone() }
    }

    /// Waits for another connection while there is one: an engine that restarted may be back before its old connection
    /// is known to be dead.
    pub(super) async fn replaced(&mut self) -> Result<Connection, Ended> {
        if self.waits() { self.admitted(false).await } else { std::future::pending().await }
    }

    /// How many strangers were turned away without a report.
    pub(super) fn turned_away(&self) -> &Arc<AtomicU64> {
        &self.turned_away
    }

    /// Returns the next connection of a peer that is no stranger. Anybody may connect, a port scanner as often as it
    /// likes; but a stranger may also be the engine, at an address that is not known as its own. With `tells` a few
    /// strangers are reported, each once.
    async fn admitted(&mut self, tells: bool) -> Result<Connection, Ended> {
        loop {
            match self.entered().await {
                Err(Ended::Stranger(who)) if !tells || !self.is_news(who) => {
                    self.turned_away.fetch_add(1, Ordering::Relaxed);
                }
                entered => return entered,
            }
        }
    }

    fn is_news(&mut self, who: IpAddr) -> bool {
        let is_news = self.strangers.len() < KV_STRANGERS_MAX && !self.strangers.contains(&who);
        self.strangers.extend(is_news.then_some(who));
        is_news
    }

    /// Returns the next connection, or why one failed.
    async fn entered(&mut self) -> Result<Connection, Ended> {
        loop {
            let listener = match &mut self.listener {
                Some(listener) => &*listener,
                none => {
                    let all = ["*", "0.0.0.0"].contains(&&*self.endpoint.host);
                    let host = if all { "0.0.0.0" } else { &*self.endpoint.host };
                    match listening(host, self.endpoint.port, &self.peer).await {
                        Ok(listener) => &*none.insert(listener),
                        Err(error) => return self.met(error).await,
                    }
                }
            };
            tokio::select! {
                accepted = listener.accept(), if self.knocking.len() < KNOCKING_MAX => match accepted {
                    // It may be another engine that was given the same address.
                    Ok((_, from)) if !self.peer.has(from.ip()) => return Err(Ended::Stranger(from.ip())),
                    Ok((stream, _)) => {
                        self.knocking.spawn(Connection::new(stream, self.role.clone(), self.pace).opened());
                    }
                    Err(error) => return self.unreachable(error).await,
                },
                Some(Ok(entered)) = self.knocking.join_next() => return entered,
                else => {}
            }
        }
    }

    /// Connects in case the address cannot be waited at. A vLLM that publishes at a port of the kernel's choice
    /// (`tcp://*:0`) tells the address that it waits at itself, which looks like one of ours that it connects to.
    async fn met(&mut self, error: io::Error) -> Result<Connection, Ended> {
        if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
            && let Ok(connection) = self.connected().await
        {
            self.is_theirs = true;
            return Ok(connection);
        }
        self.unreachable(error).await
    }

    /// Waits and returns the error: there is no descriptor, or the port is taken, which may change after a while.
    async fn unreachable(&self, error: io::Error) -> Result<Connection, Ended> {
        sleep(self.pace.again_most).await;
        Err(Ended::before(&error))
    }

    /// Returns the wait before the next attempt: none before the first, then doubled, and at random between half and
    /// the whole of that, so that fronts do not come together.
    fn wait(&self) -> Duration {
        let Some(doublings) = self.attempts.checked_sub(1) else { return Duration::ZERO };
        let wait = self.pace.again.saturating_mul(1 << doublings.min(16)).min(self.pace.again_most);
        let part = RandomState::new().hash_one(doublings) % 512;
        wait.mul_f64(0.5 + part as f64 / 1_024.0)
    }
}

/// Listens at those of the host's addresses that may be ours. An address of the engine is not ours, unless it is on
/// this machine. Binding it would usually fail, but not if any address may be bound (`net.ipv4.ip_nonlocal_bind`, usual
/// beside keepalived): then both sides would wait for ever.
async fn listening(host: &str, port: u16, peer: &Peer) -> io::Result<TcpListener> {
    let mut addresses = resolver::addresses(host, port).await?;
    addresses.retain(|address| !peer.is_known_at(address.ip()) || is_ours(address.ip()));
    if addresses.is_empty() {
        return Err(Errno::ADDRNOTAVAIL.into());
    }
    TcpListener::bind(&*addresses).await
}

/// Whether this machine has the address, or nobody can tell. A UDP socket that connects sends nothing, but has its
/// route looked up. From a foreign IPv4 address there is no route. From a foreign IPv6 address there is one; but a
/// route to an IPv6 address of ours begins at that same address, while one to an IPv4 address of ours may begin at the
/// interface's first.
fn is_ours(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let from = if address.is_ipv4() { address } else { Ipv6Addr::UNSPECIFIED.into() };
    let begins_at = || {
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect((address, DISCARD_PORT))?;
        Ok(socket.local_addr()?.ip())
    };
    match begins_at() {
        Ok(begin) => begin == address || address.is_unspecified(),
        Err(error) => !is_no_way(&error),
    }
}

fn is_no_way(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_told_from_others() {
        // Any address of 127.0.0.0/8 is; what is sent there comes from the first.
        for ours in ["127.0.0.1", "127.0.3.2", "::ffff:127.0.0.1", "0.0.0.0"] {
            assert!(is_ours(ours.parse().unwrap()), "{ours}");
        }
        assert!(!is_ours("192.0.2.1".parse().unwrap()));
        if UdpSocket::bind("[::1]:0").is_ok() {
            assert!(is_ours("::1".parse().unwrap()));
            assert!(is_ours("::".parse().unwrap()));
            assert!(!is_ours("2001:db8::1".parse().unwrap()));
        }
    }

    /// If foreign addresses may be bound, only this tells that the engine waits there.
    #[tokio::test]
    async fn nobody_waits_at_an_address_of_an_engine_elsewhere() {
        let engine =
            Peer { addresses: Some([[192, 0, 2, 1].into(), [127, 0, 3, 2].into()].into()), host: String::new() };
        let refused = listening("192.0.2.1", 1, &engine).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrNotAvailable);
        // An engine on this machine may connect to an address of its own.
        assert!(listening("127.0.3.2", 0, &engine).await.is_ok());
        assert!(listening("0.0.0.0", 0, &engine).await.is_ok());
    }
}
