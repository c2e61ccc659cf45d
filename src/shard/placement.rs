//! Which CPU each shard runs on: a pure function of what the machine looks like ([`super::topology`] reads that).
//!
//! **Physical cores first.** Two hardware threads of one core share its execution units and nearest caches, so a
//! second shard there adds a fraction of a core. `auto` therefore counts physical cores, and leaves the siblings
//! to interrupts, the control thread and whatever else the machine runs; a number beyond that uses them.
//!
//! **Nodes are filled one after the other**, the network card's first. A relay is not bound by memory bandwidth,
//! which spreading would win; what its shards share (in-flight counters, the snapshot, the card's rings) is what a
//! second node makes dearer. Siblings still come last: a whole core on the far node is
//! worth more than half of one here.
//!
//! **A quota counts.** A cgroup that may use two CPUs' worth of time is stopped, all threads at once, when it has used
//! it up, for up to 100 ms: more shards than that serve nobody better. Parts are rounded down, for the control thread.
//! A process with a quota shares the machine, mostly with others that have one: pinned, all would take the same first
//! CPUs, whatever else is idle. So nothing is pinned there unless asked for.

use std::collections::BTreeSet;
use std::fmt;

/// A CPU as the kernel counts them (a hardware thread), online and allowed to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: usize,
    /// Its physical core, by the lowest number among the CPUs of that core.
    pub core: usize,
    /// Its NUMA node.
    pub node: usize,
}

/// What shards are placed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The CPUs that this process may run on; none: that cannot be told.
    pub cpus: Vec<Cpu>,
    /// How many CPUs' worth of time the cgroup has, where that is fewer than `cpus`.
    pub quota: Option<usize>,
    /// The node that the network cards are attached to.
    pub near: Option<usize>,
}

impl Machine {
    /// How many physical cores there are.
    pub fn physical(&self) -> usize {
        self.cpus.iter().map(|cpu| cpu.core).collect::<BTreeSet<_>>().len()
    }

    /// How many shards `auto` is.
    pub fn auto(&self) -> usize {
        self.physical().min(self.quota.unwrap_or(usize::MAX)).max(1)
    }

    /// Places `asked` shards, or as many as `auto` is; pinned if that is asked for,
    /// or nothing is and there is no quota.
    pub fn place(self, asked: Option<usize>, pin: Option<bool>) -> Placement {
        let shards = asked.unwrap_or_else(|| self.auto());
        let order = if pin.unwrap_or(self.quota.is_none()) { self.order() } else { Vec::new() };
        Placement { shards, cpus: order.iter().copied().cycle().take(shards).collect(), machine: self }
    }

    /// The CPUs in the order in which shards take them.
    fn order(&self) -> Vec<usize> {
        let mut cpus = self.cpus.clone();
        cpus.sort_by_key(|cpu| (Some(cpu.node) != self.near, cpu.node, cpu.core, cpu.id));
        let mut begun = BTreeSet::new();
        let (first, siblings): (Vec<Cpu>, Vec<Cpu>) = cpus.into_iter().partition(|cpu| begun.insert(cpu.core));
        first.into_iter().chain(siblings).map(|cpu| cpu.id).collect()
    }
}

/// The shards of this process and their CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    shards: usize,
    /// By shard; empty when none is pinned.
    cpus: Vec<usize>,
    machine: Machine,
}

impl Placement {
    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The CPU of a shard, if it is to be pinned to one.
    pub fn cpu(&self, shard: usize) -> Option<usize> {
        self.cpus.get(shard).copied()
    }

    /// The CPUs that have shards.
    pub fn cpus(&self) -> BTreeSet<usize> {
        self.cpus.iter().copied().collect()
    }

    /// What it was made for.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Placement { shards, machine, .. } = self;
        let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        match self.cpus.is_empty() {
            true => write!(out, "{}, not pinned", counted(*shards, "shard"))?,
            false => write!(out, "{} on CPU {}", counted(*shards, "shard"), ranges(&self.cpus()))?,
        }
        write!(
            out,
            "; {}, {}",
            counted(machine.cpus.len(), "usable CPU"),
            counted(machine.physical(), "physical core")
        )?;
        let nodes: BTreeSet<usize> = machine.cpus.iter().map(|cpu| cpu.node).collect();
        if nodes.len() > 1 {
            write!(out, " in {} NUMA nodes", nodes.len())?;
        }
        match machine.quota {
            Some(quota) => write!(out, ", time of {quota} by the cgroup's quota"),
            None => Ok(()),
        }
    }
}

