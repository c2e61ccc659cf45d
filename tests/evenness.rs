//! Connections stay evenly spread over shards, also after one has lost all of its own.

#[path = "relay/come.rs"]
mod come;
#[path = "relay/untested.rs"]
mod untested;

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use warmfront::counters::Counters;
use warmfront::counters::stats::{Gauge, Stats};
use warmfront::driver::epoll::Epoll;
use warmfront::driver::uring::Uring;
use warmfront::driver::{Driver, socket};
use warmfront::exchange::Rules;
use warmfront::publish::{Process, Published};
use warmfront::shard::handover::Neighbours;
use warmfront::shard::{Setup, Shard, stopwatch};
use warmfront::snapshot::Snapshot;

use come::until_come;

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// Behind their last completion shards sleep for a second: by then all do, and will for longer than a drain may take to
/// begin.
const ASLEEP: Duration = Duration::from_millis(200);
const AT_ONCE: Duration = Duration::from_millis(500);
/// A drain waits for a client that has yet to ask until a second after it connected.
const WELL_WITHIN: Duration = Duration::from_millis(800);

fn epoll() -> Epoll {
    Epoll::new().unwrap()
}

fn uring() -> Uring {
    Uring::new().unwrap()
}

/// A shard that knows no engines.
fn setup(
    index: usize,
    listeners: Vec<OwnedFd>,
    process: &'static Process,
    stats: &'static Stats,
    stopwatch: fn() -> u64,
) -> Setup {
    Setup {
        index: index as u16,
        listeners,
        published: Published::leak(Snapshot::default()),
        process,
        records: process.shards()[index].records(),
        counters: Counters::leak(),
        stats: stats.shard(index),
        rules: Arc::new(Rules::default()),
        seed: index as u64,
        stopwatch,
    }
}

struct Front {
    address: SocketAddr,
    stats: &'static Stats,
    process: &'static Process,
    threads: Vec<JoinHandle<()>>,
}

impl Front {
    fn start<D: Driver + 'static>(shards: usize, driver: fn() -> D) -> Front {
        Front::listening(shards, shards, driver)
    }

    /// A front of so many shards, of which only the first few have a listener.
    fn listening<D: Driver + 'static>(shards: usize, listening: usize, driver: fn() -> D) -> Front {
        let (stats, process) = (Stats::leak(shards), Process::leak(shards));
        let mut address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut listeners: Vec<Vec<OwnedFd>> = (0..shards).map(|_| Vec::new()).collect();
        for of_shard in &mut listeners[..listening] {
            let listener = socket::listener(address).unwrap();
            address = socket::bound_address(&listener).unwrap();
            of_shard.push(listener);
        }
        let neighbours = Neighbours::of_all(stats).unwrap();
        let shard = |(index, (listeners, neighbours))| {
            let setup = setup(index, listeners, process, stats, stopwatch);
            std::thread::spawn(move || {
                let mut shard = Shard::new(driver(), setup).unwrap();
                shard.share(neighbours).unwrap();
                shard.run().unwrap();
            })
        };
        let threads = listeners.into_iter().zip(neighbours).enumerate().map(shard).collect();
        Front { address, stats, process, threads }
    }

    /// Waits until all shards turn: no connections are handed over to one that has yet to begin.
    fn until_all_turn(&self) {
        let deadline = Instant::now() + PATIENCE;
        while (0..self.stats.shards()).any(|shard| self.stats.shard(shard).turns() == 0) {
            assert!(Instant::now() < deadline, "a shard has not begun");
            sleep(Duration::from_millis(1));
        }
    }

    fn open(&self) -> Vec<u64> {
        (0..self.stats.shards()).map(|shard| self.stats.shard(shard).gauge(Gauge::Connections)).collect()
    }

    /// Waits until this many connections are open.
    fn until_open(&self, connections: usize) -> Vec<u64> {
        let deadline = Instant::now() + PATIENCE;
        while self.open().iter().sum::<u64>() != connections as u64 {
            assert!(Instant::now() < deadline, "{:?} open, not {connections}", self.open());
            sleep(Duration::from_millis(1));
        }
        self.open()
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// The request may be there before the connection is accepted.
    fn connect_and_ask(&self) -> TcpStream {
        let mut client = self.connect();
        ask(&mut client);
        client
    }
}

