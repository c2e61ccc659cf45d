//! Uploads that take too long, or too much.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::client::{Client, post};
use crate::engine::{Engine, LATE};
use crate::front::{Front, alone, figure, shared};
use crate::on_both_drivers;

on_both_drivers!(
    a_dribbling_upload_ends_at_its_deadline,
    time_in_which_the_front_holds_back_does_not_count,
    half_sent_bodies_stay_within_their_budget,
    what_was_filled_once_is_not_kept_by_others,
);

fn a_dribbling_upload_ends_at_its_deadline(driver: &str) {
    let _room = shared();
    let engine = Engine::start();
    // It is never too slow, and never stands still; and it takes so long that who looks late still finds it on its way.
    let limits = "upload_timeout_ms = 3000\nupload_bytes_per_second_min = 1\nupload_grace_ms = 2500";
    let front = Front::start(driver, engine.address, limits);
    for path in ["/v1/files", "/v1/chat/completions"] {
        let begun = Instant::now();
        let mut client = front.connect();
        client.send(format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{{"));
        let streams = path == "/v1/files";
        if streams {
            front.until("the upload is on its way", |front| front.in_flight() == 1);
        }
        while client.is_silent(Duration::from_millis(20)) {
            client.send(" ");
            assert!(begun.elapsed() < Duration::from_secs(10), "{path}: it goes on");
        }
        assert!(begun.elapsed() >= Duration::from_millis(2_950), "{path}: ended after {:?}", begun.elapsed());
        front.until("its engine is rid of it", |front| front.in_flight() == 0);
        assert!(client.ends(), "{path}: the reply was destroyed");
    }
    assert_eq!(front.metric("warmfront_refused_total{cause=\"client_timeout\"}"), 2);
    assert_eq!(engine.log.requests.load(Ordering::Relaxed), 0);
}

fn time_in_which_the_front_holds_back_does_not_count(driver: &str) {
    let _room = shared();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, "upload_timeout_ms = 2500");
    // Its engine begins to read after 4 s, and it is more than the kernel takes for that. The rest of the upload is
    // short, also where somebody stands still in it.
    let mut client = front.connect();
    let begun = Instant::now();
    let reply = client.ask(post("/v1/late", &"x".repeat(24 << 20)));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(begun.elapsed() > LATE);
}

/// What was sent of a body of 1 MiB that tells neither model nor prompt.
fn unfinished(front: &Front, len: usize) -> Client {
    let mut client = front.connect();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 1 << 20);
    client.send(head + r#"{"metadata":""# + &"x".repeat(len));
    client
}

const BUDGET: usize = 8 << 20;
/// A shard keeps eight buffers at hand, here of up to 1 MiB; beside them are a few pages.
const SPARE: usize = (8 << 20) + (2 << 20);

fn half_sent_bodies_stay_within_their_budget(driver: &str) {
    let _room = alone();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, &format!("budget_bytes = {BUDGET}"));
    drop(unfinished(&front, 1 << 19));
    let memory = front.resident();
    let mut clients: Vec<Client> = (0..60).map(|_| unfinished(&front, 1 << 19)).collect();
    let refused = "warmfront_refused_total{cause=\"over_budget\"}";
    front.until("those beyond the budget are refused", |front| front.metric(refused) >= 40);
    let held = front.metric("warmfront_held_bytes") as usize;
    let grown = front.resident().saturating_sub(memory);
    figure(
        "memory of 60 half bodies of 1 MiB, budget of 8 MiB",
        driver,
        format_args!("{:.1} MiB", grown as f64 / f64::from(1 << 20)),
    );
    assert!(held <= BUDGET + (1 << 20) && held > BUDGET / 2, "{held} bytes are held");
    assert!(grown <= BUDGET + SPARE, "{grown} bytes more");
    // Which of them that are depends on whose bytes came first.
    let refused =
        clients.iter_mut().rev().find_map(|client| (!client.is_silent(Duration::from_millis(10))).then_some(client));
    let reply = refused.unwrap().reply();
    assert_eq!((reply.status, reply.field("retry-after")), (503, Some("1")));
    // Nobody else is in the way of them.
    drop(clients);
    front.until("all is given back", |front| front.metric("warmfront_held_bytes") == 0);
    assert_eq!(front.ask(post("/v1/chat/completions", r#"{"model":"m","messages":[]}"#)), 200);
}

/// Buffers that full bodies leave behind go to the next ones, which may hold little in them for long.
fn what_was_filled_once_is_not_kept_by_others(driver: &str) {
    let _room = alone();
    let engine = Engine::start();
    // Who sends the rest never is not sent away meanwhile, however long all of it takes.
    let limits = format!("budget_bytes = {BUDGET}\nbody_stall_timeout_ms = 120000");
    let front = Front::start(driver, engine.address, &limits);
    drop(unfinished(&front, 1 << 19));
    let memory = front.resident();
    let mut idlers: Vec<Client> = Vec::new();
    for round in 1..=10 {
        let full: Vec<Client> = (0..4).map(|_| unfinished(&front, 1_000_000)).collect();
        front.until("they are full", |front| front.metric("warmfront_client_bytes_in_total") >= round * 4_000_000);
        drop(full);
        front.until("they are gone", |front| front.metric("warmfront_client_connections") as usize == idlers.len());
        idlers.extend((0..4).map(|_| unfinished(&front, 1_000)));
        front.until("the others are there", |front| {
            front.metric("warmfront_client_connections") as usize == idlers.len()
        });
    }
    assert_eq!(front.metric("warmfront_refused_total{cause=\"over_budget\"}"), 0);
    let grown = front.resident().saturating_sub(memory);
    figure(
        "memory of 40 bodies of 1 KB behind bodies of 1 MB",
        driver,
        format_args!("{:.1} MiB", grown as f64 / f64::from(1 << 20)),
    );
    assert!(grown <= BUDGET + SPARE, "{grown} bytes more");
}
