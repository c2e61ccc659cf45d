//! This machine: cores, descriptors, locked memory, io_uring, ports.

use std::fs;
use std::net::SocketAddr;
use std::thread;

use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Finding;
use crate::config::{Config, Driver};

/// First kernel with every ring feature that is used (SINGLE_ISSUER with DEFER_TASKRUN).
const URING_KERNEL: (u32, u32) = (6, 1);
/// Locked memory that rings and their buffers of a few shards take, where the kernel counts it.
const URING_MEMLOCK_BYTES: u64 = 8 << 20;
/// Descriptors besides those of connections: listeners, rings, logs, control's own.
const OTHER_DESCRIPTORS: u64 = 64;
/// Fewest clients a shard must be able to take.
const CLIENTS_MIN: u64 = 64;

pub(super) fn findings(config: &Config, ports: bool) -> Vec<Finding> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let shards = config.serve.shards.count(cores);
    let mut found = vec![cores_for(shards, cores), descriptors(config, shards)];
    found.extend(uring(config.serve.driver));
    if ports {
        found.extend(config.serve.listen.iter().map(|address| port("listen", *address, true)));
        found.push(port("admin", config.serve.admin, false));
    }
    found
}

/// Raises the soft limit of descriptors to the hard one; says how many there may be now.
pub(in crate::cli) fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if raised.is_ok() { hard } else { limit.current.unwrap_or(u64::MAX) }
}

/// Descriptors that `shards` full shards have open: each client may have an engine's connection.
pub(in crate::cli) fn descriptors_wanted(config: &Config, shards: usize) -> u64 {
    let clients = shards as u64 * config.limits.connections_max as u64;
    clients.saturating_mul(2).saturating_add(OTHER_DESCRIPTORS)
}

fn cores_for(shards: usize, cores: usize) -> Finding {
    let words = format!("{shards} shards on {cores} usable cores");
    match shards > cores {
        true => Finding::advice(
            "cores",
            format!("{words}: pinned shards that share a core delay each other; set shards = {cores} or \"auto\""),
        ),
        false => Finding::good("cores", words),
    }
}

fn descriptors(config: &Config, shards: usize) -> Finding {
    let may = raise_descriptors();
    let wanted = descriptors_wanted(config, shards);
    let clients = may.saturating_sub(OTHER_DESCRIPTORS) / 2 / shards.max(1) as u64;
    let words = format!(
        "the limit is {may}, enough for {clients} clients a shard; connections_max = {} asks for {wanted}.\n\
         Set LimitNOFILE={wanted} in the unit (`ulimit -Hn` in a shell), or connections_max = {clients}",
        config.limits.connections_max
    );
    match may {
        may if may >= wanted => Finding::good("descriptors", format!("{wanted} wanted, {may} allowed")),
        _ if clients >= CLIENTS_MIN => Finding::advice("descriptors", words),
        _ => Finding::wrong("descriptors", words),
    }
}

/// What can be known without a ring; whether one can be set up is tried at the start of `serve`.
fn uring(driver: Driver) -> Vec<Finding> {
    if driver == Driver::Epoll {
        return vec![Finding::good("driver", "epoll, as configured")];
    }
    let missing = |why: String| match driver {
        Driver::Uring => Finding::wrong("io_uring", format!("{why}; set driver = \"auto\" to fall back to epoll")),
        _ => Finding::advice("io_uring", format!("{why}; epoll is used instead")),
    };
    let mut found = Vec::new();
    let kernel = rustix::system::uname();
    let release = kernel.release().to_string_lossy().into_owned();
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if version(&release).is_some_and(|version| version < URING_KERNEL) {
        found.push(missing(format!("kernel {release} is older than {}.{}", URING_KERNEL.0, URING_KERNEL.1)));
    } else if matches!(disabled.trim(), "1" | "2") {
        found.push(missing(format!("sysctl kernel.io_uring_disabled is {}; set it to 0", disabled.trim())));
    } else if status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])) {
        found.push(Finding::advice(
            "io_uring",
            "a seccomp filter is on; those of Docker and containerd refuse io_uring, and epoll is then used.\n\
             Allow io_uring_setup, io_uring_enter and io_uring_register to have it",
        ));
    } else {
        found.push(Finding::good("io_uring", format!("kernel {release} has it")));
    }
    let memlock = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    if memlock < URING_MEMLOCK_BYTES {
        let words = format!(
            "{} KiB may be locked, for all processes of this user together; rings may not fit. Set LimitMEMLOCK=64M in the unit",
            memlock >> 10
        );
        found.push(Finding::advice("locked memory", words));
    }
    found
}

/// Major and minor of `6.18.5-x`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether a listener can be opened, as each shard opens its own: with SO_REUSEPORT.
fn port(subject: &str, address: SocketAddr, reuse: bool) -> Finding {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let opened = socket(family, SocketType::STREAM, None).and_then(|socket| {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if reuse {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        bind(&socket, &address)?;
        listen(&socket, 1)
    });
    let subject = format!("{subject} {address}");
    match opened {
        Ok(()) => Finding::good(subject, "can be opened"),
        Err(rustix::io::Errno::ADDRINUSE) => Finding::wrong(
            subject,
            "is in use; if that is a running front, leave ports out with --no-ports; else choose another port",
        ),
        Err(rustix::io::Errno::ACCESS) => Finding::wrong(
            subject,
            "needs a privilege: ports below 1024 want CAP_NET_BIND_SERVICE (AmbientCapabilities= in the unit has it)",
        ),
        Err(rustix::io::Errno::ADDRNOTAVAIL) => Finding::wrong(subject, "is no address of this machine"),
        Err(error) => Finding::wrong(subject, format!("cannot be opened: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::Weight;

    #[test]
    fn kernels_are_compared_by_number() {
        assert_eq!(version("6.18.5-amd64"), Some((6, 18)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version("linux"), None);
        assert!(version("10.0.1") > Some(URING_KERNEL) && version("5.15.0") < Some(URING_KERNEL));
    }

    #[test]
    fn a_taken_port_is_wrong() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(port("listen", address, true).weight, Weight::Wrong);
        drop(taken);
        assert_eq!(port("listen", address, true).weight, Weight::Good);
        let elsewhere = port("listen", "192.0.2.1:80".parse().unwrap(), true);
        assert!(elsewhere.words.contains("no address of this machine") || elsewhere.words.contains("privilege"));
    }

    #[test]
    fn too_many_shards_are_advised_against() {
        assert_eq!(cores_for(4, 2).weight, Weight::Advice);
        assert_eq!(cores_for(2, 2).weight, Weight::Good);
    }
}
