//! The SGLang router's `cache_aware` and its successor smg's: one tree of all prompts sent, each node with the
//! engines that it was sent to.
//!
//! SGLang's router (2025): when loads differ by more than `balance_abs` requests and by more than a factor of
//! `balance_rel`, the least loaded engine is taken. Else the longest prefix in the tree counts: if it is more than the
//! share `cache` of the prompt, an engine of its last node is taken; if not, the engine with the smallest tree.
//!
//! smg (the middle of August 2026): no rule is for the whole fleet. Of a longest prefix that is more than the share
//! `cache`, the least loaded of up to eight engines of its last node is taken, at random among equals. If that engine
//! has more requests than `balance_rel` times the mean and than `balance_abs` above it, or if the prefix is too short,
//! the least load of all is taken, among equals the engine that was sent fewest requests, then the first. Later
//! versions compare loads by waits that they expect from what engines tell every 10 s; that is not simulated.
//!
//! Every choice is inserted. From time to time the least recently used leaves of engines with too large trees are cut.
//!
//! These routers' trees hold characters; four are one token here. SGLang's router leaves it to a hash map's order which
//! of a node's engines is taken; here it is the one that used the node last. Which of equal loads or trees is taken, it
//! left to the first or to such an order, and its successors draw since July 2026: here they are drawn.

use super::best_of;
use crate::demo::conversation::Dice;
use crate::engine::cache::ByHash;
use crate::engine::tokens::TOKEN_BYTES;
use crate::replay::chooser::{Asked, Chooser, Placed, draws};
use crate::replay::fleet::Fleet;
use crate::replay::traffic::chain::mix;

/// Most engines of one node that smg's match tells of.
const HOLDERS_MAX: usize = 8;

/// Whose rule chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// SGLang's first router's.
    Sglang,
    /// smg's.
    Smg,
}

/// The flags of these routers.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// `--cache-threshold`.
    pub cache: f64,
    /// `--balance-abs-threshold`.
    pub balance_abs: u32,
    /// `--balance-rel-threshold`.
    pub balance_rel: f64,
    /// `--eviction-interval`.
    pub evict_seconds: u64,
    /// `--max-tree-size`, in characters of one engine.
    pub tree_chars_max: u64,
    /// The rule that uses these flags.
    pub rule: Rule,
}

/// Defaults of SGLang's first router (`sglang_router`, 2025).
pub const SGLANG: Thresholds = Thresholds {
    cache: 0.5,
    balance_abs: 32,
    balance_rel: 1.0001,
    evict_seconds: 60,
    tree_chars_max: 1 << 24,
    rule: Rule::Sglang,
};

/// Defaults of smg (2026).
pub const SMG: Thresholds = Thresholds {
    cache: 0.3,
    balance_abs: 64,
    balance_rel: 1.5,
    evict_seconds: 120,
    tree_chars_max: 1 << 26,
    rule: Rule::Smg,
};

/// One engine at one node.
#[derive(Clone, Copy)]
struct Holder {
    engine: u16,
    used: u64,
    depth: u32,
}

/// The tree, flat: a chained hash names a node and all above it.
pub struct PromptTree {
    thresholds: Thresholds,
    nodes: ByHash<Vec<Holder>>,
    /// Blocks of each engine.
    sizes: Vec<u64>,
    load: Vec<u32>,
    /// Requests ever sent to each engine.
    sent: Vec<u64>,
    dice: Dice,
    clock: u64,
    evicted_ns: u64,
}

impl PromptTree {
    /// An empty tree.
    pub fn new(engines: usize, thresholds: Thresholds, seed: u64) -> PromptTree {
        PromptTree {
            thresholds,
            nodes: ByHash::default(),
            sizes: vec![0; engines],
            load: vec![0; engines],
            sent: vec![0; engines],
            dice: Dice::new(mix(seed, draws::PROMPT_TREE)),
            clock: 0,
            evicted_ns: 0,
        }
    }

    /// Counts a prompt's first blocks that are in the tree, and returns the engines of the last of these.
    fn matched(&self, blocks: &[u64]) -> (usize, &[Holder]) {
        let depth = blocks.iter().take_while(|block| self.nodes.contains_key(block)).count();
        let last = depth.checked_sub(1).and_then(|at| self.nodes.get(blocks.get(at)?));
        (depth, last.map_or(&[], Vec::as_slice))
    }

    fn insert(&mut self, blocks: &[u64], engine: usize) {
        self.clock += 1;
        for (depth, block) in blocks.iter().enumerate() {
            let holders = self.nodes.entry(*block).or_default();
            match holders.iter_mut().find(|holder| usize::from(holder.engine) == engine) {
                Some(holder) => holder.used = self.clock,
                None => {
                    holders.push(Holder { engine: engine as u16, used: self.clock, depth: depth as u32 });
                    self.sizes[engine] += 1;
                }
            }
        }
    }

