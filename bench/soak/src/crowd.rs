//! All clients on one thread: their connections, what each sends and reads, and when it leaves.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use peers::http::{Framer, Kind as Message, Step};
use peers::net::{self, Poller};

use crate::exchange::{Cause, Exchange, Failure, Kind, Leave};

/// Number of source addresses, used in turn: each has ports of its own.
const SOURCES: u8 = 16;
/// A reply that is not whole after this long has failed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that a slow reader takes at a time, and how often it does.
const SIP_BYTES: usize = 24 << 10;
const SIP_EVERY: Duration = Duration::from_millis(100);

struct Connection {
    stream: TcpStream,
    framer: Framer,
    exchange: Option<Exchange>,
    generation: u64,
    served: u32,
}

/// The figures of a whole reply.
pub struct Done {
    pub kind: Kind,
    pub took: Duration,
    pub first_event: Option<Duration>,
}

pub struct Crowd {
    target: SocketAddrV4,
    poller: Poller,
    connections: Vec<Option<Connection>>,
    vacant: Vec<usize>,
    /// Kept connections without a request.
    idle: Vec<(usize, u64)>,
    /// When slow readers read, and when vanishing clients leave.
    alarms: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    generation: u64,
    /// Requests without a whole answer yet.
    pub in_flight: usize,
    scratch: Vec<u8>,
    pub done: Vec<Done>,
    pub failures: Vec<Failure>,
    pub left: u64,
    pub events: u64,
    pub opened: u64,
}

impl Crowd {
    pub fn new(target: SocketAddrV4) -> std::io::Result<Crowd> {
        Ok(Crowd {
            target,
            poller: Poller::new()?,
            connections: Vec::new(),
            vacant: Vec::new(),
            idle: Vec::new(),
            alarms: BinaryHeap::new(),
            generation: 0,
            in_flight: 0,
            scratch: vec![0; 256 << 10],
            done: Vec::new(),
            failures: Vec::new(),
            left: 0,
            events: 0,
            opened: 0,
        })
    }

    /// Sends a request, on a kept connection if there is one and its kind allows it.
    pub fn begin(&mut self, exchange: Exchange) {
        let fresh = !matches!(exchange.kind, Kind::Short | Kind::Stream | Kind::Prompt);
        let slot = loop {
            let kept = if fresh { None } else { self.idle.pop() };
            match kept {
                Some((slot, generation)) if self.is(slot, generation) => break slot,
                // The kept connection was closed meanwhile, as a front may do between two requests.
                Some(_) => {}
                None => match self.open(exchange.kind == Kind::Slow) {
                    Ok(slot) => break slot,
                    Err(error) => return self.failures.push(failure(&exchange, 0, Cause::NoReply(error.to_string()))),
                },
            }
        };
        if let Some(connection) = &mut self.connections[slot] {
            if exchange.kind == Kind::Slow {
                self.alarms.push(Reverse((Instant::now() + SIP_EVERY, slot, connection.generation)));
            }
            connection.exchange = Some(exchange);
            self.in_flight += 1;
        }
        self.write(slot);
    }

    fn is(&self, slot: usize, generation: u64) -> bool {
        self.connections[slot].as_ref().is_some_and(|connection| connection.generation == generation)
    }

    fn open(&mut self, slow: bool) -> std::io::Result<usize> {
        self.opened += 1;
        let source = Ipv4Addr::new(127, 0, 0, 2 + (self.opened % u64::from(SOURCES)) as u8);
        let stream = net::connect_from(source, self.target)?;
        if slow {
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 8 << 10)?;
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.generation += 1;
        // Slow readers read at their own times.
        self.poller.add(&stream, slot, if slow { 0 } else { net::IN })?;
        let framer = Framer::new(Message::Reply);
        let connection = Connection { stream, framer, exchange: None, generation: self.generation, served: 0 };
        self.connections[slot] = Some(connection);
        Ok(slot)
    }

    fn close(&mut self, slot: usize) -> Option<Connection> {
        let connection = self.connections[slot].take();
        if let Some(connection) = &connection {
            self.vacant.push(slot);
            self.in_flight -= usize::from(connection.exchange.is_some());
        }
        connection
    }

    fn fail(&mut self, slot: usize, cause: Cause) {
        let Some(connection) = self.close(slot) else { return };
        match connection.exchange {
            Some(exchange) if exchange.stays_unanswered() && matches!(cause, Cause::NoReply(_) | Cause::Cut(_)) => {}
            Some(exchange) => self.failures.push(failure(&exchange, connection.served, cause)),
            None => {}
        }
    }

