//! A front that runs out of descriptors stops accepting, goes on serving, and recovers by itself.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{Client, get};
use crate::engine::Engine;
use crate::front::{Front, figure, shared};
use crate::on_both_drivers;

on_both_drivers!(
    a_crowd_beyond_the_descriptors_waits_and_spoils_nothing,
    who_waits_for_a_descriptor_as_a_drain_begins_is_answered,
);

const DESCRIPTORS: u32 = 64;
const CROWD: usize = 200;

fn is_up(front: &Front, engine: &Engine) -> bool {
    front.metric(&format!("warmfront_endpoint_health{{endpoint=\"{}\",state=\"up\"}}", engine.address)) == 1
}

fn a_crowd_beyond_the_descriptors_waits_and_spoils_nothing(driver: &str) {
    let _room = shared();
    let engine = Engine::start();
    let front = Front::with_descriptors(driver, engine.address, "", Some(DESCRIPTORS));
    let before = (front.descriptors(), front.accepted());
    let mut crowd: Vec<Client> = (0..CROWD).map(|_| front.connect()).collect();
    front.until("accepting stops", |front| front.metric("warmfront_accept_stalls_total") > 0);
    front.until("words on that", |front| front.has_said("room to watch clients"));
    let accepted = front.accepted() - before.1;
    figure("clients accepted with 64 descriptors", driver, accepted);
    assert!((8..50).contains(&accepted), "{accepted} of {CROWD} clients with {DESCRIPTORS} descriptors");

    // Who spins takes all of a second; who waits takes 30 ms of it in a debug build, and three times as much beside
    // others on the same cores. Of three the best: what else this machine does may spoil one.
    let mut spent = f64::MAX;
    for _ in 0..3 {
        let (cpu, begun) = (front.cpu(), Instant::now());
        std::thread::sleep(Duration::from_secs(1));
        spent = spent.min((front.cpu() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64());
        if spent < 0.25 {
            break;
        }
    }
    figure("CPU in a second without descriptors", driver, format_args!("{:.1} ms", spent * 1e3));
    assert!(spent < 0.25, "{spent:.2} s of CPU in a second of waiting");

    // What was left to them serves those that are in, one after the other,
    let mut crowd_rest = crowd.split_off(accepted);
    for client in &mut crowd {
        assert_eq!(client.ask(get("/v1/quick")).status, 200);
    }
    // and all at once as far as it goes; the others are told so, and nobody takes it for the engine's fault.
    crowd.iter_mut().for_each(|client| client.send(get("/v1/stream")));
    let heads: Vec<String> = crowd.iter_mut().map(Client::head).collect();
    let served = heads.iter().filter(|head| head.starts_with("HTTP/1.1 200")).count();
    let refused = heads.iter().filter(|head| head.starts_with("HTTP/1.1 503") && head.contains("retry-after: 1"));
    let refused = refused.count();
    figure("of them served at once", driver, served);
    // Some ten descriptors are for engines; control's own calls, which wait for an engine that is late, may have a few
    // of them.
    assert!(served >= 5 && served + refused == accepted, "{served} served and {refused} refused of {accepted}");
    assert_eq!(front.metric("warmfront_connects_wanting_total") as usize, refused);
    // Some probes have come and gone.
    std::thread::sleep(Duration::from_millis(700));
    drop(crowd.split_off(1));
    front.until("their descriptors are free", |front| front.in_flight() <= 1);
    assert_eq!(crowd_rest[0].ask(get("/v1/quick")).status, 200);
    assert_eq!(front.metric("warmfront_connect_failures_total"), 0);
    assert!(is_up(&front, &engine), "the engine is blamed");

    drop((crowd, crowd_rest));
    front.until("no request is in flight", |front| front.in_flight() == 0);
    front.until("descriptors come back", |front| front.descriptors() <= before.0 + 2);
    assert_eq!(front.ask(get("/v1/quick")), 200);
}

/// He has asked, and who idles makes room, also who was answered a moment ago.
fn who_waits_for_a_descriptor_as_a_drain_begins_is_answered(driver: &str) {
    let _room = shared();
    let engine = Engine::start();
    let front = Front::with_descriptors(driver, engine.address, "", Some(DESCRIPTORS));
    let (before, mut idle) = (front.accepted(), Vec::new());
    while front.metric("warmfront_accept_stalls_total") == 0 {
        idle.push(front.connect());
    }
    let mut waiting = idle.split_off(front.accepted() - before);
    waiting.extend((waiting.len()..8).map(|_| front.connect()));
    assert!(idle.len() >= 8, "{} have a place", idle.len());
    idle.iter_mut().for_each(|client| assert_eq!(client.ask(get("/v1/quick")).status, 200));
    waiting.iter_mut().for_each(|client| client.send(get("/v1/quick")));
    front.signal(Signal::TERM);
    waiting.iter_mut().for_each(|client| assert_eq!(client.reply().status, 200));
}