    /// Cuts the least recently used leaves until every engine's tree is small enough.
    fn evict(&mut self, block_tokens: u32) {
        let most = self.thresholds.tree_chars_max / (u64::from(block_tokens) * TOKEN_BYTES as u64);
        for engine in 0..self.sizes.len() {
            let surplus = self.sizes[engine].saturating_sub(most);
            if surplus == 0 {
                continue;
            }
            let mine = |holder: &Holder| usize::from(holder.engine) == engine;
            let mut leaves: Vec<_> = self
                .nodes
                .iter()
                .flat_map(|(block, holders)| holders.iter().filter(|holder| mine(holder)).map(move |one| (one, block)))
                .map(|(holder, block)| (holder.used, std::cmp::Reverse(holder.depth), *block))
                .collect();
            // A node is used whenever a node below it is: sorted by age, then from the bottom up, leaves come first.
            leaves.sort_unstable();
            for (_, _, block) in leaves.into_iter().take(surplus as usize) {
                if let Some(holders) = self.nodes.get_mut(&block) {
                    holders.retain(|holder| !mine(holder));
                    if holders.is_empty() {
                        self.nodes.remove(&block);
                    }
                    self.sizes[engine] -= 1;
                }
            }
        }
    }

    /// Chooses by SGLang's rule; `holders` are those of a long enough prefix, or none.
    fn by_fleet(&mut self, holders: &[Holder]) -> usize {
        let (load, sizes, thresholds) = (&self.load, &self.sizes, self.thresholds);
        let most = load.iter().max().copied().unwrap_or(0);
        let least = load.iter().min().copied().unwrap_or(0);
        let uneven =
            most - least > thresholds.balance_abs && f64::from(most) > f64::from(least) * thresholds.balance_rel;
        if uneven {
            return best_of(&mut self.dice, load.len(), |engine| f64::from(load[engine]));
        }
        let last = holders.iter().max_by_key(|holder| holder.used);
        match last {
            Some(holder) => holder.engine.into(),
            None => best_of(&mut self.dice, sizes.len(), |engine| sizes[engine] as f64),
        }
    }

    /// Chooses by smg's rule, with the same `holders`.
    fn by_request(&mut self, holders: &[Holder]) -> usize {
        let (load, sent, thresholds) = (&self.load, &self.sent, self.thresholds);
        let mean = f64::from(load.iter().sum::<u32>()) / load.len().max(1) as f64;
        let holders = &holders[..holders.len().min(HOLDERS_MAX)];
        let at = |place: usize| usize::from(holders[place].engine);
        if !holders.is_empty() {
            let holder = at(best_of(&mut self.dice, holders.len(), |place| f64::from(load[at(place)])));
            let load = f64::from(load[holder]);
            // If the least loaded holder has too many requests, all holders have.
            if load <= mean * thresholds.balance_rel || load <= mean + f64::from(thresholds.balance_abs) {
                return holder;
            }
        }
        (0..load.len()).min_by_key(|engine| (load[*engine], sent[*engine])).unwrap_or(0)
    }
}

impl Chooser for PromptTree {
    fn choose(&mut self, asked: &Asked, _fleet: &Fleet) -> Option<Placed> {
        let thresholds = self.thresholds;
        if asked.now_ns.saturating_sub(self.evicted_ns) >= thresholds.evict_seconds * 1_000_000_000 {
            self.evicted_ns = asked.now_ns;
            self.evict(asked.block_tokens);
        }
        let blocks = asked.request.prompt_blocks(asked.block_tokens);
        let (depth, holders) = self.matched(blocks);
        let share = depth as f64 * f64::from(asked.block_tokens) / f64::from(asked.request.prompt.max(1));
        let holders = if share > thresholds.cache { holders.to_vec() } else { Vec::new() };
        let engine = match thresholds.rule {
            Rule::Sglang => self.by_fleet(&holders),
            Rule::Smg => self.by_request(&holders),
        };
        self.insert(blocks, engine);
        self.load[engine] += 1;
        self.sent[engine] += 1;
        Some(engine.into())
    }

