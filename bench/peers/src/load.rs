//! The load generator: one thread on epoll, every reply compared byte by byte with the one its request
//! calls for. It reads the front's CPU time and memory itself, at the edges of its own window.

mod tally;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::content::{self, Pace, Request};
use crate::http::{Framer, Kind, Step};
use crate::net::{self, Poller};
use crate::process;
use crate::verify::Expected;

use tally::Tally;

const HELP: &str = "\
peers load --targets PORT[,PORT]   where to send; connections are spread over them
  [--pace plain|speech|flat|step|phase|hold] [--connections N] [--body BYTES] [--fresh true]
  [--tokens N] [--vary N]          tokens of a stream, and how far a stream may differ from that
  [--rate N]                       open loop: N requests a second on schedule, late or not
  [--warmup-ms N] [--seconds N]    before and in the measured window
  [--pid PID]                      whose CPU and memory to read
Prints one line of name=value pairs. Any wrong byte ends it with exit status 1.";

/// A run without any progress for this long has failed.
const STALL: Duration = Duration::from_secs(10);
/// Connections per source address: well under the ports that one address has.
const PER_SOURCE: usize = 1000;
/// Connections of the idle scenario that are being opened at a time.
const OPENING_MAX: usize = 64;

pub fn main(words: &[String]) -> Result<(), String> {
    let names =
        ["targets", "pace", "connections", "body", "fresh", "tokens", "vary", "rate", "warmup-ms", "seconds", "pid"];
    let args = Args::parse(words, &names, &[], HELP)?;
    let ports: Result<Vec<u16>, _> = args.list("targets").iter().map(|port| port.parse()).collect();
    let ports = ports.ok().filter(|ports| !ports.is_empty()).ok_or(HELP)?;
    net::raise_descriptors(65_536);
    let plan = Plan {
        targets: ports.into_iter().map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).collect(),
        pace: args.get("pace", Pace::Plain)?,
        connections: args.get("connections", 64)?,
        tokens: args.get("tokens", 100)?,
        vary: args.get("vary", 0)?,
        rate: args.get("rate", 0)?,
        warmup: Duration::from_millis(args.get("warmup-ms", 1000)?),
        window: Duration::from_secs_f64(args.get("seconds", 4.0)?),
        pid: args.get("pid", 0)?,
    };
    let mut request = Request::new(plan.pace, args.get("body", 1024)?);
    if args.get("fresh", false)? {
        request = request.fresh();
    }
    let mut load = Load::new(plan, request)?;
    match load.plan.pace {
        Pace::Hold => load.idle(),
        _ if load.plan.rate > 0 => load.open_loop(),
        _ => load.closed_loop(),
    }
}

struct Plan {
    targets: Vec<SocketAddrV4>,
    pace: Pace,
    connections: usize,
    tokens: u32,
    vary: u32,
    rate: u64,
    warmup: Duration,
    window: Duration,
    pid: u32,
}

struct Connection {
    stream: TcpStream,
    request: Request,
    sent: usize,
    framer: Framer,
    /// The reply that is awaited; `None` between exchanges.
    expected: Option<Expected>,
    /// When the request was sent, or was due in an open loop.
    started: Instant,
}

struct Load {
    plan: Plan,
    request: Request,
    poller: Poller,
    connections: Vec<Connection>,
    /// Connections whose exchange has ended since the last look.
    finished: Vec<usize>,
    tally: Tally,
    next_id: u64,
    scratch: Vec<u8>,
    progress: Instant,
}

impl Load {
    fn new(plan: Plan, request: Request) -> Result<Load, String> {
        let poller = Poller::new().map_err(|error| error.to_string())?;
        Ok(Load {
            plan,
            request,
            poller,
            connections: Vec::new(),
            finished: Vec::new(),
            tally: Tally::default(),
            next_id: u64::from(std::process::id()) << 32,
            scratch: vec![0; 256 << 10],
            progress: Instant::now(),
        })
    }

    /// N connections, each sends its next request when its reply is whole.
    fn closed_loop(&mut self) -> Result<(), String> {
        self.connect_all()?;
        let begin = Instant::now();
        for at in 0..self.connections.len() {
            self.send(at, Instant::now())?;
        }
        self.again_until(begin + self.plan.warmup)?;
        let first = self.tally.mark(self.plan.pid)?;
        let end = first.at + self.plan.window;
        self.tally.time(first.at..end);
        self.again_until(end)?;
        let last = self.tally.mark(self.plan.pid)?;
        self.drain()?;
        self.tally.print(self.plan.pid, &first, &last)
    }

