//! `tuning/affinity.sh` on machines that are described by files: what it would write, what it writes, and
//! what it refuses.

#[path = "relay/untested.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod untested;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Machine(PathBuf);

impl Machine {
    /// `queues` receive and transmit queues, each with an interrupt of its own; CPUs as given, by siblings.
    fn new(test: &str, cpus: &[&str], queues: usize) -> Machine {
        let machine = Machine(std::env::temp_dir().join(format!("warmfront-affinity-{test}-{}", std::process::id())));
        for (cpu, siblings) in cpus.iter().enumerate() {
            machine.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"), siblings);
        }
        let card = "sys/class/net/eth0";
        machine.write("proc/sys/net/core/rps_sock_flow_entries", "0");
        machine.irq(20, "virtio0-config");
        for queue in 0..queues {
            machine.irq(21 + 2 * queue, &format!("virtio0-input.{queue}"));
            machine.irq(22 + 2 * queue, &format!("virtio0-output.{queue}"));
            machine.write(&format!("{card}/queues/rx-{queue}/rps_cpus"), "0");
            machine.write(&format!("{card}/queues/rx-{queue}/rps_flow_cnt"), "0");
            machine.write(&format!("{card}/queues/tx-{queue}/xps_cpus"), "0");
        }
        machine
    }

    fn irq(&self, number: usize, name: &str) {
        self.write(&format!("sys/class/net/eth0/device/msi_irqs/{number}"), "msix");
        self.write(&format!("proc/irq/{number}/smp_affinity_list"), "0-99");
        fs::create_dir_all(self.0.join(format!("proc/irq/{number}/{name}"))).unwrap();
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tuning/affinity.sh");
        let mut command = Command::new("bash");
        command.arg(script).args(arguments);
        command.env("WARMFRONT_SYS", self.0.join("sys")).env("WARMFRONT_PROC", self.0.join("proc"));
        command.output().unwrap()
    }

