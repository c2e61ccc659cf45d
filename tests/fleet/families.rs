//! `0.0.0.0` and `[::]` at one port.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use crate::engine::Engine;
use crate::front::{Client, Front};
use crate::{on_both, untested, until};

/// A port of both families that the kernel gives to no other process, and on which the front can listen. See
/// [`crate::reserved`].
fn kept() -> (u16, TcpListener) {
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
    let kept = TcpListener::from(socket);
    (kept.local_addr().unwrap().port(), kept)
}

fn has_ipv6() -> bool {
    let has = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    if !has {
        untested::say("what comes by IPv6, as this machine has none");
    }
    has
}

fn config(listen: &[&str], port: u16) -> String {
    let listen: Vec<String> = listen.iter().map(|ip| format!("{ip}:{port}")).collect();
    format!("[serve]\nlisten = {listen:?}\nshards = 2\npin = false\n[health]\nprobe_interval_ms = 50\n")
}

/// In either order, together or alone, and over upgrades from one to the other.
#[test]
fn both_families_are_served_at_one_port() {
    if !has_ipv6() {
        return;
    }
    on_both(|driver| {
        for (listen, then) in [(["0.0.0.0", "[::]"], &["[::]"][..]), (["[::]", "0.0.0.0"], &["[::]", "0.0.0.0"])] {
            let (port, _kept) = kept();
            let serves_all = || {
                for local in [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), (Ipv6Addr::LOCALHOST, port).into()] {
                    // Enough for each shard to get some.
                    (0..8).for_each(|_| assert_eq!(Client::to(local).post().status, 200));
                }
            };
            let engine = Engine::start();
            let mut front = Front::start(driver, &[engine.address], &config(&listen, port));
            front.until_health(0, "up");
            serves_all();
            front.write(&config(then, port));
            front.upgrade();
            until("the first process's end", || front.first_has_ended());
            serves_all();
        }
    });
}

/// Clients of `[::]` alone are served after an upgrade to both as before; and a listener for IPv4 alone takes only
/// that.
#[test]
fn one_family_may_come_and_go() {
    if !has_ipv6() {
        return;
    }
    on_both(|driver| {
        let (port, _kept) = kept();
        let (ipv4, ipv6) =
            (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
        let engine = Engine::start();
        let front = Front::start(driver, &[engine.address], &config(&["[::]"], port));
        front.until_health(0, "up");
        let serves = |address| Client::to(address).post().status == 200;
        assert!(serves(ipv4) && serves(ipv6));
        front.write(&config(&["0.0.0.0", "[::]"], port));
        front.upgrade();
        assert!(serves(ipv4) && serves(ipv6));
        drop(front);

        let (port, _kept) = kept();
        let (ipv4, ipv6) =
            (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
        let front = Front::start(driver, &[engine.address], &config(&["0.0.0.0"], port));
        front.until_health(0, "up");
        assert!(serves(ipv4) && TcpStream::connect(ipv6).is_err());
        front.write(&config(&["[::]", "0.0.0.0"], port));
        front.upgrade();
        assert!(serves(ipv4) && serves(ipv6));
    });
}
