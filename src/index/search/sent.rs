//! What those hold behind the part of a prompt that is known as its engine writes it: as much of all of it, as its
//! client wrote it, as was sent there.
//!
//! That says nothing by itself: an engine that no more holds what it begins with holds nothing behind that. So those
//! alone are asked that hold most of the part that is known, and none is thought to hold more by it than it was sent.

use super::gaps::GAPS_MAX;
use super::{Matches, Set};
use crate::fleet::EndpointId;
use crate::index::Index;
use crate::index::rows::Rows;

/// Different answers of one chain without steps.
pub(super) const LEVELS_MAX: usize = GAPS_MAX + 1;

/// Who was sent how many blocks of another chain: the first `count` of these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    levels: [(u32, Set); LEVELS_MAX],
    count: usize,
}

impl Sent {
    pub(super) const NONE: Sent = Sent { levels: [(0, Set::NONE); LEVELS_MAX], count: 0 };

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }
}

impl Index {
    /// [`Index::longest_in_steps`] of what is known of a prompt, where that is its beginning. `whole`: the chain of all
    /// of it in another form, by which those that hold most of the beginning are told apart: [`Matches::sent`].
    pub fn longest_of_both(
        &self,
        chain: &[u64],
        steps: &[u64],
        whole: &[u64],
        among: &[EndpointId],
        found: &mut Matches,
    ) {
        self.look_up(among, found, |found| {
            self.settle_in_steps(chain, steps, found);
            found.ask_deepest(&self.rows, whole);
        });
    }
}

impl Matches {
    /// Asks those that hold most of one chain, to the block, how much they were sent of another.
    fn ask_deepest(&mut self, rows: &Rows, chain: &[u64]) {
        let deepest = self.deepest();
        if deepest == 0 || chain.is_empty() {
            return;
        }
        let mut asked = Matches { words: self.words, ..Matches::default() };
        let holders = self.levels().filter(|(depth, _)| *depth == deepest);
        holders.flat_map(|(_, holders)| holders.slots()).for_each(|slot| asked.among.add(slot));
        asked.settle(rows, chain);
        self.probes += asked.probes;
        for (place, (depth, holders)) in self.sent.levels.iter_mut().zip(asked.levels()) {
            *place = (depth, *holders);
        }
        self.sent.count = asked.count.min(LEVELS_MAX);
    }

    /// Who was sent how many leading blocks of the other chain: the most first, each slot once.
    #[inline]
    pub fn sent(&self) -> impl Iterator<Item = (u32, &Set)> {
        self.sent.levels[..self.sent.count].iter().map(|(blocks, holders)| (*blocks, holders))
    }
}
