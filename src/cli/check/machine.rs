//! This machine: cores, descriptors, driver, ports.

use std::env;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};

use super::Finding;
use crate::cli::machine::{descriptors_needed, descriptors_wanted, index_fault, raise_descriptors};
use crate::config::{Config, Driver, admin_is_open, is_ipv6_alone};
use crate::control::index_blocks;
use crate::limits::Limits;
use crate::scan;
use crate::shard::choice;
use crate::shard::memory;
use crate::shard::placement::Placement;
use crate::shard::start::NOT_HERE;

const MIB: usize = 1 << 20;

pub(super) fn findings(config: &Config, placement: &Placement, ports: bool) -> Vec<Finding> {
    let mut found =
        vec![cores(placement), descriptors(raise_descriptors(), config, placement.shards(), is_run_by_unit())];
    found.push(driver(config.serve.driver));
    found.push(memory(&config.limits, placement.shards()));
    found.extend(index(config));
    found.push(Finding::good("scan", format!("bodies are scanned on {}", scan::kernel_name())));
    found.extend(admin_is_open(&config.serve).map(|words| Finding::advice("admin", words)));
    if ports {
        found.extend(listeners(&config.serve.listen, config.serve.admin));
    }
    found
}

/// Where the shards run, and whether there are more than can run at once.
fn cores(placement: &Placement) -> Finding {
    let machine = placement.machine();
    let most = machine.quota.unwrap_or(usize::MAX).min(machine.cpus.len().max(1));
    if placement.shards() <= most {
        if machine.quota.is_some() && !placement.cpus().is_empty() {
            let why = "other processes with a quota that pin their threads take the same CPUs; set pin = \"auto\", which pins none here";
            return Finding::advice("cores", format!("{placement}:\n{why}"));
        }
        return Finding::good("cores", placement.to_string());
    }
    let auto = machine.auto();
    let why = match machine.quota {
        Some(_) => "once they have used up the quota, all of them stop for the rest of its period",
        None => "shards that share a CPU delay each other",
    };
    Finding::advice("cores", format!("{placement}:\n{why}; set shards = \"auto\", which is {auto} here"))
}

/// Whether systemd started this process itself, under the unit's limits. Shells pass the variable on.
fn is_run_by_unit() -> bool {
    env::var("SYSTEMD_EXEC_PID").is_ok_and(|id| id == std::process::id().to_string())
}

fn descriptors(may: u64, config: &Config, shards: usize, by_unit: bool) -> Finding {
    let wanted = descriptors_wanted(config, shards);
    let needed = descriptors_needed(config, shards);
    let clients = may.saturating_sub(needed) / 2 / shards.max(1) as u64;
    let (whose, how) = match by_unit {
        true => ("", format!("Set LimitNOFILE={wanted} in the unit, and fs.nr_open (sysctl) to as much")),
        false => (
            " in this shell (the unit has one of its own)",
            format!("For a start from here `ulimit -n {wanted}` as root, and fs.nr_open (sysctl) no less"),
        ),
    };
    let most = config.limits.connections_max;
    let few = match clients {
        0 => String::new(),
        clients => format!("; or set connections_max = {clients}"),
    };
    let words = format!(
        "the limit is {may}{whose}, enough for {clients} clients a shard; connections_max = {most} asks for {wanted}.\n\
         {how}{few}"
    );
    match may {
        may if may >= wanted => Finding::good("descriptors", format!("{wanted} wanted, {may} allowed")),
        // A front serves with as few: the `check` before a reload must not refuse it.
        may if may >= needed => Finding::advice("descriptors", words),
        _ => Finding::wrong(
            "descriptors",
            format!(
                "the limit is {may}{whose}, and {needed} are needed before the first client: no front starts;\n\
                 connections_max = {most} asks for {wanted}.\n{how}"
            ),
        ),
    }
}

/// The memory that held bodies may take.
fn memory(limits: &Limits, shards: usize) -> Finding {
    const MIB: u64 = self::MIB as u64;
    let bytes = memory::bytes();
    let share = memory::budget(shards);
    let all = (limits.budget_of(share) as u64).saturating_mul(shards as u64);
    let words = format!("held bodies may take {} MiB of {}, on {shards} shards", all / MIB, bytes / MIB);
    if all <= bytes / 2 {
        Finding::good("memory", words)
    } else {
        let how = match limits.budget_bytes {
            0 => format!(
                "each shard may hold one body of hold_bytes = {}, whatever its share: lower that",
                limits.hold_bytes
            ),
            _ => "lower budget_bytes, or set it to 0 for a quarter".into(),
        };
        Finding::advice("memory", format!("{words}:\n{how}"))
    }
}