    /// Leaves: half of the clients by FIN, the others by RST.
    fn leave(&mut self, slot: usize) {
        if let Some(connection) = self.close(slot) {
            if connection.generation % 2 == 0 {
                net::reset_on_close(&connection.stream);
            }
            self.left += 1;
        }
    }

    fn write(&mut self, slot: usize) {
        let Some(connection) = &mut self.connections[slot] else { return };
        let Some(exchange) = &mut connection.exchange else { return };
        let reads = if exchange.kind == Kind::Slow { 0 } else { net::IN };
        let until = exchange.send_until();
        while exchange.sent < until {
            match connection.stream.write(&exchange.bytes[exchange.sent..until]) {
                Ok(count) => exchange.sent += count,
                Err(error) if net::would_block(&error) => {
                    let _ = self.poller.change(&connection.stream, slot, reads | net::OUT);
                    return;
                }
                // An early answer may be there to be read.
                Err(_) => break,
            }
        }
        let _ = self.poller.change(&connection.stream, slot, reads);
        if let Some(Leave::Sent(_, wait)) = exchange.leave {
            self.alarms.push(Reverse((Instant::now() + wait, slot, connection.generation)));
        }
    }

    /// Waits until `end` at most, and moves all exchanges that are ready.
    pub fn turn(&mut self, end: Instant) -> std::io::Result<()> {
        let next = self.alarms.peek().map_or(end, |Reverse((at, ..))| end.min(*at));
        let timeout = next.saturating_duration_since(Instant::now());
        let count = self.poller.wait(Some(timeout))?;
        for index in 0..count {
            let (slot, flags) = self.poller.event(index);
            if flags & net::OUT != 0 {
                self.write(slot);
            }
            if flags & !net::OUT != 0 {
                let most = self.scratch.len();
                self.read(slot, most);
            }
        }
        let now = Instant::now();
        while let Some(&Reverse((at, slot, generation))) = self.alarms.peek() {
            if at > now {
                break;
            }
            self.alarms.pop();
            if self.is(slot, generation) {
                self.rings(slot, now);
            }
        }
        Ok(())
    }

    fn rings(&mut self, slot: usize, now: Instant) {
        let exchange = self.connections[slot].as_ref().and_then(|connection| connection.exchange.as_ref());
        let Some(exchange) = exchange else { return };
        if exchange.leave.is_some() {
            return self.leave(slot);
        }
        self.read(slot, SIP_BYTES);
        let goes_on = self.connections[slot].as_ref().filter(|connection| connection.exchange.is_some());
        if let Some(connection) = goes_on {
            self.alarms.push(Reverse((now + SIP_EVERY, slot, connection.generation)));
        }
    }

    fn read(&mut self, slot: usize, most: usize) {
        let Some(connection) = &mut self.connections[slot] else { return };
        let mut scratch = std::mem::take(&mut self.scratch);
        let read = connection.stream.read(&mut scratch[..most]);
        let outcome = match read {
            Err(error) if net::would_block(&error) => Ok(()),
            Ok(count) if count > 0 => self.take(slot, &scratch[..count]),
            ended => {
                let words = ended.map_or_else(|error| error.to_string(), |_| "end of the connection".into());
                let began = connection.exchange.as_ref().is_some_and(|exchange| exchange.head_seen);
                Err(if began { Cause::Cut(words) } else { Cause::NoReply(words) })
            }
        };
        self.scratch = scratch;
        if let Err(cause) = outcome {
            self.fail(slot, cause);
        }
    }

    fn take(&mut self, slot: usize, mut input: &[u8]) -> Result<(), Cause> {
        loop {
            let Some(connection) = &mut self.connections[slot] else { return Ok(()) };
            let step = connection.framer.next(&mut input).map_err(|bad| Cause::Wrong(bad.into()))?;
            if matches!(step, Step::More) {
                return Ok(());
            }
            let Some(exchange) = &mut connection.exchange else {
                return Err(Cause::Wrong("bytes without a request".into()));
            };
            match step {
                Step::More => {}
                Step::Head(head) => exchange.head(&head),
                Step::Body(piece) => {
                    self.events += exchange.body(piece)?;
                    if matches!(exchange.leave, Some(Leave::Events(most)) if exchange.expected.events() >= most) {
                        self.leave(slot);
                        return Ok(());
                    }
                }
                Step::End => {
                    exchange.end()?;
                    self.whole(slot);
                }
            }
        }
    }

