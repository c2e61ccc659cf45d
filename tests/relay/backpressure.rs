//! Peers that stop reading: each holds back what is sent to it, and nothing else, within bounds.

use std::io::Write;
use std::time::{Duration, Instant};

use warmfront::counters::stats::{Count, Timing};

use crate::client::{get, post};
use crate::engine::{Engine, HELLO, STREAM, gate, ok};
use crate::front::{Front, PATIENCE};
use crate::tries::in_one_of;
use crate::tunnel::{ASK, SWITCH};
use crate::wire::End;

/// A client that begins to read late gets everything that was held back, in order.
#[test]
fn a_late_reader_gets_everything() {
    let body: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    let engine = Engine::answering(ok(&body));
    let front = Front::start(&[engine.address]);
    let mut clients: Vec<_> = (0..4).map(|_| front.connect()).collect();
    for client in &mut clients {
        client.send(get("/v1/a"));
        client.send(get("/v1/b"));
    }
    front.until("the engine to be held back", |_| engine.executions() >= 4);
    for client in &mut clients {
        assert!(client.reply().body == body);
        assert!(client.reply().body == body);
    }
    front.settles();
}

/// An engine that does not read holds back its client's upload, and only that.
#[test]
fn an_unread_upload_holds_back_its_client() {
    let (open, wait) = gate();
    let engine = Engine::narrow(move |mut connection| {
        while let Some(head) = connection.head() {
            if !head.start.contains("/v1/quick") {
                return wait();
            }
            connection.body(head);
            connection.send(HELLO);
        }
    });
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send("POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n");
    let mut writer = client.clone_stream();
    writer.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut sent = 0;
    while let Ok(len) = writer.write(&[b'x'; 65_536]) {
        sent += len;
    }
    // The kernel may buffer 32 MiB for one socket, and some more for the others on the way.
    assert!(sent < 48 << 20, "{sent} bytes were taken for an engine that reads none");
    assert_eq!(front.ask(get("/v1/quick")).status, 200);
    assert_eq!(front.ask(post("/v1/quick", "x")).status, 200);
    drop((client, writer, open));
}

/// If a client takes nothing of its reply, its connection is closed, and that to the engine with it.
#[test]
fn a_client_that_does_not_read() {
    let engine = Engine::run(|mut connection| {
        connection.request();
        connection.send(ok(vec![b'x'; 32 << 20]));
    });
    let front = Front::with(&[engine.address], |options| options.rules.limits.client_stall_timeout_ms = 200);
    let mut client = front.connect();
    client.send(get("/v1/a"));
    front.until("the stall", |front| front.count(Count::ClientStalled) == 1);
    front.settles();
    assert!(!client.reply().whole);
}

/// The same holds for a client that leaves the end of its last reply unread, although the exchange with the engine is
/// over and in the log; also if its next request has been answered by then.
#[test]
fn a_client_that_does_not_read_the_end() {
    // Each reply comes in one piece: the exchange is over by the time the client's socket is found full.
    let engine = Engine::run(|mut connection| {
        while connection.request().is_some() {
            connection.send(ok(vec![b'x'; 30 << 10]));
        }
    });
    let front = Front::with(&[engine.address], |options| options.rules.limits.client_stall_timeout_ms = 200);
    let mut client = front.connect();
    client.send(get("/v1/a").repeat(600));
    front.until("its end", |front| front.count(Count::Closed) == 1);
    assert_eq!(front.count(Count::ClientStalled), 1);
    drop(client);
}

/// A client of a tunnel that does not read is not waited for either, whatever it sends meanwhile.
#[test]
fn a_client_of_a_tunnel_that_does_not_read() {
    let engine = Engine::run(|mut connection| {
        connection.request();
        connection.send([SWITCH.as_bytes(), &vec![b'x'; 32 << 20]].concat());
    });
    let front = Front::with(&[engine.address], |options| options.rules.limits.client_stall_timeout_ms = 200);
    let mut client = front.connect();
    client.send(ASK);
    client.head();
    let begun = Instant::now();
    while front.count(Count::ClientStalled) == 0 {
        assert!(begun.elapsed() < PATIENCE, "no stall");
        let _ = client.stream().write(b"a");
        std::thread::sleep(Duration::from_millis(5));
    }
    front.settles();
    assert_eq!(client.rest().1, End::Reset);
    let faults = Count::ALL.iter().filter(|count| count.family() == "upstream_faults");
    assert_eq!(faults.map(|count| front.count(*count)).sum::<u64>(), 0);
}

/// A client that reads slowly but steadily is not a client that does not read.
#[test]
fn a_client_that_reads_slowly() {
    const LEN: usize = 12 << 20;
    let engine = Engine::run(|mut connection| {
        connection.request();
        connection.send(ok(vec![b'x'; LEN]));
    });
    let front = Front::with(&[engine.address], |options| options.rules.limits.client_stall_timeout_ms = 300);
    let reads_all = || {
        let (before, mut client) = (front.count(Count::ClientStalled), front.connect());
        client.send(get("/v1/a"));
        client.head();
        let mut got = 0;
        while got < LEN {
            let len = client.bytes((1 << 20).min(LEN - got)).len();
            if len == 0 {
                break;
            }
            got += len;
            std::thread::sleep(Duration::from_millis(50));
        }
        got == LEN && front.count(Count::ClientStalled) == before
    };
    // If the machine stops the client's thread for a while, it does not read steadily; that hardly happens in each of
    // five tries.
    in_one_of(5, "a slow reader reads all", true, reads_all);
}

/// Times between tokens are measured as the engine sends them: a client that pauses does not lengthen them.
#[test]
fn a_client_that_pauses_makes_no_slow_tokens() {
    const PAUSE: Duration = Duration::from_millis(1_500);
    let engine = Engine::run(|mut connection| {
        connection.request();
        connection.send(STREAM);
        let event = format!("data: {}\n\n", "x".repeat(64 << 10));
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        connection.send([chunk.repeat(256), "0\r\n\r\n".into()].concat());
    });
    let gaps = || {
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send(post("/v1/completions", r#"{"stream":true,"prompt":"a"}"#));
        std::thread::sleep(PAUSE);
        assert_eq!(client.reply().status, 200);
        front.settles();
        let between = front.stats.timing(0, Timing::InterToken);
        assert!(between.count() > 10, "{between:?}");
        between.sum
    };
    // Gaps as long may be the machine's, if it stands still; that hardly happens in each of five tries.
    let spoilt: Vec<_> = (0..5).map(|_| gaps()).take_while(|sum| *sum >= PAUSE.as_micros() as u64 / 2).collect();
    assert!(spoilt.len() < 5, "{spoilt:?}");
}
