//! What one front knows of its engines' caches by their events: an index that is told what is stored and what removed,
//! and what the front itself has promised to it meanwhile.
//!
//! At the choice a prompt's blocks are promised to its engine, lest a burst with the same new prefix scatter. An event
//! that tells of them confirms them; what nobody has confirmed [`PROMISE_NS`] later goes. Events are placed by what
//! they are built on: one whose parent was never told of is dropped, as control could not tell where it belongs. Since
//! an engine of which something was missed for good may hold what nobody tells of, its promises stay, and go in the
//! order of `warm`.
//!
//! The index holds no more of an engine than its cache does: what is promised pushes out the oldest, as it will there.
//! Were there more room, prompts would be sent after blocks that those waiting before them will take.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::events::{Batch, Came, Delivery, Told, Wire};
use super::traffic::chain::mix;
use crate::engine::cache::ByHash;
use crate::fleet::EndpointId;
use crate::index::{Index, Matches, Origin};

/// How long a promise stands.
pub const PROMISE_NS: u64 = 10_000_000_000;
/// Sets the draw of losses apart from others.
const LOSS_DRAW: u64 = 9;

/// All engines, as one front hears them.
pub struct Mirror {
    engines: Vec<Heard>,
    matches: Box<Matches>,
}

/// One engine.
struct Heard {
    id: EndpointId,
    /// Blocks of its cache.
    blocks: u32,
    wire: Wire,
    /// Whether nothing has been missed for good.
    complete: bool,
    /// What its events say that it holds.
    told: ByHash<()>,
    /// What it was promised and has not told of, and until when.
    promised: ByHash<u64>,
    /// In order of their ends.
    promises: VecDeque<Promise>,
}

struct Promise {
    until_ns: u64,
    chain: Arc<[u64]>,
    from: usize,
    to: usize,
}

impl Mirror {
    /// Of engines in these places, with so many blocks.
    pub fn new(endpoints: impl Iterator<Item = (EndpointId, u32)>, delivery: Delivery, seed: u64) -> Mirror {
        let of = |(id, blocks): (EndpointId, u32)| Heard {
            id,
            blocks,
            wire: Wire::new(delivery, mix(mix(seed, LOSS_DRAW), id.slot.into())),
            complete: true,
            told: ByHash::default(),
            promised: ByHash::default(),
            promises: VecDeque::new(),
        };
        Mirror { engines: endpoints.map(of).collect(), matches: Box::default() }
    }

    /// An engine has sent a batch.
    pub fn published(&mut self, now_ns: u64, engine: usize, batch: &Batch) {
        if let Some(heard) = self.engines.get_mut(engine) {
            heard.wire.sends(now_ns, batch);
        }
    }

    /// Whatever has come or ended up to now, in order. Asked before each choice: nobody looks in between.
    pub fn catch_up(&mut self, now_ns: u64, index: &Index) {
        for heard in &mut self.engines {
            loop {
                let comes_ns = heard.wire.next_ns().filter(|at_ns| *at_ns <= now_ns);
                let ends_ns = heard.promises.front().map(|promise| promise.until_ns).filter(|at_ns| *at_ns <= now_ns);
                match (comes_ns, ends_ns) {
                    (Some(comes_ns), ends_ns) if ends_ns.is_none_or(|ends_ns| comes_ns <= ends_ns) => {
                        match heard.wire.take() {
                            Some(Came::Batch(batch)) => {
                                batch.iter().for_each(|told| heard.hears(told, index, &mut self.matches))
                            }
                            Some(Came::Hole) => heard.misses(),
                            None => break,
                        }
                    }
                    (_, Some(ends_ns)) => heard.ends_promise(ends_ns, index),
                    _ => break,
                }
            }
        }
    }

    /// A prompt of the first `full` of these blocks goes to an engine.
    pub fn promise(&mut self, now_ns: u64, engine: usize, blocks: &Arc<[u64]>, full: usize, index: &Index) {
        let Some(heard) = self.engines.get_mut(engine) else { return };
        // Nobody else writes here, and no endpoint goes: it is never refused.
        let _ = index.insert(&blocks[..full], heard.id, Origin::Choice);
        let Some(from) = blocks[..full].iter().position(|block| !heard.told.contains_key(block)) else { return };
        if heard.complete {
            let until_ns = now_ns.saturating_add(PROMISE_NS);
            for block in blocks[from..full].iter().filter(|block| !heard.told.contains_key(block)) {
                heard.promised.insert(*block, until_ns);
            }
            heard.promises.push_back(Promise { until_ns, chain: Arc::clone(blocks), from, to: full });
        }
    }
}

impl Heard {
    fn hears(&mut self, told: &Told, index: &Index, matches: &mut Matches) {
        match told {
            Told::Stored { chain, from, to } => {
                let parent = from.checked_sub(1).and_then(|before| chain.get(before));
                if parent.is_some_and(|parent| !self.told.contains_key(parent)) {
                    return;
                }
                for block in &chain[*from..*to] {
                    self.told.insert(*block, ());
                    self.promised.remove(block);
                }
                index.longest(&chain[..*from], &[self.id], matches);
                if matches.depth(self.id.slot) as usize == *from {
                    let _ = index.insert(&chain[..*to], self.id, Origin::Engine);
                }
            }
            // What was never told of has no place here, and is not known by this name.
            Told::Removed(block) if self.told.remove(block).is_some() => {
                let _ = index.remove(*block, self.id);
            }
            Told::Removed(_) => {}
            Told::Cleared => {
                self.told.clear();
                let _ = index.assign(self.id, Some(self.blocks));
            }
        }
    }

