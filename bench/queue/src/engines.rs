//! Mock engines, all on one thread of this process, so that their executions can be looked up. They are fast, and each
//! has a KV cache that its `/metrics` tells of and that is as full as requests run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use peers::http::{self, Framer, Kind, Step};
use peers::net::{self, Poller};

use crate::request;

/// Poll tokens of the listeners; connections have lower ones.
const LISTENERS: usize = 1 << 40;
const BLOCK_TOKENS: u64 = 16;
/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Size of the engines' caches in tokens, and what a running request takes of one.
#[derive(Clone, Copy)]
pub struct Cache {
    pub tokens: u64,
    pub of_request: u64,
}

impl Cache {
    /// A cache that one request of the bench fills: a second finds room once the first has ended. It tells no use: a
    /// reading is old by the time it is used, and these parts are about the queue.
    pub const ONE_REQUEST: Cache = Cache { tokens: 160, of_request: 0 };
    /// The same, telling its use.
    pub const ONE_REQUEST_TOLD: Cache = Cache { tokens: 256, of_request: 192 };
    /// A cache that is never full.
    pub const ROOMY: Cache = Cache { tokens: 64 << 20, of_request: 192 };
}

/// One request as an engine saw it.
#[derive(Clone, Copy)]
pub struct Execution {
    pub times: u32,
    /// The first execution.
    pub at: Instant,
}

/// What the engines did so far.
#[derive(Default)]
pub struct Log {
    pub executions: HashMap<u64, Execution>,
    /// Most requests that ran at once, by engine.
    pub most: Vec<usize>,
    /// Requests that came, by engine.
    pub got: Vec<usize>,
}

