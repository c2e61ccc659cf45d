//! Whether the queues of the network cards interrupt the CPUs that shards run on. Said only of cards whose
//! interrupts the kernel tells; others (loopback, bridges, most containers) are passed over.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Finding, shipped};
use crate::shard::placement::{listed, ranges};
use crate::shard::topology::{cards_in_use, names, text};

/// What the names of a queue's interrupts have in common, over the drivers of today; those for configuration and
/// errors have none of it. `tuning/affinity.sh` goes by the same.
const QUEUE_NAMES: [&str; 6] = ["rx", "tx", "input", "output", "comp", "ntfy"];

/// One finding for each card that is up; none without pinned shards.
pub(super) fn findings(sys: &Path, proc: &Path, shards: &BTreeSet<usize>) -> Vec<Finding> {
    if shards.is_empty() {
        return Vec::new();
    }
    cards_in_use(sys).filter_map(|(name, path)| card(&name, &path, proc, shards)).collect()
}

fn card(name: &str, card: &Path, proc: &Path, shards: &BTreeSet<usize>) -> Option<Finding> {
    let interrupts: Vec<BTreeSet<usize>> = queue_interrupts(card, proc).iter().map(|irq| cpus_of(irq)).collect();
    let taking: BTreeSet<usize> = interrupts.iter().flatten().copied().collect();
    if taking.is_empty() {
        return None;
    }
    let mut receive = names(&card.join("queues"));
    receive.retain(|queue| queue.starts_with("rx-"));
    // A mask of zeros, in groups, is "off".
    let spreads = |queue: &String| {
        let mask = text(&card.join("queues").join(queue).join("rps_cpus"));
        mask.is_some_and(|mask| !mask.trim().trim_matches(['0', ',']).is_empty())
    };
    let elsewhere = interrupts.iter().filter(|cpus| !cpus.is_subset(shards)).count();
    let how = format!("`{} --cpus {} {name}` shows what to change", shipped("tuning/affinity.sh"), ranges(shards));
    let on = ranges(&taking);
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
        let all = interrupts.len();
        Finding::advice(
            name,
            format!("{elsewhere} of {all} queue interrupts go to CPUs without a shard ({on}).\n{how}"),
        )
    } else {
        Finding::good(name, format!("queue interrupts go to the shards' CPUs ({on})"))
    })
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

/// Where an interrupt goes: what the hardware made of the mask, or the mask.
fn cpus_of(irq: &Path) -> BTreeSet<usize> {
    let list = |name: &str| text(&irq.join(name)).map(|list| listed(&list)).filter(|cpus| !cpus.is_empty());
    list("effective_affinity_list").or_else(|| list("smp_affinity_list")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

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
                machine.write(&format!("proc/irq/{}/effective_affinity_list", 40 + place), cpus);
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
    fn cards_without_interrupts_are_passed_over() {
        assert!(Machine::new("none", &[], "0").findings("0").is_empty());
    }
}
