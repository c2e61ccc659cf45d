//! The simulated kernel behind the driver's interface.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use warmfront::driver::{Completion, Driver, HandOver, Lease, Segment, SocketId, Tag};

use crate::network::Network;
use crate::pipe::{Pipe, Stage};
use crate::random::Random;
use crate::shadow::slot_of;

/// Waits that bring nothing and do not sleep: more in a row is spinning. Five are right where a standstill, another, a
/// deadline, what was read ahead of it and the shadow of that follow each other.
const IDLE_WAITS_MAX: u32 = 8;

pub struct Simulated {
    network: Rc<RefCell<Network>>,
    shard: usize,
    buffer: Vec<u8>,
    /// Connections to visit in this turn.
    visits: VecDeque<usize>,
    accepts: usize,
    bell: Option<File>,
}

impl Simulated {
    pub fn new(network: Rc<RefCell<Network>>, shard: usize) -> Simulated {
        Simulated { network, shard, buffer: Vec::new(), visits: VecDeque::new(), accepts: 0, bell: None }
    }

    /// Whether it was rung since it was asked last.
    fn rung(&mut self) -> bool {
        self.bell.as_mut().is_some_and(|bell| bell.read(&mut [0; 8]).is_ok())
    }
}

/// A connection in memory goes over as one end of a socket pair; the other end names it, and sees when it is dropped.
impl HandOver for Simulated {
    fn hear(&mut self, bell: OwnedFd) -> io::Result<()> {
        self.network.borrow_mut().ports[self.shard].bell = Some(bell.try_clone()?);
        self.bell = Some(bell.into());
        Ok(())
    }

    fn give(&mut self, socket: SocketId) -> Option<OwnedFd> {
        let network = &mut *self.network.borrow_mut();
        let fresh = network.pipe(socket).is_some_and(|pipe| pipe.stage == Stage::Fresh);
        if !fresh || network.random.chance(10) {
            return None;
        }
        let (ours, theirs) = UnixStream::pair().ok()?;
        ours.set_nonblocking(true).ok()?;
        (&ours).write_all(&socket.to_u64().to_ne_bytes()).ok()?;
        network.in_transit.push((socket.to_u64() as usize, ours));
        Some(theirs.into())
    }

    fn take(&mut self, connection: OwnedFd) -> Option<SocketId> {
        let mut name = [0; 8];
        UnixStream::from(connection).read_exact(&mut name).ok()?;
        let at = u64::from_ne_bytes(name) as usize;
        let network = &mut *self.network.borrow_mut();
        network.in_transit.retain(|(pipe, _)| *pipe != at);
        network.pipes[at].shard = self.shard;
        network.handed_over += 1;
        network.handed_over_late += usize::from(network.shadow.as_ref().is_some_and(|shadow| shadow.draining));
        Some(SocketId::from_u64(at as u64))
    }
}

impl Driver for Simulated {
    const NAME: &'static str = "simulated";

    fn now(&self) -> u64 {
        self.network.borrow().now
    }

