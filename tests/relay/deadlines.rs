//! Deadlines and bounds, each made small: a client whose request exceeds one is told so, and everything is given back.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warmfront::counters::stats::{Count, Gauge};
use warmfront::exchange::Rules;
use warmfront::limits::Limits;
use warmfront::policy::Policy;

use crate::client::{Client, get, post};
use crate::come::until_come;
use crate::engine::{Connection, Engine, HELLO, LAST, TOKEN, black_hole, gate};
use crate::front::Front;
use crate::tries::in_one_of;
use crate::wire::End;

const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
const KEEP_ALIVE: &str = "e\r\n: keep-alive\n\n\r\n";

fn limited(engine: &Engine, change: impl FnOnce(&mut Limits)) -> Front {
    Front::with(&[engine.address], |options| change(&mut options.rules.limits))
}

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// A script that answers one request and then waits for the front to close.
fn engine(answer: impl Fn(&mut Connection) + Send + Sync + 'static) -> Engine {
    Engine::run(move |mut connection| {
        connection.request();
        answer(&mut connection);
        connection.closed();
    })
}

#[test]
fn half_a_head() {
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| limits.head_timeout_ms = 100);
    for half in ["G", "GET /v1/a HTTP/1.1\r\nHost: x\r\n"] {
        let mut client = front.connect();
        client.send(half);
        let reply = client.reply();
        assert_eq!((reply.status, reply.closes()), (408, true));
        client.ends();
    }
    assert_eq!(engine.connections(), 0);
}

/// Some clients end a body with an empty line: it is no head, and the connection stays as idle as it was.
#[test]
fn an_empty_line_behind_a_body() {
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| limits.head_timeout_ms = 100);
    let mut client = front.connect();
    for line in ["\r\n", "\r"] {
        client.send([&post("/v1/chat/completions", "{}"), line.as_bytes()].concat());
        assert_eq!(client.reply().status, 200);
        assert!(client.is_silent(300), "{line:?}");
    }
    let mut client = front.connect();
    client.send([&post("/v1/chat/completions", "{}"), &b"\r\n"[..], &post("/v1/chat/completions", "{}")].concat());
    assert_eq!([client.reply().status, client.reply().status], [200, 200]);
    front.settles();
}

/// Bytes that keep trickling in do not move the deadline of a head: neither single ones, at which it is not read again,
/// nor whole lines, at which it is.
#[test]
fn a_head_that_trickles() {
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| limits.head_timeout_ms = 150);
    for more in ["A", "a: b\r\n"] {
        let mut client = front.connect();
        client.send("GET /v1/a HTTP/1.1\r\n");
        let begun = Instant::now();
        while client.is_silent(100) {
            assert!(begun.elapsed() < Duration::from_secs(5), "{more:?}");
            client.send(more);
        }
        assert_eq!(client.reply().status, 408);
    }
}

/// A head has its own time from its first byte, and not what is left of the time in which it had to begin.
#[test]
fn a_head_that_begins_at_the_last_moment() {
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| limits.keep_alive_timeout_ms = 1_000);
    let mut client = front.connect();
    let head = get("/v1/a");
    let (half, rest) = head.split_at(9);
    client.send(half);
    assert!(client.is_silent(1_300));
    client.send(rest);
    assert_eq!(client.reply().status, 200);
}

#[test]
fn a_connection_without_a_request() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    assert_eq!(client.ask(get("/v1/a")).status, 200);
    // Set only now: a client that the machine stops between connecting and asking would lose its connection.
    let limits = Limits { keep_alive_timeout_ms: 100, ..Limits::default() };
    front.published.publish_rules(Rules { limits, ..Rules::default() });
    assert_eq!(client.ask(get("/v1/a")).status, 200);
    assert_eq!(client.ends(), End::Fin);
    assert_eq!(front.connect().ends(), End::Fin);
}

#[test]
fn a_body_that_stalls() {
    for policy in [Policy::RoundRobin, Policy::PrefixHash] {
        let engine = Engine::answering(HELLO);
        let front = Front::with(&[engine.address], |options| {
            options.settings.policy = policy;
            options.rules.limits.body_stall_timeout_ms = 100;
        });
        let mut client = front.connect();
        client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"messages\":");
        let reply = client.reply();
        assert_eq!((reply.status, reply.closes()), (408, true), "{policy:?}");
        client.ends();
        front.settles();
        assert_eq!(engine.executions(), 0);
    }
}

