//! Requests that come before the replies to those before them: answered in order, read ahead within a bound.

use std::io::Write;
use std::time::{Duration, Instant};

use warmfront::counters::stats::Count;

use crate::client::{get, post};
use crate::engine::{Engine, HELLO, gate, ok};
use crate::front::{Front, PATIENCE};

/// An engine that answers with the path, more slowly if it is shorter: later requests would overtake earlier ones.
fn echoing() -> Engine {
    Engine::run(|mut connection| {
        while let Some(request) = connection.request() {
            connection.send(ok(request.path()));
        }
    })
}

#[test]
fn replies_come_in_the_order_of_requests() {
    let engines = [echoing(), echoing(), echoing()];
    let front = Front::start(&engines.each_ref().map(|engine| engine.address));
    let mut client = front.connect();
    let mut requests = Vec::new();
    for turn in 0..200 {
        let path = format!("/v1/{turn}");
        match turn % 3 {
            0 => requests.extend(get(&path)),
            1 => requests.extend(post(&path, "x".repeat(turn))),
            _ => requests.extend(get("/health")),
        }
    }
    client.send(&requests);
    for turn in 0..200 {
        let expected = if turn % 3 == 2 { String::new() } else { format!("/v1/{turn}") };
        assert_eq!(client.reply().text(), expected);
    }
    assert_eq!(client.ask(get("/v1/last")).text(), "/v1/last");
    front.settles();
}

/// If nothing may be read ahead, connections are kept all the same, bodies may come in pieces, and it is noticed when a
/// client leaves.
#[test]
fn nothing_has_to_be_read_ahead() {
    let engine = echoing();
    let front = Front::with(&[engine.address], |options| options.rules.limits.read_ahead_bytes = 0);
    let mut client = front.connect();
    for _ in 0..3 {
        assert_eq!(client.ask(get("/v1/a")).text(), "/v1/a");
        let request = post("/v1/b", "x".repeat(100));
        client.send(&request[..request.len() - 50]);
        std::thread::sleep(Duration::from_millis(30));
        client.send(&request[request.len() - 50..]);
        assert_eq!(client.reply().text(), "/v1/b");
    }
    client.send([get("/v1/c"), get("/v1/d")].concat());
    assert_eq!([client.reply().text(), client.reply().text()], ["/v1/c", "/v1/d"]);
    front.settles();
}

/// The second of two requests is not sent before the first one's reply is over.
#[test]
fn one_request_at_a_time() {
    let (open, wait) = gate();
    let engine = Engine::gated(wait);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send([get("/v1/a"), get("/v1/b")].concat());
    front.until("the first", |_| engine.executions() == 1);
    assert!(client.is_silent(50));
    assert_eq!((engine.executions(), front.counters.in_flight(0)), (1, 1));
    open.send(()).unwrap();
    assert_eq!(client.reply().status, 200);
    open.send(()).unwrap();
    assert_eq!(client.reply().status, 200);
}

/// How much is read ahead behind a request in progress is bounded, also behind uploads that the engine was slow to
/// take: some of them are just of the size that the kernel buffers for an engine that does not read.
#[test]
fn reading_ahead_is_bounded() {
    const CLIENTS: usize = 10;
    const AHEAD_MAX: u64 = (16 << 10) + (64 << 10);
    let (open, wait) = gate();
    let engine = Engine::narrow(move |mut connection| {
        let head = connection.head().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        connection.body(head);
        wait();
        connection.send(HELLO);
        while connection.request().is_some() {
            connection.send(HELLO);
        }
    });
    let front = Front::with(&[engine.address], |options| options.rules.limits.hold_bytes = 64 << 10);
    let room = crate::uploads::room_towards_narrow();
    let mut uploaded = 0;
    let mut clients = Vec::new();
    for step in 0..CLIENTS {
        let upload = post("/v1/a", vec![b'x'; room - (128 << 10) + (step << 15)]);
        uploaded += upload.len() as u64;
        let client = front.connect();
        let mut writer = client.clone_stream();
        std::thread::spawn(move || {
            let _ = writer.write_all(&[upload, get("/v1/b").repeat(10_000)].concat());
        });
        clients.push(client);
    }
    front.until("the uploads", |_| engine.executions() == CLIENTS);
    front.until("the read-ahead", |front| front.count(Count::HeldBack) == CLIENTS as u64);
    std::thread::sleep(Duration::from_millis(50));
    let ahead = front.count(Count::BytesIn) - uploaded;
    assert!(ahead <= CLIENTS as u64 * AHEAD_MAX, "{ahead} bytes read ahead");
    (0..CLIENTS).for_each(|_| open.send(()).unwrap());
    for client in &mut clients {
        assert!((0..1_000).all(|_| client.reply().status == 200));
    }
}

/// An answer of ours to a request with a body ends the connection: nothing of the body is read as a request.
#[test]
fn own_answers_swallow_no_body() {
    let engine = echoing();
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(post("/nowhere", "GET /v1/evil HTTP/1.1\r\nHost: x\r\n\r\n"));
    let reply = client.reply();
    assert_eq!((reply.status, reply.closes()), (404, true));
    client.ends();
    assert_eq!(engine.connections(), 0);
}

/// A client that sends many requests and reads nothing is served no further than its window takes.
#[test]
fn a_client_that_reads_nothing_is_not_served_on() {
    let engine = Engine::answering(ok("x".repeat(100_000)));
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(get("/v1/a").repeat(350));
    let (mut before, deadline) = (0, Instant::now() + PATIENCE);
    loop {
        assert!(Instant::now() < deadline, "{before} replies, and no end");
        std::thread::sleep(Duration::from_millis(100));
        let now = engine.executions();
        if now > 0 && std::mem::replace(&mut before, now) == now {
            break;
        }
    }
    assert!(before < 200, "{before} replies of 100 kB were made for a client that reads none");
    for _ in 0..350 {
        assert_eq!(client.reply().body.len(), 100_000);
    }
    front.settles();
}

/// While thousands of requests that came in one piece are answered by the front itself, other clients have their turns.
#[test]
fn who_asks_much_that_is_answered_here_leaves_others_their_turn() {
    const HEADS: u64 = 2_000;
    let engine = echoing();
    let front = Front::start(&[engine.address]);
    let turns = || front.stats.shard(0).turns();
    for ends in [false, true] {
        let mut client = front.connect();
        let mut writer = client.clone_stream();
        let before = (turns(), front.count(Count::AnsweredHere));
        let writes = std::thread::spawn(move || {
            writer.write_all(&get("/health").repeat(HEADS as usize)).unwrap();
            if ends {
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            }
        });
        assert!((0..HEADS).all(|_| client.reply().status == 200));
        writes.join().unwrap();
        let turns = turns() - before.0;
        // Sixteen as they come, and sixteen at the turn's end.
        assert!(turns >= HEADS / 32, "{HEADS} requests in {turns} turns, {ends}");
        assert_eq!(front.count(Count::AnsweredHere) - before.1, HEADS);
        if ends {
            client.ends();
        }
    }
    front.settles();
}
