//! Whether the queues of the network cards interrupt the CPUs that shards run on, as many of them as they could, and
//! whether packets are steered (RPS, RFS, XPS) as `tuning/affinity.sh` would set it. Only cards whose interrupts the
//! kernel tells are looked at; others (loopback, bridges, most containers) are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Finding, shipped};
use crate::shard::placement::{listed, ranges};
use crate::shard::topology::{cards_in_use, names, text};

/// Parts of the names of queues' interrupts, over the drivers of today; names of interrupts for configuration and
/// errors have none of them. `tuning/affinity.sh` goes by the same.
const QUEUE_NAMES: [&str; 6] = ["rx", "tx", "input", "output", "comp", "ntfy"];

/// Connections that RFS remembers, over all queues; `tuning/affinity.sh` writes the same.
const FLOW_ENTRIES: usize = 32_768;

/// One finding for each card that is up; none without pinned shards.
pub(super) fn findings(sys: &Path, proc: &Path, shards: &BTreeSet<usize>) -> Vec<Finding> {
    if shards.is_empty() {
        return Vec::new();
    }
    cards_in_use(sys).filter_map(|(name, path)| card(&name, &path, proc, shards)).collect()
}

fn card(name: &str, card: &Path, proc: &Path, shards: &BTreeSet<usize>) -> Option<Finding> {
    let interrupts: Vec<Interrupt> = queue_interrupts(card, proc).iter().map(|irq| Interrupt::at(irq)).collect();
    let taking: BTreeSet<usize> = interrupts.iter().flat_map(|irq| &irq.cpus).copied().collect();
    if taking.is_empty() {
        return None;
    }
    let queues = card.join("queues");
    let receive = queues_of(&queues, "rx-");
    let spreads = |queue: &PathBuf| text(&queue.join("rps_cpus")).is_some_and(|mask| !masked(&mask).is_empty());
    let differs = set_otherwise(&queues, proc, shards);
    let elsewhere = interrupts.iter().filter(|irq| !irq.cpus.is_subset(shards)).count();
    let how = format!("`{} --cpus {} {name}` shows what to change", shipped("tuning/affinity.sh"), ranges(shards));
    let (on, all) = (ranges(&taking), interrupts.len());
    Some(if receive.len() < shards.len() && !receive.iter().any(spreads) {
        Finding::advice(
            name,
            format!(
                "receive queues: {} for shards on {} CPUs; the packets of all are taken in on CPUs {on}.\n{how}",
                receive.len(),
                shards.len()
            ),
        )
    } else if elsewhere > 0 {
        Finding::advice(
            name,
            format!("{elsewhere} of {all} queue interrupts go to CPUs without a shard ({on}).\n{how}"),
        )
    } else if let Some((some, on)) = crowded(&interrupts, shards.len()) {
        let (on, cpus) = (ranges(&on), ranges(shards));
        Finding::advice(
            name,
            format!("{some} of {all} queue interrupts go to CPUs {on} alone, and shards run on CPUs {cpus}.\n{how}"),
        )
    } else if !differs.is_empty() {
        let (differs, cpus) = (differs.join(", "), ranges(shards));
        Finding::advice(name, format!("not as wanted for shards on CPUs {cpus}: {differs}.\n{how}"))
    } else {
        Finding::good(name, format!("queue interrupts go to the shards' CPUs ({on})"))
    })
}

