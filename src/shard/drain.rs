//! The end of a shard: it takes what waits at its listeners, closes them, and serves its clients until they leave, or
//! have had their time.

use super::client::Client;
use super::{HEARTBEAT, Shard};
use crate::driver::Driver;
use crate::exchange::{Event, Micros};

/// While draining: how often it looks whether its clients are gone.
const DRAIN_LOOK: Micros = 50_000;
/// Idle connections that are closed in one turn: some ten microseconds each, in which no stream goes on.
const CLOSED_MAX: usize = 256;
/// Connections that one shard takes from its listeners as it closes them.
const LAST_MAX: usize = 4_096;

impl<D: Driver> Shard<D> {
    /// Begins the drain, and answers whether it is over: the last client left, or had its time.
    pub(super) fn drained(&mut self) -> bool {
        let until = match self.drain_until {
            Some(until) => until,
            None => self.begin_drain(),
        };
        self.drain_until = Some(until);
        if !self.clients.is_empty() && self.desk.now >= until {
            self.cut_all();
        } else if self.sends_away && self.desk.now >= self.drain_look_at {
            // Clients that are idle by now: they sent nothing but line ends, or their first request has not come.
            self.close_idle_clients(false);
        }
        self.clients.is_empty() && self.desk.now >= self.stay_until && self.takes_no_more()
    }

    fn begin_drain(&mut self) -> Micros {
        self.desk.draining = true;
        self.desk.has_successor = self.process.has_successor();
        // With a successor idle connections are left to end with their next reply, or by their timeout: a request on
        // its way to one would be lost.
        self.sends_away = !self.desk.has_successor;
        if self.desk.has_successor {
            self.stay_until = self.desk.now + 2 * HEARTBEAT;
        } else {
            // First: it makes room for clients that wait at the listeners, and while it lasts more come there.
            self.close_idle_clients(!self.accepting);
            if !self.take_the_last() {
                self.close_idle_clients(true);
                self.take_the_last();
            }
        }
        self.driver.stop_listening();
        self.desk.now + self.desk.rules.limits.drain_timeout_ms * 1_000
    }

    /// Closes clients from which nothing has come. Bytes that wait to be read are answered in the next turn, and their
    /// connection ends with that; a close here would reset it. It would also reset a request on its way: a client that
    /// got a reply a moment ago may ask again, unless others wait for its place (`others_wait`).
    fn close_idle_clients(&mut self, others_wait: bool) {
        let now = self.desk.now;
        self.drain_look_at = now + DRAIN_LOOK;
        let is_awaited = |client: &Client| now < client.awaited_until && !(others_wait && client.has_asked);
        // If there is no room for those that wait at the listeners, which are closed next, all idle clients make room.
        let mut left = if others_wait { usize::MAX } else { CLOSED_MAX };
        for key in self.clients.keys_where(|client| client.is_idle() && !is_awaited(client)) {
            if left == 0 {
                self.drain_look_at = now + 1;
                return;
            }
            let is_quiet = self.clients.get(key).is_some_and(|client| self.driver.nothing_waits(client.socket));
            if is_quiet && !self.is_full(key) {
                self.close_client(key);
                left -= 1;
            }
        }
    }

    /// How long it may sleep while it drains.
    pub(super) fn drain_sleep(&self) -> Micros {
        let look = if self.sends_away { self.drain_look_at.saturating_sub(self.desk.now) } else { DRAIN_LOOK };
        look.clamp(1, DRAIN_LOOK)
    }

    /// Accepts what waits at the listeners, which are closed next: it would be reset, and may have sent a request. At
    /// most as many as a backlog holds, since others may come as fast. False: there may be more, for which there was no
    /// room.
    fn take_the_last(&mut self) -> bool {
        let stalls = self.driver.accept_stalls();
        for _ in 0..LAST_MAX {
            if !self.accepting {
                return false;
            }
            let Some((socket, peer)) = self.driver.accept_last() else { break };
            self.accepted(socket, peer);
        }
        self.driver.accept_stalls() == stalls
    }

    fn cut_all(&mut self) {
        for key in self.clients.keys() {
            if self.clients.get(key).is_some_and(|client| client.exchange.is_some()) {
                self.process.count_cut();
            }
            self.advance_by(key, Event::Cut);
            self.close_client(key);
        }
    }
}
