//! The two sockets of an engine's KV events, in the bytes of libzmq: the one on which it publishes, and the one by
//! which it replays what it still has.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::frames::message;
use crate::msgpack::packed;

/// Greeting and READY of libzmq's PUB, and of its ROUTER.
const PUBLISHER: &[u8] = include_bytes!("../fixtures/kv-events/sha256-int/wire-sub.s2c");
const ROUTER: &[u8] = include_bytes!("../fixtures/kv-events/sha256-int/wire-replay.s2c");
const PUBLISHER_BYTES: usize = 91;
const ROUTER_BYTES: usize = 107;
/// Greeting, READY and a subscription; that to everything has this length without its topic.
const SUBSCRIBER_BYTES: usize = 103;
/// Greeting and READY of a DEALER, and what is before the number in its request.
const REQUEST_BYTES: usize = 64 + 30 + 4;
const TOPIC: &[u8] = b"kv";

pub struct Publisher {
    pub events: SocketAddr,
    pub replay: Option<SocketAddr>,
    state: Shared,
}

type Shared = Arc<Mutex<State>>;

#[derive(Default)]
struct State {
    subscribers: Vec<TcpStream>,
    connections: usize,
    /// Connections whose subscription was not read yet.
    arriving: usize,
    gone: bool,
    next: u64,
    time: f64,
    kept: Vec<(u64, Vec<u8>)>,
    asked: Vec<u64>,
}

impl State {
    /// The next message: number and payload.
    fn make(&mut self, payload: impl FnOnce(f64) -> Vec<u8>) -> (u64, Vec<u8>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        self.time = now.max(self.time + 0.001);
        let made = (self.next, payload(self.time));
        self.next += 1;
        self.kept.push(made.clone());
        made
    }
}

impl Publisher {
    pub fn start(replays: bool) -> Publisher {
        let state = Shared::default();
        let events = accept(&state, publish_to);
        let replay = replays.then(|| accept(&state, answer));
        Publisher { events, replay, state }
    }

    /// Connects to an address where a front waits for it, again and again.
    pub fn connects(&self, to: SocketAddr) {
        let state = Arc::clone(&self.state);
        std::thread::spawn(move || {
            loop {
                let _ = TcpStream::connect(to).and_then(|stream| publish_to(stream, &state));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }

    /// Publishes one batch of events.
    pub fn publish(&self, events: &[Value]) {
        self.publish_bytes(|time| packed(&json!([time, events, 0])));
    }

    /// Publishes one message with any payload, which is made from its time.
    pub fn publish_bytes(&self, payload: impl FnOnce(f64) -> Vec<u8>) {
        let mut state = self.state();
        let (number, payload) = state.make(payload);
        let bytes = message(&[TOPIC, &number.to_be_bytes(), &payload]);
        for mut stream in &state.subscribers {
            let _ = stream.write_all(&bytes);
        }
    }

    /// Sends bytes that are no message.
    pub fn send_raw(&self, bytes: &[u8]) {
        for mut stream in &self.state().subscribers {
            let _ = stream.write_all(bytes);
        }
    }

    /// Publishes a batch that no subscriber gets, and that a replay has.
    pub fn lose(&self, events: &[Value]) {
        self.state().make(|time| packed(&json!([time, events, 0])));
    }

    /// Ends its process.
    pub fn goes(&self) {
        let mut state = self.state();
        state.gone = true;
        for stream in state.subscribers.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Replaces it by another process, of which nothing is known.
    pub fn begins_anew(&self) {
        let mut state = self.state();
        (state.next, state.gone) = (0, false);
        state.kept.clear();
    }

    /// Keeps only so many of its last messages for replays.
    pub fn keeps(&self, messages: usize) {
        let kept = &mut self.state().kept;
        kept.drain(..kept.len().saturating_sub(messages));
    }

    /// Comes back as the same process, which was only out of reach.
    pub fn returns(&self) {
        self.state().gone = false;
    }

    /// How many connections have ever subscribed.
    pub fn connections(&self) -> usize {
        self.state().connections
    }

    /// Messages so far, of this process.
    pub fn published(&self) -> u64 {
        self.state().next
    }

    /// The numbers from which messages were asked for again.
    pub fn asked(&self) -> Vec<u64> {
        self.state().asked.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn accept(state: &Shared, serve: fn(TcpStream, &Shared) -> std::io::Result<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let state = Arc::clone(state);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let state = Arc::clone(&state);
            if !state.lock().unwrap().gone {
                std::thread::spawn(move || serve(stream, &state));
            }
        }
    });
    address
}

fn publish_to(mut stream: TcpStream, state: &Shared) -> std::io::Result<()> {
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    state.lock().unwrap().arriving += 1;
    let subscribes = stream
        .write_all(&PUBLISHER[..PUBLISHER_BYTES])
        .and_then(|()| stream.read_exact(&mut [0; SUBSCRIBER_BYTES + TOPIC.len()]));
    {
        let mut state = state.lock().unwrap();
        state.arriving -= 1;
        if state.gone {
            return Ok(());
        }
        subscribes?;
        state.connections += 1;
        state.subscribers.push(stream.try_clone()?);
    }
    // Heartbeats are not answered: no test takes that long.
    while stream.read(&mut [0; 1_024]).is_ok_and(|read| read > 0) {}
    let peer = stream.peer_addr().ok();
    state.lock().unwrap().subscribers.retain(|other| other.peer_addr().ok() != peer);
    Ok(())
}

fn answer(mut stream: TcpStream, state: &Shared) -> std::io::Result<()> {
    stream.write_all(&ROUTER[..ROUTER_BYTES])?;
    let mut theirs = [0; REQUEST_BYTES + 8];
    stream.read_exact(&mut theirs)?;
    let from = u64::from_be_bytes(*theirs.last_chunk().unwrap());
    // A front that asks has subscribed: if that were not read yet, messages after this answer would be lost.
    crate::until("the subscription of who asks", || state.lock().unwrap().arriving == 0);
    let mut bytes = Vec::new();
    {
        let mut state = state.lock().unwrap();
        state.asked.push(from);
        for (number, payload) in state.kept.iter().filter(|(number, _)| *number >= from) {
            bytes.extend(message(&[b"", TOPIC, &number.to_be_bytes(), payload]));
        }
    }
    bytes.extend(message(&[b"", b"", &u64::MAX.to_be_bytes(), b""]));
    stream.write_all(&bytes)?;
    // A front that has what it needs closes before the end.
    while stream.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
    Ok(())
}