#[test]
fn a_body_that_trickles() {
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| {
        limits.upload_grace_ms = 100;
        limits.upload_bytes_per_second_min = 10_000;
    });
    let mut client = front.connect();
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{");
    let begun = Instant::now();
    while client.is_silent(10) {
        assert!(begun.elapsed() < Duration::from_secs(5), "it may take as long as it likes");
        client.send("x");
    }
    assert_eq!(client.reply().status, 408);
    front.settles();
}

#[test]
fn no_connection_in_time() {
    let (hole, _kept) = black_hole();
    let front = Front::with(&[hole], |options| options.rules.limits.connect_timeout_ms = 100);
    assert_eq!(front.ask(get("/v1/a")).status, 503);
    front.settles();
    // A SYN may have been lost, and there is no other engine: it is tried again.
    let tries = u64::from(warmfront::limits::Limits::default().connect_tries_max);
    assert_eq!((front.count(Count::ConnectFailed), front.count(Count::RetriedConnect)), (tries, tries - 1));
    // All its tries count as one request's failure, and do not bar the engine.
    assert_eq!((front.count(Count::Barred), front.counters.outcomes().read(0).in_a_row), (0, 1));
}

#[test]
fn no_head_of_a_reply() {
    for begin in ["", "HTTP/1.1 200", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
        let engine = engine(move |connection| connection.send(begin));
        let front = limited(&engine, |limits| limits.reply_head_timeout_ms = 200);
        let mut client = front.connect();
        client.send(post("/v1/chat/completions", "{}"));
        let mut reply = client.reply();
        if reply.status == 103 {
            reply = client.reply();
        }
        assert_eq!((reply.status, reply.closes()), (504, false), "{begin:?}");
        front.settles();
        front.until("the engine to read it", |_| engine.executions() > 0);
        assert_eq!((engine.executions(), front.count(Count::UpstreamFaultHeadTimeout)), (1, 1));
    }
}

/// If an engine never reads, the client is not blamed for its slow upload.
#[test]
fn an_engine_that_takes_no_request() {
    let (open, wait) = gate();
    let engine = Engine::narrow(move |mut connection| {
        connection.head();
        wait();
    });
    let front = limited(&engine, |limits| limits.reply_head_timeout_ms = 300);
    let request = post("/v1/chat/completions", vec![b'x'; 12 << 20]);
    let mut client = front.connect();
    let mut writer = client.clone_stream();
    let sender = std::thread::spawn(move || drop(std::io::Write::write_all(&mut writer, &request)));
    assert_eq!(client.reply().status, 504);
    drop((client, open));
    sender.join().unwrap();
    front.settles();
}

/// Head and comments are no token: their coming does not move the deadline.
#[test]
fn no_first_token() {
    // For ten seconds: the machine stops no thread for so long.
    const COMMENTS: usize = 500;
    let engine = engine(|connection| {
        connection.send(EVENTS);
        for _ in 0..COMMENTS {
            connection.send(KEEP_ALIVE);
            pause(20);
        }
    });
    let front = limited(&engine, |limits| {
        limits.first_token_timeout_ms = 200;
        limits.inter_chunk_timeout_ms = 60_000;
    });
    let begun = Instant::now();
    let reply = front.ask(post("/v1/chat/completions", "{}"));
    assert!(begun.elapsed() >= Duration::from_millis(150), "{:?}", begun.elapsed());
    assert_eq!((reply.status, reply.whole), (200, false));
    assert!(reply.chunks.len() < COMMENTS, "all comments came");
    assert_eq!(front.count(Count::UpstreamFaultFirstTokenTimeout), 1);
    front.settles();
}

/// Between head and first token only the longer deadline holds.
#[test]
fn a_long_prefill_behind_the_head() {
    let engine = engine(|connection| {
        connection.send(EVENTS);
        pause(400);
        connection.send([TOKEN, LAST].concat());
    });
    let front = limited(&engine, |limits| limits.inter_chunk_timeout_ms = 100);
    assert!(front.ask(post("/v1/chat/completions", "{}")).whole);
}

/// vLLM opens an answer of `/v1/responses` before it begins to compute it: those events are no token.
#[test]
fn a_long_prefill_behind_an_opened_answer() {
    let engine = engine(|connection| {
        connection.send(EVENTS);
        for name in ["response.created", "response.in_progress"] {
            let event = format!("event: {name}\ndata: {{\"type\":\"{name}\"}}\n\n");
            connection.send(format!("{:x}\r\n{event}\r\n", event.len()));
        }
        pause(400);
        connection.send([TOKEN, LAST].concat());
    });
    let front = limited(&engine, |limits| limits.inter_chunk_timeout_ms = 100);
    assert!(front.ask(post("/v1/responses", "{}")).whole);
    front.settles();
}