/// Asks for a model that no engine serves, and reads the refusal.
fn ask(client: &mut TcpStream) {
    client.write_all(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
}

impl Drop for Front {
    fn drop(&mut self) {
        self.process.drain();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// A burst of connections stays even; so does another burst after one shard has lost all of its own.
fn stays_even<D: Driver + 'static>(driver: fn() -> D) {
    for shards in [2, 3] {
        let front = Front::start(shards, driver);
        let mut clients = Vec::new();
        // One by one at first, so that it can be told where each went.
        for opened in 1..=30 {
            let before = front.open();
            let client = front.connect();
            let now = front.until_open(opened);
            let shard = now.iter().zip(&before).position(|(now, before)| now > before).unwrap();
            clients.push((shard, client));
        }
        even(&front.open(), 3);
        clients.retain(|(shard, _)| *shard != 1);
        assert_eq!(front.until_open(clients.len())[1], 0);
        // Shards that accept at the same instant see each other's counts a little late; what follows makes up for it.
        clients.extend((clients.len()..100).map(|_| (0, front.connect())));
        front.until_open(100);
        for opened in 101..=180 {
            clients.push((0, front.connect()));
            front.until_open(opened);
        }
        even(&front.open(), 4);
    }
}

#[test]
fn shards_on_epoll_stay_even() {
    stays_even(epoll);
}

#[test]
fn shards_on_io_uring_stay_even() {
    if untested::has_ring("shards on io_uring") {
        stays_even(uring);
    }
}

thread_local! {
    /// What the next look at the stopwatch does: something in the middle of a shard's turn.
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

fn eventful_stopwatch() -> u64 {
    if let Some(meanwhile) = MEANWHILE.take() {
        meanwhile();
    }
    0
}

/// A connection that is handed over in the middle of a turn is taken in when the turn is over, or in the next one,
/// which then does not sleep; one that is overlooked is late by a second. The best of three times counts, since the
/// machine may not let the shard run at once.
fn who_comes_in_the_middle_of_a_turn_is_taken_in<D: Driver + 'static>(driver: fn() -> D) {
    let at_once = (0..3).any(|_| time_to_take_in(driver) < AT_ONCE);
    assert!(at_once, "it is not seen, time and again, on {}", D::NAME);
}

/// What two shards share that a test moves, each with a listener at an address of its own.
struct Two {
    stats: &'static Stats,
    process: &'static Process,
    addresses: [SocketAddr; 2],
}

impl Two {
    fn start<D: Driver + 'static>(driver: fn() -> D, stopwatch: fn() -> u64) -> (Two, [Shard<D>; 2]) {
        let (stats, process) = (Stats::leak(2), Process::leak(2));
        let listeners: [OwnedFd; 2] = [(); 2].map(|()| socket::listener(([127, 0, 0, 1], 0).into()).unwrap());
        let addresses = listeners.each_ref().map(|listener| socket::bound_address(listener).unwrap());
        let mut parts = listeners.into_iter().zip(Neighbours::of_all(stats).unwrap());
        let shards = [0, 1].map(|index| {
            let (listener, neighbours) = parts.next().unwrap();
            let setup = setup(index, vec![listener], process, stats, stopwatch);
            let mut shard = Shard::new(driver(), setup).unwrap();
            shard.share(neighbours).unwrap();
            shard
        });
        (Two { stats, process, addresses }, shards)
    }

    fn open(&self) -> [u64; 2] {
        [0, 1].map(|index| self.stats.shard(index).gauge(Gauge::Connections))
    }

    /// Moves these until so many are open on each.
    fn until<D: Driver>(&self, shards: &mut [&mut Shard<D>], expected: [u64; 2]) {
        let begun = Instant::now();
        while self.open() != expected {
            assert!(begun.elapsed() < PATIENCE, "{:?} open on {}, not {expected:?}", self.open(), D::NAME);
            shards.iter_mut().for_each(|shard| assert!(shard.turn().unwrap()));
        }
    }
}

/// The second shard rings the first one's bell while that looks at a request that came before.
fn time_to_take_in<D: Driver + 'static>(driver: fn() -> D) -> Duration {
    let (two, [mut shard, mut other]) = Two::start(driver, eventful_stopwatch);
    let addresses = two.addresses;
    let mut client = TcpStream::connect(addresses[0]).unwrap();
    two.until(&mut [&mut shard], [1, 0]);
    let mut others = vec![TcpStream::connect(addresses[1]).unwrap(), TcpStream::connect(addresses[1]).unwrap()];
    two.until(&mut [&mut other], [1, 2]);
    // The request first, then the bell.
    let request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{";
    until_come(|| client.write_all(request).unwrap());
    sleep(ASLEEP / 4);
    others.push(until_come(|| TcpStream::connect(addresses[1]).unwrap()));
    other.turn().unwrap();
    // Of these two, the second is handed over.
    let late = until_come(|| [(); 2].map(|()| TcpStream::connect(addresses[1]).unwrap()));
    MEANWHILE.set(Some(Box::new(move || assert!(other.turn().unwrap()))));
    shard.turn().unwrap();
    assert!(MEANWHILE.take().is_none(), "the request was not looked at");
    let begun = Instant::now();
    two.until(&mut [&mut shard], [3, 3]);
    let took = begun.elapsed();
    drop((client, others, late));
    took
}

#[test]
fn a_shard_on_epoll_takes_in_who_comes_in_the_middle_of_its_turn() {
    who_comes_in_the_middle_of_a_turn_is_taken_in(epoll);
}

#[test]
fn a_shard_on_io_uring_takes_in_who_comes_in_the_middle_of_its_turn() {
    if untested::has_ring("shards on io_uring") {
        who_comes_in_the_middle_of_a_turn_is_taken_in(uring);
    }
}

/// Connections that are handed over are answered, also if they asked before, and one that cannot be handed over is not
/// left hanging.
fn who_is_handed_over_is_served<D: Driver + 'static>(driver: fn() -> D) {
    // All come to the first shard.
    let front = Front::listening(2, 1, driver);
    front.until_all_turn();
    let mut clients: Vec<TcpStream> = (0..40).map(|_| front.connect_and_ask()).collect();
    even(&front.until_open(40), 4);
    for client in &mut clients {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reply = [0; 12];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"HTTP/1.1 404");
    }
    let address = front.address;
    drop(clients);
    drop(front);
    assert!(TcpStream::connect(address).is_err(), "a drained front refuses connections");
}

