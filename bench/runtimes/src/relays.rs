//! The relays by name, and the command that is one of them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use peers::args::Args;
use peers::net;
use warmfront::driver::Driver;
use warmfront::driver::epoll::Epoll;
use warmfront::driver::socket;
use warmfront::driver::uring::Uring;

use crate::{on, own};

const HELP: &str = "\
runtimes relay NAME --listen PORT --upstreams PORT,PORT
runtimes relay NAME --try      makes its runtime and ends: whether this machine lets it run
NAME is one of epoll, uring, tokio, monoio, monoio-defer, monoio-poll, glommio, compio";

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;

/// The relay that the others are compared with.
pub const REFERENCE: &str = "epoll";
pub const ALL: [&str; 8] = [REFERENCE, "uring", "tokio", "monoio", "monoio-defer", "monoio-poll", "glommio", "compio"];

type Start = fn(&Setup) -> io::Result<()>;

fn start_of(name: &str) -> Start {
    match name {
        REFERENCE => |setup| own(setup, Epoll::new),
        "uring" => |setup| own(setup, Uring::new),
        "tokio" => on::tokio::start,
        #[cfg(feature = "comparators")]
        "monoio" => on::monoio::start,
        #[cfg(feature = "comparators")]
        "monoio-defer" => on::monoio::start_deferred,
        #[cfg(feature = "comparators")]
        "monoio-poll" => on::monoio::start_readiness,
        #[cfg(feature = "comparators")]
        "glommio" => on::glommio::start,
        #[cfg(feature = "comparators")]
        "compio" => on::compio::start,
        _ => |_| Err(io::Error::other("not built in: cargo build --release -p runtimes --features comparators")),
    }
}

fn own<D: Driver>(setup: &Setup, driver: impl FnOnce() -> io::Result<D>) -> io::Result<()> {
    let driver = driver()?;
    setup.if_meant(|address, upstreams| own::run(driver, socket::listener(address)?, upstreams))
}

/// What a relay does once its runtime stands.
pub struct Setup {
    address: Option<SocketAddr>,
    upstreams: [u16; 2],
}

impl Setup {
    /// Relays for good; or does nothing, if this was only to see whether the runtime can be had.
    pub fn if_meant(&self, relay: impl FnOnce(SocketAddr, [u16; 2]) -> io::Result<()>) -> io::Result<()> {
        self.address.map_or(Ok(()), |address| relay(address, self.upstreams))
    }
}

pub fn main(words: &[String]) -> Result<(), String> {
    let (name, words) = words.split_first().ok_or(HELP)?;
    if !ALL.contains(&name.as_str()) {
        return Err(HELP.into());
    }
    let args = Args::parse(words, &["listen", "upstreams"], &["try"], HELP)?;
    let setup = if args.has("try") {
        Setup { address: None, upstreams: [0; 2] }
    } else {
        let ports: Vec<u16> = args.list("upstreams").iter().flat_map(|port| port.parse()).collect();
        let upstreams = ports.try_into().map_err(|_| HELP)?;
        Setup { address: Some((Ipv4Addr::LOCALHOST, args.get("listen", 0)?).into()), upstreams }
    };
    net::raise_descriptors(65_536);
    start_of(name)(&setup).map_err(|error| reason(&error))
}

/// Only rings end in these two errors here; the system's own words would not help.
fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(EPERM | ENOSYS) => {
            format!(
                "io_uring is blocked here ({error}): sysctl kernel.io_uring_disabled, or a container's seccomp profile"
            )
        }
        _ => error.to_string(),
    }
}