/// The settings that `tuning/affinity.sh` would change: which CPUs send on a queue (XPS), and which handle what comes
/// on one (RPS, RFS). A setting that is not there, or cannot be read, is skipped.
fn set_otherwise(queues: &Path, proc: &Path, shards: &BTreeSet<usize>) -> Vec<&'static str> {
    let (receive, transmit) = (queues_of(queues, "rx-"), queues_of(queues, "tx-").len());
    let spread = receive.len() < shards.len();
    let (handlers, flows) = match spread {
        // As the kernel rounds it: up to a power of two.
        true => (shards.clone(), FLOW_ENTRIES.div_ceil(receive.len().max(1)).next_power_of_two()),
        false => (BTreeSet::new(), 0),
    };
    let mask = |file: PathBuf, wanted: &BTreeSet<usize>| text(&file).is_some_and(|mask| masked(&mask) != *wanted);
    let count = |file: PathBuf, wanted: usize| text(&file).is_some_and(|count| count.trim().parse() != Ok(wanted));
    let xps = |queue: usize| {
        let senders = shards.iter().copied().skip(queue).step_by(transmit).collect();
        mask(queues.join(format!("tx-{queue}/xps_cpus")), &senders)
    };
    let entries = proc.join("sys/net/core/rps_sock_flow_entries");
    let differs = [
        ("xps_cpus", transmit > 1 && (0..transmit).any(xps)),
        ("rps_sock_flow_entries", spread && count(entries, FLOW_ENTRIES)),
        ("rps_cpus", receive.iter().any(|queue| mask(queue.join("rps_cpus"), &handlers))),
        ("rps_flow_cnt", receive.iter().any(|queue| count(queue.join("rps_flow_cnt"), flows))),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

fn queues_of(queues: &Path, kind: &str) -> Vec<PathBuf> {
    names(queues).iter().filter(|name| name.starts_with(kind)).map(|name| queues.join(name)).collect()
}

/// The CPUs of a mask: hexadecimal, a comma between groups of 32.
fn masked(mask: &str) -> BTreeSet<usize> {
    let digits = mask.chars().rev().filter_map(|digit| digit.to_digit(16)).enumerate();
    let bits = digits.flat_map(|(place, digit)| (0..4).map(move |bit| (4 * place + bit, digit >> bit & 1 == 1)));
    bits.filter(|(_, set)| *set).map(|(cpu, _)| cpu).collect()
}

/// The interrupts of a card's queues, as directories of `/proc/irq`.
fn queue_interrupts(card: &Path, proc: &Path) -> Vec<PathBuf> {
    // Cards of virtual machines hang below their PCI device.
    let listed = ["device/msi_irqs", "device/../msi_irqs"].map(|path| names(&card.join(path)));
    let numbers = listed.into_iter().find(|numbers| !numbers.is_empty()).unwrap_or_default();
    let queue = |irq: &PathBuf| {
        let called = |name: &String| QUEUE_NAMES.iter().any(|part| name.to_ascii_lowercase().contains(part));
        names(irq).iter().any(|name| called(name) && irq.join(name).is_dir())
    };
    numbers.iter().map(|number| proc.join("irq").join(number)).filter(queue).collect()
}

struct Interrupt {
    /// What its name says besides numbers.
    kind: String,
    /// Where it goes: what the hardware made of the mask, or the mask.
    cpus: BTreeSet<usize>,
}

impl Interrupt {
    /// That of a directory of `/proc/irq`.
    fn at(irq: &Path) -> Interrupt {
        let called: String = names(irq).into_iter().filter(|name| irq.join(name).is_dir()).collect();
        let list = |name: &str| text(&irq.join(name)).map(|list| listed(&list)).filter(|cpus| !cpus.is_empty());
        Interrupt {
            kind: called.replace(|digit: char| digit.is_ascii_digit(), ""),
            cpus: list("effective_affinity_list").or_else(|| list("smp_affinity_list")).unwrap_or_default(),
        }
    }
}

/// How many interrupts go to fewer CPUs than those of their kind could, and to which. Receive and transmit queues may
/// have interrupts of a kind each: as by `tuning/affinity.sh`, one does not make up for the other.
fn crowded(interrupts: &[Interrupt], shards: usize) -> Option<(usize, BTreeSet<usize>)> {
    let mut kinds: BTreeMap<&str, (usize, BTreeSet<usize>)> = BTreeMap::new();
    for irq in interrupts.iter().filter(|irq| !irq.cpus.is_empty()) {
        let (count, on) = kinds.entry(&irq.kind).or_default();
        *count += 1;
        on.extend(&irq.cpus);
    }
    let crowded: Vec<_> = kinds.into_values().filter(|(count, on)| on.len() < shards.min(*count)).collect();
    // Of several kinds those on the fewest CPUs: together they may be on all, and each is crowded all the same.
    let (_, fewest) = crowded.iter().min_by_key(|(_, on)| on.len())?;
    Some((crowded.iter().filter(|(_, on)| on == fewest).map(|(count, _)| count).sum(), fewest.clone()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::cli::check::Weight;

    /// `/sys` and `/proc` side by side: a card with these receive queues, and where their interrupts go.
    struct Machine(PathBuf);

    impl Machine {
        fn new(test: &str, interrupts: &[(&str, &str)], rps: &str) -> Machine {
            let machine = Machine(std::env::temp_dir().join(format!("warmfront-irq-{test}-{}", std::process::id())));
            machine.write("sys/class/net/lo/operstate", "unknown");
            machine.write("sys/class/net/eth0/operstate", "up");
            for (place, (name, cpus)) in interrupts.iter().enumerate() {
                machine.write(&format!("sys/class/net/eth0/device/msi_irqs/{}", 40 + place), "msix");
                for list in ["smp_affinity_list", "effective_affinity_list"] {
                    machine.write(&format!("proc/irq/{}/{list}", 40 + place), cpus);
                }
                fs::create_dir_all(machine.0.join(format!("proc/irq/{}/{name}", 40 + place))).unwrap();
                if name.contains("Rx") {
                    machine.write(&format!("sys/class/net/eth0/queues/rx-{place}/rps_cpus"), rps);
                }
            }
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        fn findings(&self, shards: &str) -> Vec<Finding> {
            findings(&self.0.join("sys"), &self.0.join("proc"), &listed(shards))
        }

        /// The files, each name once, that `tuning/affinity.sh` would set otherwise.
        fn would_set(&self, shards: &str) -> Vec<String> {
            for cpu in listed(shards) {
                fs::create_dir_all(self.0.join(format!("sys/devices/system/cpu/cpu{cpu}"))).unwrap();
            }
            let mut command = Command::new("bash");
            command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tuning/affinity.sh")).args(["--cpus", shards, "eth0"]);
            command.env("WARMFRONT_SYS", self.0.join("sys")).env("WARMFRONT_PROC", self.0.join("proc"));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let mut set = Vec::new();
            for line in String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.starts_with('#')) {
                let name = line.split(' ').next().unwrap().rsplit('/').next().unwrap().to_owned();
                if !set.contains(&name) {
                    set.push(name);
                }
            }
            set
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn interrupts_away_from_the_shards_are_told() {
        let machine = Machine::new("away", &[("eth0-TxRx-0", "0"), ("eth0-TxRx-1", "5"), ("eth0-async", "7")], "0");
        let found = machine.findings("0-1");
        assert_eq!(found.len(), 1);
        let words = &found[0].words;
        assert!(found[0].weight == Weight::Advice && found[0].subject == "eth0");
        assert!(words.starts_with("1 of 2 queue interrupts go to CPUs without a shard (0,5)"), "{words}");
        assert!(words.contains("affinity.sh --cpus 0-1 eth0`"), "{words}");
        assert_eq!(machine.findings("0,5")[0].weight, Weight::Good);
        assert!(machine.findings("").is_empty(), "nothing is pinned");
    }

    #[test]
    fn one_queue_for_several_shards_is_told_unless_it_is_spread() {
        let alone = Machine::new("alone", &[("virtio0-Rx", "0")], "00000000,00000000").findings("0-3");
        assert!(alone[0].words.starts_with("receive queues: 1 for shards on 4 CPUs"), "{}", alone[0].words);
        let spread = Machine::new("spread", &[("virtio0-Rx", "0")], "00000000,0000000f").findings("0-3");
        assert_eq!(spread[0].weight, Weight::Good);
    }

    #[test]
    fn interrupts_on_fewer_cpus_than_they_could_are_told_by_kind() {
        let queues = |cpus: [&'static str; 8]| {
            let names: Vec<String> = (0..8).map(|at| format!("eth0-{}-{}", ["Rx", "Tx"][at / 4], at % 4)).collect();
            let interrupts: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(cpus).collect();
            Machine::new("crowded", &interrupts, "0")
        };
        let spread = queues(["0", "1", "2", "3", "0", "1", "2", "3"]);
        assert_eq!((spread.findings("0-3")[0].weight, spread.would_set("0-3")), (Weight::Good, vec![]));
        for (cpus, some, on) in [
            (["1"; 8], 8, "1"),
            (["0", "0", "3", "3", "0", "1", "2", "3"], 4, "0,3"),
            (["0", "0", "0", "0", "1", "1", "1", "1"], 4, "0"),
        ] {
            let machine = queues(cpus);
            let found = machine.findings("0-3");
            let wanted = format!("{some} of 8 queue interrupts go to CPUs {on} alone, and shards run on CPUs 0-3.\n");
            assert!(found[0].weight == Weight::Advice && found[0].words.starts_with(&wanted), "{}", found[0].words);
            assert_eq!(machine.would_set("0-3"), ["smp_affinity_list"], "{cpus:?}");
        }
    }

    /// Of one kind of file after the other, each also where it is as wanted: what is said is what the script would set.
    #[test]
    fn what_the_script_would_set_otherwise_is_told() {
        let queues = |cpus: &str| {
            let cpus: Vec<(String, &str)> =
                cpus.split(' ').enumerate().map(|(queue, cpu)| (format!("eth0-Rx-{queue}"), cpu)).collect();
            let interrupts: Vec<(&str, &str)> = cpus.iter().map(|(name, cpu)| (name.as_str(), *cpu)).collect();
            Machine::new("otherwise", &interrupts, "0")
        };
        // CPUs that the queues interrupt, CPUs of the shards, and files with what stands there: of two transmit queues,
        // and of a card that spreads.
        let enough = ["tx-0/xps_cpus 00,00000001", "tx-1/xps_cpus 00,00000002", "rx-0/rps_flow_cnt 0"];
        let spread = ["rx-0/rps_cpus 2,00000003", "rx-1/rps_cpus 2,00000003", "rx-1/rps_flow_cnt 16384"];
        let remembered = "rps_sock_flow_entries 32768";
        let cases: &[(&str, &str, &[&str], &str)] = &[
            ("0 0", "0-1", &enough, "smp_affinity_list"),
            ("0 1", "0-1", &enough, ""),
            ("0 1", "0-1", &[&enough[..], &["tx-1/xps_cpus 3"]].concat(), "xps_cpus"),
            ("0 1", "0-1", &[&enough[..], &["rx-1/rps_cpus 00,00000002"]].concat(), "rps_cpus"),
            (
                "0 1",
                "0-1",
                &[&enough[..], &["rx-0/rps_flow_cnt 4096", "rps_sock_flow_entries 1"]].concat(),
                "rps_flow_cnt",
            ),
            ("0 0", "0", &["tx-0/xps_cpus 1", "tx-1/xps_cpus 0"], ""),
            ("0 0", "0", &["tx-0/xps_cpus 1", "tx-1/xps_cpus 1"], "xps_cpus"),
            ("0", "0", &["tx-0/xps_cpus 0"], ""),
            ("0 1", "0-1,33", &[&spread[..], &[remembered]].concat(), ""),
            ("0 1", "0-1,33", &[&spread[..], &["rps_sock_flow_entries 0"]].concat(), "rps_sock_flow_entries"),
            ("0 1", "0-1,33", &[&spread[..], &["rx-0/rps_cpus 00,00000003"]].concat(), "rps_cpus"),
            ("0 1", "0-1,33", &[&spread[..], &["rx-1/rps_flow_cnt 32768"]].concat(), "rps_flow_cnt"),
            ("0 1", "0-1,33", &["tx-0/xps_cpus 2,00000001", "tx-1/xps_cpus 2", "rx-1/rps_cpus 2,00000003"], "rps_cpus"),
            (
                "0 1",
                "0-1,33",
                &["tx-0/xps_cpus 3", "tx-1/xps_cpus 0", "rx-0/rps_cpus 1", remembered, "rx-0/rps_flow_cnt 0"],
                "xps_cpus, rps_cpus, rps_flow_cnt",
            ),
        ];
        for (interrupted, cpus, files, told) in cases {
            let machine = queues(interrupted);
            for file in *files {
                let (name, text) = file.split_once(' ').unwrap();
                let under = if name.contains('/') { "sys/class/net/eth0/queues" } else { "proc/sys/net/core" };
                machine.write(&format!("{under}/{name}"), text);
            }
            let found = machine.findings(cpus);
            let wanted = format!("not as wanted for shards on CPUs {cpus}: {told}.\n");
            match *told {
                "" => assert_eq!(found[0].weight, Weight::Good, "{files:?}: {}", found[0].words),
                "smp_affinity_list" => assert!(found[0].words.starts_with("2 of 2 "), "{}", found[0].words),
                _ => assert!(found[0].words.starts_with(&wanted), "{files:?}: {}", found[0].words),
            }
            assert_eq!(machine.would_set(cpus).join(", "), *told, "{files:?}");
        }
    }

    #[test]
    fn cards_without_interrupts_are_passed_over() {
        assert!(Machine::new("none", &[], "0").findings("0").is_empty());
    }
}
