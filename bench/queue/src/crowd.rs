//! Clients, all on one thread: what each sends, when it leaves, and what came of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use peers::http::{self, Framer, Kind, Step};
use peers::net::{self, Poller};

use crate::request::{self, Request};

/// Number of source addresses, used in turn: each has ports of its own.
const SOURCES: u64 = 16;
/// A request that has not ended after this long hangs.
const PATIENCE: Duration = Duration::from_secs(40);

/// When a client gives up.
#[derive(Clone, Copy)]
pub enum Leave {
    /// At once, with so many bytes sent.
    Sent(usize),
    /// So long after the whole request.
    After(Duration),
    /// After so many bytes of its reply's body.
    Read(usize),
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// A whole reply, verified if it is a 200.
    Whole { status: u16, retry_after: Option<u64> },
    /// The client left.
    Left,
    /// An end that may not happen.
    Broken(String),
}

pub struct Outcome {
    pub request: Request,
    pub sent_at: Instant,
    pub ended_at: Instant,
    pub end: End,
}

struct Exchange {
    request: Request,
    bytes: Vec<u8>,
    sent: usize,
    leave: Option<Leave>,
    sent_at: Instant,
    status: u16,
    retry_after: Option<u64>,
    closes: bool,
    body: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    framer: Framer,
    exchange: Option<Exchange>,
    generation: u64,
}

pub struct Crowd {
    targets: Vec<SocketAddrV4>,
    poller: Poller,
    connections: Vec<Option<Connection>>,
    vacant: Vec<usize>,
    idle: Vec<(usize, u64)>,
    alarms: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    opened: u64,
    /// Requests under way.
    pub in_flight: usize,
    /// Connections that brought bytes for which nobody had asked.
    pub strays: usize,
    /// Requests that have ended since this was last taken.
    pub ended: Vec<Outcome>,
    scratch: Vec<u8>,
}

impl Crowd {
    /// Connections go to these addresses in turn.
    pub fn new(targets: Vec<SocketAddrV4>) -> Result<Crowd, String> {
        Ok(Crowd {
            targets,
            poller: Poller::new().map_err(|error| error.to_string())?,
            connections: Vec::new(),
            vacant: Vec::new(),
            idle: Vec::new(),
            alarms: BinaryHeap::new(),
            opened: 0,
            in_flight: 0,
            strays: 0,
            ended: Vec::new(),
            scratch: vec![0; 64 << 10],
        })
    }

    /// Opens connections before anything is sent on them.
    pub fn connect(&mut self, count: usize) -> Result<(), String> {
        for _ in 0..count {
            let place = self.open().map_err(|error| error.to_string())?;
            self.idle.push((place, self.opened));
        }
        Ok(())
    }

    /// Sends a request, on a kept connection if there is one.
    pub fn begin(&mut self, request: Request, leave: Option<Leave>) {
        let mut exchange = Exchange {
            request,
            bytes: request.bytes(),
            sent: 0,
            leave,
            sent_at: Instant::now(),
            status: 0,
            retry_after: None,
            closes: false,
            body: Vec::new(),
        };
        let kept = std::iter::from_fn(|| self.idle.pop()).find(|&(place, generation)| {
            self.connections[place].as_ref().is_some_and(|connection| connection.generation == generation)
        });
        let place = match kept.map_or_else(|| self.open(), |(place, _)| Ok(place)) {
            Ok(place) => place,
            Err(error) => {
                let end = End::Broken(format!("connect: {error}"));
                return self.tell(exchange, end);
            }
        };
        // The time to connect is no wait in the front's queue.
        exchange.sent_at = Instant::now();
        let Some(connection) = &mut self.connections[place] else { return };
        let generation = connection.generation;
        let leaves_at = match leave {
            Some(Leave::After(time)) => exchange.sent_at + time,
            _ => exchange.sent_at + PATIENCE,
        };
        connection.exchange = Some(exchange);
        self.in_flight += 1;
        self.alarms.push(Reverse((leaves_at, place, generation)));
        self.write(place);
    }

    fn open(&mut self) -> std::io::Result<usize> {
        self.opened += 1;
        let source = Ipv4Addr::new(127, 0, 0, 2 + (self.opened % SOURCES) as u8);
        let target = self.targets[self.opened as usize % self.targets.len()];
        let stream = net::connect_from(source, target)?;
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.poller.add(&stream, place, net::IN)?;
        let framer = Framer::new(Kind::Reply);
        self.connections[place] = Some(Connection { stream, framer, exchange: None, generation: self.opened });
        Ok(place)
    }

    fn tell(&mut self, exchange: Exchange, end: End) {
        let Exchange { request, sent_at, .. } = exchange;
        self.ended.push(Outcome { request, sent_at, ended_at: Instant::now(), end });
    }

    /// Ends the connection, and with it the exchange.
    fn close(&mut self, place: usize, end: End) {
        let Some(connection) = self.connections[place].take() else { return };
        self.vacant.push(place);
        if end == End::Left && connection.generation.is_multiple_of(2) {
            net::reset_on_close(&connection.stream);
        }
        if let Some(exchange) = connection.exchange {
            self.in_flight -= 1;
            self.tell(exchange, end);
        }
    }

