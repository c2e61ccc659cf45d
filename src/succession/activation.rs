//! Sockets from the service manager: opened for this process, or kept from one that is gone (sd_listen_fds(3)).

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use listenfd::ListenFd;
use rustix::net::sockopt;

use super::Inherited;

/// Takes each socket once: one that systemd opened and then kept comes twice.
pub(super) fn given(admin: SocketAddr) -> io::Result<Inherited> {
    let mut given = ListenFd::from_env();
    let mut known = HashSet::new();
    let mut inherited = Inherited::default();
    for place in 0..given.len() {
        let named = |error| io::Error::other(format!("socket {place} from the service manager: {error}"));
        let Some(listener) = given.take_tcp_listener(place).map_err(named)? else { continue };
        sort(listener, admin, &mut known, &mut inherited).map_err(named)?;
    }
    Ok(inherited)
}

fn sort(
    listener: TcpListener,
    admin: SocketAddr,
    known: &mut HashSet<u64>,
    inherited: &mut Inherited,
) -> io::Result<()> {
    if !sockopt::socket_acceptconn(&listener)? {
        return Err(io::Error::other(
            "it does not listen; in a socket unit it is to be a ListenStream= without Accept=",
        ));
    }
    if !known.insert(sockopt::socket_cookie(&listener)?) {
        return Ok(());
    }
    let is_admin = listener.local_addr()? == admin && inherited.admin.is_none();
    let listener = OwnedFd::from(listener);
    match is_admin {
        true => inherited.admin = Some(listener),
        false => inherited.listeners.push(listener),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_told_apart_and_counted_once() {
        let [admin, first, second] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = admin.local_addr().unwrap();
        let (mut known, mut inherited) = (HashSet::new(), Inherited::default());
        for listener in [first.try_clone().unwrap(), admin, first, second] {
            sort(listener, address, &mut known, &mut inherited).unwrap();
        }
        assert!(inherited.admin.is_some() && inherited.predecessor.is_none());
        assert_eq!(inherited.listeners.len(), 2);
    }

    #[test]
    fn a_socket_that_does_not_listen_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connected = OwnedFd::from(std::net::TcpStream::connect(address).unwrap());
        let refused = sort(TcpListener::from(connected), address, &mut HashSet::new(), &mut Inherited::default());
        assert!(refused.unwrap_err().to_string().contains("ListenStream"));
    }
}
