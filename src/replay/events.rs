//! KV events of simulated engines: the changes of one step in a cache are one batch, sent when the step begins, which
//! comes to a front later or not at all.
//!
//! A front hears each engine's batches in order. A lost batch shows in the number of the next one. Then it is asked for
//! again, and batches that have come meanwhile wait for it; or, without replay, it is a hole for good.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;

use super::traffic::chain::mix;
use crate::engine::cache::{ByHash, Change};

/// How events come to fronts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delivery {
    /// Nanoseconds from the change to the front; a batch that was asked for again takes that long once more.
    pub delay_ns: u64,
    /// Percent of batches that are lost, others for each front.
    pub loss_percent: f64,
    /// Whether engines are asked again for lost batches.
    pub replay: bool,
}

impl Default for Delivery {
    fn default() -> Delivery {
        Delivery { delay_ns: 0, loss_percent: 0.0, replay: true }
    }
}

/// What an event tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Blocks of this chain can be found from now on: those from `from` up to, not including, `to`. The blocks before
    /// them say what they are built on, as an event's parent does.
    Stored {
        /// Hashes from the prompt's first block on.
        chain: Arc<[u64]>,
        /// Index of the first block that is told of.
        from: usize,
        /// Index after the last one.
        to: usize,
    },
    /// A block can be found no longer.
    Removed(u64),
    /// Nothing can be found any longer.
    Cleared,
}

/// The changes of one step.
pub type Batch = Arc<[Told]>;

/// Makes batches of the changes that caches tell.
#[derive(Default)]
pub struct Publisher {
    chains: Vec<Arc<[u64]>>,
    /// Chain and index in it of each known block.
    found: ByHash<(usize, usize)>,
}

impl Publisher {
    /// Notes what these blocks are built on; to be called before they are computed.
    pub fn knows(&mut self, blocks: &Arc<[u64]>) {
        // A block is known with all that it is built on.
        let known = blocks.iter().rposition(|block| self.found.contains_key(block)).map_or(0, |at| at + 1);
        if known == blocks.len() {
            return;
        }
        let before = known.checked_sub(1).and_then(|at| self.found.get(blocks.get(at)?)).map(|(chain, _)| *chain);
        // A conversation's next turn replaces the turn before, with which it begins.
        let place = before.filter(|place| self.chains.get(*place).is_some_and(|chain| **chain == blocks[..known]));
        match place.and_then(|place| self.chains.get_mut(place)) {
            Some(chain) => *chain = Arc::clone(blocks),
            None => self.chains.push(Arc::clone(blocks)),
        }
        let place = place.unwrap_or(self.chains.len() - 1);
        self.found.extend(blocks.iter().enumerate().skip(known).map(|(at, block)| (*block, (place, at))));
    }

    /// Makes a batch of one cache's changes, in their order; `None` if there is nothing to tell.
    pub fn batch(&self, changes: &[Change]) -> Option<Batch> {
        let mut batch: Vec<Told> = Vec::new();
        for change in changes {
            match change {
                Change::Stored(block) => {
                    let Some((place, at)) = self.found.get(block) else { continue };
                    let Some(found) = self.chains.get(*place) else { continue };
                    match batch.last_mut() {
                        Some(Told::Stored { chain, to, .. }) if follows(chain, *to, found, *at) => {
                            (*chain, *to) = (Arc::clone(found), at + 1);
                        }
                        _ => batch.push(Told::Stored { chain: Arc::clone(found), from: *at, to: at + 1 }),
                    }
                }
                Change::Removed(block) => batch.push(Told::Removed(*block)),
                Change::Cleared => batch.push(Told::Cleared),
            }
        }
        (!batch.is_empty()).then(|| batch.into())
    }
}

/// Whether the block at `at` of `found` is built on the one before `to` of `chain`.
fn follows(chain: &[u64], to: usize, found: &[u64], at: usize) -> bool {
    at == to && at.checked_sub(1).is_some_and(|before| chain.get(before) == found.get(before))
}

/// What comes to a front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// The next batch.
    Batch(Batch),
    /// A batch was missed that will not come.
    Hole,
}

/// The batches on their way from one engine to one front.
pub struct Wire {
    delivery: Delivery,
    seed: u64,
    sent: u64,
    /// Batches lost since the last one that came.
    missing: Vec<Batch>,
    /// What comes, with its time in nanoseconds, ascending.
    coming: VecDeque<(u64, Came)>,
}

impl Wire {
    /// Makes a wire on which nothing was sent; the seed says which batches are lost.
    pub fn new(delivery: Delivery, seed: u64) -> Wire {
        Wire { delivery, seed, sent: 0, missing: Vec::new(), coming: VecDeque::new() }
    }

    /// The engine sends a batch.
    pub fn sends(&mut self, now_ns: u64, batch: &Batch) {
        let number = self.sent;
        self.sent += 1;
        let drawn = mix(self.seed, number) as f64 / u64::MAX as f64;
        if drawn * 100.0 < self.delivery.loss_percent {
            self.missing.push(Arc::clone(batch));
            return;
        }
        let comes_ns = now_ns.saturating_add(self.delivery.delay_ns);
        if !self.missing.is_empty() && !self.delivery.replay {
            self.missing.clear();
            self.come(comes_ns, Came::Hole);
        }
        for missed in std::mem::take(&mut self.missing) {
            self.come(comes_ns.saturating_add(self.delivery.delay_ns), Came::Batch(missed));
        }
        self.come(comes_ns, Came::Batch(Arc::clone(batch)));
    }

