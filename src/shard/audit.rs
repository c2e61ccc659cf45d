//! What a shard holds, counted entry by entry, and whether its accounts say the same.
//!
//! Each turn compares totals that were kept in different places; now and then all connections are walked. A difference
//! is a fault of ours: it is counted and logged, and stops a build that has debug assertions.

use super::Shard;
use crate::counters::stats::{Count, Gauge};
use crate::driver::Driver;
use crate::exchange::Micros;

/// Between two walks of all connections.
pub(super) const WALK: Micros = 10_000_000;

/// Sums over all connections of a shard, between two turns.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Audit {
    /// Client connections.
    pub clients: usize,
    /// Connections to engines.
    pub upstreams: usize,
    /// Those of them that serve no client.
    pub upstreams_idle: usize,
    /// Legs by endpoint slot, as the exchanges have them.
    pub legs: Vec<u32>,
    /// Requests by endpoint slot that failed and stay charged for a while.
    pub charged: Vec<u32>,
    /// Memory of what the exchanges hold, and of what is read ahead.
    pub held_bytes: usize,
    /// What the account of it shows.
    pub held_account: usize,
    /// Memory of those that wait in the queue.
    pub waiting_bytes: usize,
    /// What the account of it shows.
    pub waiting_account: usize,
    /// Requests that wait in the queue.
    pub waiting: u32,
    /// Those of them that the shard does not look at.
    pub waiting_unseen: usize,
    /// Most bytes read ahead of one client.
    pub ahead_bytes_most: usize,
    /// Most bytes that one exchange holds.
    pub held_bytes_most: usize,
    /// Clients that no timer would look at by their deadline.
    pub unwatched: usize,
    /// Looks at clients that are due or to come.
    pub looks: usize,
    /// The furthest deadline of a client.
    pub deadline_last: Micros,
}

impl<D: Driver> Shard<D> {
    /// Compares what the shard has counted with what it holds.
    pub(super) fn check_accounts(&mut self) {
        let charges = &self.desk.lender.charges;
        let (counted, held) = (charges.counted(), self.legs + charges.kept());
        self.desk.stats.set(Gauge::InFlight, counted as u64);
        if counted != held {
            self.accounts_differ("in flight", counted, held);
        }
        if self.desk.now >= self.audit_at {
            self.audit_at = self.desk.now + WALK;
            let audit = self.audit();
            let legs: u32 = audit.legs.iter().sum();
            if legs as usize != self.legs {
                self.accounts_differ("legs", self.legs, legs as usize);
            }
            if audit.held_bytes != audit.held_account {
                self.accounts_differ("held bytes", audit.held_account, audit.held_bytes);
            }
            if audit.waiting_bytes != audit.waiting_account {
                self.accounts_differ("waiting bytes", audit.waiting_account, audit.waiting_bytes);
            }
        }
    }

    #[cold]
    fn accounts_differ(&self, what: &str, account: usize, found: usize) {
        // Told once: it would not become true again by itself.
        if self.desk.stats.count_of(Count::AccountsDiffer) == 0 {
            tracing::error!(what, account, found, "a fault of warmfront: an account differs from what is held");
        }
        self.desk.stats.count(Count::AccountsDiffer);
        debug_assert_eq!(account, found, "{what}");
    }

    /// Walks all connections.
    pub fn audit(&self) -> Audit {
        let mut audit = Audit {
            clients: self.clients.len(),
            upstreams: self.upstreams.len(),
            held_account: self.desk.lender.held_bytes,
            waiting_account: self.desk.lender.waiting_bytes,
            looks: self.timers.looks(),
            ..Audit::default()
        };
        let seen = self.waiting.seen();
        for (key, client) in self.clients.keys().into_iter().filter_map(|key| Some((key, self.clients.get(key)?))) {
            audit.ahead_bytes_most = audit.ahead_bytes_most.max(client.ahead.len());
            audit.held_bytes += client.ahead.capacity();
            audit.unwatched += usize::from(!client.is_watched(self.desk.now));
            audit.deadline_last = audit.deadline_last.max(client.due());
            let Some(exchange) = &client.exchange else { continue };
            audit.held_bytes += exchange.held_memory();
            audit.waiting_bytes += exchange.waiting_memory();
            audit.held_bytes_most = audit.held_bytes_most.max(exchange.held_bytes());
            if let Some(place) = exchange.place() {
                audit.waiting += u32::from(place.stands());
                audit.waiting_unseen += usize::from(seen.binary_search(&key).is_err());
            }
            let Some(endpoint) = exchange.endpoint() else { continue };
            count(&mut audit.legs, endpoint.slot);
        }
        self.desk.lender.charges.slots().for_each(|slot| count(&mut audit.charged, slot));
        let upstreams = self.upstreams.keys();
        let idle = upstreams.into_iter().filter_map(|key| self.upstreams.get(key)).filter(|up| up.client().is_none());
        audit.upstreams_idle = idle.count();
        audit
    }
}

fn count(by_slot: &mut Vec<u32>, slot: u16) {
    let slot = slot as usize;
    by_slot.resize(by_slot.len().max(slot + 1), 0);
    by_slot[slot] += 1;
}
