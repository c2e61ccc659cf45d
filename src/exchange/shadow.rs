//! Shadow policies: what a second policy would have chosen is counted, and nothing is sent there.
//!
//! A choice of a pool that has one leaves here what it knew. The shard looks at it once the actions of its turn are
//! with the kernel, so that no request waits for it. What differs from the moment of the choice: loads are those of
//! some microseconds later, less this request's own; they have the requests that were chosen for in the same turn
//! behind it, and what ended since is gone.

use super::Exchange;
use super::choose::choose_past_barred;
use super::event::Context;
use super::warm::LookedUp;
use crate::counters::stats::{Shadowed, ShardStats};
use crate::counters::{Counters, Own, Without};
use crate::fleet::{EndpointId, Loads};
use crate::index::Matches;
use crate::policy::{self, Policy, Tokens};
use crate::snapshot::{Pool, Snapshot};

/// Most choices of one turn that are looked at; some 7 KiB are kept for each.
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

    /// Takes a choice in, and its matches in exchange for some that may be written over.
    fn leave(&mut self, mut made: Made, matches: &mut Option<Box<Matches>>, stats: &ShardStats) {
        let at = self.waiting;
        if at == SHADOWS_MAX {
            return stats.shadow(made.own.pool.0, made.policy as u8, Shadowed::Skipped, 1);
        }
        made.matches = self.choices.get_mut(at).and_then(|spare| spare.matches.take());
        if made.looked_up.is_some() {
            std::mem::swap(&mut made.matches, matches);
        }
        match self.choices.get_mut(at) {
            Some(place) => *place = made,
            None => self.choices.push(made),
        }
        self.waiting += 1;
    }

    /// Asks about all that wait. The snapshot is that of the turn in which they were made.
    pub fn look(&mut self, snapshot: &Snapshot, counters: &Counters, stats: &ShardStats) {
        let waiting = std::mem::take(&mut self.waiting);
        for made in self.choices.iter().take(waiting) {
            if let Some(pool) = snapshot.pools.get(usize::from(made.own.pool.0)) {
                made.compare(pool, &mut self.without, counters, stats);
            }
        }
    }
}

