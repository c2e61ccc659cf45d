//! `warm`: the endpoint with the least work for this prompt, counted in tokens.
//!
//! An endpoint costs what it has to compute before this prompt's first token: what was sent there and has no first
//! token yet, this prompt less what its cache holds of it, and what those that decode there slow it down. Requests are
//! not the unit: policies that count them park short prompts behind long ones.
//!
//! A new token costs more where it pushes out what others will ask for, which is as likely as prompts are held at all:
//! by as much of the cache as was replaced within the last half minute, and where it is full beside one that is not.
//! That keeps what is used apart from what is not: prompts that nobody holds go where what they push out lay for
//! longest, as they would in one cache for all, and an engine that starts anew gets its part. Without it three prefixes
//! can share a cache for two, again and again, beside an empty one.
//!
//! A prefix that the requests at an endpoint share has to be computed only once at another, for all that follow there.
//! So it is no reason to stay: each request beyond an even part of the load costs a mean prompt, as far as they share.
//! Without that a prompt that stands before all others keeps them on one engine, until hundreds slow each other down
//! beside idle ones.
//!
//! An endpoint whose cache turned out not to hold what the index says ([`crate::fleet::Rung::Hash`]) counts as holding
//! nothing.
//!
//! Engines find a prompt in whole units of theirs. With most models these are smaller than what is wrong with an
//! estimate; those of hybrid models, thousands of tokens, are longer than many prompts, of which nothing is found then.

use crate::fleet::Loads;
use crate::index::{Found, Matches, STEPS};
use crate::limits::ENDPOINTS_MAX;
use crate::policy::best::Best;
use crate::policy::cache::{Cache, PARTS_BITS, parts};
use crate::policy::eligible::{Row, WHOLE};
use crate::policy::glance::{Glance, Noted};
use crate::policy::{Choice, Cost, Costs, Eligible, Policy, Pool, Reason, Request, Tokens};

/// What is known of a prompt that is chosen for by its tokens.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Its length.
    pub tokens: u32,
    /// Tokens in one block of its chain.
    pub block_tokens: f32,
    /// Who holds how many of its blocks.
    pub matches: &'a Matches,
    /// The block behind the longest match, or what stands for it: endpoints that cost the same are taken in the ring's
    /// order from there.
    pub tie: u64,
}

impl Prompt<'_> {
    /// Tokens that an engine finds by what was found of it: what it told itself is in whole units.
    pub(super) fn tokens_of(&self, found: Found, unit: u32) -> u32 {
        let length = self.length(found);
        if found.tokens.is_some() { length } else { self.in_units(length, unit) }
    }

    /// The same with what lies behind that, where so many blocks of the prompt were sent there.
    pub(super) fn tokens_with(&self, found: Found, sent: u32, unit: u32) -> u32 {
        let beyond = (sent as f32 - in_blocks(found)).max(0.0) * self.block_tokens;
        let length = (self.length(found) + beyond as u32).min(self.tokens);
        self.in_units(length, unit).max(self.tokens_of(found, unit))
    }

    /// Tokens in what was found of it.
    fn length(&self, found: Found) -> u32 {
        let from_bytes = || (in_blocks(found) * self.block_tokens) as u32;
        found.tokens.unwrap_or_else(from_bytes).min(self.tokens)
    }

    /// What an engine finds where so much is there, if its units are large: the last token is computed in any case.
    #[inline]
    fn in_units(&self, length: u32, unit: u32) -> u32 {
        if unit <= SMALL_UNIT {
            return length;
        }
        let most = length.min(self.tokens.saturating_sub(1));
        most - most % unit
    }

    /// This prompt at an endpoint that another policy chose.
    pub fn tokens_at(&self, pool: &Pool, slot: u16) -> Tokens {
        let found = self.matches.found(slot);
        let predicted = self.tokens_of(found, pool.match_unit);
        let sent = self.matches.sent().find(|(_, holders)| holders.contains(slot));
        let believed = sent.map_or(predicted, |(blocks, _)| self.tokens_with(found, blocks, pool.match_unit));
        let held = if pool.eligible().doubted().contains(&slot) { 0 } else { believed };
        Tokens { held, new: self.tokens - held, predicted }
    }
}

fn in_blocks(found: Found) -> f32 {
    found.blocks as f32 + found.steps as f32 / (STEPS + 1) as f32
}

