//! The simulated kernel behind the driver's interface.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use warmfront::driver::{Completion, Driver, HandOver, Lease, Segment, SocketId, Tag};

use crate::network::{Network, Stage};

/// Waits that bring nothing and do not sleep: more in a row is spinning.
const IDLE_WAITS_MAX: u32 = 4;
/// A connect is answered within this, if ever.
const CONNECT_MICROS: usize = 100_000;

pub struct Simulated {
    network: Rc<RefCell<Network>>,
    buffer: Vec<u8>,
    /// Connections to visit in this turn.
    visits: VecDeque<usize>,
    accepts: usize,
}

impl Simulated {
    pub fn new(network: Rc<RefCell<Network>>) -> Simulated {
        Simulated { network, buffer: Vec::new(), visits: VecDeque::new(), accepts: 0 }
    }
}

/// One shard alone: nobody to hand over to.
impl HandOver for Simulated {}

impl Driver for Simulated {
    const NAME: &'static str = "simulated";

    fn now(&self) -> u64 {
        self.network.borrow().now
    }

    fn listen(&mut self, _: OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn accept_connections(&mut self, accept: bool) {
        self.network.borrow_mut().accepting = accept;
    }

    fn stop_listening(&mut self) {
        self.network.borrow_mut().listening = false;
    }

    fn adopt(&mut self, socket: SocketId, tag: Tag) {
        self.network.borrow_mut().pipe(socket).expect("an accepted connection").adopt(tag);
    }

    fn connect(&mut self, address: SocketAddr, tag: Tag) -> io::Result<SocketId> {
        let network = &mut *self.network.borrow_mut();
        let (refused, swallowed) = (network.knobs.refused, network.knobs.swallowed);
        if network.random.chance(refused / 4) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let delay = network.random.below(CONNECT_MICROS) as u64;
        let stands = !network.random.chance(refused);
        let at = if network.random.chance(swallowed) { u64::MAX } else { network.now + delay };
        let pipe = network.add(Some(address), Stage::Connecting(at, stands), tag);
        Ok(SocketId::from_u64(pipe as u64))
    }

    /// Sleeps as a kernel would: until something is ready, a peer does something, or the time is over.
    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let network = &mut *self.network.borrow_mut();
        self.visits = network.ready().into();
        let may_accept = network.accepting && network.listening;
        self.accepts = if may_accept { network.arrivals.len().min(1 + network.random.below(4)) } else { 0 };
        let timeout = timeout.as_micros() as u64;
        let brings = !self.visits.is_empty() || self.accepts > 0;
        network.idle_waits = if brings || timeout > 0 { 0 } else { network.idle_waits + 1 };
        assert!(network.idle_waits <= IDLE_WAITS_MAX, "the shard spins");
        let sleep = match (brings, network.any_ready(), network.next_event()) {
            (true, ..) => network.random.below(200) as u64,
            (_, true, _) => timeout.min(network.random.below(2_000) as u64),
            (_, _, Some(at)) => timeout.min(at.saturating_sub(network.now) + 1),
            (_, _, None) => timeout,
        };
        network.now += sleep;
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let network = &mut *self.network.borrow_mut();
        if self.accepts > 0 {
            self.accepts -= 1;
            let at = network.arrivals.pop_front()?;
            let peer = SocketAddr::from(([10, 9, 0, 1], 1024 + (at % 60_000) as u16));
            return Some(Completion::Accepted { socket: SocketId::from_u64(at as u64), peer });
        }
        while let Some(at) = self.visits.pop_front() {
            if let Some(completion) = network.visit(at, &mut self.buffer) {
                if network.traced {
                    eprintln!("{:>10} pipe {at}: {completion:?}", network.now);
                }
                return Some(completion);
            }
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
        self.with(socket, "offer", |pipe, random| pipe.offer(bytes, random))
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
        self.with(socket, "close", |pipe, random| pipe.close(random));
    }

    fn abort(&mut self, socket: SocketId) {
        self.with(socket, "abort", |pipe, random| pipe.reset_by_front(random));
    }

    fn is_quiet(&self, socket: SocketId) -> bool {
        self.network.borrow_mut().pipe(socket).is_some_and(|pipe| pipe.to_front.is_empty() && pipe.peer_end.is_none())
    }

    fn acknowledged(&self, socket: SocketId) -> Option<u64> {
        self.network.borrow_mut().pipe(socket).map(|pipe| pipe.acknowledged())
    }
}

impl Simulated {
    /// Nothing happens to a socket whose name is stale.
    fn with<T: Default + std::fmt::Debug>(
        &mut self,
        socket: SocketId,
        call: &str,
        does: impl FnOnce(&mut crate::network::Pipe, &mut crate::random::Random) -> T,
    ) -> T {
        let network = &mut *self.network.borrow_mut();
        let Network { pipes, random, .. } = network;
        let pipe = pipes.get_mut(socket.to_u64() as usize).filter(|pipe| pipe.open);
        let answer = pipe.map(|pipe| does(pipe, random)).unwrap_or_default();
        if network.traced {
            eprintln!("{:>10} pipe {}: {call} {answer:?}", network.now, socket.to_u64());
        }
        answer
    }
}
