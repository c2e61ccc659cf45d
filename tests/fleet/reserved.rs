//! Addresses on which nothing listens, for a while or ever: a port that was just free may soon be another test's.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// An address, and the socket that keeps it, which is bound there and does not listen. Connects are refused, a test can
/// still listen there, and the kernel gives the port to no other socket.
#[allow(dead_code, reason = "some need one elsewhere alone")]
pub fn address() -> (SocketAddr, TcpListener) {
    address_on(Ipv4Addr::LOCALHOST)
}

/// Such an address on another host.
pub fn address_on(host: Ipv4Addr) -> (SocketAddr, TcpListener) {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    // Listeners there set it as well; without it only one socket could be bound.
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &SocketAddr::from((host, 0))).unwrap();
    let kept = TcpListener::from(socket);
    (kept.local_addr().unwrap(), kept)
}
