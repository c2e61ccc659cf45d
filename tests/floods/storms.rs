//! Clients that send thousands of anything.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::client::{get, post};
use crate::engine::Engine;
use crate::front::{Front, alone, figure, shared};
use crate::on_both_drivers;

on_both_drivers!(
    thousands_of_requests_in_one_piece_are_answered_in_order,
    a_head_in_single_bytes_costs_little,
    a_storm_of_resets_leaves_nothing_behind,
);

fn thousands_of_requests_in_one_piece_are_answered_in_order(driver: &str) {
    const REQUESTS: usize = 3_000;
    let _room = shared();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, "");
    let mut client = front.connect();
    let mut writer = client.stream.try_clone().unwrap();
    let requests: String = (0..REQUESTS)
        .map(|number| {
            let path = if number % 2 == 0 { "/v1/echo" } else { "/v1/unknown/../" };
            get(&format!("{path}{number}"))
        })
        .collect();
    let sender = std::thread::spawn(move || writer.write_all(requests.as_bytes()).unwrap());
    let cpu = front.cpu();
    for number in 0..REQUESTS {
        let reply = client.reply();
        if number % 2 == 0 {
            assert_eq!((reply.status, reply.text()), (200, format!("/v1/echo{number}")));
        } else {
            assert_eq!(reply.status, 404);
            assert!(reply.text().contains(&number.to_string()), "{}", reply.text());
        }
    }
    sender.join().unwrap();
    let each = (front.cpu() - cpu) / REQUESTS as u32;
    figure("CPU of a pipelined request (unoptimised build)", driver, format_args!("{} µs", each.as_micros()));
    front.until("no request is in flight", |front| front.in_flight() == 0);
}

/// A wake for each byte, which a busy machine may come to; a pass over the whole head for each would take seconds. Where
/// that is too little for the machine, such bytes cost hardly more than those of a body, which are seen once each.
const SINGLE_BYTES_CPU_MAX: Duration = Duration::from_millis(500);
const TIMES_A_BODY: u32 = 3;

fn a_head_in_single_bytes_costs_little(driver: &str) {
    let _room = alone();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, "head_timeout_ms = 20000");
    let field = format!("X: {}\r\n", "y".repeat(340));
    let head = format!("GET /v1/quick HTTP/1.1\r\nHost: x\r\n{}\r\n", field.repeat(93));
    assert!(head.len() > 32_000 && head.len() <= 32_768, "{}", head.len());
    let spent_on = |start: &str, single: &str| {
        let mut client = front.connect();
        client.send(start);
        let cpu = front.cpu();
        for byte in single.as_bytes().chunks(1) {
            client.send(byte);
        }
        assert_eq!(client.reply().status, 200);
        front.cpu() - cpu
    };
    // Of three goes the best: what else the machine does makes each wake dearer.
    let (mut spent, mut most) = (Duration::MAX, SINGLE_BYTES_CPU_MAX);
    for _ in 0..3 {
        spent = spent.min(spent_on("", &head));
        if spent < most {
            break;
        }
        let request = post("/v1/quick", &"y".repeat(head.len()));
        let (start, body) = request.split_at(request.len() - head.len());
        most = most.max(TIMES_A_BODY * spent_on(start, body));
    }
    figure(
        "CPU of a head of 32 KiB in single bytes (unoptimised build)",
        driver,
        format_args!("{} ms", spent.as_millis()),
    );
    assert!(spent < most, "{spent:?} of CPU, not {most:?}");
}

fn a_storm_of_resets_leaves_nothing_behind(driver: &str) {
    const ROUND: usize = 2_000;
    let _room = alone();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, "");
    let round = || {
        for number in 0..ROUND {
            let mut client = front.connect();
            match number % 5 {
                0 => {}
                1 => client.send("POST /v1/chat/completions HTTP/1.1\r\nHost:"),
                2 => client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n{\"model"),
                3 => client.send(get("/v1/quick")),
                _ => client.send(get("/v1/stream")),
            }
            client.reset();
        }
        front.until("everyone is gone", |front| {
            front.metric("warmfront_client_connections") == 0 && front.in_flight() == 0
        });
    };
    round();
    front.until("connections to the engine are gone", |front| front.metric("warmfront_upstream_connections") == 0);
    let (descriptors, memory) = (front.descriptors(), front.resident());
    let begun = Instant::now();
    round();
    figure("connections opened and reset a second", driver, (ROUND as f64 / begun.elapsed().as_secs_f64()) as u64);
    front.until("connections to the engine are gone", |front| front.metric("warmfront_upstream_connections") == 0);
    // Probes and scrapes come and go.
    front.until("its descriptors are closed", |front| front.descriptors() <= descriptors);
    let grown = front.resident().saturating_sub(memory);
    assert!(grown < 2 << 20, "{grown} bytes more after the second storm");
    assert_eq!(front.ask(get("/v1/quick")), 200);
}