    /// The files it would change and their new values, with directories cut off.
    fn would_write(&self, arguments: &[&str]) -> Vec<String> {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.ends_with("# nothing was written; --apply does\n"), "{text}");
        let change = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let path: Vec<&str> = words[0].rsplit('/').take(2).collect();
            format!("{}/{} {}", path[1], path[0], words[3])
        };
        text.lines().filter(|line| !line.starts_with('#')).map(change).collect()
    }

    /// Has the script write, and returns what it said of files that it could not write.
    fn apply(&self, cpus: &str) -> String {
        let output = self.run(&["--apply", "--cpus", cpus, "eth0"]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !said.contains("nothing was written"), "{said}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// What stands in the files that it may write, with directories cut off.
    fn holds(&self) -> Vec<String> {
        let card = "sys/class/net/eth0/queues";
        let mut files: Vec<String> = (20..25).map(|number| format!("proc/irq/{number}/smp_affinity_list")).collect();
        files.extend(["tx-0/xps_cpus", "tx-1/xps_cpus"].map(|file| format!("{card}/{file}")));
        files.push("proc/sys/net/core/rps_sock_flow_entries".into());
        for queue in 0..2 {
            files.extend(["rps_cpus", "rps_flow_cnt"].map(|file| format!("{card}/rx-{queue}/{file}")));
        }
        let held = |file: &String| {
            let path: Vec<&str> = file.rsplit('/').take(2).collect();
            let text = fs::read_to_string(self.0.join(file)).unwrap_or_else(|_| "?".into());
            format!("{}/{} {}", path[1], path[0], text.trim_end())
        };
        files.iter().map(held).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn as_many_queues_as_cores_need_no_spreading() {
    // Two cores of two threads: shards are on 0 and 1.
    let machine = Machine::new("enough", &["0,2", "1,3", "0,2", "1,3"], 2);
    assert_eq!(
        machine.would_write(&["eth0"]),
        [
            "21/smp_affinity_list 0",
            "22/smp_affinity_list 0",
            "23/smp_affinity_list 1",
            "24/smp_affinity_list 1",
            "tx-0/xps_cpus 1",
            "tx-1/xps_cpus 2"
        ]
    );
}

#[test]
fn fewer_queues_are_spread_over_the_shards() {
    let machine = Machine::new("fewer", &["0", "1", "2", "3"], 1);
    assert_eq!(
        machine.would_write(&["--cpus", "1-3", "eth0"]),
        [
            "21/smp_affinity_list 1",
            "22/smp_affinity_list 1",
            "core/rps_sock_flow_entries 32768",
            "rx-0/rps_cpus e",
            "rx-0/rps_flow_cnt 32768"
        ]
    );
}

#[test]
fn masks_of_many_cpus_are_written_in_groups() {
    let cpus: Vec<String> = (0..72).map(|cpu| cpu.to_string()).collect();
    let machine = Machine::new("many", &cpus.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    let lines = machine.would_write(&["--cpus", "0,33-34,71", "eth0"]);
    assert!(lines.contains(&"tx-0/xps_cpus 4,00000001".into()), "{lines:?}");
    assert!(lines.contains(&"tx-1/xps_cpus 80,00000002,00000000".into()), "{lines:?}");
    assert!(lines.contains(&"rx-0/rps_cpus 80,00000006,00000001".into()), "{lines:?}");
}

/// The kernel pads masks to as many digits as it has CPUs, and rounds up how many connections a queue remembers.
#[test]
fn what_is_as_it_would_be_is_left_alone() {
    let many: Vec<String> = (0..40).map(|cpu| cpu.to_string()).collect();
    let machine = Machine::new("padded", &many.iter().map(String::as_str).collect::<Vec<_>>(), 3);
    for queue in 0..3 {
        machine.write(&format!("proc/irq/{}/smp_affinity_list", 21 + 2 * queue), &queue.to_string());
        machine.write(&format!("proc/irq/{}/smp_affinity_list", 22 + 2 * queue), &queue.to_string());
    }
    machine.write("proc/sys/net/core/rps_sock_flow_entries", "32768");
    let card = "sys/class/net/eth0/queues";
    for (queue, senders) in ["00,00000009", "00,00000002", "00,00000004"].into_iter().enumerate() {
        machine.write(&format!("{card}/tx-{queue}/xps_cpus"), senders);
        machine.write(&format!("{card}/rx-{queue}/rps_cpus"), "00,0000000f");
        machine.write(&format!("{card}/rx-{queue}/rps_flow_cnt"), "16384");
    }
    assert_eq!(machine.would_write(&["--cpus", "0-3", "eth0"]), [""; 0]);
    // Enough queues: RPS is off, in as many digits.
    for queue in 0..3 {
        machine.write(&format!("{card}/rx-{queue}/rps_cpus"), "00,00000000");
        machine.write(&format!("{card}/rx-{queue}/rps_flow_cnt"), "0");
    }
    machine.write(&format!("{card}/tx-0/xps_cpus"), "00,00000001");
    assert_eq!(machine.would_write(&["--cpus", "0-2", "eth0"]), [""; 0]);
    machine.write(&format!("{card}/tx-1/xps_cpus"), "01,00000000");
    machine.write("proc/irq/25/smp_affinity_list", "0,2");
    assert_eq!(machine.would_write(&["--cpus", "0-2", "eth0"]), ["25/smp_affinity_list 2", "tx-1/xps_cpus 2"]);
}

#[test]
fn what_is_printed_is_written_once_it_is_asked_for() {
    let machine = Machine::new("apply", &["0", "1", "2"], 2);
    if !rustix::process::geteuid().is_root() {
        let output = machine.run(&["--apply", "eth0"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains("which only root may"), "{said}");
        return untested::say("what affinity.sh writes, as only root may have it write");
    }
    assert_eq!(machine.apply("0-2"), "");
    let spread = [
        "20/smp_affinity_list 0-99",
        "21/smp_affinity_list 0",
        "22/smp_affinity_list 0",
        "23/smp_affinity_list 1",
        "24/smp_affinity_list 1",
        "tx-0/xps_cpus 5",
        "tx-1/xps_cpus 2",
        "core/rps_sock_flow_entries 32768",
        "rx-0/rps_cpus 7",
        "rx-0/rps_flow_cnt 16384",
        "rx-1/rps_cpus 7",
        "rx-1/rps_flow_cnt 16384",
    ];
    assert_eq!(machine.holds(), spread);
    assert_eq!(machine.would_write(&["--cpus", "0-2", "eth0"]), [""; 0], "there is nothing left to write");
    // A file that does not take its value is reported, and the others are written.
    let kept = machine.0.join("sys/class/net/eth0/queues/tx-0/xps_cpus");
    fs::remove_file(&kept).unwrap();
    fs::create_dir(&kept).unwrap();
    let said = machine.apply("1-2");
    assert!(said.contains(&format!("not taken by the kernel: {} stays ?", kept.display())), "{said}");
    let alone = [
        "20/smp_affinity_list 0-99",
        "21/smp_affinity_list 1",
        "22/smp_affinity_list 1",
        "23/smp_affinity_list 2",
        "24/smp_affinity_list 2",
        "tx-0/xps_cpus ?",
        "tx-1/xps_cpus 4",
        "core/rps_sock_flow_entries 32768",
        "rx-0/rps_cpus 0",
        "rx-0/rps_flow_cnt 0",
        "rx-1/rps_cpus 0",
        "rx-1/rps_flow_cnt 0",
    ];
    assert_eq!(machine.holds(), alone);
}

#[test]
fn what_cannot_be_meant_is_refused_in_words() {
    let machine = Machine::new("refused", &["0", "1"], 1);
    for (arguments, words) in [
        (&[][..], "which network card?"),
        (&["eth7"], "there is no interface eth7"),
        (&["--cpus", "0-x", "eth0"], "\"0-x\" is no CPU or range of CPUs"),
        (&["--cpus", "5", "eth0"], "this machine has no CPU 5"),
        (&["--cpus"], "--cpus wants a list"),
        (&["--force", "eth0"], "there is no option --force"),
    ] {
        let output = machine.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(words), "{arguments:?}: {said}");
    }
    let help = machine.run(&["--help"]);
    assert!(help.status.success() && String::from_utf8(help.stdout).unwrap().starts_with("Usage: "));
}
