//! What a choice knows of an endpoint's KV cache.

use crate::fleet::Endpoint;

/// What is known of an endpoint's KV cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cache {
    /// In use, 0..=1; 0 where it is not known.
    pub(super) used: f32,
    /// Replaced of late, 0..=1: see [`crate::fleet::Turnover`].
    pub(super) turnover: f32,
    /// Tokens; 0: not known.
    pub(super) capacity: u64,
    /// See [`Endpoint::dispatched_at`].
    pub(super) dispatched_at: u64,
    /// Tokens in use at the last scrape that no request of ours told of, less those that ours shared: with what ours
    /// are resident now, times `own`, what is in use now.
    base: i64,
    /// How much of our requests' tokens is their own, 0..=1: the rest they share with one another.
    own: f32,
    /// Tokens that it could take at the last scrape without another going.
    pub(super) vacant: u32,
}

impl Cache {
    pub(super) fn of(endpoint: &Endpoint) -> Cache {
        let used = endpoint.engine.kv_use.map_or(0.0, |used| used.clamp(0.0, 1.0));
        let capacity = endpoint.engine.kv_use.and(endpoint.engine.kv_capacity_tokens).unwrap_or(0);
        let tokens = f64::from(used) * capacity as f64;
        let (running, waiting) = (endpoint.engine.running.unwrap_or(0), endpoint.engine.waiting.unwrap_or(0));
        // Those that wait in the engine occupy nothing yet, and will.
        let waits = f64::from(waiting) / f64::from(running.saturating_add(waiting)).max(1.0);
        let resident = endpoint.resident_at as f64;
        let computed = resident * (1.0 - waits);
        let own = if computed > 0.0 { (tokens / computed).clamp(0.0, 1.0) } else { 1.0 };
        let base = tokens - own * computed;
        Cache {
            used,
            turnover: endpoint.turnover.clamp(0.0, 1.0),
            capacity,
            dispatched_at: endpoint.dispatched_at,
            base: base as i64,
            own: own as f32,
            vacant: (f64::from(endpoint.vacant.clamp(0.0, 1.0)) * capacity as f64) as u32,
        }
    }

    /// How many of so many new tokens would push out what lies there, where so many were sent there in all by now.
    pub(super) fn pushed_out(&self, new: u64, dispatched: u64) -> u64 {
        let since = dispatched.saturating_sub(self.dispatched_at);
        new.saturating_sub(u64::from(self.vacant).saturating_sub(since))
    }

    /// Tokens in use now, those of our requests that will be soon among them, given what ours have resident there.
    pub(super) fn occupied(&self, resident: u64) -> u64 {
        self.base.saturating_add((f64::from(self.own) * resident as f64) as i64).max(0) as u64
    }

    /// How much of our requests' tokens no two of them share, 0..=1.
    pub(super) fn own_part(&self) -> f32 {
        self.own
    }

    /// How much of so many tokens that the cache holds already nobody in flight uses: they would be in use as well.
    pub(super) fn idle_part(&self, held: u32) -> u64 {
        (self.own * held as f32) as u64
    }
}
