//! A shard whose turns the test takes, so that what happens in one can be counted.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use warmfront::counters::stats::Count;
use warmfront::driver::Driver;
use warmfront::driver::uring::Uring;
use warmfront::shard::Shard;

use crate::client::post;
use crate::engine::{Engine, HELLO, STREAM};
use crate::front::{Front, republish};

/// The event that an engine sends for a token.
const EVENT: &str =
    r#"data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" a"}}]}"#;
/// Events that pass before allocations are counted.
const WARM_UP: usize = 50;
const CHUNKS: usize = 1_000;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// True; panics if `what` has been waited for too long since then.
fn is_waited_for(what: &str, since: Instant) -> bool {
    assert!(since.elapsed() < PATIENCE, "{what} did not come");
    true
}

/// Takes turns until `reader` has filled `bytes`. Returns how many allocations the turns made.
fn turns_until<D: Driver>(shard: &mut Shard<D>, reader: &mut TcpStream, bytes: &mut [u8]) -> u64 {
    let (mut came, mut allocations, began) = (0, 0, Instant::now());
    while came < bytes.len() && is_waited_for("a byte", began) {
        let measured = allocation_counter::measure(|| assert!(shard.turn().unwrap()));
        allocations += measured.count_total;
        match reader.read(&mut bytes[came..]) {
            Ok(0) => panic!("it ended"),
            Ok(len) => came += len,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    allocations
}

#[test]
fn a_chunk_that_passes_allocates_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (front, setup) = Front::prepared(&[listener.local_addr().unwrap()], |_| {});
    let mut shard = Shard::new(crate::driver(), setup).unwrap();
    let mut client = TcpStream::connect(front.address).unwrap();
    client.write_all(&post("/v1/chat/completions", r#"{"model":"tiny-llama","stream":true}"#)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let began = Instant::now();
    let mut engine = loop {
        assert!(is_waited_for("a connection", began) && shard.turn().unwrap());
        if let Ok((engine, _)) = listener.accept() {
            break engine;
        }
    };
    for stream in [&client, &engine] {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    turns_until(&mut shard, &mut engine, &mut [0; 4]);
    engine.write_all(STREAM.as_bytes()).unwrap();
    turns_until(&mut shard, &mut client, &mut [0; 12]);
    let chunk = format!("{:x}\r\n{EVENT}\n\n\r\n", EVENT.len() + 2);
    let mut came = vec![0; chunk.len()];
    let mut pass = || {
        engine.write_all(chunk.as_bytes()).unwrap();
        turns_until(&mut shard, &mut client, &mut came)
    };
    (0..WARM_UP).for_each(|_| _ = pass());
    let allocations: u64 = (0..CHUNKS).map(|_| pass()).sum();
    // A deadline that is moved leaves its earlier entry in the timers, which grow once for that.
    assert!(allocations <= 8, "{allocations} for {CHUNKS} chunks");
}

fn is_uring<D: Driver>(_: &D) -> bool {
    D::NAME == "uring"
}

/// An endpoint's slot may be given to another once no shard chooses by a snapshot in which the endpoint was there.
#[test]
fn a_shard_says_by_which_snapshot_it_chooses() {
    let (front, setup) = Front::prepared(&[], |_| {});
    let process = setup.process;
    republish(&front, |snapshot| snapshot.epoch = 7);
    let mut shard = Shard::new(crate::driver(), setup).unwrap();
    assert_eq!(front.stats.epoch(), 7, "by which it begins");
    republish(&front, |snapshot| snapshot.epoch = 8);
    assert_eq!(front.stats.epoch(), 7, "it has yet to look");
    assert!(shard.turn().unwrap());
    assert_eq!(front.stats.epoch(), 8);
    process.drain();
    shard.run().unwrap();
    assert_eq!(front.stats.epoch(), u64::MAX, "by none any more");
}

/// More events come at once than the ring has room for.
#[test]
fn a_ring_that_was_too_narrow_is_counted() {
    if !is_uring(&crate::driver()) {
        return;
    }
    let engine = Engine::answering(HELLO);
    let (front, setup) = Front::prepared(&[engine.address], |_| {});
    let mut shard = Shard::new(Uring::with_queues(&[(1, 2)]).unwrap(), setup).unwrap();
    let count = 200;
    let mut clients: Vec<_> = (0..count).map(|_| front.connect()).collect();
    let began = Instant::now();
    while front.count(Count::Accepted) < count && is_waited_for("a client", began) {
        shard.turn().unwrap();
    }
    let request = post("/v1/a", [b'x'; 60_000]);
    clients.iter_mut().for_each(|client| client.send(&request));
    let served = || -> u64 {
        let ends = front.stats.requests(|_| true);
        ends.iter().filter(|(key, _)| key.status == 200).map(|(_, count)| count).sum()
    };
    while served() < count && is_waited_for("a reply", began) {
        shard.turn().unwrap();
    }
    assert_eq!(front.count(Count::BytesIn), count * request.len() as u64);
    assert!(front.count(Count::CompletionsOver) > 0);
}
