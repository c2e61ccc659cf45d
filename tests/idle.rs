//! A front without work costs nothing: its shards sleep, and wake once a second to show that they live.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const WATCHED: Duration = Duration::from_secs(6);
/// Most wakes of a shard per second.
const WAKES_MAX: f64 = 1.5;

struct Front(Child);

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn idle_shards_on_epoll_wake_once_a_second() {
    wakes_once_a_second("epoll");
}

/// The driver is io_uring, if the machine allows it.
#[test]
fn idle_shards_on_the_driver_of_this_machine_wake_once_a_second() {
    wakes_once_a_second("auto");
}

fn ready(driver: &str) -> Front {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "2"]);
    command.args(["--driver", driver]);
    // No engine listens there: control goes on asking, and publishes nothing new.
    command.args(["--upstream", "http://127.0.0.1:9"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut front = Front(child);
    let mut log = BufReader::new(front.0.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("ready")), "it does not get ready");
    std::thread::spawn(move || log.for_each(drop));
    front
}

fn wakes_once_a_second(driver: &str) {
    let front = ready(driver);
    let began = Instant::now();
    let before = wakes(front.0.id());
    sleep(WATCHED);
    let after = wakes(front.0.id());
    // It may have been longer, if the machine did not let this thread run.
    let watched = began.elapsed();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["shard-0", "shard-1"]);
    for (shard, before) in before {
        let rate = (after[&shard] - before) as f64 / watched.as_secs_f64();
        assert!((0.5..=WAKES_MAX).contains(&rate), "{shard} on {driver} wakes {rate:.1} times a second");
    }
}

/// How often each shard's thread has gone to sleep by itself.
fn wakes(process: u32) -> BTreeMap<String, u64> {
    let mut wakes = BTreeMap::new();
    for thread in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let thread = thread.unwrap().path();
        // Other threads come and go, and have no name once they are gone.
        let name = fs::read_to_string(thread.join("comm")).unwrap_or_default().trim().to_owned();
        if name.starts_with("shard-") {
            let status = fs::read_to_string(thread.join("status")).unwrap();
            let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            wakes.insert(name, switches.trim().parse().unwrap());
        }
    }
    wakes
}
