//! How much of a prompt each endpoint holds.
//!
//! Who holds a block holds all before it, so the holders become fewer from block to block, and who holds how much is
//! found by search over the depth (see [`gaps`]): each round asks up to [`FAN`] depths at once wherever some of them
//! end, so that their memory is waited for once.

mod gaps;
mod sent;
mod steps;

use std::array;

use super::rows::{Holder, Row, Rows};
use crate::limits::ENDPOINTS_MAX;
use gaps::{Gap, Gaps, depths};
use sent::Sent;
pub use steps::{Found, STEPS};
use steps::{Level, NO_LEVEL};

/// Words of a set of slots.
pub(super) const WORDS_MAX: usize = ENDPOINTS_MAX.div_ceil(64);
/// So many different depths are searched to the block in one look-up. Of the endpoints that hold less than the last of
/// them, the depth that most of them reach is searched for as well: a prefix that an application's prompts begin with.
/// The others count with the deepest block at which the search happened to meet them: never more than they hold.
pub const DEPTHS_SEARCHED: usize = 4;
/// Depths asked at once.
const FAN: usize = 4;
/// Different answers of one look-up.
const LEVELS_MAX: usize = sent::LEVELS_MAX + DEPTHS_SEARCHED * STEPS;

/// Most links looked at in one look-up of a chain of so many blocks: 81 for 512 blocks, and with so many steps 12 more.
///
/// A round leaves at most a fifth (one part of [`FAN`] + 1) of the depths open. One more search, of a single depth and
/// the block that it begins with, is for those that hold less than the depths that are searched. Steps are looked at
/// behind each depth that was searched.
pub fn probes_max(blocks: usize, steps: usize) -> usize {
    let mut rounds = 0;
    let mut open = blocks;
    while open > 0 {
        open = (open + 1).div_ceil(FAN + 1) - 1;
        rounds += 1;
    }
    (DEPTHS_SEARCHED + 1) * FAN * rounds + usize::from(rounds > 0) + steps.min(DEPTHS_SEARCHED * STEPS)
}

/// Some slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Set {
    pub(super) words: [u64; WORDS_MAX],
}

impl Set {
    pub(super) const NONE: Set = Set { words: [0; WORDS_MAX] };

    pub(super) fn add(&mut self, slot: u16) {
        if let Some(word) = self.words.get_mut(slot as usize / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Whether this slot is one of them.
    #[inline]
    pub fn contains(&self, slot: u16) -> bool {
        self.words.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }

    /// They, ascending.
    pub fn slots(&self) -> impl Iterator<Item = u16> {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let rest = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            rest.take_while(|&word| word != 0).map(move |word| (at * 64) as u16 + word.trailing_zeros() as u16)
        })
    }

    /// Its first words: the others are empty.
    #[inline]
    fn first<const W: usize>(&self) -> [u64; W] {
        array::from_fn(|word| self.words[word])
    }

    #[inline]
    fn of<const W: usize>(&mut self, words: &[u64; W]) {
        self.words[..W].copy_from_slice(words);
    }
}

#[inline]
fn both<const W: usize>(a: &[u64; W], b: &[u64; W]) -> [u64; W] {
    array::from_fn(|word| a[word] & b[word])
}

#[inline]
fn is_empty<const W: usize>(set: &[u64; W]) -> bool {
    set.iter().fold(0, |all, word| all | word) == 0
}

#[inline]
fn count<const W: usize>(set: &[u64; W]) -> u32 {
    set.iter().map(|word| word.count_ones()).sum()
}

/// What a look-up found. About 7 KiB, made once and used again.
#[derive(Debug)]
pub struct Matches {
    words: usize,
    among: Set,
    /// How often endpoints had been emptied when it began.
    pub(super) emptied: u64,
    /// Descending in depth, then in steps, without common slots; the first `count` of them.
    levels: [Level; LEVELS_MAX],
    count: usize,
    sent: Sent,
    probes: u32,
}

impl Default for Matches {
    fn default() -> Self {
        let levels = [NO_LEVEL; LEVELS_MAX];
        Matches { words: 0, among: Set::NONE, emptied: 0, levels, count: 0, sent: Sent::NONE, probes: 0 }
    }
}

impl Matches {
    /// How many leading blocks this slot holds.
    #[inline]
    pub fn depth(&self, slot: u16) -> u32 {
        self.levels().find(|(_, holders)| holders.contains(slot)).map_or(0, |(depth, _)| depth)
    }

    /// The endpoints by how many leading blocks they hold: the deepest first, each slot once, those that hold none left
    /// out. With steps several may have the same depth: those with more of them come first.
    #[inline]
    pub fn levels(&self) -> impl Iterator<Item = (u32, &Set)> {
        self.levels[..self.count].iter().map(|level| (level.found.blocks, &level.holders))
    }

    /// The endpoint that holds the longest match, steps included, if it is the only one.
    pub fn alone(&self) -> Option<u16> {
        let (_, holders) = self.levels().next()?;
        let mut slots = holders.slots();
        slots.next().filter(|_| slots.next().is_none())
    }