/// The prefix index, if a policy has one.
fn index(config: &Config) -> Option<Finding> {
    if !config.counts_tokens() {
        return None;
    }
    if let Some(words) = index_fault(config) {
        return Some(Finding::wrong("index", words));
    }
    let bytes = config.limits.index_bytes;
    if bytes == 0 {
        let words = "index_bytes = 0 in [limits] leaves no prefix index:\n\
             pools of policies warm and precise choose by a hash of the conversation's first 4 KiB, and shorter chats move with each turn;\n\
             raise it, or set policy prefix-hash";
        return Some(Finding::advice("index", words));
    }
    Some(match index_blocks(config) {
        Ok(blocks) => Finding::good("index", format!("{blocks} blocks of prompts in {} MiB", bytes / MIB)),
        Err(least) => Finding::advice(
            "index",
            format!(
                "index_bytes = {bytes} in [limits] is too little for a prefix index, which takes {least} at least:\n\
                 pools of policies warm and precise choose by a hash of the conversation's first 4 KiB, and shorter chats move with each turn;\n\
                 raise it, or set policy prefix-hash"
            ),
        ),
    })
}

/// The driver that shards would use, and why.
fn driver(asked: Driver) -> Finding {
    match choice::choose(asked) {
        Ok(choice) => Finding::good("driver", format!("{}: {}", choice.driver.as_str(), choice.why)),
        Err(why) => Finding::wrong("driver", why.to_string()),
    }
}

/// Whether the listeners can be opened, all at once as a front has them.
fn listeners(listen: &[SocketAddr], admin: SocketAddr) -> Vec<Finding> {
    let clients = listen.iter().map(|address| ("listen", *address, is_ipv6_alone(*address, listen)));
    let tried = clients.chain([("admin", admin, false)]).map(|(subject, address, alone)| port(subject, address, alone));
    let (found, _held): (Vec<_>, Vec<_>) = tried.unzip();
    found
}

