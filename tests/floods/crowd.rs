//! Thousands of clients that all do the same, without a thread each.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::front::{Front, PATIENCE};

/// Connections begun at once: fewer than a listener's queue holds.
const BATCH: usize = 1_000;
/// Each of these addresses has ports of its own.
const ADDRESSES: usize = 4;

pub struct Crowd(Vec<OwnedFd>);

impl Crowd {
    /// `count` clients that each send `bytes`; returns once the front has accepted and read all of them.
    pub fn gather(front: &Front, count: usize, bytes: &[u8]) -> Crowd {
        let (before, read) = (front.accepted(), front.bytes_in());
        let mut clients = Vec::with_capacity(count);
        while clients.len() < count {
            let begun = clients.len();
            clients.extend((begun..count.min(begun + BATCH)).map(|number| connect(front.address, number)));
            for client in &clients[begun..] {
                wait(client, PollFlags::OUT);
                let sent = if bytes.is_empty() { Ok(0) } else { rustix::net::send(client, bytes, SendFlags::NOSIGNAL) };
                assert_eq!(sent.unwrap(), bytes.len());
            }
            front.until("the crowd is accepted", |front| front.accepted() >= before + clients.len());
        }
        let sent = count * bytes.len();
        front.until("the crowd is read", |front| front.bytes_in() >= read + sent);
        Crowd(clients)
    }

    /// The first few of them send something.
    pub fn send(&self, count: usize, bytes: &[u8]) {
        for client in &self.0[..count] {
            assert_eq!(rustix::net::send(client, bytes, SendFlags::NOSIGNAL).unwrap(), bytes.len());
        }
    }

    /// Reads each client's reply to the end of its connection; how many began with `status`.
    pub fn replies(self, status: &str) -> usize {
        let begin = format!("HTTP/1.1 {status}");
        self.read().filter(|got| got.as_ref().is_some_and(|got| got.starts_with(begin.as_bytes()))).count()
    }

    /// What each client got to the proper end of its connection.
    pub fn read(self) -> impl Iterator<Item = Option<Vec<u8>>> {
        self.0.into_iter().map(|client| {
            wait(&client, PollFlags::IN);
            rustix::io::ioctl_fionbio(&client, false).unwrap();
            let mut stream = TcpStream::from(client);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).is_ok().then_some(got)
        })
    }
}

fn connect(address: SocketAddr, number: usize) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let from = SocketAddr::from(([127, 0, 0, 2 + (number % ADDRESSES) as u8], 0));
    rustix::net::bind(&socket, &from).unwrap();
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => socket,
        Err(error) => panic!("client {number}: {error}"),
    }
}

fn wait(client: &OwnedFd, flags: PollFlags) {
    let deadline = Instant::now() + PATIENCE;
    let mut looks = [PollFd::new(client, flags)];
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    // A signal may interrupt it.
    while !poll(&mut looks, Some(&second)).is_ok_and(|ready| ready > 0) {
        assert!(Instant::now() < deadline, "a client waits in vain");
    }
}
