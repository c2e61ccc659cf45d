//! What the prefix index is told of the engines: which have a cache, how large it is, and when it is empty.

mod parts;
mod size;

use std::sync::Arc;

use super::scrape::Reading;
use crate::config::Config;
use crate::fleet::EndpointId;
use crate::index::{Figures, Index};
use crate::limits::{BLOCK_BYTES, STEP_BYTES};
pub use parts::Part;
pub use size::index_blocks;

/// A capacity that is wrong by less than one in so many parts is left as it is.
const SMALL_PART: u64 = 20;

/// What one block of the index stands for at an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unit {
    /// A block of text: noted by what was sent there.
    #[default]
    Blocks,
    /// A step, of which a block of text has several: noted by what its engine tells.
    Steps,
}

impl Unit {
    /// Tokens of an engine's cache that may be noted.
    pub fn tokens(self, reading: &Reading) -> Option<u64> {
        match self {
            // An encoder keeps no tokens and has no capacity: its one block takes no room from others.
            Unit::Blocks => reading.load.kv_capacity_tokens.or_else(|| reading.told_tokens()),
            Unit::Steps => reading.told_tokens(),
        }
    }

    /// How many units there are in a cache of so much text.
    fn of(self, bytes: u64) -> u32 {
        let unit = match self {
            Unit::Blocks => BLOCK_BYTES,
            Unit::Steps => STEP_BYTES,
        };
        u32::try_from(bytes / unit as u64).unwrap_or(u32::MAX)
    }
}

/// How full the index is, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Blocks that are noted.
    pub held: u64,
    /// Blocks that its endpoints can use, by the size of their caches.
    pub wanted: u64,
    /// Blocks that are due to them: fewer if the index is too small for all.
    pub due: u64,
}

/// The index, which is there while any policy or shadow policy chooses by it.
#[derive(Debug, Default)]
pub struct Caches {
    index: Option<Arc<Index>>,
    /// Whether engines tell what they hold, in steps.
    in_steps: bool,
    /// Memory that may be taken for it.
    index_bytes: usize,
    /// The parts of endpoints, by slot.
    parts: Vec<Option<Part>>,
    /// Name of the engine that has each slot, or had it last, for log lines.
    names: Vec<Arc<str>>,
    /// Blocks that each slot wants at most, and how many of them are due to it.
    claims: Vec<u32>,
    due: Vec<u32>,
    /// Seconds since the index was made.
    second: u32,
    /// Blocks that were wanted when the log was last told that there are fewer.
    said_wanted: u64,
}

impl Caches {
    /// Makes the index or drops it, as the configuration asks; true if it is new, and knows no endpoint.
    pub fn follow(&mut self, config: &Config) -> bool {
        let is_wanted = config.counts_tokens() && config.limits.index_bytes > 0;
        if self.index.is_some() == is_wanted && self.in_steps == config.listens() {
            return false;
        }
        if self.index.is_some() {
            let why = match (is_wanted, config.listens()) {
                (true, true) => "`precise` is used from now on",
                (true, false) => "`precise` is used no more",
                (false, _) if config.counts_tokens() => "`index_bytes` is 0 from now on",
                (false, _) => "no pool has the policy warm or precise any more",
            };
            tracing::warn!("{why}: what was known of caches is forgotten, in all pools");
        }
        *self = Caches {
            index: is_wanted.then(|| size::made(config)).flatten().map(Arc::new),
            in_steps: config.listens(),
            index_bytes: config.limits.index_bytes,
            names: std::mem::take(&mut self.names),
            ..Caches::default()
        };
        self.index.is_some()
    }

    /// Whether the index was made for another `index_bytes`.
    pub fn is_of_other_size(&self, config: &Config) -> bool {
        self.index.is_some() && self.index_bytes != config.limits.index_bytes
    }

    /// Whether there are more engines than the index has seats for, whose number was settled when it was made.
    pub fn lacks_seats(&self, config: &Config) -> bool {
        self.index.as_ref().is_some_and(|index| config.endpoint_count() > index.seats())
    }

    /// Slots below this one have a place in the index, if there is one.
    pub fn places(&self) -> usize {
        self.index.as_ref().map_or(usize::MAX, |index| index.seats())
    }

    /// The index, for snapshots.
    pub fn index(&self) -> Option<Arc<Index>> {
        self.index.clone()
    }

    /// Notes an endpoint that is new or has restarted: its cache is empty. `tokens`: how many it can hold, if known.
    pub fn empty(&mut self, id: EndpointId, tokens: Option<u64>, token_bytes: f32, unit: Unit) {
        let mut part = self.part(id).unwrap_or(Part::new(id));
        // If it does not say so at once, its cache is probably as large as before.
        part.bytes = tokens.map(|tokens| text(tokens, token_bytes)).or(part.bytes);
        part.tokens = tokens.or(part.tokens);
        part.notes(unit, self.second);
        self.seat(part);
    }

    /// Notes an endpoint that replaces another of the same engine; its cache is taken to be of the same size until it
    /// says another.
    pub fn moved(&mut self, id: EndpointId, name: &Arc<str>, before: Option<Part>) {
        let slot = usize::from(id.slot);
        self.names.resize(self.names.len().max(slot + 1), "".into());
        self.names[slot] = Arc::clone(name);
        self.seat(before.map_or(Part::new(id), |before| before.moved(id, self.second)));
    }

