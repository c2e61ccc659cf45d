//! Faults of the addresses that the front listens on, against each other and against the engines' addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use super::problem::Problem;
use super::{Cidr, Config, KvEvents, Serve, Url};
use crate::kvevents::Endpoint;

/// Whether the listener on `address` is to take IPv6 alone. On most machines (net.ipv6.bindv6only = 0) `[::]` takes
/// IPv4 connections as well, and would conflict with the listener named for those.
pub fn is_ipv6_alone(address: SocketAddr, listen: &[SocketAddr]) -> bool {
    let for_ipv4 = |other: &SocketAddr| other.is_ipv4() && other.port() == address.port();
    address.is_ipv6() && address.ip().is_unspecified() && address.port() != 0 && listen.iter().any(for_ipv4)
}

/// The first pair of addresses in `listen` of which one includes the other, in words.
pub(super) fn twice(serve: &Serve) -> Option<String> {
    let all = || serve.listen.iter().enumerate();
    let (one, other) = all()
        .flat_map(|(at, one)| serve.listen.iter().skip(at + 1).map(move |other| (one, other)))
        .find(|(one, other)| one == other || overlap(**one, **other))?;
    Some(if one == other {
        format!("`listen` names {one} twice")
    } else {
        let wider = if one.ip().is_unspecified() { one } else { other };
        format!(
            "`listen` has both {one} and {other}: {wider} is all addresses of this machine, the other among them; leave one out"
        )
    })
}

/// Faults of the ports at which the front waits for engines to connect and tell their KV events. Each engine needs a
/// port of its own: whatever connects there is taken for that engine.
fn doors(config: &Config, found: &mut Vec<Problem>) {
    let ranks = config.upstream.iter().enumerate();
    let ranks = ranks.flat_map(|(place, upstream)| upstream.each_rank().map(move |rank| (place, rank)));
    let doors = ranks.filter_map(|(place, rank)| match &rank.kv_events {
        KvEvents::At(door) if door.waits => Some((place, rank.label(), door.clone())),
        _ => None,
    });
    let mut taken: Vec<(String, Endpoint)> = Vec::new();
    for (place, label, door) in doors {
        let all = |host: &str| matches!(host, "*" | "0.0.0.0" | "::");
        let same = |(_, other): &&(String, Endpoint)| {
            other.port == door.port && (other.host == door.host || all(&other.host) || all(&door.host))
        };
        let ours = config.serve.listen.iter().chain([&config.serve.admin]).find(|ours| ours.port() == door.port);
        let other = taken.iter().find(same).map(|(label, other)| format!("that of {label} is {other}"));
        if let Some(other) = other.or_else(|| ours.map(|ours| format!("this front listens on {ours}"))) {
            let words = format!(
                "`kv_events` of {label} is {door}, a port at which to wait for this engine alone, but {other}; give each engine a port of its \
                 own, here and in its --kv-events-config, or have the engines listen and name those addresses"
            );
            found.push(Problem::new(["upstream", &place.to_string(), "kv_events"], words));
        }
        taken.push((label, door));
    }
}

/// Faults of listeners that conflict, and of engines whose address is the front's own.
pub(super) fn whole(config: &Config, found: &mut Vec<Problem>) {
    let Serve { listen, admin, .. } = &config.serve;
    // Beside the admin listener `[::]` is never made to leave IPv4 out: for clients it means both families, and those
    // of one would reach the admin listener.
    let met = |clients: &&SocketAddr| {
        overlap(**clients, *admin) || is_ipv6_alone(**clients, &[*admin]) || is_ipv6_alone(*admin, &[**clients])
    };
    if let Some(clients) = listen.iter().find(met) {
        let words = if clients == admin {
            format!("`admin` and `listen` are both {admin}; clients must not reach the admin listener")
        } else {
            format!(
                "`admin` is {admin} and `listen` {clients}, which is the same port on all addresses or one of them; \
                 give the admin listener another port"
            )
        };
        found.push(Problem::new(["serve", "admin"], words));
    }
    for (place, upstream) in config.upstream.iter().enumerate() {
        let Some(ours) =
            listen.iter().chain([admin]).find(|ours| reaches(&upstream.url, **ours, is_ipv6_alone(**ours, listen)))
        else {
            continue;
        };
        let words = format!(
            "{} is this front itself, which listens on {ours}: requests would come back to it for ever; \
             mend `url`, or choose another port with --listen or `listen` in [serve]",
            upstream.url
        );
        found.push(Problem::new(["upstream", &place.to_string(), "url"], words));
    }
    doors(config, found);
}

/// Whether two listeners conflict: they cannot both be opened, or only one of them would get connections. Port 0 is a
/// different port each time. `[::]` and an IPv4 address do not count: whether it takes IPv4 depends on the machine.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let alike = one.ip() == other.ip()
        || one.is_ipv4() == other.is_ipv4() && (one.ip().is_unspecified() || other.ip().is_unspecified());
    one.port() == other.port() && one.port() != 0 && alike
}

