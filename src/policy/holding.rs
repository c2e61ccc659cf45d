//! When requests wait in the front for room, where nobody has said.
//!
//! Holding a request back protects cached prompts. In a full engine each further request pushes out prompts that others
//! are about to come back with. In the front it takes nobody's place: what ends makes room for warm requests, and cold
//! ones wait. So what counts is how many new tokens it brings. A mostly cached prompt pushes little out, and the engine
//! may as well queue it, unless caches are filled by prompts alone: where answers take a large part of what a request
//! occupies, room comes and goes with tokens that nobody can foresee, and keeping some of it free only makes the fleet
//! smaller.

use crate::fleet::Loads;
use crate::policy::{Choice, Pool};

/// A prompt of which more is there already, in percent, pushes little out, unless answers are short: then the rest of
/// such prompts is what fills the caches, and those push little out that bring no more than requests of their pool do
/// on the mean.
const THERE: u64 = 80;
/// Answers are short if they are at most one part in so many of what a request occupies by itself. In replays
/// (`src/replay/README.md`, "Holding") they are one in 7 or less where holding such requests pays, and one in 4 where
/// it costs.
const ANSWERS: f32 = 5.0;

/// Whether a request whose endpoint has no room waits for it.
#[inline]
pub(super) fn in_force(pool: &Pool, loads: &Loads, choice: &Choice) -> bool {
    // Nothing is known of its prompt, so nothing can be said of room.
    let Some(tokens) = choice.tokens else { return false };
    let prompt = u64::from(tokens.held) + u64::from(tokens.new);
    let much = tokens.new > loads.mean_new(pool.id);
    100 * u64::from(tokens.held) < THERE * prompt || much && answers_are_short(pool, loads, choice)
}

/// What requests in flight share of their prompts is there once for all of them, as the engine's own count of its cache
/// tells.
fn answers_are_short(pool: &Pool, loads: &Loads, choice: &Choice) -> bool {
    let place = pool.eligible().slots().binary_search(&choice.endpoint.slot).ok();
    let cache = place.and_then(|place| pool.eligible().caches().get(place));
    let own = cache.map_or(1.0, |cache| cache.own_part());
    let (prompt, answer) = (loads.mean_prompt(pool.id) as f32, loads.mean_answer(pool.id) as f32);
    ANSWERS * answer <= own * (prompt + answer)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::counters::Counters;
    use crate::fleet::{Caps, Endpoint, EndpointId, EngineLoad};
    use crate::policy::{PoolId, Reason, Tokens};
    use crate::ring::Ring;
    use crate::snapshot::Snapshot;

    /// An engine whose cache of 10,000 tokens is in use to this part, by requests of so many tokens in all.
    fn pool(used: f32, resident_at: u64) -> Pool {
        let id = EndpointId { slot: 3, generation: 1 };
        let engine = EngineLoad { kv_use: Some(used), kv_capacity_tokens: Some(10_000), ..EngineLoad::default() };
        let endpoint = Endpoint { engine, resident_at, ..Endpoint::new(id, "a".into(), ([127, 0, 0, 1], 1).into()) };
        let ring = Arc::new(Ring::build(&[(3, "a", 1)], 1));
        let pool = Pool::new(PoolId(0), "m".into(), [3].into(), ring, Arc::default());
        let endpoints = vec![None, None, None, Some(endpoint)];
        let mut snapshot = Snapshot { endpoints, pools: vec![pool], ..Snapshot::default() };
        snapshot.seal();
        snapshot.pools.remove(0)
    }

    fn holds(used: f32, resident_at: u64, prompt: u32, answer: u32, held: u32) -> bool {
        holds_beside(prompt, used, resident_at, prompt, answer, held)
    }

    /// Beside others of which so many tokens are there.
    fn holds_beside(others: u32, used: f32, resident_at: u64, prompt: u32, answer: u32, held: u32) -> bool {
        let counters = Counters::leak();
        (0..2_000).for_each(|_| counters.prompt(PoolId(0), prompt, others));
        (0..2_000).for_each(|_| counters.answer(PoolId(0), answer));
        let choice = Choice {
            endpoint: EndpointId { slot: 3, generation: 1 },
            reason: Reason::Warm,
            runner_up: None,
            bound: None,
            caps: Caps::NONE,
            in_flight: 1,
            total: None,
            costs: None,
            tokens: Some(Tokens { held, new: prompt - held, predicted: held }),
            room: false,
            needs: 0,
        };
        in_force(&pool(used, resident_at), counters.loads(), &choice)
    }

    #[test]
    fn what_brings_little_waits_only_where_answers_are_short() {
        assert!(holds(0.9, 9_000, 1_000, 1_000, 799));
        assert!(!holds(0.9, 9_000, 1_000, 1_000, 800), "answers fill the cache");
        assert!(holds(0.9, 9_000, 1_000, 200, 800), "prompts do");
        assert!(holds(0.9, 9_000, 1_000, 200, 990));
        assert!(!holds(0.9, 9_000, 1_000, 300, 900));
    }

    #[test]
    fn what_brings_less_than_the_others_does_not_wait() {
        assert!(holds_beside(900, 0.9, 9_000, 1_000, 100, 880));
        assert!(!holds_beside(900, 0.9, 9_000, 1_000, 100, 920), "others bring 100");
        assert!(holds_beside(960, 0.9, 9_000, 1_000, 100, 920), "others bring 40");
        assert!(holds_beside(0, 0.9, 9_000, 1_000, 100, 700), "of its prompt too little is there, whatever they bring");
    }

    #[test]
    fn what_requests_share_is_not_their_own() {
        assert!(holds(0.9, 9_000, 7_200, 1_000, 6_000));
        assert!(!holds(0.9, 20_000, 7_200, 1_000, 6_000), "they use less than half of what they would by themselves");
        assert!(holds(0.9, 20_000, 7_200, 100, 6_000));
    }
}