#[test]
fn a_connection_handed_over_on_epoll_is_served() {
    who_is_handed_over_is_served(epoll);
}

#[test]
fn a_connection_handed_over_on_io_uring_is_served() {
    if untested::has_ring("shards on io_uring") {
        who_is_handed_over_is_served(uring);
    }
}

/// A client that may ask in the middle of what the test does, and never waits.
struct Asker {
    stream: TcpStream,
    got: Vec<u8>,
    end: Option<std::io::Result<()>>,
}

impl Asker {
    fn connect(address: SocketAddr) -> Asker {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        Asker { stream, got: Vec::new(), end: None }
    }

    fn look(&mut self) {
        let mut buffer = [0; 1_024];
        while self.end.is_none() {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.end = Some(Ok(())),
                Ok(len) => self.got.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => self.end = Some(Err(error)),
            }
        }
    }

    fn was_answered(&self) -> bool {
        self.got.starts_with(b"HTTP/1.1 404") && matches!(self.end, Some(Ok(())))
    }
}

/// Panics if something was wrong in a try. A try in which clients asked too late to be waited for shows nothing, which
/// hardly happens in each of three. `go` returns how long they took, and what was wrong.
fn all_are_answered(go: impl Fn() -> (Duration, Option<String>)) {
    for left in (0..3).rev() {
        let (took, Some(wrong)) = go() else { return };
        assert!(left > 0 && took > WELL_WITHIN, "{wrong}; they took {took:?}");
    }
}

/// When a drain begins, connections are answered that the other shard has, that are on their way to it, or that are not
/// accepted yet, whether they asked before or do so at once.
fn who_comes_as_a_drain_begins_is_answered<D: Driver + 'static>(driver: fn() -> D) {
    all_are_answered(|| come_as_a_drain_begins(driver));
}

fn come_as_a_drain_begins<D: Driver + 'static>(driver: fn() -> D) -> (Duration, Option<String>) {
    let (two, [mut first, mut other]) = Two::start(driver, stopwatch);
    let mut clients: Vec<Asker> = Vec::new();
    let coming = Instant::now();
    let mut come = || {
        for at in 0..12 {
            let mut client = Asker::connect(two.addresses[0]);
            if at % 3 == 0 {
                ask(&mut client.stream);
            }
            clients.push(client);
        }
    };
    come();
    two.until(&mut [&mut first, &mut other], [6, 6]);
    come();
    two.until(&mut [&mut first], [12, 6]);
    until_come(&mut come);
    two.process.drain();
    let mut shards = [Some(other), Some(first)];
    let mut turn = || {
        for shard in &mut shards {
            if shard.as_mut().is_some_and(|shard| !shard.turn().unwrap()) {
                *shard = None;
            }
        }
        shards.iter().any(Option::is_some)
    };
    turn();
    clients.iter_mut().enumerate().filter(|(at, _)| at % 3 > 0).for_each(|(_, client)| ask(&mut client.stream));
    let took = coming.elapsed();
    let begun = Instant::now();
    while clients.iter().any(|client| client.end.is_none()) {
        assert!(begun.elapsed() < PATIENCE, "clients are left hanging on {}", D::NAME);
        turn();
        clients.iter_mut().for_each(Asker::look);
    }
    let wrong = clients.iter().position(|client| !client.was_answered()).map(|at| {
        let (got, end) = (String::from_utf8_lossy(&clients[at].got), &clients[at].end);
        format!("{at} on {}: {got:?}, then {end:?}", D::NAME)
    });
    drop(clients);
    while turn() {
        assert!(begun.elapsed() < PATIENCE, "a shard does not end on {}", D::NAME);
    }
    (took, wrong)
}

