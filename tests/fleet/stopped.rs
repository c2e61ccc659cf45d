//! A process that stood still gives up no client or engine that was in time.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::engine::{Engine, Mood};
use crate::front::Front;
use crate::tries::in_one_of;
use crate::{DRIVERS, until};

/// More connections than epoll tells at once.
const CLIENTS: usize = 600;
const LIMITS: &str = "[routing]\npolicy = \"round-robin\"\n[limits]\nhead_timeout_ms = 2000\n";
const STOPPED: Duration = Duration::from_secs(3);

/// Stopped by a signal, as by a debugger, a cgroup's freezer, or the pause of a whole machine.
#[test]
fn whose_head_came_while_the_process_stood_still_is_served() {
    for driver in DRIVERS {
        let engine = Engine::start();
        let front = Front::start(driver, &[engine.address], LIMITS);
        front.until_health(0, "up");
        let process = Pid::from_raw(front.process().cast_signed()).unwrap();
        let served = || {
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| front.connect()).collect();
            clients.iter_mut().for_each(|client| client.send("GET /v1/a HTTP/1.1\r\nhost:"));
            // By now all of them are read, and their deadlines run.
            assert_eq!(front.connect().get("/v1/a").status, 200);
            kill_process(process, Signal::STOP).unwrap();
            clients.iter_mut().for_each(|client| client.send(" x\r\n\r\n"));
            std::thread::sleep(STOPPED);
            kill_process(process, Signal::CONT).unwrap();
            clients.iter_mut().filter_map(|client| (client.reply().status == 200).then_some(())).count()
        };
        // If the machine stands still before the stop, a head may really be too late; but hardly in each of three
        // tries.
        in_one_of(3, format_args!("{driver}, heads in time"), CLIENTS, served);
        until("how late control was", || front.metric("warmfront_control_late_seconds") >= 2.0);
    }
}

/// Nothing else would tell of it: no deadline passed, and control did not look meanwhile.
#[test]
fn that_the_process_stood_still_is_said_once_and_no_shard_is_blamed() {
    let engine = Engine::start();
    let front = Front::start("auto", &[engine.address], "[serve]\nshards = 2\n");
    front.until_health(0, "up");
    // From here on each shard turns.
    front.until_said("ready shards=2");
    let process = Pid::from_raw(front.process().cast_signed()).unwrap();
    let slept = || front.log().matches("a shard does not wake").count();
    let before = slept();
    kill_process(process, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    kill_process(process, Signal::CONT).unwrap();
    front.until_said("the whole process stood still, and all requests with it");
    assert!(front.metric("warmfront_standstills_total") >= 2.0);
    assert_eq!(slept(), before, "for the same pause");
    assert_eq!(front.log().matches("stood still, and all").count(), 1);
}

/// A shard without clients ends before one that drains, and turns no more.
#[test]
fn that_the_process_stood_still_is_said_of_the_shards_that_are_left() {
    let engine = Engine::start();
    let front = Front::start("auto", &[engine.address], "[serve]\nshards = 2\n");
    front.until_health(0, "up");
    engine.becomes(Mood::TicksOn);
    let mut stream = front.connect();
    stream.ask();
    stream.head();
    front.terminate();
    front.until_said("draining: no new connections");
    std::thread::sleep(Duration::from_secs(1));
    let process = Pid::from_raw(front.process().cast_signed()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    kill_process(process, Signal::CONT).unwrap();
    front.until_said("stood still, and");
    assert!(front.has_said("the whole process stood still"), "{}", front.log());
}