/// CPUs as the kernel lists them: `0-3,8`.
pub fn ranges(cpus: &BTreeSet<usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let text = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Reads `0-3,8`; what is no number is left out.
pub fn listed(text: &str) -> BTreeSet<usize> {
    let run = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(run).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `id:core:node`, one CPU behind the other.
    fn machine(cpus: &str, quota: Option<usize>, near: Option<usize>) -> Machine {
        let cpu = |text: &str| {
            let parts: Vec<usize> = text.split(':').map(|part| part.parse().unwrap()).collect();
            Cpu { id: parts[0], core: parts[1], node: parts[2] }
        };
        Machine { cpus: cpus.split_whitespace().map(cpu).collect(), quota, near }
    }

    const SMT: &str = "0:0:0 1:1:0 2:2:0 3:3:0 4:0:0 5:1:0 6:2:0 7:3:0";
    const NEIGHBOURS: &str = "0:0:0 1:0:0 2:2:0 3:2:0";
    const TWO_NODES: &str = "0:0:0 1:1:1 2:2:0 3:3:1 4:0:0 5:1:1 6:2:0 7:3:1";

    #[test]
    fn shards_take_cores_then_siblings_node_by_node() {
        let table: &[(&str, Option<usize>, &[usize])] = &[
            // One socket, siblings far apart or side by side.
            (SMT, None, &[0, 1, 2, 3, 4, 5, 6, 7]),
            (NEIGHBOURS, None, &[0, 2, 1, 3]),
            // Two nodes with interleaved numbers; the card on either.
            (TWO_NODES, None, &[0, 2, 1, 3, 4, 6, 5, 7]),
            (TWO_NODES, Some(1), &[1, 3, 0, 2, 5, 7, 4, 6]),
            // A mask with holes: a core of which only the sibling is left counts as a core.
            ("5:1:0 2:2:0 6:2:0 7:3:0", None, &[5, 2, 7, 6]),
            // A node without a single CPU of the mask.
            ("1:1:1 3:3:1", Some(0), &[1, 3]),
        ];
        for (cpus, near, order) in table {
            let placement = machine(cpus, None, *near).place(Some(order.len()), None);
            assert_eq!(placement.cpus, *order, "{cpus}");
        }
    }

    #[test]
    fn auto_counts_physical_cores_within_the_quota() {
        for (cpus, quota, shards) in [
            (SMT, None, 4),
            (SMT, Some(2), 2),
            (SMT, Some(6), 4),
            (NEIGHBOURS, None, 2),
            (TWO_NODES, Some(1), 1),
            ("7:3:0", None, 1),
            ("", None, 1),
        ] {
            assert_eq!(machine(cpus, quota, None).place(None, None).shards(), shards, "{cpus} {quota:?}");
        }
    }

    #[test]
    fn a_number_wins_and_more_shards_than_cpus_go_round() {
        let placement = machine(NEIGHBOURS, Some(1), None).place(Some(6), Some(true));
        assert_eq!(placement.cpus, [0, 2, 1, 3, 0, 2]);
        assert_eq!((placement.cpu(5), placement.cpu(6)), (Some(2), None));
        let loose = machine(NEIGHBOURS, None, None).place(Some(3), Some(false));
        assert_eq!((loose.shards(), loose.cpu(0)), (3, None));
        assert_eq!(machine("", None, None).place(Some(2), None).cpu(0), None);
        // Several with a quota would all take the first ones.
        assert_eq!(machine(SMT, Some(2), None).place(None, None).cpu(0), None);
    }

    #[test]
    fn it_is_said_in_words() {
        for (placement, words) in [
            (machine(SMT, None, None).place(None, None), "4 shards on CPU 0-3; 8 usable CPUs, 4 physical cores"),
            (
                machine(TWO_NODES, Some(2), None).place(None, Some(true)),
                "2 shards on CPU 0,2; 8 usable CPUs, 4 physical cores in 2 NUMA nodes, time of 2 by the cgroup's quota",
            ),
            (
                machine(SMT, Some(2), None).place(None, None),
                "2 shards, not pinned; 8 usable CPUs, 4 physical cores, time of 2 by the cgroup's quota",
            ),
            (
                machine("0:0:0", None, None).place(None, Some(false)),
                "1 shard, not pinned; 1 usable CPU, 1 physical core",
            ),
        ] {
            assert_eq!(placement.to_string(), words);
        }
    }

    #[test]
    fn lists_are_read_and_written() {
        for (text, cpus) in [("", vec![]), ("0", vec![0]), ("0-2,8\n", vec![0, 1, 2, 8]), ("x,3", vec![3])] {
            assert_eq!(listed(text).into_iter().collect::<Vec<_>>(), cpus, "{text}");
        }
        assert_eq!(ranges(&listed("0,1,2,5,7-8")), "0-2,5,7-8");
    }
}
