//! Dynamo's KV router with its defaults: the least sum of prefill and decode blocks wins (overlap credit 1,
//! temperature 0), at random among ties.
//!
//! Prefill: the tokens of prompts sent there that have no first token yet, less those that were cached, and the
//! uncached rest of this prompt, in blocks. Decode: the distinct blocks of all prompts in flight there, this one
//! included. The router reads from KV events what an engine has cached; here these come without any delay.

use std::collections::HashMap;
use std::sync::Arc;

use super::best_of;
use crate::demo::conversation::Dice;
use crate::engine::cache::ByHash;
use crate::replay::chooser::{Asked, Chooser, Placed, draws};
use crate::replay::fleet::Fleet;
use crate::replay::traffic::chain::mix;

/// What is in flight on one engine.
#[derive(Default)]
struct Active {
    prefill_tokens: u64,
    /// How many requests use each block.
    blocks: ByHash<u32>,
    /// Last blocks that are not full, one for each request.
    partial: u64,
}

struct InFlight {
    engine: usize,
    uncached: u64,
    blocks: Arc<[u64]>,
    full: usize,
    partial: bool,
}

/// See the top of this file.
pub struct Overlap {
    active: Vec<Active>,
    placed: HashMap<u64, InFlight>,
    dice: Dice,
}

impl Overlap {
    /// Nothing in flight.
    pub fn new(engines: usize, seed: u64) -> Overlap {
        let active = (0..engines).map(|_| Active::default()).collect();
        Overlap { active, placed: HashMap::new(), dice: Dice::new(mix(seed, draws::OVERLAP)) }
    }
}

impl Chooser for Overlap {
    fn choose(&mut self, asked: &Asked, fleet: &Fleet) -> Option<Placed> {
        let (request, block_tokens) = (asked.request, asked.block_tokens);
        let blocks = request.prompt_blocks(block_tokens);
        let partial = !request.prompt.is_multiple_of(block_tokens);
        let uncached = |engine| {
            let cached = fleet.held(engine, blocks) as u64 * u64::from(block_tokens);
            u64::from(request.prompt).saturating_sub(cached)
        };
        let cost = |engine: usize| {
            let active = &self.active[engine];
            let prefill = (active.prefill_tokens + uncached(engine)) as f64 / f64::from(block_tokens);
            let new = blocks.iter().filter(|block| !active.blocks.contains_key(block)).count();
            prefill + (active.blocks.len() + new) as f64 + (active.partial + u64::from(partial)) as f64
        };
        let engine = best_of(&mut self.dice, fleet.len(), cost);
        let uncached = uncached(engine);
        let active = &mut self.active[engine];
        active.prefill_tokens += uncached;
        active.partial += u64::from(partial);
        blocks.iter().for_each(|block| *active.blocks.entry(*block).or_default() += 1);
        let (full, blocks) = (blocks.len(), Arc::clone(&request.blocks));
        self.placed.insert(asked.number, InFlight { engine, uncached, blocks, full, partial });
        Some(engine.into())
    }

    fn first_token(&mut self, number: u64) {
        if let Some(placed) = self.placed.get_mut(&number) {
            self.active[placed.engine].prefill_tokens -= std::mem::take(&mut placed.uncached);
        }
    }

    fn ended(&mut self, number: u64, _engine: usize, _tokens: u32) {
        let Some(placed) = self.placed.remove(&number) else { return };
        let active = &mut self.active[placed.engine];
        active.partial -= u64::from(placed.partial);
        for block in placed.blocks.iter().take(placed.full) {
            if let Some(uses) = active.blocks.get_mut(block) {
                *uses -= 1;
                if *uses == 0 {
                    active.blocks.remove(block);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::peers::trial::Trial;

    #[test]
    fn prefill_left_and_active_blocks_add_up() {
        let mut trial = Trial::new(Overlap::new(2, 1), 2);
        trial.compute(0, &[(1, 320)]);
        // Engine 0 holds 20 blocks of A: 0 prefill + 20 decode blocks against 20 + 20.
        let (a, first) = trial.ask(&[(1, 320)]);
        assert_eq!(first, 0);
        assert_eq!(trial.chooser.active[0].prefill_tokens, 0);
        // Again A: 20 active blocks are shared, so 20 against 40 still.
        let (b, second) = trial.ask(&[(1, 320)]);
        assert_eq!((second, trial.chooser.active[0].blocks.len()), (0, 20));
        // C, new: 20 + 40 on engine 0, 20 + 20 on engine 1.
        let (c, third) = trial.ask(&[(2, 320)]);
        assert_eq!((third, trial.chooser.active[1].prefill_tokens), (1, 320));
        // D shares half with A: 10 + 30 on engine 0; 20 + 20 prefill and 40 decode on engine 1.
        assert_eq!(trial.ask(&[(1, 160), (4, 165)]).1, 0);
        assert_eq!((trial.chooser.active[0].prefill_tokens, trial.chooser.active[0].partial), (165, 1));
        trial.chooser.first_token(c);
        assert_eq!(trial.chooser.active[1].prefill_tokens, 0);
        [(a, first), (b, second), (c, third)]
            .iter()
            .for_each(|(number, engine)| trial.chooser.ended(*number, *engine, 1));
        let left: Vec<_> = trial.chooser.active.iter().map(|one| (one.blocks.len(), one.prefill_tokens)).collect();
        assert_eq!(left, [(20, 165), (0, 0)]);
    }

    #[test]
    fn a_request_that_ends_leaves_no_prefill_behind() {
        let mut trial = Trial::new(Overlap::new(1, 1), 1);
        let (number, engine) = trial.ask(&[(1, 100)]);
        trial.chooser.first_token(number);
        trial.chooser.first_token(number);
        trial.chooser.ended(number, engine, 1);
        trial.chooser.ended(number, engine, 1);
        let active = &trial.chooser.active[0];
        assert_eq!((active.prefill_tokens, active.blocks.len(), active.partial), (0, 0, 0));
    }
}