/// Of units of so many tokens a part is no more than what a block of bytes leaves out.
const SMALL_UNIT: u32 = 64;
/// A new token of this prompt weighs as much as six that others wait for: it is certain work, and can still be avoided.
pub(super) const NEW: u64 = 6;
/// A decoding request counts as a fiftieth of a mean prompt,
const DECODES: u64 = 50;
/// and as five fiftieths, a tenth, of this prompt's new tokens, since it is held up while they are computed.
const HELD_UP: u64 = 5;
/// Beyond so many requests, at an endpoint of weight 1, it says nothing more: a hundred short ones would drive each
/// prompt away from what is cached of it.
const HELD_UP_MAX: u32 = 32;
/// So many requests beyond an even part of the load are chance.
const CHANCE: u64 = 4;
/// A full cache costs so many mean prompts, one without room some more. Were it more, sessions would leave what is
/// cached of them because one engine is a little fuller than another; were it less, they would gather where they met.
pub(super) const FULL: u64 = 4;
const NO_ROOM: u64 = 3;
/// How full a cache may be made where requests wait for room, in percent: by a prompt that it holds most of, and by
/// others. What is in use is known better there. The gap is what lets the next turn of a conversation in before another
/// begins; without it caches fill with beginnings.
const ROOM_WARM: u64 = 98;
const ROOM_COLD: u64 = 93;
/// See [`Work::even`]: finer than a request at the heaviest endpoint.
const EVEN_BITS: u32 = 24;
/// Slots for which half a KiB is enough to note what is seen of them: to clear the eight KiB for all takes longer than
/// to choose among eight.
const FEW: usize = 64;

/// The endpoint of least cost; among equals the first of the ring.
pub(super) fn least_work(
    policy: Policy,
    pool: &Pool,
    loads: &Loads,
    request: &Request<'_>,
    prompt: &Prompt<'_>,
) -> Option<Choice> {
    let eligible = pool.eligible();
    let (mut few, mut many);
    let noted: &mut [Noted] = match eligible.slots().last() {
        Some(slot) if usize::from(*slot) >= FEW => {
            many = [Noted::default(); ENDPOINTS_MAX];
            &mut many
        }
        _ => {
            few = [Noted::default(); FEW];
            &mut few
        }
    };
    let mean = u64::from(loads.mean_prompt(pool.id));
    let Glance { total, likely } = Glance::at(pool, loads, request, prompt, mean, noted);
    let theirs = theirs(eligible, total);
    // What others sent there the index knows only from events: as likely they have pushed it out already.
    let known = if policy == Policy::Precise { 1.0 } else { 1.0 - theirs };
    let displaces = NEW * u64::from(parts(known * loads.held_share(pool.id)));
    let even = (total << EVEN_BITS).div_ceil(eligible.weight().max(1));
    let others = Others::of(pool, loads, prompt, theirs, noted);
    let work = Work { eligible, loads, prompt, mean, even, displaces, noted, others };
    let mut best = Best::default();
    for slot in likely.into_iter().flatten() {
        let Some((row, cache)) = eligible.known(slot) else { continue };
        best.offer(slot, work.cost(slot, row, cache));
    }
    for (&slot, cache) in eligible.slots().iter().zip(eligible.caches()) {
        if !work.noted(slot).is_within(best.limit()) {
            continue;
        }
        let Some(row) = eligible.row(slot) else { continue };
        best.offer(slot, work.cost(slot, row, cache));
    }
    let slot = best.first_of_ring(pool, prompt.tie)?;
    let held = work.held(slot);
    let runner_up = best.runner_up(slot);
    let predicted = prompt.tokens_of(prompt.matches.found(slot), pool.match_unit);
    let (needs, room) = work.room(slot, u64::from(loads.mean_answer(pool.id)));
    let load = eligible.load(eligible.row(slot)?, slot, loads);
    let reason = if held > 0 { Reason::Warm } else { Reason::Cold };
    Some(Choice {
        runner_up,
        tokens: Some(Tokens { held, new: prompt.tokens - held, predicted }),
        costs: work.shown(slot).map(|chosen| Costs { chosen, runner_up: runner_up.and_then(|slot| work.shown(slot)) }),
        room,
        needs: needs.min(u32::MAX.into()) as u32,
        ..Choice::at(eligible, loads, slot, load, reason)
    })
}

/// The part of the requests there that other fronts sent, 0..=1.
fn theirs(eligible: &Eligible, total: u64) -> f32 {
    eligible.foreign() as f32 / total.max(1) as f32
}

/// What other fronts may have sent where. All fronts have the same ring and rule, so they agree without talking: a
/// prompt's home is the one endpoint that holds the longest part of it, else the first on the ring from its first new
/// block. The home is taken to hold the rest of the prompt too, with the probability that a request there is another
/// front's, times that with which prompts are held at all.
#[derive(Default)]
struct Others {
    home: Option<u16>,
    worth: u64,
}

