//! What a shard holds, counted entry by entry: for tests to compare with what its accounts say.

use super::Shard;
use crate::driver::Driver;
use crate::exchange::Micros;

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
    /// Memory of what the exchanges hold.
    pub held_bytes: usize,
    /// What the account of it shows.
    pub held_account: usize,
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
    /// Walks all connections.
    pub fn audit(&self) -> Audit {
        let mut audit = Audit {
            clients: self.clients.len(),
            upstreams: self.upstreams.len(),
            held_account: self.desk.lender.held_bytes,
            looks: self.timers.looks(),
            ..Audit::default()
        };
        for client in self.clients.keys().into_iter().filter_map(|key| self.clients.get(key)) {
            audit.ahead_bytes_most = audit.ahead_bytes_most.max(client.ahead.len());
            audit.unwatched += usize::from(!client.is_watched(self.desk.now));
            audit.deadline_last = audit.deadline_last.max(client.due());
            let Some(exchange) = &client.exchange else { continue };
            audit.held_bytes += exchange.held_memory();
            audit.held_bytes_most = audit.held_bytes_most.max(exchange.held_bytes());
            let Some(endpoint) = exchange.endpoint() else { continue };
            let slot = endpoint.slot as usize;
            audit.legs.resize(audit.legs.len().max(slot + 1), 0);
            audit.legs[slot] += 1;
        }
        let upstreams = self.upstreams.keys();
        let idle = upstreams.into_iter().filter_map(|key| self.upstreams.get(key)).filter(|up| up.client.is_none());
        audit.upstreams_idle = idle.count();
        audit
    }
}
