//! What broke in other routers and is not shown elsewhere; `tests/incidents.md` has them all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use warmfront::counters::stats::{Count, Gauge};
use warmfront::limits::Limits;
use warmfront::policy::Policy;

use crate::client::{chat, get, post};
use crate::engine::{Engine, HELLO, gate};
use crate::front::Front;

/// A burst of a thousand at a time: all are served, and spread.
#[test]
fn a_thousand_at_once_are_all_served() {
    // No engine answers before all requests have come: one that the machine stops for a while would rightly get fewer
    // than the others.
    let (open, wait) = gate();
    let wait = Arc::new(wait);
    let engines = [(); 4].map(|()| {
        let wait = Arc::clone(&wait);
        Engine::gated(move || wait())
    });
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.settings.policy = Policy::LeastLoad;
    });
    let mut clients: Vec<_> = (0..1_000).map(|_| front.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(chat("tiny-llama", "hello")));
    front.until("all choices", |front| (0..4).map(|slot| front.counters.in_flight(slot)).sum::<u32>() == 1_000);
    drop(open);
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    assert_eq!(engines.each_ref().map(Engine::executions), [250; 4]);
    front.settles();
}

/// An event reaches its client while the engine has not written the next: nothing waits for a buffer to fill.
#[test]
fn each_event_passes_at_once() {
    let (read, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let engine = Engine::run(move |mut connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
        for _ in 0..50 {
            connection.send("9\r\ndata: a\n\n\r\n");
            // The next event is written only once the client has this one.
            wait.lock().unwrap().recv_timeout(crate::front::PATIENCE).expect("an event is withheld");
        }
        connection.send("0\r\n\r\n");
    });
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(post("/v1/chat/completions", "{}"));
    client.head();
    for _ in 0..50 {
        assert_eq!(client.bytes(14), b"9\r\ndata: a\n\n\r\n");
        read.send(()).unwrap();
    }
    assert_eq!(client.bytes(5), b"0\r\n\r\n");
}

/// Long prompts are read and hashed a buffer at a time: a request beside four uploads waits for no whole one, whether
/// their begin alone is looked at, or as much of them as is held.
#[test]
fn long_prompts_do_not_hold_up_others() {
    for policy in [Policy::PrefixHash, Policy::Warm] {
        let engine = Engine::answering(HELLO);
        let front = Front::with(&[engine.address], |options| options.settings.policy = policy);
        let (stop, took) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<Duration>>>::default());
        let uploads: Vec<_> = (0..4)
            .map(|_| {
                let (stop, took, mut client) = (Arc::clone(&stop), Arc::clone(&took), front.connect());
                let request = chat("tiny-llama", &"a long prompt, ".repeat(200_000));
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let asked = Instant::now();
                        assert_eq!(client.ask(&request).status, 200);
                        took.lock().unwrap().push(asked.elapsed());
                    }
                })
            })
            .collect();
        let mut client = front.connect();
        // What else the machine does may spoil a round, hardly three. It has uploads take longer as well.
        let spoilt = (0..3).take_while(|_| {
            took.lock().unwrap().clear();
            let mut waits: Vec<_> = (0..200)
                .map(|_| {
                    let asked = Instant::now();
                    assert_eq!(client.ask(get("/v1/a")).status, 200);
                    asked.elapsed()
                })
                .collect();
            waits.sort_unstable();
            let [p50, p90, max] = [waits[100], waits[180], waits[199]];
            let mut took = took.lock().unwrap();
            took.sort_unstable();
            let upload = took.get(took.len() / 2).copied().unwrap_or_default();
            eprintln!(
                "{policy:?} beside four uploads of 3 MB, half of which take {upload:.1?}: p50 {p50:.1?}, p90 {p90:.1?}, max {max:.1?}"
            );
            2 * p50 >= upload
        });
        let spoilt = spoilt.count();
        stop.store(true, Ordering::Relaxed);
        uploads.into_iter().for_each(|upload| upload.join().unwrap());
        assert!(spoilt < 3, "half of them wait for half an upload");
        front.settles();
    }
}

/// A bad client is no bad engine: however many requests the engine refuses, the next good one reaches it.
#[test]
fn clients_cannot_take_an_engine_out() {
    let engine = Engine::run(|mut connection| {
        while let Some(request) = connection.request() {
            let good = request.body.windows(4).any(|words| words == b"good");
            let refusal = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            connection.send(if good { HELLO } else { refusal });
        }
    });
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    (0..50).for_each(|_| assert_eq!(client.ask(chat("tiny-llama", "too long")).status, 400));
    assert_eq!(client.ask(chat("tiny-llama", "good")).status, 200);
    assert_eq!((front.count(Count::Barred), front.counters.in_flight(0)), (0, 0));
}

/// Bodies of any size up to the limit pass, and are not held beyond what a choice needs.
#[test]
fn bodies_of_one_ten_and_sixty_megabytes_pass() {
    let engine = Engine::answering(HELLO);
    let front = Front::with(&[engine.address], |options| options.settings.policy = Policy::PrefixHash);
    let hold_bytes = Limits::default().hold_bytes as u64;
    for megabytes in [1, 10, 60] {
        let request = chat("tiny-llama", &"x".repeat(megabytes << 20));
        let (mut client, mut held_most) = (front.connect(), 0);
        for piece in request.chunks(64 << 10) {
            client.send(piece);
            held_most = held_most.max(front.stats.gauge(Gauge::HeldBytes));
        }
        assert_eq!(client.reply().status, 200, "{megabytes} MB");
        assert!(held_most <= 2 * hold_bytes, "{held_most} bytes of {megabytes} MB are held");
        assert_eq!(engine.requests().last().unwrap().body.len(), request.len() - head_len(&request));
    }
    front.settles();
}

fn head_len(request: &[u8]) -> usize {
    request.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4
}
