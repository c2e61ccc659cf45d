//! monoio on its io_uring driver, in three ways: as it is; with the ring's flags that warmfront's driver
//! sets as well; and with them, waiting for readiness before each read, so that a stream that waits holds
//! no buffer (monoio takes a buffer over for as long as a read lasts).

use std::io;
use std::net::{SocketAddr, TcpListener};

use ::monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use ::monoio::net::TcpStream;
use ::monoio::{IoUringDriver, Runtime, RuntimeBuilder};

use warmfront::driver::socket;

use crate::buffers::Buffer;
use crate::relays::Setup;
use crate::serve::{Stream, Upstreams, serve};

/// As with the other rings: more streams than this are ready in one turn at times.
const ENTRIES: u32 = 1024;

pub fn start(setup: &Setup) -> io::Result<()> {
    run::<false>(setup, io_uring::IoUring::builder())
}

pub fn start_deferred(setup: &Setup) -> io::Result<()> {
    run::<false>(setup, deferred())
}

pub fn start_readiness(setup: &Setup) -> io::Result<()> {
    run::<true>(setup, deferred())
}

fn deferred() -> io_uring::Builder {
    let mut ring = io_uring::IoUring::builder();
    ring.setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun();
    ring
}

fn run<const READINESS: bool>(setup: &Setup, ring: io_uring::Builder) -> io::Result<()> {
    let builder = RuntimeBuilder::<IoUringDriver>::new().with_entries(ENTRIES).uring_builder(ring);
    let mut runtime: Runtime<IoUringDriver> = builder.build()?;
    setup.if_meant(|address, upstreams| runtime.block_on(accept::<READINESS>(address, upstreams)))
}

async fn accept<const READINESS: bool>(address: SocketAddr, ports: [u16; 2]) -> io::Result<()> {
    let listener = TcpListener::from(socket::listener(address)?);
    // A ring waits by itself; on a non-blocking socket it would answer EAGAIN.
    listener.set_nonblocking(false)?;
    let listener = ::monoio::net::TcpListener::from_std(listener)?;
    let upstreams = Upstreams::new(ports);
    loop {
        let (client, _) = listener.accept().await?;
        ::monoio::spawn(serve(Connection::<READINESS>(client), upstreams.clone()));
    }
}

struct Connection<const READINESS: bool>(TcpStream);

impl<const READINESS: bool> Stream for Connection<READINESS> {
    type Bytes = Buffer;

    async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_addr(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection(stream))
    }

    async fn receive(&mut self) -> io::Result<Option<Buffer>> {
        if READINESS {
            self.0.readable(false).await?;
        }
        let (result, memory) = self.0.read(Buffer::memory()).await;
        let bytes = Buffer::new(memory, result.as_ref().map_or(0, |filled| *filled));
        Ok((result? > 0).then_some(bytes))
    }

    async fn pass(&mut self, bytes: Buffer) -> io::Result<()> {
        // Reading cut the vector to what came, so that all of it has to be sent.
        let (result, memory) = self.0.write_all(bytes.into_memory()).await;
        // The buffer goes back.
        drop(Buffer::new(memory, 0));
        result.map(drop)
    }

    async fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.0.write_all(bytes).await.0.map(drop)
    }
}