    /// Appends to what is on its way.
    fn come(&mut self, at_ns: u64, came: Came) {
        let last_ns = self.coming.back().map_or(0, |(last_ns, _)| *last_ns);
        self.coming.push_back((at_ns.max(last_ns), came));
    }

    /// Returns when the next one comes.
    pub fn next_ns(&self) -> Option<u64> {
        self.coming.front().map(|(at_ns, _)| *at_ns)
    }

    /// Takes the next one.
    pub fn take(&mut self) -> Option<Came> {
        self.coming.pop_front().map(|(_, came)| came)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(chain: &[u64], from: usize) -> Told {
        Told::Stored { chain: chain.into(), from, to: chain.len() }
    }

    #[test]
    fn blocks_that_are_built_on_each_other_are_told_together() {
        let mut publisher = Publisher::default();
        publisher.knows(&[1, 2, 3].into());
        publisher.knows(&[1, 2, 3, 4].into());
        publisher.knows(&[1, 7].into());
        let changes = [2, 3, 4, 7, 1].map(Change::Stored);
        let told = publisher.batch(&changes).unwrap();
        let expected =
            [stored(&[1, 2, 3, 4], 1), stored(&[1, 7], 1), Told::Stored { chain: [1, 2, 3, 4].into(), from: 0, to: 1 }];
        assert_eq!(*told, expected);
        assert_eq!(
            *publisher.batch(&[Change::Removed(3), Change::Cleared]).unwrap(),
            [Told::Removed(3), Told::Cleared]
        );
        assert_eq!(publisher.batch(&[]), None);
    }

    #[test]
    fn of_a_conversation_only_its_longest_chain_is_kept() {
        let mut publisher = Publisher::default();
        let turns: Vec<Arc<[u64]>> = (1..=9).map(|turn| (0..10 * turn).collect()).collect();
        turns.iter().for_each(|turn| publisher.knows(turn));
        // The other leaves the conversation within it; a third that leaves it alike continues the other.
        let other: Arc<[u64]> = (0..45).chain(1_000..1_010).collect();
        publisher.knows(&other);
        publisher.knows(&(0..45).chain(1_000..1_020).collect());
        publisher.knows(&turns[2]);
        assert_eq!(publisher.chains.len(), 2);
        assert_eq!(turns.iter().chain([&other]).map(Arc::strong_count).filter(|count| *count > 1).count(), 1);
        let told = publisher.batch(&[Change::Stored(5), Change::Stored(1_015)]).unwrap();
        let expected = |to: usize, from, last| match &told[to] {
            Told::Stored { chain, from: first, to } => {
                (*first, *to, chain[from..*to].to_vec()) == (from, from + 1, vec![last])
            }
            _ => false,
        };
        assert!(expected(0, 5, 5) && expected(1, 60, 1_015), "{told:?}");
    }

    /// Of batches 0, 1, 2, ... sent a second apart: what comes when.
    fn comes(delivery: Delivery, lost: &[u64]) -> Vec<(u64, Option<u64>)> {
        // Finds a seed that loses just these.
        let loses = |seed: u64, number: u64| (mix(seed, number) as f64 / u64::MAX as f64) < 0.5;
        let seed = (0..).find(|seed| (0..5).all(|number| loses(*seed, number) == lost.contains(&number))).unwrap();
        let mut wire = Wire::new(Delivery { loss_percent: 50.0, ..delivery }, seed);
        (0..5).for_each(|number| wire.sends(number * 100, &[Told::Removed(number)].into()));
        let mut seen = Vec::new();
        while let Some(at_ns) = wire.next_ns() {
            seen.push(match wire.take() {
                Some(Came::Batch(batch)) => match batch[0] {
                    Told::Removed(number) => (at_ns, Some(number)),
                    _ => unreachable!(),
                },
                _ => (at_ns, None),
            });
        }
        seen
    }

    #[test]
    fn what_is_lost_comes_behind_the_next_and_holds_up_what_follows() {
        let asked = Delivery { delay_ns: 150, loss_percent: 0.0, replay: true };
        let all = |times: [u64; 5]| times.into_iter().zip((0..5).map(Some)).collect::<Vec<_>>();
        assert_eq!(comes(asked, &[]), all([150, 250, 350, 450, 550]));
        // 3 shows at 450 that 1 and 2 are missing; they come at 600.
        assert_eq!(comes(asked, &[1, 2]), all([150, 600, 600, 600, 600]));
        assert_eq!(comes(asked, &[4]), all([150, 250, 350, 450, 550])[..4], "nothing shows that the last was lost");
        let never = Delivery { replay: false, ..asked };
        assert_eq!(comes(never, &[1, 2]), [(150, Some(0)), (450, None), (450, Some(3)), (550, Some(4))]);
    }
}
