//! A listener of its own for each shard and address; those that another process opened come first.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

use super::start::StartError;
use crate::config::is_ipv6_alone;
use crate::driver::socket;

/// How often, and how far apart, a port in use is tried.
const BIND_TRIES: u32 = 10;
const BIND_WAIT: Duration = Duration::from_millis(10);

/// A listener that another process opened.
struct Adopted {
    bound: SocketAddr,
    /// On `[::]`, and without the connections of IPv4.
    ipv6_alone: bool,
    listener: OwnedFd,
}

impl Adopted {
    fn new(listener: OwnedFd) -> io::Result<Adopted> {
        let bound = socket::adopt(&listener)?;
        Ok(Adopted { bound, ipv6_alone: bound.ip().is_unspecified() && socket::is_ipv6_alone(&listener), listener })
    }

    fn fits(&self, asked: SocketAddr) -> bool {
        fits(self.bound, self.ipv6_alone, asked)
    }
}

/// By shard one listener for each address; more where more were inherited, for what waits in one is lost if nobody
/// accepts from it. Port 0 becomes one port for all shards.
pub(super) fn listeners(
    listen: &[SocketAddr],
    shards: usize,
    inherited: Vec<OwnedFd>,
) -> Result<(Vec<Vec<OwnedFd>>, Vec<SocketAddr>), StartError> {
    let mut inherited = inherited.into_iter().map(Adopted::new).collect::<io::Result<Vec<Adopted>>>()?;
    let listen = &with_halves(listen, &inherited);
    let mut by_shard: Vec<Vec<OwnedFd>> = (0..shards).map(|_| Vec::new()).collect();
    let mut addresses: Vec<SocketAddr> = Vec::new();
    let mut for_both: Vec<SocketAddr> = Vec::new();
    for &asked in listen {
        let has_its_own = inherited.iter().any(|one| one.bound == asked);
        if asked.port() != 0 && !has_its_own && for_both.iter().any(|bound| fits(*bound, false, asked)) {
            continue;
        }
        let fitting = inherited.iter().filter(|one| one.fits(asked));
        let found = fitting.min_by_key(|one| one.bound.ip() != asked.ip()).map(|one| (one.bound, one.ipv6_alone));
        let (address, ipv6_alone) = match found {
            Some((bound, ipv6_alone)) => (bound, Some(ipv6_alone)),
            None => (asked, is_ipv6_alone(asked, listen).then_some(true)),
        };
        let ours = inherited.extract_if(.., |one| found.is_some_and(|(bound, _)| one.bound == bound));
        let ours = ours.map(|one| one.listener).collect();
        let refused = |error| StartError::no_listener(asked, in_the_way(error, asked, &inherited));
        addresses.push(listen_on(address, ipv6_alone, ours, &mut by_shard).map_err(refused)?);
        if let Some((bound, ipv6_alone)) = found.filter(|(bound, _)| bound.is_ipv6()) {
            match ipv6_alone {
                false => for_both.push(bound),
                true if is_ipv6_alone(asked, listen) || !socket::takes_both_here() => {}
                true => {
                    tracing::warn!(address = %bound, "an inherited listener takes IPv6 alone, as it was opened so; IPv4 needs one of its own")
                }
            }
        }
    }
    for Adopted { bound: address, .. } in inherited {
        tracing::warn!(%address, "an inherited listener is closed: `listen` does not name it");
    }
    Ok((by_shard, addresses))
}

/// What is asked for, and where `[::]` is to take both families while one of IPv4 was inherited beside it, that one by
/// its name: together they are what was asked for, and no listener for both could be opened as long as the other
/// process has it.
fn with_halves(listen: &[SocketAddr], inherited: &[Adopted]) -> Vec<SocketAddr> {
    let mut all = listen.to_vec();
    let half = |asked: &SocketAddr| SocketAddr::from((Ipv4Addr::UNSPECIFIED, asked.port()));
    let is_half = |asked: &&SocketAddr| {
        is_ipv6_alone(**asked, &[half(asked)]) && inherited.iter().any(|one| one.bound == half(asked))
    };
    let missing = listen.iter().filter(is_half).map(half).filter(|half| !listen.contains(half));
    all.extend(missing.filter(|_| socket::takes_both_here()));
    all
}

