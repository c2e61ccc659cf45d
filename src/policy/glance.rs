//! What is seen of each endpoint at a glance: how much of a prompt it holds, and what the prompt costs there at least.
//!
//! That is a lower bound, from one table: the whole cost needs three, and a choice looks at hundreds. The two
//! endpoints with the lowest bounds are computed in full first; whoever's bound is above their costs is left out.

use crate::fleet::Loads;
use crate::policy::cache::PARTS_BITS;
use crate::policy::warm::{FULL, NEW, Prompt, decoding};
use crate::policy::{Pool, Request};

/// What is noted of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    /// Tokens of the prompt that its cache is believed to hold.
    pub(super) held: u32,
    /// What the prompt costs there at least; [`LEFT_OUT`] where it does not go there.
    at_least: u32,
}

/// Above all costs.
const LEFT_OUT: u32 = u32::MAX;

impl Default for Noted {
    fn default() -> Noted {
        Noted { held: 0, at_least: LEFT_OUT }
    }
}

impl Noted {
    /// Whether the endpoint may cost no more than this.
    #[inline]
    pub(super) fn is_within(self, cost: u64) -> bool {
        self.at_least != LEFT_OUT && u64::from(self.at_least) <= cost
    }

    /// The prompt costs so much less there.
    pub(super) fn costs_less(&mut self, worth: u64) {
        if self.at_least != LEFT_OUT {
            self.at_least = u64::from(self.at_least).saturating_sub(worth) as u32;
        }
    }
}

/// What is seen of all, beside what is noted of each.
pub(super) struct Glance {
    /// Load over all that are eligible, ours and foreign.
    pub(super) total: u64,
    /// The two that cost least, by what is noted. They are looked at by their whole cost, and noted as left out.
    pub(super) likely: [Option<u16>; 2],
}

impl Glance {
    /// Writes what is seen, by slot, given the tokens of the pool's mean prompt. Written where it is read: to copy
    /// eight KiB takes longer than to choose among eight.
    pub(super) fn at(
        pool: &Pool,
        loads: &Loads,
        request: &Request<'_>,
        prompt: &Prompt<'_>,
        mean: u64,
        noted: &mut [Noted],
    ) -> Glance {
        note_held(pool, prompt, noted);
        let eligible = pool.eligible();
        let full = (FULL * mean * u64::from(eligible.least_used())) >> PARTS_BITS;
        let mut seen = Glance { total: 0, likely: [None; 2] };
        let mut least = [LEFT_OUT; 2];
        for &slot in eligible.slots() {
            let Some((row, noted)) = eligible.row(slot).zip(noted.get_mut(slot as usize)) else { continue };
            let in_flight = eligible.load(row, slot, loads);
            seen.total += u64::from(in_flight);
            if eligible.was_tried(&request.avoid, slot) || eligible.at_cap(row, slot, loads) {
                continue;
            }
            let new = u64::from(prompt.tokens - noted.held);
            let work = loads.pending(slot) + new + decoding(mean, new, row, in_flight) + full;
            noted.at_least = (row.weighed(work) + (NEW - 1) * new).min(u64::from(LEFT_OUT - 1)) as u32;
            if noted.at_least < least[1] {
                (least[1], seen.likely[1]) = (noted.at_least, Some(slot));
                if least[1] < least[0] {
                    least.swap(0, 1);
                    seen.likely.swap(0, 1);
                }
            }
        }
        for slot in seen.likely.into_iter().flatten() {
            noted[slot as usize].at_least = LEFT_OUT;
        }
        seen
    }
}

/// Tokens held, as far as is believed.
fn note_held(pool: &Pool, prompt: &Prompt<'_>, noted: &mut [Noted]) {
    for (found, holders) in prompt.matches.levels_in_steps() {
        let tokens = prompt.tokens_of(found, pool.match_unit);
        for slot in holders.slots() {
            if let Some(known) = noted.get_mut(slot as usize) {
                known.held = tokens;
            }
        }
    }
    for (blocks, holders) in prompt.matches.sent() {
        for slot in holders.slots() {
            if let Some(known) = noted.get_mut(slot as usize) {
                known.held = prompt.tokens_with(prompt.matches.found(slot), blocks, pool.match_unit);
            }
        }
    }
    for slot in pool.eligible().doubted() {
        if let Some(known) = noted.get_mut(*slot as usize) {
            known.held = 0;
        }
    }
}
