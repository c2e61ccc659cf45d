//! Room for answers. What an engine generates lies in its cache like what it was asked, and something else goes for it;
//! but only the next turn of a conversation names it, as a part of its prompt. Until then blocks stand for it that are
//! named after the prompt's last, as many as answers take in the mean.
//!
//! An index of prompts alone takes engines to hold what went long ago, and the more so the longer answers are: in a
//! replay of prompts of 7,200 tokens and answers of 1,000 the mean TTFT of `warm` at the fleet's limit was eight times
//! what it is with them.
//!
//! Prompts that end alike share one answer: where that counts too little, the index believes as if there were no such
//! blocks.

use super::ledger::Ledger;
use super::rows::Holder;
use super::{Index, Inserted, Missed, Origin};
use crate::atomics::Ordering;
use crate::fleet::EndpointId;

/// No answer is taken to be longer, however long the mean: 64 KiB of text, and some 25 µs of a shard to note.
pub const ANSWER_BLOCKS_MAX: usize = 256;

/// Lets so many blocks that stand for its answer follow a prompt, [`ANSWER_BLOCKS_MAX`] at most. A prompt without a
/// block has nothing to name them after.
pub fn expect_answer(prompt: &mut Vec<u64>, blocks: usize) {
    let Some(&last) = prompt.last() else { return };
    prompt.extend((0..blocks.min(ANSWER_BLOCKS_MAX) as u64).map(|at| stand_in(last, at)));
}

/// The name of an answer's block in this place. The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a few of its
/// bits choose a row.
fn stand_in(last: u64, at: u64) -> u64 {
    let mut name = last ^ (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    name = (name ^ name >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    name = (name ^ name >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    name ^ name >> 31
}

impl Index {
    /// A shard has chosen the endpoint for this prompt, whose answer will take so many blocks more. What its engine
    /// tells itself is only `promised`: see [`Index::promise`]. The prompt is lengthened meanwhile.
    pub fn ask(
        &self,
        prompt: &mut Vec<u64>,
        answer_blocks: usize,
        id: EndpointId,
        promised: bool,
    ) -> Result<Inserted, Missed> {
        let prompt_blocks = prompt.len();
        expect_answer(prompt, answer_blocks);
        let inserted = match promised {
            true => self.promise(prompt, id, self.second()),
            false => self.insert(prompt, id, Origin::Choice),
        };
        prompt.truncate(prompt_blocks);
        if let (Ok(Inserted { before, now, .. }), Some(seat)) = (&inserted, self.seats.get(id.slot as usize)) {
            let expected = u64::from(*now).saturating_sub((*before as usize).max(prompt_blocks) as u64);
            // The ledger is let go: another shard may count at the same time.
            seat.expected.fetch_add(expected, Ordering::Relaxed);
        }
        inserted
    }
}

/// The first `held` of these links are; where an answer was expected behind them something else follows now, probably
/// that answer and more. What stood for it goes. Answers how many blocks that were.
pub(super) fn came(holder: Holder<'_>, ledger: &mut Ledger, links: &[u64], held: usize) -> u32 {
    let (Some(&next), Some(&last)) = (links.get(held), held.checked_sub(1).and_then(|at| links.get(at))) else {
        return 0;
    };
    let expected = stand_in(last, 0);
    match holder.held(expected).filter(|_| next != expected) {
        Some(row) => ledger.remove(holder, row),
        None => 0,
    }
}
