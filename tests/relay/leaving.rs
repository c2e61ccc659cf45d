//! Clients that leave: the engine is told at once by closing its connection, and nothing stays counted.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use warmfront::counters::stats::Count;
use warmfront::policy::Policy;

use crate::client::{Client, get, post};
use crate::engine::{Connection, Engine, HELLO, black_hole, reporting};
use crate::front::Front;

/// Longest time from the client's leaving until the engine's connection is closed.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How a client may leave.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Close,
    HalfClose,
    Reset,
}

const WAYS: [Leave; 3] = [Leave::Close, Leave::HalfClose, Leave::Reset];

impl Leave {
    /// Leaves. Returns what is left of the connection, for the caller to keep open.
    fn from(self, mut client: Client) -> Option<Client> {
        match self {
            Leave::Close => drop(client),
            Leave::HalfClose => {
                client.half_close();
                return Some(client);
            }
            Leave::Reset => client.reset(),
        }
        None
    }
}

enum Seen {
    Reached,
    Closed,
}

/// An engine that does `before` on each connection, reports that it has, and then when the front has closed it.
fn engine(before: impl Fn(&mut Connection) + Send + Sync + 'static) -> (Engine, Receiver<Seen>) {
    reporting(move |mut connection, report| {
        before(&mut connection);
        let _ = report.send(Seen::Reached);
        if connection.closed().is_some() {
            let _ = report.send(Seen::Closed);
        }
    })
}

fn next(seen: &Receiver<Seen>) -> Seen {
    seen.recv_timeout(crate::front::PATIENCE).expect("the engine saw nothing")
}

/// Asserts that the engine notices at once. A busy machine may delay one try.
fn at_once(mut leave: impl FnMut() -> Duration) {
    let tries: Vec<_> = (0..3).map(|_| leave()).take_while(|took| *took >= AT_ONCE).collect();
    assert!(tries.len() < 3, "{tries:?}");
}

/// Has a client send `request` and leave once the engine is where `before` leaves it.
fn leaves_at(request: &[u8], phase: Count, before: impl Fn(&mut Connection) + Send + Sync + Clone + 'static) {
    let leave = |way: Leave| {
        let (engine, seen) = engine(before.clone());
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send(request);
        assert!(matches!(next(&seen), Seen::Reached), "{way:?}");
        // What the engine sent first must have reached the front, or the client leaves in another phase.
        front.until("the phase", |front| front.counters.in_flight(0) == 1);
        if phase == Count::AbortedRelay {
            client.head();
            assert_eq!(front.counters.in_flight(0), 1, "{way:?}: it counts to its last byte");
        }
        let left = Instant::now();
        let kept = way.from(client);
        assert!(matches!(next(&seen), Seen::Closed), "{way:?}");
        let took = left.elapsed();
        front.settles();
        assert_eq!(front.count(phase), 1, "{way:?}");
        drop(kept);
        took
    };
    WAYS.into_iter().for_each(|way| at_once(|| leave(way)));
}

#[test]
fn while_uploading_by_length() {
    let half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"messages\"";
    leaves_at(half, Count::AbortedSend, |connection| {
        connection.head();
    });
}

#[test]
fn while_uploading_in_chunks() {
    let half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    leaves_at(half, Count::AbortedSend, |connection| {
        connection.head();
    });
}

#[test]
fn in_a_silent_prefill_or_an_unstreamed_wait() {
    leaves_at(&post("/v1/chat/completions", "{}"), Count::AbortedAwait, |connection| {
        connection.request();
    });
}

#[test]
fn behind_the_head_of_a_stream() {
    leaves_at(&post("/v1/chat/completions", "{}"), Count::AbortedRelay, |connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    });
}

#[test]
fn in_the_middle_of_a_stream() {
    leaves_at(&post("/v1/chat/completions", "{}"), Count::AbortedRelay, |connection| {
        connection.request();
        connection.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
        connection.send("9\r\ndata: a\n\n\r\n");
    });
}

