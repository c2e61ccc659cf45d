//! `Upgrade`: there is a tunnel, but only after a 101 that the client asked for.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::client::get;
use crate::engine::{Engine, HELLO, gate, reporting};
use crate::front::{Front, PATIENCE, republish};
use crate::wire::End;
use warmfront::counters::stats::Count;
use warmfront::policy::PoolId;

pub const ASK: &str =
    "GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n";
pub const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: a\r\n\r\n";

/// An engine that switches protocols, greets, echoes until the client ends, and then says farewell.
fn echo() -> Engine {
    Engine::run(|mut connection| {
        connection.request();
        connection.send([SWITCH, "hello"].concat());
        loop {
            let byte = connection.bytes(1);
            if byte.is_empty() {
                break;
            }
            connection.send(byte);
        }
        connection.send("bye");
    })
}

#[test]
fn bytes_pass_both_ways_and_a_fin_is_a_half_close() {
    let engine = echo();
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(ASK);
    let head = client.head();
    assert_eq!(head.start, "HTTP/1.1 101 Switching Protocols");
    assert_eq!(head.get("sec-websocket-accept"), Some("a"));
    assert_eq!(head.get("upgrade"), Some("websocket"));
    assert_eq!(client.bytes(5), b"hello");
    // In a tunnel these bytes are no request, though they look like one.
    let looks = get("/v1/evil");
    client.send(&looks);
    assert_eq!(client.bytes(looks.len()), looks);
    client.half_close();
    assert_eq!(client.rest(), (b"bye".to_vec(), End::Fin));
    front.settles();
    assert_eq!((front.count(Count::Tunnel), front.count(Count::AbortedTunnel)), (1, 0));
    let asked = &engine.requests()[0];
    assert_eq!(asked.head.get("connection"), Some("Upgrade"));
    assert_eq!(asked.head.get("upgrade"), Some("websocket"));
}

/// A request for an upgrade has no body that could name a model: its query does.
#[test]
fn a_protocol_is_switched_to_by_an_engine_of_the_model_in_the_query() {
    let engines = [(); 3].map(|()| echo());
    let addresses = engines.each_ref().map(|engine| engine.address);
    let pools = || vec![("text", vec![0]), ("org/voice", vec![1]), ("other", vec![2])];
    for default in [None, Some(PoolId(0))] {
        let front = Front::with(&addresses, |options| options.pools = pools());
        republish(&front, |snapshot| snapshot.default_pool = default);
        for (query, expected) in [
            ("?model=org/voice", 1),
            ("?model=org%2Fvoice", 1),
            ("?intent=x&model=other&a=b", 2),
            ("?model=text", 0),
            ("?xmodel=other", 0),
            ("?model=nobodys", 0),
            ("?model=", 0),
            ("", 0),
        ] {
            let before = engines[expected].executions();
            let mut client = front.connect();
            client.send(ASK.replace("/v1/realtime", &format!("/v1/realtime{query}")));
            assert_eq!(client.bytes(SWITCH.len() + 5).len(), SWITCH.len() + 5, "{query}");
            assert_eq!(engines[expected].executions() - before, 1, "{query}");
        }
    }
}

