//! How much memory this process may have, and what of it the bodies of one shard may hold together.

use std::fs;
use std::path::Path;

/// All shards' held bodies together may take one in so many of the bytes that there are.
const BUDGET_SHARE: u64 = 4;

/// `budget_bytes` of one of `shards`, where the configuration leaves it to the machine.
pub fn budget(shards: usize) -> usize {
    let share = bytes() / BUDGET_SHARE / shards.max(1) as u64;
    usize::try_from(share).unwrap_or(usize::MAX)
}

/// The machine's memory, or what this process's cgroup leaves of it.
pub fn bytes() -> u64 {
    let system = rustix::system::sysinfo();
    let machine = system.totalram.saturating_mul(system.mem_unit.into());
    read(Path::new("/proc"), Path::new("/sys/fs/cgroup"), machine)
}

/// `machine`: its memory by a system call. A container may have a `/proc/meminfo` of its own, which says less; a unit
/// with `ProcSubset=pid` has none.
fn read(proc: &Path, cgroups: &Path, machine: u64) -> u64 {
    let told = fs::read_to_string(proc.join("meminfo")).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1 << 10)
    });
    let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| limit(line, cgroups));
    limits.fold(told.unwrap_or(machine), u64::min)
}

/// The least limit along the path of one line of `/proc/self/cgroup`, `number:controllers:path`: of version 2, where
/// no controllers are named, or of version 1's memory controller. Those above bind as well. In a container the path
/// may be another's view; what stands at the root then is the container's own.
fn limit(line: &str, cgroups: &Path) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (root, file) = match controllers {
        "" => (cgroups.to_owned(), "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => (cgroups.join("memory"), "memory.limit_in_bytes"),
        _ => return None,
    };
    let directory = root.join(path.trim_start_matches('/'));
    let ancestors = directory.ancestors().take_while(|ancestor| ancestor.starts_with(&root));
    // "max" is no limit.
    ancestors.filter_map(|ancestor| fs::read_to_string(ancestor.join(file)).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(name: &str, files: &[(&str, &str)]) -> u64 {
        let root = std::env::temp_dir().join(format!("warmfront-memory-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = read(&root.join("proc"), &root.join("cgroup"), 2_000_000);
        let _ = fs::remove_dir_all(&root);
        found
    }

    #[test]
    fn the_least_of_machine_and_cgroups_counts() {
        let machine = ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 10 kB\n");
        let inside = ("proc/self/cgroup", "0::/a/b\n");
        assert_eq!(read_of("none", &[]), 2_000_000, "as a system call says");
        let hidden = [inside, ("cgroup/a/b/memory.max", "max\n"), ("cgroup/a/memory.max", "6000\n")];
        assert_eq!(read_of("hidden", &hidden), 6_000);
        assert_eq!(read_of("machine", &[machine]), 1_024_000);
        let free = [machine, inside, ("cgroup/a/b/memory.max", "max\n")];
        assert_eq!(read_of("free", &free), 1_024_000);
        let above = [machine, inside, ("cgroup/a/b/memory.max", "5000\n"), ("cgroup/a/memory.max", "4000\n")];
        assert_eq!(read_of("above", &above), 4_000);
        // Seen from within a container of its own the path leads nowhere.
        let within = [machine, ("proc/self/cgroup", "0::/\n"), ("cgroup/memory.max", "3000\n")];
        assert_eq!(read_of("within", &within), 3_000);
        let first = [
            machine,
            ("proc/self/cgroup", "8:cpu,cpuacct:/x\n4:memory:/a\n0::/\n"),
            ("cgroup/memory/a/memory.limit_in_bytes", "2000\n"),
            ("cgroup/memory/x/memory.limit_in_bytes", "1000\n"),
            ("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(read_of("first", &first), 2_000);
    }

    #[test]
    fn shards_share_a_quarter() {
        let bytes = bytes();
        assert_eq!(budget(1) as u64, bytes / 4);
        assert_eq!(budget(8) as u64, bytes / 32);
    }
}
