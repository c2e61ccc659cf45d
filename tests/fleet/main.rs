//! The whole front, as a process with its control thread, before engines that fail and come back: who is kept out, for
//! how long, who is let in again and how, and what its clients see of it.

#[path = "../relay/tries.rs"]
mod tries;
#[path = "../relay/untested.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod untested;
#[allow(dead_code, reason = "shared with tests/relay")]
#[path = "../relay/wire.rs"]
mod wire;

mod access;
mod alarms;
mod believing;
mod counting;
mod dashboard;
mod editing;
mod ending;
mod engine;
mod families;
mod front;
mod listing;
mod named;
mod patience;
mod ranks;
mod receipts;
mod reloading;
mod reserved;
mod shadows;
mod starting;
mod stopped;
mod stops;
mod supervised;
mod telling;
mod unread;
mod upgrading;
mod wanting;
mod wedged;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use engine::{Engine, Mood};
use front::Front;
use patience::{DRIVERS, PATIENCE, on_both, until};

/// Probes every 50 ms, an ejection of 3 s, and no slow start unless a test wants one. What is to come within an ejection
/// does so also where the machine stands still for two of these seconds.
const QUICK: &str = "[routing]\npolicy = \"round-robin\"\n[health]\nprobe_interval_ms = 50\neject_ms = 3000\n\
                     eject_ms_max = 4000\nslow_start_ms = 0\n";

/// Engines, all of which answer, and a front that knows it.
fn fleet<const COUNT: usize>(driver: &str, config: &str) -> ([Engine; COUNT], Front) {
    let engines = std::array::from_fn(|_| Engine::start());
    let addresses: [SocketAddr; COUNT] = engines.each_ref().map(|engine| engine.address);
    let front = Front::start(driver, &addresses, config);
    (0..COUNT).for_each(|place| front.until_health(place, "up"));
    (engines, front)
}

/// How many of `count` requests, one after the other, were not answered with 200.
fn failures(front: &Front, count: usize) -> usize {
    let mut client = front.connect();
    (0..count).filter(|_| client.post().status != 200).count()
}

/// `/health` says 200 all the while: what counts is how requests end.
#[test]
fn an_engine_that_fails_requests_is_ejected_tried_and_taken_back() {
    // More is to come within an ejection here than elsewhere.
    let config =
        QUICK.replace("eject_ms = 3000", "eject_ms = 6000").replace("eject_ms_max = 4000", "eject_ms_max = 8000");
    on_both(|driver| {
        let ([failing, good], front) = fleet(driver, &config);
        failing.becomes(Mood::Fails);
        assert_eq!(failures(&front, 40), 3, "{driver}");
        front.until_health(0, "ejected");
        let (before, ejected) = (failing.requests(), Instant::now());
        assert_eq!((failures(&front, 20), failing.requests()), (0, before), "{driver}: it is left alone");
        front.until_health(0, "trial");
        assert!(ejected.elapsed() < Duration::from_secs(16));
        // One request finds that it still fails, and it is out for longer.
        let mut failed = 0;
        until("its trial", || {
            failed += failures(&front, 5);
            failed > 0
        });
        assert_eq!(failed, 1, "{driver}");
        front.until_health(0, "ejected");
        failing.becomes(Mood::Good);
        front.until_health(0, "trial");
        until("its recovery", || {
            assert_eq!(failures(&front, 5), 0, "{driver}");
            front.acts_on(0, "up")
        });
        let before = (failing.requests(), good.requests());
        assert_eq!(failures(&front, 40), 0);
        assert_eq!((failing.requests() - before.0, good.requests() - before.1), (20, 20), "{driver}");
        assert_eq!(front.metric("warmfront_endpoint_ejections_total"), 2.0, "{driver}");
        assert_eq!(front.stop(), Some(0));
    });
}

/// While on trial it has one request at a time, however many come.
#[test]
fn a_trial_is_one_request_at_a_time() {
    on_both(|driver| {
        let ([failing, _good], front) = fleet(driver, QUICK);
        failing.becomes(Mood::Fails);
        failures(&front, 10);
        front.until_health(0, "trial");
        failing.becomes(Mood::Hangs);
        let before = failing.requests();
        failing.most_at_once();
        let mut clients = Vec::new();
        let mut come = |count: usize| {
            clients.extend((0..count).map(|_| front.connect()));
            clients.iter_mut().rev().take(count).for_each(|client| client.ask());
        };
        // Who gets its one request is drawn: a tenth of them would, if it took more than one.
        until("the trial", || {
            come(1);
            failing.requests() > before
        });
        come(100);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!((failing.requests() - before, failing.most_at_once()), (1, 1), "{driver}");
    });
}

/// One refusal in the words of a vLLM that drains; then it is gone, and comes back on the same address.
#[test]
fn a_vllm_that_drains_ends_and_returns_costs_one_request() {
    on_both(|driver| {
        let ([leaving, _good], front) = fleet(driver, QUICK);
        leaving.becomes(Mood::Drains);
        assert_eq!(failures(&front, 30), 1, "{driver}");
        leaving.goes();
        assert_eq!(failures(&front, 30), 0, "{driver}");
        front.until_health(0, "down");
        leaving.becomes(Mood::Good);
        leaving.returns();
        until("its return", || matches!(front.endpoint(0)["health"].as_str(), Some("up" | "trial")));
        let before = leaving.requests();
        until("its share of requests", || {
            assert_eq!(failures(&front, 2), 0, "{driver}");
            leaving.requests() >= before + 10
        });
    });
}

