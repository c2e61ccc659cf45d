//! What one front knows of its engines' caches by their events, written into the index as control writes it: blocks
//! stored and removed, and each second the end of promises that are too old and were never confirmed.
//!
//! The promises are the index's own ([`Index::ask`]). Events are placed by what they are built on: an event whose
//! parent was never told of is dropped, as control could not tell where it belongs. If a batch of an engine was missed
//! for good, what it told and what was promised counts as what was sent there does, and so does what is sent there from
//! then on. Left out is that control believes such an engine again once it has told of nearly all of its blocks.
//!
//! The index holds no more of an engine than its cache does: promised blocks push out the oldest, as they will in the
//! cache. With more room, prompts would be sent to blocks that are about to go to requests waiting before them.

use super::chooser::draws;
use super::events::{Batch, Came, Delivery, Told, Wire};
use super::traffic::chain::mix;
use crate::engine::cache::ByHash;
use crate::fleet::EndpointId;
use crate::index::{Index, Origin, PROMISE_SECONDS};

const SECOND_NS: u64 = 1_000_000_000;

/// All engines, as one front hears them.
pub struct Ears {
    engines: Vec<Engine>,
    /// Whole seconds that have passed and were ticked.
    seconds: u64,
}

/// One engine, as it is heard.
struct Engine {
    id: EndpointId,
    /// Blocks of its cache.
    blocks: u32,
    wire: Wire,
    /// Whether nothing was missed for good.
    complete: bool,
    /// Blocks that the engine holds by its events.
    told: ByHash<()>,
}

impl Ears {
    /// Makes the ears for these endpoints, each with the number of blocks in its cache.
    pub fn new(
        endpoints: impl Iterator<Item = (EndpointId, u32)>,
        index: &Index,
        delivery: Delivery,
        seed: u64,
    ) -> Ears {
        let of = |(id, blocks): (EndpointId, u32)| {
            let wire = Wire::new(delivery, mix(mix(seed, draws::LOSS), id.slot.into()));
            let engine = Engine { id, blocks, wire, complete: true, told: ByHash::default() };
            engine.keep_promises(index);
            engine
        };
        Ears { engines: endpoints.map(of).collect(), seconds: 0 }
    }

    /// An engine has sent a batch.
    pub fn published(&mut self, now_ns: u64, engine: usize, batch: &Batch) {
        if let Some(engine) = self.engines.get_mut(engine) {
            engine.wire.sends(now_ns, batch);
        }
    }

    /// Takes in what has come and what has expired up to now, in order. To be called before any look into the index.
    pub fn catch_up(&mut self, now_ns: u64, index: &Index) {
        loop {
            let turn_ns = (self.seconds + 1).saturating_mul(SECOND_NS);
            self.engines.iter_mut().for_each(|engine| engine.hear(now_ns.min(turn_ns), index));
            if turn_ns > now_ns {
                return;
            }
            self.seconds += 1;
            index.tick();
            self.engines.iter().for_each(|engine| engine.expire(index));
        }
    }

    /// Whether an engine has told all that it holds.
    pub fn is_exact(&self, engine: usize) -> bool {
        self.engines.get(engine).is_some_and(|engine| engine.complete)
    }
}

// No other thread writes to the index, and no endpoint goes: it is never busy, and no slot is another's.
impl Engine {
    fn keep_promises(&self, index: &Index) {
        let _ = index.keeps_promises(self.id, self.complete);
    }

    /// Takes in what comes up to this time.
    fn hear(&mut self, until_ns: u64, index: &Index) {
        while self.wire.next_ns().is_some_and(|comes_ns| comes_ns <= until_ns) {
            match self.wire.take() {
                Some(Came::Batch(batch)) => batch.iter().for_each(|told| self.hears(told, index)),
                Some(Came::Hole) => self.misses(index),
                None => return,
            }
        }
    }

    fn hears(&mut self, told: &Told, index: &Index) {
        match told {
            Told::Stored { chain, from, to } => {
                let mut after = from.checked_sub(1).and_then(|before| chain.get(before)).copied();
                if after.is_some_and(|parent| !self.told.contains_key(&parent)) {
                    return;
                }
                for block in &chain[*from..*to] {
                    self.told.insert(*block, ());
                    // An orphan if the index has let go of the block's parent.
                    let _ = index.append(after, &[*block], self.id, Origin::Engine);
                    after = Some(*block);
                }
            }
            // A block that was never told of is not in the index under this name.
            Told::Removed(block) if self.told.remove(block).is_some() => {
                let _ = index.remove(*block, self.id);
            }
            Told::Removed(_) => {}
            Told::Cleared => {
                self.told.clear();
                let _ = index.assign(self.id, Some(self.blocks));
                // The promises were forgotten with the rest.
                self.keep_promises(index);
            }
        }
    }

    fn misses(&mut self, index: &Index) {
        self.complete = false;
        self.told.clear();
        self.keep_promises(index);
    }