/// Whether a listener can be opened, and it. Not with SO_REUSEPORT, which would share the port of a running front.
fn port(subject: &str, address: SocketAddr, ipv6_alone: bool) -> (Finding, Option<OwnedFd>) {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let opened = socket(family, SocketType::STREAM, None).and_then(|socket| {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if ipv6_alone {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        bind(&socket, &address)?;
        listen(&socket, 1)?;
        Ok(socket)
    });
    let subject = format!("{subject} {address}");
    let found = match &opened {
        Ok(_) if ipv6_alone => {
            Finding::good(subject, "can be opened, for IPv6 alone: `listen` has this port for IPv4, too")
        }
        Ok(_) => Finding::good(subject, "can be opened"),
        Err(rustix::io::Errno::ADDRINUSE) => Finding::wrong(
            subject,
            "is in use; if that is a running front, leave ports out with --no-ports; else choose another port",
        ),
        Err(rustix::io::Errno::ACCESS) => Finding::wrong(
            subject,
            "needs a privilege: ports below 1024 want CAP_NET_BIND_SERVICE (AmbientCapabilities= in the unit has it)",
        ),
        Err(rustix::io::Errno::ADDRNOTAVAIL) => Finding::wrong(subject, NOT_HERE),
        Err(error) => Finding::wrong(subject, format!("cannot be opened: {error}")),
    };
    (found, opened.ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::Weight;
    use crate::shard::placement::{Cpu, Machine};

    #[test]
    fn the_driver_is_the_one_asked_for_or_found_fit() {
        let epoll = driver(Driver::Epoll);
        assert_eq!((epoll.weight, &*epoll.words), (Weight::Good, "epoll: as configured"));
        let automatic = driver(Driver::Auto);
        assert!(automatic.weight == Weight::Good && automatic.words.contains(": "), "{}", automatic.words);
    }

    /// The unit's limit is not the shell's.
    #[test]
    fn too_few_descriptors_are_advised_on_where_they_are_set() {
        let of = |may, by_unit| descriptors(may, &Config::default(), 8, by_unit);
        let (unit, shell) = (of(1_048_576, true), of(1_048_576, false));
        assert!(unit.weight == Weight::Advice && unit.words.contains("LimitNOFILE=1048675 in the unit"), "{unit:?}");
        assert!(shell.weight == Weight::Advice && !shell.words.contains("LimitNOFILE"), "{shell:?}");
        assert!(shell.words.contains("`ulimit -n 1048675`"), "{shell:?}");
        // Who takes the advice is not advised again.
        assert!(unit.words.ends_with("; or set connections_max = 65529"), "{unit:?}");
        let mut fewer = Config::default();
        fewer.limits.connections_max = 65_529;
        assert_eq!(descriptors(1_048_576, &fewer, 8, true).weight, Weight::Good);
        for (may, needed) in [(99, ""), (98, ", and 99 are needed before the first client")] {
            let said = of(may, false).words;
            assert!(said.contains(needed) && said.ends_with("no less"), "no fewer clients help: {said}");
        }
        let weights = [1_048_675, 1_048_674, 99, 98].map(|may| of(may, false).weight);
        // As many as a front needs to serve at all, with a warning.
        assert_eq!(weights, [Weight::Good, Weight::Advice, Weight::Advice, Weight::Wrong]);
    }

    /// A body of the longest kind is held whatever a shard's share is.
    #[test]
    fn held_bodies_are_told_as_shards_take_them() {
        let wide = Limits { hold_bytes: 64 << 40, body_bytes_max: 64 << 40, ..Limits::default() };
        let found = memory(&wide, 2);
        assert!(
            found.weight == Weight::Advice && found.words.starts_with("held bodies may take 134217728 MiB"),
            "{found:?}"
        );
        assert!(found.words.contains("hold_bytes = 70368744177664"), "{found:?}");
        let set = memory(&Limits { budget_bytes: 64 << 40, ..wide }, 2);
        assert!(set.words.contains("lower budget_bytes"), "{set:?}");
        assert_eq!(memory(&Limits::default(), 1).weight, Weight::Good);
        let mut config = Config::default();
        config.limits.connections_max = usize::MAX;
        assert_eq!(descriptors_wanted(&config, 8), u64::MAX);
    }

    /// A process that another test starts has the sockets of this one, closed or not, until its program begins.
    fn comes_to<T: PartialEq + std::fmt::Debug>(expected: T, found: impl Fn() -> T) {
        for _ in 0..100 {
            if found() == expected {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(found(), expected);
    }

    #[test]
    fn a_taken_port_is_wrong() {
        // On an address of its own: nobody takes the port once it is free.
        let taken = std::net::TcpListener::bind("127.0.0.5:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(port("listen", address, false).0.weight, Weight::Wrong);
        drop(taken);
        comes_to(Weight::Good, || port("listen", address, false).0.weight);
        let elsewhere = port("listen", "192.0.2.1:80".parse().unwrap(), false).0;
        let how = "net.ipv4.ip_nonlocal_bind = 1 (net.ipv6.ip_nonlocal_bind for IPv6)";
        assert!(elsewhere.words.ends_with(how) || elsewhere.words.contains("privilege"), "{}", elsewhere.words);
    }

    /// What listens on `[::]` takes IPv4, too, unless another is to have that.
    #[test]
    fn ports_are_tried_as_a_front_opens_them() {
        let any = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 0);
        // A machine without IPv6 has nothing to try.
        let Ok(kept) = socket(AddressFamily::INET6, SocketType::STREAM, None) else { return };
        sockopt::set_socket_reuseaddr(&kept, true).unwrap();
        bind(&kept, &any("::")).unwrap();
        let port = std::net::TcpListener::from(kept.try_clone().unwrap()).local_addr().unwrap().port();
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        let weights = |listen: &[SocketAddr], admin: SocketAddr| {
            listeners(listen, admin).into_iter().map(|finding| finding.weight).collect::<Vec<_>>()
        };
        let admin = any("127.0.0.1");
        comes_to(vec![Weight::Good; 3], || weights(&[at("0.0.0.0"), at("::")], admin));
        comes_to(vec![Weight::Good; 3], || weights(&[at("::"), at("127.0.0.1")], admin));
        comes_to(vec![Weight::Good; 2], || weights(&[at("::")], admin));
        if crate::driver::socket::takes_both_here() {
            // No configuration has them so; they are tried all at once.
            comes_to(vec![Weight::Good, Weight::Wrong], || weights(&[at("::")], at("127.0.0.1")));
        }
    }

    #[test]
    fn an_index_has_memory_and_room() {
        let weight = |bytes: usize| {
            let mut config = Config::default();
            config.limits.index_bytes = bytes;
            index(&config).map(|finding| finding.weight)
        };
        assert_eq!([0, 1_000].map(weight), [Some(Weight::Advice); 2]);
        assert_eq!(weight(Limits::default().index_bytes), Some(Weight::Good));
        assert_eq!(weight(1 << 50), Some(Weight::Wrong));
        let mut without = Config::default();
        without.limits.index_bytes = 1 << 50;
        without.routing.policy = crate::policy::Policy::Random;
        assert_eq!((index(&without), index_fault(&without)), (None, None));
    }

    #[test]
    fn too_many_shards_are_advised_against() {
        let cpus: Vec<Cpu> = (0..4).map(|id| Cpu { id, core: id / 2, node: 0 }).collect();
        let on = |shards, quota| Machine { cpus: cpus.clone(), quota, near: None }.place(Some(shards), Some(true));
        assert_eq!(cores(&on(4, None)).weight, Weight::Good);
        let crowded = cores(&on(5, None));
        assert!(crowded.weight == Weight::Advice && crowded.words.ends_with("\"auto\", which is 2 here"));
        let throttled = cores(&on(2, Some(1)));
        assert!(throttled.weight == Weight::Advice && throttled.words.contains("all of them stop"));
    }
}
