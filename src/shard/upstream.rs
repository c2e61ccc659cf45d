//! Connections to engines: kept while idle, per endpoint, never longer than the engine keeps them.

use super::drive::Input;
use super::{Desk, Owner, Shard};
use crate::counters::stats::{Count, ShardStats};
use crate::driver::{Driver, Lease, SocketId, socket};
use crate::exchange::{Event, Micros, Side};
use crate::fleet::EndpointId;
use crate::slots::Key;

#[derive(Clone, Copy)]
enum State {
    /// On its way, for this client's exchange.
    Connecting(Key),
    /// Serves this client's exchange.
    Busy(Key),
    Idle {
        since: Micros,
    },
}

/// One upstream connection.
pub(super) struct Upstream {
    pub socket: SocketId,
    endpoint: EndpointId,
    state: State,
    paused: bool,
    /// The count of acknowledged bytes once all that was sent is acknowledged: that when the connection stood, plus
    /// what was sent since.
    settled: Option<u64>,
    /// FIN was received: of no use for another exchange.
    ended: bool,
    full: bool,
}

impl Upstream {
    /// Whose exchange it serves, or will.
    pub(super) fn client(&self) -> Option<Key> {
        match self.state {
            State::Connecting(client) | State::Busy(client) => Some(client),
            State::Idle { .. } => None,
        }
    }

    /// So many bytes of the exchange went there.
    pub(super) fn count_sent(&mut self, len: usize, stats: &ShardStats) {
        stats.add(Count::UpstreamBytesOut, len as u64);
        if let Some(settled) = &mut self.settled {
            *settled += len as u64;
        }
    }
}

impl Desk {
    /// The instant at which a connection that has been idle since `since` is to be closed.
    fn idles_until(&self, since: Micros) -> Micros {
        since + self.rules.limits.upstream_idle_timeout_ms * 1_000
    }

    /// Whether its engine may still have it open.
    fn may_stand(&self, endpoint: EndpointId, since: Micros) -> bool {
        self.idles_until(since) > self.now && !self.counters.outcomes().kept_died_since(endpoint.slot, since)
    }
}

