//! The end of a front behind a balancer: it says that it is not ready some time before it stops accepting.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::engine::{Engine, Mood};
use crate::front::Front;
use crate::{on_both, until};

fn start(driver: &str, engine: &Engine, delay: &str) -> Front {
    let front = Front::start(driver, &[engine.address], &format!("[limits]\ndrain_delay_ms = {delay}\n"));
    until("readiness", || front.asks("GET", "/readyz", "").0 == 200);
    front
}

#[test]
fn who_is_told_to_end_denies_readiness_and_serves_on() {
    on_both(|driver| {
        let engine = Engine::start();
        let mut front = start(driver, &engine, "4000");
        let mut kept = front.connect();
        let told = Instant::now();
        front.terminate();
        front.until_said("not ready any more");
        let health = front.connect().get("/health");
        let said = String::from_utf8(health.body.data).unwrap();
        assert!(health.status == 503 && said.contains("This front is draining"), "{driver}: no engine's fault: {said}");
        assert_eq!(front.asks("GET", "/readyz", ""), (503, "draining\n".to_owned()));
        assert_eq!(front.metric("warmfront_draining"), 1.0, "{driver}");
        assert!(front.asks("GET", "/endpoints", "").1.contains("\"draining\":true"), "{driver}");
        let (old, new) = (kept.post(), front.connect().post());
        // Unless the machine stood still for the whole delay.
        if told.elapsed() < Duration::from_millis(3_500) {
            assert_eq!([(old.status, old.closes), (new.status, new.closes)], [(200, false); 2], "{driver}");
        }
        drop(kept);
        until("its end", || front.first_has_ended());
        assert!(told.elapsed() >= Duration::from_secs(4), "{driver}");
        assert!(front.has_said("draining: no new connections"));
    });
}

#[test]
fn another_signal_ends_the_delay() {
    let engine = Engine::start();
    for signal in [Front::terminate, Front::interrupt] {
        let mut front = start("auto", &engine, "3600000");
        front.terminate();
        front.until_said("not ready any more");
        signal(&front);
        until("its end", || front.first_has_ended());
    }
}

/// An operator who stops or upgrades a front within a set time has to learn how many requests were cut.
#[test]
fn what_a_drain_cuts_is_told() {
    on_both(|driver| {
        for end in [Front::terminate, Front::upgrade] {
            let engine = Engine::start();
            let mut front = Front::start(driver, &[engine.address], "[limits]\ndrain_timeout_ms = 3000\n");
            front.until_health(0, "up");
            engine.becomes(Mood::TicksOn);
            let mut streams: Vec<_> = (0..3).map(|_| front.connect()).collect();
            // A connection whose next request has not come is no cut request.
            let _idle = front.connect();
            streams.iter_mut().for_each(|stream| stream.ask());
            let heads: Vec<_> = streams.iter_mut().map(|stream| stream.head()).collect();
            end(&front);
            front.until_said("streams may finish");
            front.terminate();
            front.until_said("SIGKILL, or Ctrl-C twice, ends at once");
            for (stream, head) in streams.iter_mut().zip(&heads) {
                assert!(!stream.body(head).whole, "{driver}");
            }
            until("its end", || front.first_has_ended());
            front.until_said("WARN drained, and cut what lasted longer than drain_timeout_ms requests=3");
        }
    });
}

/// The signals by which other servers reopen their logs (SIGUSR1) and stop gracefully (SIGQUIT).
#[test]
fn sigusr1_changes_nothing_and_sigquit_drains() {
    let engine = Engine::start();
    let mut front = Front::start("auto", &[engine.address], "");
    front.until_health(0, "up");
    engine.becomes(Mood::TicksOn);
    let mut stream = front.connect();
    stream.ask();
    let head = stream.head();
    front.signal(Signal::USR1);
    front.until_said("SIGUSR1 does nothing here: SIGHUP opens the access log anew");
    assert_eq!(front.asks("GET", "/readyz", "").0, 200);
    front.signal(Signal::QUIT);
    front.until_said("draining: no new connections");
    engine.becomes(Mood::Good);
    assert!(stream.body(&head).whole);
    drop(stream);
    until("its end", || front.first_has_ended());
    assert!(front.has_said("drained"), "{}", front.log());
}