/// SIGTERM without a drain: the listener closes, streams stay open and silent.
#[test]
fn streams_of_a_vllm_that_was_ended_do_not_hang() {
    on_both(|driver| {
        let config = format!("{QUICK}[limits]\ndeserted_timeout_ms = 700\n");
        let ([silent], front) = fleet(driver, &config);
        silent.becomes(Mood::Silent);
        let mut streams: Vec<_> = (0..8).map(|_| front.connect()).collect();
        streams.iter_mut().for_each(|stream| stream.ask());
        let heads: Vec<_> = streams.iter_mut().map(|stream| stream.head()).collect();
        assert_eq!(front.metric("warmfront_endpoint_in_flight"), 8.0);
        silent.goes();
        for (stream, head) in streams.iter_mut().zip(heads) {
            let body = stream.body(&head);
            let text = String::from_utf8(body.data).unwrap();
            assert!(!body.whole && text.starts_with("data: a\n\ndata: {\"error\":"), "{driver}: {text:?}");
        }
        until("the accounts", || front.metric("warmfront_endpoint_in_flight") == 0.0);
        assert_eq!(front.metric("warmfront_accounts_differ_total"), 0.0);
    });
}

/// The same of one that was taken out of the fleet before: it is looked at for as long as it has something.
#[test]
fn streams_of_an_engine_that_was_taken_out_and_ended_do_not_hang() {
    on_both(|driver| {
        let config = format!("{QUICK}[limits]\ndeserted_timeout_ms = 700\n");
        let ([silent, _good], front) = fleet(driver, &config);
        silent.becomes(Mood::Silent);
        // Half of them are the other's.
        let mut streams = Vec::new();
        until("a stream of it", || {
            let mut stream = front.connect();
            stream.ask();
            let head = stream.head();
            if head.fields.iter().any(|(_, value)| value.contains("event-stream")) {
                streams.push((stream, head));
            }
            streams.len() == 4
        });
        assert_eq!(front.asks("DELETE", &format!("/endpoints/{}", silent.address), "").0, 200);
        // While it answers its probes it may take its time.
        std::thread::sleep(Duration::from_millis(3_500));
        assert_eq!(front.metric("warmfront_counted_in_flight"), 4.0, "{driver}");
        silent.goes();
        let gone = Instant::now();
        for (stream, head) in &mut streams {
            let body = stream.body(head);
            let text = String::from_utf8(body.data).unwrap();
            assert!(!body.whole && text.starts_with("data: a\n\ndata: {\"error\":"), "{driver}: {text:?}");
        }
        assert!(gone.elapsed() < Duration::from_secs(15), "{driver}: {:?}", gone.elapsed());
        until("the accounts", || front.metric("warmfront_counted_in_flight") == 0.0);
        assert_eq!(front.metric("warmfront_accounts_differ_total"), 0.0);
    });
}

/// Every engine fails every request: none is left out for long, nor all at once.
#[test]
fn a_fleet_that_fails_is_still_asked() {
    on_both(|driver| {
        let (engines, front) = fleet::<3>(driver, QUICK);
        engines.iter().for_each(|engine| engine.becomes(Mood::Fails));
        let mut client = front.connect();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1_500) {
            assert_eq!(client.post().status, 500, "{driver}: an engine's own answer, not ours");
        }
        engines.iter().for_each(|engine| engine.becomes(Mood::Good));
        until("the fleet's return", || failures(&front, 10) == 0);
        (0..3).for_each(|place| {
            until("an engine's return", || {
                failures(&front, 4);
                front.acts_on(place, "up")
            });
        });
    });
}

/// Who is back has nothing in its cache: it gets a tenth at first.
#[test]
fn who_is_back_starts_slowly() {
    on_both(|driver| {
        // So slowly that it stays a tenth for as long as the test takes.
        let config = QUICK.replace("round-robin", "random").replace("slow_start_ms = 0", "slow_start_ms = 3600000");
        let ([leaving, _good], front) = fleet(driver, &config);
        leaving.goes();
        front.until_health(0, "down");
        leaving.returns();
        front.until_health(0, "up");
        let before = leaving.requests();
        assert_eq!(failures(&front, 400), 0);
        let share = leaving.requests() - before;
        assert!((10..=90).contains(&share), "{driver}: {share} of 400 requests");
    });
}

/// An address without a way to it, one that nobody listens on: no request is lost.
#[test]
fn endpoints_that_cannot_be_reached_cost_no_request() {
    on_both(|driver| {
        let good = Engine::start();
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        // Broadcast: the kernel itself refuses to connect there.
        let nowhere = SocketAddr::from(([255, 255, 255, 255], 80));
        let front = Front::start(driver, &[nowhere, nobody, good.address], QUICK);
        assert_eq!(failures(&front, 100), 0, "{driver}");
        front.until_health(0, "down");
        front.until_health(1, "down");
        assert_eq!((failures(&front, 100), good.requests()), (0, 200), "{driver}");
    });
}
