//! A listener of its own for each shard and address; those that another process opened come first.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

use super::start::StartError;
use crate::driver::socket;

/// How often, and how far apart, a port in use is tried.
const BIND_TRIES: u32 = 10;
const BIND_WAIT: Duration = Duration::from_millis(10);

/// By shard one listener for each address; more where more were inherited, for what waits in one is lost if nobody
/// accepts from it. Port 0 becomes one port for all shards.
pub(super) fn listeners(
    listen: &[SocketAddr],
    shards: usize,
    inherited: Vec<OwnedFd>,
) -> Result<(Vec<Vec<OwnedFd>>, Vec<SocketAddr>), StartError> {
    let adopted = |listener: OwnedFd| Ok((socket::adopt(&listener)?, listener));
    let mut inherited = inherited.into_iter().map(adopted).collect::<io::Result<Vec<(SocketAddr, OwnedFd)>>>()?;
    let mut by_shard: Vec<Vec<OwnedFd>> = (0..shards).map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for &asked in listen {
        let found = inherited.iter().map(|(bound, _)| *bound).find(|bound| fits(*bound, asked));
        let ours = inherited.extract_if(.., |(bound, _)| Some(*bound) == found).map(|(_, listener)| listener).collect();
        let refused = |error| StartError::Listen { address: asked, error };
        addresses.push(listen_on(found.unwrap_or(asked), ours, &mut by_shard).map_err(refused)?);
    }
    for (address, _) in inherited {
        tracing::warn!(%address, "an inherited listener is closed: `listen` does not name it");
    }
    Ok((by_shard, addresses))
}

/// Whether who listens at `bound` serves those who come for `asked`.
fn fits(bound: SocketAddr, asked: SocketAddr) -> bool {
    let all = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let reaches = bound.ip() == asked.ip() || (bound.ip(), asked.ip()) == all;
    reaches && (asked.port() == 0 || bound.port() == asked.port())
}

/// Gives every shard a listener at an address, and none of `inherited` to nobody. Answers where they listen.
fn listen_on(
    mut address: SocketAddr,
    mut inherited: Vec<OwnedFd>,
    by_shard: &mut [Vec<OwnedFd>],
) -> io::Result<SocketAddr> {
    let shared = inherited.first().map(OwnedFd::try_clone).transpose()?;
    if shared.is_none() {
        until_free(address)?;
    }
    for listeners in by_shard.iter_mut() {
        let listener = match inherited.pop() {
            Some(listener) => listener,
            None => another(address, shared.as_ref())?,
        };
        address = socket::bound_address(&listener)?;
        listeners.push(listener);
    }
    for (index, listener) in inherited.into_iter().enumerate() {
        by_shard[index % by_shard.len()].push(listener);
    }
    Ok(address)
}

/// A further listener. Beside one that was opened without SO_REUSEPORT there can be none: it is shared.
fn another(address: SocketAddr, shared: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    match (socket::listener(address), shared) {
        (Err(error), Some(shared)) if error.kind() == io::ErrorKind::AddrInUse => shared.try_clone(),
        (opened, _) => opened,
    }
}

/// A ring that was closed just now keeps its listeners, and so the port, for some 5 to 20 ms more.
fn until_free(address: SocketAddr) -> io::Result<()> {
    for _ in 1..BIND_TRIES {
        match socket::check_free(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => sleep(BIND_WAIT),
            answer => return answer,
        }
    }
    socket::check_free(address)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn each(by_shard: &[Vec<OwnedFd>]) -> Vec<usize> {
        by_shard.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_port_that_is_given_up_soon_is_waited_for() {
        // On an address of its own: nobody takes the port meanwhile.
        let take = || std::net::TcpListener::bind("127.0.0.3:0").unwrap();
        let taken = take();
        let in_use = until_free(taken.local_addr().unwrap());
        assert_eq!(in_use.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // Who gives it up may be late, where the machine has more to do: it is not so each time.
        let is_waited_for = |_| {
            let taken = take();
            let address = taken.local_addr().unwrap();
            let gone = std::thread::spawn(move || {
                sleep(BIND_WAIT * 3);
                drop(taken);
            });
            let free = until_free(address);
            gone.join().unwrap();
            free.is_ok()
        };
        assert!((0..10).any(is_waited_for));
    }

    #[test]
    fn inherited_listeners_go_to_any_number_of_shards() {
        let asked = [SocketAddr::from(([127, 0, 0, 4], 0))];
        let (four, addresses) = listeners(&asked, 4, Vec::new()).unwrap();
        assert_eq!(each(&four), [1, 1, 1, 1]);
        let (two, same) = listeners(&addresses, 2, four.into_iter().flatten().collect()).unwrap();
        assert_eq!((each(&two), &same), (vec![2, 2], &addresses), "none is stranded");
        let (three, same) = listeners(&asked, 3, two.into_iter().flatten().skip(2).collect()).unwrap();
        assert_eq!((each(&three), &same), (vec![1, 1, 1], &addresses), "the third is opened beside them");
        let moved = [SocketAddr::from(([127, 0, 0, 2], 0))];
        let (one, elsewhere) = listeners(&moved, 1, three.into_iter().flatten().collect()).unwrap();
        assert_eq!((each(&one), elsewhere[0].ip()), (vec![1], moved[0].ip()));
        assert!(TcpStream::connect(addresses[0]).is_err(), "who is asked for no more is closed");
    }

    #[test]
    fn a_listener_that_shares_no_port_is_shared() {
        let lone = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = lone.local_addr().unwrap();
        let (shards, _) = listeners(&[address], 3, vec![lone.into()]).unwrap();
        assert_eq!(each(&shards), [1, 1, 1]);
    }

    #[test]
    fn a_listener_for_both_families_serves_both() {
        let bound = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(fits(bound("[::]:80"), bound("0.0.0.0:80")) && fits(bound("0.0.0.0:80"), bound("0.0.0.0:0")));
        assert!(!fits(bound("0.0.0.0:80"), bound("[::]:80")) && !fits(bound("[::]:80"), bound("0.0.0.0:81")));
        assert!(!fits(bound("0.0.0.0:80"), bound("127.0.0.1:80")));
    }
}