/// What is said where the port is in use: the process that handed a listener on has it open as well, systemd for as
/// long as its socket unit is active.
fn in_the_way(error: io::Error, asked: SocketAddr, inherited: &[Adopted]) -> io::Error {
    let other = inherited.iter().find(|one| one.bound.port() == asked.port());
    let Some(Adopted { bound, .. }) = other.filter(|_| error.kind() == io::ErrorKind::AddrInUse) else { return error };
    let why = format!(
        "{error}: a listener that was handed over has the port, at {bound}; name the same address there \
         (in warmfront.socket: ListenStream=) and in `listen`, and stop and start"
    );
    io::Error::new(error.kind(), why)
}

/// Whether who listens at `bound` serves those who come for `asked`.
fn fits(bound: SocketAddr, ipv6_alone: bool, asked: SocketAddr) -> bool {
    let all = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let reaches = bound.ip() == asked.ip() || !ipv6_alone && (bound.ip(), asked.ip()) == all;
    reaches && (asked.port() == 0 || bound.port() == asked.port())
}

/// Gives every shard a listener at an address, and each of `inherited` to some shard. Answers where they listen.
fn listen_on(
    mut address: SocketAddr,
    ipv6_alone: Option<bool>,
    mut inherited: Vec<OwnedFd>,
    by_shard: &mut [Vec<OwnedFd>],
) -> io::Result<SocketAddr> {
    let shared = inherited.first().map(OwnedFd::try_clone).transpose()?;
    if shared.is_none() {
        until_free(address, ipv6_alone)?;
    }
    for listeners in by_shard.iter_mut() {
        let listener = match inherited.pop() {
            Some(listener) => listener,
            None => another(address, ipv6_alone, shared.as_ref())?,
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
fn another(address: SocketAddr, ipv6_alone: Option<bool>, shared: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    match (socket::listener_of(address, ipv6_alone), shared) {
        (Err(error), Some(shared)) if error.kind() == io::ErrorKind::AddrInUse => shared.try_clone(),
        (opened, _) => opened,
    }
}

/// A ring that was closed just now keeps its listeners, and so the port, for some 5 to 20 ms more.
fn until_free(address: SocketAddr, ipv6_alone: Option<bool>) -> io::Result<()> {
    for _ in 1..BIND_TRIES {
        match socket::check_free(address, ipv6_alone) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => sleep(BIND_WAIT),
            answer => return answer,
        }
    }
    socket::check_free(address, ipv6_alone)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

    use super::*;

    fn each(by_shard: &[Vec<OwnedFd>]) -> Vec<usize> {
        by_shard.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_port_that_is_given_up_soon_is_waited_for() {
        // On an address of its own: nobody takes the port meanwhile.
        let take = || std::net::TcpListener::bind("127.0.0.3:0").unwrap();
        let taken = take();
        let in_use = until_free(taken.local_addr().unwrap(), None);
        assert_eq!(in_use.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // Who gives it up may be late, where the machine has more to do: it is not so each time.
        let is_waited_for = |_| {
            let taken = take();
            let address = taken.local_addr().unwrap();
            let gone = std::thread::spawn(move || {
                sleep(BIND_WAIT * 3);
                drop(taken);
            });
            let free = until_free(address, None);
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

    /// As of a socket unit that has its default address, and a configuration that has another.
    #[test]
    fn a_listener_that_is_in_the_way_is_named() {
        let lone = TcpListener::bind("0.0.0.0:0").unwrap();
        let bound = lone.local_addr().unwrap();
        let asked = SocketAddr::from(([127, 0, 0, 1], bound.port()));
        // systemd has it open as well.
        let handed_over = lone.try_clone().unwrap();
        let why = listeners(&[asked], 1, vec![handed_over.into()]).unwrap_err().to_string();
        assert!(why.contains("handed over has the port, at 0.0.0.0:") && why.contains("warmfront.socket"), "{why}");
        let why = listeners(&[asked], 1, Vec::new()).unwrap_err().to_string();
        assert!(why.contains("in use") && !why.contains("handed over"), "{why}");
    }

    #[test]
    fn a_listener_for_both_families_serves_both() {
        let bound = |text: &str| text.parse::<SocketAddr>().unwrap();
        let fits = |one: &str, other: &str| fits(bound(one), false, bound(other));
        assert!(fits("[::]:80", "0.0.0.0:80") && fits("0.0.0.0:80", "0.0.0.0:0"));
        assert!(!fits("0.0.0.0:80", "[::]:80") && !fits("[::]:80", "0.0.0.0:81"));
        assert!(!fits("0.0.0.0:80", "127.0.0.1:80"));
        assert!(!super::fits(bound("[::]:80"), true, bound("0.0.0.0:80")), "nor one that leaves IPv4 out");
    }

    /// A port of both families that nobody is given.
    fn kept() -> TcpListener {
        let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
        socket.into()
    }

    /// All addresses of a family, with a port that is nobody else's as long as the second lives.
    fn any(ipv6: bool, kept: &TcpListener) -> SocketAddr {
        let port = kept.local_addr().unwrap().port();
        if ipv6 { (Ipv6Addr::UNSPECIFIED, port).into() } else { (Ipv4Addr::UNSPECIFIED, port).into() }
    }

    /// Whether who comes by each family is taken, by one of the listeners.
    fn taken(by_shard: &[Vec<OwnedFd>], port: u16) -> [bool; 2] {
        [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))].map(|address| {
            let Ok(client) = TcpStream::connect(address) else { return false };
            let own = client.local_addr().unwrap();
            let accept = |listener: &OwnedFd| TcpListener::from(listener.try_clone().unwrap()).accept();
            // Who is connected may come into its queue a moment later.
            (0..10_000).any(|_| {
                let mut accepted = by_shard.iter().flatten().filter_map(|listener| accept(listener).ok());
                accepted.any(|(_, peer)| peer.port() == own.port()) || {
                    sleep(Duration::from_millis(1));
                    false
                }
            })
        })
    }

    /// In any order, with shards of their own each, and from one process to the next whatever it asks for.
    #[test]
    fn both_families_are_listened_on_at_one_port() {
        if !socket::takes_both_here() || TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
            return;
        }
        // Bound and not listening: nobody is given this port, and who means to listen there may.
        let kept = kept();
        let ([four, six], port) = ([any(false, &kept), any(true, &kept)], kept.local_addr().unwrap().port());
        let flat = |by_shard: Vec<Vec<OwnedFd>>| by_shard.into_iter().flatten().collect::<Vec<_>>();
        for (asked, counts) in [([four, six], 2), ([six, four], 2)] {
            let (two, addresses) = listeners(&asked, 2, Vec::new()).unwrap();
            assert_eq!((each(&two), &addresses[..]), (vec![counts; 2], &asked[..]));
            assert_eq!(taken(&two, port), [true; 2]);
            // The same again; then `[::]` for both, which cannot be opened beside them, and is what they are together.
            let (again, _) = listeners(&asked, 2, flat(two)).unwrap();
            assert_eq!((each(&again), taken(&again, port)), (vec![2; 2], [true; 2]));
            let (still, addresses) = listeners(&[six], 2, flat(again)).unwrap();
            assert_eq!((each(&still), addresses.len(), taken(&still, port)), (vec![2; 2], 2, [true; 2]));
            let (one, addresses) = listeners(&[four], 2, flat(still)).unwrap();
            assert_eq!((each(&one), &addresses[..], taken(&one, port)), (vec![1; 2], &[four][..], [true, false]));
            let (both, _) = listeners(&asked, 3, flat(one)).unwrap();
            assert_eq!((each(&both), taken(&both, port)), (vec![2; 3], [true; 2]));
        }
        // One for both and another beside it for IPv4 alone, which then gets all of that, as systemd opens them with
        // ReusePort=yes.
        for asked in [&[four, six][..], &[six, four], &[six]] {
            let inherited = [(six, Some(false)), (four, None)];
            let inherited = inherited.map(|(address, alone)| socket::listener_of(address, alone).unwrap());
            let (two, addresses) = listeners(asked, 1, inherited.into()).unwrap();
            assert_eq!((each(&two), addresses.len(), taken(&two, port)), (vec![2], 2, [true; 2]), "{asked:?}");
        }
        // Alone it is for both, and stays so for whoever asks for them one by one.
        let (alone, _) = listeners(&[six], 2, Vec::new()).unwrap();
        assert_eq!((each(&alone), taken(&alone, port)), (vec![1; 2], [true; 2]));
        let (each_by_name, addresses) = listeners(&[four, six], 3, flat(alone)).unwrap();
        assert_eq!((each(&each_by_name), addresses, taken(&each_by_name, port)), (vec![1; 3], vec![six], [true; 2]));
    }
}
