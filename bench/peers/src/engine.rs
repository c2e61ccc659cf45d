//! A mock engine: answers as vLLM behind uvicorn writes (one event, one chunk, one write), without the model. It reads
//! request bodies whole and answers from their digest, so that a request altered on its way gets a reply that the load
//! generator refuses.

pub(crate) mod replies;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::content::{self, Digest, Pace};
use crate::http::{self, Framer, Kind, Step};
use crate::net::{self, Poller};

use replies::{chunk, json, metrics, reply, stream_head};

const HELP: &str = "\
peers engine [--port N]   0, the default, takes a free one; the first line says which
  [--named]               each reply says its port, in the field `x-engine`
  [--drains]              SIGTERM ends it as vLLM: streams finish, /health goes on, requests get 500";
const LISTENER: usize = usize::MAX;
const STEP_MS: std::ops::Range<u64> = 20..30;

pub fn main(words: &[String]) -> Result<(), String> {
    let args = Args::parse(words, &["port"], &["named", "drains"], HELP)?;
    net::raise_descriptors(65_536);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.get("port", 0)?));
    let listener = net::listen(address).map_err(|error| format!("listen on {address}: {error}"))?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    println!("{port}");
    if args.has("drains") {
        net::note_interrupts();
    }
    let name = if args.has("named") { format!("x-engine: {port}\r\n") } else { String::new() };
    let mut engine = Engine::new(listener, name).map_err(|error| error.to_string())?;
    while !(net::interrupted() && engine.has_nothing_to_say()) {
        engine.turn().map_err(|error| error.to_string())?;
    }
    Ok(())
}

struct Connection {
    stream: TcpStream,
    framer: Framer,
    request: Incoming,
    reply: Option<Stream>,
    /// Bytes that the socket has not taken yet, from offset `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Tells connections apart that had the same slot: timers may outlive theirs.
    generation: u64,
}

struct Incoming {
    target: Target,
    pace: Pace,
    tokens: u32,
    digest: Digest,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Generate,
    Health,
    Models,
    Metrics,
    Unknown,
}

struct Stream {
    digest: u64,
    tokens: u32,
    next: u32,
}

struct Engine {
    poller: Poller,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Streams, as (slot, generation), that write one event a turn, or one a decode step.
    flat: Vec<(usize, u64)>,
    stepping: Vec<(usize, u64)>,
    step_at: Instant,
    phases: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    generation: u64,
    running: usize,
    /// A field line of every reply to a request; may be empty.
    name: String,
    random: u64,
    scratch: Vec<u8>,
}

