//! llm-d's endpoint picker with its default scorers: the greatest weighted sum wins, at random among ties.
//!
//! * `prefix-cache-scorer`, weight 3: the share of the prompt's blocks that it believes cached, from what it sent
//!   where. Blocks are the engine's, but of at least 64 tokens; a last block that is not full counts as well; at most
//!   131,072 tokens of a prompt are matched. It believes as many of its blocks cached on an engine as the engine has
//!   blocks of its own, which may be smaller; the least recently used go first.
//! * `queue-scorer`, weight 2: 1 for the shortest queue, 0 for the longest, 1 for all if they are equal.
//! * `kv-cache-utilization-scorer`, weight 2: the free share of the KV cache.
//!
//! Queue and KV use are those of the last scrape, every 50 ms. It counts no requests of its own, so a burst
//! between two scrapes sees the same figures.
//!
//! This is llm-d-router since June 2026; before, no more than 4,096 tokens were matched. Its guides use other scorers
//! since July.

use std::collections::BTreeMap;

use super::best_of;
use crate::demo::conversation::Dice;
use crate::engine::cache::ByHash;
use crate::engine::core::Figures;
use crate::replay::chooser::{Asked, Chooser, Placed, draws};
use crate::replay::fleet::Fleet;
use crate::replay::traffic::chain::mix;

const PREFIX_WEIGHT: f64 = 3.0;
const QUEUE_WEIGHT: f64 = 2.0;
const KV_WEIGHT: f64 = 2.0;
const SCRAPE_NS: u64 = 50_000_000;
/// Fewest tokens in one block of the picker's.
const BLOCK_TOKENS_MIN: u32 = 64;
/// Most tokens of a prompt that are matched.
const MATCH_TOKENS: u32 = 131_072;

/// Blocks believed on one engine.
struct Believed {
    used: ByHash<u64>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
    /// Blocks of the engine's cache.
    most: usize,
}

impl Believed {
    fn new(most: usize) -> Believed {
        Believed { used: ByHash::default(), by_use: BTreeMap::new(), clock: 0, most }
    }

    fn add(&mut self, block: u64) {
        self.clock += 1;
        if let Some(before) = self.used.insert(block, self.clock) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.clock, block);
        if self.used.len() > self.most
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
    /// Starts with nothing believed and nothing scraped. An engine's cache has `blocks` times its weight: the engine
    /// tells how many blocks it has, though the weights stay unknown.
    pub fn new(weights: &[u32], blocks: u32, seed: u64) -> Scorers {
        let engines = weights.len();
        let most = |weight: &u32| blocks.saturating_mul(*weight).max(1) as usize;
        Scorers {
            believed: weights.iter().map(|weight| Believed::new(most(weight))).collect(),
            queue: vec![0.0; engines],
            kv_use: vec![0.0; engines],
            dice: Dice::new(mix(seed, draws::SCORERS)),
        }
    }
}

/// The prompt's blocks of the picker's size, by hash.
fn blocks(asked: &Asked) -> Vec<u64> {
    let each = BLOCK_TOKENS_MIN.div_ceil(asked.block_tokens.max(1)).max(1);
    let (tokens, in_block) = (asked.request.prompt, each * asked.block_tokens.max(1));
    let prompt = asked.request.prompt_blocks(asked.block_tokens);
    let full = prompt.chunks_exact(each as usize).filter_map(<[u64]>::last).copied();
    let unknown = || match tokens < asked.block_tokens {
        true => 0,
        // Of a log's line without a chain: it is nobody else's, however many are as long.
        false => asked.request.session.unwrap_or(asked.number),
    };
    // Prompts of equal length with equal whole blocks are taken for the same.
    let before = || prompt.last().copied().unwrap_or_else(unknown);
    let rest = (!tokens.is_multiple_of(in_block)).then(|| mix(before(), tokens.into()));
    full.chain(rest).take((MATCH_TOKENS / in_block).max(1) as usize).collect()
}

impl Chooser for Scorers {
    fn choose(&mut self, asked: &Asked, fleet: &Fleet) -> Option<Placed> {
        let blocks = blocks(asked);
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
        blocks.iter().for_each(|block| self.believed[engine].add(*block));
        Some(engine.into())
    }

    fn ended(&mut self, _number: u64, _engine: usize, _tokens: u32) {}

    fn scrape_every_ns(&self) -> Option<u64> {
        Some(SCRAPE_NS)
    }

    fn scraped(&mut self, _now_ns: u64, figures: &[Figures]) {
        self.queue = figures.iter().map(|one| one.waiting as f64).collect();
        self.kv_use = figures.iter().map(|one| one.kv_usage).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::peers::trial::{Trial, prompt};
    use crate::replay::traffic::Request;

    fn asked(request: &Request) -> Asked<'_> {
        Asked { number: 0, now_ns: 0, request, block_tokens: 16, tenant: 0 }
    }

    /// Scraped before the first request: waiting requests and KV use by engine.
    fn scraped(figures: [(usize, f64); 3]) -> Trial<Scorers> {
        let mut trial = Trial::new(Scorers::new(&[1; 3], 5_500, 1), 3);
        let figures = figures.map(|(waiting, kv_usage)| Figures { waiting, kv_usage, ..Figures::default() });
        trial.chooser.scraped(0, &figures);
        trial
    }

