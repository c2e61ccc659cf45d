//! Addresses that nobody listens on, for a while or ever: a port that was just free would soon be another test's.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// An address and what keeps it, a socket that is bound there and does not listen: who connects is refused, who means to
/// listen there may, and nobody is given its port.
#[allow(dead_code, reason = "some need one elsewhere alone")]
pub fn address() -> (SocketAddr, TcpListener) {
    address_on(Ipv4Addr::LOCALHOST)
}

/// One of another host.
pub fn address_on(host: Ipv4Addr) -> (SocketAddr, TcpListener) {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    // As those have it that come to listen there: else only one could be bound.
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &SocketAddr::from((host, 0))).unwrap();
    let kept = TcpListener::from(socket);
    (kept.local_addr().unwrap(), kept)
}