pub struct Engines {
    pub ports: Vec<u16>,
    log: Arc<Mutex<Log>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Engines {
    pub fn start(count: usize, cache: Cache) -> Result<Engines, String> {
        let words = |error: std::io::Error| format!("engines: {error}");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listeners = (0..count).map(|_| net::listen(any)).collect::<Result<Vec<_>, _>>().map_err(words)?;
        let ports = listeners.iter().map(|listener| listener.local_addr().map(|address| address.port()));
        let ports = ports.collect::<Result<Vec<_>, _>>().map_err(words)?;
        let log = Arc::new(Mutex::new(Log { most: vec![0; count], got: vec![0; count], ..Log::default() }));
        let ends = Arc::new(AtomicBool::new(false));
        let mut fleet = Fleet::new(listeners, cache, Arc::clone(&log)).map_err(words)?;
        let told = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                if let Err(error) = fleet.turn() {
                    eprintln!("engines: {error}");
                    return;
                }
            }
        });
        Ok(Engines { ports, log, ends, thread: Some(thread) })
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when a request came to an engine, if it did.
    pub fn began(&self, id: u64) -> Option<Instant> {
        self.log().executions.get(&id).map(|execution| execution.at)
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Serving {
    id: u64,
    events: u32,
    next: u32,
    every: Duration,
}

struct Connection {
    stream: TcpStream,
    framer: Framer,
    engine: usize,
    path: Vec<u8>,
    asked: Option<(u64, Duration, u32)>,
    serving: Option<Serving>,
    /// Tells connections apart that had the same place.
    generation: u64,
}

struct Fleet {
    poller: Poller,
    listeners: Vec<TcpListener>,
    cache: Cache,
    log: Arc<Mutex<Log>>,
    running: Vec<usize>,
    connections: Vec<Option<Connection>>,
    vacant: Vec<usize>,
    /// When the next piece is due on which connection.
    due: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    generation: u64,
    scratch: Vec<u8>,
}

impl Fleet {
    fn new(listeners: Vec<TcpListener>, cache: Cache, log: Arc<Mutex<Log>>) -> std::io::Result<Fleet> {
        let poller = Poller::new()?;
        for (engine, listener) in listeners.iter().enumerate() {
            poller.add(listener, LISTENERS + engine, net::IN)?;
        }
        Ok(Fleet {
            poller,
            running: vec![0; listeners.len()],
            listeners,
            cache,
            log,
            connections: Vec::new(),
            vacant: Vec::new(),
            due: BinaryHeap::new(),
            generation: 0,
            scratch: vec![0; 64 << 10],
        })
    }

    fn turn(&mut self) -> std::io::Result<()> {
        let next = self.due.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
        let count = self.poller.wait(Some(next.unwrap_or(LOOK).min(LOOK)))?;
        for at in 0..count {
            match self.poller.event(at) {
                (token, _) if token >= LISTENERS => self.accept(token - LISTENERS),
                (place, _) => self.read(place),
            }
        }
        let now = Instant::now();
        while let Some(&Reverse((at, place, generation))) = self.due.peek() {
            if at > now {
                break;
            }
            self.due.pop();
            self.goes_on(place, generation, at);
        }
        Ok(())
    }

    fn accept(&mut self, engine: usize) {
        while let Ok((stream, _)) = self.listeners[engine].accept() {
            let place = self.vacant.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let prepared = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            if prepared.and_then(|()| self.poller.add(&stream, place, net::IN)).is_err() {
                self.vacant.push(place);
                continue;
            }
            self.generation += 1;
            self.connections[place] = Some(Connection {
                stream,
                framer: Framer::new(Kind::Request),
                engine,
                path: Vec::new(),
                asked: None,
                serving: None,
                generation: self.generation,
            });
        }
    }

    fn close(&mut self, place: usize) {
        if let Some(connection) = self.connections[place].take() {
            self.running[connection.engine] -= usize::from(connection.serving.is_some());
            self.vacant.push(place);
        }
    }

    fn read(&mut self, place: usize) {
        let Some(connection) = &mut self.connections[place] else { return };
        let count = match connection.stream.read(&mut self.scratch) {
            Err(error) if net::would_block(&error) => return,
            Ok(count) if count > 0 => count,
            _ => return self.close(place),
        };
        let scratch = std::mem::take(&mut self.scratch);
        let mut input = &scratch[..count];
        let kept = loop {
            let Some(connection) = &mut self.connections[place] else { break true };
            match connection.framer.next(&mut input) {
                Ok(Step::More) => break true,
                Ok(Step::Head(head)) => {
                    connection.path = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default().to_vec();
                    connection.asked = http::header(&head, "x-bench").and_then(request::said);
                }
                Ok(Step::Body(_)) => {}
                Ok(Step::End) if connection.serving.is_some() => break false,
                Ok(Step::End) => self.answer(place),
                Err(_) => break false,
            }
        };
        self.scratch = scratch;
        if !kept {
            self.close(place);
        }
    }

    fn answer(&mut self, place: usize) {
        let Some(connection) = &mut self.connections[place] else { return };
        let engine = connection.engine;
        let reply = match connection.path.as_slice() {
            b"/v1/chat/completions" => {
                if let Some(asked) = connection.asked.take() {
                    return self.executes(place, asked);
                }
                reply("400 Bad Request", "text/plain", b"no x-bench")
            }
            b"/health" => reply("200 OK", "text/plain", b""),
            b"/v1/models" => reply("200 OK", "application/json", MODELS),
            b"/metrics" => reply("200 OK", "text/plain; version=1.0.0", self.metrics(engine).as_bytes()),
            _ => reply("404 Not Found", "text/plain", b""),
        };
        self.write(place, &reply);
    }

    fn executes(&mut self, place: usize, (id, service, events): (u64, Duration, u32)) {
        let now = Instant::now();
        let Some(connection) = &mut self.connections[place] else { return };
        let engine = connection.engine;
        self.running[engine] += 1;
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.executions.entry(id).or_insert(Execution { times: 0, at: now }).times += 1;
        log.got[engine] += 1;
        log.most[engine] = log.most[engine].max(self.running[engine]);
        drop(log);
        let every = service / events.max(1);
        connection.serving = Some(Serving { id, events, next: 0, every });
        self.due.push(Reverse((now + every, place, connection.generation)));
        if events > 0 {
            self.write(place, STREAM_HEAD);
        }
    }

    /// Writes the next event of a stream, or the whole reply.
    fn goes_on(&mut self, place: usize, generation: u64, at: Instant) {
        let connection = self.connections[place].as_mut().filter(|connection| connection.generation == generation);
        let Some(connection) = connection else { return };
        let Some(serving) = &mut connection.serving else { return };
        let bytes = match serving.events {
            0 => reply("200 OK", "application/json", &request::answer(serving.id)),
            events => {
                let mut bytes = chunk(&request::event(serving.id, serving.next, events));
                serving.next += 1;
                if serving.next < events {
                    self.due.push(Reverse((at + serving.every, place, generation)));
                    return self.write(place, &bytes);
                }
                bytes.extend(chunk(&request::event(serving.id, events, events)));
                bytes.extend_from_slice(b"0\r\n\r\n");
                bytes
            }
        };
        connection.serving = None;
        self.running[connection.engine] -= 1;
        self.write(place, &bytes);
    }

    /// Replies are small: a socket that does not take one is broken off.
    fn write(&mut self, place: usize, bytes: &[u8]) {
        let Some(connection) = &mut self.connections[place] else { return };
        if !matches!(connection.stream.write(bytes), Ok(count) if count == bytes.len()) {
            self.close(place);
        }
    }

    fn metrics(&self, engine: usize) -> String {
        let running = self.running[engine] as u64;
        let used = (running * self.cache.of_request) as f64 / self.cache.tokens as f64;
        let blocks = self.cache.tokens / BLOCK_TOKENS;
        let labels = "{engine=\"0\",model_name=\"tiny\"}";
        format!(
            "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {running}.0\n\
             # TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{labels} 0.0\n\
             # TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{labels} {:?}\n\
             # TYPE vllm:cache_config_info gauge\n\
             vllm:cache_config_info{{block_size=\"{BLOCK_TOKENS}\",engine=\"0\",num_gpu_blocks=\"{blocks}\"}} 1.0\n",
            used.min(1.0)
        )
    }
}

const MODELS: &[u8] =
    br#"{"object":"list","data":[{"id":"tiny","object":"model","created":1,"owned_by":"vllm","root":"tiny"}]}"#;
const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n\
    content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(event: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{:x}\r\n", event.len()).into_bytes();
    bytes.extend_from_slice(event);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

fn reply(status: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-length: {length}\r\ncontent-type: {kind}\r\n\r\n");
    [head.as_bytes(), body].concat()
}