    fn whole(&mut self, slot: usize) {
        let Some(connection) = &mut self.connections[slot] else { return };
        let Some(exchange) = connection.exchange.take() else { return };
        self.in_flight -= 1;
        connection.served += 1;
        let (served, generation) = (connection.served, connection.generation);
        let first_event = exchange.first_event.map(|at| at - exchange.started);
        self.done.push(Done { kind: exchange.kind, took: exchange.started.elapsed(), first_event });
        // A kept connection is given up now and then.
        let kept = matches!(exchange.kind, Kind::Short | Kind::Stream | Kind::Prompt) && served < 1000;
        if exchange.closes || !kept {
            self.close(slot);
        } else {
            self.idle.push((slot, generation));
        }
    }

    /// Fails exchanges that have waited too long, and forgets kept connections that have gone.
    pub fn look_for_late(&mut self) {
        let late = |connection: &&Connection| {
            connection.exchange.as_ref().is_some_and(|exchange| exchange.started.elapsed() > PATIENCE)
        };
        let slots = self.connections.iter().enumerate();
        let slots: Vec<usize> =
            slots.filter(|(_, c)| c.as_ref().filter(late).is_some()).map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.fail(slot, Cause::Late));
        let idle = std::mem::take(&mut self.idle);
        self.idle = idle.into_iter().filter(|&(slot, generation)| self.is(slot, generation)).collect();
    }
}

fn failure(exchange: &Exchange, served: u32, cause: Cause) -> Failure {
    let (kind, engine, started) = (exchange.kind, exchange.engine, exchange.started);
    Failure { kind, cause, engine, started, at: Instant::now(), served }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;
    use crate::exchange::Book;

    /// How it ends for a client that vanishes like this, before a front that reads a little, says this and closes.
    fn cut_behind(leave: fn(&Exchange) -> Leave, said: &str) -> Crowd {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let SocketAddr::V4(target) = listener.local_addr().expect("its address") else { panic!("no IPv4") };
        let mut crowd = Crowd::new(target).expect("a crowd");
        let mut exchange = Book::new().write(Kind::Vanishing, (50, 50), Instant::now());
        exchange.leave = Some(leave(&exchange));
        crowd.begin(exchange);
        let (mut front, _) = listener.accept().expect("a connection");
        let end = Instant::now() + Duration::from_secs(10);
        let step = Duration::from_millis(10);
        crowd.turn(Instant::now() + step).expect("a turn");
        assert!(front.read(&mut [0; 4 << 10]).expect("a request") > 0);
        front.write_all(said.as_bytes()).expect("a reply");
        net::reset_on_close(&front);
        // After what it said, and not instead of it.
        crowd.turn(Instant::now() + step).expect("a turn");
        drop(front);
        while crowd.in_flight > 0 && Instant::now() < end {
            crowd.turn(Instant::now() + step).expect("a turn");
        }
        crowd
    }

    const HEAD: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-engine: 7\r\n\r\n";
    const LATER: Duration = Duration::from_secs(60);

    #[test]
    fn who_was_to_leave_and_is_cut_before_did_not_leave() {
        let cut = cut_behind(|_| Leave::Events(20), HEAD);
        assert!(matches!(&cut.failures[..], [Failure { cause: Cause::Cut(_), engine: Some(7), .. }]));
        let silent = cut_behind(|exchange| Leave::Sent(exchange.bytes.len(), LATER), "");
        assert!(matches!(&silent.failures[..], [Failure { cause: Cause::NoReply(_), .. }]));
        let refused = cut_behind(|_| Leave::Sent(100, LATER), "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
        assert!(matches!(&refused.failures[..], [Failure { cause: Cause::Refused(502, _), .. }]));
        assert_eq!([cut.left, silent.left, refused.left], [0, 0, 0]);
    }

    #[test]
    fn half_a_request_may_be_given_up() {
        let given_up = cut_behind(|_| Leave::Sent(100, LATER), "");
        assert_eq!((given_up.failures.len(), given_up.left, given_up.in_flight), (0, 0, 0));
    }

    #[test]
    fn who_leaves_has_left() {
        let left = cut_behind(|_| Leave::Sent(100, Duration::ZERO), "");
        assert_eq!((left.failures.len(), left.left), (0, 1));
    }
}