    fn write(&mut self, place: usize) {
        let Some(connection) = &mut self.connections[place] else { return };
        let Some(exchange) = &mut connection.exchange else { return };
        let until = match exchange.leave {
            Some(Leave::Sent(most)) => most.min(exchange.bytes.len()),
            _ => exchange.bytes.len(),
        };
        while exchange.sent < until {
            match connection.stream.write(&exchange.bytes[exchange.sent..until]) {
                Ok(count) => exchange.sent += count,
                Err(error) if net::would_block(&error) => {
                    let _ = self.poller.change(&connection.stream, place, net::IN | net::OUT);
                    return;
                }
                // An early answer may be there to be read.
                Err(_) => return,
            }
        }
        let _ = self.poller.change(&connection.stream, place, net::IN);
        if let Some(Leave::Sent(_)) = exchange.leave {
            self.close(place, End::Left);
        }
    }

    /// Waits until `end` at most, and moves all exchanges that are ready.
    pub fn turn(&mut self, end: Instant) -> Result<(), String> {
        let next = self.alarms.peek().map_or(end, |Reverse((at, ..))| end.min(*at));
        let timeout = next.saturating_duration_since(Instant::now());
        let count = self.poller.wait(Some(timeout)).map_err(|error| error.to_string())?;
        for at in 0..count {
            let (place, flags) = self.poller.event(at);
            if flags & net::OUT != 0 {
                self.write(place);
            }
            if flags & !net::OUT != 0 {
                self.read(place);
            }
        }
        let now = Instant::now();
        while let Some(&Reverse((at, place, generation))) = self.alarms.peek() {
            if at > now {
                break;
            }
            self.alarms.pop();
            let connection = self.connections[place].as_ref().filter(|one| one.generation == generation);
            let Some(exchange) = connection.and_then(|connection| connection.exchange.as_ref()) else { continue };
            match exchange.leave {
                Some(Leave::After(time)) if now >= exchange.sent_at + time => self.close(place, End::Left),
                _ if now >= exchange.sent_at + PATIENCE => self.close(place, End::Broken("it hangs".into())),
                // The event belongs to an exchange before this one, on a kept connection.
                _ => {}
            }
        }
        Ok(())
    }

    fn read(&mut self, place: usize) {
        let Some(connection) = &mut self.connections[place] else { return };
        let mut scratch = std::mem::take(&mut self.scratch);
        let end = match connection.stream.read(&mut scratch) {
            Err(error) if net::would_block(&error) => None,
            Ok(count) if count > 0 => self.take(place, &scratch[..count]).err(),
            Ok(_) => Some(End::Broken("the connection ended".into())),
            Err(error) => Some(End::Broken(error.to_string())),
        };
        self.scratch = scratch;
        if let Some(end) = end {
            self.close(place, end);
        }
    }

    fn take(&mut self, place: usize, mut input: &[u8]) -> Result<(), End> {
        loop {
            let Some(connection) = &mut self.connections[place] else { return Ok(()) };
            let step = connection.framer.next(&mut input).map_err(|bad| End::Broken(bad.into()))?;
            if matches!(step, Step::More) {
                return Ok(());
            }
            let Some(exchange) = &mut connection.exchange else {
                self.strays += 1;
                return Err(End::Broken("bytes without a request".into()));
            };
            match step {
                Step::More => {}
                Step::Head(head) => exchange.head(&head),
                Step::Body(piece) => {
                    exchange.body.extend_from_slice(piece);
                    if matches!(exchange.leave, Some(Leave::Read(most)) if exchange.body.len() >= most) {
                        return Err(End::Left);
                    }
                }
                Step::End => {
                    let end = exchange.verified();
                    if exchange.closes || matches!(end, End::Broken(_)) {
                        return Err(end);
                    }
                    let generation = connection.generation;
                    if let Some(exchange) = connection.exchange.take() {
                        self.in_flight -= 1;
                        self.tell(exchange, end);
                    }
                    self.idle.push((place, generation));
                }
            }
        }
    }
}

impl Exchange {
    fn head(&mut self, head: &[u8]) {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        self.status = head.split(|byte| *byte == b' ').nth(1).and_then(|code| text(code).parse().ok()).unwrap_or(0);
        self.retry_after = http::header(head, "retry-after").and_then(|value| text(value).parse().ok());
        self.closes = http::header(head, "connection").is_some_and(|value| value.eq_ignore_ascii_case(b"close"));
    }

    /// How a whole reply counts.
    fn verified(&self) -> End {
        let (status, retry_after) = (self.status, self.retry_after);
        match status {
            200 if self.body == request::expected(self.request.id, self.request.events) => {
                End::Whole { status, retry_after }
            }
            200 => End::Broken("another reply than this request's".into()),
            429 | 503 if retry_after.is_some() => End::Whole { status, retry_after },
            429 | 503 => End::Broken(format!("{status} without Retry-After")),
            _ => End::Broken(format!("status {status}: {}", String::from_utf8_lossy(&self.body))),
        }
    }
}
