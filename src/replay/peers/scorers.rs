//! llm-d's endpoint picker with its default scorers: the greatest weighted sum wins, at random among ties.
//!
//! * `prefix-cache-scorer`, weight 3: the share of the prompt's blocks that it believes cached, in blocks of 64 characters
//!   and at most 256 of them, from what it sent where: 31,250 blocks an engine, least recently used go first.
//! * `queue-scorer`, weight 2: 1 for the shortest queue, 0 for the longest, all 1 where they are equal.
//! * `kv-cache-utilization-scorer`, weight 2: the free share of the KV cache.
//!
//! Queue and KV use are those of the last scrape, every 50 ms. It counts no requests of its own, so a burst
//! between two scrapes sees the same figures. Blocks are those of the traffic; their number is held to as many tokens.

use std::collections::BTreeMap;

use super::best_of;
use crate::demo::conversation::Dice;
use crate::engine::cache::ByHash;
use crate::engine::core::Figures;
use crate::replay::chooser::{Asked, Chooser};
use crate::replay::fleet::Fleet;
use crate::replay::traffic::chain::mix;

const PREFIX_WEIGHT: f64 = 3.0;
const QUEUE_WEIGHT: f64 = 2.0;
const KV_WEIGHT: f64 = 2.0;
const SCRAPE_NS: u64 = 50_000_000;
/// In tokens: 31,250 and 256 blocks of 64 characters.
const INDEX_TOKENS: u32 = 31_250 * 16;
const MATCH_TOKENS: u32 = 256 * 16;

/// Blocks believed on one engine.
#[derive(Default)]
struct Believed {
    used: ByHash<u64>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
}

impl Believed {
    fn add(&mut self, block: u64, most: usize) {
        self.clock += 1;
        if let Some(before) = self.used.insert(block, self.clock) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.clock, block);
        if self.used.len() > most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.used.remove(&oldest);
        }
    }
}

/// See the top of this file.
pub struct Scorers {
    believed: Vec<Believed>,
    queue: Vec<f64>,
    kv_use: Vec<f64>,
    dice: Dice,
}

impl Scorers {
    /// Nothing believed, nothing scraped.
    pub fn new(engines: usize, seed: u64) -> Scorers {
        Scorers {
            believed: (0..engines).map(|_| Believed::default()).collect(),
            queue: vec![0.0; engines],
            kv_use: vec![0.0; engines],
            dice: Dice::new(mix(seed, 7)),
        }
    }
}

impl Chooser for Scorers {
    fn choose(&mut self, asked: &Asked, fleet: &Fleet) -> Option<usize> {
        let in_blocks = |tokens: u32| (tokens / asked.block_tokens.max(1)).max(1) as usize;
        let prompt = asked.request.prompt_blocks(asked.block_tokens);
        let blocks = &prompt[..prompt.len().min(in_blocks(MATCH_TOKENS))];
        let longest = self.queue.iter().copied().fold(0.0, f64::max);
        let shortest = self.queue.iter().copied().fold(f64::INFINITY, f64::min);
        let score = |engine: usize| {
            let believed = &self.believed[engine].used;
            let matched = blocks.iter().take_while(|block| believed.contains_key(block)).count();
            let prefix = matched as f64 / blocks.len().max(1) as f64;
            let queue = match longest > shortest {
                true => (longest - self.queue[engine]) / (longest - shortest),
                false => 1.0,
            };
            PREFIX_WEIGHT * prefix + QUEUE_WEIGHT * queue + KV_WEIGHT * (1.0 - self.kv_use[engine])
        };
        let engine = best_of(&mut self.dice, fleet.len(), |engine| -score(engine));
        let most = in_blocks(INDEX_TOKENS);
        blocks.iter().for_each(|block| self.believed[engine].add(*block, most));
        Some(engine)
    }

    fn ended(&mut self, _number: u64) {}

    fn scrape_every_ns(&self) -> Option<u64> {
        Some(SCRAPE_NS)
    }

    fn scraped(&mut self, figures: &[Figures]) {
        self.queue = figures.iter().map(|one| one.waiting as f64).collect();
        self.kv_use = figures.iter().map(|one| one.kv_usage).collect();
    }
}