#[test]
fn before_the_choice() {
    for way in WAYS {
        let (engine, _seen) = engine(|_| ());
        let front = Front::with(&[engine.address], |options| options.settings.policy = Policy::PrefixHash);
        let mut client = front.connect();
        client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{");
        front.until("the client", |front| front.count(Count::Accepted) == 1);
        let kept = way.from(client);
        front.until("the abort", |front| front.count(Count::AbortedReadBody) == 1);
        assert_eq!(engine.connections(), 0);
        front.settles();
        drop(kept);
    }
}

#[test]
fn while_connecting() {
    for way in WAYS {
        let (hole, _kept) = black_hole();
        let front = Front::with(&[hole], |options| options.rules.limits.connect_timeout_ms = 60_000);
        let mut client = front.connect();
        client.send(get("/v1/a"));
        front.until("the choice", |front| front.counters.in_flight(0) == 1);
        let kept = way.from(client);
        front.until("the abort", |front| front.count(Count::AbortedConnect) == 1);
        front.settles();
        drop(kept);
    }
}

/// A client that reset is gone, also while the front reads nothing more from it.
#[test]
fn by_reset_behind_many_pipelined_requests() {
    at_once(|| {
        let (engine, seen) = engine(|connection| {
            connection.request();
        });
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send(get("/v1/a").repeat(2_000));
        assert!(matches!(next(&seen), Seen::Reached));
        front.until("the read-ahead to be full", |front| front.count(Count::HeldBack) == 1);
        let left = Instant::now();
        client.reset();
        assert!(matches!(next(&seen), Seen::Closed));
        let took = left.elapsed();
        front.settles();
        assert_eq!(front.count(Count::AbortedAwait), 1);
        took
    });
}

/// A FIN behind pipelined requests is not taken for leaving: each is answered, then the connection ends.
#[test]
fn a_fin_behind_pipelined_requests_is_no_leaving() {
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    // Nothing is answered before the FIN is sent: a FIN that came while the last request is answered would be leaving.
    let engine = Engine::run(move |mut connection| {
        let _ = gate.lock().unwrap().recv();
        while connection.request().is_some() {
            connection.send(HELLO);
        }
    });
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send(get("/v1/a").repeat(3));
    client.half_close();
    drop(go);
    for _ in 0..3 {
        assert_eq!(client.reply().status, 200);
    }
    client.ends();
    assert_eq!(engine.executions(), 3);
    front.settles();
}

/// If the operator says that a half-close is not leaving, the reply still comes, and then the end.
#[test]
fn a_half_close_may_mean_waiting() {
    let (asked, was_asked) = std::sync::mpsc::channel();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let (asked, gate) = (std::sync::Mutex::new(asked), std::sync::Mutex::new(gate));
    let engine = Engine::run(move |mut connection| {
        connection.request();
        asked.lock().unwrap().send(()).unwrap();
        gate.lock().unwrap().recv().unwrap();
        connection.send(HELLO);
    });
    let front = Front::with(&[engine.address], |options| options.rules.half_close_leaves = false);
    let mut client = front.connect();
    client.send(get("/v1/a"));
    client.half_close();
    was_asked.recv_timeout(crate::front::PATIENCE).unwrap();
    go.send(()).unwrap();
    let reply = client.reply();
    assert_eq!((reply.status, reply.closes(), reply.whole), (200, true, true));
    client.ends();
    front.settles();
    assert_eq!(front.count(Count::AbortedAwait), 0);
}

/// A client that half-closed, and is taken to wait for its reply, may still reset its connection.
#[test]
fn by_reset_behind_a_half_close() {
    let leave = |requests: usize| {
        let (engine, seen) = engine(|connection| {
            connection.request();
            connection.send("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n");
            // The engine sends as much as the front takes.
            connection.stream().set_write_timeout(Some(Duration::from_millis(300))).unwrap();
            connection.send(vec![b'x'; 50_000_000]);
        });
        let front = Front::with(&[engine.address], |options| options.rules.half_close_leaves = requests > 1);
        let mut client = front.connect();
        client.send(get("/v1/a").repeat(requests));
        client.half_close();
        assert!(matches!(next(&seen), Seen::Reached));
        assert_eq!(front.counters.in_flight(0), 1);
        front.until("the reply", |front| front.count(Count::BytesOut) > 0);
        let left = Instant::now();
        client.reset();
        assert!(matches!(next(&seen), Seen::Closed));
        let took = left.elapsed();
        front.settles();
        assert_eq!(front.count(Count::AbortedRelay), 1);
        took
    };
    [1, 2].into_iter().for_each(|requests| at_once(|| leave(requests)));
}

/// In the middle of a body a FIN breaks the request, whatever a half-close is said to mean.
#[test]
fn a_half_close_in_a_body_breaks_the_request() {
    let (engine, seen) = engine(|connection| {
        connection.head();
    });
    let front = Front::with(&[engine.address], |options| options.rules.half_close_leaves = false);
    let mut client = front.connect();
    client.send("POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf");
    assert!(matches!(next(&seen), Seen::Reached));
    client.half_close();
    assert!(matches!(next(&seen), Seen::Closed));
    client.ends();
    front.settles();
    assert_eq!(engine.executions(), 0);
}

/// Half a head and a FIN get no answer and leave nothing behind.
#[test]
fn in_the_middle_of_a_head() {
    let front = Front::start(&[crate::engine::refusing()]);
    let mut client = front.connect();
    client.send("GET /v1/a HTTP/1.1\r\nHos");
    client.half_close();
    client.ends();
}

/// How soon the engine is freed, over many departures in each phase and way, on one front.
#[test]
fn engines_are_freed_within_milliseconds() {
    const TRIES: usize = 120;
    let phases: [(&str, &str); 3] = [
        ("silent prefill", ""),
        (
            "behind the head of a stream",
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        ),
        (
            "mid-stream",
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n",
        ),
    ];
    for (what, sent) in phases {
        let (engine, seen) = engine(move |connection| {
            connection.request();
            connection.send(sent);
        });
        let front = Front::start(&[engine.address]);
        let leave = |turn: usize| {
            let mut client = front.connect();
            client.send(post("/v1/chat/completions", "{}"));
            assert!(matches!(next(&seen), Seen::Reached));
            if !sent.is_empty() {
                client.head();
            }
            let left = Instant::now();
            let kept = WAYS[turn % WAYS.len()].from(client);
            assert!(matches!(next(&seen), Seen::Closed));
            drop(kept);
            left.elapsed()
        };
        // What else the machine does may spoil many departures, hardly more than two of eight of a way in each of 25
        // rows of 24. Who notices at a tick or a heartbeat alone is late more often than that, if in one way of leaving
        // only.
        let spoilt = (0..5).take_while(|_| {
            let mut took: Vec<_> = (0..TRIES).map(leave).collect();
            let is_prompt = |row: &[Duration], way: usize| {
                let of_way = row.iter().skip(way).step_by(WAYS.len());
                of_way.filter(|took| **took > Duration::from_millis(10)).count() <= 2
            };
            let some_are_prompt = took.chunks(24).any(|row| (0..WAYS.len()).all(|way| is_prompt(row, way)));
            took.sort_unstable();
            let [p50, p99] = [50, 99].map(|percent| took[TRIES * percent / 100]);
            let max = took[TRIES - 1];
            eprintln!(
                "{what}: from the client's leaving to the engine's notice p50 {p50:.1?}, p99 {p99:.1?}, max {max:.1?}"
            );
            !some_are_prompt
        });
        assert!(spoilt.count() < 5, "{what}");
        front.settles();
    }
}
