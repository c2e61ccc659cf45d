//! The SGLang router's `cache_aware` and its successor smg's: one tree of all prompts sent, each node with the
//! engines that it was sent to.
//!
//! When loads differ by more than `balance_abs` requests and by more than a factor of `balance_rel`, the least
//! loaded engine is taken. Else the longest prefix in the tree counts: if it is more than the share `cache` of the
//! prompt, an engine of its last node is taken; if not, the engine with the smallest tree (SGLang's router) or
//! the least load (smg, since a miss to the smallest tree overloaded new engines). Every choice is
//! inserted. From time to time the least recently used leaves of engines with too large trees are cut.
//!
//! Their trees hold characters; four are one token here. Which of a node's engines is taken they leave to a hash
//! map's order; here it is the one that used it last.

use std::collections::HashMap;

use crate::engine::cache::ByHash;
use crate::engine::tokens::TOKEN_BYTES;
use crate::replay::chooser::{Asked, Chooser};
use crate::replay::fleet::Fleet;

/// Where a prompt goes of which too little is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// To the smallest tree.
    SmallestTree,
    /// To the least load.
    LeastLoad,
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
    /// What a miss does.
    pub miss: Miss,
}

/// Defaults of SGLang's first router (`sglang_router`, 2025).
pub const SGLANG: Thresholds = Thresholds {
    cache: 0.5,
    balance_abs: 32,
    balance_rel: 1.0001,
    evict_seconds: 60,
    tree_chars_max: 1 << 24,
    miss: Miss::SmallestTree,
};

/// Defaults of smg and the later `sgl-model-gateway` (2026).
pub const SMG: Thresholds = Thresholds {
    cache: 0.3,
    balance_abs: 64,
    balance_rel: 1.5,
    evict_seconds: 120,
    tree_chars_max: 1 << 26,
    miss: Miss::LeastLoad,
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
    /// Blocks by engine.
    sizes: Vec<u64>,
    load: Vec<u32>,
    placed: HashMap<u64, usize>,
    clock: u64,
    evicted_ns: u64,
}

impl PromptTree {
    /// An empty tree.
    pub fn new(engines: usize, thresholds: Thresholds) -> PromptTree {
        PromptTree {
            thresholds,
            nodes: ByHash::default(),
            sizes: vec![0; engines],
            load: vec![0; engines],
            placed: HashMap::new(),
            clock: 0,
            evicted_ns: 0,
        }
    }

    /// Blocks of a prompt that are in the tree, and who used the last of them last.
    fn matched(&self, blocks: &[u64]) -> (usize, Option<usize>) {
        let depth = blocks.iter().take_while(|block| self.nodes.contains_key(block)).count();
        let last = depth.checked_sub(1).and_then(|at| self.nodes.get(blocks.get(at)?));
        let holder = last.and_then(|holders| holders.iter().max_by_key(|holder| holder.used));
        (depth, holder.map(|holder| holder.engine.into()))
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

    /// Cuts leaves that were not used for longest until every engine's tree is small enough.
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
            // A node is used whenever what is below it is: by age, then from the bottom, leaves come first.
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

    fn least_loaded(&self) -> usize {
        (0..self.load.len()).min_by_key(|engine| self.load[*engine]).unwrap_or(0)
    }
}

impl Chooser for PromptTree {
    fn choose(&mut self, asked: &Asked, _fleet: &Fleet) -> Option<usize> {
        let thresholds = self.thresholds;
        if asked.now_ns.saturating_sub(self.evicted_ns) >= thresholds.evict_seconds * 1_000_000_000 {
            self.evicted_ns = asked.now_ns;
            self.evict(asked.block_tokens);
        }
        let blocks = asked.request.prompt_blocks(asked.block_tokens);
        let most = self.load.iter().max().copied().unwrap_or(0);
        let least = self.load.iter().min().copied().unwrap_or(0);
        let uneven =
            most - least > thresholds.balance_abs && f64::from(most) > f64::from(least) * thresholds.balance_rel;
        let (depth, holder) = self.matched(blocks);
        let share = depth as f64 * f64::from(asked.block_tokens) / f64::from(asked.request.prompt.max(1));
        let engine = match (holder, thresholds.miss) {
            _ if uneven => self.least_loaded(),
            (Some(holder), _) if share > thresholds.cache => holder,
            (_, Miss::LeastLoad) => self.least_loaded(),
            (_, Miss::SmallestTree) => (0..self.sizes.len()).min_by_key(|engine| self.sizes[*engine]).unwrap_or(0),
        };
        self.insert(blocks, engine);
        self.load[engine] += 1;
        self.placed.insert(asked.number, engine);
        Some(engine)
    }

    fn ended(&mut self, number: u64) {
        if let Some(engine) = self.placed.remove(&number) {
            self.load[engine] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::peers::trial::{Trial, prompt};

    fn trial(thresholds: Thresholds) -> Trial<PromptTree> {
        Trial::new(PromptTree::new(3, thresholds), 3)
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
            trial.chooser.ended(first);
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
            ([64, 0, 10], SMG, false),
            ([65, 0, 10], SMG, true),
            ([300, 201, 250], SMG, false), // 99 more, but less than half as much again
            ([300, 199, 250], SMG, true),
            ([33, 0, 10], SGLANG, true),
            ([32, 0, 10], SGLANG, false),
            ([300, 260, 270], SGLANG, true), // its factor is next to none
        ] {
            let mut trial = trial(thresholds);
            trial.chooser.insert(prompt(&[(1, 320)]).prompt_blocks(16), 0);
            trial.chooser.load = loads.to_vec();
            assert_eq!(trial.ask(&[(1, 320)]).1, if uneven { 1 } else { 0 }, "{loads:?}");
        }
    }

    #[test]
    fn of_several_holders_the_last_user_is_taken() {
        let mut trial = trial(SGLANG);
        let blocks = prompt(&[(1, 320)]);
        for engine in [2, 0, 1, 0, 2] {
            trial.chooser.insert(blocks.prompt_blocks(16), engine);
            assert_eq!(trial.chooser.matched(blocks.prompt_blocks(16)), (20, Some(engine)));
        }
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