impl Engine {
    fn new(listener: TcpListener, name: String) -> std::io::Result<Engine> {
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, net::IN)?;
        Ok(Engine {
            poller,
            listener,
            connections: Vec::new(),
            free: Vec::new(),
            flat: Vec::new(),
            stepping: Vec::new(),
            step_at: Instant::now(),
            phases: BinaryHeap::new(),
            generation: 0,
            running: 0,
            name,
            random: std::process::id().into(),
            scratch: vec![0; 256 << 10],
        })
    }

    fn turn(&mut self) -> std::io::Result<()> {
        let count = self.poller.wait(self.timeout())?;
        for at in 0..count {
            let (token, flags) = self.poller.event(at);
            if token == LISTENER {
                self.accept();
                continue;
            }
            if flags & net::OUT != 0 {
                self.flush(token);
            }
            if flags & !net::OUT != 0 {
                self.read(token);
            }
        }
        self.write_events();
        Ok(())
    }

    fn timeout(&self) -> Option<Duration> {
        // While every reader of the flat-out streams is slow, a turn has nothing to do.
        let blocked = |&(slot, _): &(usize, u64)| self.connections[slot].as_ref().is_some_and(|c| !c.out.is_empty());
        let flat = (!self.flat.is_empty() && !self.flat.iter().all(blocked)).then_some(Instant::now());
        let step = (!self.stepping.is_empty()).then_some(self.step_at);
        let phase = self.phases.peek().map(|Reverse((at, ..))| *at);
        let next = flat.into_iter().chain(step).chain(phase).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn has_nothing_to_say(&self) -> bool {
        self.running == 0 && self.connections.iter().flatten().all(|connection| connection.out.is_empty())
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let slot = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            self.generation += 1;
            let prepared = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            if prepared.and_then(|()| self.poller.add(&stream, slot, net::IN)).is_err() {
                self.free.push(slot);
                continue;
            }
            self.connections[slot] = Some(Connection {
                stream,
                framer: Framer::new(Kind::Request),
                request: Incoming::new(),
                reply: None,
                out: Vec::new(),
                sent: 0,
                generation: self.generation,
            });
        }
    }

    fn close(&mut self, slot: usize) {
        if let Some(connection) = self.connections[slot].take() {
            self.running -= usize::from(connection.reply.is_some());
            self.free.push(slot);
        }
    }

    fn read(&mut self, slot: usize) {
        let Some(connection) = &mut self.connections[slot] else { return };
        let count = match connection.stream.read(&mut self.scratch) {
            Ok(0) => return self.close(slot),
            Ok(count) => count,
            Err(error) if net::would_block(&error) => return,
            Err(_) => return self.close(slot),
        };
        let scratch = std::mem::take(&mut self.scratch);
        let mut input = &scratch[..count];
        let kept = loop {
            let Some(connection) = &mut self.connections[slot] else { break false };
            match connection.framer.next(&mut input) {
                Ok(Step::More) => break true,
                Ok(Step::Head(head)) => connection.request.head(&head),
                Ok(Step::Body(bytes)) => connection.request.digest.update(bytes),
                // One request at a time: no front under test pipelines towards its upstream.
                Ok(Step::End) if connection.reply.is_some() => break false,
                Ok(Step::End) => self.answer(slot),
                Err(_) => break false,
            }
        };
        self.scratch = scratch;
        if !kept {
            self.close(slot);
        }
    }

    fn answer(&mut self, slot: usize) {
        let running = self.running;
        let Some(connection) = &mut self.connections[slot] else { return };
        let request = std::mem::replace(&mut connection.request, Incoming::new());
        let generation = connection.generation;
        let name = &self.name;
        let reply = match request.target {
            Target::Generate if net::interrupted() => json(500, name, replies::DRAINING.as_bytes()),
            Target::Generate if request.pace == Pace::Speech => {
                reply(200, name, "audio/wav", &content::speech_reply(request.digest.finish()))
            }
            Target::Generate if request.pace == Pace::Plain => {
                json(200, name, &content::plain_reply(request.digest.finish()))
            }
            Target::Generate => {
                let digest = request.digest.finish();
                connection.reply = Some(Stream { digest, tokens: request.tokens, next: 0 });
                self.running += 1;
                self.begin_stream(slot, generation, request.pace);
                return;
            }
            Target::Health => reply(200, "", "application/octet-stream", b""),
            Target::Models => json(200, "", replies::MODELS.as_bytes()),
            Target::Metrics => reply(200, "", "text/plain; version=1.0.0; charset=utf-8", metrics(running).as_bytes()),
            Target::Unknown => json(404, "", b"{\"detail\":\"Not Found\"}"),
        };
        self.write(slot, &reply);
    }

    fn begin_stream(&mut self, slot: usize, generation: u64, pace: Pace) {
        self.write(slot, stream_head(&self.name).as_bytes());
        match pace {
            Pace::Flat => self.flat.push((slot, generation)),
            Pace::Step => {
                if self.stepping.is_empty() {
                    self.step_at = Instant::now() + self.step();
                }
                self.stepping.push((slot, generation));
            }
            Pace::Phase => {
                let at = Instant::now() + self.step();
                self.phases.push(Reverse((at, slot, generation)));
            }
            Pace::Hold => {
                self.event(slot, generation);
            }
            Pace::Plain | Pace::Speech => unreachable!("answered whole"),
        }
    }

    fn step(&mut self) -> Duration {
        self.random = content::mix(self.random);
        let span = (STEP_MS.end - STEP_MS.start) * 1_000_000;
        Duration::from_millis(STEP_MS.start) + Duration::from_nanos(self.random % span)
    }

    fn write_events(&mut self) {
        let mut flat = std::mem::take(&mut self.flat);
        flat.retain(|&(slot, generation)| self.event(slot, generation));
        self.flat.append(&mut flat);

        let now = Instant::now();
        if !self.stepping.is_empty() && now >= self.step_at {
            let mut stepping = std::mem::take(&mut self.stepping);
            stepping.retain(|&(slot, generation)| self.event(slot, generation));
            self.stepping = stepping;
            // Decode steps keep their own time; they slip only if the machine cannot keep up.
            self.step_at = (self.step_at + self.step()).max(now);
        }
        while let Some(&Reverse((at, slot, generation))) = self.phases.peek() {
            if at > now {
                break;
            }
            self.phases.pop();
            if self.event(slot, generation) {
                let next = (at + self.step()).max(now);
                self.phases.push(Reverse((next, slot, generation)));
            }
        }
    }

    /// Writes the next event of a stream, and its end after the last token; true while it goes on. A
    /// stream whose reader is slow skips its turn.
    fn event(&mut self, slot: usize, generation: u64) -> bool {
        let Some(connection) = &mut self.connections[slot] else { return false };
        let Some(stream) = &mut connection.reply else { return false };
        if connection.generation != generation {
            return false;
        }
        if !connection.out.is_empty() {
            return true;
        }
        let (digest, index, tokens) = (stream.digest, stream.next, stream.tokens);
        stream.next += 1;
        let goes_on = index < tokens;
        if !goes_on {
            connection.reply = None;
            self.running -= 1;
        }
        self.write(slot, &chunk(digest, index, tokens));
        if !goes_on {
            self.write(slot, &chunk(digest, tokens + 1, tokens));
            self.write(slot, b"0\r\n\r\n");
        }
        goes_on
    }

    fn write(&mut self, slot: usize, bytes: &[u8]) {
        let Some(connection) = &mut self.connections[slot] else { return };
        if !connection.out.is_empty() {
            connection.out.extend_from_slice(bytes);
            return;
        }
        let written = match connection.stream.write(bytes) {
            Ok(count) => count,
            Err(error) if net::would_block(&error) => 0,
            Err(_) => return self.close(slot),
        };
        if written < bytes.len() {
            connection.out.extend_from_slice(&bytes[written..]);
            let changed = self.poller.change(&connection.stream, slot, net::IN | net::OUT);
            if changed.is_err() {
                self.close(slot);
            }
        }
    }

    fn flush(&mut self, slot: usize) {
        let Some(connection) = &mut self.connections[slot] else { return };
        while connection.sent < connection.out.len() {
            match connection.stream.write(&connection.out[connection.sent..]) {
                Ok(count) => connection.sent += count,
                Err(error) if net::would_block(&error) => return,
                Err(_) => return self.close(slot),
            }
        }
        connection.out = Vec::new();
        connection.sent = 0;
        if self.poller.change(&connection.stream, slot, net::IN).is_err() {
            self.close(slot);
        }
    }
}

impl Incoming {
    fn new() -> Incoming {
        Incoming { target: Target::Unknown, pace: Pace::Plain, tokens: 0, digest: Digest::new() }
    }

    fn head(&mut self, head: &[u8]) {
        let path = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        self.target = match path {
            b"/v1/chat/completions" => Target::Generate,
            b"/health" => Target::Health,
            b"/v1/models" => Target::Models,
            b"/metrics" => Target::Metrics,
            _ => Target::Unknown,
        };
        if let Some((pace, tokens)) = http::header(head, "x-mock").and_then(content::parse_mock) {
            (self.pace, self.tokens) = (pace, tokens);
        }
    }
}
