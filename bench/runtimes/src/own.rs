//! The relay on warmfront's own drivers: one loop over completions, the same code for every [`Driver`].
//!
//! It does more than the others: a client that leaves while its reply streams is seen at once, because reading from it
//! never stops.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use warmfront::driver::{Completion, Driver, Lease, Segment, SocketId, Tag};
use warmfront::slots::{Key, Slots};

use crate::exchange::{Reply, Request};

/// No timers: a turn begins when something completes.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Runs until the driver fails.
pub fn run<D: Driver>(driver: D, listener: OwnedFd, upstreams: [u16; 2]) -> io::Result<()> {
    let mut relay = Relay { driver, connections: Slots::default(), upstreams, idle: Default::default(), next: 0 };
    relay.driver.listen(listener)?;
    loop {
        relay.driver.wait(WAIT_MAX)?;
        while let Some(completion) = relay.driver.next() {
            relay.complete(completion);
        }
    }
}

struct Relay<D> {
    driver: D,
    connections: Slots<Connection>,
    upstreams: [u16; 2],
    /// Kept connections to each engine.
    idle: [Vec<Key>; 2],
    next: usize,
}

struct Connection {
    /// Connection to an engine; `None` until a connect has begun.
    socket: Option<SocketId>,
    /// The other side while an exchange runs.
    peer: Option<Key>,
    side: Side,
}

enum Side {
    Client(Request),
    Upstream {
        engine: usize,
        reply: Reply,
        /// The request, kept until the connection stands.
        waiting: Vec<u8>,
    },
}

impl<D: Driver> Relay<D> {
    fn complete(&mut self, completion: Completion) {
        match completion {
            Completion::Accepted { socket, .. } => {
                let side = Side::Client(Request::new());
                let key = self.connections.insert(Connection { socket: Some(socket), peer: None, side });
                self.driver.adopt(socket, Tag(key.to_u64()));
            }
            Completion::Connected(tag) => self.connected(Key::from_u64(tag.0)),
            Completion::Received(tag, lease) => {
                let key = Key::from_u64(tag.0);
                if self.received(key, lease).is_none() {
                    self.close(key);
                }
            }
            // A driver that sends at the end of its turn learns late that a client is slow.
            Completion::Full(tag) => {
                if let Some(socket) = self.peer_socket(Key::from_u64(tag.0)) {
                    self.driver.pause(socket);
                }
            }
            // The client has taken what waited for it: its engine may go on.
            Completion::Drained(tag) => {
                if let Some(socket) = self.peer_socket(Key::from_u64(tag.0)) {
                    self.driver.resume(socket);
                }
            }
            // The engine's reply asks for none.
            Completion::Spliced(..) => {}
            Completion::Ended(tag) | Completion::Failed(tag) | Completion::Reset(tag) => {
                self.close(Key::from_u64(tag.0));
            }
        }
    }

    /// `None` closes: broken framing, a second request during the first, no connection to be had.
    fn received(&mut self, key: Key, lease: Lease) -> Option<()> {
        let connection = self.connections.get_mut(key)?;
        match (&mut connection.side, connection.peer) {
            (Side::Client(request), None) => {
                if request.push(self.driver.bytes(lease)).ok()? {
                    let request = request.take();
                    self.forward(key, request)?;
                }
                Some(())
            }
            (Side::Upstream { reply, .. }, Some(client)) => {
                let whole = reply.push(self.driver.bytes(lease)).ok()?;
                self.pass(key, client, lease, whole)
            }
            _ => None,
        }
    }

    fn forward(&mut self, client: Key, request: Vec<u8>) -> Option<()> {
        let engine = self.next;
        self.next = (self.next + 1) % self.upstreams.len();
        let key = match self.idle[engine].pop() {
            Some(key) => {
                let socket = self.connections.get(key)?.socket?;
                self.driver.send(socket, &[Segment::Bytes(&request)]);
                key
            }
            None => self.connect(engine, request)?,
        };
        self.connections.get_mut(key)?.peer = Some(client);
        self.connections.get_mut(client)?.peer = Some(key);
        Some(())
    }

    fn connect(&mut self, engine: usize, waiting: Vec<u8>) -> Option<Key> {
        let side = Side::Upstream { engine, reply: Reply::new(), waiting };
        let key = self.connections.insert(Connection { socket: None, peer: None, side });
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.upstreams[engine]));
        let socket = self.driver.connect(address, Tag(key.to_u64())).ok();
        if socket.is_none() {
            self.connections.remove(key);
        }
        self.connections.get_mut(key)?.socket = socket;
        Some(key)
    }

    fn connected(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let (Side::Upstream { waiting, .. }, Some(socket)) = (&mut connection.side, connection.socket) {
            let request = std::mem::take(waiting);
            self.driver.send(socket, &[Segment::Bytes(&request)]);
        }
    }

    /// Passes bytes of a reply from where they lie; a slow client holds its engine back.
    fn pass(&mut self, key: Key, client: Key, lease: Lease, whole: bool) -> Option<()> {
        let to = self.connections.get(client)?.socket?;
        let left = self.driver.send(to, &[Segment::Leased(lease, 0..lease.len as usize)]);
        let connection = self.connections.get_mut(key)?;
        let from = connection.socket?;
        if whole {
            connection.peer = None;
            if let Side::Upstream { engine, .. } = connection.side {
                self.idle[engine].push(key);
            }
            self.connections.get_mut(client)?.peer = None;
            // The connection may have been held back before: its next user must hear from it.
            self.driver.resume(from);
        } else if left > 0 {
            self.driver.pause(from);
        }
        Some(())
    }

    fn peer_socket(&self, key: Key) -> Option<SocketId> {
        let peer = self.connections.get(key)?.peer?;
        self.connections.get(peer)?.socket
    }

    /// Closes both sides of an exchange: the client sees a stream that was cut.
    fn close(&mut self, key: Key) {
        let Some(connection) = self.connections.remove(key) else { return };
        if let Some(socket) = connection.socket {
            self.driver.close(socket);
        }
        if let (Side::Upstream { engine, .. }, None) = (&connection.side, connection.peer) {
            self.idle[*engine].retain(|idle| *idle != key);
        }
        if let Some(peer) = connection.peer {
            self.close(peer);
        }
    }
}
