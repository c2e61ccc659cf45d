//! What is held beyond the last whole block, and how many tokens that is.
//!
//! A block has three further links in it, its steps. Who holds most blocks is settled first; then those that hold the
//! same number of them are told apart by the steps of the block behind, from the last one on.

use std::array;

use super::{DEPTHS_SEARCHED, Matches, Set, WORDS_MAX, both, is_empty};
use crate::index::lengths::Lengths;
use crate::index::rows::Rows;
use crate::limits::{BLOCK_BYTES, STEP_BYTES};

/// Links within a block, its end left out.
pub const STEPS: usize = BLOCK_BYTES / STEP_BYTES - 1;

/// So far before its end is looked for what is known of a match: 512 bytes, longer than most engines' blocks.
const LINKS_BACK: usize = 8;

/// How much of a prompt an endpoint holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Leading blocks.
    pub blocks: u32,
    /// Steps beyond them, 0..=[`STEPS`].
    pub steps: u32,
    /// The tokens of both together. `None`: not known, or not asked for.
    pub tokens: Option<u32>,
}

/// Who holds the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    pub found: Found,
    pub holders: Set,
}

pub(super) const NO_LEVEL: Level = Level { found: Found { blocks: 0, steps: 0, tokens: None }, holders: Set::NONE };

impl Matches {
    /// Tells those apart that hold the same blocks. `steps`: of the first block, then of the next;
    /// the last may have fewer.
    pub(in crate::index) fn split(&mut self, rows: &Rows, steps: &[u64]) {
        match self.words {
            1 => self.split_words::<1>(rows, steps),
            2 => self.split_words::<2>(rows, steps),
            4 => self.split_words::<4>(rows, steps),
            8 => self.split_words::<8>(rows, steps),
            _ => self.split_words::<WORDS_MAX>(rows, steps),
        }
    }

    fn split_words<const W: usize>(&mut self, rows: &Rows, steps: &[u64]) {
        // What is known of further levels is less than they hold: the steps behind that say nothing.
        let searched = self.count.min(DEPTHS_SEARCHED);
        for level in &self.levels[..searched] {
            behind(steps, level.found.blocks).iter().for_each(|&link| rows.prefetch(link));
        }
        let mut at = 0;
        for _ in 0..searched {
            let within = behind(steps, self.levels[at].found.blocks);
            let mut rest: [u64; W] = self.levels[at].holders.first();
            for (step, &link) in within.iter().enumerate().rev() {
                if is_empty(&rest) {
                    break;
                }
                self.probes += 1;
                let here = rows.holders(link, &both(&self.levels[at].holders.first(), &rest));
                if is_empty(&here) {
                    continue;
                }
                rest = array::from_fn(|word| rest[word] & !here[word]);
                if !is_empty(&rest) {
                    self.levels.copy_within(at..self.count, at + 1);
                    self.count += 1;
                    self.levels[at + 1].holders.of(&rest);
                }
                self.levels[at].found.steps = step as u32 + 1;
                self.levels[at].holders.of(&here);
                at += usize::from(!is_empty(&rest));
            }
            at += 1;
        }
    }

    /// How many tokens that is which they hold: as many as are known of the last link, or of one of the few before it.
    /// What was promised goes to the end of a block, what engines tell to that of one of theirs.
    pub(in crate::index) fn measure(&mut self, lengths: &Lengths, chain: &[u64], steps: &[u64]) {
        let levels = &mut self.levels[..self.count];
        let last = |found: &Found| link(chain, steps, found.blocks as usize * (STEPS + 1) + found.steps as usize);
        levels.iter().filter_map(|level| last(&level.found)).for_each(|link| lengths.prefetch(link));
        for Level { found, .. } in levels {
            let end = found.blocks as usize * (STEPS + 1) + found.steps as usize;
            let known = |at: usize| link(chain, steps, at).and_then(|link| lengths.tokens(link));
            found.tokens = (end.saturating_sub(LINKS_BACK)..=end).rev().find_map(known);
        }
    }

    /// How much this slot holds.
    #[inline]
    pub fn found(&self, slot: u16) -> Found {
        self.levels_in_steps().find(|(_, holders)| holders.contains(slot)).map_or(Found::default(), |(found, _)| found)
    }

    /// Who holds how much: the deepest first, of equal blocks those with more steps, each slot once, those that hold no
    /// block left out.
    #[inline]
    pub fn levels_in_steps(&self) -> impl Iterator<Item = (Found, &Set)> {
        self.levels[..self.count].iter().map(|level| (level.found, &level.holders))
    }
}

/// The link with which so many steps end, those at the ends of blocks among them.
#[inline]
fn link(chain: &[u64], steps: &[u64], at: usize) -> Option<u64> {
    let (blocks, within) = (at / (STEPS + 1), at % (STEPS + 1));
    match within {
        0 => chain.get(blocks.wrapping_sub(1)).copied(),
        _ => steps.get(blocks * STEPS + within - 1).copied(),
    }
}

/// The steps of the block behind so many.
#[inline]
fn behind(steps: &[u64], blocks: u32) -> &[u64] {
    let from = (STEPS * blocks as usize).min(steps.len());
    &steps[from..(from + STEPS).min(steps.len())]
}