impl Others {
    fn of(pool: &Pool, loads: &Loads, prompt: &Prompt<'_>, theirs: f32, noted: &mut [Noted]) -> Others {
        let eligible = pool.eligible();
        if theirs == 0.0 {
            return Others::default();
        }
        // The one that alone holds the longest part was its home, for other fronts as for us.
        let holds = |slot: &u16| noted.get(*slot as usize).is_some_and(|noted| noted.held > 0);
        let home = prompt.matches.alone().filter(holds).or_else(|| {
            let mut points = pool.ring.walk(prompt.tie).take(Others::STEPS_MAX);
            points.find(|slot| eligible.row(*slot).is_some())
        });
        let unknown = prompt.tokens - prompt.tokens_of(eligible.most(prompt.matches), pool.match_unit);
        let worth = (NEW as f32 * unknown as f32 * theirs * loads.held_share(pool.id)) as u64;
        if let Some(noted) = home.and_then(|slot| noted.get_mut(slot as usize)) {
            noted.costs_less(worth);
        }
        Others { home, worth }
    }

    /// Points of the ring that are looked at.
    const STEPS_MAX: usize = 64;

    fn discount(&self, slot: u16) -> u64 {
        if self.home == Some(slot) { self.worth } else { 0 }
    }
}

/// What this prompt would cost where.
struct Work<'a> {
    eligible: &'a Eligible,
    loads: &'a Loads,
    prompt: &'a Prompt<'a>,
    /// Tokens of the pool's mean prompt.
    mean: u64,
    /// The load over a hundredth of weight, were it even, in [`EVEN_BITS`].
    even: u64,
    /// What a token that is pushed out costs, in parts of a token: it may be that another prompt would have found it.
    displaces: u64,
    /// By slot.
    noted: &'a [Noted],
    others: Others,
}

impl Work<'_> {
    #[inline]
    fn noted(&self, slot: u16) -> Noted {
        self.noted.get(slot as usize).copied().unwrap_or_default()
    }

    /// Tokens of the prompt that the endpoint's cache is believed to hold.
    #[inline]
    fn held(&self, slot: u16) -> u32 {
        self.noted(slot).held
    }

    #[inline]
    fn cost(&self, slot: u16, row: &Row, cache: &Cache) -> u64 {
        self.terms(slot, row, cache).total(row)
    }

    // Always: handed back by memory and added up in pairs, the terms of each endpoint would wait for their own stores.
    #[inline(always)]
    fn terms(&self, slot: u16, row: &Row, cache: &Cache) -> Terms {
        let held = self.held(slot);
        let new = u64::from(self.prompt.tokens - held);
        let in_flight = self.eligible.load(row, slot, self.loads);
        let decoding = decoding(self.mean, new, row, in_flight) + self.uneven(row, cache, in_flight);
        let full = (FULL * self.mean * u64::from(cache.used)) >> PARTS_BITS;
        let is_warm = held >= self.prompt.tokens / 2;
        let room = in_flight == 0 || cache.has_room(new, is_warm, self.loads.dispatched(slot));
        let no_room = if room { 0 } else { NO_ROOM * self.mean };
        let others = self.others.discount(slot);
        let pushed_out = u128::from(self.displaces) * u128::from(self.pushed_out(slot, cache, new));
        let lost = (NEW - 1) * new + (pushed_out >> (2 * PARTS_BITS)) as u64;
        Terms { pending: self.loads.pending(slot), new, lost, decoding, full, no_room, others }
    }

    /// What the requests here beyond an even part of the load cost, as far as they share their prompts.
    #[inline]
    fn uneven(&self, row: &Row, cache: &Cache, in_flight: u32) -> u64 {
        let even = (self.even * u64::from(row.part())) >> EVEN_BITS;
        match u64::from(in_flight).saturating_sub(even + CHANCE) {
            0 => 0,
            beyond => ((u128::from(beyond * self.mean) * u128::from(cache.shared)) >> PARTS_BITS) as u64,
        }
    }

    /// How many useful tokens so many new ones push out. If no cache has room, it makes no difference that this one has
    /// none.
    fn pushed_out(&self, slot: u16, cache: &Cache, new: u64) -> u64 {
        let beside_room = if self.eligible.vacant() { cache.pushed_out(new, self.loads.dispatched(slot)) } else { 0 };
        (beside_room << PARTS_BITS) + u64::from(cache.turnover) * new
    }

    /// The terms of one cost, computed once more for the two that are reported: no other endpoint has to carry them
    /// along.
    fn shown(&self, slot: u16) -> Option<Cost> {
        let (row, cache) = self.eligible.known(slot)?;
        let terms = self.terms(slot, row, cache);
        let tokens = |tokens: u64| tokens.min(u32::MAX.into()) as u32;
        Some(Cost {
            pending: tokens(terms.pending),
            new: tokens(terms.new + terms.lost),
            decoding: tokens(terms.decoding),
            full: tokens(terms.full),
            no_room: tokens(terms.no_room),
            others: tokens(terms.others),
            total: tokens(terms.total(row)),
        })
    }

    /// See [`room`].
    fn room(&self, slot: u16, answer: u64) -> (u64, bool) {
        room(self.eligible, self.loads, self.prompt, (slot, self.held(slot)), answer)
    }
}