    fn again_until(&mut self, end: Instant) -> Result<(), String> {
        while Instant::now() < end {
            self.turn(end)?;
            for at in std::mem::take(&mut self.finished) {
                self.send(at, Instant::now())?;
            }
        }
        Ok(())
    }

    /// Sends requests at fixed times whether or not earlier ones have come back; latency counts from the time a request
    /// was due, so that a front that stalls does not hide it.
    fn open_loop(&mut self) -> Result<(), String> {
        self.connect_all()?;
        let mut free: VecDeque<usize> = (0..self.connections.len()).collect();
        let interval = Duration::from_nanos(1_000_000_000 / self.plan.rate);
        let mut due = Instant::now() + interval;
        let start = due + self.plan.warmup;
        let end = start + self.plan.window;
        self.tally.time(start..end);
        let (mut first, mut last) = (None, None);
        let (mut waiting, mut due_in_window) = (VecDeque::new(), 0);
        loop {
            let now = Instant::now();
            if first.is_none() && now >= start {
                first = Some(self.tally.mark(self.plan.pid)?);
            }
            if last.is_none() && now >= end {
                last = Some(self.tally.mark(self.plan.pid)?);
            }
            while due <= now && due < end {
                due_in_window += usize::from(due >= start);
                waiting.push_back(due);
                due += interval;
            }
            while let Some((&at, &started)) = free.front().zip(waiting.front()) {
                free.pop_front();
                waiting.pop_front();
                self.send(at, started)?;
            }
            // Requests that still wait after the window are sent as well: unsent they would not have counted as late.
            if last.is_some() && waiting.is_empty() {
                break;
            }
            self.turn(if now < end { due.min(end) } else { now + STALL })?;
            free.extend(self.finished.drain(..));
        }
        let (first, last) = first.zip(last).ok_or("the window never began")?;
        self.drain()?;
        if self.tally.timed() != due_in_window {
            return Err(format!("{} latencies of {due_in_window} requests that were due", self.tally.timed()));
        }
        self.tally.print(self.plan.pid, &first, &last)
    }

    /// Opens streams that fall silent after their first event, and reads the memory of the front before
    /// and while all are open.
    fn idle(&mut self) -> Result<(), String> {
        let before_kib = process::rss_kib(self.plan.pid);
        let slab_before_kib = process::slab_kib();
        let total = self.plan.connections;
        let mut silent = 0;
        while silent < total {
            while self.connections.len() < total && self.connections.len() - silent < OPENING_MAX {
                let at = self.connect()?;
                self.send(at, Instant::now())?;
            }
            self.turn(Instant::now() + STALL)?;
            silent = self.tally.counts.events as usize;
        }
        let settle = Instant::now() + self.plan.warmup;
        while Instant::now() < settle {
            self.turn(settle)?;
        }
        // One event for each, and no connection closed: anything else has ended the run already.
        if self.tally.counts.events as usize != total {
            return Err(format!("{} events on {total} idle streams", self.tally.counts.events));
        }
        let idle_kib = process::rss_kib(self.plan.pid);
        let per_stream = (idle_kib as f64 - before_kib as f64) / total as f64;
        let slab_per_stream = (process::slab_kib() as f64 - slab_before_kib as f64) / total as f64;
        println!(
            "streams={total} rss_before_kib={before_kib} rss_idle_kib={idle_kib} rss_kib_per_stream={per_stream:.4} \
             slab_kib_per_stream={slab_per_stream:.4}"
        );
        for connection in &self.connections {
            net::reset_on_close(&connection.stream);
        }
        Ok(())
    }

    fn connect_all(&mut self) -> Result<(), String> {
        while self.connections.len() < self.plan.connections {
            self.connect()?;
        }
        Ok(())
    }

    fn connect(&mut self) -> Result<usize, String> {
        let at = self.connections.len();
        let stream = self.open(at)?;
        self.connections.push(Connection {
            stream,
            request: self.request.clone(),
            sent: 0,
            framer: Framer::new(Kind::Reply),
            expected: None,
            started: Instant::now(),
        });
        Ok(at)
    }

    fn open(&self, at: usize) -> Result<TcpStream, String> {
        let target = self.plan.targets[at % self.plan.targets.len()];
        let source = Ipv4Addr::new(127, 0, 0, 2 + (at / PER_SOURCE) as u8);
        let stream = net::connect_from(source, target).map_err(|error| format!("connect to {target}: {error}"))?;
        self.poller.add(&stream, at, net::IN).map_err(|error| error.to_string())?;
        Ok(stream)
    }

