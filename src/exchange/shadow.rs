//! Shadow policies: what a second policy would have chosen is counted, and nothing is sent there.
//!
//! A choice of a pool that has one leaves here what it knew. The shard looks at it once the actions of its turn are with the
//! kernel, so that no request waits for it. What differs from the moment of the choice: loads are those of some
//! microseconds later, less this request's own; they have the requests that were chosen for in the same turn behind it, and
//! what ended since is gone.

use super::event::Context;
use super::warm::LookedUp;
use super::{Exchange, choose};
use crate::counters::stats::{ShardStats, Shadowed};
use crate::counters::{Counters, Own, Without};
use crate::fleet::{EndpointId, Loads};
use crate::index::Matches;
use crate::policy::{self, Policy, Tokens};
use crate::snapshot::{Pool, Snapshot};

/// Most choices of one turn that are looked at; some 5 KiB are kept for each.
pub const SHADOWS_MAX: usize = 16;

/// Choices that a second policy is to be asked about. Nothing is allocated once it was full.
#[derive(Debug, Default)]
pub struct Shadows {
    /// The first `waiting` of them wait; the others are there to be used again.
    choices: Vec<Made>,
    waiting: usize,
    without: Without,
}

/// A choice that was made, and what was known for it.
#[derive(Debug)]
struct Made {
    policy: Policy,
    endpoint: EndpointId,
    own: Own,
    key: Option<u64>,
    session: Option<u64>,
    unscannable: bool,
    random: u64,
    turn: u64,
    looked_up: Option<LookedUp>,
    /// Of before the prompt was noted for the endpoint that was chosen. Its own where the prompt was not looked up.
    matches: Option<Box<Matches>>,
}

impl Shadows {
    /// Whether any choice waits to be looked at.
    #[inline]
    pub fn any(&self) -> bool {
        self.waiting > 0
    }

    /// Asks about all that wait. The snapshot is that of the turn in which they were made.
    pub fn look(&mut self, snapshot: &Snapshot, counters: &Counters, stats: &ShardStats) {
        let waiting = std::mem::take(&mut self.waiting);
        for made in self.choices.iter().take(waiting) {
            if let Some(pool) = snapshot.pools.get(usize::from(made.own.pool)) {
                made.compare(pool, &mut self.without, counters, stats);
            }
        }
    }
}

impl Made {
    fn compare(&self, pool: &Pool, without: &mut Without, counters: &Counters, stats: &ShardStats) {
        let count = |what, n| stats.shadow(self.own.pool, self.policy, what, n);
        let loads = without.of(counters.loads(), pool.eligible().slots(), &self.own);
        let prompt = self.looked_up.zip(self.matches.as_deref()).map(|(prompt, matches)| prompt.prompt(matches));
        let request = policy::Request {
            prompt,
            key: self.key,
            unscannable: self.unscannable,
            session: self.session,
            random: self.random,
            turn: self.turn,
            ..policy::Request::default()
        };
        let Ok(choice) = choose::open(self.policy, pool, loads, counters.outcomes(), &request) else {
            return count(Shadowed::Nobody, 1);
        };
        let agreed = choice.endpoint == self.endpoint;
        count(if agreed { Shadowed::Agreed } else { Shadowed::Differed }, 1);
        if let Some(prompt) = prompt {
            let at = |slot| prompt.tokens_at(pool, slot);
            let (there, instead) = (at(self.endpoint.slot), at(choice.endpoint.slot));
            count(Shadowed::HeldThere, there.held.into());
            count(Shadowed::NewThere, there.new.into());
            count(Shadowed::CostThere, cost(&there, self.endpoint.slot, loads));
            count(Shadowed::HeldInstead, instead.held.into());
            count(Shadowed::NewInstead, instead.new.into());
            count(Shadowed::CostInstead, cost(&instead, choice.endpoint.slot, loads));
        }
    }
}

/// Tokens to be computed at an endpoint before the first one of this prompt's answer.
fn cost(tokens: &Tokens, slot: u16, loads: &Loads) -> u64 {
    u64::from(tokens.new) + loads.pending(slot)
}

impl Exchange {
    /// Whether nothing was tried yet: what is chosen behind a failure says nothing of policies.
    pub(super) fn is_first_choice(&self) -> bool {
        self.tried.is_empty() && !self.retried
    }

    /// The choice is made and counted, and `policy` would have made another one, or the same. `request`: as it was chosen for;
    /// its matches are the lender's by now.
    pub(super) fn leave_to_shadow(
        &self,
        policy: Policy,
        endpoint: EndpointId,
        own: Own,
        lots: (u64, u64),
        looked_up: Option<LookedUp>,
        cx: &mut Context<'_>,
    ) {
        let shadows = &mut cx.lender.shadows;
        let at = shadows.waiting;
        if at == SHADOWS_MAX {
            return cx.stats.shadow(own.pool, policy, Shadowed::Skipped, 1);
        }
        // Taken in exchange for one that may be written over.
        let mut matches = shadows.choices.get_mut(at).and_then(|made| made.matches.take());
        if looked_up.is_some() {
            std::mem::swap(&mut matches, &mut cx.lender.matches);
        }
        let (key, session, unscannable) = (self.shadow_key, self.session, self.unscannable);
        let (random, turn) = lots;
        let made = Made { policy, endpoint, own, key, session, unscannable, random, turn, looked_up, matches };
        match shadows.choices.get_mut(at) {
            Some(place) => *place = made,
            None => shadows.choices.push(made),
        }
        shadows.waiting += 1;
    }
}