#[test]
fn silence_between_tokens() {
    for head in [EVENTS, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"] {
        let engine = engine(move |connection| {
            connection.send(head);
            for _ in 0..4 {
                connection.send(TOKEN);
                pause(60);
            }
        });
        let front = limited(&engine, |limits| limits.inter_chunk_timeout_ms = 150);
        let tokens = || {
            let mut client = front.connect();
            let reply = client.ask(post("/v1/chat/completions", "{}"));
            assert_eq!((reply.status, reply.whole, client.ends()), (200, false, End::Fin));
            reply.chunks.len()
        };
        // An engine that the machine stops before its last token is silent for too long; that hardly happens in each of
        // five tries.
        in_one_of(5, "tokens before the silence", 4, tokens);
        front.settles();
    }
}

#[test]
fn a_tunnel_without_a_byte() {
    let engine = engine(|connection| connection.send(crate::tunnel::SWITCH));
    let front = limited(&engine, |limits| limits.tunnel_idle_timeout_ms = 150);
    let mut client = front.connect();
    client.send(crate::tunnel::ASK);
    assert_eq!(client.reply().status, 101);
    assert_eq!(client.ends(), End::Reset);
    front.settles();
    assert_eq!([Count::UpstreamFaultChunkTimeout, Count::StreamCut].map(|count| front.count(count)), [1, 1]);
}

