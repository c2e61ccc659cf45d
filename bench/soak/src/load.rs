//! The load: requests of each kind at their own rate, due whether or not earlier ones have come back.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::crowd::Crowd;
use crate::exchange::{Book, Failure, Kind};

/// How often counts are handed over.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Most requests under way at once; requests due beyond them wait, and their wait counts.
const IN_FLIGHT_MAX: usize = 1000;
/// Connections of a burst that are opened in one turn.
const BURST_AT_ONCE: usize = 50;

/// Requests of each kind a second, and how long streams are.
#[derive(Clone, Debug)]
pub struct Rates {
    pub per_second: Vec<(Kind, f64)>,
    pub tokens: (u32, u32),
}

/// What clients saw since this was last asked for.
#[derive(Default)]
pub struct Tally {
    pub done: BTreeMap<Kind, u64>,
    /// Latencies in microseconds.
    pub short: Vec<u32>,
    pub first_token: Vec<u32>,
    pub failures: Vec<Failure>,
    pub left: u64,
    pub events: u64,
    pub opened: u64,
}

impl Tally {
    pub fn requests(&self) -> u64 {
        self.done.values().sum()
    }

    pub fn add(&mut self, other: Tally) {
        for (kind, count) in other.done {
            *self.done.entry(kind).or_insert(0) += count;
        }
        self.short.extend(other.short);
        self.first_token.extend(other.first_token);
        self.failures.extend(other.failures);
        self.left += other.left;
        self.events += other.events;
        self.opened += other.opened;
    }
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    burst: AtomicUsize,
    tally: Mutex<Tally>,
}

impl Shared {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that has all clients.
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Load {
    pub fn start(target: SocketAddrV4, rates: Rates) -> Load {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || clients(target, &rates, &theirs).map_err(|error| error.to_string()));
        Load { shared, thread: Some(thread) }
    }

    pub fn take(&self) -> Tally {
        std::mem::take(&mut *self.shared.tally())
    }

    /// Opens `connections` at once, with a request on each.
    pub fn burst(&self, connections: usize) {
        self.shared.burst.fetch_add(connections, Ordering::Relaxed);
    }

    /// Whether its thread has ended, which it must not before it is told to.
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Begins nothing new, waits for every reply, closes every connection.
    pub fn stop(&mut self) -> Result<(), String> {
        self.shared.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err("the load's thread panicked".into()),
            None => Ok(()),
        }
    }
}

fn clients(target: SocketAddrV4, rates: &Rates, shared: &Shared) -> std::io::Result<()> {
    let mut crowd = Crowd::new(target)?;
    let mut book = Book::new();
    let began = Instant::now();
    let mut due: Vec<(Kind, Duration, Instant)> = rates
        .per_second
        .iter()
        .filter(|(_, rate)| *rate > 0.0)
        .map(|(kind, rate)| (*kind, Duration::from_secs_f64(1.0 / rate), began))
        .collect();
    let mut tell_at = began + TELL_EVERY;
    loop {
        let stopping = shared.stop.load(Ordering::Relaxed);
        let now = Instant::now();
        if !stopping {
            for (kind, every, at) in &mut due {
                while *at <= now && crowd.in_flight < IN_FLIGHT_MAX {
                    crowd.begin(book.write(*kind, rates.tokens, *at));
                    *at += *every;
                }
            }
            let burst = shared.burst.load(Ordering::Relaxed).min(BURST_AT_ONCE);
            for _ in 0..burst {
                crowd.begin(book.write(Kind::Burst, rates.tokens, Instant::now()));
            }
            shared.burst.fetch_sub(burst, Ordering::Relaxed);
        }
        let may_begin = !stopping && crowd.in_flight < IN_FLIGHT_MAX;
        let next = due.iter().map(|(.., at)| *at).filter(|_| may_begin).min();
        crowd.turn(next.map_or(tell_at, |at| at.min(tell_at)))?;
        if Instant::now() >= tell_at {
            crowd.look_for_late();
            tell(&mut crowd, shared);
            tell_at = Instant::now() + TELL_EVERY;
            if stopping && crowd.in_flight == 0 {
                return Ok(());
            }
        }
    }
}

fn tell(crowd: &mut Crowd, shared: &Shared) {
    let mut tally = Tally {
        failures: std::mem::take(&mut crowd.failures),
        left: std::mem::take(&mut crowd.left),
        events: std::mem::take(&mut crowd.events),
        opened: std::mem::take(&mut crowd.opened),
        ..Tally::default()
    };
    for done in crowd.done.drain(..) {
        *tally.done.entry(done.kind).or_insert(0) += 1;
        match (done.kind, done.first_event) {
            (Kind::Short, _) => tally.short.push(done.took.as_micros() as u32),
            (Kind::Stream, Some(first)) => tally.first_token.push(first.as_micros() as u32),
            _ => {}
        }
    }
    shared.tally().add(tally);
}