/// For waiting, not for the cost ([`Cache::has_room`]): tokens of the endpoint's cache that must be free for this
/// prompt, of which it holds `held`, and its answer (and a reserve, if it is cold), and whether they are free now
/// beside the requests in flight. They count as free if nothing runs there, if nothing is known of the cache, and for a
/// prompt as long as the whole cache: its engine refuses it, so it need not wait.
#[inline]
fn room(eligible: &Eligible, loads: &Loads, prompt: &Prompt<'_>, (slot, held): (u16, u32), answer: u64) -> (u64, bool) {
    eligible.known(slot).map_or((0, true), |(row, cache)| {
        let is_warm = held >= prompt.tokens / 2;
        let kept_free = if is_warm { 0 } else { (ROOM_WARM - ROOM_COLD) * cache.capacity / 100 };
        let needs = u64::from(prompt.tokens - held) + cache.idle_part(held) + answer + kept_free;
        let fits = cache.capacity == 0
            || u64::from(prompt.tokens) >= cache.capacity
            || eligible.load(row, slot, loads) == 0
            || 100 * (cache.occupied(loads.resident(slot)) + needs) <= ROOM_WARM * cache.capacity;
        (needs, fits)
    })
}

/// A choice that was made for another reason, with what the prompt is worth there and whether there is room for it: it
/// waits, and is paid for, as any.
#[cold]
pub(super) fn there(pool: &Pool, loads: &Loads, prompt: &Prompt<'_>, choice: Choice) -> Choice {
    let (slot, answer) = (choice.endpoint.slot, u64::from(loads.mean_answer(pool.id)));
    let tokens = prompt.tokens_at(pool, slot);
    let (needs, room) = room(pool.eligible(), loads, prompt, (slot, tokens.held), answer);
    Choice { tokens: Some(tokens), room, needs: needs.min(u32::MAX.into()) as u32, ..choice }
}

/// What the requests cost that decode at an endpoint, and are held up while `new` tokens are computed there. `mean`:
/// tokens of the pool's mean prompt.
#[inline]
pub(super) fn decoding(mean: u64, new: u64, row: &Row, in_flight: u32) -> u64 {
    let held_up = HELD_UP * new * u64::from(in_flight.min(HELD_UP_MAX * row.part() / WHOLE));
    (mean * u64::from(in_flight) + held_up) / DECODES
}

/// See [`Cost`], whose `new` is these two.
struct Terms {
    pending: u64,
    /// To be computed, which the prompt waits for,
    new: u64,
    /// and what it costs others besides, who may be anywhere.
    lost: u64,
    decoding: u64,
    full: u64,
    no_room: u64,
    others: u64,
}

impl Terms {
    /// What takes time is weighed, see [`Row::weighed`]. What is lost is not: a heavy endpoint would be worth waiting
    /// for until many times as much waits there as is computed anew beside it.
    #[inline]
    fn total(&self, row: &Row) -> u64 {
        let work = self.pending + self.new + self.decoding + self.full;
        (row.weighed(work) + self.lost + self.no_room).saturating_sub(self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_with_large_units_find_whole_ones() {
        let matches = Matches::default();
        let of = |tokens| Prompt { tokens, block_tokens: 1.0, matches: &matches, tie: 0 };
        let sent = |blocks| Found { blocks, ..Found::default() };
        let told = |tokens| Found { tokens: Some(tokens), ..sent(tokens) };
        let held = |tokens, blocks, unit| of(tokens).tokens_of(sent(blocks), unit);
        assert_eq!([0, 16, 64, 3_584].map(|unit| held(900, 800, unit)), [800, 800, 800, 0]);
        assert_eq!([528, 3_584, 8_320].map(|unit| held(9_000, 8_000, unit)), [7_920, 7_168, 0]);
        assert_eq!([64, 3_584].map(|unit| held(7_168, 7_168, unit)), [7_168, 3_584], "the last token is computed");
        assert_eq!([0, 1].map(|tokens| held(tokens, 9, 3_584)), [0, 0]);
        // What engines tell themselves stands, and what was sent there behind it goes by their units.
        assert_eq!(of(900).tokens_of(told(800), 3_584), 800);
        let with = |found, sent| of(9_000).tokens_with(found, sent, 3_584);
        assert_eq!(
            [with(told(3_584), 7_000), with(told(3_584), 8_000), with(told(8_000), 8_100)],
            [3_584, 7_168, 8_000]
        );
        assert_eq!([with(sent(3_000), 4_000), with(sent(800), 900), with(told(0), 800)], [3_584, 0, 0]);
        assert_eq!(of(9_000).tokens_with(told(800), 900, 16), 900);
    }
}
