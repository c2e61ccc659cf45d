//! glommio on one executor. Its sockets poll with the ring and read with system calls, so a stream that
//! waits holds no buffer of ours.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

use ::glommio::net::TcpStream;
use ::glommio::{LocalExecutorBuilder, Placement};
use futures_lite::{AsyncRead, AsyncWriteExt};

use crate::buffers::Buffer;
use crate::relays::Setup;
use crate::serve::{Stream, Upstreams, serve};

/// Entries of the ring; its default of 128 would submit a decode step in many pieces.
const RING_DEPTH: usize = 1024;

/// # Errors
/// Fails if locked memory is short. If io_uring is blocked, glommio panics instead.
pub fn start(setup: &Setup) -> io::Result<()> {
    // The process is tied to its core already; glommio's threads inherit that.
    let builder = LocalExecutorBuilder::new(Placement::Unbound).ring_depth(RING_DEPTH);
    let executor = builder.make().map_err(|error| {
        let words = error.to_string();
        let hint = "raise locked memory to 512 KiB: `ulimit -l 512` as root, or memlock in limits.conf(5)";
        io::Error::other(if words.contains("MemLock") { format!("{hint} ({words})") } else { words })
    })?;
    setup.if_meant(|address, upstreams| executor.run(accept(address, upstreams)))
}

async fn accept(address: SocketAddr, ports: [u16; 2]) -> io::Result<()> {
    // glommio takes over a listener only by unsafe code, so this one is its own, with a queue of 1024.
    let listener = ::glommio::net::TcpListener::bind(address)?;
    let upstreams = Upstreams::new(ports);
    loop {
        let client = listener.accept().await?;
        client.set_nodelay(true)?;
        ::glommio::spawn_local(serve(client, upstreams.clone())).detach();
    }
}

impl Stream for TcpStream {
    type Bytes = Buffer;

    async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn receive(&mut self) -> io::Result<Option<Buffer>> {
        poll_fn(|context| {
            let mut memory = Buffer::memory();
            let result = Pin::new(&mut *self).poll_read(context, &mut memory);
            let filled = if let Poll::Ready(Ok(filled)) = result { filled } else { 0 };
            // The buffer goes back by itself if nothing was filled.
            let bytes = Buffer::new(memory, filled);
            result.map_ok(|_| (filled > 0).then_some(bytes))
        })
        .await
    }

    async fn pass(&mut self, bytes: Buffer) -> io::Result<()> {
        self.write_all(&bytes).await
    }

    async fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.write_all(&bytes).await
    }
}