    fn listen(&mut self, _: OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn accept_connections(&mut self, accept: bool) {
        self.network.borrow_mut().ports[self.shard].accepting = accept;
    }

    fn stop_listening(&mut self) {
        self.network.borrow_mut().stop_listening(self.shard);
    }

    /// At times there is no descriptor for it.
    fn accept_last(&mut self) -> Option<(SocketId, SocketAddr)> {
        let network = &mut *self.network.borrow_mut();
        let scarce = network.random.chance(network.knobs.scarce);
        let accepted = if scarce { None } else { network.accept(self.shard) };
        let port = &mut network.ports[self.shard];
        port.is_exhausted = accepted.is_none();
        port.stalls += u64::from(scarce);
        network.accepted_last += usize::from(accepted.is_some());
        accepted
    }

    fn accept_stalls(&self) -> u64 {
        self.network.borrow().ports[self.shard].stalls
    }

    fn adopt(&mut self, socket: SocketId, tag: Tag) {
        let network = &mut *self.network.borrow_mut();
        let now = network.now;
        network.pipe(socket).expect("an accepted connection").adopt(tag, now);
    }

    fn rename(&mut self, socket: SocketId, tag: Tag) {
        if let Some(pipe) = self.network.borrow_mut().pipe(socket) {
            pipe.tag = tag;
        }
    }

    fn connect(&mut self, address: SocketAddr, tag: Tag) -> io::Result<SocketId> {
        let network = &mut *self.network.borrow_mut();
        if network.knobs.portless == Some(slot_of(address).0) {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        let dead = network.knobs.dead.get(slot_of(address).0) == Some(&true);
        let (refused, swallowed) = if dead { (80, 30) } else { (network.knobs.refused, network.knobs.swallowed) };
        if network.random.chance(refused / 4) {
            if let Some(shadow) = &mut network.shadow {
                shadow.connects(None, address);
            }
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let delay = network.random.below(network.knobs.connect) as u64;
        let stands = !dead && !network.random.chance(refused);
        let at = if network.random.chance(swallowed) { u64::MAX } else { network.now + delay };
        let pipe = network.add(Some(address), self.shard, Stage::Connecting(at, stands), tag);
        if let Some(shadow) = &mut network.shadow {
            shadow.connects(Some(pipe), address);
        }
        Ok(SocketId::from_u64(pipe as u64))
    }

    /// Sleeps as a kernel would: until something is ready, a peer does something, or the time is over. Not beyond what
    /// another shard waits for: who has nothing then wakes for nothing.
    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let rung = self.rung();
        let network = &mut *self.network.borrow_mut();
        self.visits = network.ready(self.shard).into();
        let port = &network.ports[self.shard];
        let waiting = if port.accepting && port.listening { port.arrivals.len() } else { 0 };
        self.accepts = waiting.min(1 + network.random.below(4));
        let timeout = timeout.as_micros() as u64;
        let brings = rung || !self.visits.is_empty() || self.accepts > 0;
        let wakes_at = network.now + timeout;
        let others_wake = network.others_wake(self.shard);
        let sleep = match (brings, network.any_ready(None), network.next_event()) {
            (true, ..) => network.random.below(network.knobs.turn) as u64,
            (_, true, _) => timeout.min(network.random.below(2_000) as u64),
            _ if others_wake <= network.now => timeout.min(network.random.below(10) as u64),
            (_, _, next) => {
                let peers = next.map_or(u64::MAX, |at| at.saturating_sub(network.now) + 1);
                timeout.min(others_wake - network.now).min(peers)
            }
        };
        network.now += sleep;
        let now = network.now;
        let port = &mut network.ports[self.shard];
        port.turned_away = false;
        port.wakes_at = if brings || now >= wakes_at { 0 } else { wakes_at };
        port.idle_waits = if brings || timeout > 0 { 0 } else { port.idle_waits + 1 };
        assert!(port.idle_waits <= IDLE_WAITS_MAX, "the shard spins");
        if let Some(shadow) = &mut network.shadow {
            shadow.turn_begins(self.shard, now);
        }
        if let Some((_, pipe, bytes)) = network.late.take_if(|(at, ..)| *at <= now) {
            network.peer_send(pipe, &bytes, usize::MAX);
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let network = &mut *self.network.borrow_mut();
        if let Some(shadow) = &mut network.shadow {
            shadow.settle();
            shadow.hands_out(Some(true));
        }
        network.control_acts(500);
        if self.accepts > 0 {
            self.accepts -= 1;
            let (socket, peer) = network.accept(self.shard)?;
            return Some(Completion::Accepted { socket, peer });
        }
        while let Some(at) = self.visits.pop_front() {
            if let Some(completion) = network.visit(at, &mut self.buffer) {
                if network.traced {
                    eprintln!("{:>10} shard {} pipe {at}: {completion:?}", network.now, self.shard);
                }
                network.tell_shadow(at, completion);
                return Some(completion);
            }
        }
        if let Some(shadow) = &mut network.shadow {
            shadow.hands_out(None);
        }
        None
    }

    fn bytes(&self, lease: Lease) -> &[u8] {
        &self.buffer[..lease.len as usize]
    }

    fn send(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> usize {
        let mut bytes = Vec::new();
        for segment in segments {
            match segment {
                Segment::Bytes(piece) => bytes.extend_from_slice(piece),
                Segment::Leased(lease, range) => bytes.extend_from_slice(&self.bytes(*lease)[range.clone()]),
            }
        }
        self.with(socket, "send", |pipe, random| pipe.send(&bytes, random))
    }

    fn flush(&mut self, socket: SocketId) -> usize {
        self.with(socket, "flush", |pipe, _| pipe.backlog.len())
    }

    fn offer(&mut self, socket: SocketId, bytes: &[u8]) -> usize {
        let network = &mut *self.network.borrow_mut();
        let there = network.pipe(socket).and_then(|pipe| Some((pipe.address?, pipe.taken)));
        if let (Some(shadow), Some((address, taken))) = (&mut network.shadow, there) {
            shadow.offers(socket.to_u64() as usize, address, bytes, taken);
        }
        network.with(socket, "offer", |pipe, random| pipe.offer(bytes, random))
    }

    fn splice(&mut self, from: SocketId, to: SocketId, len: u64) -> bool {
        self.network.borrow_mut().begin_splice(from.to_u64() as usize, to.to_u64() as usize, len)
    }

    fn pause(&mut self, socket: SocketId) {
        self.with(socket, "pause", |pipe, _| pipe.pause(true));
    }

    fn resume(&mut self, socket: SocketId) {
        self.with(socket, "resume", |pipe, _| pipe.pause(false));
    }

    fn finish(&mut self, socket: SocketId) {
        self.with(socket, "finish", |pipe, _| pipe.finish());
    }

    fn close(&mut self, socket: SocketId) {
        self.network.borrow_mut().check_close(self.shard, socket);
        self.ends(socket);
        self.with(socket, "close", |pipe, random| pipe.close(random));
    }

    fn abort(&mut self, socket: SocketId) {
        self.ends(socket);
        self.with(socket, "abort", |pipe, random| pipe.reset_by_front(random));
    }

    fn is_quiet(&self, socket: SocketId) -> bool {
        self.network.borrow_mut().pipe(socket).is_some_and(|pipe| pipe.to_front.is_empty() && pipe.peer_end.is_none())
    }

    fn acknowledged(&self, socket: SocketId) -> Option<u64> {
        let network = &mut *self.network.borrow_mut();
        let now = network.now;
        network.pipe(socket).map(|pipe| pipe.acknowledged(now))
    }
}

impl Simulated {
    fn with<T: Default + std::fmt::Debug>(
        &mut self,
        socket: SocketId,
        call: &str,
        does: impl FnOnce(&mut Pipe, &mut Random) -> T,
    ) -> T {
        self.network.borrow_mut().with(socket, call, does)
    }

    fn ends(&mut self, socket: SocketId) {
        let network = &mut *self.network.borrow_mut();
        if let Some(shadow) = &mut network.shadow {
            shadow.closes(socket.to_u64() as usize);
        }
    }
}

impl Network {
    /// Nothing happens to a socket whose name is stale.
    fn with<T: Default + std::fmt::Debug>(
        &mut self,
        socket: SocketId,
        call: &str,
        does: impl FnOnce(&mut Pipe, &mut Random) -> T,
    ) -> T {
        let Network { pipes, random, .. } = self;
        let pipe = pipes.get_mut(socket.to_u64() as usize).filter(|pipe| pipe.open);
        let answer = pipe.map(|pipe| does(pipe, random)).unwrap_or_default();
        if self.traced {
            eprintln!("{:>10} pipe {}: {call} {answer:?}", self.now, socket.to_u64());
        }
        answer
    }

    fn tell_shadow(&mut self, at: usize, completion: Completion) {
        let Some(shadow) = &mut self.shadow else { return };
        let to_client = self.pipes[at].address.is_none();
        shadow.hands_out(Some(to_client));
        if to_client {
            return;
        }
        match completion {
            Completion::Connected(_) => shadow.connected(at, true),
            Completion::Received(_, lease) => shadow.hears(at, u64::from(lease.len)),
            Completion::Spliced(_, len) => shadow.hears(at, len),
            Completion::Ended(_) => shadow.gone(at, true),
            Completion::Failed(_) => shadow.gone(at, false),
            _ => {}
        }
    }
}
