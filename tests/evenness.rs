//! Connections stay evenly spread over shards, also after one has lost all of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
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
use warmfront::shard::handover::HandOver;
use warmfront::shard::{Setup, Shard, stopwatch};
use warmfront::snapshot::Snapshot;

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// Behind their last completion shards sleep for a second: by then all do, and will for longer than a drain may take to begin.
const ASLEEP: Duration = Duration::from_millis(200);
const AT_ONCE: Duration = Duration::from_millis(500);

struct Front {
    address: SocketAddr,
    stats: &'static Stats,
    process: &'static Process,
    threads: Vec<JoinHandle<()>>,
}

impl Front {
    fn start<D: Driver + 'static>(shards: usize, driver: fn() -> D) -> Front {
        let (stats, process) = (Stats::leak(shards), Process::leak(shards));
        let (published, counters) = (Published::leak(Snapshot::default()), Counters::leak());
        let mut address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut listeners = Vec::new();
        for _ in 0..shards {
            let listener = socket::listener(address).unwrap();
            address = socket::bound_address(&listener).unwrap();
            listeners.push(vec![listener]);
        }
        let handovers = HandOver::of_all(stats).unwrap();
        let rules = Arc::new(Rules::default());
        let shard = |(index, (listeners, handover))| {
            let stats = stats.shard(index);
            let rules = Arc::clone(&rules);
            let state = &process.shards()[index];
            let (doing, records, toolsets) = (state.doing(), state.records(), state.toolsets());
            let seed = index as u64;
            let setup = Setup {
                listeners,
                published,
                process,
                doing,
                records,
                toolsets,
                counters,
                stats,
                rules,
                seed,
                stopwatch,
            };
            std::thread::spawn(move || {
                let mut shard = Shard::new(driver(), setup).unwrap();
                shard.share(handover).unwrap();
                shard.run().unwrap();
            })
        };
        let threads = listeners.into_iter().zip(handovers).enumerate().map(shard).collect();
        Front { address, stats, process, threads }
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
}

impl Drop for Front {
    fn drop(&mut self) {
        self.process.drain();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// A burst; then, after all that one shard had has gone, another.
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
    stays_even(|| Epoll::new().unwrap());
}

#[test]
fn shards_on_io_uring_stay_even() {
    match Uring::new() {
        Ok(_) => stays_even(|| Uring::new().unwrap()),
        Err(error) => println!("not run: this machine gives no ring: {error}"),
    }
}

/// Whoever was handed over is answered, and what cannot be is not left hanging.
#[test]
fn a_connection_handed_over_is_served() {
    let front = Front::start(2, || Epoll::new().unwrap());
    let mut clients: Vec<TcpStream> = (0..40).map(|_| front.connect()).collect();
    for client in &mut clients {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut reply = [0; 12];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"HTTP/1.1 404");
    }
    let address = front.address;
    drop(clients);
    drop(front);
    assert!(TcpStream::connect(address).is_err(), "a drained front refuses connections");
}

/// Shards that sleep, one alone and several, begin to drain when they are told to, not when they would have woken: at best of
/// three times, as one of them may not be let run at once.
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
    let mut client = front.connect();
    front.until_open(1);
    sleep(ASLEEP);
    let told = Instant::now();
    front.process.drain();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "an idle connection ends");
    while TcpStream::connect(front.address).is_ok() {
        sleep(Duration::from_millis(1));
    }
    told.elapsed()
}

#[test]
fn shards_on_epoll_drain_at_once() {
    drains_at_once(|| Epoll::new().unwrap());
}

#[test]
fn shards_on_io_uring_drain_at_once() {
    match Uring::new() {
        Ok(_) => drains_at_once(|| Uring::new().unwrap()),
        Err(error) => println!("not run: this machine gives no ring: {error}"),
    }
}

fn even(open: &[u64], apart_max: u64) {
    let apart = open.iter().max().unwrap() - open.iter().min().unwrap();
    assert!(apart <= apart_max, "{open:?}");
}