impl Made {
    fn compare(&self, pool: &Pool, without: &mut Without, counters: &Counters, stats: &ShardStats) {
        let count = |what, n| stats.shadow(self.own.pool.0, self.policy as u8, what, n);
        let loads = without.of(counters.loads(), pool.eligible().slots(), &self.own);
        let prompt = self.looked_up.zip(self.matches.as_deref()).map(|(prompt, matches)| prompt.prompt(matches));
        let request = policy::Request {
            prompt,
            context: self.looked_up.map_or(0, LookedUp::context),
            key: self.key,
            unscannable: self.unscannable,
            session: self.session,
            random: self.random,
            turn: self.turn,
            ..policy::Request::default()
        };
        let Ok(choice) = choose_past_barred(self.policy, pool, loads, counters.outcomes(), &request) else {
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
        self.tried.is_empty() && !self.retried && self.connects == 0
    }

    /// The choice is made and counted, and `policy` would have made another one, or the same. `lots`: random bits and
    /// the turn, which are the same for both.
    pub(super) fn leave_to_shadow(
        &self,
        policy: Policy,
        endpoint: EndpointId,
        own: Own,
        lots: (u64, u64),
        looked_up: Option<LookedUp>,
        cx: &mut Context<'_>,
    ) {
        let (key, session, unscannable) = (self.shadow_key.get(), self.session.get(), self.upload.unscannable);
        let (random, turn) = lots;
        let made = Made { policy, endpoint, own, key, session, unscannable, random, turn, looked_up, matches: None };
        cx.lender.shadows.leave(made, &mut cx.lender.matches, cx.stats);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use clap::ValueEnum;

    use crate::counters::stats::{POLICIES, Stats};
    use crate::fleet::{Endpoint, Health};
    use crate::policy::Settings;
    use crate::ring::Ring;
    use crate::snapshot::PoolId;

    fn fleet() -> Snapshot {
        let endpoint = |slot: u16| {
            let id = EndpointId { slot, generation: 0 };
            Endpoint { health: Health::Up, ..Endpoint::new(id, format!("e{slot}").into(), ([127, 0, 0, 1], 1).into()) }
        };
        let endpoints: Vec<_> = (0..3).map(endpoint).collect();
        let entries: Vec<_> = endpoints.iter().map(|one| (one.id.slot, &*one.name, 1)).collect();
        let ring = Arc::new(Ring::build(&entries, 4));
        let pool = Pool::new(PoolId(0), "m".into(), vec![0, 1, 2].into(), ring, Arc::new(Settings::default()));
        let endpoints = endpoints.into_iter().map(Some).collect();
        let mut snapshot = Snapshot { endpoints, pools: vec![pool], ..Snapshot::default() };
        snapshot.seal();
        snapshot
    }

    fn made(policy: Policy, slot: u16, turn: u64, looked_up: bool) -> Made {
        Made {
            policy,
            endpoint: EndpointId { slot, generation: 0 },
            own: Own { pool: PoolId(0), means: Loads::default().means(PoolId(0)), slot, tokens: None },
            key: None,
            session: None,
            unscannable: false,
            random: 0,
            turn,
            looked_up: looked_up.then_some(LookedUp::default()),
            matches: None,
        }
    }

    #[test]
    fn every_policy_has_a_place() {
        assert!(Policy::value_variants().iter().all(|policy| (*policy as usize) < POLICIES));
    }

    #[test]
    fn what_the_policy_would_choose_is_compared_with_what_was_chosen() {
        let (snapshot, counters, stats) = (fleet(), Counters::leak(), Stats::leak(1));
        let count = |policy: Policy, what| stats.shadowed(0, policy as u8, what);
        let mut shadows = Shadows::default();
        for turn in 0..6 {
            shadows.leave(made(Policy::RoundRobin, 1, turn, false), &mut None, stats.shard(0));
        }
        assert!(shadows.any());
        shadows.look(&snapshot, counters, stats.shard(0));
        assert!(!shadows.any());
        shadows.look(&snapshot, counters, stats.shard(0));
        let policy = Policy::RoundRobin;
        assert_eq!((count(policy, Shadowed::Agreed), count(policy, Shadowed::Differed)), (2, 4));
        // The request itself does not keep it from where it is; others do.
        let own = counters.try_admit(EndpointId { slot: 0, generation: 0 }, None).unwrap();
        let others: Vec<_> =
            [1, 2].map(|slot| counters.try_admit(EndpointId { slot, generation: 0 }, None).unwrap()).into();
        shadows.leave(made(Policy::LeastLoad, 0, 0, false), &mut None, stats.shard(0));
        shadows.leave(made(Policy::LeastLoad, 1, 0, false), &mut None, stats.shard(0));
        shadows.look(&snapshot, counters, stats.shard(0));
        let policy = Policy::LeastLoad;
        assert_eq!((count(policy, Shadowed::Agreed), count(policy, Shadowed::Differed)), (2, 0));
        let mut nobody = fleet();
        nobody.endpoints.iter_mut().flatten().for_each(|endpoint| endpoint.health = Health::Draining);
        nobody.seal();
        shadows.leave(made(Policy::LeastLoad, 1, 0, false), &mut None, stats.shard(0));
        shadows.look(&nobody, counters, stats.shard(0));
        assert_eq!(count(policy, Shadowed::Nobody), 1);
        drop((own, others));
    }

    #[test]
    fn what_there_is_no_place_for_is_counted_and_the_places_are_used_again() {
        let (snapshot, counters, stats) = (fleet(), Counters::leak(), Stats::leak(1));
        let mut shadows = Shadows::default();
        let mut lent = Some(Box::<Matches>::default());
        let mut fill = |shadows: &mut Shadows, count: usize| {
            for _ in 0..count {
                lent.get_or_insert_default();
                shadows.leave(made(Policy::Warm, 0, 0, true), &mut lent, stats.shard(0));
            }
            shadows.look(&snapshot, counters, stats.shard(0));
            let mut boxes: Vec<*const Matches> =
                shadows.choices.iter().filter_map(|made| Some(&**made.matches.as_ref()? as _)).collect();
            boxes.extend(lent.as_deref().map(|matches| matches as *const Matches));
            boxes.sort_unstable();
            boxes
        };
        fill(&mut shadows, SHADOWS_MAX);
        let skipped = || stats.shadowed(0, Policy::Warm as u8, Shadowed::Skipped);
        assert_eq!(skipped(), 0);
        let warm = fill(&mut shadows, SHADOWS_MAX + 4);
        assert_eq!((skipped(), warm.len()), (4, SHADOWS_MAX + 1));
        assert_eq!(fill(&mut shadows, 7), warm, "nothing is allocated");
        assert_eq!(fill(&mut shadows, SHADOWS_MAX), warm, "nothing is allocated");
        let looked: u64 =
            [Shadowed::Agreed, Shadowed::Differed].map(|what| stats.shadowed(0, Policy::Warm as u8, what)).iter().sum();
        assert_eq!(looked as usize, 3 * SHADOWS_MAX + 7);
    }
}