impl<D: Driver> Shard<D> {
    /// Gets a connection for `client`: an idle one, whose event is answered at once, or (`None`) a new one, which is on
    /// its way.
    pub(super) fn check_out(&mut self, client: Key, endpoint: EndpointId, fresh: bool) -> Option<Event<'static>> {
        if !fresh && let Some(key) = self.take_idle(endpoint) {
            let Some(upstream) = self.upstreams.get_mut(key) else { return Some(Event::ConnectFailed) };
            upstream.state = State::Busy(client);
            // Right between exchanges, since a whole reply has acknowledged all that was sent: the kernel need not be
            // asked.
            let acknowledged = upstream.settled;
            self.assign(client, key);
            return Some(Event::Connected { reused: true, acknowledged });
        }
        let Some(known) = self.desk.snapshot.endpoint(endpoint) else { return Some(Event::ConnectFailed) };
        let address = known.address;
        // The socket's tag needs the key, and the entry needs the socket: the key is made first.
        let key = self.upstreams.insert(Upstream {
            socket: SocketId::from_u64(u64::MAX),
            endpoint,
            state: State::Connecting(client),
            paused: false,
            settled: None,
            ended: false,
            full: false,
        });
        let tag = Owner::Upstream(key).tag();
        let mut connecting = self.driver.connect(address, tag);
        if connecting.as_ref().is_err_and(socket::is_want) && self.close_longest_idle() {
            connecting = self.driver.connect(address, tag);
        }
        let event = match connecting {
            Ok(socket) => {
                let Some(upstream) = self.upstreams.get_mut(key) else { return Some(Event::ConnectFailed) };
                upstream.socket = socket;
                self.assign(client, key);
                return None;
            }
            Err(error) if socket::is_want(&error) => Event::ConnectWanting,
            Err(error) if socket::is_port_want(&error) => Event::ConnectPortless,
            Err(_) => Event::ConnectFailed,
        };
        self.upstreams.remove(key);
        Some(event)
    }

    fn assign(&mut self, client: Key, key: Key) {
        if let (Some(served), Some(upstream)) = (self.clients.get_mut(client), self.upstreams.get(key)) {
            served.upstream = Some(key);
            self.driver.rename(upstream.socket, Owner::UpstreamOf(client).tag());
        }
    }

    /// Takes the idle connection that was used last, which is the likeliest to be still open.
    fn take_idle(&mut self, endpoint: EndpointId) -> Option<Key> {
        let idle = self.idle.get_mut(endpoint.slot as usize)?;
        while let Some(key) = idle.pop_back() {
            let Some(upstream) = self.upstreams.get(key) else { continue };
            match upstream.state {
                // Bytes that came since its last reply would be taken for the beginning of the next one.
                State::Idle { since }
                    if upstream.endpoint == endpoint
                        && self.desk.may_stand(endpoint, since)
                        && self.driver.is_quiet(upstream.socket) =>
                {
                    return Some(key);
                }
                State::Idle { .. } => {
                    self.driver.close(upstream.socket);
                    self.upstreams.remove(key);
                }
                State::Connecting(_) | State::Busy(_) => {}
            }
        }
        None
    }

    /// The exchange is done with its connection.
    pub(super) fn dismiss(&mut self, client: Key, reuse: bool) {
        let Some(key) = self.clients.get_mut(client).and_then(|client| client.upstream.take()) else { return };
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        let slot = upstream.endpoint.slot as usize;
        if self.idle.len() <= slot {
            self.idle.resize_with(slot + 1, Default::default);
        }
        let limits = &self.desk.rules.limits;
        let usable = matches!(upstream.state, State::Busy(_)) && !upstream.ended && !upstream.full;
        if !reuse || !usable || self.desk.draining || self.idle[slot].len() >= limits.idle_upstreams_max {
            return self.close_upstream(key);
        }
        upstream.state = State::Idle { since: self.desk.now };
        self.driver.rename(upstream.socket, Owner::Upstream(key).tag());
        if std::mem::take(&mut upstream.paused) {
            self.driver.resume(upstream.socket);
        }
        self.idle[slot].push_back(key);
        self.idle_look_at = self.idle_look_at.min(self.desk.idles_until(self.desk.now));
    }

    pub(super) fn close_upstream(&mut self, key: Key) {
        if let Some(upstream) = self.upstreams.remove(key) {
            self.driver.close(upstream.socket);
        }
    }

    /// Closes connections that were idle too long. One that serves request after request is not looked at each time:
    /// the look finds that it became idle later.
    pub(super) fn close_idle(&mut self) {
        if self.desk.now < self.idle_look_at {
            return;
        }
        self.idle_look_at = Micros::MAX;
        for slot in 0..self.idle.len() {
            while let Some((since, key)) = self.longest_idle(slot) {
                let until = self.desk.idles_until(since);
                if until > self.desk.now {
                    self.idle_look_at = self.idle_look_at.min(until);
                    break;
                }
                self.idle[slot].pop_front();
                self.close_upstream(key);
            }
        }
    }

    /// Makes room; false: no connection is idle.
    fn close_longest_idle(&mut self) -> bool {
        let slots = 0..self.idle.len();
        let longest = slots.filter_map(|slot| Some((self.longest_idle(slot)?, slot))).min();
        let Some(((_, key), slot)) = longest else { return false };
        self.idle[slot].pop_front();
        self.close_upstream(key);
        true
    }

    /// Which connection to an endpoint is idle for longest, and since when; forgets what is gone before it.
    fn longest_idle(&mut self, slot: usize) -> Option<(Micros, Key)> {
        let idle = self.idle.get_mut(slot)?;
        while let Some(&key) = idle.front() {
            if let Some(State::Idle { since }) = self.upstreams.get(key).map(|upstream| upstream.state) {
                return Some((since, key));
            }
            idle.pop_front();
        }
        None
    }

    pub(super) fn upstream_connected(&mut self, key: Key) {
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        let acknowledged = self.driver.acknowledged(upstream.socket);
        upstream.settled = acknowledged;
        if let Some(client) = upstream.client() {
            upstream.state = State::Busy(client);
            self.advance_by(client, Event::Connected { reused: false, acknowledged });
        }
    }

    pub(super) fn reply_received(&mut self, client: Key, lease: Lease) {
        self.desk.stats.add(Count::UpstreamBytesIn, u64::from(lease.len));
        self.advance(client, Input::Leased(lease, 0), |bytes| Event::Reply(bytes));
        self.serve_early(client);
    }

    /// Bytes on an idle connection: it does not stand at the end of a reply, whatever they are.
    pub(super) fn unasked_received(&mut self, key: Key, lease: Lease) {
        self.desk.stats.add(Count::UpstreamBytesIn, u64::from(lease.len));
        self.close_upstream(key);
    }

    /// So many bytes of a reply went to its client.
    pub(super) fn upstream_spliced(&mut self, key: Key, len: u64) {
        self.desk.stats.add(Count::UpstreamBytesIn, len);
        self.desk.stats.add(Count::BytesOut, len);
        self.desk.stats.add(Count::BytesSpliced, len);
        if let Some(client) = self.upstreams.get(key).and_then(Upstream::client) {
            self.advance_by(client, Event::Spliced(len));
        }
    }

    pub(super) fn upstream_gone(&mut self, key: Key, by_fin: bool) {
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        upstream.ended = true;
        let connecting = matches!(upstream.state, State::Connecting(_));
        let acknowledged = self.driver.acknowledged(upstream.socket);
        match upstream.client() {
            None => self.close_upstream(key),
            Some(client) if connecting => {
                self.dismiss(client, false);
                self.advance_by(client, Event::ConnectFailed);
            }
            Some(client) => {
                self.advance_by(client, Event::UpstreamGone { by_fin, acknowledged });
            }
        }
    }

    pub(super) fn upstream_drained(&mut self, key: Key) {
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        upstream.full = false;
        if let Some(client) = upstream.client() {
            self.advance_by(client, Event::Drained(Side::Upstream));
        }
    }

    /// The kernel has not taken all that was sent to this engine.
    pub(super) fn upstream_full(&mut self, client: Key) {
        if let Some(upstream) = self.upstream_of(client) {
            upstream.full = true;
        }
        self.advance_by(client, Event::Full(Side::Upstream));
    }

    /// The kernel has not taken all that was sent to this engine in the turn before.
    pub(super) fn upstream_full_later(&mut self, key: Key) {
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        upstream.full = true;
        match upstream.client() {
            Some(client) => {
                self.advance_by(client, Event::Full(Side::Upstream));
            }
            None => self.close_upstream(key),
        }
    }

    pub(super) fn upstream_of(&mut self, client: Key) -> Option<&mut Upstream> {
        let key = self.clients.get(client)?.upstream?;
        self.upstreams.get_mut(key)
    }

    pub(super) fn pause_upstream(&mut self, client: Key, pause: bool) {
        let Some(upstream) = self.upstream_of(client) else { return };
        upstream.paused = pause;
        let socket = upstream.socket;
        if pause { self.driver.pause(socket) } else { self.driver.resume(socket) }
    }

    pub(super) fn acknowledged(&self, upstream: Option<Key>) -> Option<u64> {
        self.driver.acknowledged(self.upstreams.get(upstream?)?.socket)
    }
}
