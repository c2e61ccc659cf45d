//! Who is waited for no more: the wheel looks at each client by its deadline, and exchanges are told when their
//! endpoint refuses its probes.

use super::client::Client;
use super::drive::Input;
use super::timers::TICK;
use super::{HEARTBEAT, Shard};
use crate::counters::stats::Count;
use crate::driver::Driver;
use crate::exchange::{self, Event, Micros};
use crate::slots::Key;
use crate::snapshot::Snapshot;

/// A turn that comes this much later than its sleep was to end may not find all that came meanwhile.
const STANDSTILL: Micros = 100_000;
/// A turn this much too late is counted: if each shard counts one and control was as late, the process stood still.
const LONG: Micros = 1_500_000;
/// Most turns behind a standstill in which the rest of it is found: each tells of dozens of sockets, those that were
/// ready first. No time, since what stopped the process may go on starving it.
const CATCHING_UP: u32 = 512;
/// Most looks at clients in one turn; most looks find that it is not time yet. Thousands of clients that came together
/// are due together, and streams must not stand still for them.
const LOOKS_MAX: u32 = 4_096;
/// A client that is ended counts as so many looks: it takes some ten microseconds, most of them the kernel's.
const OVERDUE_LOOKS: u32 = 31;
/// Most exchanges that are told in one turn that their endpoint refuses its probes: one that ends by it takes some
/// twenty microseconds.
const DESERTED_MAX: usize = 128;

impl<D: Driver> Shard<D> {
    /// Whether the process was stopped or throttled, or its machine paused, while it was to sleep for `slept`. The
    /// kernel tells of what came meanwhile little by little, and a client that was in time must not be given up for
    /// that.
    pub(super) fn stood_still(&mut self, now: Micros, slept: Micros) -> bool {
        let stood_still = now > self.desk.now + slept + STANDSTILL;
        if stood_still {
            self.catches_up.get_or_insert(CATCHING_UP);
            if now > self.desk.now + slept + LONG {
                self.desk.stats.count(Count::StoodStill);
            }
        }
        stood_still
    }

    /// Has the wheel look at this client by its deadline, unless it does so before anyway.
    pub(super) fn arm(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key)
            && client.due() < client.armed
        {
            client.armed = self.timers.arm(key, client.due());
        }
    }

    /// Gives up clients whose deadline has passed; behind a standstill only after a turn in which nothing came
    /// (`quiet`).
    pub(super) fn look_at_deadlines(&mut self, quiet: bool) {
        self.catches_up = self.catches_up.filter(|_| !quiet).and_then(|turns| turns.checked_sub(1));
        if self.catches_up.is_some() {
            return;
        }
        self.timers.expire(self.desk.now);
        let mut left = LOOKS_MAX;
        while left > 0
            && let Some(key) = self.timers.next_due()
        {
            left -= 1;
            let Some(client) = self.clients.get_mut(key) else { continue };
            // This look was set before the deadline moved; the one that counts is still to come.
            if client.armed > self.desk.now {
                continue;
            }
            client.armed = Micros::MAX;
            if client.due() <= self.desk.now {
                left = left.saturating_sub(OVERDUE_LOOKS);
                self.client_overdue(key);
            }
            self.arm(key);
        }
    }

    /// Whether a client has taken none of what waits for it for as long as it may. What it took since the last look it
    /// may have taken right after that look: so a client that reads now and then is given up too early by one look at
    /// most.
    fn client_stalls(&mut self, key: Key) -> bool {
        let Some(client) = self.clients.get_mut(key).filter(|client| client.full) else { return false };
        let limits = &self.desk.rules.limits;
        let acknowledged = self.driver.acknowledged(client.socket);
        if acknowledged != client.acknowledged {
            client.acknowledged = acknowledged;
            client.took = client.took.max(self.desk.now.saturating_sub(limits.client_look_ms() * 1_000));
        }
        self.desk.now >= client.took + limits.client_stall_timeout_ms * 1_000
    }

    fn client_overdue(&mut self, key: Key) {
        let client_stalls = self.client_stalls(key);
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.exchange.is_some() {
            let upstream = client.upstream;
            let acknowledged = self.acknowledged(upstream);
            self.advance_by(key, Event::Deadline { acknowledged, client_stalls });
            return;
        }
        if client.full {
            if !client_stalls {
                client.deadline = self.desk.now + self.desk.rules.limits.client_look_ms() * 1_000;
                return;
            }
            // The exchange was over with the last byte that came for it: nobody else has seen this.
            self.desk.stats.count(Count::ClientStalled);
        }
        if client.lingering.is_none() && client.in_line && !client.full {
            // Its heads have come, and wait for us.
            client.deadline = self.desk.now + self.desk.rules.limits.head_timeout_ms * 1_000;
            return;
        }
        if client.lingering.is_none() && !client.has_nothing_ahead() && !client.full {
            // Half a head: say so before closing.
            let (half, peer, since) = (&client.ahead, client.peer, client.head_since.unwrap_or(self.desk.now));
            self.desk.read_head(peer, since, |cx| exchange::refuse_slow_head(half, peer, since, cx));
            return self.drive(key, Input::None);
        }
        // A request that has come within this turn, unseen, would be lost in a reset.
        if client.is_idle() && !self.driver.nothing_waits(client.socket) {
            client.deadline = self.desk.now + TICK;
            return;
        }
        self.close_client(key);
    }

    /// Tells exchanges that their endpoint refuses its probes: once a second while there are any, and at most
    /// [`DESERTED_MAX`] in one turn.
    pub(super) fn look_for_deserted(&mut self) {
        if self.deserted.is_empty() {
            self.find_deserted();
        }
        let left = self.deserted.len().saturating_sub(DESERTED_MAX);
        for key in self.deserted.split_off(left) {
            // It may have another endpoint by now.
            if self.clients.get(key).is_some_and(|client| is_deserted(client, &self.desk.snapshot)) {
                self.advance_by(key, Event::Deserted);
            }
        }
    }

    fn find_deserted(&mut self) {
        if !self.desk.snapshot.any_refuses || self.legs == 0 || self.desk.now < self.deserted_at {
            return;
        }
        self.deserted_at = self.desk.now + HEARTBEAT;
        let snapshot = &self.desk.snapshot;
        if snapshot.any_deserted(|slot| self.desk.counters.in_flight(slot)) {
            self.deserted = self.clients.keys_where(|client| is_deserted(client, snapshot));
        }
    }
}

fn is_deserted(client: &Client, snapshot: &Snapshot) -> bool {
    let id = client.exchange.as_ref().and_then(|exchange| exchange.endpoint());
    id.and_then(|id| snapshot.endpoint(id)).is_some_and(|endpoint| endpoint.refuses_probes)
}
