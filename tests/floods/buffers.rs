//! What one connection can make the front keep, each way.

use std::io::Write;
use std::time::Duration;

use crate::client::{Client, get};
use crate::engine::Engine;
use crate::front::{Front, alone, figure, kib};
use crate::on_both_drivers;

on_both_drivers!(requests_behind_an_unread_stream, unread_answers_of_our_own, the_longest_half_heads);

const CLIENTS: usize = 20;

/// Sends until nothing more is taken.
fn push(client: &mut Client, bytes: &[u8]) {
    client.stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut idle = 0;
    while idle < 3 {
        idle = if client.stream.write(bytes).is_ok() { 0 } else { idle + 1 };
    }
}

/// What each of `CLIENTS` costs after `prepare`.
fn weigh(front: &Front, what: &str, driver: &str, prepare: impl Fn(&mut Client) + Sync) -> usize {
    prepare(&mut front.connect());
    let memory = front.resident();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| front.connect()).collect();
    std::thread::scope(|scope| {
        for clients in clients.chunks_mut(5) {
            let prepare = &prepare;
            scope.spawn(move || clients.iter_mut().for_each(prepare));
        }
    });
    let each = front.resident().saturating_sub(memory) / CLIENTS;
    figure(what, driver, format_args!("{:.1} KiB", kib(each)));
    assert_eq!(front.ask(get("/v1/quick")), 200);
    each
}

fn requests_behind_an_unread_stream(driver: &str) {
    let _room = alone();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, "");
    let requests = get("/v1/quick").repeat(2_000);
    let each = weigh(&front, "memory of an unread stream with requests behind it", driver, |client| {
        client.send(get("/v1/stream"));
        push(client, requests.as_bytes());
    });
    // Two buffers of 64 KiB: what is read ahead, and what the client's kernel did not take.
    assert!(each <= 192 << 10, "{each} bytes each");
}

fn unread_answers_of_our_own(driver: &str) {
    let _room = alone();
    // Some 15 KB an answer, for a request of 40 bytes.
    let engine = Engine::serving(&"x".repeat(15_000));
    let front = Front::start(driver, engine.address, "");
    front.until("models are known", |front| front.connect().ask(get("/v1/models")).body.len() > 15_000);
    let requests = get("/v1/models").repeat(2_000);
    let each = weigh(&front, "memory of unread answers of our own", driver, |client| push(client, requests.as_bytes()));
    assert!(each <= 192 << 10, "{each} bytes each");
}

fn the_longest_half_heads(driver: &str) {
    let _room = alone();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, "head_timeout_ms = 60000");
    let head = format!("GET /v1/quick HTTP/1.1\r\nHost: x\r\nLong: {}", "x".repeat(32_000));
    let each = weigh(&front, "memory of a half head of 32 KB", driver, |client| {
        for piece in head.as_bytes().chunks(3_000) {
            client.send(piece);
        }
    });
    assert!(each <= 68 << 10, "{each} bytes each");
}
