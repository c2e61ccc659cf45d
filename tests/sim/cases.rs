//! Written schedules: faults that random ones would take long to come upon.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use warmfront::config;
use warmfront::control::health::Course;
use warmfront::counters::stats::{Count, RequestKey, Timing};
use warmfront::driver::Tag;
use warmfront::exchange::{QueueRules, Rules};
use warmfront::fleet::{Endpoint, Health};
use warmfront::policy::{Policy, Queueing, Settings};
use warmfront::publish::Process;
use warmfront::shard::Shard;

use crate::control::Control;
use crate::draw;
use crate::driver::Simulated;
use crate::network::{Knobs, Network};
use crate::pipe::{End, Stage};
use crate::plan::pattern;
use crate::schedule::{FAULT, shard, statics};
use crate::shadow::slot_of;

const SECOND: u64 = 1_000_000;
const GET: &[u8] = b"GET /v1/things HTTP/1.1\r\nhost: a\r\n\r\n";
const UPGRADE: &[u8] = b"GET /v1/things HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";

/// One endpoint, a network without faults, and a hand that moves both ends.
struct Table {
    network: Rc<RefCell<Network>>,
    shard: Shard<Simulated>,
    process: &'static Process,
}

impl Table {
    fn new(change: impl FnOnce(&mut Rules)) -> Table {
        Table::seeded(1, change)
    }

    fn seeded(seed: u64, change: impl FnOnce(&mut Rules)) -> Table {
        let knobs = Knobs {
            lease_max: 65_536,
            room_min: 1 << 20,
            room_max: 1,
            late: 0,
            short: 0,
            refused: 0,
            swallowed: 0,
            scarce: 0,
            dead: Vec::new(),
            portless: None,
            connect: 100_000,
            turn: 200,
        };
        let network = Rc::new(RefCell::new(Network::new(seed, 1, knobs)));
        let settings = Arc::new(Settings { policy: Policy::RoundRobin, replication: 1, ..Settings::default() });
        statics(1).published.publish(draw::snapshot(&[Some(draw::endpoint(0, 0))], &settings));
        let mut rules = Rules::default();
        change(&mut rules);
        let process = Process::leak(1);
        let shard = shard(&network, statics(1), 0, process, &Arc::new(rules), seed);
        Table { network, shard, process }
    }

    /// A client whose kernel holds so many bytes that it has not read.
    fn client(&mut self, room: usize) -> usize {
        let mut network = self.network.borrow_mut();
        let pipe = network.add(None, 0, Stage::Fresh, Tag(0));
        network.pipes[pipe].room = room;
        network.ports[0].arrivals.push_back(pipe);
        pipe
    }

    /// The connection to the engine opened last.
    fn engine(&self) -> usize {
        let network = self.network.borrow();
        network.pipes.iter().rposition(|pipe| pipe.stands).expect("a connection to an engine")
    }

    fn send(&mut self, pipe: usize, bytes: impl AsRef<[u8]>) {
        self.network.borrow_mut().peer_send(pipe, bytes.as_ref(), usize::MAX);
    }

    fn end(&mut self, pipe: usize, end: End) {
        self.network.borrow_mut().peer_ends(pipe, end);
    }

    /// Which of these connections to the engine a request goes on; `None`: on another.
    fn asks_on(&mut self, client: usize, lines: &[usize]) -> Option<usize> {
        self.send(client, GET);
        self.pass(SECOND / 10);
        lines.iter().copied().find(|line| self.network.borrow().unread_by_peer(*line) > 0)
    }

    fn receive(&mut self, pipe: usize) -> Vec<u8> {
        let bytes = self.network.borrow_mut().peer_receive(pipe, usize::MAX);
        self.pass(SECOND / 10);
        bytes
    }

    /// Reads until nothing comes.
    fn receive_all(&mut self, pipe: usize) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let bytes = self.receive(pipe);
            if bytes.is_empty() {
                return all;
            }
            all.extend(bytes);
        }
    }

    /// Time passes, and all that can happen in it does.
    fn pass(&mut self, micros: u64) {
        let until = self.network.borrow().now + micros;
        while self.network.borrow().now < until {
            self.network.borrow_mut().peers_next = Some(until);
            self.shard.turn().expect("a kernel that does not fail");
        }
    }

    /// The client asks, the engine reads it.
    fn ask(&mut self, client: usize, request: &[u8]) -> usize {
        self.send(client, request);
        self.pass(SECOND);
        let engine = self.engine();
        assert!(self.receive(engine).ends_with(b"\r\n\r\n"));
        engine
    }

    fn front_end(&self, pipe: usize) -> Option<End> {
        self.network.borrow().front_end(pipe)
    }
}

fn reply(len: usize) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n").as_bytes(), &pattern("r", 'r', len)].concat()
}

#[test]
fn a_drain_waits_for_what_a_client_has_not_read() {
    let mut table = Table::new(|_| {});
    let client = table.client(1_000);
    let engine = table.ask(client, GET);
    table.send(engine, reply(30_000));
    table.pass(SECOND);
    table.process.drain();
    table.pass(SECOND);
    assert!(table.receive_all(client).ends_with(&pattern("r", 'r', 30_000)));
    assert_eq!(table.front_end(client), Some(End::Fin));
}

#[test]
fn a_slow_reader_may_have_asked_again() {
    for next in [&GET[..7], b""] {
        let mut table = Table::new(|rules| rules.limits.keep_alive_timeout_ms = 5_000);
        let client = table.client(1_000);
        let engine = table.ask(client, GET);
        table.send(engine, reply(30_000));
        table.pass(SECOND);
        table.send(client, next);
        table.pass(20 * SECOND);
        assert!(table.receive_all(client).ends_with(&pattern("r", 'r', 30_000)), "asked again: {next:?}");
    }
}