    fn expire(&self, index: &Index) {
        let before = index.second().saturating_sub(PROMISE_SECONDS);
        let is_told = |block: u64| self.told.contains_key(&block);
        while index.expire(self.id, before, is_told).is_ok_and(|expired| expired.more) {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::index::{Capacity, Matches};

    const S: u64 = SECOND_NS;
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
        ears: Ears,
        index: Index,
    }

    impl Trial {
        fn new(delivery: Delivery) -> Trial {
            let index = Index::new(Capacity { endpoints: 1, blocks: 16, lengths: false }).unwrap();
            index.assign(ID, Some(16)).unwrap();
            let delivery = Delivery { delay_ns: S, ..delivery };
            Trial { ears: Ears::new([(ID, 16)].into_iter(), &index, delivery, 1), index }
        }

        fn stores(&mut self, now_ns: u64, chain: &[u64], from: usize) {
            let told = Told::Stored { chain: hashes(chain), from, to: chain.len() };
            self.ears.published(now_ns, 0, &[told].into());
        }

        fn promise(&mut self, now_ns: u64, chain: &[u64]) {
            self.ears.catch_up(now_ns, &self.index);
            self.index.ask(&mut hashes(chain).to_vec(), 0, ID, true).unwrap();
        }

        fn held(&mut self, now_ns: u64, chain: &[u64]) -> u32 {
            self.ears.catch_up(now_ns, &self.index);
            let mut matches = Matches::default();
            self.index.longest(&hashes(chain), &[ID], &mut matches);
            matches.depth(0)
        }
    }

    #[test]
    fn events_insert_and_remove_when_they_come() {
        let mut trial = Trial::new(Delivery::default());
        trial.stores(0, &[1, 2, 3], 0);
        trial.ears.published(5 * S, 0, &[removed(2)].into());
        trial.stores(7 * S, &[1, 2], 1);
        assert_eq!([S - 1, S, 6 * S - 1, 6 * S, 8 * S].map(|at| trial.held(at, &[1, 2, 3])), [0, 3, 3, 1, 2]);
        trial.ears.published(9 * S, 0, &[Told::Cleared].into());
        assert_eq!(trial.held(10 * S, &[1, 2, 3]), 0);
        trial.promise(11 * S, &[1]);
        assert_eq!((trial.held(41 * S, &[1]), trial.held(42 * S, &[1])), (1, 0), "it is still to be confirmed");
    }

    #[test]
    fn promises_hold_at_once_and_go_unless_confirmed() {
        let mut trial = Trial::new(Delivery::default());
        trial.promise(0, &[1, 2, 3, 4]);
        assert_eq!(trial.held(0, &[1, 2, 3, 4]), 4);
        trial.stores(2 * S, &[1, 2], 0);
        trial.promise(9 * S, &[1, 2, 3, 4, 5]);
        assert_eq!(trial.held(31 * S - 1, &[1, 2, 3, 4, 5]), 5);
        assert_eq!(trial.held(31 * S, &[1, 2, 3, 4, 5]), 2, "with what was built on it");
        assert_eq!((trial.held(90 * S, &[1, 2]), trial.index.figures(0).expired), (2, 3));
    }

    #[test]
    fn what_the_index_let_go_and_the_engine_did_not_needs_no_event_again() {
        let mut trial = Trial::new(Delivery::default());
        trial.stores(0, &[1, 2], 0);
        (0..16).for_each(|other| trial.promise(2 * S, &[100 + other]));
        assert_eq!(trial.held(2 * S, &[1]), 0);
        trial.promise(20 * S, &[1, 2]);
        assert_eq!((trial.held(90 * S, &[1, 2]), trial.held(90 * S, &[115])), (2, 0));
    }

    #[test]
    fn an_engine_with_a_hole_keeps_its_promises_as_warm_does() {
        let mut trial = Trial::new(Delivery::default());
        trial.promise(0, &[1, 2]);
        // Before that block 1 was stored, and after that block 7.
        trial.stores(0, &[7], 0);
        trial.held(S, &[7]);
        trial.ears.engines[0].misses(&trial.index);
        trial.stores(S, &[1, 2, 3], 1);
        assert_eq!(trial.held(40 * S, &[1, 2, 3]), 2, "what stands on what was missed has no place");
        trial.stores(40 * S, &[5, 6], 0);
        trial.ears.published(41 * S, 0, &[removed(2), removed(6), removed(7)].into());
        assert_eq!([&[5, 6], &[1, 2], &[7, 0]].map(|chain| trial.held(43 * S, chain)), [1, 2, 1]);
        (0..16).for_each(|other| trial.promise(50 * S, &[100 + other]));
        assert_eq!(trial.held(90 * S, &[1]), 0, "it went as the oldest");
        assert_eq!(trial.held(90 * S, &[115]), 1);
    }
}
