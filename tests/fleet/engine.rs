//! Stand-ins for engine processes: an address, `/health`, and requests, which can fail in several ways.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::reserved;
use crate::wire::{Head, Length, Wire};

const GOOD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
const HEALTHY: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const KEY_WANTED: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
const UNKNOWN: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
const ERROR: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\n\r\nsorry";
/// A vLLM that drains, as recorded.
const DRAINING: &str = include_str!("../fixtures/vllm-0.32.0/sigterm-drain.new-request.response");
const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n";

/// How it answers requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    Good,
    Fails,
    Drains,
    /// Begins a stream and says no more.
    Silent,
    /// Begins a stream, and breaks it off when its mood changes.
    Breaks,
    /// Reads requests and answers none.
    Hangs,
    /// A stream of [`EVENTS`] events, one every 20 ms.
    Ticks,
    /// A stream of such events that ends when its mood changes.
    TicksOn,
}

/// Events of [`Mood::Ticks`].
pub const EVENTS: usize = 100;

const MOODS: [Mood; 8] =
    [Mood::Good, Mood::Fails, Mood::Drains, Mood::Silent, Mood::Breaks, Mood::Hangs, Mood::Ticks, Mood::TicksOn];

#[derive(Default)]
struct State {
    mood: AtomicUsize,
    /// Its answer to `/metrics`; empty: 404.
    metrics: Mutex<&'static str>,
    /// The models that it lists and serves; none: it has no list, and serves any model.
    models: Mutex<Vec<(&'static str, u32)>>,
    asks_keys: AtomicBool,
    /// The API key that it asks for, also for its list; empty: none.
    key: Mutex<&'static str>,

    gone: AtomicBool,
    slow: AtomicBool,
    requests: AtomicUsize,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
}

pub struct Engine {
    pub address: SocketAddr,
    /// Keeps the address reserved while the engine is gone.
    _kept: TcpListener,
    state: Arc<State>,
}

impl Engine {
    pub fn start() -> Engine {
        let (address, kept) = reserved::address();
        let engine = Engine { address, _kept: kept, state: Arc::default() };
        engine.listen(TcpListener::bind(address).unwrap());
        engine
    }

    fn listen(&self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if state.gone.load(Ordering::Relaxed) {
                    break;
                }
                let state = Arc::clone(&state);
                std::thread::spawn(move || serve(Wire::new(stream.unwrap()), &state));
            }
        });
    }

    pub fn becomes(&self, mood: Mood) {
        let place = MOODS.iter().position(|known| *known == mood).unwrap();
        self.state.mood.store(place, Ordering::Relaxed);
    }

    /// Sets its answer to `/metrics`.
    pub fn tells(&self, answer: &'static str) {
        *self.state.metrics.lock().unwrap() = answer;
    }

    /// Lists these models, with their contexts in tokens, and answers 404 to requests for others.
    pub fn serves(&self, models: &[(&'static str, u32)]) {
        *self.state.models.lock().unwrap() = models.to_vec();
    }

    /// Answers 401 to requests without a key; any key will do.
    pub fn asks_keys(&self) {
        self.state.asks_keys.store(true, Ordering::Relaxed);
    }

    /// Answers 401 to requests without this key, also for its list.
    pub fn takes(&self, key: &'static str) {
        *self.state.key.lock().unwrap() = key;
    }

    /// Answers probes only after two seconds, or at once.
    pub fn is_slow(&self, slow: bool) {
        self.state.slow.store(slow, Ordering::Relaxed);
    }

    /// Stops listening; its open connections stay.
    pub fn goes(&self) {
        self.state.gone.store(true, Ordering::Relaxed);
        // A connection makes its thread look whether it is to close.
        crate::until("the listener to close", || TcpStream::connect(self.address).is_err());
    }

    /// Listens on its address again.
    pub fn returns(&self) {
        self.state.gone.store(false, Ordering::Relaxed);
        self.listen(TcpListener::bind(self.address).unwrap());
    }

    /// Requests so far, those for `/health`, `/metrics` and `/v1/models` not counted.
    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// Most requests that it had at a time since the last call.
    pub fn most_at_once(&self) -> usize {
        self.state.most_at_once.swap(0, Ordering::Relaxed)
    }
}

impl State {
    fn list(&self) -> String {
        let models = self.models.lock().unwrap();
        let card = |(id, context): &(&str, u32)| format!("{{\"id\":\"{id}\",\"max_model_len\":{context}}}");
        let data = models.iter().map(card).collect::<Vec<_>>().join(",");
        let body = format!("{{\"object\":\"list\",\"data\":[{data}]}}");
        match models.is_empty() {
            true => UNKNOWN.into(),
            false => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
        }
    }

    fn lets_in(&self, head: &Head) -> bool {
        let key = *self.key.lock().unwrap();
        key.is_empty() || head.get("authorization") == Some(&format!("Bearer {key}"))
    }

    fn has_model_of(&self, body: &[u8]) -> bool {
        let body = String::from_utf8_lossy(body);
        let models = self.models.lock().unwrap();
        models.is_empty() || models.iter().any(|(id, _)| body.contains(&format!("\"model\":\"{id}\"")))
    }
}

fn serve(mut wire: Wire, state: &State) {
    while let Some(head) = wire.head() {
        let body = wire.body(head.length().unwrap_or(Length::Of(0)));
        let path = head.start.split(' ').nth(1).unwrap_or_default().to_owned();
        let answer = match path.as_str() {
            "/health" => {
                if state.slow.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_secs(2));
                }
                HEALTHY
            }
            "/metrics" => Some(*state.metrics.lock().unwrap()).filter(|told| !told.is_empty()).unwrap_or(UNKNOWN),
            _ if !state.lets_in(&head) => KEY_WANTED,
            "/v1/models" => &state.list(),
            _ if state.asks_keys.load(Ordering::Relaxed) && head.get("authorization").is_none() => KEY_WANTED,
            _ if !state.has_model_of(&body.data) => UNKNOWN,
            _ => {
                let at_once = state.at_once.fetch_add(1, Ordering::Relaxed) + 1;
                state.most_at_once.fetch_max(at_once, Ordering::Relaxed);
                state.requests.fetch_add(1, Ordering::Relaxed);
                // Long enough for others to come meanwhile.
                std::thread::sleep(Duration::from_millis(2));
                state.at_once.fetch_sub(1, Ordering::Relaxed);
                let mood = || MOODS[state.mood.load(Ordering::Relaxed)];
                match mood() {
                    Mood::Good => GOOD,
                    Mood::Fails => ERROR,
                    Mood::Drains => DRAINING,
                    Mood::Silent => STREAM,
                    Mood::Breaks => {
                        let _ = wire.stream.write_all(STREAM.as_bytes());
                        while mood() == Mood::Breaks {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        return;
                    }
                    Mood::Hangs => "",
                    Mood::Ticks if tick(&mut wire, |events| events < EVENTS).is_err() => return,
                    Mood::TicksOn if tick(&mut wire, |_| mood() == Mood::TicksOn).is_err() => return,
                    Mood::Ticks | Mood::TicksOn => "",
                }
            }
        };
        if wire.stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Sends an event every 20 ms, as long as `goes_on` holds of their number.
fn tick(wire: &mut Wire, goes_on: impl Fn(usize) -> bool) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    wire.stream.write_all(head.as_bytes())?;
    for _ in (0..).take_while(|events| goes_on(*events)) {
        wire.stream.write_all(b"9\r\ndata: a\n\n\r\n")?;
        std::thread::sleep(Duration::from_millis(20));
    }
    wire.stream.write_all(b"0\r\n\r\n")
}
