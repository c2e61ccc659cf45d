//! Slots: which endpoint has which, and when one is free again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Fleet;
use crate::control::health::Course;
use crate::control::member::Tenancy;
use crate::control::truth::Truth;
use crate::fleet::{Endpoint, EndpointId, Health, Turnover};
use crate::limits::ENDPOINTS_MAX;

/// How long a slot rests after its endpoint left the pools: shards that still hold an older snapshot
/// have read the new one by then.
pub(super) const QUARANTINE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) generation: u32,
    /// An endpoint that was taken out, finishing what it has.
    pub(super) leaving: Option<(Endpoint, Instant)>,
    pub(super) taken: bool,
}

impl Fleet {
    /// Gives a member an endpoint at `address`; the one it had finishes what it has.
    pub(super) fn settle(&mut self, at: usize, address: SocketAddr, now: Instant) -> bool {
        let Some(id) = self.take_slot() else {
            tracing::warn!(%address, "every endpoint slot is taken; the address is not used until one is free");
            return false;
        };
        let member = &mut self.members[at];
        // Where it was somewhere else before, a new process has begun, with an empty cache.
        let course = Course::new(member.now.is_none() && !member.latecomer, &self.config.health, now);
        let next = Tenancy {
            id,
            address,
            course,
            reading: None,
            scrape_error: None,
            foreign: 0,
            dispatched_at: 0,
            resident_at: 0,
            turnover: Turnover::default(),
            truth: Truth::new(now),
            emptied: 0,
            told: Arc::default(),
            is_known: false,
        };
        self.caches.empty(id, None);
        if let Some(old) = member.now.replace(next) {
            let endpoint = member.endpoint(&old);
            self.let_finish(endpoint, now);
        }
        self.pools.membership_changed();
        true
    }

    /// An endpoint gets nothing new; its slot is free once it has finished what it has.
    pub(in crate::control) fn let_finish(&mut self, endpoint: Endpoint, now: Instant) {
        let slot = usize::from(endpoint.id.slot);
        self.caches.forget(endpoint.id.slot);
        self.slots[slot].leaving = Some((Endpoint { health: Health::Draining, ..endpoint }, now));
    }

    /// A free slot, under a generation it never had.
    fn take_slot(&mut self) -> Option<EndpointId> {
        let free = self.slots.iter().position(|slot| !slot.taken);
        let index = free.unwrap_or(self.slots.len());
        if index == self.slots.len() {
            if index >= ENDPOINTS_MAX {
                return None;
            }
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index];
        slot.taken = true;
        slot.generation = slot.generation.wrapping_add(1);
        Some(EndpointId { slot: index as u16, generation: slot.generation })
    }
}
