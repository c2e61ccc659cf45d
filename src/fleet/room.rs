//! How much of an engine's KV cache is taken, from what it told last and what our requests have there now.

use super::EngineLoad;

/// What an engine told of its cache, as far as it holds until it tells again.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Room {
    /// Tokens that it can hold.
    pub capacity: u64,
    /// Tokens in use that are not our requests'. Tokens in use now are these and [`super::Loads::resident`] times
    /// `own`.
    pub base: i64,
    /// Part of our requests' tokens that is their own, 0..=1: the rest they share with one another.
    pub own: f32,
}

impl Room {
    /// Makes it from what an engine told while so many tokens of ours were resident there; `None` if size or use of the
    /// cache was not told.
    pub fn of(load: &EngineLoad, resident: u64) -> Option<Room> {
        let (used, capacity) = load.kv_use.zip(load.kv_capacity_tokens).filter(|(_, capacity)| *capacity > 0)?;
        let tokens = f64::from(used.clamp(0.0, 1.0)) * capacity as f64;
        let (running, waiting) = (load.running.unwrap_or(0), load.waiting.unwrap_or(0));
        // Requests that wait in the engine occupy nothing yet.
        let waits = f64::from(waiting) / f64::from(running.saturating_add(waiting)).max(1.0);
        let computed = resident as f64 * (1.0 - waits);
        let own = if computed > 0.0 { (tokens / computed).clamp(0.0, 1.0) } else { 1.0 };
        Some(Room { capacity, base: (tokens - own * computed) as i64, own: own as f32 })
    }

    /// Returns the same for a front that no longer counts the `resident` tokens of ours, though they are still there.
    pub fn beside(self, resident: u64) -> Room {
        Room { base: self.base + (f64::from(self.own) * resident as f64) as i64, ..self }
    }

    /// Returns the same for long after it was told: what others had there then says nothing about now.
    pub fn of_ours_alone(self) -> Room {
        Room { base: 0, ..self }
    }
}
