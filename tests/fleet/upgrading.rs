//! Another process in the place of the one that serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::engine::{EVENTS, Engine, Mood};
use crate::front::Front;
use crate::{DRIVERS, until};

const STREAMS: usize = 40;

fn config(shards: usize) -> String {
    format!(
        "[serve]\nshards = {shards}\npin = false\n[routing]\npolicy = \"round-robin\"\n[health]\nprobe_interval_ms = 50\n"
    )
}

/// Five in a row, with more and with fewer shards, under a load of short requests and of streams: no request fails, no
/// connection is refused, no stream is cut.
#[test]
fn upgrades_under_load_cost_nothing() {
    for driver in DRIVERS {
        let (short, ticking) = (Engine::start(), Engine::start());
        ticking.becomes(Mood::Ticks);
        let mut front = Front::start(driver, &[short.address, ticking.address], &config(2));
        (0..2).for_each(|place| front.until_health(place, "up"));
        let (stop, whole, served) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            // Round-robin gives each client half of both; either kind of reply is checked whole.
            for _ in 0..STREAMS {
                scope.spawn(|| {
                    let mut client = front.connect();
                    while !stop.load(Ordering::Relaxed) {
                        let reply = client.post();
                        assert!(reply.status == 200 && reply.body.whole, "{}", reply.status);
                        match reply.body.data.as_slice() {
                            b"{}" => served.fetch_add(1, Ordering::Relaxed),
                            events => {
                                assert_eq!(events, b"data: a\n\n".repeat(EVENTS));
                                whole.fetch_add(1, Ordering::Relaxed)
                            }
                        };
                        if reply.closes {
                            client = front.connect();
                        }
                    }
                });
            }
            for _ in 0..4 {
                scope.spawn(|| {
                    // A connection for each request: one is always just being made.
                    while !stop.load(Ordering::Relaxed) {
                        let reply = front.connect().get("/v1/models");
                        assert_eq!(reply.status, 404);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for shards in [1, 4, 2, 3, 1] {
                front.write(&config(shards));
                let before = whole.load(Ordering::Relaxed);
                front.upgrade();
                until("streams behind it", || whole.load(Ordering::Relaxed) >= before + STREAMS / 4);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let (served, whole) = (served.load(Ordering::Relaxed), whole.load(Ordering::Relaxed));
        eprintln!("{driver}: {served} short replies and {whole} streams over 5 upgrades, none failed");
        until("the first process's end", || front.first_has_ended());
        let latest = front.connect().get("/v1/models").status;
        assert_eq!(latest, 404);
    }
}

/// A program that does not come to serve changes nothing.
#[test]
fn a_failed_upgrade_leaves_the_one_that_serves() {
    let engine = Arc::new(Engine::start());
    let front = Front::start("auto", &[engine.address], &config(1));
    front.until_health(0, "up");
    front.write("[limits]\nno_such_key = 1\n");
    front.try_upgrade();
    front.until_said("no process took this one's place");
    (0..10).for_each(|_| assert_eq!(front.connect().post().status, 200));
    std::thread::sleep(Duration::from_millis(50));
    front.write(&config(1));
    front.upgrade();
    (0..10).for_each(|_| assert_eq!(front.connect().post().status, 200));
}
