//! compio on io_uring: reads lease buffers of a ring-provided pool, replies come by multishot receives.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::pin::pin;

use ::compio::driver::{BufferRef, ProactorBuilder};
use ::compio::io::{AsyncReadManaged, AsyncReadMulti, AsyncWriteExt};
use ::compio::net::TcpStream;
use ::compio::runtime::RuntimeBuilder;
use futures_lite::StreamExt;

use warmfront::driver::socket;

use crate::buffers::BUFFER_BYTES;
use crate::exchange::Reply;
use crate::relays::Setup;
use crate::serve::{Stream, Upstreams, serve};

/// A megabyte in all, as in warmfront's driver: more would always be cold in the cache.
const BUFFERS: NonZero<u16> = NonZero::new(256).expect("256 is not 0");

pub fn start(setup: &Setup) -> io::Result<()> {
    let mut proactor = ProactorBuilder::new();
    proactor.capacity(1024).cqsize(4096).buffer_pool_size(BUFFERS).buffer_pool_buffer_len(BUFFER_BYTES);
    proactor.single_issuer(true).coop_taskrun(true).defer_taskrun(true);
    let runtime = RuntimeBuilder::new().with_proactor(proactor).build()?;
    setup.if_meant(|address, upstreams| runtime.block_on(accept(address, upstreams)))
}

async fn accept(address: SocketAddr, ports: [u16; 2]) -> io::Result<()> {
    let listener = TcpListener::from(socket::listener(address)?);
    // A ring waits by itself; on a non-blocking socket it would answer EAGAIN.
    listener.set_nonblocking(false)?;
    let listener = ::compio::net::TcpListener::from_std(listener)?;
    let upstreams = Upstreams::new(ports);
    loop {
        let (client, _) = listener.accept().await?;
        ::compio::runtime::spawn(serve(client, upstreams.clone())).detach();
    }
}

/// All buffers are in use for now: others send and give theirs back while this task asks again.
fn is_shortage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

impl Stream for TcpStream {
    type Bytes = BufferRef;

    async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn receive(&mut self) -> io::Result<Option<BufferRef>> {
        loop {
            match self.read_managed(0).await {
                Err(error) if is_shortage(&error) => {}
                result => return Ok(result?.filter(|bytes| !bytes.is_empty())),
            }
        }
    }

    async fn pass(&mut self, bytes: BufferRef) -> io::Result<()> {
        self.write_all(bytes).await.0
    }

    async fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.write_all(bytes).await.0
    }

    async fn pass_reply(&mut self, client: &mut TcpStream) -> io::Result<()> {
        let mut reply = Reply::new();
        let mut pieces = pin!(self.read_multi(0));
        while let Some(piece) = pieces.next().await {
            let bytes = match piece {
                Err(error) if is_shortage(&error) => continue,
                piece => piece?,
            };
            let whole = reply.push(&bytes)?;
            client.pass(bytes).await?;
            if whole {
                return Ok(());
            }
        }
        Err(io::Error::other("the engine closed before the reply's end"))
    }
}
