//! Between exchanges and the driver: hands events in, carries actions out, decides nothing.

use super::{Shard, panics};
use crate::counters::stats::Count;
use crate::driver::{Driver, Lease, Segment};
use crate::exchange::{Action, Ending, Event, Side, Source};
use crate::slots::Key;

/// Where an event's bytes lie.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    None,
    /// In a lease, from this byte on.
    Leased(Lease, usize),
    Owned(&'a [u8]),
}

impl<'a> Input<'a> {
    pub(super) fn bytes<'b, D: Driver>(self, driver: &'b D) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Input::None => &[],
            Input::Leased(lease, from) => &driver.bytes(lease)[from..],
            Input::Owned(bytes) => bytes,
        }
    }

    /// What is left once `len` bytes were taken.
    pub(super) fn after(self, len: usize) -> Input<'a> {
        match self {
            Input::None => Input::None,
            Input::Leased(lease, from) => Input::Leased(lease, from + len),
            Input::Owned(bytes) => Input::Owned(&bytes[len..]),
        }
    }
}

/// What follows for the exchange from carrying out an action. It is told once its whole list is carried out; at most
/// one action of a list has such a consequence.
enum Follows {
    Happens(Event<'static>),
    Over(Ending),
}

/// Sends to one side are joined up to this many pieces.
const JOINED_MAX: usize = 8;

impl<D: Driver> Shard<D> {
    /// Lets the client's exchange advance and carries out what it asks for. Answers how many bytes of a
    /// request it consumed.
    pub(super) fn advance<F>(&mut self, key: Key, input: Input<'_>, event: F) -> usize
    where
        F: for<'a> FnOnce(&'a [u8]) -> Event<'a>,
    {
        let bytes = input.bytes(&self.driver);
        let Some(client) = self.clients.get_mut(key) else { return 0 };
        let Some(exchange) = client.exchange.as_deref_mut() else { return 0 };
        self.driver.foresee(client.socket);
        self.desk.actions.clear();
        let mut cx = self.desk.context();
        let (left, was_waiting) = (exchange.endpoint(), exchange.place().is_some());
        // A fault of ours may end one request, never a shard.
        let outcome = panics::contained(|| exchange.advance(event(bytes), &mut cx));
        if outcome.is_err() {
            exchange.give_all_back(&mut self.desk.context());
            self.desk.end_torn();
        }
        let (now_at, waits) = (exchange.endpoint(), exchange.place().is_some());
        self.legs += usize::from(now_at.is_some());
        self.legs -= usize::from(left.is_some());
        if waits && !was_waiting {
            self.waiting.add(key);
        }
        if let Some(left) = left.filter(|_| now_at != left && self.desk.counters.queue().waiting() > 0) {
            self.desk.counters.queue().freed(left.slot);
            self.waiting.freed(left.slot);
        }
        let consumed = self.desk.actions.consumed;
        self.drive(key, input);
        consumed
    }

    /// The same for an event without bytes.
    pub(super) fn advance_by(&mut self, key: Key, event: Event<'static>) {
        self.advance(key, Input::None, |_| event);
    }

    /// Carries out the actions at hand, in order, then what follows from them.
    pub(super) fn drive(&mut self, key: Key, input: Input<'_>) {
        let (mut client_full, mut upstream_full) = (false, false);
        let mut follows = None;
        let mut at = 0;
        while let Some(action) = self.desk.actions.list.get(at) {
            match *action {
                Action::Send(side, _) => {
                    let (taken, waiting) = self.send(key, side, at, input);
                    match side {
                        Side::Client => client_full |= waiting > 0,
                        Side::Upstream => upstream_full |= waiting > 0,
                    }
                    at += taken - 1;
                }
                Action::PushRequest => follows = self.push_request(key),
                Action::Connect { endpoint, fresh } => {
                    follows = self.check_out(key, endpoint, fresh).map(Follows::Happens);
                }
                Action::Dismiss { reuse } => self.dismiss(key, reuse),
                Action::Splice(len) => self.splice(key, len),
                Action::Pause(side) => self.pause(key, side, true),
                Action::Resume(side) => self.pause(key, side, false),
                Action::Finish(side) => self.finish(key, side),
                Action::End(ending) => follows = Some(Follows::Over(ending)),
            }
            at += 1;
        }
        self.desk.actions.list.clear();
        if client_full {
            self.client_full(key);
        }
        if upstream_full {
            self.upstream_full(key);
        }
        match follows {
            // What follows drives again, until nothing follows or the exchange is over.
            Some(Follows::Happens(event)) => self.advance_by(key, event),
            Some(Follows::Over(ending)) => self.exchange_over(key, ending),
            None => self.arm(key),
        }
    }

    /// Sends to this side what the actions from `place` on have for it in a row. Answers how many actions these were,
    /// at least one, and how many bytes the kernel has not taken.
    fn send(&mut self, key: Key, side: Side, place: usize, input: Input<'_>) -> (usize, usize) {
        let mut segments = [const { Segment::Bytes(&[]) }; JOINED_MAX];
        let (mut taken, mut len) = (0, 0);
        let run = self.desk.actions.list.get(place..).unwrap_or_default();
        for (segment, action) in segments.iter_mut().zip(run) {
            let Action::Send(to, source) = action else { break };
            if *to != side {
                break;
            }
            *segment = match (source, input) {
                (Source::Scratch(range), _) => Segment::Bytes(&self.desk.actions.scratch[range.clone()]),
                (Source::Input(range), Input::Leased(lease, from)) => {
                    Segment::Leased(lease, from + range.start..from + range.end)
                }
                (Source::Input(range), Input::Owned(bytes)) => Segment::Bytes(&bytes[range.clone()]),
                (Source::Input(_), Input::None) => Segment::Bytes(&[]),
            };
            (taken, len) = (taken + 1, len + segment.len());
        }
        let Some(client) = self.clients.get(key) else { return (taken, 0) };
        let socket = match side {
            Side::Client => {
                self.desk.stats.add(Count::BytesOut, len as u64);
                client.socket
            }
            Side::Upstream => {
                let upstream = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream));
                let Some(upstream) = upstream else { return (taken, 0) };
                upstream.count_sent(len, self.desk.stats);
                upstream.socket
            }
        };
        (taken, self.driver.send(socket, &segments[..taken]))
    }

    fn socket(&mut self, key: Key, side: Side) -> Option<crate::driver::SocketId> {
        match side {
            Side::Client => self.clients.get(key).map(|client| client.socket),
            Side::Upstream => self.upstream_of(key).map(|upstream| upstream.socket),
        }
    }

    fn push_request(&mut self, key: Key) -> Option<Follows> {
        let client = self.clients.get(key)?;
        let upstream = self.upstreams.get_mut(client.upstream?)?;
        let taken = self.driver.offer(upstream.socket, client.exchange.as_ref()?.unsent());
        upstream.count_sent(taken, self.desk.stats);
        Some(Follows::Happens(Event::Pushed(taken)))
    }

    fn splice(&mut self, key: Key, len: u64) {
        if let (Some(upstream), Some(client)) = (self.socket(key, Side::Upstream), self.socket(key, Side::Client)) {
            self.driver.splice(upstream, client, len);
        }
    }

    fn pause(&mut self, key: Key, side: Side, pause: bool) {
        match side {
            Side::Upstream => self.pause_upstream(key, pause),
            Side::Client => self.pause_client(key, pause),
        }
    }

    fn finish(&mut self, key: Key, side: Side) {
        if let Some(socket) = self.socket(key, side) {
            self.driver.finish(socket);
        }
    }
}