#[test]
fn who_comes_as_a_drain_begins_on_epoll_is_answered() {
    who_comes_as_a_drain_begins_is_answered(epoll);
}

#[test]
fn who_comes_as_a_drain_begins_on_io_uring_is_answered() {
    if untested::has_ring("shards on io_uring") {
        who_comes_as_a_drain_begins_is_answered(uring);
    }
}

/// The same at any instant: both shards are told to drain while connections that came to one of them are shared out.
fn a_burst_into_a_drain_is_answered<D: Driver + 'static>(driver: fn() -> D) {
    for round in 0..8 {
        all_are_answered(|| come_before_a_drain(driver, round));
    }
}

fn come_before_a_drain<D: Driver + 'static>(driver: fn() -> D, round: u32) -> (Duration, Option<String>) {
    let front = Front::listening(2, 1, driver);
    front.until_all_turn();
    let come = |at| if at % 3 == 0 { front.connect() } else { front.connect_and_ask() };
    let coming = Instant::now();
    let mut clients: Vec<TcpStream> = until_come(|| (0..60).map(come).collect());
    sleep(Duration::from_micros(150) * round);
    front.process.drain();
    clients.iter_mut().step_by(3).for_each(ask);
    let took = coming.elapsed();
    let wrong = clients.iter_mut().enumerate().find_map(|(at, client)| {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reply = Vec::new();
        let end = client.read_to_end(&mut reply);
        let is_answered = end.is_ok() && reply.starts_with(b"HTTP/1.1 404");
        let told = || format!("{at} in round {round} on {}: {:?}", D::NAME, String::from_utf8_lossy(&reply));
        (!is_answered).then(told)
    });
    (took, wrong)
}

#[test]
fn a_burst_into_a_drain_on_epoll_is_answered() {
    a_burst_into_a_drain_is_answered(epoll);
}

#[test]
fn a_burst_into_a_drain_on_io_uring_is_answered() {
    if untested::has_ring("shards on io_uring") {
        a_burst_into_a_drain_is_answered(uring);
    }
}

/// Shards that sleep, one alone and several, begin to drain when they are told to, not when they would have woken: at
/// best of three times, as one of them may not be let run at once.
fn drains_at_once<D: Driver + 'static>(driver: fn() -> D) {
    for shards in [1, 2] {
        let mut took = Vec::new();
        let at_once = (0..3).any(|_| {
            took.push(time_to_drain(shards, driver));
            took.last() < Some(&AT_ONCE)
        });
        assert!(at_once, "{shards} shards on {} take {took:?} to notice", D::NAME);
    }
}

fn time_to_drain<D: Driver + 'static>(shards: usize, driver: fn() -> D) -> Duration {
    let front = Front::start(shards, driver);
    let mut client = front.connect_and_ask();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reply = [0; 4_096];
    assert!(client.read(&mut reply).is_ok() && reply.starts_with(b"HTTP/1.1 404"));
    sleep(ASLEEP);
    let told = Instant::now();
    front.process.drain();
    while TcpStream::connect(front.address).is_ok() {
        sleep(Duration::from_millis(1));
    }
    let took = told.elapsed();
    // It ends a moment later than the drain begins: the client might have been about to ask again.
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "an idle connection ends");
    took
}

#[test]
fn shards_on_epoll_drain_at_once() {
    drains_at_once(epoll);
}

#[test]
fn shards_on_io_uring_drain_at_once() {
    if untested::has_ring("shards on io_uring") {
        drains_at_once(uring);
    }
}

fn even(open: &[u64], apart_max: u64) {
    let apart = open.iter().max().unwrap() - open.iter().min().unwrap();
    assert!(apart <= apart_max, "{open:?}");
}