/// A refused client that goes on sending gets its answer, and is read from for a bounded time.
#[test]
fn surplus_behind_a_refusal() {
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| limits.linger_timeout_ms = 400);
    let refuse = |client: &mut Client| {
        client.send("POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n");
        assert_eq!(client.reply().status, 413);
    };
    // If it sends nothing more, the connection is closed when the time is over, and not when it would be in all.
    let mut client = front.connect();
    let begun = Instant::now();
    refuse(&mut client);
    assert_eq!(client.ends(), End::Fin);
    front.until("it is closed", |front| front.count(Count::Closed) == 1);
    assert!(begun.elapsed() < Duration::from_millis(3_600), "{:?}", begun.elapsed());
    // If it sends on, a reset answers it after four seconds at the latest.
    let mut client = front.connect();
    refuse(&mut client);
    let begun = Instant::now();
    assert_eq!(client.ends(), End::Fin);
    while client.stream().take_error().unwrap().is_none() && begun.elapsed() < Duration::from_secs(12) {
        client.send("x");
        pause(10);
        if std::io::Write::write(client.stream(), b"x").is_err() {
            break;
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(engine.connections(), 0);
}

#[test]
fn heads_too_long() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    let long = format!("GET /v1/a HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "a".repeat(33_000));
    let many = format!("GET /v1/a HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(100));
    let target = format!("GET /v1/{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(33_000));
    for request in [long, many, target] {
        for pieces in [usize::MAX, 1_000] {
            let mut client = front.connect();
            request.as_bytes().chunks(pieces).for_each(|piece| client.send(piece));
            let reply = client.reply();
            assert_eq!((reply.status, reply.closes()), (431, true));
            client.ends();
        }
    }
    let fits = format!("GET /v1/a HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "a".repeat(32_000));
    assert_eq!(front.ask(fits).status, 200);
    assert_eq!(engine.executions(), 1);
}

#[test]
fn bodies_too_long() {
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| limits.body_bytes_max = 1_000);
    // A body with its length announced is refused before any of it is read, and before an engine is asked.
    let reply = front.ask("POST /v1/a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
    assert_eq!((reply.status, reply.closes(), engine.connections()), (413, true, 0));
    assert_eq!(front.ask(post("/v1/a", "x".repeat(1_000))).status, 200);
    // One in chunks is refused as soon as it is too long.
    let mut client = front.connect();
    client.send("POST /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..11 {
        client.send(format!("64\r\n{}\r\n", "x".repeat(100)));
    }
    assert_eq!(client.reply().status, 413);
    front.settles();
    assert_eq!(engine.executions(), 1);
}

/// Connections beyond the limit wait in the kernel's queue until one ends.
#[test]
fn connections_beyond_the_most_wait() {
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| limits.connections_max = 3);
    let mut served: Vec<_> = (0..3).map(|_| front.connect()).collect();
    for client in &mut served {
        assert_eq!(client.ask(get("/v1/a")).status, 200);
    }
    let mut waiting = front.connect();
    waiting.send(get("/v1/a"));
    assert!(waiting.is_silent(100));
    drop(served.pop());
    assert_eq!(waiting.reply().status, 200);
    assert_eq!(served[0].ask(get("/v1/a")).status, 200);
    // As many as are there now, and more once the rules say so.
    let mut waiting = front.connect();
    waiting.send(get("/v1/a"));
    assert!(waiting.is_silent(100));
    let limits = Limits { connections_max: 4, ..Limits::default() };
    front.published.publish_rules(Rules { limits, ..Rules::default() });
    assert_eq!(waiting.reply().status, 200);
}

/// Once as many connections to an engine are idle as may be kept, others end with their requests.
#[test]
fn connections_to_an_engine_beyond_the_most_are_not_kept() {
    let (open, wait) = gate();
    let engine = Engine::gated(wait);
    let front = limited(&engine, |limits| (limits.idle_upstreams_max, limits.upstream_idle_timeout_ms) = (2, 60_000));
    let mut clients: Vec<Client> = (0..6).map(|_| front.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/v1/a")));
    front.until("all six", |_| engine.executions() == 6);
    (0..8).for_each(|_| open.send(()).unwrap());
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    front.settles();
    let shard = front.stats.shard(0);
    front.until("those that are kept", |_| shard.gauge(Gauge::Upstreams) == 2);
    assert!((0..2).all(|_| front.ask(get("/v1/a")).status == 200));
    assert_eq!(engine.connections(), 6);
}

/// Told to drain, the front finishes what runs, says that connections end, and takes no new ones.
#[test]
fn draining_finishes_what_runs() {
    let (open, wait) = gate();
    let engine = Engine::run(move |mut connection| {
        connection.request();
        connection.send(EVENTS);
        connection.send(TOKEN.repeat(5));
        wait();
        connection.send(TOKEN.repeat(5) + LAST);
    });
    let front = limited(&engine, |limits| limits.drain_timeout_ms = 20_000);
    let mut idle = front.connect();
    let mut client = front.connect();
    idle.ask(get("/health"));
    client.send(post("/v1/chat/completions", "{}"));
    front.until("the stream", |front| front.counters.in_flight(0) == 1);
    let _port = keep_port(front.address);
    front.drain();
    assert_eq!(idle.ends(), End::Fin);
    // The listener closes while the stream still runs.
    front.until("no listener", |front| TcpStream::connect(front.address).is_err());
    open.send(()).unwrap();
    let reply = client.reply();
    assert_eq!((reply.status, reply.whole, reply.chunks.len()), (200, true, 10));
    client.ends();
}

/// Requests that have arrived when draining begins are answered, even if none of their bytes were read, or their
/// connections not accepted: they came in the middle of a turn. So are the first requests of clients that have just
/// connected.
#[test]
fn draining_answers_what_has_come() {
    // It fails if the machine stands still in between; that hardly happens in each of three tries.
    in_one_of(3, "all ask while they are waited for", true, what_has_come_is_answered);
}

/// False: the clients that had just connected asked only after the front's time to wait for them was over.
fn what_has_come_is_answered() -> bool {
    /// It does for a second.
    const WELL_WITHIN: Duration = Duration::from_millis(800);
    static HOLDS: AtomicBool = AtomicBool::new(false);
    static STANDS: AtomicBool = AtomicBool::new(false);
    /// Lets the shard go on when dropped, whatever fails: the test waits for the shard's end.
    struct Hold;
    impl Drop for Hold {
        fn drop(&mut self) {
            HOLDS.store(false, Ordering::Relaxed);
        }
    }
    STANDS.store(false, Ordering::Relaxed);
    let engine = Engine::answering(HELLO);
    let front = Front::with(&[engine.address], |options| {
        options.rules.limits.drain_timeout_ms = 20_000;
        options.stopwatch = || {
            while HOLDS.load(Ordering::Relaxed) {
                STANDS.store(true, Ordering::Relaxed);
                pause(1);
            }
            warmfront::shard::stopwatch()
        };
    });
    let mut clients: Vec<Client> = (0..50).map(|_| front.connect()).collect();
    let request = post("/v1/chat/completions", "{}");
    assert!(clients.iter_mut().all(|client| client.ask(&request).status == 200));
    let mut idler = clients.pop().unwrap();
    let accepted = front.count(Count::Accepted) + 10;
    let connecting = Instant::now();
    let mut late: Vec<Client> = (0..10).map(|_| front.connect()).collect();
    front.until("they are accepted", |front| front.count(Count::Accepted) == accepted);
    let hold = Hold;
    HOLDS.store(true, Ordering::Relaxed);
    clients[0].send(&request);
    front.until("the middle of a turn", |_| STANDS.load(Ordering::Relaxed));
    clients[1..].iter_mut().for_each(|client| client.send(&request));
    // An empty line is no request: the front does not wait for more of it.
    idler.send("\r\n");
    // Connections that wait to be accepted count, too: closing the listener would reset them.
    let arrive = || {
        let mut client = front.connect();
        client.send(&request);
        client
    };
    until_come(|| {
        clients.extend((0..30).map(|_| arrive()));
        late.extend((0..10).map(|_| front.connect()));
    });
    front.drain();
    drop(hold);
    let begun = Instant::now();
    pause(50);
    late.iter_mut().for_each(|client| client.send(&request));
    if connecting.elapsed() > WELL_WITHIN {
        return false;
    }
    for (place, client) in clients.iter_mut().chain(&mut late).enumerate() {
        let reply = client.reply();
        assert_eq!((reply.status, reply.closes()), (200, true), "{place}");
        assert_eq!(client.ends(), End::Fin, "{place}");
    }
    assert_eq!(idler.ends(), End::Fin);
    assert!(begun.elapsed() < Duration::from_secs(10), "it waits for who asks nothing");
    true
}

/// A client that has just been answered may have sent its next request already: a pool keeps its connection busy.
#[test]
fn draining_waits_for_who_has_just_asked() {
    in_one_of(3, "all ask while they are waited for", true, who_has_just_asked_is_waited_for);
}

fn who_has_just_asked_is_waited_for() -> bool {
    /// It does for a second.
    const WELL_WITHIN: Duration = Duration::from_millis(800);
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| limits.drain_timeout_ms = 20_000);
    let request = post("/v1/chat/completions", "{}");
    let mut clients: [Client; 8] = std::array::from_fn(|_| front.connect());
    let begun = Instant::now();
    assert!(clients.iter_mut().all(|client| client.ask(&request).status == 200));
    front.drain();
    // The front looks every 50 ms which connections are idle.
    pause(200);
    let [idle, busy @ ..] = &mut clients;
    busy.iter_mut().for_each(|client| client.send(&request));
    if begun.elapsed() > WELL_WITHIN {
        return false;
    }
    for client in busy {
        let reply = client.reply();
        assert_eq!((reply.status, reply.closes()), (200, true));
        assert_eq!(client.ends(), End::Fin);
    }
    assert_eq!(idle.ends(), End::Fin);
    assert!(begun.elapsed() < Duration::from_secs(10), "it waits for who asks nothing");
    true
}

/// Connections that wait for a place get those of the idle ones, which are closed first.
#[test]
fn draining_answers_who_waits_for_a_place() {
    let engine = Engine::answering(HELLO);
    let front = limited(&engine, |limits| (limits.connections_max, limits.drain_timeout_ms) = (3, 20_000));
    let mut idle: Vec<Client> = (0..3).map(|_| front.connect()).collect();
    assert!(idle.iter_mut().all(|client| client.ask(get("/v1/a")).status == 200));
    let mut waiting: Vec<Client> = (0..3).map(|_| front.connect()).collect();
    waiting.iter_mut().for_each(|client| client.send(get("/v1/a")));
    assert!(waiting[0].is_silent(100));
    front.drain();
    for client in &mut waiting {
        let reply = client.reply();
        assert_eq!((reply.status, reply.closes()), (200, true));
        assert_eq!(client.ends(), End::Fin);
    }
    assert!(idle.iter_mut().all(|client| client.ends() == End::Fin));
}

/// Keeps a port bound, beside its listener: once that is closed no other test gets the port, and connections are
/// refused.
fn keep_port(address: SocketAddr) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
    let beside = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseport(&beside, true).unwrap();
    bind(&beside, &address).unwrap();
    beside
}

/// A reply that takes longer than the drain is cut visibly; if its head has not come yet, the client's connection is
/// reset.
#[test]
fn draining_ends() {
    for begun in [true, false] {
        let engine = engine(move |connection| {
            if begun {
                connection.send([EVENTS, TOKEN].concat());
            }
        });
        let front = limited(&engine, |limits| limits.drain_timeout_ms = 150);
        let mut client = front.connect();
        client.send(post("/v1/chat/completions", "{}"));
        front.until("the request", |front| front.counters.in_flight(0) == 1);
        if begun {
            front.until("the stream", |front| front.count(Count::BytesOut) > 0);
        }
        front.drain();
        match begun {
            true => assert!(!client.reply().whole),
            false => assert_eq!(client.rest(), (Vec::new(), End::Reset)),
        }
        front.settles();
        assert_eq!(front.count(Count::StreamCut), u64::from(begun));
    }
}
