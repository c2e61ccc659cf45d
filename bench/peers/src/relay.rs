//! The bare relay: one thread, edge-triggered epoll, one scratch buffer, no rules of HTTP beyond where messages end.
//! What a front costs above it is the price of what that front does.
//!
//! With `--hold` it keeps a request until it is whole, as a router must that chooses by the whole prompt.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use crate::args::Args;
use crate::http::{self, Framer, Kind, Step};
use crate::net::{self, Poller};

const HELP: &str = "peers relay --listen PORT --upstreams PORT,PORT [--hold]";
const LISTENER: usize = usize::MAX;
const SCRATCH_BYTES: usize = 64 << 10;

pub fn main(words: &[String]) -> Result<(), String> {
    let args = Args::parse(words, &["listen", "upstreams"], &["hold"], HELP)?;
    net::raise_descriptors(65_536);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.get("listen", 0)?));
    let listener = net::listen(address).map_err(|error| format!("listen on {address}: {error}"))?;
    let ports: Result<Vec<u16>, _> = args.list("upstreams").iter().map(|port| port.parse()).collect();
    let upstreams = ports.map_err(|_| HELP.to_string())?;
    if upstreams.is_empty() {
        return Err(HELP.to_string());
    }
    Relay::new(listener, upstreams, args.has("hold"))
        .and_then(|mut relay| relay.run())
        .map_err(|error| error.to_string())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Upstream(usize),
}

struct Connection {
    stream: TcpStream,
    side: Side,
    /// The peer connection while an exchange runs.
    peer: Option<usize>,
    framer: Framer,
    /// Bytes that this socket has not taken yet, from offset `sent` on. While there are any, the peer is not read.
    out: Vec<u8>,
    sent: usize,
    /// A request that is kept until it is whole.
    held: Vec<u8>,
}

struct Relay {
    poller: Poller,
    listener: TcpListener,
    upstreams: Vec<u16>,
    hold: bool,
    next: usize,
    /// Connections by descriptor.
    connections: Vec<Option<Connection>>,
    idle: Vec<Vec<usize>>,
    scratch: Vec<u8>,
}

