//! Reads what shards are placed on: the affinity mask, `/sys`, and the cgroup's quota.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use super::placement::{Cpu, Machine, listed};

/// The machine as this process may use it. The mask of the calling thread counts, so this comes before pinning;
/// the kernel has taken from it what the cgroup's cpuset does not allow.
pub fn this_machine() -> Machine {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let mut allowed: Vec<usize> = allowed.iter().map(|core| core.id).collect();
    // It is the size of the mask, or the cgroup's quota (of either version,
    // and of any cgroup above) where that is less.
    let parallel = thread::available_parallelism().map_or(usize::MAX, |cpus| cpus.get());
    // No mask is read where it has more than 1,024 places: then these are the first ones.
    if allowed.is_empty() && parallel < usize::MAX {
        allowed.extend(0..parallel);
    }
    read(Path::new("/sys"), &allowed, parallel)
}

/// What `sys` says of the CPUs in `allowed`. Whatever it does not say is passed over: each CPU is then a core.
fn read(sys: &Path, allowed: &[usize], parallel: usize) -> Machine {
    let cpus = sys.join("devices/system/cpu");
    let nodes = nodes(sys);
    // CPUs that are offline are in no mask. What `online` says counts for nothing: in a container with a quota lxcfs
    // has it name the first CPUs of the machine, as many as the quota, which are neither what the container may use nor
    // all of that.
    let cpu = |&id: &usize| Cpu { id, core: core(&cpus, id), node: node(&nodes, id) };
    let cpus: Vec<Cpu> = allowed.iter().map(cpu).collect();
    let quota = Some(parallel).filter(|parallel| *parallel < cpus.len());
    Machine { cpus, quota, near: near(sys) }
}

/// The physical core of a CPU, by the lowest CPU on it: `core_id` repeats from die to die.
fn core(cpus: &Path, id: usize) -> usize {
    let topology = cpus.join(format!("cpu{id}/topology"));
    // The second is the name before Linux 5.3.
    let siblings = text(&topology.join("core_cpus_list")).or_else(|| text(&topology.join("thread_siblings_list")));
    siblings.and_then(|list| listed(&list).first().copied()).unwrap_or(id)
}

/// Each node with its CPUs.
fn nodes(sys: &Path) -> Vec<(usize, String)> {
    let number = |name: &str| name.strip_prefix("node")?.parse().ok();
    let names = names(&sys.join("devices/system/node"));
    let cpus = |name: &String| text(&sys.join("devices/system/node").join(name).join("cpulist"));
    names.iter().filter_map(|name| Some((number(name)?, cpus(name)?))).collect()
}

fn node(nodes: &[(usize, String)], cpu: usize) -> usize {
    nodes.iter().find(|(_, cpus)| listed(cpus).contains(&cpu)).map_or(0, |(node, _)| *node)
}

/// The node that most network cards in use are attached to, the lowest among equals. -1 is "it does not matter".
fn near(sys: &Path) -> Option<usize> {
    let node = |(_, card): (String, PathBuf)| text(&card.join("device/numa_node"))?.trim().parse::<usize>().ok();
    let mut nodes: Vec<usize> = cards_in_use(sys).filter_map(node).collect();
    nodes.sort_unstable();
    let times = |node: usize| nodes.iter().filter(|other| **other == node).count();
    nodes.iter().copied().rev().max_by_key(|node| times(*node))
}

/// The network cards that are up, in order, and where `sys` tells of them.
pub fn cards_in_use(sys: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let cards = sys.join("class/net");
    let up = |(_, card): &(String, PathBuf)| text(&card.join("operstate")).is_some_and(|state| state.trim() == "up");
    names(&cards).into_iter().map(move |name| (name.clone(), cards.join(name))).filter(up)
}

/// What a file of `/sys` or `/proc` says, if it is there.
pub fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// What a directory holds, in order.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::placement::ranges;

    /// A `/sys` of these files.
    struct Sys(std::path::PathBuf);

    impl Sys {
        fn new(name: &str, files: &[(&str, &str)]) -> Sys {
            let root = std::env::temp_dir().join(format!("warmfront-sys-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Sys(root)
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn cores_nodes_and_the_card_are_read() {
        let sys = Sys::new(
            "two-nodes",
            &[
                ("devices/system/cpu/online", "0-2,4-6\n"),
                ("devices/system/cpu/cpu0/topology/core_cpus_list", "0,4\n"),
                ("devices/system/cpu/cpu4/topology/core_cpus_list", "0,4\n"),
                ("devices/system/cpu/cpu1/topology/thread_siblings_list", "1,5\n"),
                ("devices/system/cpu/cpu5/topology/thread_siblings_list", "1,5\n"),
                ("devices/system/cpu/cpu2/topology/core_cpus_list", "2,6\n"),
                ("devices/system/node/node0/cpulist", "0,2,4,6\n"),
                ("devices/system/node/node1/cpulist", "1,3,5,7\n"),
                ("devices/system/node/possible", "0-1\n"),
                ("class/net/lo/operstate", "unknown\n"),
                ("class/net/eth0/operstate", "up\n"),
                ("class/net/eth0/device/numa_node", "1\n"),
                ("class/net/eth1/operstate", "down\n"),
                ("class/net/eth1/device/numa_node", "0\n"),
                ("class/net/virtual/operstate", "up\n"),
                ("class/net/virtual/device/numa_node", "-1\n"),
            ],
        );
        // 3 is offline, 6 is not allowed: neither is in the mask.
        let machine = read(&sys.0, &[0, 1, 2, 4, 5], 2);
        let cpus: Vec<_> = machine.cpus.iter().map(|cpu| (cpu.id, cpu.core, cpu.node)).collect();
        assert_eq!(cpus, [(0, 0, 0), (1, 1, 1), (2, 2, 0), (4, 0, 0), (5, 1, 1)]);
        assert_eq!((machine.quota, machine.near), (Some(2), Some(1)));
        let placement = machine.place(None, Some(true));
        assert_eq!((placement.cpu(0), placement.cpu(1), placement.shards()), (Some(1), Some(0), 2));
    }

    /// As lxcfs shows the CPUs of a container that has two of them by its quota: all such containers of a machine would
    /// pin to the same two.
    #[test]
    fn a_quota_is_seen_where_fewer_cpus_are_shown_than_may_be_used() {
        let sys = Sys::new("quota", &[("devices/system/cpu/online", "0-1\n")]);
        let machine = read(&sys.0, &(0..64).collect::<Vec<_>>(), 2);
        assert_eq!((machine.quota, machine.cpus.len(), machine.auto()), (Some(2), 64, 2));
        let placement = machine.place(None, None);
        assert_eq!((placement.shards(), placement.cpu(0), placement.cpu(1)), (2, None, None));
    }

    #[test]
    fn without_sys_every_cpu_is_a_core() {
        let machine = read(Path::new("/nonexistent"), &[3, 5], 8);
        assert_eq!(machine.cpus, [Cpu { id: 3, core: 3, node: 0 }, Cpu { id: 5, core: 5, node: 0 }]);
        assert_eq!((machine.quota, machine.near, machine.auto()), (None, None, 2));
    }

    #[test]
    fn the_mask_of_a_thread_is_honoured() {
        let all = this_machine();
        assert!(!all.cpus.is_empty());
        let last = all.cpus.last().unwrap().id;
        let pinned = thread::spawn(move || {
            assert!(core_affinity::set_for_current(core_affinity::CoreId { id: last }));
            this_machine().place(None, Some(true))
        });
        assert_eq!(ranges(&pinned.join().unwrap().cpus()), last.to_string());
    }
}
