//! Client connections between exchanges: heads coming in, requests read ahead, and the end.

use std::net::SocketAddr;

use super::drive::Input;
use super::{Owner, Shard, timers};
use crate::counters::stats::Count;
use crate::driver::{Driver, Lease, SocketId};
use crate::exchange::{self, Ending, Event, Exchange, Micros, Opened, Peer, Side};
use crate::slots::Key;

/// Most heads of one client that are read in a row: answering them here takes no engine, so nothing else would stop it.
const HEADS_MAX: u32 = 16;

/// Heads of all clients together in one turn; beyond them each client has one read. A head takes some microseconds,
/// most of them the kernel's.
const HEADS_IN_ALL: u32 = 512;

/// How long after its accept a connection may still send its first request, and the next one after a reply, even if a
/// drain begins.
const ASKS_WITHIN: Micros = 1_000_000;

/// One client connection.
pub(super) struct Client {
    pub socket: SocketId,
    pub peer: Peer,
    /// When the first byte came of a head that is not complete, or has not had its turn.
    pub head_since: Option<Micros>,
    /// `deadline` is that of a head that has begun.
    pub head_is_timed: bool,
    /// Bytes not yet part of an exchange: an incomplete head, or requests read ahead.
    pub ahead: Vec<u8>,
    pub exchange: Option<Box<Exchange>>,
    pub upstream: Option<Key>,
    /// Reading is stopped because too much was read ahead.
    pub held_back: bool,
    /// So many heads of it were read in this turn that the others come first.
    pub had_its_turn: bool,
    /// It is among those whose read-ahead is served at the end of the turn.
    pub in_line: bool,
    /// The kernel has not taken all we sent: no further request is begun.
    pub full: bool,
    /// The earliest instant at which the client may last have taken some of what waits for it, and the bytes that it
    /// had acknowledged at the last look.
    pub took: Micros,
    pub acknowledged: Option<u64>,
    /// Until then its first request, or the next one, may be on its way; 0 once that has come.
    pub awaited_until: Micros,
    /// It has sent a request. Clients that have not come first where there is no room for both.
    pub has_asked: bool,
    /// FIN was received.
    pub ended: bool,
    /// Set after its last reply.
    pub lingering: Option<Box<Lingering>>,
    /// When to give up between exchanges.
    pub deadline: Micros,
    /// When the wheel looks at this client next.
    pub armed: Micros,
}

/// A connection that takes no further request.
#[derive(Default)]
pub(super) struct Lingering {
    /// Bytes read and dropped so far.
    dropped: usize,
    /// When it ends, whatever still comes; not known before the client has taken the reply.
    until: Option<Micros>,
}

impl Client {
    /// Between requests, with nothing received of the next.
    pub(super) fn is_idle(&self) -> bool {
        self.exchange.is_none() && self.has_nothing_ahead() && self.lingering.is_none() && !self.full
    }

    /// Some clients end a body with an empty line: that begins no head.
    pub(super) fn has_nothing_ahead(&self) -> bool {
        matches!(&*self.ahead, b"" | b"\r" | b"\n" | b"\r\n")
    }

    /// Whether the wheel looks at it soon after its deadline, or before.
    pub(super) fn is_watched(&self, now: Micros) -> bool {
        self.due() != Micros::MAX && self.armed <= self.due().max(now).saturating_add(2 * timers::TICK)
    }

    /// Sets the deadline between exchanges: `wait_ms` from now or, while the client has yet to take what was sent to
    /// it, `look_ms`, the time until the first look at whether it does.
    fn wait(&mut self, now: Micros, look_ms: u64, wait_ms: u64) {
        if self.full {
            self.took = now;
        }
        self.deadline = now + 1_000 * if self.full { look_ms } else { wait_ms };
        self.awaited_until = now + ASKS_WITHIN;
        self.head_is_timed = false;
    }

    /// A whole head was read.
    fn head_came(&mut self) {
        (self.head_since, self.head_is_timed, self.awaited_until, self.has_asked) = (None, false, 0, true);
    }

    pub(super) fn due(&self) -> Micros {
        match &self.exchange {
            Some(exchange) => exchange.deadline().unwrap_or(Micros::MAX),
            None => self.deadline,
        }
    }
}

impl<D: Driver> Shard<D> {
    pub(super) fn accepted(&mut self, socket: SocketId, peer: SocketAddr) {
        let deadline = self.desk.now + self.desk.rules.limits.keep_alive_timeout_ms * 1_000;
        let key = self.clients.insert(Client {
            socket,
            peer: Peer { ip: peer.ip().to_canonical(), port: peer.port() },
            head_since: None,
            head_is_timed: false,
            ahead: Vec::new(),
            exchange: None,
            upstream: None,
            held_back: false,
            had_its_turn: false,
            in_line: false,
            full: false,
            took: 0,
            acknowledged: None,
            awaited_until: self.desk.now + ASKS_WITHIN,
            has_asked: false,
            ended: false,
            lingering: None,
            deadline,
            armed: Micros::MAX,
        });
        self.driver.adopt(socket, Owner::Client(key).tag());
        self.desk.stats.count(Count::Accepted);
        self.arm(key);
        self.accept_or_not();
    }