    /// Empties an endpoint, whose cache is as large as before.
    pub fn clear(&mut self, id: EndpointId) {
        if let Some(part) = self.part(id) {
            self.seat(part);
        }
    }

    /// Notes the size of an endpoint's cache, or that a token stands for more or less text than was thought.
    pub fn holds(&mut self, id: EndpointId, tokens: u64, token_bytes: f32, unit: Unit) {
        let Some(mut part) = self.part(id) else { return };
        let bytes = text(tokens, token_bytes);
        if part.bytes.is_none_or(|known| known.abs_diff(bytes) > bytes / SMALL_PART) {
            part.bytes = Some(bytes);
        }
        part.tokens = Some(tokens);
        part.notes(unit, self.second);
        self.parts[usize::from(id.slot)] = Some(part);
        self.deal();
        self.fit(id.slot);
    }

    /// An endpoint's part of the index, if it has one.
    pub fn part(&self, id: EndpointId) -> Option<Part> {
        self.parts.get(usize::from(id.slot)).copied().flatten().filter(|part| part.id == id)
    }

    /// What the index knows of an endpoint's cache.
    pub fn figures(&self, slot: u16) -> Figures {
        self.index.as_ref().map(|index| index.figures(slot)).unwrap_or_default()
    }

    /// How full the index is; `None`: there is no index.
    pub fn fill(&self) -> Option<Fill> {
        self.index.as_ref()?;
        let held = (0..self.parts.len() as u16).map(|slot| u64::from(self.figures(slot).blocks)).sum();
        Some(Fill { held, wanted: sum(&self.claims), due: sum(&self.due) })
    }

    /// Lets a second pass.
    pub fn tick(&mut self) {
        self.second += 1;
        if let Some(index) = &self.index {
            index.tick();
        }
    }

    /// Forgets an endpoint that has left.
    pub fn forget(&mut self, slot: u16) {
        if let Some(part) = self.parts.get_mut(usize::from(slot)) {
            *part = None;
        }
        if let Some(index) = &self.index {
            // Nothing noted of it is believed from now on, whether it could be emptied or not.
            let _ = index.forget(slot);
        }
        self.deal();
    }
}

fn sum(blocks: &[u32]) -> u64 {
    blocks.iter().map(|&blocks| u64::from(blocks)).sum()
}

fn text(tokens: u64, token_bytes: f32) -> u64 {
    (tokens as f64 * f64::from(token_bytes)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Matches, Missed, Origin};
    use crate::policy::Policy;

    #[test]
    fn what_restarts_is_cold() {
        let mut config = Config::default();
        config.routing.policy = Policy::Warm;
        let mut caches = Caches::default();
        assert!(caches.follow(&config) && !caches.follow(&config));
        let (id, chain) = (EndpointId { slot: 3, generation: 1 }, [1, 2, 3]);
        caches.empty(id, Some(64 * 100), 4.0, Unit::Blocks);
        let index = caches.index().unwrap();
        let depth = || {
            let mut found = Matches::default();
            index.longest(&chain, &[id], &mut found);
            found.depth(3)
        };
        index.insert(&chain, id, Origin::Choice).unwrap();
        assert_eq!((depth(), index.figures(3).capacity), (3, 100));
        let held = index.figures(3).blocks.into();
        assert!(caches.fill() == Some(Fill { held, wanted: 100, due: 100 }) && held > 0);
        caches.holds(id, 64 * 50, 4.0, Unit::Blocks);
        assert_eq!((depth(), index.figures(3).capacity), (3, 50));
        caches.holds(id, 64 * 50, 4.1, Unit::Blocks);
        assert_eq!((depth(), index.figures(3).capacity), (3, 50));
        caches.empty(id, Some(64 * 50), 4.0, Unit::Blocks);
        assert_eq!(depth(), 0);
        index.insert(&chain, id, Origin::Choice).unwrap();
        caches.forget(3);
        assert_eq!((depth(), index.insert(&chain, id, Origin::Choice)), (0, Err(Missed::NotTheirs)));
        config.routing.policy = Policy::Random;
        assert!(!caches.follow(&config) && caches.index().is_none());
        assert_eq!(caches.fill(), None);
    }

    #[test]
    fn who_was_written_as_it_came_or_left_is_seen_to_later() {
        let mut config = Config::default();
        config.routing.policy = Policy::Warm;
        let mut caches = Caches::default();
        caches.follow(&config);
        let (id, index) = (EndpointId { slot: 3, generation: 1 }, caches.index().unwrap());
        caches.empty(id, Some(64 * 100), 4.0, Unit::Blocks);
        index.insert(&[1], id, Origin::Choice).unwrap();
        // Who saves has its ledger meanwhile.
        index.save(id, &mut |_, _| caches.clear(id)).unwrap();
        assert_eq!(index.insert(&[1], id, Origin::Choice), Err(Missed::NotTheirs));
        caches.settle();
        assert_eq!((index.insert(&[1], id, Origin::Choice).is_ok(), index.figures(3).capacity), (true, 100));
        index.save(id, &mut |_, _| caches.forget(3)).unwrap();
        assert_eq!(index.figures(3).capacity, 100);
        caches.settle();
        assert_eq!(index.figures(3).capacity, 0);
    }
}