/// Whether a connection to `url` comes to the listener on `ours`. Of host names only `localhost` is known without a
/// look-up.
fn reaches(url: &Url, ours: SocketAddr, ipv6_alone: bool) -> bool {
    let hosts: Vec<IpAddr> = match (&*url.host, url.host.parse()) {
        ("localhost", _) => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        (_, Ok(address)) => vec![address],
        _ => return false,
    };
    let all = ours.ip().is_unspecified();
    // A connection to 0.0.0.0 or [::] goes to this machine.
    let here = |host: IpAddr| host == ours.ip() || all && is_own(host) || host.is_unspecified() && is_own(ours.ip());
    url.port == ours.port() && hosts.into_iter().filter(|host| host.is_ipv6() || !ipv6_alone).any(here)
}

/// Whether an address is this machine's: then a socket connected to it has that address itself as its source. Nothing
/// is sent. Binding to it would prove less: with net.ipv4.ip_nonlocal_bind any address can be bound to.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let begins = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 1))?;
        Ok::<_, std::io::Error>(socket.local_addr()?.ip())
    };
    address.is_loopback() || address.is_unspecified() || begins().is_ok_and(|begin| begin == address)
}

/// Why more peers reach `admin` than should, in words: each of them commands the front without a key. An address in a
/// private network, as pods have, is no fault: probes and Prometheus need it, and the network's operator guards it.
pub fn admin_is_open(serve: &Serve) -> Option<String> {
    let admin = serve.admin;
    // If both ends of a range are private, all of it is: no two private networks are adjacent.
    let are_private = |peers: &Cidr| peers.ends().into_iter().all(is_private);
    let is_guarded = is_private(admin.ip()) || serve.admin_from.iter().all(are_private);
    let where_it_is =
        if admin.ip().is_unspecified() { "on all addresses of this machine" } else { "no private address" };
    (!is_guarded).then(|| {
        format!(
            "`admin` is {admin}, {where_it_is}: any peer that reaches it adds, drains and removes engines, and reads receipts, without \
             a key; use 127.0.0.1 or a private address, list the peers that may in `admin_from`, or let a firewall keep others out"
        )
    })
}

fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        // 100.64.0.0/10 (RFC 6598), too, is given to pods.
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            ip.is_loopback() || ip.is_private() || ip.is_link_local() || first == 100 && second & 0xc0 == 64
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of listeners, the admin listener and one engine.
    fn said(listen: &[&str], admin: &str, engine: &str) -> String {
        let mut config = Config::default();
        config.serve.listen = listen.iter().map(|address| address.parse().unwrap()).collect();
        config.serve.admin = admin.parse().unwrap();
        config.upstream.push(super::super::Upstream::new(engine.parse().unwrap()));
        config.checked().map_or_else(|invalid| invalid.to_string(), |_| String::new())
    }

    #[test]
    fn listeners_that_overlap_are_refused() {
        let (admin, engine) = ("127.0.0.1:9911", "http://gpu:8000");
        for (listen, admin, words) in [
            (&["0.0.0.0:8000", "127.0.0.1:8000"][..], admin, "0.0.0.0:8000 is all addresses of this machine"),
            (&["[::1]:8000", "[::]:8000"], admin, "[::]:8000 is all addresses"),
            (&["127.0.0.1:8000", "127.0.0.1:8000"], admin, "names 127.0.0.1:8000 twice"),
            (&["0.0.0.0:9911"], admin, "`admin` is 127.0.0.1:9911 and `listen` 0.0.0.0:9911"),
            (&["127.0.0.1:9911"], "0.0.0.0:9911", "give the admin listener another port"),
            (&["127.0.0.1:9911"], admin, "are both 127.0.0.1:9911"),
            (&["[::]:9911"], admin, "`admin` is 127.0.0.1:9911 and `listen` [::]:9911"),
            (&["127.0.0.1:9911"], "[::]:9911", "give the admin listener another port"),
        ] {
            let said = said(listen, admin, engine);
            assert!(said.contains(words), "{listen:?} {admin}: {said}");
        }
        for listen in [
            &["0.0.0.0:8000", "[::]:8000"][..],
            &["0.0.0.0:0", "127.0.0.1:0"],
            &["127.0.0.1:8000", "127.0.0.2:8000"],
            &["0.0.0.0:8000", "127.0.0.1:8001"],
        ] {
            assert_eq!(said(listen, admin, engine), "", "{listen:?}");
        }
    }

    #[test]
    fn engines_that_connect_have_ports_of_their_own() {
        let said = |doors: [&str; 2]| {
            let mut config = Config::default();
            for (place, door) in doors.iter().enumerate() {
                let mut engine = super::super::Upstream::new(format!("http://gpu-{place}:8000").parse().unwrap());
                engine.kv_events = KvEvents::At(door.parse().unwrap());
                config.upstream.push(engine);
            }
            config.checked().map_or_else(|invalid| invalid.to_string(), |_| String::new())
        };
        for (doors, words) in [
            (
                ["tcp://*:5557", "tcp://*:5557"],
                "`kv_events` of gpu-1:8000 is tcp://*:5557, a port at which to wait for this engine alone, but that of gpu-0:8000 is",
            ),
            (["@tcp://10.0.0.1:5557", "tcp://*:5557"], "that of gpu-0:8000 is @tcp://10.0.0.1:5557"),
            (["tcp://*:5557", "tcp://*:8000"], "this front listens on 0.0.0.0:8000"),
            (["tcp://*:9911", "tcp://*:5557"], "this front listens on 127.0.0.1:9911"),
        ] {
            assert!(said(doors).contains(words), "{doors:?}: {}", said(doors));
        }
        for doors in [
            ["tcp://*:5557", "tcp://*:5558"],
            ["@tcp://10.0.0.1:5557", "@tcp://10.0.0.2:5557"],
            ["tcp://gpu-1:5557", "tcp://gpu-2:5557"],
        ] {
            assert_eq!(said(doors), "", "{doors:?}");
        }
    }

    #[test]
    fn each_rank_that_connects_has_a_port_too() {
        let mut config = Config::default();
        for (place, (ranks, door)) in [(2, "tcp://*:5557"), (1, "tcp://*:5558")].into_iter().enumerate() {
            let url = format!("http://gpu-{place}:8000").parse().unwrap();
            let kv_events = KvEvents::At(door.parse().unwrap());
            config.upstream.push(super::super::Upstream { ranks, kv_events, ..super::super::Upstream::new(url) });
        }
        let said = config.clone().checked().unwrap_err().to_string();
        assert!(said.contains("but that of gpu-0:8000@1 is tcp://*:5558"), "{said}");
        config.upstream[0].ranks = 1;
        assert!(config.checked().is_ok());
    }

    #[test]
    fn an_admin_listener_that_strangers_may_reach_is_told() {
        let from = |admin: &str, admin_from| {
            admin_is_open(&Serve { admin: admin.parse().unwrap(), admin_from, ..Serve::default() })
        };
        let said = |admin: &str| from(admin, Serve::default().admin_from);
        for guarded in
            ["127.0.0.1:1", "[::1]:1", "10.0.0.7:1", "192.168.3.4:1", "100.64.0.9:1", "[fd00::7]:1", "[fe80::1]:1"]
        {
            assert_eq!(said(guarded), None, "{guarded}");
        }
        for (open, words) in [
            ("0.0.0.0:9911", "is 0.0.0.0:9911, on all addresses"),
            ("[::]:9911", "is [::]:9911, on all addresses"),
            ("203.0.113.7:9911", "no private address"),
            ("100.128.0.1:9911", "no private address"),
            ("[2001:db8::7]:9911", "no private address"),
            ("[::ffff:203.0.113.7]:9911", "no private address"),
        ] {
            assert!(said(open).is_some_and(|said| said.contains(words)), "{open}: {:?}", said(open));
            let peers = |peers: &[&str]| from(open, peers.iter().map(|peers| peers.parse().unwrap()).collect());
            assert_eq!((peers(&["127.0.0.1", "10.0.0.0/8"]), peers(&[])), (None, None), "nobody else commands it");
            // However they are written.
            for wide in
                ["0.0.0.0/0", "10.0.0.7/0", "10.0.0.0/7", "172.16.0.0/8", "192.168.0.0/8", "fd00::/6", "fd00::/0"]
            {
                assert!(peers(&["127.0.0.1", wide]).is_some(), "{wide}");
            }
            assert_eq!(
                peers(&["10.1.2.3/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "::1"]),
                None
            );
        }
    }

    #[test]
    fn own_addresses_are_told_from_others() {
        assert!(is_own("127.0.0.1".parse().unwrap()) && is_own("::1".parse().unwrap()));
        assert!(!is_own("192.0.2.1".parse().unwrap()) && !is_own("2001:db8::1".parse().unwrap()));
        // The one by which this machine goes out, where it can.
        let out = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.connect("192.0.2.1:1")?;
            socket.local_addr()
        });
        assert!(out.map_or(true, |own| is_own(own.ip())));
    }

    #[test]
    fn an_engine_that_is_the_front_is_refused() {
        let admin = "127.0.0.1:9911";
        for (listen, engine) in [
            ("127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("0.0.0.0:8000", "http://127.0.0.1:8000"),
            ("0.0.0.0:8000", "http://localhost:8000"),
            ("0.0.0.0:8000", "http://0.0.0.0:8000"),
            ("[::]:8000", "http://127.0.0.1:8000"),
            ("[::]:8000", "http://[::1]:8000"),
            ("127.0.0.1:8000", "http://0.0.0.0:8000"),
            ("0.0.0.0:8000", "http://127.0.0.1:9911"),
        ] {
            let said = said(&[listen], admin, engine);
            assert!(said.contains(&format!("{engine} is this front itself")), "{listen} {engine}: {said}");
        }
        for (listen, engine) in [
            ("0.0.0.0:8000", "http://127.0.0.1:8001"),
            ("0.0.0.0:8000", "http://192.0.2.1:8000"),
            ("127.0.0.1:8000", "http://127.0.0.2:8000"),
            ("0.0.0.0:8000", "http://gpu-1:8000"),
        ] {
            assert_eq!(said(&[listen], admin, engine), "", "{listen} {engine}");
        }
    }
}
