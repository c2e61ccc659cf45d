//! tokio on one thread. A buffer is taken for each attempt to read, so that a stream that waits holds none.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;

use ::tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use ::tokio::net::TcpStream;
use ::tokio::runtime::{Builder, LocalOptions};

use warmfront::driver::socket;

use crate::buffers::Buffer;
use crate::relays::Setup;
use crate::serve::{Stream, Upstreams, serve};

pub fn start(setup: &Setup) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build_local(LocalOptions::default())?;
    setup.if_meant(|address, upstreams| runtime.block_on(accept(address, upstreams)))
}

async fn accept(address: SocketAddr, ports: [u16; 2]) -> io::Result<()> {
    let listener = TcpListener::from(socket::listener(address)?);
    let listener = ::tokio::net::TcpListener::from_std(listener)?;
    let upstreams = Upstreams::new(ports);
    loop {
        let (client, _) = listener.accept().await?;
        ::tokio::task::spawn_local(serve(client, upstreams.clone()));
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
            let mut read = ReadBuf::new(&mut memory);
            // Not `try_read`: only this call concludes from a short read that nothing is left to read.
            let result = Pin::new(&mut *self).poll_read(context, &mut read);
            let filled = read.filled().len();
            // The buffer goes back by itself if nothing was filled.
            let bytes = Buffer::new(memory, filled);
            result.map_ok(|()| (filled > 0).then_some(bytes))
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
