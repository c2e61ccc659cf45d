//! The far end of a connection: a plain socket that does what the test says, and never waits.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use warmfront::driver::socket;

use crate::turns::PATIENCE;

/// How the far end saw the connection end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Fin,
    Reset,
}

pub struct Peer {
    pub stream: TcpStream,
    /// What it has read so far.
    pub got: Vec<u8>,
    pub end: Option<End>,
    broken: bool,
    written: u64,
}

impl Peer {
    pub fn new(stream: TcpStream) -> Peer {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        Peer { stream, got: Vec::new(), end: None, broken: false, written: 0 }
    }

    pub fn connect(address: SocketAddr) -> Peer {
        Peer::new(TcpStream::connect(address).unwrap())
    }

    /// Accepts one connection that has come or comes soon.
    pub fn accept(listener: &TcpListener) -> Peer {
        Peer::new(listener.accept().unwrap().0)
    }

    /// Writes what fits; returns how many bytes that were.
    pub fn write_some(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            match self.stream.write(&bytes[written..]) {
                Ok(len) => written += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    // The kernel tells a reset once: told here, it is not told to a read.
                    self.broken = true;
                    break;
                }
            }
        }
        self.written += written as u64;
        written
    }

    /// Waits until the other end's kernel has what was written, which a kernel thread may deliver: by then this
    /// connection has come as well. If the kernel does not say, it is taken to have it.
    pub fn until_taken(&self) {
        let begun = Instant::now();
        // The handshake counts as one byte.
        while socket::acknowledged(self.stream.as_fd()).is_some_and(|taken| taken < 1 + self.written) {
            assert!(begun.elapsed() < PATIENCE, "what was written is not acknowledged");
            std::thread::yield_now();
        }
    }

    /// Writes few bytes, for which there is room.
    pub fn write(&mut self, bytes: &[u8]) {
        assert_eq!(self.write_some(bytes), bytes.len(), "the socket took fewer");
    }

    /// Reads what is there, at most `most` bytes; true if something came.
    pub fn read_up_to(&mut self, most: usize) -> bool {
        let before = (self.got.len(), self.end);
        let mut buffer = [0; 16 << 10];
        let mut left = most;
        while left > 0 && self.end.is_none() {
            let room = left.min(buffer.len());
            match self.stream.read(&mut buffer[..room]) {
                Ok(0) => self.end = Some(if self.broken { End::Reset } else { End::Fin }),
                Ok(len) => {
                    self.got.extend_from_slice(&buffer[..len]);
                    left -= len;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.end = Some(End::Reset),
            }
        }
        before != (self.got.len(), self.end)
    }

    /// Reads all that is there.
    pub fn read(&mut self) -> bool {
        self.read_up_to(usize::MAX)
    }

    /// Sends no more.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends with a reset.
    pub fn reset(self) {
        sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }
}

/// Bytes that differ by position, and by `salt`.
pub fn pattern(len: usize, salt: u64) -> Vec<u8> {
    static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = crate::random::Random::new(5);
        (0..40_000).flat_map(|_| random.next().to_le_bytes().into_iter().take(5)).collect()
    });
    let begin = salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize % BLOCK.len();
    let mut bytes = Vec::with_capacity(len + BLOCK.len());
    bytes.extend_from_slice(&BLOCK[begin..]);
    while bytes.len() < len {
        bytes.extend_from_slice(&BLOCK);
    }
    bytes.truncate(len);
    bytes
}