    /// Takes further connections while there are fewer than may be.
    pub(super) fn accept_or_not(&mut self) {
        let room = self.clients.len() < self.desk.rules.limits.connections_max;
        if room != self.accepting {
            self.accepting = room;
            self.driver.accept_connections(room);
            self.desk.stats.add(Count::AcceptPaused, u64::from(!room));
        }
    }

    pub(super) fn client_received(&mut self, key: Key, lease: Lease) {
        self.desk.stats.add(Count::BytesIn, u64::from(lease.len));
        let Some(client) = self.clients.get_mut(key) else { return };
        if let Some(lingering) = &mut client.lingering {
            let limits = &self.desk.rules.limits;
            lingering.dropped += lease.len as usize;
            if lingering.dropped > limits.linger_bytes_max {
                self.close_client(key);
            } else if let Some(until) = lingering.until.filter(|_| !client.full) {
                // A client that writes everything before it reads is heard out: a reset would take the reply from it.
                client.deadline = until.min(self.desk.now + limits.linger_timeout_ms * 1_000);
            }
            return;
        }
        let uploading = client.exchange.as_ref().is_some_and(|exchange| exchange.reads_request());
        if client.ahead.is_empty() || uploading {
            return self.serve(key, Input::Leased(lease, 0));
        }
        let new = self.driver.bytes(lease);
        if client.had_its_turn {
            client.keep_ahead(new, &mut self.desk.lender);
            return self.hold_back(key);
        }
        // A head is only read again when a line of it may have become complete, lest single bytes cost a pass each.
        let worth_reading = client.has_nothing_ahead() || memchr::memchr(b'\n', new).is_some();
        client.keep_ahead(new, &mut self.desk.lender);
        let too_long = client.ahead.len() > self.desk.rules.limits.head_bytes_max;
        if client.exchange.is_none() && !client.full && (worth_reading || too_long) {
            self.serve_read_ahead(key);
        } else {
            self.hold_back(key);
        }
    }

    /// Heads and bodies, one after the other, as far as the bytes go.
    pub(super) fn serve(&mut self, key: Key, mut input: Input<'_>) {
        let (mut heads, most) = (0, if self.heads < HEADS_IN_ALL { HEADS_MAX } else { 1 });
        while !input.bytes(&self.driver).is_empty() {
            let Some(client) = self.clients.get_mut(key) else { return };
            if client.lingering.is_some() {
                return;
            }
            match &client.exchange {
                Some(exchange) if exchange.reads_request() => {
                    let consumed = self.advance(key, input, |bytes| Event::Request(bytes));
                    input = input.after(consumed);
                    if consumed == 0 {
                        return;
                    }
                }
                // One piece may hold thousands of heads that are answered here: without this they would all be served
                // at once.
                None if !client.full && heads == most => {
                    client.had_its_turn = true;
                    self.serve_later(key);
                    self.read_on(key, input);
                    break;
                }
                None if !client.full => match self.open(key, input) {
                    Some(consumed) => {
                        input = input.after(consumed);
                        (heads, self.heads) = (heads + 1, self.heads + 1);
                    }
                    None => {
                        self.read_on(key, input);
                        break;
                    }
                },
                _ => {
                    self.read_on(key, input);
                    break;
                }
            }
        }
        self.hold_back(key);
    }

    /// Reads one head: an exchange begins, or an answer of ours goes out. `None`: it is not complete.
    fn open(&mut self, key: Key, input: Input<'_>) -> Option<usize> {
        let client = self.clients.get_mut(key)?;
        let bytes = input.bytes(&self.driver);
        let (peer, since) = (client.peer, client.head_since.unwrap_or(self.desk.now));
        let all = bytes.len();
        match self.desk.read_head(peer, since, |cx| exchange::open(bytes, peer, since, cx)) {
            None => {
                // A fault of ours ends the client; what it sent is dropped.
                self.drive(key, Input::None);
                Some(all)
            }
            Some(Opened::Partial) => None,
            Some(Opened::Answered(consumed)) => {
                client.head_came();
                self.drive(key, input);
                Some(consumed)
            }
            Some(Opened::Exchange(consumed, exchange)) => {
                let body_follows = exchange.reads_request() && consumed < all;
                client.head_came();
                client.exchange = Some(exchange);
                self.drive(key, input);
                if !body_follows {
                    self.advance(key, input, |_| Event::Begin);
                }
                Some(consumed)
            }
        }
    }

