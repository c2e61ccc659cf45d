//! How much of an engine's KV cache is taken: by what it told last, and by what ours have there now.

use super::EngineLoad;

/// What an engine told of its cache, as far as it stays so until it tells again.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Room {
    /// Tokens that it holds.
    pub capacity: u64,
    /// Tokens in use that no request of ours told of: with what ours are resident now, times `own`, what is in use now.
    pub base: i64,
    /// How much of our requests' tokens is their own, 0..=1: the rest they share with one another.
    pub own: f32,
}

impl Room {
    /// As told while so many tokens of ours were resident there; `None`: how large it is, or how full, was not told.
    pub fn of(load: &EngineLoad, resident: u64) -> Option<Room> {
        let (used, capacity) = load.kv_use.zip(load.kv_capacity_tokens).filter(|(_, capacity)| *capacity > 0)?;
        let tokens = f64::from(used.clamp(0.0, 1.0)) * capacity as f64;
        let (running, waiting) = (load.running.unwrap_or(0), load.waiting.unwrap_or(0));
        // Those that wait in the engine occupy nothing yet, and will.
        let waits = f64::from(waiting) / f64::from(running.saturating_add(waiting)).max(1.0);
        let computed = resident as f64 * (1.0 - waits);
        let own = if computed > 0.0 { (tokens / computed).clamp(0.0, 1.0) } else { 1.0 };
        Some(Room { capacity, base: (tokens - own * computed) as i64, own: own as f32 })
    }

    /// The same where none of the `resident` tokens of ours, of which it was told, are counted any more: they are there
    /// yet.
    pub fn beside(self, resident: u64) -> Room {
        Room { base: self.base + (f64::from(self.own) * resident as f64) as i64, ..self }
    }

    /// The same long after it was told: what others had there then says nothing of now.
    pub fn of_ours_alone(self) -> Room {
        Room { base: 0, ..self }
    }
}