impl Relay {
    fn new(listener: TcpListener, upstreams: Vec<u16>, hold: bool) -> std::io::Result<Relay> {
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, net::IN)?;
        let idle = upstreams.iter().map(|_| Vec::new()).collect();
        let scratch = vec![0; SCRATCH_BYTES];
        Ok(Relay { poller, listener, upstreams, hold, next: 0, connections: Vec::new(), idle, scratch })
    }

    fn run(&mut self) -> std::io::Result<()> {
        loop {
            let count = self.poller.wait(None)?;
            for at in 0..count {
                let (token, flags) = self.poller.event(at);
                if token == LISTENER {
                    self.accept();
                    continue;
                }
                if flags & net::OUT != 0 {
                    self.flush(token);
                }
                if flags & !net::OUT != 0 {
                    self.read(token);
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let _ = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            self.add(stream, Side::Client);
        }
    }

    fn add(&mut self, stream: TcpStream, side: Side) -> Option<usize> {
        let at = stream.as_raw_fd() as usize;
        self.poller.add(&stream, at, net::IN | net::OUT | net::HANGUP | net::EDGE).ok()?;
        if self.connections.len() <= at {
            self.connections.resize_with(at + 1, || None);
        }
        let kind = if side == Side::Client { Kind::Request } else { Kind::Reply };
        let framer = Framer::new(kind);
        let connection = Connection { stream, side, peer: None, framer, out: Vec::new(), sent: 0, held: Vec::new() };
        self.connections[at] = Some(connection);
        Some(at)
    }

    /// Closes a connection and, in the middle of an exchange, the other side: a visibly cut stream.
    fn close(&mut self, at: usize) {
        let Some(connection) = self.connections[at].take() else { return };
        if let Side::Upstream(upstream) = connection.side {
            self.idle[upstream].retain(|idle| *idle != at);
        }
        if let Some(peer) = connection.peer {
            self.connections[peer].as_mut().expect("a peer is open").peer = None;
            self.close(peer);
        }
    }

    fn read(&mut self, at: usize) {
        loop {
            let Some(connection) = &self.connections[at] else { return };
            // Back-pressure: reading goes on when the peer has taken what waits for it.
            let peer = connection.peer.and_then(|peer| self.connections[peer].as_ref());
            if peer.is_some_and(|peer| !peer.out.is_empty()) {
                return;
            }
            let count = match (&connection.stream).read(&mut self.scratch) {
                Ok(0) => return self.close(at),
                Ok(count) => count,
                Err(error) if net::would_block(&error) => return,
                Err(_) => return self.close(at),
            };
            let relayed = match connection.side {
                Side::Client => self.client_bytes(at, count),
                Side::Upstream(_) => self.upstream_bytes(at, count),
            };
            if relayed.is_none() {
                return self.close(at);
            }
            // A short read has emptied the socket; what comes later is a new edge.
            if count < SCRATCH_BYTES {
                return;
            }
        }
    }

    /// `None` closes the connection: broken framing, pipelining (no front is asked to), or no upstream.
    fn client_bytes(&mut self, at: usize, count: usize) -> Option<()> {
        let hold = self.hold;
        let connection = self.connections[at].as_mut()?;
        if connection.peer.is_some() && connection.framer.at_start() {
            return None;
        }
        let mut input = &self.scratch[..count];
        let mut whole = false;
        loop {
            match connection.framer.next(&mut input).ok()? {
                Step::More => break,
                Step::Head(head) if hold => {
                    let length =
                        http::header(&head, "content-length").and_then(|value| std::str::from_utf8(value).ok());
                    let length = length.and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
                    connection.held.reserve_exact(head.len() + length);
                }
                Step::Head(_) | Step::Body(_) => {}
                Step::End if input.is_empty() => whole = true,
                Step::End => return None,
            }
        }
        if hold {
            connection.held.extend_from_slice(&self.scratch[..count]);
            if !whole {
                return Some(());
            }
            let held = std::mem::take(&mut connection.held);
            let upstream = self.checkout(at)?;
            return self.write(upstream, &held);
        }
        let upstream = match connection.peer {
            Some(upstream) => upstream,
            None => self.checkout(at)?,
        };
        let scratch = std::mem::take(&mut self.scratch);
        let written = self.write(upstream, &scratch[..count]);
        self.scratch = scratch;
        written
    }

    fn upstream_bytes(&mut self, at: usize, count: usize) -> Option<()> {
        let connection = self.connections[at].as_mut()?;
        let client = connection.peer?;
        let mut input = &self.scratch[..count];
        let mut whole = false;
        loop {
            match connection.framer.next(&mut input).ok()? {
                Step::More => break,
                Step::Head(_) | Step::Body(_) => {}
                Step::End if input.is_empty() => whole = true,
                Step::End => return None,
            }
        }
        let scratch = std::mem::take(&mut self.scratch);
        let written = self.write(client, &scratch[..count]);
        self.scratch = scratch;
        written?;
        if whole { self.release(at, client) } else { Some(()) }
    }

    fn checkout(&mut self, client: usize) -> Option<usize> {
        let upstream = self.next;
        self.next = (self.next + 1) % self.upstreams.len();
        let at = match self.idle[upstream].pop() {
            Some(at) => at,
            None => {
                let target = SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.upstreams[upstream]);
                let stream = net::connect_from(Ipv4Addr::LOCALHOST, target).ok()?;
                self.add(stream, Side::Upstream(upstream))?
            }
        };
        self.connections[at].as_mut()?.peer = Some(client);
        self.connections[client].as_mut()?.peer = Some(at);
        Some(at)
    }

    /// The reply is whole: the upstream connection serves other requests. The mock engines write no reply before its
    /// request's end.
    fn release(&mut self, at: usize, client: usize) -> Option<()> {
        let client = self.connections[client].as_mut()?;
        if !client.framer.at_start() {
            return None;
        }
        client.peer = None;
        let connection = self.connections[at].as_mut()?;
        connection.peer = None;
        if let Side::Upstream(upstream) = connection.side {
            self.idle[upstream].push(at);
        }
        Some(())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Option<()> {
        let connection = self.connections[at].as_mut()?;
        let mut written = 0;
        if connection.out.is_empty() {
            written = match connection.stream.write(bytes) {
                Ok(count) => count,
                Err(error) if net::would_block(&error) => 0,
                Err(_) => return None,
            };
        }
        connection.out.extend_from_slice(&bytes[written..]);
        Some(())
    }

    fn flush(&mut self, at: usize) {
        let Some(connection) = &mut self.connections[at] else { return };
        if connection.out.is_empty() {
            return;
        }
        while connection.sent < connection.out.len() {
            match connection.stream.write(&connection.out[connection.sent..]) {
                Ok(count) => connection.sent += count,
                Err(error) if net::would_block(&error) => return,
                Err(_) => return self.close(at),
            }
        }
        connection.out = Vec::new();
        connection.sent = 0;
        // The peer was not read meanwhile, and its edge is gone: read it now.
        if let Some(peer) = connection.peer {
            self.read(peer);
        }
    }
}