    /// Most leading blocks that anybody holds.
    #[inline]
    pub fn deepest(&self) -> u32 {
        self.levels().next().map_or(0, |(depth, _)| depth)
    }

    /// Links looked at, of at most [`probes_max`] for each chain.
    pub fn probes(&self) -> u32 {
        self.probes
    }

    /// Forgets all of it.
    pub fn clear(&mut self) {
        (self.count, self.probes) = (0, 0);
        self.sent.clear();
        self.among = Set::NONE;
    }

    pub(super) fn begin(&mut self, words: usize, emptied: u64) -> &mut Set {
        if self.words != words {
            // Made for an index of another size: nothing of that may stay.
            *self = Matches { words, ..Matches::default() };
        }
        self.clear();
        self.emptied = emptied;
        &mut self.among
    }

    /// Who holds how much.
    pub(super) fn settle(&mut self, rows: &Rows, chain: &[u64]) {
        match self.words {
            1 => self.settle_words::<1>(rows, chain),
            2 => self.settle_words::<2>(rows, chain),
            4 => self.settle_words::<4>(rows, chain),
            8 => self.settle_words::<8>(rows, chain),
            _ => self.settle_words::<WORDS_MAX>(rows, chain),
        }
    }

    fn settle_words<const W: usize>(&mut self, rows: &Rows, chain: &[u64]) {
        (self.count, self.probes) = (0, 0);
        let mut rest: [u64; W] = self.among.first();
        let (mut gaps, mut split) = (&mut Gaps::whole(chain.len(), rest), &mut Gaps::none());
        while gaps.searched().iter().any(Gap::is_open) {
            // All depths of a round are prefetched before one is asked, so that their memory is waited for once.
            let depths = gaps.searched().iter().flat_map(Gap::depths);
            depths.for_each(|depth| rows.prefetch(chain[depth - 1]));
            gaps.split(split, |depth, among| {
                self.probes += 1;
                rows.holders(chain[depth - 1], among)
            });
            std::mem::swap(&mut gaps, &mut split);
        }
        let (searched, others) = gaps.all().split_at(gaps.searched().len());
        searched.iter().for_each(|gap| self.level(gap.from, gap.holders, &mut rest));
        let Some(deepest) = others.first() else { return };
        let (shared, holders) = self.shared(rows, &chain[..deepest.end as usize - 1], &rest);
        others.iter().filter(|gap| gap.from > shared).for_each(|gap| self.level(gap.from, gap.holders, &mut rest));
        self.level(shared, holders, &mut rest);
        others.iter().filter(|gap| gap.from <= shared).for_each(|gap| self.level(gap.from, gap.holders, &mut rest));
    }

    /// Of those of `rest` that hold anything of this chain: the depth that at least half of them reach, and these.
    fn shared<const W: usize>(&mut self, rows: &Rows, chain: &[u64], rest: &[u64; W]) -> (u32, [u64; W]) {
        let mut ask = |depth: usize| {
            self.probes += 1;
            rows.holders(chain[depth - 1], rest)
        };
        let mut holders = if chain.is_empty() { [0; W] } else { ask(1) };
        let half = count(&holders).div_ceil(2);
        if half == 0 {
            return (0, holders);
        }
        let prefetch = |depth: usize| rows.prefetch(chain[depth - 1]);
        let depth = deepest(1, chain.len() + 1, prefetch, |depth| {
            let here = ask(depth);
            let reached = count(&here) >= half;
            if reached {
                holders = here;
            }
            reached
        });
        (depth as u32, holders)
    }

    /// Counts those of `rest` that hold this much.
    #[inline]
    fn level<const W: usize>(&mut self, depth: u32, holders: [u64; W], rest: &mut [u64; W]) {
        let here = both(&holders, rest);
        if depth > 0 && !is_empty(&here) {
            let level = &mut self.levels[self.count];
            level.found = Found { blocks: depth, ..Found::default() };
            level.holders.of(&here);
            self.count += 1;
            *rest = array::from_fn(|word| rest[word] & !here[word]);
        }
    }
}

/// How many leading blocks of the chain it holds, and the last one's row.
pub(super) fn held(holder: Holder<'_>, chain: &[u64]) -> (usize, Option<Row>) {
    let mut last = None;
    let prefetch = |depth: usize| holder.rows.prefetch(chain[depth - 1]);
    let depth = deepest(0, chain.len() + 1, prefetch, |depth| {
        let row = holder.held(chain[depth - 1]);
        last = row.or(last);
        row.is_some()
    });
    (depth, last)
}

/// The deepest depth that is held: `from` is, `end` is not. All depths of a round are prefetched before one is asked.
#[inline]
fn deepest(mut from: usize, mut end: usize, prefetch: impl Fn(usize), mut held: impl FnMut(usize) -> bool) -> usize {
    while end.saturating_sub(from) > 1 {
        let depths = depths(from, end);
        depths.clone().for_each(&prefetch);
        for depth in depths {
            if !held(depth) {
                end = depth;
                break;
            }
            from = depth;
        }
    }
    from
}