    #[test]
    fn the_weighted_sum_decides() {
        // Of 640 tokens so many are believed on engine 0. The score is 3 x prefix share + 2 x queue + 2 x free KV.
        for (shared, figures, expected) in [
            (640, [(0, 0.0), (0, 0.0), (0, 0.9)], 0),
            (640, [(5, 0.5), (0, 0.0), (5, 0.9)], 0), // 3 + 0 + 1 against 0 + 2 + 2: a tie is drawn
            (640, [(5, 0.6), (0, 0.0), (5, 0.9)], 1), // 3.8 against 4
            (320, [(0, 0.8), (0, 0.0), (9, 0.9)], 1), // 1.5 + 2 + 0.4 against 4
            (320, [(0, 0.7), (0, 0.0), (9, 0.9)], 0), // 1.5 + 2 + 0.6
            (368, [(0, 0.8), (0, 0.0), (9, 0.9)], 1), // of a block of 64 tokens three quarters are nothing
            (0, [(2, 0.0), (1, 0.0), (4, 0.0)], 1),   // queues 2/3 and 1
        ] {
            let mut seen = std::collections::HashSet::new();
            for seed in 0..20 {
                let mut trial = scraped(figures);
                trial.chooser.dice = Dice::new(seed);
                let known = prompt(&[(1, shared)]);
                blocks(&asked(&known)).iter().for_each(|block| trial.chooser.believed[0].add(*block));
                seen.insert(trial.ask(&[(1, shared), (2, 640 - shared)]).1);
            }
            let tie = figures[0] == (5, 0.5);
            assert!(
                seen.contains(&expected) && seen.len() == if tie { 2 } else { 1 },
                "{shared} {figures:?}: {seen:?}"
            );
        }
    }

    #[test]
    fn its_own_requests_are_no_load_until_the_next_scrape() {
        let mut trial = scraped([(3, 0.2), (0, 0.1), (3, 0.2)]);
        for piece in 1..50 {
            assert_eq!(trial.ask(&[(piece, 320)]).1, 1);
        }
    }

    #[test]
    fn a_prompt_is_known_up_to_131_072_tokens_in_blocks_of_64() {
        let count = |pieces: &[(u64, u32)]| blocks(&asked(&prompt(pieces))).len();
        assert_eq!([64, 63, 65, 640, 650].map(|tokens| count(&[(1, tokens)])), [1, 1, 2, 10, 11]);
        assert_eq!([131_072, 140_000].map(|tokens| count(&[(1, tokens)])), [2_048, 2_048]);
        let large = prompt(&[(1, 1_100)]);
        assert_eq!(
            blocks(&Asked { block_tokens: 512, ..asked(&large) }).len(),
            3,
            "the engine's, where they are larger"
        );
        let mut trial = scraped([(0, 0.0), (0, 0.5), (0, 0.5)]);
        assert_eq!(trial.ask(&[(1, 16_000), (2, 4_000)]).1, 0);
        trial.chooser.kv_use = vec![0.9, 0.0, 0.9];
        assert_eq!(trial.ask(&[(1, 16_000), (3, 4_000)]).1, 0, "2.4 + 0.2 against 2");
        assert_eq!(trial.ask(&[(1, 8_000), (3, 12_000)]).1, 1, "1.2 + 0.2 against 2");
    }

    #[test]
    fn prompts_of_which_nothing_is_known_share_nothing() {
        let unknown = |session, tokens| Request { blocks: [].into(), session, ..prompt(&[(1, tokens)]) };
        let of = |number, request: &Request| blocks(&Asked { number, ..asked(request) });
        assert_ne!(of(1, &unknown(Some(1), 2_000)), of(2, &unknown(Some(2), 2_000)));
        assert_ne!(of(1, &unknown(None, 2_000)), of(2, &unknown(None, 2_000)));
        assert_eq!(of(1, &unknown(Some(1), 2_000)), of(2, &unknown(Some(1), 2_000)));
        assert_eq!(of(1, &unknown(Some(1), 15)), of(2, &unknown(Some(2), 15)), "they are shorter than a block");
    }

    #[test]
    fn an_engine_is_believed_to_hold_as_many_as_it_has_blocks() {
        for (weights, most) in [([1, 1, 1], 20), ([4, 1, 1], 80), ([1, 4, 4], 20)] {
            let mut trial = Trial::new(Scorers::new(&weights, 20, 1), 3);
            trial.chooser.kv_use = vec![0.0, 0.9, 0.9];
            for piece in 1..10 {
                assert_eq!(trial.ask(&[(piece, 640)]).1, 0);
            }
            assert_eq!(trial.chooser.believed[0].used.len(), most, "{weights:?}");
        }
    }

    #[test]
    fn what_was_used_longest_ago_is_forgotten_first() {
        let mut believed = Believed::new(3);
        for block in [1, 2, 3, 1, 4] {
            believed.add(block);
        }
        let mut held: Vec<u64> = believed.used.keys().copied().collect();
        held.sort_unstable();
        assert_eq!((held, believed.by_use.len()), (vec![1, 3, 4], 3));
    }
}