    fn send(&mut self, at: usize, started: Instant) -> Result<(), String> {
        self.next_id += 1;
        let connection = &mut self.connections[at];
        let spread = u64::from(2 * self.plan.vary + 1);
        let tokens = self.plan.tokens - self.plan.vary + (content::mix(self.next_id) % spread) as u32;
        let digest = connection.request.stamp(self.next_id, tokens);
        connection.expected = Some(match self.plan.pace {
            Pace::Plain => Expected::plain(digest),
            Pace::Speech => Expected::speech(digest),
            _ => Expected::stream(digest, tokens),
        });
        connection.sent = 0;
        connection.started = started;
        self.write(at)
    }

    fn write(&mut self, at: usize) -> Result<(), String> {
        let connection = &mut self.connections[at];
        while connection.sent < connection.request.bytes.len() {
            match connection.stream.write(&connection.request.bytes[connection.sent..]) {
                Ok(count) => connection.sent += count,
                Err(error) if net::would_block(&error) => {
                    let changed = self.poller.change(&connection.stream, at, net::IN | net::OUT);
                    return changed.map_err(|error| error.to_string());
                }
                Err(error) => return Err(format!("send of a request: {error}")),
            }
        }
        Ok(())
    }

    /// Waits until `end` at most and moves every connection that is ready.
    fn turn(&mut self, end: Instant) -> Result<(), String> {
        let timeout = end.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
        let count = self.poller.wait(Some(timeout)).map_err(|error| error.to_string())?;
        for index in 0..count {
            let (at, flags) = self.poller.event(index);
            if flags & net::OUT != 0 {
                self.write(at)?;
                let connection = &self.connections[at];
                if connection.sent == connection.request.bytes.len() {
                    self.poller.change(&connection.stream, at, net::IN).map_err(|error| error.to_string())?;
                }
            }
            if flags & !net::OUT != 0 {
                self.read(at).map_err(|words| format!("connection {at}: {words}"))?;
            }
        }
        let awaiting = || self.connections.iter().any(|connection| connection.expected.is_some());
        if count > 0 {
            self.progress = Instant::now();
        } else if self.progress.elapsed() > STALL && awaiting() {
            return Err(format!("no reply byte for {} s", STALL.as_secs()));
        }
        Ok(())
    }

    fn read(&mut self, at: usize) -> Result<(), String> {
        let connection = &mut self.connections[at];
        let count = match connection.stream.read(&mut self.scratch) {
            Ok(0) if connection.expected.is_none() => return self.reconnect(at),
            Ok(0) => return Err(closed(connection)),
            Ok(count) => count,
            Err(error) if net::would_block(&error) => return Ok(()),
            Err(error) => return Err(format!("{error} ({})", closed(connection))),
        };
        let mut input = &self.scratch[..count];
        let mut arrival = self.tally.arrival(count, matches!(self.plan.pace, Pace::Step | Pace::Phase));
        loop {
            let step = connection.framer.next(&mut input)?;
            if matches!(step, Step::More) {
                self.tally.arrived(&arrival);
                return Ok(());
            }
            let expected = connection.expected.as_mut().ok_or("bytes without a request")?;
            match step {
                Step::More => unreachable!("returned above"),
                Step::Head(head) => expected.head(&head)?,
                Step::Body(bytes) => {
                    arrival.events += expected.body_sent(bytes, |sent_us| self.tally.event(&arrival, sent_us))?;
                }
                Step::End => {
                    expected.end()?;
                    if connection.sent < connection.request.bytes.len() {
                        return Err("reply before the whole request was sent".into());
                    }
                    connection.expected = None;
                    self.tally.replied(connection.started);
                    self.finished.push(at);
                }
            }
        }
    }

    /// A front may close an idle connection; that is counted, and the connection opened anew.
    fn reconnect(&mut self, at: usize) -> Result<(), String> {
        self.tally.reconnects += 1;
        let stream = self.open(at)?;
        self.connections[at].stream = stream;
        Ok(())
    }

    /// Lets every exchange end and be verified, without beginning new ones.
    fn drain(&mut self) -> Result<(), String> {
        while self.connections.iter().any(|connection| connection.expected.is_some()) {
            self.turn(Instant::now() + STALL)?;
        }
        Ok(())
    }
}

fn closed(connection: &Connection) -> String {
    let events = connection.expected.as_ref().map_or(0, Expected::events);
    let (sent, size) = (connection.sent, connection.request.bytes.len());
    format!("closed in the middle of an exchange: {sent} of {size} request bytes sent, {events} events received")
}

#[cfg(test)]
mod tests;