    fn ended(&mut self, _number: u64, engine: usize, _tokens: u32) {
        self.load[engine] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::replay::peers::trial::{Trial, prompt};

    fn trial(thresholds: Thresholds) -> Trial<PromptTree> {
        Trial::new(PromptTree::new(3, thresholds, 1), 3)
    }

    #[test]
    fn more_than_the_threshold_follows_the_prefix_whatever_is_left() {
        for (thresholds, shared, follows) in [
            (SGLANG, 160, false), // half of 320 is not more than half
            (SGLANG, 176, true),
            (SMG, 80, false), // a quarter
            (SMG, 112, true), // 0.35
        ] {
            let mut trial = trial(thresholds);
            let (first, home) = trial.ask(&[(1, 320)]);
            let (_, second) = trial.ask(&[(1, shared), (2, 320 - shared)]);
            assert_eq!(second == home, follows, "{shared} of 320 at {}", thresholds.cache);
            trial.chooser.ended(first, home, 1);
            assert_eq!(trial.ask(&[(1, 320)]).1, home, "the tree outlives its requests");
        }
    }

    #[test]
    fn a_miss_goes_to_the_smallest_tree_or_to_the_least_load() {
        // Sizes 20, 2, 4 blocks; loads 1, 1, 0.
        let prepared = |thresholds| {
            let mut trial = trial(thresholds);
            for (piece, tokens, engine) in [(1, 320, 0), (2, 32, 1), (3, 64, 2)] {
                trial.chooser.insert(prompt(&[(piece, tokens)]).prompt_blocks(16), engine);
            }
            trial.chooser.load = vec![1, 1, 0];
            trial
        };
        assert_eq!(prepared(SGLANG).ask(&[(9, 64)]).1, 1);
        assert_eq!(prepared(SMG).ask(&[(9, 64)]).1, 2);
    }

    #[test]
    fn uneven_means_by_the_absolute_and_by_the_relative_threshold() {
        for (loads, thresholds, uneven) in [
            ([96, 0, 0], SMG, false), // 64 above the mean of 32
            ([97, 0, 0], SMG, true),
            ([300, 120, 250], SMG, false), // 76 above it, but less than half as much again
            ([300, 90, 200], SMG, true),
            ([20, 90, 0], SMG, false), // others may have more
            ([33, 0, 10], SGLANG, true),
            ([32, 0, 10], SGLANG, false),
            ([300, 260, 270], SGLANG, true), // its factor is next to none
            ([0, 40, 1], SGLANG, true),      // the engine that has more
        ] {
            let mut trial = trial(thresholds);
            trial.chooser.insert(prompt(&[(1, 320)]).prompt_blocks(16), 0);
            trial.chooser.load = loads.to_vec();
            let least = (0..3).min_by_key(|engine| loads[*engine]).unwrap();
            assert_eq!(trial.ask(&[(1, 320)]).1, if uneven { least } else { 0 }, "{loads:?}");
        }
    }

    #[test]
    fn of_several_holders_the_last_user_is_taken_or_the_least_load() {
        let holding = |thresholds, seed, load: [u32; 3]| {
            let mut trial = Trial::new(PromptTree::new(3, thresholds, seed), 3);
            for engine in [2, 0, 1, 0] {
                trial.chooser.insert(prompt(&[(1, 320)]).prompt_blocks(16), engine);
            }
            trial.chooser.load = load.to_vec();
            trial.ask(&[(1, 320)]).1
        };
        assert_eq!(holding(SGLANG, 1, [9, 8, 7]), 0);
        assert_eq!(holding(SMG, 1, [9, 8, 7]), 2);
        let drawn: HashSet<usize> = (0..20).map(|seed| holding(SMG, seed, [4, 8, 4])).collect();
        assert_eq!(drawn, HashSet::from([0, 2]));
    }

    #[test]
    fn equal_loads_and_trees_are_no_reason_for_the_first() {
        let firsts = |thresholds| -> HashSet<usize> {
            let new = |seed| Trial::new(PromptTree::new(3, thresholds, seed), 3);
            (0..20).map(|seed| new(seed).ask(&[(1, 320)]).1).collect()
        };
        assert_eq!(firsts(SGLANG), HashSet::from([0, 1, 2]));
        assert_eq!(firsts(SMG), HashSet::from([0]));
        // Each ends before the next comes: loads are equal, and the engine that was sent fewest is next.
        let mut trial = trial(SMG);
        let homes: Vec<usize> = (1..7)
            .map(|piece| {
                let (number, engine) = trial.ask(&[(piece, 320)]);
                trial.chooser.ended(number, engine, 1);
                engine
            })
            .collect();
        assert_eq!(homes, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn eviction_cuts_the_oldest_leaves_first() {
        // Room for ten blocks of 64 characters an engine.
        let mut trial = trial(Thresholds { tree_chars_max: 640, ..SGLANG });
        let (old, new) = (&[(1, 64), (2, 64)], &[(1, 64), (3, 64)]);
        trial.chooser.insert(prompt(old).prompt_blocks(16), 0);
        trial.chooser.insert(prompt(new).prompt_blocks(16), 0);
        trial.chooser.insert(prompt(new).prompt_blocks(16), 1);
        assert_eq!(trial.chooser.sizes, [12, 8, 0]);
        trial.now_ns = 59_999_999_999;
        trial.ask(&[(8, 16)]);
        assert_eq!(trial.chooser.sizes[0], 12, "not before its time");
        trial.now_ns += 1;
        trial.ask(&[(9, 16)]);
        assert_eq!(trial.chooser.sizes[..2], [10, 8]);
        assert_eq!(trial.chooser.matched(prompt(old).prompt_blocks(16)).0, 6, "the last two of the older are gone");
        assert_eq!(trial.chooser.matched(prompt(new).prompt_blocks(16)).0, 8);
    }
}
