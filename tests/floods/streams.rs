//! Streams whose clients do not read: they hold back their engine, and nothing else.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::client::{Client, field, get};
use crate::engine::{EVENT_BYTES, Engine, event};
use crate::front::{Front, alone, figure, shared};
use crate::on_both_drivers;

on_both_drivers!(forty_unread_streams_hold_back_their_engine, who_never_reads_is_ended);

const STREAMS: usize = 40;
const GROWTH_MAX: usize = 8 << 20;
/// Events that a late reader reads.
const READ: usize = 8_000;

fn begin(front: &Front) -> Client {
    let mut client = front.connect();
    client.send(get("/v1/stream"));
    client
}

/// Bytes that the kernel holds for TCP connections of this machine.
fn kernel_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap();
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap();
    line.rsplit(' ').next().unwrap().parse::<usize>().unwrap() << 12
}

fn forty_unread_streams_hold_back_their_engine(driver: &str) {
    let _room = alone();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, "");
    front.ask(get("/v1/quick"));
    let (memory, kernel) = (front.resident(), kernel_bytes());
    let mut clients: Vec<Client> = (0..STREAMS).map(|_| begin(&front)).collect();
    let taken = engine.standstill();
    let grown = front.resident().saturating_sub(memory);
    let kernel = kernel_bytes().saturating_sub(kernel);
    let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    figure("memory of 40 unread streams", driver, mib(grown));
    figure("bytes of them that the engine got rid of", driver, mib(taken));
    figure("kernel's memory for them, on all sides", driver, mib(kernel));
    assert!(grown <= GROWTH_MAX, "{grown} bytes more for {STREAMS} unread streams");
    // Everyone else is served, and streams, meanwhile.
    assert_eq!(front.ask(get("/v1/quick")), 200);
    let mut other = begin(&front);
    read(&mut other, 1_000);
    drop(other);
    // Late, but every byte is right.
    let mut late = clients.pop().unwrap();
    let mut later = clients.pop().unwrap();
    read(&mut late, READ);
    read(&mut later, READ);
    drop((late, later, clients));
    front.until("no request is in flight", |front| front.in_flight() == 0);
}

/// It loses its connection, and cannot take what it has for the whole.
fn who_never_reads_is_ended(driver: &str) {
    let _room = shared();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, "client_stall_timeout_ms = 700");
    // Before the first of them begins: who measures from later on may be late.
    let begun = Instant::now();
    let clients: Vec<Client> = (0..5).map(|_| begin(&front)).collect();
    front.until("they are ended", |front| front.metric("warmfront_client_stalls_total") == 5);
    assert!(begun.elapsed() > Duration::from_millis(600), "after {:?}", begun.elapsed());
    front.until("no request is in flight", |front| front.in_flight() == 0);
    assert!(clients.into_iter().all(|mut client| !client.ends()), "an end that looks like a proper one");
    front.until("connections to the engine are closed", |_| engine.log.connections.load(Ordering::Relaxed) < 5);
}

fn read(client: &mut Client, count: usize) {
    let head = client.head();
    assert!(field(&head, "transfer-encoding").is_some(), "{head}");
    for number in 0..count {
        let chunk = client.chunk();
        assert!(chunk == event(number), "event {number} is {} of {EVENT_BYTES} bytes", chunk.len());
    }
}