    /// Stops reading from a client, or resumes unless too much was read ahead.
    pub(super) fn pause_client(&mut self, key: Key, pause: bool) {
        match self.clients.get(key) {
            Some(client) if pause => self.driver.pause(client.socket),
            Some(client) if !client.held_back => self.driver.resume(client.socket),
            _ => {}
        }
    }

    pub(super) fn client_ended(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        client.ended = true;
        if client.exchange.is_some() {
            // With more read ahead, the FIN ends what the client has to say, not its interest.
            if client.has_nothing_for_later() {
                self.advance_by(key, Event::ClientEnded);
            }
        } else if client.has_nothing_ahead() {
            if !self.is_full(key) {
                self.close_client(key);
            }
        } else if !client.full {
            // Requests that are served at this turn's end, or half a head.
            self.serve_later(key);
        }
    }

    pub(super) fn client_reset(&mut self, key: Key) {
        self.advance_by(key, Event::ClientReset);
        self.close_client(key);
    }

    pub(super) fn client_drained(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        client.full = false;
        if client.exchange.is_some() {
            self.advance_by(key, Event::Drained(Side::Client));
        } else if client.lingering.is_some() {
            self.linger(key);
        } else if self.sends_away && client.has_nothing_ahead() {
            self.exchange_over(key, Ending::Linger);
        } else {
            let limits = &self.desk.rules.limits;
            client.wait(self.desk.now, limits.client_look_ms(), limits.keep_alive_timeout_ms);
            self.arm(key);
            self.serve_read_ahead(key);
        }
    }

    /// The kernel has not taken all that was sent to this client.
    pub(super) fn client_full(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key) {
            (client.full, client.took) = (true, self.desk.now);
        }
        self.advance_by(key, Event::Full(Side::Client));
    }

    /// The kernel has not taken all that was sent to this client in the turn before. Its exchange may be over since.
    pub(super) fn client_full_later(&mut self, key: Key) {
        self.client_full(key);
        let Some(client) = self.clients.get_mut(key).filter(|client| client.exchange.is_none()) else { return };
        let limits = &self.desk.rules.limits;
        client.wait(self.desk.now, limits.client_look_ms(), limits.keep_alive_timeout_ms);
        self.arm(key);
    }

    /// The exchange left this connection.
    pub(super) fn exchange_over(&mut self, key: Key, ending: Ending) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if let Some(exchange) = client.exchange.take() {
            self.desk.lender.give_back_exchange(exchange);
        }
        match ending {
            // The reply did not say that the connection ends, but it may: nothing was asked behind it.
            Ending::KeepAlive if self.sends_away && client.has_nothing_ahead() => {
                self.exchange_over(key, Ending::Linger);
            }
            Ending::KeepAlive => {
                let limits = &self.desk.rules.limits;
                client.wait(self.desk.now, limits.client_look_ms(), limits.keep_alive_timeout_ms);
                if !client.ahead.is_empty() || client.ended {
                    self.serve_later(key);
                }
                self.arm(key);
            }
            Ending::Linger => {
                client.lingering = Some(Box::default());
                self.driver.finish(client.socket);
                self.linger(key);
            }
            Ending::Abort => {
                let socket = client.socket;
                self.driver.abort(socket);
                self.forget_client(key);
            }
            Ending::Gone => self.close_client(key),
        }
    }

    /// Waits for the client's FIN, but first for the client to take what was sent.
    fn linger(&mut self, key: Key) {
        let full = self.is_full(key);
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.ended && !full {
            return self.close_client(key);
        }
        drop(client.take_ahead(&mut self.desk.lender));
        if std::mem::take(&mut client.held_back) {
            self.driver.resume(client.socket);
        }
        let limits = &self.desk.rules.limits;
        client.wait(self.desk.now, limits.client_look_ms(), limits.linger_timeout_ms);
        if let Some(lingering) = client.lingering.as_mut().filter(|_| !full) {
            lingering.until = Some(self.desk.now + limits.linger_in_all_ms() * 1_000);
        }
        self.arm(key);
    }

    /// Whether the kernel has not taken all that was sent to this client: it must not be closed yet.
    pub(super) fn is_full(&mut self, key: Key) -> bool {
        let Some(client) = self.clients.get_mut(key) else { return false };
        client.full |= self.driver.flush(client.socket) > 0;
        client.full
    }

    pub(super) fn close_client(&mut self, key: Key) {
        if let Some(client) = self.clients.get(key) {
            self.driver.close(client.socket);
            self.forget_client(key);
        }
    }

    fn forget_client(&mut self, key: Key) {
        let Some(mut client) = self.clients.remove(key) else { return };
        drop(client.take_ahead(&mut self.desk.lender));
        self.desk.stats.count(Count::Closed);
        if let Some(upstream) = client.upstream {
            self.close_upstream(upstream);
        }
        self.accept_or_not();
    }
}
