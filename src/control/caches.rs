//! What the prefix index is told of the engines: who has a cache, how large it is, and when it is empty.

use std::sync::Arc;

use crate::config::Config;
use crate::fleet::EndpointId;
use crate::index::{Capacity, Figures, Index, Missed};
use crate::limits::{BLOCK_BYTES, ENDPOINTS_MAX, STEP_BYTES};
use crate::policy::Pool;

/// A capacity that is wrong by less than one part of so many is left as it is.
const SMALL_PART: u32 = 20;
/// Fewest slots of an index: engines may come while the process lives.
const SLOTS_MIN: usize = 64;

/// The index, while any pool chooses by it, or is compared with who does.
#[derive(Debug, Default)]
pub struct Caches {
    index: Option<Arc<Index>>,
    /// Whether engines tell what they hold, to a step.
    in_steps: bool,
}

impl Caches {
    /// Makes the index or lets go of it, as the configuration asks; true where it is new, and knows no endpoint.
    pub fn follow(&mut self, config: &Config) -> bool {
        let is_wanted = config.counts_tokens() && config.limits.index_bytes > 0;
        if self.index.is_some() == is_wanted && self.in_steps == config.listens() {
            return false;
        }
        self.in_steps = config.listens();
        self.index = is_wanted.then(|| made(config)).flatten().map(Arc::new);
        self.index.is_some()
    }

    /// For snapshots.
    pub fn index(&self) -> Option<Arc<Index>> {
        self.index.clone()
    }

    /// An endpoint is new, or has restarted: its cache is empty. `tokens`: how many it holds, where that is known.
    pub fn empty(&self, id: EndpointId, tokens: Option<u64>) {
        self.assign(id, tokens.map(|tokens| self.blocks(tokens, Pool::TOKEN_BYTES)));
    }

    /// An endpoint holds nothing of what was noted, and its cache is as large as before.
    pub fn clear(&self, id: EndpointId) {
        let capacity = self.index.as_ref().map_or(0, |index| index.figures(id.slot).capacity);
        self.assign(id, Some(capacity).filter(|blocks| *blocks > 0));
    }

    fn assign(&self, id: EndpointId, blocks: Option<u32>) {
        let Some(index) = &self.index else { return };
        match index.assign(id, blocks) {
            Ok(_) => {}
            Err(Missed::Stranger | Missed::Orphan) => tracing::warn!(
                slot = id.slot,
                "the prefix index has no place for this many engines until a restart; these get what others do not hold"
            ),
            Err(Missed::Busy) => {
                tracing::warn!(slot = id.slot, "the prefix index is busy; the engine is taken for cold")
            }
        }
    }

    /// The size of an endpoint's cache is known now, or that a token stands for other text than was thought.
    pub fn holds(&self, id: EndpointId, tokens: u64, token_bytes: f32) {
        let Some(index) = &self.index else { return };
        let blocks = self.blocks(tokens, token_bytes);
        if index.figures(id.slot).capacity.abs_diff(blocks) > blocks / SMALL_PART {
            // Busy, or another's by now: the next reading says it again.
            let _ = index.resize(id, blocks);
        }
    }

    /// What the index knows of an endpoint's cache.
    pub fn figures(&self, slot: u16) -> Figures {
        self.index.as_ref().map(|index| index.figures(slot)).unwrap_or_default()
    }

    /// Blocks of text in a cache of so many tokens, and the steps between them where there are any.
    fn blocks(&self, tokens: u64, token_bytes: f32) -> u32 {
        let unit = if self.in_steps { STEP_BYTES } else { BLOCK_BYTES };
        (tokens as f64 * f64::from(token_bytes) / unit as f64) as u32
    }

    /// Another second has passed.
    pub fn tick(&self) {
        if let Some(index) = &self.index {
            index.tick();
        }
    }

    /// An endpoint has left.
    pub fn forget(&self, slot: u16) {
        if let Some(index) = &self.index {
            // Nothing of it is believed from now on, whether it could be emptied or not.
            let _ = index.forget(slot);
        }
    }
}

/// As large as `index_bytes` allows.
fn made(config: &Config) -> Option<Index> {
    let endpoints = (2 * config.upstream.len()).next_power_of_two().clamp(SLOTS_MIN, ENDPOINTS_MAX);
    let capacity = |blocks: usize| Capacity { endpoints, blocks, lengths: config.listens() };
    let fits = |blocks: usize| Index::bytes(capacity(blocks)).is_ok_and(|bytes| bytes <= config.limits.index_bytes);
    let (mut most, mut least) = (config.limits.index_bytes, endpoints * Capacity::BLOCKS_MIN);
    while least + 1 < most {
        let middle = least.midpoint(most);
        if fits(middle) { least = middle } else { most = middle }
    }
    match Index::new(capacity(least)) {
        Ok(index) if fits(least) => {
            tracing::info!(endpoints, blocks = least, "prefix index");
            Some(index)
        }
        _ => {
            tracing::warn!(
                index_bytes = config.limits.index_bytes,
                endpoints,
                "index_bytes is too little for a prefix index; pools of policy warm choose by prefix-hash"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Matches;
    use crate::index::Origin;
    use crate::policy::Policy;

    #[test]
    fn an_index_is_as_large_as_it_may_be() {
        let mut config = Config::default();
        config.routing.policy = Policy::Warm;
        for bytes in [1 << 20, 64 << 20] {
            config.limits.index_bytes = bytes;
            let index = made(&config).unwrap();
            let id = EndpointId { slot: 0, generation: 1 };
            let capacity = index.assign(id, None).unwrap() as usize * SLOTS_MIN;
            assert!((bytes / 100..bytes / 20).contains(&capacity), "{capacity} blocks in {bytes} bytes");
        }
        config.limits.index_bytes = 1_000;
        assert!(made(&config).is_none());
    }

    #[test]
    fn what_restarts_is_cold() {
        let mut config = Config::default();
        config.routing.policy = Policy::Warm;
        let mut caches = Caches::default();
        assert!(caches.follow(&config) && !caches.follow(&config));
        let (id, chain) = (EndpointId { slot: 3, generation: 1 }, [1, 2, 3]);
        caches.empty(id, Some(64 * 100));
        let index = caches.index().unwrap();
        let depth = || {
            let mut found = Matches::default();
            index.longest(&chain, &[id], &mut found);
            found.depth(3)
        };
        index.insert(&chain, id, Origin::Choice).unwrap();
        assert_eq!((depth(), index.figures(3).capacity), (3, 100));
        caches.holds(id, 64 * 50, 4.0);
        assert_eq!((depth(), index.figures(3).capacity), (3, 50));
        caches.holds(id, 64 * 50, 4.1);
        assert_eq!((depth(), index.figures(3).capacity), (3, 50));
        caches.empty(id, Some(64 * 50));
        assert_eq!(depth(), 0);
        index.insert(&chain, id, Origin::Choice).unwrap();
        caches.forget(3);
        assert_eq!((depth(), index.insert(&chain, id, Origin::Choice)), (0, Err(Missed::Stranger)));
        config.routing.policy = Policy::Random;
        assert!(!caches.follow(&config) && caches.index().is_none());
    }
}