    fn misses(&mut self) {
        self.complete = false;
        self.promised.clear();
        self.promises.clear();
    }

    fn ends_promise(&mut self, now_ns: u64, index: &Index) {
        let Some(promise) = self.promises.pop_front() else { return };
        for block in &promise.chain[promise.from..promise.to] {
            // It may have been confirmed, or promised again.
            if let Entry::Occupied(promised) = self.promised.entry(*block)
                && *promised.get() <= now_ns
            {
                promised.remove();
                let _ = index.remove(*block, self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Capacity;

    const S: u64 = 1_000_000_000;
    const ID: EndpointId = EndpointId { slot: 0, generation: 1 };

    /// The index goes by a hash's upper bits.
    fn hashes(chain: &[u64]) -> Arc<[u64]> {
        chain.iter().map(|block| mix(*block, 0)).collect()
    }

    fn removed(block: u64) -> Told {
        Told::Removed(mix(block, 0))
    }

    /// One engine with 16 blocks, heard a second late.
    struct Trial {
        mirror: Mirror,
        index: Index,
    }

    impl Trial {
        fn new(delivery: Delivery) -> Trial {
            let index = Index::new(Capacity { endpoints: 1, blocks: 16, lengths: false }).unwrap();
            index.assign(ID, Some(16)).unwrap();
            let delivery = Delivery { delay_ns: S, ..delivery };
            Trial { mirror: Mirror::new([(ID, 16)].into_iter(), delivery, 1), index }
        }

        fn stores(&mut self, now_ns: u64, chain: &[u64], from: usize) {
            let told = Told::Stored { chain: hashes(chain), from, to: chain.len() };
            self.mirror.published(now_ns, 0, &[told].into());
        }

        fn promise(&mut self, now_ns: u64, chain: &[u64]) {
            self.mirror.catch_up(now_ns, &self.index);
            self.mirror.promise(now_ns, 0, &hashes(chain), chain.len(), &self.index);
        }

        fn held(&mut self, now_ns: u64, chain: &[u64]) -> u32 {
            self.mirror.catch_up(now_ns, &self.index);
            let mut matches = Matches::default();
            self.index.longest(&hashes(chain), &[ID], &mut matches);
            matches.depth(0)
        }
    }

    #[test]
    fn events_insert_and_remove_when_they_come() {
        let mut trial = Trial::new(Delivery::default());
        trial.stores(0, &[1, 2, 3], 0);
        trial.mirror.published(5 * S, 0, &[removed(2)].into());
        trial.stores(7 * S, &[1, 2], 1);
        assert_eq!([S - 1, S, 6 * S - 1, 6 * S, 8 * S].map(|at| trial.held(at, &[1, 2, 3])), [0, 3, 3, 1, 2]);
        trial.mirror.published(9 * S, 0, &[Told::Cleared].into());
        assert_eq!(trial.held(10 * S, &[1, 2, 3]), 0);
    }

    #[test]
    fn promises_hold_at_once_and_go_unless_confirmed_or_renewed() {
        let mut trial = Trial::new(Delivery::default());
        trial.promise(0, &[1, 2, 3, 4]);
        assert_eq!(trial.held(0, &[1, 2, 3, 4]), 4);
        trial.stores(2 * S, &[1, 2], 0);
        trial.promise(9 * S, &[1, 2, 3]);
        assert_eq!(trial.held(10 * S - 1, &[1, 2, 3, 4]), 4);
        assert_eq!(trial.held(10 * S, &[1, 2, 3, 4]), 3, "promised again");
        assert_eq!(trial.held(19 * S, &[1, 2, 3, 4]), 2, "confirmed");
        assert!(trial.mirror.engines[0].promised.is_empty() && trial.mirror.engines[0].promises.is_empty());
    }

    #[test]
    fn an_engine_with_a_hole_keeps_its_promises_as_warm_does() {
        let mut trial = Trial::new(Delivery::default());
        trial.promise(0, &[1, 2]);
        // That 1 was stored.
        trial.mirror.engines[0].misses();
        trial.stores(S, &[1, 2, 3], 1);
        assert_eq!(trial.held(30 * S, &[1, 2, 3]), 2, "what stands on what was missed has no place");
        trial.stores(30 * S, &[5, 6], 0);
        trial.mirror.published(31 * S, 0, &[removed(2), removed(6)].into());
        assert_eq!((trial.held(33 * S, &[5, 6]), trial.held(33 * S, &[1, 2])), (1, 2));
        for other in 0..16 {
            trial.promise(40 * S, &[100 + other]);
        }
        assert_eq!(trial.held(60 * S, &[1]), 0, "it went as the oldest");
        assert_eq!(trial.held(60 * S, &[115]), 1);
    }
}
