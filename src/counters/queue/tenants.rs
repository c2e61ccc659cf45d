//! Whose turn it is among tenants: who was served least for its weight (start-time fair queueing, Goyal, Vin and Cheng 1997).
//!
//! What a tenant was served is counted in tokens over its weight. One who comes back to the queue begins where those who
//! stayed are now, so that nobody saves up turns.

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::counters::queue::rank::LANES;
use crate::limits::TENANT_WEIGHT_MAX;

/// A tenant of weight 1 pays so much for a token, a heavier one that much less.
const TOKEN: u64 = 1 << 10;

/// On whose account a request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// One of [`LANES`].
    pub lane: u8,
    /// 1..=[`TENANT_WEIGHT_MAX`].
    pub weight: u32,
}

impl Tenant {
    /// Where tenants are not told apart.
    pub const ONLY: Tenant = Tenant { lane: 0, weight: 1 };

    /// By the hash of what names it. Tenants whose hashes fall on one lane share it: one in 64 of any two.
    pub fn of(hash: u64, weight: u32) -> Tenant {
        Tenant { lane: (hash >> 32) as u8 % LANES as u8, weight: weight.clamp(1, TENANT_WEIGHT_MAX) }
    }
}

#[derive(Debug)]
pub struct Tenants {
    served: [AtomicU64; LANES],
    places: [AtomicU32; LANES],
    weights: [AtomicU32; LANES],
    /// What the one who was released last had been served before.
    now: AtomicU64,
}

impl Default for Tenants {
    fn default() -> Self {
        Tenants {
            served: std::array::from_fn(|_| AtomicU64::new(0)),
            places: std::array::from_fn(|_| AtomicU32::new(0)),
            weights: std::array::from_fn(|_| AtomicU32::new(1)),
            now: AtomicU64::new(0),
        }
    }
}

impl Tenants {
    /// A request of it waits.
    pub fn joins(&self, tenant: Tenant) {
        let lane = usize::from(tenant.lane);
        self.weights[lane].store(tenant.weight, Ordering::Relaxed);
        if self.places[lane].fetch_add(1, Ordering::Relaxed) == 0 {
            self.served[lane].fetch_max(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// It waits no more.
    pub fn leaves(&self, lane: u8) {
        self.places[usize::from(lane)].fetch_sub(1, Ordering::Relaxed);
    }

    /// A request of it goes, with so many tokens of work.
    pub fn serves(&self, tenant: Tenant, tokens: u32) {
        let before = self.served[usize::from(tenant.lane)].fetch_add(paid(tenant, tokens), Ordering::Relaxed);
        self.now.fetch_max(before, Ordering::Relaxed);
    }

    /// Nothing was computed for a request of it that went with so many. Who is where those who wait are now saves up no turns by that.
    pub fn repays(&self, tenant: Tenant, tokens: u32) {
        let now = self.now.load(Ordering::Relaxed);
        let less = |served: u64| Some(served.saturating_sub(paid(tenant, tokens)).max(served.min(now)));
        let _ = self.served[usize::from(tenant.lane)].fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// A request of it goes that did not wait. If no other of it waits, it begins where those who wait are now; they do not go on by it.
    pub fn passes(&self, tenant: Tenant, tokens: u32) {
        let lane = usize::from(tenant.lane);
        if self.places[lane].load(Ordering::Relaxed) == 0 {
            self.served[lane].fetch_max(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.served[lane].fetch_add(paid(tenant, tokens), Ordering::Relaxed);
    }

    /// What it was served, over its weight, if it joined now.
    pub fn served_at_least(&self, lane: u8) -> u64 {
        match self.places[usize::from(lane)].load(Ordering::Relaxed) {
            0 => self.served(lane).max(self.now.load(Ordering::Relaxed)),
            _ => self.served(lane),
        }
    }

    /// What it was served, over its weight.
    pub fn served(&self, lane: u8) -> u64 {
        self.served[usize::from(lane)].load(Ordering::Relaxed)
    }

    /// How many of it wait, over its weight.
    pub fn places_by_weight(&self, lane: u8) -> u64 {
        let lane = usize::from(lane);
        by_weight(self.places[lane].load(Ordering::Relaxed), self.weights[lane].load(Ordering::Relaxed))
    }

    /// The same if one more of it waited.
    pub fn places_with(&self, tenant: Tenant) -> u64 {
        by_weight(self.places[usize::from(tenant.lane)].load(Ordering::Relaxed) + 1, tenant.weight)
    }
}

fn paid(tenant: Tenant, tokens: u32) -> u64 {
    (u64::from(tokens) + 1) * TOKEN / u64::from(tenant.weight)
}

fn by_weight(places: u32, weight: u32) -> u64 {
    u64::from(places) * TOKEN / u64::from(weight.max(1))
}
