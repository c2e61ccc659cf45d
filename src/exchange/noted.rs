//! What an endpoint will hold once a prompt was sent there, noted in the index.

use std::num::NonZeroU64;

use super::event::Context;
use super::{Exchange, Lender};
use crate::counters::stats::{Count, ShardStats};
use crate::fleet::EndpointId;
use crate::index::{Index, Missed};
use crate::limits::BLOCK_BYTES;

/// A prompt may be so many times longer, by a mean prompt's tokens, than it is.
const GUESS_FACTOR: f64 = 2.0;

/// The first block of a prompt that was not held there before, in its chain and in that of all of it where that is kept
/// beside. One of the name 0 would not be told of.
pub(super) type FirstNew = [Option<NonZeroU64>; 2];

impl Exchange {
    /// The endpoint will hold this prompt and the answer to it. What an engine tells itself holds only until that
    /// shows, and is never taken back; it tells nothing of what the client wrote, so that this stays until its room is
    /// another's. Answers what is to be taken back where it is not computed.
    pub(super) fn note_prompt(
        &self,
        endpoint: EndpointId,
        block_tokens: f32,
        rendered: bool,
        is_exact: bool,
        cx: &mut Context<'_>,
    ) -> FirstNew {
        let index = cx.snapshot.index.as_ref().filter(|_| self.may_be_held(block_tokens, cx));
        let Some(index) = index else { return FirstNew::default() };
        // An engine that tells what it holds tells of answers too.
        let answer = if is_exact { 0 } else { self.answer_blocks(cx) };
        let (stats, Lender { chain, whole, .. }) = (cx.stats, &mut *cx.lender);
        let is_part = !whole.is_empty();
        let behind = if is_part { 0 } else { answer };
        let first = ask(index, chain, behind, endpoint, rendered, stats).filter(|_| !is_exact);
        let of_whole = if is_part { ask(index, whole, answer, endpoint, false, stats) } else { None };
        [first, of_whole]
    }

    /// Whether the prompt that was cut can lie in a cache, as long as it is: what is far too long for its model is
    /// refused, and would push out all that is known of its endpoint. How many tokens it is is a guess.
    fn may_be_held(&self, block_tokens: f32, cx: &Context<'_>) -> bool {
        let pool = self.pool_in(cx.snapshot);
        let tokens = cx.lender.blocks() as f64 * f64::from(block_tokens);
        pool.is_none_or(|pool| tokens <= GUESS_FACTOR * f64::from(pool.context))
    }

    /// Blocks that the answer will probably take in its engine's cache, with what of the prompt is no whole block.
    fn answer_blocks(&self, cx: &Context<'_>) -> usize {
        let Some(pool) = self.pool_in(cx.snapshot) else { return 0 };
        let answer = f64::from(cx.counters.loads().mean_answer(pool.id.0)) * f64::from(pool.token_bytes);
        let in_blocks = (cx.lender.blocks() * BLOCK_BYTES) as u64;
        (cx.lender.prompt_bytes.saturating_sub(in_blocks) as f64 + answer) as usize / BLOCK_BYTES
    }
}

/// Notes one chain, and so many blocks of an answer behind it. Answers the first block that was not held there before.
fn ask(
    index: &Index,
    chain: &mut Vec<u64>,
    answer: usize,
    endpoint: EndpointId,
    promised: bool,
    stats: &ShardStats,
) -> Option<NonZeroU64> {
    match index.ask(chain, answer, endpoint, promised) {
        Ok(inserted) => chain.get(inserted.before as usize).copied().and_then(NonZeroU64::new),
        Err(Missed::Busy) => {
            stats.count(Count::IndexBusy);
            None
        }
        // Beyond the index, or taken out since this turn's snapshot.
        Err(Missed::Stranger | Missed::Orphan) => {
            stats.count(Count::IndexStranger);
            None
        }
    }
}