#[test]
fn what_a_stalled_reader_missed_shows() {
    let mut table = Table::new(|rules| rules.limits.client_stall_timeout_ms = 5_000);
    let client = table.client(1_000);
    let engine = table.ask(client, b"GET /v1/things HTTP/1.0\r\nhost: a\r\n\r\n");
    let body = String::from_utf8(pattern("r", 'r', 0x7000)).expect("ASCII");
    table.send(engine, format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7000\r\n{body}\r\n0\r\n\r\n"));
    table.pass(20 * SECOND);
    table.receive_all(client);
    assert_eq!(table.front_end(client), Some(End::Reset));
}

/// There is room again only once it has taken everything: which takes longer than it may take nothing, in its reply and
/// behind it.
#[test]
fn who_takes_a_little_at_a_time_is_not_stalled() {
    for (len, sent) in [(30_000, 30_000), (30_000, 20_000)] {
        let mut table = Table::new(|rules| {
            (rules.limits.client_stall_timeout_ms, rules.limits.keep_alive_timeout_ms) = (5_000, 5_000);
        });
        let client = table.client(1_000);
        let engine = table.ask(client, GET);
        table.send(engine, &reply(len)[..sent]);
        table.pass(SECOND);
        let mut got = 0;
        for _ in 0..10 {
            let bytes = table.network.borrow_mut().peer_receive(client, 500);
            got += bytes.len();
            table.pass(4 * SECOND);
            assert_eq!(table.front_end(client), None, "after {got} of {sent} bytes");
        }
        assert_eq!(got, 5_000);
        // And then nothing more.
        table.pass(2 * SECOND);
        assert_eq!(table.front_end(client), None);
        table.pass(5 * SECOND);
        table.receive_all(client);
        assert_eq!(table.front_end(client), Some(End::Reset), "of {sent} bytes");
    }
}

#[test]
fn who_half_closes_does_not_take_a_cut_for_the_end() {
    let mut table = Table::new(|rules| rules.half_close_leaves = true);
    let client = table.client(1 << 20);
    let engine = table.ask(client, b"GET /v1/things HTTP/1.0\r\nhost: a\r\n\r\n");
    table.send(engine, b"HTTP/1.1 200 OK\r\n\r\nthe beginning");
    table.pass(SECOND);
    table.end(client, End::Fin);
    table.pass(SECOND);
    table.receive_all(client);
    assert_eq!(table.front_end(client), Some(End::Reset));
}

#[test]
fn a_fin_behind_pipelined_requests_loses_none() {
    // Whichever of the two comes first in one turn.
    for seed in 0..20 {
        let mut table = Table::seeded(seed, |rules| rules.half_close_leaves = true);
        let client = table.client(1 << 20);
        let engine = table.ask(client, GET);
        table.send(client, GET);
        table.pass(SECOND);
        table.end(client, End::Fin);
        table.send(engine, reply(3));
        table.pass(SECOND);
        assert!(table.receive(engine).starts_with(b"GET"), "seed {seed}: the second request is lost");
        table.send(engine, reply(5));
        table.pass(SECOND);
        let got = table.receive(client);
        assert!(got.ends_with(&reply(5)[17..]), "seed {seed}: {:?}", String::from_utf8_lossy(&got));
    }
}

#[test]
fn the_wheel_forgets_what_moved() {
    let mut table = Table::new(|_| {});
    let client = table.client(1 << 20);
    for _ in 0..500 {
        let engine = table.ask(client, GET);
        table.send(engine, reply(3));
        table.pass(SECOND);
        table.receive(client);
    }
    assert!(table.shard.audit().looks < 100, "{:?}", table.shard.audit());
}

/// Thousands that came together are due together, and streams go on meanwhile.
#[test]
fn those_whose_time_is_over_together_end_over_several_turns() {
    let mut table = Table::new(|_| {});
    (0..800).for_each(|_| _ = table.client(1 << 20));
    let clients = |table: &Table| table.shard.audit().clients;
    while clients(&table) < 800 {
        table.shard.turn().expect("a kernel that does not fail");
    }
    let mut most = 0;
    let until = table.network.borrow().now + 100 * SECOND;
    while clients(&table) > 0 && table.network.borrow().now < until {
        let before = clients(&table);
        table.network.borrow_mut().peers_next = Some(until);
        table.shard.turn().expect("a kernel that does not fail");
        most = most.max(before - clients(&table));
    }
    assert_eq!(clients(&table), 0, "nobody is forgotten");
    assert!((64..200).contains(&most), "{most} in one turn");
}

/// Streams of other engines go on meanwhile.
#[test]
fn those_whose_engine_is_gone_hear_of_it_over_several_turns() {
    let mut table = Table::new(|_| {});
    let clients: Vec<usize> = (0..400).map(|_| table.client(1 << 20)).collect();
    table.pass(SECOND);
    clients.iter().for_each(|client| table.send(*client, GET));
    table.pass(SECOND);
    let pipes = 0..table.network.borrow().pipes.len();
    let is_engines = |pipe: &usize| table.network.borrow().pipes[*pipe].address.is_some();
    let engines: Vec<usize> = pipes.filter(is_engines).collect();
    engines.iter().for_each(|engine| table.send(*engine, [STREAM, "7\r\ndata: 1\r\n"].concat()));
    table.pass(SECOND);
    let legs = |table: &Table| table.shard.audit().legs.iter().sum::<u32>();
    assert_eq!(legs(&table), 400);
    let settings = Arc::new(Settings { policy: Policy::RoundRobin, replication: 1, ..Settings::default() });
    let gone = Endpoint { refuses_probes: true, ..draw::endpoint(0, 0) };
    statics(1).published.publish(draw::snapshot(&[Some(gone)], &settings));
    let (mut most, until) = (0, table.network.borrow().now + 20 * SECOND);
    while legs(&table) > 0 && table.network.borrow().now < until {
        let before = legs(&table);
        table.network.borrow_mut().peers_next = Some(until);
        table.shard.turn().expect("a kernel that does not fail");
        most = most.max(before - legs(&table));
    }
    assert_eq!((legs(&table), most), (0, 128));
    statics(1).counters.outcomes().forget(0);
}

/// Streams go on until they end, and do not stand still for those who are sent away.
#[test]
fn a_drain_ends_idle_connections_over_several_turns() {
    let mut table = Table::new(|_| {});
    (0..800).for_each(|_| _ = table.client(1 << 20));
    table.pass(3 * SECOND);
    let clients = |table: &Table| table.shard.audit().clients;
    assert_eq!(clients(&table), 800);
    table.process.drain();
    let (mut most, mut turns) = (0, 0);
    while clients(&table) > 0 && turns < 20 {
        let before = clients(&table);
        table.shard.turn().expect("a kernel that does not fail");
        (most, turns) = (most.max(before - clients(&table)), turns + 1);
    }
    assert_eq!((clients(&table), most), (0, 256), "{turns} turns");
}

/// Who waits at the listeners as a drain begins has asked. Others idle in his place, also where there were some free:
/// more than are sent away in one turn, or who were answered a moment ago and ask again.
#[test]
fn who_waits_as_a_drain_begins_gets_the_place_of_who_idles() {
    let asks = |table: &mut Table, clients: &[usize]| {
        let health = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n";
        clients.iter().for_each(|client| table.send(*client, health));
    };
    for idles_for in [3 * SECOND, SECOND / 2] {
        let mut table = Table::new(|rules| rules.limits.connections_max = 600);
        let come = |table: &mut Table| (0..500).map(|_| table.client(1 << 20)).collect::<Vec<_>>();
        let idle = come(&mut table);
        table.pass(3 * SECOND);
        asks(&mut table, &idle);
        table.pass(idles_for);
        let waiting = come(&mut table);
        asks(&mut table, &waiting);
        table.process.drain();
        table.pass(SECOND / 10);
        let answered = waiting.iter().filter(|client| table.front_end(**client) != Some(End::Reset)).count();
        assert_eq!(answered, 500, "{idles_for}");
        assert!(waiting.iter().all(|client| table.network.borrow_mut().peer_receive(*client, 9) == b"HTTP/1.1 "));
    }
}

/// Many clients, each of which has written more than it may ask in one turn.
#[test]
fn those_who_ask_much_that_is_answered_here_are_served_over_several_turns() {
    let mut table = Table::new(|_| {});
    let clients: Vec<usize> = (0..180).map(|_| table.client(1 << 20)).collect();
    table.pass(SECOND);
    let stats = statics(1).stats.shard(0);
    let answered = || stats.count_of(Count::AnsweredHere);
    let first = answered();
    clients.iter().for_each(|client| table.send(*client, b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n".repeat(20)));
    let (mut most, mut turns) = (0, 0);
    while answered() - first < 180 * 20 && turns < 1_000 {
        let before = answered();
        table.shard.turn().expect("a kernel that does not fail");
        turns += 1;
        most = most.max(answered() - before);
    }
    assert_eq!(answered() - first, 180 * 20, "all are answered");
    // Sixteen each until there were many, then one.
    assert!(most <= 512 + 16 + 180 + 64, "{most} in one turn");
}

/// However long that takes.
#[test]
fn whose_heads_wait_for_their_turn_is_not_slow() {
    let mut table = Table::new(|rules| rules.limits.head_timeout_ms = 50);
    let clients: Vec<usize> = (0..640).map(|_| table.client(1 << 20)).collect();
    table.pass(SECOND);
    let stats = statics(1).stats.shard(0);
    let first = stats.count_of(Count::AnsweredHere);
    clients.iter().for_each(|client| table.send(*client, b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n".repeat(17)));
    for _ in 0..100 {
        // Who comes meanwhile has the clock go on.
        table.client(1 << 20);
        table.network.borrow_mut().now += 20_000;
        table.shard.turn().expect("a kernel that does not fail");
    }
    assert_eq!(stats.count_of(Count::AnsweredHere) - first, 640 * 17);
}

/// In however small pieces it comes, and though no line of it is ever whole.
#[test]
fn a_reply_head_that_does_not_end_is_given_up() {
    let mut table = Table::new(|_| {});
    let client = table.client(1 << 20);
    let engine = table.ask(client, GET);
    table.send(engine, b"HTTP/1.1 200 OK\r\nx: ");
    let mut pieces = 0;
    while table.front_end(engine).is_none() && pieces < 1_000 {
        table.send(engine, [b'x'; 1_000]);
        table.pass(SECOND / 100);
        pieces += 1;
    }
    assert!(pieces < 300, "{pieces} KB are held");
    assert!(table.receive_all(client).starts_with(b"HTTP/1.1 502 "));
}

const UPLOAD: &str = "POST /v1/things HTTP/1.1\r\nhost: a\r\ncontent-length: 2000000\r\n\r\nx";

/// However briskly it comes.
#[test]
fn an_upload_may_take_so_long_in_all() {
    let mut table = Table::new(|rules| rules.limits.upload_timeout_ms = 30_000);
    let client = table.client(1 << 20);
    table.send(client, UPLOAD);
    table.pass(SECOND);
    let engine = table.engine();
    let (mut seconds, mut told) = (1, Vec::new());
    while told.is_empty() && seconds < 100 {
        table.send(client, [b'x'; 10_000]);
        table.pass(SECOND);
        table.network.borrow_mut().peer_receive(engine, usize::MAX);
        told = table.network.borrow_mut().peer_receive(client, usize::MAX);
        seconds += 1;
    }
    assert!((30..33).contains(&seconds), "{seconds}");
    assert!(told.starts_with(b"HTTP/1.1 408 "));
}

/// What came before its engine had it held back does not count for what comes behind.
#[test]
fn an_upload_is_measured_anew_when_it_goes_on() {
    let mut table = Table::new(|rules| rules.limits.upload_grace_ms = 10_000);
    let client = table.client(1 << 20);
    table.send(client, UPLOAD);
    table.pass(SECOND);
    let engine = table.engine();
    table.network.borrow_mut().pipes[engine].room = 1_000;
    table.send(client, [b'x'; 20_000]);
    table.pass(5 * SECOND);
    table.receive_all(engine);
    let (mut seconds, mut told) = (0, Vec::new());
    while told.is_empty() && seconds < 100 {
        table.send(client, [b'x'; 10]);
        table.pass(SECOND);
        table.receive_all(engine);
        told = table.network.borrow_mut().peer_receive(client, usize::MAX);
        seconds += 1;
    }
    assert!((8..14).contains(&seconds), "{seconds}");
    assert!(told.starts_with(b"HTTP/1.1 408 "));
}

/// However long others have been.
#[test]
fn a_connection_to_an_engine_ends_when_it_was_idle_too_long_itself() {
    let mut table = Table::new(|rules| rules.limits.upstream_idle_timeout_ms = 10_000);
    let clients = [(); 2].map(|()| table.client(1 << 20));
    let engines = clients.map(|client| table.ask(client, GET));
    for engine in engines {
        table.send(engine, reply(3));
        table.pass(4 * SECOND);
    }
    table.pass(3 * SECOND);
    assert_eq!(engines.map(|engine| table.front_end(engine)), [Some(End::Fin), None]);
    table.pass(4 * SECOND);
    assert_eq!(engines.map(|engine| table.front_end(engine)), [Some(End::Fin); 2]);
}

/// A balancer keeps its connections for longer than the front does, and does not send a POST again.
#[test]
fn a_request_that_comes_as_its_connection_is_to_end_is_served() {
    let idle = |late| {
        let mut table = Table::new(|rules| rules.limits.keep_alive_timeout_ms = 2_000);
        let client = table.client(1 << 20);
        let engine = table.ask(client, GET);
        table.send(engine, reply(3));
        table.pass(SECOND);
        table.receive(client);
        table.network.borrow_mut().late = Option::map(late, |at| (at, client, GET.to_vec()));
        while table.front_end(client).is_none() && table.network.borrow().now < 5 * SECOND {
            table.pass(SECOND / 10_000);
        }
        (table, client)
    };
    let (table, client) = idle(None);
    assert_eq!(table.front_end(client), Some(End::Fin));
    let ended = table.network.borrow().now;
    // The turn that ends it, and those before it, have looked for bytes a moment before. What comes later is for nobody.
    let mut served = 0;
    for before in (1..20).map(|number| number * SECOND / 10_000) {
        let (mut table, client) = idle(Some(ended - before));
        if let Some(end) = table.front_end(client) {
            assert_eq!(end, End::Fin, "{before}: it was lost");
            continue;
        }
        let engine = table.engine();
        table.send(engine, reply(3));
        table.pass(SECOND);
        assert!(table.receive_all(client).ends_with(&pattern("r", 'r', 3)), "{before}: no reply");
        served += 1;
    }
    assert!(served > 0);
}

#[test]
fn a_client_behind_an_interim_reply_does_not_hurry_the_engine() {
    let mut table = Table::new(|rules| {
        (rules.limits.client_stall_timeout_ms, rules.limits.inter_chunk_timeout_ms) = (5_000, 5_000);
    });
    let client = table.client(10);
    let engine = table.ask(client, GET);
    table.send(engine, b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n");
    table.pass(20 * SECOND);
    table.receive_all(client);
    table.pass(20 * SECOND);
    table.send(engine, reply(3));
    table.pass(SECOND);
    assert!(table.receive_all(client).ends_with(&pattern("r", 'r', 3)), "no reply");
}

#[test]
fn a_client_that_leaves_is_seen_behind_an_engine_that_does_not_read() {
    let mut table = Table::new(|rules| rules.half_close_leaves = true);
    let client = table.client(1 << 20);
    let post = b"POST /v1/things HTTP/1.1\r\nhost: a\r\ncontent-length: 40000\r\n\r\n";
    table.send(client, post);
    table.pass(SECOND);
    let engine = table.engine();
    table.network.borrow_mut().pipes[engine].room = 1_000;
    table.send(client, pattern("q", 'q', 40_000));
    table.pass(SECOND);
    table.end(client, End::Fin);
    table.pass(SECOND);
    assert!(!table.network.borrow().pipes[engine].open, "the engine still works for nobody");
}

#[test]
fn a_line_end_behind_the_request_does_not_hide_that_its_client_left() {
    let mut table = Table::new(|rules| rules.half_close_leaves = true);
    let client = table.client(1 << 20);
    let engine = table.ask(client, GET);
    table.send(client, b"\r\n");
    table.pass(SECOND);
    table.end(client, End::Fin);
    table.pass(SECOND);
    assert!(!table.network.borrow().pipes[engine].open, "the engine still works for nobody");
}

#[test]
fn a_whole_upload_is_not_to_blame_for_an_engine_that_does_not_read() {
    let mut table = Table::new(|rules| rules.half_close_leaves = true);
    let client = table.client(1 << 20);
    table.network.borrow_mut().knobs.room_min = 1_000;
    table.send(client, b"POST /v1/things HTTP/1.1\r\nhost: a\r\ncontent-length: 40000\r\n\r\n");
    let body = pattern("q", 'q', 40_000);
    for part in [&body[..20_000], &body[20_000..30_000], &body[30_000..]] {
        table.send(client, part);
        table.pass(SECOND);
    }
    table.pass(30 * SECOND);
    let engine = table.engine();
    assert!(table.receive_all(engine).ends_with(&body));
    table.send(engine, reply(3));
    table.pass(SECOND);
    assert!(table.receive(client).starts_with(b"HTTP/1.1 200"));
}

#[test]
fn a_tunnel_carries_a_fin_that_came_before_it() {
    // Line ends before another request are none of it, but these are the tunnel's.
    for early in ["", "\r\n"] {
        let mut table = Table::new(|rules| rules.half_close_leaves = false);
        let client = table.client(1 << 20);
        let engine = table.ask(client, UPGRADE);
        table.send(client, early);
        table.end(client, End::Fin);
        table.pass(SECOND);
        table.send(engine, SWITCHED);
        table.pass(SECOND);
        assert_eq!(table.receive_all(engine), early.as_bytes());
        assert_eq!(table.front_end(engine), Some(End::Fin), "{early:?}");
    }
}

/// Its client asked for something else first, and said no more behind the upgrade: its FIN came before its turn.
#[test]
fn a_tunnel_that_was_asked_for_ahead_carries_the_fin_behind_it() {
    for early in ["", "\r\n", "early"] {
        let mut table = Table::new(|rules| rules.half_close_leaves = false);
        let client = table.client(1 << 20);
        table.send(client, [GET, UPGRADE, early.as_bytes()].concat());
        table.end(client, End::Fin);
        table.pass(SECOND);
        let engine = table.engine();
        assert!(table.receive(engine).ends_with(b"\r\n\r\n"));
        table.send(engine, reply(3));
        table.pass(SECOND);
        let engine = table.engine();
        assert!(table.receive(engine).ends_with(b"\r\n\r\n"), "{early:?}");
        table.send(engine, SWITCHED);
        table.pass(SECOND);
        assert_eq!(table.receive_all(engine), early.as_bytes());
        assert_eq!(table.front_end(engine), Some(End::Fin), "{early:?}");
        table.end(engine, End::Fin);
        table.pass(SECOND);
        assert_eq!(statics(1).counters.in_flight(0), 0, "{early:?}");
    }
}

#[test]
fn a_tunnel_keeps_its_last_bytes_for_a_slow_engine() {
    let mut table = Table::new(|_| {});
    let client = table.client(1 << 20);
    let engine = table.ask(client, UPGRADE);
    table.send(engine, SWITCHED);
    table.pass(SECOND);
    table.network.borrow_mut().pipes[engine].room = 1_000;
    table.end(engine, End::Fin);
    table.send(client, pattern("t", 't', 3_000));
    table.end(client, End::Fin);
    table.pass(SECOND);
    let mut got = Vec::new();
    while table.front_end(engine).is_none() && got.len() < 3_000 {
        got.extend(table.receive_all(engine));
        table.pass(SECOND);
    }
    assert_eq!(got.len(), 3_000);
}

/// On many connections at once. What has come of them is held, as bodies are.
#[test]
fn heads_that_drip_stay_within_the_budget() {
    const BUDGET: usize = 256 << 10;
    let over = || statics(1).stats.total(Count::RefusedOverBudget);
    let mut table = Table::new(|rules| rules.limits.budget_bytes = BUDGET);
    let before = over();
    let pairs: Vec<(usize, usize)> = (0..12)
        .map(|_| {
            let client = table.client(1 << 20);
            (client, table.ask(client, GET))
        })
        .collect();
    pairs.iter().for_each(|(_, engine)| table.send(*engine, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"));
    for line in 0..60 {
        for (_, engine) in &pairs {
            if table.network.borrow().pipes[*engine].open {
                table.send(*engine, format!("x-{line}: {}\r\n", "d".repeat(1_000)));
            }
            table.pass(SECOND / 1_000);
            let audit = table.shard.audit();
            assert!(audit.held_account <= BUDGET + (128 << 10), "{} bytes", audit.held_account);
            assert_eq!(audit.held_account, audit.held_bytes);
        }
    }
    let mut statuses = Vec::new();
    for (client, engine) in pairs {
        if table.network.borrow().pipes[engine].open {
            table.send(engine, "\r\nok");
        }
        table.pass(SECOND / 10);
        let reply = table.receive_all(client);
        statuses.push(String::from_utf8_lossy(&reply[9..12]).into_owned());
    }
    let refused = statuses.iter().filter(|status| *status == "502").count();
    assert!(
        (1..12).contains(&refused) && statuses.iter().all(|status| ["200", "502"].contains(&&**status)),
        "{statuses:?}"
    );
    assert_eq!((over() - before, table.shard.audit().held_account), (refused as u64, 0));
}

/// How much of a refusal was waited for says nothing of the reply that another engine gives.
#[test]
fn a_refusal_in_pieces_does_not_hold_back_the_reply_of_another() {
    let mut table = Table::new(|_| {});
    let endpoints = [Some(draw::endpoint(0, 0)), Some(draw::endpoint(1, 0))];
    let settings = Arc::new(Settings { policy: Policy::RoundRobin, replication: 1, ..Settings::default() });
    statics(1).published.publish(draw::snapshot(&endpoints, &settings));
    let client = table.client(1 << 20);
    table.send(client, GET);
    table.pass(SECOND / 10);
    let first = table.engine();
    assert!(table.receive(first).starts_with(b"GET"));
    let words = "The server is currently busy and cannot accept new requests. Please try again later.";
    let refusal = format!("HTTP/1.1 503 Busy\r\ncontent-length: {}\r\n\r\n{words}", words.len());
    for piece in refusal.as_bytes().chunks(40) {
        table.send(first, piece);
        table.pass(SECOND / 100);
    }
    table.pass(SECOND / 5);
    let second = table.engine();
    assert_ne!(first, second);
    assert!(table.receive(second).starts_with(b"GET"));
    for piece in reply(3).chunks(20) {
        table.send(second, piece);
        table.pass(SECOND / 100);
    }
    assert_eq!(table.receive(client)[9..12], *b"200");
}

/// A prompt of so many words, for a stream or not.
fn prompt(stream: bool, words: usize) -> String {
    let body = format!(r#"{{"model":"m","stream":{stream},"prompt":"{}"}}"#, "all of this is new ".repeat(words));
    format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A stream about an image, from a server that the client names.
fn about_an_image() -> String {
    let image = r#"{"type":"image_url","image_url":{"url":"http://slow.example/a.png"}}"#;
    let body = format!(r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":[{image}]}}]}}"#);
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Engines by `policy`, as control takes them.
fn publish(policy: Policy, healths: &[Health]) {
    let settings = Arc::new(Settings { policy, replication: 16, ..Settings::default() });
    let endpoint = |(slot, health): (usize, &Health)| Some(Endpoint { health: *health, ..draw::endpoint(slot, 0) });
    let endpoints: Vec<_> = healths.iter().enumerate().map(endpoint).collect();
    statics(1).published.publish(draw::snapshot(&endpoints, &settings));
}

impl Table {
    /// A client asks; it, the connection to its engine, and the slot of that.
    fn asks(&mut self, request: &str) -> (usize, usize, usize) {
        let client = self.client(1 << 20);
        self.send(client, request);
        self.pass(SECOND / 2);
        let engine = self.engine();
        let address = self.network.borrow().pipes[engine].address.expect("an engine's");
        assert!(self.receive_all(engine).ends_with(b"}"));
        (client, engine, slot_of(address).0)
    }

    fn leaves(&mut self, client: usize) {
        self.end(client, End::Reset);
        self.pass(SECOND / 10);
    }
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
/// As vLLM opens a chat.
const OPENS: &str =
    r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#;

/// From one to the next, the first left out: its time is that of the prompt.
#[test]
fn the_time_between_tokens_is_theirs() {
    let mut table = Table::new(|_| {});
    publish(Policy::Warm, &[Health::Up]);
    let (_client, engine, _) = table.asks(&prompt(true, 1));
    table.pass(SECOND);
    let token = r#"data: {"choices":[{"index":0,"text":"a"}]}"#;
    let chunk = format!("{:x}\r\n{token}\n\n\r\n", token.len() + 2);
    table.send(engine, format!("{STREAM}{chunk}"));
    for seconds in [2, 3] {
        table.pass(seconds * SECOND);
        table.send(engine, &chunk);
    }
    table.pass(SECOND);
    let between = statics(1).stats.timing(0, Timing::InterToken);
    assert!((4_900_000..5_100_000).contains(&between.sum), "{between:?}");
}

/// What a shard is told of comes behind much else: a connection that stands is not given up for that.
#[test]
fn a_connection_that_stands_is_waited_for_until_that_is_told() {
    let mut table = Table::new(|_| {});
    let (client, before) = (table.client(1 << 20), statics(1).stats.total(Count::ConnectFailed));
    table.send(client, GET);
    let connects = |network: &Network| network.pipes.iter().any(|pipe| matches!(pipe.stage, Stage::Connecting(..)));
    while !connects(&table.network.borrow()) {
        table.shard.turn().expect("a kernel that does not fail");
    }
    table.network.borrow_mut().knobs.late = 100;
    table.pass(2 * SECOND);
    table.network.borrow_mut().knobs.late = 0;
    table.pass(SECOND / 10);
    let engine = table.engine();
    assert!(table.receive(engine).ends_with(b"\r\n\r\n"));
    assert_eq!(statics(1).stats.total(Count::ConnectFailed), before);
    table.send(engine, reply(3));
    table.pass(SECOND / 10);
    assert!(table.receive_all(client).starts_with(b"HTTP/1.1 200"));
}

/// All ports of ours that lead to an engine are taken: it is blamed for nothing, and others are asked, or whoever asks is
/// told what is wanting where there are none.
#[test]
fn an_engine_is_not_blamed_where_no_port_leads_to_it() {
    let mut table = Table::new(|_| {});
    let (counters, stats) = (statics(1).counters, statics(1).stats);
    let count = || [Count::ConnectWanting, Count::ConnectFailed, Count::RefusedNoDescriptor].map(|of| stats.total(of));
    for (others, expected) in [(1, [8, 0, 0]), (0, [8, 0, 8])] {
        publish(Policy::RoundRobin, &[Health::Up; 2][..=others]);
        table.network.borrow_mut().knobs.portless = Some(0);
        let before = count();
        let refused_at = |wanted: u16| {
            let ends = stats.requests(|slot| slot == wanted);
            ends.iter().filter(|(key, _)| key.status == 503).map(|(_, count)| count).sum::<u64>()
        };
        let refused_before = [0, RequestKey::NONE].map(refused_at);
        for _ in 0..8 {
            let client = table.client(1 << 20);
            table.send(client, GET);
            table.pass(SECOND / 2);
            if others == 1 {
                let engine = table.engine();
                table.send(engine, reply(3));
                table.pass(SECOND / 2);
            }
            let told = table.receive_all(client);
            let status = if others == 1 { &b"HTTP/1.1 200"[..] } else { b"HTTP/1.1 503" };
            assert!(told.starts_with(status), "{}", told.escape_ascii());
        }
        let after = count();
        assert_eq!(std::array::from_fn(|at| after[at] - before[at]), expected);
        let refused = [0, RequestKey::NONE].map(refused_at);
        assert_eq!([refused[0] - refused_before[0], refused[1] - refused_before[1]], [0, expected[2]], "it is ours");
        let outcomes = counters.outcomes();
        assert_eq!((outcomes.read(0).faults, outcomes.connect_failures(0), counters.in_flight(0)), (0, 0, 0));
    }
}

/// Its end came to nobody, as where this machine was paused meanwhile: the first such connection tells of all that idled
/// then, on every shard, and says nothing of an engine that had none of the request.
#[test]
fn a_connection_that_died_unseen_tells_of_those_beside_it_and_nothing_of_its_engine() {
    for (end, is_read, tells, faults) in
        [(End::Reset, false, true, 0), (End::Reset, true, false, 1), (End::Fin, false, false, 0)]
    {
        let mut shards = [(); 2].map(|()| Table::new(|_| {}));
        let outcomes = statics(1).counters.outcomes();
        let kept = shards.each_mut().map(|table| {
            let clients = [(); 3].map(|()| table.client(1 << 20));
            let lines = clients.map(|client| table.ask(client, GET));
            lines.iter().for_each(|line| table.send(*line, reply(3)));
            table.pass(SECOND / 10);
            clients.iter().for_each(|client| assert!(table.receive(*client).starts_with(b"HTTP/1.1 200")));
            (clients, lines)
        });
        let table = &mut shards[0];
        let (clients, lines) = kept[0];
        let used = table.asks_on(clients[0], &lines).expect("one is kept");
        if is_read {
            table.receive(used);
        }
        table.end(used, end);
        table.pass(SECOND / 10);
        let is_lost = table.receive(clients[0]).starts_with(b"HTTP/1.1 502");
        assert_eq!((outcomes.read(0).in_a_row, is_lost), (faults, end == End::Reset), "{end:?}, read: {is_read}");
        for (at, (table, (clients, lines))) in shards.iter_mut().zip(kept).enumerate() {
            let left: Vec<_> = lines.into_iter().filter(|line| at > 0 || *line != used).collect();
            assert_eq!(table.asks_on(clients[1], &left).is_none(), tells, "{end:?}, read: {is_read}");
            let closed = left.iter().filter(|line| table.front_end(**line) == Some(End::Fin)).count();
            assert_eq!(closed, if tells { left.len() } else { 0 }, "{end:?}, read: {is_read}");
        }
        drop(shards);
        Control::forget_all(statics(1).counters);
    }
}

/// Its kernel takes requests and its probes are answered, and nobody has anything from it. Clients have less patience
/// than the front, and ask again: for what the engine is thought to hold by now, or is home to.
#[test]
fn an_engine_that_hangs_is_found_by_those_who_leave_it() {
    use Health::Up;
    for (policy, with_head) in [(Policy::Warm, false), (Policy::Warm, true), (Policy::PrefixHash, true)] {
        let mut table = Table::new(|_| {});
        publish(policy, &[Up; 2]);
        let outcomes = statics(1).counters.outcomes();
        let (rules, began) = (config::Health::default(), Instant::now());
        let mut courses = [0, 1].map(|_| Course::new(true, &rules, began));
        let mut hung = None;
        let mut served = 0;
        let left_waiting = || statics(1).stats.total(Count::UpstreamFaultLeftWaiting);
        let before = left_waiting();
        // The same session, and then new ones until the engine is known.
        for turn in 0..12 {
            let request = prompt(true, 100 + if turn < 4 { 0 } else { 10 * turn });
            let (client, engine, slot) = table.asks(&request);
            if *hung.get_or_insert(slot) == slot {
                assert!(!outcomes.is_barred(slot as u16), "{policy:?}: asked although barred");
                if with_head {
                    table.send(engine, STREAM);
                }
                table.pass(31 * SECOND);
            } else {
                table.send(engine, format!("{STREAM}9\r\ndata: a\n\n\r\n0\r\n\r\n"));
                table.pass(SECOND);
                assert!(table.receive(client).ends_with(b"0\r\n\r\n"), "{policy:?}");
                served += usize::from(turn < 4);
            }
            table.leaves(client);
            table.pass(2 * SECOND);
        }
        let hung = hung.expect("one was asked");
        assert!(served > 0, "{policy:?}: nailed to it");
        assert_eq!(outcomes.read(hung as u16).in_a_row, 3, "{policy:?}");
        assert_eq!(left_waiting() - before, 3, "{policy:?}");
        for (slot, course) in courses.iter_mut().enumerate() {
            course.probed(Ok(()), true, &rules, began);
            let (outcome, given) = (outcomes.read(slot as u16), outcomes.given(slot as u16));
            course.looked(outcome, given, true, &rules, began);
            assert_eq!(course.health(), if slot == hung { Health::Ejected } else { Up }, "{policy:?}");
        }
        Control::forget_all(statics(1).counters);
    }
}

/// Who leaves may have asked for what takes long, or be the only one whom nothing was told.
#[test]
fn who_leaves_an_engine_that_works_does_not_take_it_out() {
    // So long a prompt takes a minute, as engines are taken to compute.
    let (short, long) = (100, 50_000);
    // What another has there before this one asks, and while it waits. That a chat was opened shows that the engine
    // computes: a thought that is not shown, or a call that is not whole, may follow for long.
    const TOKENS: Option<[&str; 2]> = Some(["a", "b"]);
    const OPENED: Option<[&str; 2]> = Some(["", OPENS]);
    const OPENED_BEFORE: Option<[&str; 2]> = Some([OPENS, ""]);
    // The first alone says so.
    const OPENED_AGAIN: Option<[&str; 2]> = Some([OPENS, OPENS]);
    for (request, waits, others, fault, charged) in [
        (prompt(true, short), 29, None, false, false),
        (prompt(true, short), 31, None, true, true),
        (prompt(true, short), 31, TOKENS, false, false),
        (prompt(true, short), 31, OPENED, false, false),
        (prompt(true, short), 31, OPENED_BEFORE, true, true),
        (prompt(true, short), 31, OPENED_AGAIN, true, true),
        (prompt(true, long), 31, None, false, true),
        (prompt(true, long), 120, None, false, true),
        (prompt(true, long), 300, None, true, true),
        (prompt(false, short), 300, None, false, true),
        (prompt(false, short), 29, None, false, false),
        (about_an_image(), 300, None, false, true),
    ] {
        let mut table = Table::new(|_| {});
        publish(Policy::Warm, &[Health::Up]);
        let (counters, case) = (statics(1).counters, (request.get(..150), waits, others));
        let event = |data: &str| match data {
            "" => String::new(),
            data => format!("{:x}\r\ndata: {data}\n\n\r\n", data.len() + 8),
        };
        let other = others.map(|[before, meanwhile]| {
            let (_, engine, _) = table.asks(&prompt(true, 1));
            table.send(engine, format!("{STREAM}{}", event(before)));
            (engine, event(meanwhile))
        });
        let (client, ..) = table.asks(&request);
        table.pass(waits * SECOND / 2);
        if let Some((engine, meanwhile)) = other {
            table.send(engine, meanwhile);
        }
        table.pass(waits * SECOND / 2);
        table.leaves(client);
        let faults = counters.outcomes().read(0).in_a_row;
        let left = counters.in_flight(0) - u32::from(others.is_some());
        assert_eq!((faults, left), (u32::from(fault), u32::from(charged)), "{case:?}");
        drop(table);
        counters.outcomes().forget(0);
    }
}

/// Somebody says something in every turn, so that none is quiet, also where the process stands still again and again.
#[test]
fn a_standstill_puts_deadlines_off_for_so_many_turns() {
    for again in [0, SECOND / 5] {
        let mut table = Table::new(|_| {});
        let (slow, busy) = (table.client(1 << 20), table.client(1 << 20));
        table.send(slow, &GET[..7]);
        table.send(busy, b"POST /v1/things HTTP/1.1\r\nhost: a\r\ncontent-length: 40000\r\n\r\n");
        table.pass(SECOND);
        table.network.borrow_mut().now += 12 * SECOND;
        let mut told = |turns| {
            for turn in 1..=turns {
                table.network.borrow_mut().now += if turn % 50 == 0 { again } else { 0 };
                table.send(busy, b"q");
                table.shard.turn().expect("a kernel that does not fail");
            }
            let told = table.network.borrow_mut().peer_receive(slow, usize::MAX);
            String::from_utf8_lossy(&told).into_owned()
        };
        assert_eq!(told(400), "", "it may have been in time");
        assert_eq!(told(200).get(..12), Some("HTTP/1.1 408"), "again: {again}");
    }
}

/// Of which nothing has come: its scanner is held all the same. One at a time is let wait however small the budget is.
#[test]
fn who_waits_for_a_body_is_within_the_budget() {
    const HEAD: &str = "POST /v1/completions HTTP/1.1\r\nhost: a\r\n";
    // Nor is anything held of half a frame.
    const WAYS: [[&str; 2]; 2] = [
        ["content-length: 14\r\n\r\n", r#"{"prompt":"a"}"#],
        ["transfer-encoding: chunked\r\n\r\ne", "\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\n"],
    ];
    let over = || statics(1).stats.total(Count::RefusedOverBudget);
    let by_prefix = Arc::new(Settings { policy: Policy::PrefixHash, replication: 1, ..Settings::default() });
    for (budget, let_wait) in [(256 << 10, 8..16), (4 << 10, 1..2)] {
        let mut table = Table::new(|rules| rules.limits.budget_bytes = budget);
        statics(1).published.publish(draw::snapshot(&[Some(draw::endpoint(0, 0))], &by_prefix));
        let before = over();
        let clients: Vec<(usize, [&str; 2])> = (0..40).map(|at| (table.client(1 << 20), WAYS[at % 2])).collect();
        for (client, [begin, _]) in &clients {
            table.send(*client, format!("{HEAD}{begin}"));
            table.pass(SECOND / 100);
            let audit = table.shard.audit();
            assert!(audit.held_account <= budget + (24 << 10), "{} bytes", audit.held_account);
            assert_eq!(audit.held_account, audit.held_bytes);
        }
        let mut served = 0;
        for (client, [_, rest]) in &clients {
            let got = table.network.borrow_mut().peer_receive(*client, usize::MAX);
            assert!(got.is_empty() || got.starts_with(b"HTTP/1.1 503"), "{}", got.escape_ascii());
            if got.is_empty() {
                table.send(*client, rest);
                served += 1;
            }
        }
        table.pass(SECOND / 2);
        assert_eq!(statics(1).counters.in_flight(0), served, "of {budget} bytes");
        assert!(let_wait.contains(&served) && over() - before == u64::from(40 - served), "{served} of {budget} bytes");
        clients.iter().for_each(|(client, _)| table.end(*client, End::Reset));
        table.pass(SECOND);
        assert_eq!((statics(1).counters.in_flight(0), table.shard.audit().held_account), (0, 0));
    }
}

/// That an engine may say as late that it is full is worth no memory that those who come lack.
#[test]
fn what_is_held_on_for_a_late_refusal_leaves_room_for_who_comes() {
    const BUDGET: usize = 256 << 10;
    let about = |image: &str| {
        let part =
            format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{}"}}}}"#, image.repeat(60_000));
        let text = format!(r#"{{"type":"text","text":"What is {image}?"}}"#);
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{text},{part}]}}]}}"#);
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let mut table = Table::new(|rules| rules.limits.budget_bytes = BUDGET);
    table.network.borrow_mut().knobs.connect = 1_000;
    publish(Policy::Warm, &[Health::Up]);
    for image in "abcdefghijkl".chars() {
        let client = table.client(1 << 20);
        table.send(client, about(&image.to_string()));
        table.pass(SECOND / 20);
        let engine = table.engine();
        assert!(table.network.borrow_mut().peer_receive(engine, usize::MAX).ends_with(b"}"), "{image}");
        assert!(table.network.borrow_mut().peer_receive(client, usize::MAX).is_empty(), "{image} is refused");
        table.pass(SECOND / 20);
        let held = table.shard.audit().held_account;
        assert!((60_000..=BUDGET / 2).contains(&held), "{held} at {image}");
    }
}

/// What has come of heads takes memory as bodies do. Short ones are let wait, and so is one alone.
#[test]
fn half_heads_are_within_the_budget() {
    let half = |len: usize| format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "a".repeat(len));
    let over = || statics(1).stats.total(Count::RefusedOverBudget);
    for (budget, len, let_wait) in [(256 << 10, 20_000, 6..16), (4 << 10, 20_000, 1..2), (4 << 10, 9_000, 40..41)] {
        let mut table = Table::new(|rules| rules.limits.budget_bytes = budget);
        let before = over();
        let clients: Vec<usize> = (0..40).map(|_| table.client(1 << 20)).collect();
        for client in &clients {
            table.send(*client, half(len));
            table.pass(SECOND / 100);
            let audit = table.shard.audit();
            assert_eq!(audit.held_account, audit.held_bytes);
            assert!(len < 10_000 || audit.held_account <= budget + (80 << 10), "{} bytes", audit.held_account);
        }
        let replies: Vec<_> =
            clients.iter().map(|client| table.network.borrow_mut().peer_receive(*client, usize::MAX)).collect();
        let refused = replies.iter().filter(|reply| reply.starts_with(b"HTTP/1.1 503")).count();
        let waits = replies.iter().filter(|reply| reply.is_empty()).count();
        assert_eq!((refused + waits, over() - before), (40, refused as u64));
        assert!(let_wait.contains(&waits), "{waits} of {budget} bytes");
        clients.iter().for_each(|client| table.end(*client, End::Reset));
        table.pass(SECOND);
        assert_eq!((table.shard.audit().clients, table.shard.audit().held_account), (0, 0));
    }
}

/// A fault of ours, wherever in a head or an exchange: its client is reset, nothing stays counted or held, others go on.
#[test]
fn a_panic_ends_one_exchange() {
    const BODY: &str = r#"{"messages":[{"role":"user","content":"a secret of theirs"}]}"#;
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", BODY.len());
    let by_prefix = Arc::new(Settings { policy: Policy::PrefixHash, replication: 1, ..Settings::default() });
    let cuts = [0, 7, 45, head.len() - 1, head.len(), head.len() + 5, head.len() + 40];
    for (before, look) in cuts.iter().flat_map(|cut| (1..=4).map(move |look| (*cut, look))) {
        let mut table = Table::new(|_| {});
        statics(1).published.publish(draw::snapshot(&[Some(draw::endpoint(0, 0))], &by_prefix));
        let panics = statics(1).stats.total(Count::Panicked);
        let ended = || statics(1).stats.requests(|_| true).iter().map(|(_, count)| count).sum::<u64>();
        let ended_before = ended();
        let (other, victim) = (table.client(1 << 20), table.client(1 << 20));
        let engine = table.ask(other, GET);
        let request = format!("{head}{BODY}");
        table.send(victim, &request.as_bytes()[..before]);
        table.pass(SECOND);
        FAULT.set(look);
        table.send(victim, &request.as_bytes()[before..]);
        table.pass(SECOND);
        let came = (statics(1).stats.total(Count::Panicked) - panics, table.front_end(victim));
        assert_eq!(came, (1, Some(End::Reset)), "cut at {before}, look {look}");
        assert_eq!(ended() - ended_before, 1);
        let audit = table.shard.audit();
        let left = (audit.clients, audit.legs.as_slice(), audit.held_account, audit.held_bytes);
        assert_eq!(left, (1, &[1][..], 0, 0), "cut at {before}, look {look}");
        assert_eq!(statics(1).counters.in_flight(0), 1);
        table.send(engine, reply(30));
        table.pass(SECOND);
        assert!(table.receive_all(other).ends_with(&pattern("r", 'r', 30)));
        assert_eq!((statics(1).counters.in_flight(0), statics(1).stats.total(Count::AccountsDiffer)), (0, 0));
    }
}

/// A fault of ours where half a head is to be refused.
#[test]
#[cfg(debug_assertions)] // else no look at the stopwatch is there to break
fn a_panic_over_half_a_head_ends_its_client() {
    let mut table = Table::new(|_| {});
    let (other, victim) = (table.client(1 << 20), table.client(1 << 20));
    let engine = table.ask(other, GET);
    let panics = statics(1).stats.total(Count::Panicked);
    table.send(victim, &GET[..7]);
    table.pass(SECOND);
    FAULT.set(1);
    table.pass(6 * SECOND);
    assert_eq!((statics(1).stats.total(Count::Panicked) - panics, table.front_end(victim)), (1, Some(End::Reset)));
    table.send(engine, reply(30));
    table.pass(SECOND);
    assert!(table.receive_all(other).ends_with(&pattern("r", 'r', 30)));
    assert_eq!((table.shard.audit().clients, table.shard.audit().held_account), (1, 0));
}

/// Who was let go is none of the queue's, though it is still in the list of who waited: a fault there is not its own.
#[test]
#[cfg(debug_assertions)] // else no look at the stopwatch is there to break
fn a_panic_in_the_queue_ends_nobody_who_left_it() {
    const TOKENS: u64 = 160;
    let settings = Settings { policy: Policy::Warm, queue: Queueing::On, replication: 1, ..Settings::default() };
    let mut table = Table::new(|rules| rules.queue = QueueRules::from(&config::Config::default()));
    let endpoint = draw::with_cache(draw::endpoint(0, 0), Some(TOKENS));
    statics(1).published.publish(draw::snapshot(&[Some(endpoint)], &Arc::new(settings)));
    let prompt = |word: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, word.repeat(400 / word.len()));
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let (runs, waits) = (table.client(1 << 20), table.client(1 << 20));
    table.send(runs, prompt("abcd"));
    table.pass(SECOND);
    let engine = table.engine();
    assert!(!table.receive(engine).is_empty());
    table.send(waits, prompt("efghi"));
    table.pass(SECOND / 100);
    assert_eq!((statics(1).counters.in_flight(0), table.shard.audit().waiting), (1, 1));
    table.send(engine, reply(30));
    while table.shard.audit().waiting == 1 {
        table.pass(SECOND / 1_000);
    }
    let panics = statics(1).stats.total(Count::Panicked);
    FAULT.set(1);
    table.pass(SECOND);
    FAULT.set(0);
    assert_eq!((statics(1).stats.total(Count::Panicked) - panics, table.front_end(waits)), (0, None));
    assert_eq!((statics(1).counters.in_flight(0), statics(1).stats.total(Count::AccountsDiffer)), (1, 0));
    let engine = table.engine();
    assert!(!table.receive(engine).is_empty());
    table.send(engine, reply(30));
    table.pass(SECOND);
    assert!(table.receive_all(waits).ends_with(&pattern("r", 'r', 30)));
}
