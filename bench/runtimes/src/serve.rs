//! The relay on an async runtime: one task a client, the same code for every runtime. A runtime only says how its
//! sockets connect, receive and send.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::rc::Rc;

use crate::exchange::{Reply, Request};

/// A TCP connection of a runtime, without delay.
pub trait Stream: Sized + 'static {
    /// Received bytes: in a buffer of their own, or leased from the runtime's pool.
    type Bytes: Deref<Target = [u8]>;

    async fn connect(address: SocketAddr) -> io::Result<Self>;

    /// Receives; `None` when the peer sends no more.
    async fn receive(&mut self) -> io::Result<Option<Self::Bytes>>;

    /// Sends all of what another stream received.
    async fn pass(&mut self, bytes: Self::Bytes) -> io::Result<()>;

    async fn send(&mut self, bytes: Vec<u8>) -> io::Result<()>;

    /// Passes one reply to `client`. A runtime that can receive many times by one call does so here.
    async fn pass_reply(&mut self, client: &mut Self) -> io::Result<()> {
        let mut reply = Reply::new();
        while let Some(bytes) = self.receive().await? {
            let whole = reply.push(&bytes)?;
            client.pass(bytes).await?;
            if whole {
                return Ok(());
            }
        }
        Err(io::Error::other("the engine closed before the reply's end"))
    }
}

/// The engines, and the connections kept to each.
pub struct Upstreams<S> {
    ports: [u16; 2],
    idle: RefCell<[Vec<S>; 2]>,
    next: Cell<usize>,
}

impl<S: Stream> Upstreams<S> {
    pub fn new(ports: [u16; 2]) -> Rc<Upstreams<S>> {
        Rc::new(Upstreams { ports, idle: RefCell::default(), next: Cell::new(0) })
    }

    async fn take(&self) -> io::Result<(usize, S)> {
        let engine = self.next.get();
        self.next.set((engine + 1) % self.ports.len());
        let kept = self.idle.borrow_mut()[engine].pop();
        match kept {
            Some(stream) => Ok((engine, stream)),
            None => Ok((engine, S::connect((Ipv4Addr::LOCALHOST, self.ports[engine]).into()).await?)),
        }
    }

    fn keep(&self, engine: usize, stream: S) {
        self.idle.borrow_mut()[engine].push(stream);
    }
}

/// Serves one client until it leaves.
pub async fn serve<S: Stream>(client: S, upstreams: Rc<Upstreams<S>>) {
    if let Err(error) = exchanges(client, &upstreams).await {
        // The load generator fails the run; this says why.
        eprintln!("closed: {error}");
    }
}

async fn exchanges<S: Stream>(mut client: S, upstreams: &Upstreams<S>) -> io::Result<()> {
    let mut request = Request::new();
    loop {
        let Some(bytes) = client.receive().await? else { return Ok(()) };
        let whole = request.push(&bytes)?;
        // The buffer goes back before anything is waited for.
        drop(bytes);
        if whole {
            let (engine, mut upstream) = upstreams.take().await?;
            upstream.send(request.take()).await?;
            upstream.pass_reply(&mut client).await?;
            upstreams.keep(engine, upstream);
        }
    }
}