/// An engine that serves tunnels alone has no other good answers: if a 101 did not count as one, three failed
/// handshakes within weeks would eject it for good.
#[test]
fn a_handshake_that_is_granted_is_a_good_answer() {
    let engine = Engine::run(|mut connection| {
        while let Some(request) = connection.request() {
            if request.path() == "/v1/realtime" {
                connection.send(SWITCH);
                connection.closed();
                return;
            }
            connection.send("HTTP/1.1 502 Sorry\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let front = Front::start(&[engine.address]);
    let outcomes = front.counters.outcomes();
    let ask = |granted: bool| {
        let path = if granted { "/v1/realtime" } else { "/v1/other" };
        let mut client = front.connect();
        client.send(ASK.replace("/v1/realtime", path));
        assert_eq!(client.reply().status, if granted { 101 } else { 502 });
        client
    };
    let _tunnels: Vec<_> = [false, false, true, false, false].map(ask).into();
    assert_eq!((outcomes.read(0).in_a_row, outcomes.is_barred(0)), (2, false));
    ask(false);
    assert!(outcomes.is_barred(0));
    // The first tunnel brings the engine back, while it is still open.
    front.counters.on_trial(0);
    let _tunnel = ask(true);
    let read = outcomes.read(0);
    assert_eq!((read.in_a_row, read.recoveries), (0, 2));
    assert!(!outcomes.gave_since(0, 0), "a handshake computes nothing");
}

/// What the client sends before the 101 reaches the engine behind the request, in order.
#[test]
fn bytes_sent_before_the_101_are_not_lost() {
    let engine = echo();
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send([ASK, "early "].concat());
    assert_eq!(client.reply().status, 101);
    client.send("late");
    client.half_close();
    assert_eq!(client.rest().0, b"helloearly latebye");
    front.settles();
}

/// The engine may end its side first and still read.
#[test]
fn the_engine_may_end_first() {
    let (all, got) = std::sync::mpsc::channel();
    let all = std::sync::Mutex::new(all);
    let engine = Engine::run(move |mut connection| {
        connection.request();
        connection.send(SWITCH);
        connection.finish();
        all.lock().unwrap().send(connection.bytes(3_000_000).len()).unwrap();
    });
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(ASK);
    assert_eq!(client.reply().status, 101);
    client.send(vec![b'x'; 3_000_000]);
    client.half_close();
    assert_eq!(client.ends(), End::Fin);
    assert_eq!(got.recv_timeout(crate::front::PATIENCE), Ok(3_000_000));
    front.settles();
}

/// While one side does not read, nothing is read from the other: the front would have to hold it in its memory.
#[test]
fn a_side_that_does_not_read_holds_the_other_back() {
    const ALL: usize = 64 << 20;
    // The kernel may buffer 32 MiB for one socket, and some more for the others on the way.
    const BETWEEN: usize = 48 << 20;
    // Every word of a block differs.
    let block: Vec<u8> = (0..65_521u32).flat_map(u32::to_le_bytes).collect();
    let bytes: Arc<Vec<u8>> = Arc::new(block.repeat(ALL / block.len()));
    for client_writes in [true, false] {
        let (open, wait) = gate();
        let sent = Arc::clone(&bytes);
        let (engine, told) = reporting(move |mut connection, tell| {
            connection.request();
            connection.send(SWITCH);
            if client_writes {
                wait();
                tell.send(connection.bytes(ALL)).unwrap();
            } else {
                let taken = write_without_waiting(connection.stream(), &sent);
                tell.send(sent[..taken].to_vec()).unwrap();
            }
        });
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send(ASK);
        assert_eq!(client.reply().status, 101);
        let (sent, got) = if client_writes {
            let taken = write_without_waiting(client.stream(), &bytes);
            open.send(()).unwrap();
            client.half_close();
            (bytes[..taken].to_vec(), told.recv_timeout(PATIENCE).unwrap())
        } else {
            let sent = told.recv_timeout(PATIENCE).unwrap();
            (sent, client.rest().0)
        };
        assert!(sent.len() < BETWEEN, "{} bytes are somewhere; client writes: {client_writes}", sent.len());
        assert!(got == sent, "client writes: {client_writes}");
        drop(client);
        front.settles();
    }
}

/// Writes until the socket takes no more for a while. Returns how many bytes it took.
fn write_without_waiting(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut taken = 0;
    while let Ok(len @ 1..) = stream.write(&bytes[taken..]) {
        taken += len;
    }
    taken
}

#[test]
fn resets_pass_through() {
    let engine = Engine::run(|mut connection| {
        connection.request();
        connection.send(SWITCH);
        if connection.bytes(1) == b"r" {
            connection.reset();
        } else {
            connection.closed();
        }
    });
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(ASK);
    assert_eq!(client.reply().status, 101);
    client.send("r");
    assert_eq!(client.rest().1, End::Reset);
    assert_eq!([Count::UpstreamFaultReset, Count::StreamCut].map(|count| front.count(count)), [1, 1]);
    let mut client = front.connect();
    client.send(ASK);
    assert_eq!(client.reply().status, 101);
    client.send("x");
    client.reset();
    front.until("the abort", |front| front.count(Count::AbortedTunnel) == 1);
    front.settles();
}

/// An upgrade that the engine does not grant is a request like any other, and what follows it is the next request.
#[test]
fn without_a_101_there_is_no_tunnel() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send([ASK.as_bytes(), &get("/v1/b")].concat());
    assert_eq!((client.reply().status, client.reply().status), (200, 200));
    assert_eq!(engine.requests()[1].path(), "/v1/b");
    assert_eq!(front.count(Count::Tunnel), 0);
}

/// Otherwise client and engine would speak different protocols, or one that the front never offers, in which requests
/// would pass unseen.
#[test]
fn a_101_names_what_was_offered() {
    let named = [
        ("Upgrade: WebSocket\r\n", 101),
        ("Upgrade: h2c\r\n", 502),
        ("Upgrade: websocket/2\r\n", 502),
        ("Upgrade: websocket, h2c\r\n", 502),
        ("Upgrade: websocket\r\nUpgrade: h2c\r\n", 502),
        ("Upgrade:\r\n", 502),
    ];
    for (field, status) in named {
        let engine = Engine::run(move |mut connection| {
            connection.request();
            connection.send(format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{field}\r\n"));
            connection.closed();
        });
        let front = Front::start(&[engine.address]);
        assert_eq!(front.ask(ASK).status, status, "{field:?}");
        front.settles();
        assert_eq!(front.count(Count::Tunnel), u64::from(status == 101), "{field:?}");
    }
}

/// Some clients send `Content-Length: 0` with every request without a body.
#[test]
fn a_handshake_may_say_that_it_has_no_body() {
    let engine = echo();
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(ASK.replacen("\r\n", "\r\nContent-Length: 0\r\n", 1));
    assert_eq!(client.head().start, "HTTP/1.1 101 Switching Protocols");
    client.half_close();
    assert_eq!(client.rest().0, b"hellobye");
    front.settles();
    assert_eq!(engine.requests()[0].head.get("upgrade"), Some("websocket"));
}

/// HTTP/2 in the clear is not offered to engines: requests in it would pass unseen.
#[test]
fn h2c_is_not_offered() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    let ask = "GET /v1/a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
               HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n";
    assert_eq!(front.ask(ask).status, 200);
    let asked = &engine.requests()[0];
    assert_eq!((asked.head.get("upgrade"), asked.head.get("http2-settings")), (None, None));
}
