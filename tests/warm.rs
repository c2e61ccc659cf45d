//! The policy `warm`: least work in tokens, against its formula written another way.

use std::ops::Range;

use proptest::prelude::*;
use warmfront::counters::{Admission, Counters};
use warmfront::fleet::{Endpoint, EndpointId, EngineLoad, Health, Room, Rung};
use warmfront::index::{Capacity, Index, Matches, Origin, STEPS};
use warmfront::policy::{self, Avoid, Choice, Cost, Policy, PoolId, Prompt, Reason, Request, Settings, Tokens};
use warmfront::snapshot::Snapshot;

/// Four bytes a token.
const BLOCK_TOKENS: f32 = 64.0;

struct Fleet {
    snapshot: Snapshot,
    counters: &'static Counters,
    index: Index,
    /// Keeps what is in flight.
    running: Vec<Admission>,
}

fn endpoint(slot: u16) -> Endpoint {
    let id = EndpointId { slot, generation: 7 };
    let address = ([10, 0, 0, slot as u8], 80).into();
    Endpoint { health: Health::Up, ..Endpoint::new(id, format!("gpu-{slot}").as_str().into(), address) }
}

impl Fleet {
    fn new(endpoints: Vec<Endpoint>) -> Fleet {
        Fleet::by(Policy::Warm, endpoints)
    }

    fn by(policy: Policy, endpoints: Vec<Endpoint>) -> Fleet {
        let index = Index::new(Capacity { endpoints: 128, blocks: 1 << 17, lengths: false }).unwrap();
        endpoints.iter().for_each(|endpoint| assert_eq!(index.assign(endpoint.id, Some(1 << 10)), Ok(1 << 10)));
        let snapshot = Snapshot::of_one_pool(endpoints, Settings { policy, replication: 64, ..Settings::default() });
        Fleet { snapshot, counters: Counters::leak(), index, running: Vec::new() }
    }

    fn id(&self, slot: u16) -> EndpointId {
        self.snapshot.endpoints[slot as usize].as_ref().unwrap().id
    }

    fn holds(&self, slot: u16, chain: &[u64]) {
        self.index.insert(chain, self.id(slot), Origin::Choice).unwrap();
    }

    /// Gives an endpoint a request that computes so many tokens.
    fn computes(&mut self, slot: u16, tokens: u32) {
        let mut admission = self.counters.try_admit(self.id(slot), None).unwrap();
        admission.computes(tokens);
        self.running.push(admission);
    }

    /// Prompts of a thousand tokens have come, of which so many were held.
    fn had(&self, held: u32) {
        (0..2_000).for_each(|_| self.counters.prompt(PoolId(0), 1_000, held));
    }

    /// Gives the first endpoint requests that occupy so many tokens each.
    fn occupies(&mut self, tokens: &[u32]) {
        for tokens in tokens {
            let mut admission = self.counters.try_admit(self.id(0), None).unwrap();
            admission.occupies(*tokens);
            self.running.push(admission);
        }
    }

    fn choose(&self, chain: &[u64], tokens: u32, avoid: Avoid) -> Option<Choice> {
        let pool = &self.snapshot.pools[0];
        let mut matches = Matches::default();
        self.index.longest(chain, pool.eligible().ids(), &mut matches);
        let tie = chain.get(pool.eligible().most(&matches).blocks as usize).copied().unwrap_or(0);
        let prompt = Prompt { tokens, block_tokens: BLOCK_TOKENS, matches: &matches, tie };
        policy::choose(pool, self.counters.loads(), &Request { prompt: Some(prompt), avoid, ..Request::default() }).ok()
    }

    fn choose_new(&self, seed: u64) -> Choice {
        self.choose(&chain(seed, 10), 640, Avoid::default()).unwrap()
    }
}

fn chain(seed: u64, blocks: u64) -> Vec<u64> {
    (1..=blocks).map(|block| (seed << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

#[test]
fn who_holds_the_prompt_gets_it_until_the_others_have_less_to_do() {
    let mut fleet = Fleet::new((0..3).map(endpoint).collect());
    let prompt = chain(1, 20);
    fleet.holds(2, &prompt[..15]);
    let choice = fleet.choose(&prompt, 1_280, Avoid::default()).unwrap();
    assert_eq!((choice.endpoint.slot, choice.reason), (2, Reason::Warm));
    assert_eq!(choice.tokens, Some(Tokens { held: 960, new: 320, predicted: 960 }));
    let costs = choice.costs.unwrap();
    assert_eq!(costs.chosen, Cost { new: 6 * 320, total: 6 * 320, ..Cost::default() });
    assert_eq!(costs.runner_up, Some(Cost { new: 6 * 1_280, total: 6 * 1_280, ..Cost::default() }));
    // Elsewhere it costs 6 * 960 tokens more; a request in flight costs 20 (a fiftieth of the first mean, 1,000)
    // and 32 (a tenth of the 320 that hold it up).
    fleet.computes(2, 6 * 960 - 20 - 32 - 1);
    assert_eq!(fleet.choose(&prompt, 1_280, Avoid::default()).unwrap().endpoint.slot, 2);
    fleet.computes(2, 0);
    let choice = fleet.choose(&prompt, 1_280, Avoid::default()).unwrap();
    assert_ne!(choice.endpoint.slot, 2);
    assert_eq!((choice.reason, choice.tokens), (Reason::Cold, Some(Tokens { held: 0, new: 1_280, predicted: 0 })));
    // The first token of those before: it has less to do again.
    fleet.running.iter_mut().for_each(Admission::computed);
    assert_eq!(fleet.choose(&prompt, 1_280, Avoid::default()).unwrap().endpoint.slot, 2);
    fleet.running.clear();
    assert_eq!(fleet.counters.loads().pending(2), 0);
}

/// What is held is noted on little where slots are low.
#[test]
fn who_holds_the_prompt_gets_it_whatever_its_slot() {
    for slots in [[0, 63], [0, 64], [63, 64], [64, 127]] {
        let fleet = Fleet::new(slots.into_iter().map(endpoint).collect());
        for (seed, slot) in slots.into_iter().enumerate() {
            let prompt = chain(seed as u64, 20);
            fleet.holds(slot, &prompt);
            let choice = fleet.choose(&prompt, 1_280, Avoid::default()).unwrap();
            assert_eq!((choice.endpoint.slot, choice.reason), (slot, Reason::Warm), "{slots:?}");
        }
    }
}

/// Of a hybrid model engines find whole blocks of thousands of tokens, and of most prompts nothing: those are no reason
/// to gather.
#[test]
fn what_engines_with_large_blocks_cannot_find_is_not_held() {
    let mut fleet = Fleet::new((0..3).map(endpoint).collect());
    fleet.snapshot.pools[0].match_unit = 3_584;
    let (short, long) = (chain(1, 14), chain(2, 140));
    fleet.holds(2, &short[..12]);
    fleet.holds(2, &long[..125]);
    let choice = fleet.choose(&short, 900, Avoid::default()).unwrap();
    assert_eq!((choice.reason, choice.tokens), (Reason::Cold, Some(Tokens { held: 0, new: 900, predicted: 0 })));
    let choice = fleet.choose(&long, 9_000, Avoid::default()).unwrap();
    assert_eq!((choice.endpoint.slot, choice.reason), (2, Reason::Warm));
    let tokens = Tokens { held: 7_168, new: 1_832, predicted: 7_168 };
    assert_eq!(choice.tokens, Some(tokens));
    // The same for one that another policy chose.
    let mut matches = Matches::default();
    fleet.index.longest(&long, fleet.snapshot.pools[0].eligible().ids(), &mut matches);
    let prompt = Prompt { tokens: 9_000, block_tokens: BLOCK_TOKENS, matches: &matches, tie: 0 };
    assert_eq!(prompt.tokens_at(&fleet.snapshot.pools[0], 2), tokens);
    // Blocks as most models have them are finer than what is known.
    fleet.snapshot.pools[0].match_unit = 64;
    let choice = fleet.choose(&short, 900, Avoid::default()).unwrap();
    assert_eq!((choice.endpoint.slot, choice.tokens.unwrap().held), (2, 768));
}

/// Its cache turned out not to hold what the index says: it counts as holding nothing, alike prompts meet as if nobody did,
/// and what is predicted goes on.
#[test]
fn who_is_not_believed_counts_as_holding_nothing() {
    let mut endpoints: Vec<Endpoint> = (0..3).map(endpoint).collect();
    endpoints[2].rung = Rung::Hash;
    let mut fleet = Fleet::new(endpoints);
    let prompts: Vec<Vec<u64>> = (0..60).map(|seed| chain(seed, 20)).collect();
    let homes = |fleet: &Fleet| -> Vec<u16> {
        prompts.iter().map(|prompt| fleet.choose(prompt, 1_280, Avoid::default()).unwrap().endpoint.slot).collect()
    };
    let before = homes(&fleet);
    prompts.iter().for_each(|prompt| fleet.holds(2, &prompt[..15]));
    assert_eq!(homes(&fleet), before, "what it holds does not count");
    assert!((0..3).all(|slot| before.contains(&slot)), "it gets its share: {before:?}");
    let seed = before.iter().position(|home| *home == 2).unwrap();
    let choice = fleet.choose(&prompts[seed], 1_280, Avoid::default()).unwrap();
    assert_eq!((choice.reason, choice.endpoint.slot), (Reason::Cold, 2));
    assert_eq!(choice.tokens, Some(Tokens { held: 0, new: 1_280, predicted: 960 }));
    // Who is believed holds less of it, and gets it.
    fleet.holds(0, &prompts[seed][..2]);
    let choice = fleet.choose(&prompts[seed], 1_280, Avoid::default()).unwrap();
    assert_eq!((choice.endpoint.slot, choice.tokens.unwrap().held), (0, 128));
    // The same for one that another policy chose; what is behind the part that is known is believed of others alone.
    let mut matches = Matches::default();
    let pool = &fleet.snapshot.pools[0];
    let (known, whole) = (chain(100, 20), chain(101, 20));
    for slot in [0, 2] {
        fleet.holds(slot, &known[..12]);
        fleet.holds(slot, &whole[..15]);
    }
    fleet.index.longest_of_both(&known, &[], &whole, pool.eligible().ids(), &mut matches);
    let prompt = Prompt { tokens: 1_280, block_tokens: BLOCK_TOKENS, matches: &matches, tie: 0 };
    assert_eq!(prompt.tokens_at(pool, 0), Tokens { held: 960, new: 320, predicted: 768 });
    assert_eq!(prompt.tokens_at(pool, 2), Tokens { held: 0, new: 1_280, predicted: 768 });
    // It is on a higher rung again.
    fleet.snapshot.endpoints[2].as_mut().unwrap().rung = Rung::Approximate;
    fleet.snapshot.seal();
    assert_eq!(homes(&fleet), [2; 60]);
    fleet.running.clear();
}

#[test]
fn the_longest_match_is_that_of_who_is_believed() {
    for (rung, blocks) in [(Rung::Approximate, 8), (Rung::Hash, 3)] {
        let fleet = Fleet::new(vec![endpoint(0), endpoint(1), Endpoint { rung, ..endpoint(2) }]);
        let prompt = chain(1, 10);
        fleet.holds(1, &prompt[..3]);
        fleet.holds(2, &prompt[..8]);
        let eligible = fleet.snapshot.pools[0].eligible();
        let mut matches = Matches::default();
        fleet.index.longest(&prompt, eligible.ids(), &mut matches);
        assert_eq!(eligible.most(&matches).blocks, blocks, "{rung:?}");
    }
}

#[test]
fn prompts_that_nobody_holds_are_spread_by_the_ring_and_alike_ones_meet() {
    let fleet = Fleet::new((0..8).map(endpoint).collect());
    let chosen: Vec<u16> = (0..200).map(|seed| fleet.choose_new(seed).endpoint.slot).collect();
    assert_eq!(chosen, (0..200).map(|seed| fleet.choose_new(seed).endpoint.slot).collect::<Vec<_>>());
    for slot in 0..8 {
        let share = chosen.iter().filter(|chosen| **chosen == slot).count();
        assert!((5..60).contains(&share), "{slot}: {share} of 200");
    }
}

/// Not even where it cost least until the others were looked at.
#[test]
fn who_costs_more_gets_nothing_of_what_is_new() {
    let mut fleet = Fleet::new((0..4).map(endpoint).collect());
    fleet.computes(0, 5_000);
    let chosen: Vec<u16> = (0..200).map(|seed| fleet.choose_new(seed).endpoint.slot).collect();
    assert!((1..4).all(|slot| chosen.contains(&slot)) && !chosen.contains(&0), "{chosen:?}");
}

#[test]
fn nobody_is_chosen_twice_or_beyond_its_cap() {
    let prompt = chain(1, 20);
    for count in [3, 17, 40] {
        let mut endpoints: Vec<Endpoint> = (0..count).map(endpoint).collect();
        endpoints[2].cap = 1;
        let mut fleet = Fleet::new(endpoints);
        fleet.holds(2, &prompt);
        let choice = fleet.choose(&prompt, 1_280, Avoid::default()).unwrap();
        assert_eq!((choice.endpoint.slot, choice.caps.running), (2, 1));
        let mut tried = Avoid::default();
        tried.push(2);
        let next = fleet.choose(&prompt, 1_280, tried).unwrap();
        assert!(next.endpoint.slot != 2 && next.reason == Reason::Retry, "{next:?} of {count}");
        fleet.computes(2, 0);
        assert_ne!(fleet.choose(&prompt, 1_280, Avoid::default()).unwrap().endpoint.slot, 2, "of {count}");
        let mut avoid = Avoid::default();
        (0..2).for_each(|slot| avoid.push(slot));
        let last = fleet.choose(&prompt, 1_280, avoid);
        assert_eq!(last.is_none(), count == 3, "two were tried, one is at its cap");
        fleet.running.clear();
        let last = fleet.choose(&prompt, 1_280, avoid).unwrap();
        assert_eq!((last.endpoint.slot, last.reason), (2, Reason::Retry));
    }
}

#[test]
fn a_cache_without_room_is_passed_unless_the_endpoint_is_idle() {
    let full = EngineLoad { kv_use: Some(0.89), kv_capacity_tokens: Some(10_000), ..EngineLoad::default() };
    let mut endpoints: Vec<Endpoint> = (0..2).map(endpoint).collect();
    endpoints[0].engine = full;
    endpoints[1].engine = EngineLoad { kv_use: Some(0.0), ..full };
    let mut fleet = Fleet::new(endpoints);
    let prompt = chain(3, 8);
    fleet.holds(0, &prompt);
    // 4 * 1,000 * 0.89 for its use against 6 * 512 for the prompt: the empty one.
    assert_eq!(fleet.choose(&prompt, 512, Avoid::default()).unwrap().endpoint.slot, 1);
    // A longer prompt is worth it: 6 * 1,024 elsewhere.
    let prompt = chain(4, 16);
    fleet.holds(0, &prompt);
    assert_eq!(fleet.choose(&prompt, 1_024, Avoid::default()).unwrap().endpoint.slot, 0);
    // One in flight, and 900 tokens sent since the scrape: 8,900 + 964 + 64 > 9,700. Three mean prompts more.
    fleet.computes(0, 900);
    fleet.running.iter_mut().for_each(Admission::computed);
    let choice = fleet.choose(&prompt, 1_024, Avoid::default()).unwrap();
    assert_eq!((choice.endpoint.slot, choice.runner_up), (1, Some(0)));
    let full = Cost { decoding: 20, full: 3_560, no_room: 3_000, total: 6_580, ..Cost::default() };
    assert_eq!(choice.costs.unwrap().runner_up, Some(full));
}

/// One of the fronts that send to these.
fn front_of(endpoints: Vec<Endpoint>) -> Fleet {
    let mut fleet = Fleet::new(endpoints);
    // Conversations go on: most of what was chosen for was held.
    (0..500).for_each(|_| fleet.counters.prompt(PoolId(0), 1_000, 900));
    fleet.computes(1, 300);
    fleet
}

/// How many new prompts of 200 both send to the same endpoint.
fn met(one: &Fleet, other: &Fleet) -> usize {
    (0..200).filter(|seed| one.choose_new(*seed).endpoint == other.choose_new(*seed).endpoint).count()
}

/// Two fronts share nothing but what engines report: what is new to both goes to one place, also where one has a little
/// more to do.
#[test]
fn fronts_that_know_nothing_of_each_other_meet() {
    let front = |endpoints: u16, foreign: u32| {
        front_of((0..endpoints).map(|slot| Endpoint { foreign, ..endpoint(slot) }).collect())
    };
    for endpoints in [4, 24] {
        let (mut one, mut other) = (front(endpoints, 4), front(endpoints, 4));
        one.computes(2, 500);
        other.computes(3, 700);
        let together = met(&one, &other);
        assert!(together > 190, "{together} of 200 meet among {endpoints}");
        // What is told of a choice is what was compared.
        for costs in (0..200).map(|seed| one.choose_new(seed).costs.unwrap()) {
            assert!(costs.chosen.total <= costs.runner_up.unwrap().total, "{costs:?}");
        }
    }
    // Alone each goes by its own load.
    let (mut one, mut other) = (front(4, 0), front(4, 0));
    one.computes(2, 500);
    other.computes(3, 700);
    let apart = met(&one, &other);
    assert!(apart < 120, "{apart} of 200 meet");
    // Who was tried neither gets it nor comes next, though what others may have sent there makes it cheaper.
    let fleet = front(2, 4);
    for seed in 0..20 {
        let home = fleet.choose_new(seed).endpoint.slot;
        let mut tried = Avoid::default();
        tried.push(home);
        let next = fleet.choose(&chain(seed, 10), 640, tried).unwrap();
        assert_eq!((next.endpoint.slot, next.runner_up), (1 - home, None));
    }
    // What one alone holds stays there, whatever the ring says of the rest.
    let fleet = front(4, 4);
    let prompt = chain(7, 40);
    fleet.holds(0, &prompt[..20]);
    assert_eq!(fleet.choose(&prompt, 2_560, Avoid::default()).unwrap().endpoint.slot, 0);
}

/// By the next of the ring where its first takes no requests; and none goes where nothing is believed to be held.
#[test]
fn fronts_meet_beside_who_is_down_or_not_believed() {
    let mut endpoints: Vec<Endpoint> = (0..4).map(|slot| Endpoint { foreign: 4, ..endpoint(slot) }).collect();
    endpoints[0].health = Health::Down;
    let (mut one, mut other) = (front_of(endpoints.clone()), front_of(endpoints.clone()));
    one.computes(2, 500);
    other.computes(3, 700);
    let together = met(&one, &other);
    assert!(together > 190, "{together} of 200 meet");
    (endpoints[0].health, endpoints[2].rung) = (Health::Up, Rung::Hash);
    let fleet = front_of(endpoints);
    let homes = || (0..60).map(|seed| fleet.choose_new(seed).endpoint.slot).collect::<Vec<u16>>();
    let before = homes();
    (0..60).for_each(|seed| fleet.holds(2, &chain(seed, 10)[..8]));
    assert_eq!(homes(), before);
    assert!((0..4).all(|slot| before.contains(&slot)), "{before:?}");
}

/// Whether a prompt of `tokens`, of which one endpoint holds `held`, has room there.
fn has_room(fleet: &Fleet, seed: u64, held: u64, tokens: u32) -> bool {
    let prompt = chain(seed, 40);
    fleet.holds(0, &prompt[..held as usize / 64]);
    fleet.choose(&prompt, tokens, Avoid::default()).unwrap().room
}

fn one_endpoint(engine: EngineLoad, resident_at: u64) -> Fleet {
    Fleet::new(vec![Endpoint { engine, resident_at, ..endpoint(0) }])
}

const CACHE: EngineLoad = EngineLoad {
    running: Some(4),
    waiting: Some(0),
    kv_use: Some(0.8),
    kv_capacity_tokens: Some(10_000),
    prompt_tokens_total: None,
    prefix_queries_total: None,
    prefix_hits_total: None,
    generation_tokens_total: None,
    requests_total: None,
};

#[test]
fn room_appears_when_a_request_ends_and_not_at_the_next_scrape() {
    let mut fleet = one_endpoint(CACHE, 8_000);
    fleet.occupies(&[2_000; 4]);
    // A fifth is left, less seven in a hundred, or two for who is mostly held already; an answer is taken for 64 tokens.
    assert!(has_room(&fleet, 1, 0, 1_236) && !has_room(&fleet, 2, 0, 1_237));
    assert!(
        has_room(&fleet, 3, 1_280, 1_736) && !has_room(&fleet, 4, 1_280, 1_737),
        "what is held becomes used as well"
    );
    assert!(has_room(&fleet, 10, 576, 1_236) && !has_room(&fleet, 11, 576, 1_237), "less than half of it is held");
    assert!(has_room(&fleet, 12, 0, 10_000) && !has_room(&fleet, 13, 0, 9_999), "what is too long waits for nothing");
    fleet.occupies(&[500]);
    assert!(has_room(&fleet, 5, 0, 736) && !has_room(&fleet, 6, 0, 737), "it was sent since");
    drop(fleet.running.swap_remove(0));
    assert!(has_room(&fleet, 7, 0, 2_736) && !has_room(&fleet, 8, 0, 2_737));
    fleet.running.clear();
    assert!(has_room(&fleet, 9, 0, 9_999), "nothing runs there");
}

#[test]
fn what_requests_share_is_counted_once_and_what_waits_in_the_engine_is_counted() {
    // They use half of what they would each by itself.
    let mut fleet = one_endpoint(CACHE, 16_000);
    fleet.occupies(&[4_000; 4]);
    assert!(has_room(&fleet, 1, 0, 1_236) && !has_room(&fleet, 2, 0, 1_237), "what is new is used whole");
    assert!(has_room(&fleet, 3, 2_560, 2_560), "1,280 of it");
    drop(fleet.running.swap_remove(0));
    assert!(has_room(&fleet, 4, 0, 3_236) && !has_room(&fleet, 5, 0, 3_237), "half of 4,000 is free");
    // Two of four use nothing yet: 4,000 of 8,000 tokens.
    let waits = EngineLoad { running: Some(2), waiting: Some(2), kv_use: Some(0.4), ..CACHE };
    let mut fleet = one_endpoint(waits, 8_000);
    fleet.occupies(&[2_000; 4]);
    assert!(has_room(&fleet, 1, 0, 1_236) && !has_room(&fleet, 2, 0, 1_237));
    // Others' requests use 8,000 tokens, and none of ours was there.
    let mut fleet = one_endpoint(CACHE, 0);
    fleet.occupies(&[500]);
    assert!(has_room(&fleet, 1, 0, 736) && !has_room(&fleet, 2, 0, 737));
    // Nothing of ours runs there either.
    let fleet = Fleet::new(vec![Endpoint { engine: CACHE, foreign: 3, ..endpoint(0) }]);
    assert!(has_room(&fleet, 1, 0, 1_236) && !has_room(&fleet, 2, 0, 1_237));
    let mut fleet = one_endpoint(EngineLoad { kv_use: None, ..CACHE }, 0);
    fleet.occupies(&[1_000_000]);
    assert!(has_room(&fleet, 1, 0, 9_999), "nothing is known of the cache");
}

/// Whether it was never read, or is read no more.
#[test]
fn who_does_not_tell_how_full_he_is_is_as_the_others_are() {
    // Nothing more goes into one of 95 %, and a prompt that is longer than 436 tokens not into one of 85 %.
    const SIZE: Option<u64> = Some(10_000);
    let rows = [(0.95, SIZE, None), (0.95, SIZE, SIZE), (0.85, SIZE, None), (0.85, SIZE, SIZE), (0.95, None, None)];
    for (kv_use, theirs, kv_capacity_tokens) in rows {
        let told = EngineLoad { kv_use: Some(kv_use), kv_capacity_tokens: theirs, ..EngineLoad::default() };
        let mut endpoints: Vec<Endpoint> =
            (0..4).map(|slot| Endpoint { engine: told, turnover: 0.5, ..endpoint(slot) }).collect();
        endpoints[3] = Endpoint { engine: EngineLoad { kv_capacity_tokens, ..EngineLoad::default() }, ..endpoint(3) };
        let mut fleet = Fleet::new(endpoints);
        fleet.had(600);
        (0..4).for_each(|slot| fleet.computes(slot, 0));
        let chosen: Vec<u16> = (0..200).map(|seed| fleet.choose_new(seed).endpoint.slot).collect();
        for slot in 0..4 {
            let share = chosen.iter().filter(|chosen| **chosen == slot).count();
            assert!((20..90).contains(&share), "{slot}: {share} of 200");
        }
    }
}

/// As far as ours fill it, where others say how much of theirs requests share.
#[test]
fn room_is_looked_for_in_a_cache_whose_size_is_known_from_before() {
    let beside = |engine: EngineLoad| {
        let other = Endpoint { engine: CACHE, resident_at: 16_000, ..endpoint(1) };
        let mut fleet = Fleet::new(vec![Endpoint { engine, resident_at: 77_000, ..endpoint(0) }, other]);
        fleet.occupies(&[4_000; 4]);
        fleet.computes(1, 100_000);
        fleet
    };
    // Half of what they would each by itself.
    let fleet = beside(EngineLoad { kv_use: None, ..CACHE });
    assert!(has_room(&fleet, 1, 0, 1_236) && !has_room(&fleet, 2, 0, 1_237));
    let fleet = beside(EngineLoad::default());
    assert!(has_room(&fleet, 1, 0, 9_000), "it never said how large it is");
}

/// Such as where all are too busy to tell.
#[test]
fn room_is_looked_for_in_a_cache_that_nobody_tells_of_now() {
    let room = Some(Room { capacity: 10_000, base: 500, own: 1.0 });
    let mut fleet = Fleet::new(vec![Endpoint { room, ..endpoint(0) }]);
    fleet.occupies(&[8_000]);
    assert!(has_room(&fleet, 1, 0, 736) && !has_room(&fleet, 2, 0, 737));
}

#[test]
fn who_tells_how_full_he_is_and_not_how_large_is_passed_for_who_is_emptier() {
    let told = |slot, kv_use| {
        let engine = EngineLoad { kv_use: Some(kv_use), ..EngineLoad::default() };
        Endpoint { engine, ..endpoint(slot) }
    };
    let mut fleet = Fleet::new(vec![told(0, 0.9), told(1, 0.1)]);
    (0..2).for_each(|slot| fleet.computes(slot, 0));
    assert!((0..50).all(|seed| fleet.choose_new(seed).endpoint.slot == 1));
}

/// Or none would be chosen for what it holds beside who is idle.
#[test]
fn where_nobody_tells_of_a_cache_each_has_room() {
    let mut fleet = Fleet::new((0..2).map(endpoint).collect());
    fleet.had(0);
    fleet.computes(0, 0);
    let prompt = chain(1, 10);
    fleet.holds(0, &prompt[..4]);
    assert_eq!(fleet.choose(&prompt, 640, Avoid::default()).unwrap().endpoint.slot, 0);
}

#[test]
fn a_heavier_endpoint_takes_more_and_one_that_starts_slowly_less() {
    let mut endpoints: Vec<Endpoint> = (0..2).map(endpoint).collect();
    endpoints[0].weight = 4;
    let mut fleet = Fleet::new(endpoints);
    fleet.computes(0, 3_000);
    fleet.computes(1, 1_000);
    assert_eq!(fleet.choose_new(1).endpoint.slot, 0, "(3,020 + 64 + 640) / 4 is less than 1,020 + 64 + 640");
    fleet.computes(0, 3_000);
    assert_eq!(fleet.choose_new(1).endpoint.slot, 0, "(6,040 + 128 + 640) / 4 is still less");
    fleet.computes(0, 200);
    assert_eq!(fleet.choose_new(1).endpoint.slot, 1, "(6,260 + 192 + 640) / 4 is more");
    let mut endpoints: Vec<Endpoint> = (0..2).map(endpoint).collect();
    endpoints[0].share_percent = 10;
    let fleet = Fleet::new(endpoints);
    assert!((0..20).all(|seed| fleet.choose_new(seed).endpoint.slot == 1));
}

/// Requests at a heavy endpoint hold a prompt up as much as so many times fewer at a light one.
#[test]
fn a_crowd_counts_by_the_weight_of_who_has_it() {
    let mut endpoints: Vec<Endpoint> = (0..2).map(endpoint).collect();
    endpoints[0].weight = 8;
    let mut fleet = Fleet::new(endpoints);
    (0..160).for_each(|_| fleet.computes(0, 0));
    (0..16).for_each(|_| fleet.computes(1, 0));
    // (3,200 + 160 * 64 + 640) / 8 is 1,760, less than 320 + 16 * 64 + 640.
    assert_eq!(fleet.choose_new(1).endpoint.slot, 0);
    (0..40).for_each(|_| fleet.computes(0, 0));
    assert_eq!(fleet.choose_new(1).endpoint.slot, 1);
}

/// One prompt stands before all others: its home keeps them while it has little more than the others, and no longer.
#[test]
fn what_all_share_goes_on_to_the_next_endpoint_where_its_home_has_more_than_its_part() {
    let fleet = |kv_use, resident_at| {
        let engine = EngineLoad { kv_use, kv_capacity_tokens: Some(20_000), ..EngineLoad::default() };
        Fleet::new((0..3).map(|slot| Endpoint { engine, resident_at, ..endpoint(slot) }).collect())
    };
    let goes = |kv_use, resident_at: u64, in_flight: usize| {
        let mut fleet = fleet(kv_use, resident_at);
        let prompt = chain(1, 20);
        fleet.holds(2, &prompt[..15]);
        (0..in_flight).for_each(|_| fleet.computes(2, 0));
        fleet.choose(&prompt, 1_280, Avoid::default()).unwrap().endpoint.slot == 2
    };
    // 30,000 tokens of requests take 2,000: a fifteenth is their own. Of 12 requests 4 are beyond an even part and chance.
    assert!(goes(Some(0.1), 30_000, 12) && !goes(Some(0.1), 30_000, 40));
    assert!(goes(Some(0.1), 2_000, 40), "they share nothing");
    assert!(goes(Some(0.1), 0, 40), "nothing ran there when it told");
    assert!(goes(None, 30_000, 40), "nothing is told");
}

/// What is open there from before its trial does not keep away the request that frees it.
#[test]
fn who_is_on_trial_gets_its_request_where_all_share_a_prompt() {
    let engine = EngineLoad { kv_use: Some(0.1), kv_capacity_tokens: Some(20_000), ..EngineLoad::default() };
    let mut endpoints: Vec<Endpoint> =
        (0..3).map(|slot| Endpoint { engine, resident_at: 30_000, ..endpoint(slot) }).collect();
    endpoints[2].health = Health::Trial;
    let mut fleet = Fleet::new(endpoints);
    let prompt = chain(1, 20);
    fleet.holds(2, &prompt[..15]);
    (0..3).for_each(|slot| (0..40).for_each(|_| fleet.computes(slot, 0)));
    fleet.counters.on_trial(2);
    assert_eq!(fleet.choose(&prompt, 1_280, Avoid::default()).unwrap().endpoint.slot, 2);
}

/// Where nobody tells how large a cache is, nothing is known of what requests share: not of who tells nothing at all
/// either.
#[test]
fn who_tells_nothing_shares_no_more_than_those_who_tell_no_size() {
    let engine = |kv_use| EngineLoad { kv_use, kv_capacity_tokens: None, ..EngineLoad::default() };
    let of = |slot, kv_use| Endpoint { engine: engine(kv_use), resident_at: 30_000, ..endpoint(slot) };
    let mut fleet = Fleet::new(vec![of(0, Some(0.1)), of(1, Some(0.1)), of(2, None)]);
    let prompt = chain(1, 20);
    fleet.holds(2, &prompt[..15]);
    (0..40).for_each(|_| fleet.computes(2, 0));
    assert_eq!(fleet.choose(&prompt, 1_280, Avoid::default()).unwrap().endpoint.slot, 2);
}

/// Who is chosen for a prompt of ten blocks, of which the first of two endpoints holds some; so much is pending at the
/// second. Of earlier prompts so many percent were held.
fn between(two: [Endpoint; 2], share: u32, held: u64, pending: u32) -> u16 {
    let mut fleet = Fleet::new(two.into());
    fleet.had(10 * share);
    let prompt = chain(9, 10);
    fleet.holds(0, &prompt[..held as usize]);
    fleet.computes(1, pending);
    fleet.computes(0, 0);
    fleet.choose(&prompt, 640, Avoid::default()).unwrap().endpoint.slot
}

#[test]
fn what_is_new_goes_where_it_pushes_out_what_lay_there_for_longest() {
    let turning = |slot, turnover| Endpoint { turnover, ..endpoint(slot) };
    let goes = |share, turnover, held, pending| between([turning(0, turnover), endpoint(1)], share, held, pending);
    assert_eq!([0.0, 0.5].map(|turnover| goes(100, turnover, 0, 2_000)), [0, 0], "waiting for 2,000 tokens is worse");
    assert_eq!([0.6, 1.0].map(|turnover| goes(100, turnover, 0, 2_000)), [1, 1]);
    assert_eq!(goes(50, 1.0, 0, 2_000), 0, "little of what goes would be found again");
    assert_eq!(goes(60, 1.0, 0, 2_000), 1);
    assert_eq!(goes(100, 1.0, 0, 8 * 640), 0, "no more than what it is to compute the prompt again");
    assert_eq!(goes(100, 1.0, 10, 0), 0, "what is there pushes nothing out");
    assert_eq!(between([turning(0, 1.0), turning(1, 0.8)], 100, 0, 2_000), 0, "they turn over much alike");
}

/// An index that no events write knows only of its own front's prompts: of the others' it does not know what lies there.
#[test]
fn what_is_pushed_out_counts_as_far_as_it_is_known() {
    let of = |policy, foreign| {
        let shared = |slot, turnover| Endpoint { turnover, foreign, ..endpoint(slot) };
        let fleet = Fleet::by(policy, vec![shared(0, 1.0), shared(1, 0.0)]);
        fleet.had(1_000);
        let costs = fleet.choose(&chain(9, 10), 640, Avoid::default()).unwrap().costs.unwrap();
        costs.chosen.new.max(costs.runner_up.unwrap().new) - 6 * 640
    };
    let whole = of(Policy::Warm, 0);
    assert!(whole > 3_000, "{whole}");
    assert_eq!((of(Policy::Precise, 0), of(Policy::Precise, 2)), (whole, whole));
    assert_eq!(of(Policy::Warm, 2), 0, "all that is there is theirs");
}

#[test]
fn what_is_new_goes_where_there_is_room_beside_what_is_there() {
    let engine = EngineLoad { kv_use: Some(0.0), kv_capacity_tokens: Some(10_000), ..EngineLoad::default() };
    let vacant = |slot, vacant| Endpoint { vacant, engine, ..endpoint(slot) };
    let goes =
        |vacancies: [f32; 2], pending| between([vacant(0, vacancies[0]), vacant(1, vacancies[1])], 100, 0, pending);
    assert_eq!(goes([0.0, 0.0], 2_000), 0, "both are full");
    assert_eq!(goes([0.0, 1.0], 2_000), 1);
    assert_eq!(goes([0.0, 0.28], 2_000), 1, "there is room for the prompt behind what was sent there");
    assert_eq!(goes([0.0, 0.21], 2_000), 0, "what was sent there since fills it");
    assert_eq!(goes([0.05, 1.0], 2_000), 0, "there is room for most of it");
    assert_eq!(goes([0.0, 1.0], 8 * 640), 0);
}

/// What was sent there before it told of its cache is in what it told.
#[test]
fn only_what_was_sent_since_takes_of_the_room_that_was_told_of() {
    let engine = EngineLoad { kv_use: Some(0.0), kv_capacity_tokens: Some(10_000), ..EngineLoad::default() };
    let vacant = |slot| Endpoint { vacant: f32::from(slot), engine, ..endpoint(slot) };
    let mut fleet = Fleet::new((0..2).map(vacant).collect());
    fleet.had(1_000);
    (0..2).for_each(|slot| fleet.computes(slot, 1_000_000));
    fleet.running.clear();
    for endpoint in fleet.snapshot.endpoints.iter_mut().flatten() {
        endpoint.dispatched_at = fleet.counters.loads().dispatched(endpoint.id.slot);
    }
    fleet.snapshot.seal();
    fleet.computes(1, 2_000);
    fleet.computes(0, 0);
    let choice = fleet.choose_new(9);
    let costs = choice.costs.unwrap();
    assert_eq!((choice.endpoint.slot, costs.chosen.no_room, costs.runner_up.unwrap().no_room), (1, 0, 0));
    fleet.computes(1, 8_000);
    let choice = fleet.choose_new(9);
    assert_eq!((choice.endpoint.slot, choice.costs.unwrap().runner_up.unwrap().no_room), (0, 3 * 1_000), "it is full");
}

/// All that a burst of one new prefix sends to the endpoint that gets the most, of eight.
fn most_of_a_burst(requests: u64, prefix: u64, own: u64, told: Endpoint) -> f64 {
    let mut fleet = Fleet::new(
        (0..8).map(|slot| Endpoint { engine: told.engine, resident_at: told.resident_at, ..endpoint(slot) }).collect(),
    );
    let tokens = (prefix + own) as u32 * 64;
    (0..2_000).for_each(|_| fleet.counters.prompt(PoolId(0), tokens, 0));
    for number in 0..requests {
        let prompt = [chain(1, prefix), chain(2 + number, own)].concat();
        let choice = fleet.choose(&prompt, tokens, Avoid::default()).unwrap();
        fleet.computes(choice.endpoint.slot, choice.tokens.unwrap().new);
        fleet.holds(choice.endpoint.slot, &prompt);
    }
    let most = (0..8).map(|slot| fleet.counters.in_flight(slot)).max();
    f64::from(most.unwrap())
}

/// Before anything is told of the engines, a prefix stays at its home for as long as what the requests there have of
/// their own, and a fiftieth of a mean prompt for each, is less than the five sixths of its cost elsewhere that others pay.
#[test]
fn a_burst_of_one_new_prefix_leaves_its_home_for_what_it_costs_to_compute_it_again() {
    for (prefix, own) in [(32, 1), (32, 4), (8, 1)] {
        let most = most_of_a_burst(200, prefix, own, endpoint(0));
        let bound = 1.0 + 5.0 * prefix as f64 / (own as f64 + (prefix + own) as f64 / 50.0);
        assert!((0.85 * bound..=bound).contains(&most), "{most} of 200 on one of 8, where {bound} may be");
    }
    // Told that all there share nearly all that they have, none has more than its part and a few.
    let engine = EngineLoad { kv_use: Some(0.01), kv_capacity_tokens: Some(2_000_000), ..EngineLoad::default() };
    let most = most_of_a_burst(200, 32, 1, Endpoint { engine, resident_at: 300_000, ..endpoint(0) });
    assert!(most <= 25.0 + 4.0 + 7.0, "{most} of 200 on one of 8, all of which share a prefix");
}

/// With the look-up before it and the note behind it.
#[test]
fn a_choice_by_tokens_allocates_nothing() {
    for (policy, count) in [(Policy::Warm, 8), (Policy::Warm, 100), (Policy::Precise, 8), (Policy::Precise, 100)] {
        let engine = EngineLoad { kv_use: Some(0.3), kv_capacity_tokens: Some(200_000), ..EngineLoad::default() };
        let rung = |slot| if slot % 5 == 0 { Rung::Hash } else { Rung::Approximate };
        let of = |slot| Endpoint { engine, rung: rung(slot), foreign: 1, turnover: 0.2, ..endpoint(slot) };
        let fleet = Fleet::by(policy, (0..count).map(of).collect());
        fleet.had(600);
        let prompts: Vec<_> = (0..60).map(|seed| (chain(seed, 40), chain(100 + seed, 41 * STEPS as u64))).collect();
        let (pool, mut matches) = (&fleet.snapshot.pools[0], Box::<Matches>::default());
        let allocations = allocation_counter::measure(|| {
            for (chain, steps) in prompts.iter().chain(&prompts) {
                match policy {
                    Policy::Precise => fleet.index.longest_in_steps(chain, steps, pool.eligible().ids(), &mut matches),
                    _ => fleet.index.longest(chain, pool.eligible().ids(), &mut matches),
                }
                let prompt = Prompt { tokens: 2_600, block_tokens: BLOCK_TOKENS, matches: &matches, tie: chain[0] };
                let request = Request { prompt: Some(prompt), ..Request::default() };
                let choice = policy::choose(pool, fleet.counters.loads(), &request).expect("up");
                fleet.index.insert(chain, choice.endpoint, Origin::Choice).expect("nobody else writes");
                // Kept, so that it counts.
                std::mem::forget(fleet.counters.try_admit(choice.endpoint, None));
            }
        });
        assert_eq!(allocations.count_total, 0, "{policy:?} among {count}");
        assert!((0..count).map(|slot| fleet.index.figures(slot).blocks).sum::<u32>() >= 60 * 40);
    }
}

/// How much of what its requests have in a cache of 20,000 tokens is their own, as far as it tells.
fn own(endpoint: &Endpoint) -> f64 {
    match (endpoint.engine.kv_use, endpoint.resident_at) {
        (None, _) | (_, 0) => 1.0,
        (Some(kv), resident) => (f64::from(kv) * 20_000.0 / resident as f64).min(1.0),
    }
}

/// Who does not tell of its cache, beside others who do, is as they are in the mean, which is said with how much its
/// requests have of their own; nothing was sent there since.
fn as_taken(endpoints: &[Endpoint]) -> Vec<(Endpoint, f64, bool)> {
    let told: Vec<&Endpoint> = endpoints.iter().filter(|endpoint| endpoint.engine.kv_use.is_some()).collect();
    let mean = |of: fn(&Endpoint) -> f32| told.iter().map(|endpoint| of(endpoint)).sum::<f32>() / told.len() as f32;
    let taken = |endpoint: &Endpoint| {
        let mut taken = endpoint.clone();
        let like_others = !told.is_empty() && endpoint.engine.kv_use.is_none();
        if like_others {
            taken.engine.kv_use = Some(mean(|endpoint| endpoint.engine.kv_use.unwrap()));
            (taken.turnover, taken.vacant) = (mean(|endpoint| endpoint.turnover), mean(|endpoint| endpoint.vacant));
        }
        let own =
            if like_others { told.iter().map(|one| own(one)).sum::<f64>() / told.len() as f64 } else { own(endpoint) };
        (taken, own, like_others)
    };
    endpoints.iter().map(taken).collect()
}

/// How many tokens of a prompt the requests of an endpoint leave no room for in its cache, beside those that were sent
/// there since it told; less than none where there is room for more. `None`: there is room for all.
fn lacks(endpoint: &Endpoint, in_flight: u32, since: u64, tokens: f64, held: f64) -> Option<f64> {
    let (kv, capacity) = (f64::from(endpoint.engine.kv_use?), endpoint.engine.kv_capacity_tokens? as f64);
    // Half of them in whole tokens, as they are counted.
    let most = if held >= (tokens / 2.0).floor() { 0.97 } else { 0.90 };
    let lacks = kv * capacity + since as f64 + tokens - held + 64.0 - most * capacity;
    (in_flight + endpoint.foreign > 0).then_some(lacks)
}

/// The cost in floating point, as the formula is published.
fn cost(
    endpoint: &Endpoint,
    (pending, in_flight, since): (u64, u32, u64),
    tokens: f64,
    held: f64,
    (displaces, vacant): (f64, bool),
    (even, own): (f64, f64),
) -> f64 {
    let mean = 1_000.0;
    let kv = f64::from(endpoint.engine.kv_use.unwrap_or(0.0));
    let new = tokens - held;
    let has_room = lacks(endpoint, in_flight, since, tokens, held).is_none_or(|lacks| lacks <= 0.0);
    let in_flight = f64::from(in_flight + endpoint.foreign);
    let weight = f64::from(endpoint.weight);
    let held_up = 0.1 * new * in_flight.min(32.0 * weight);
    let uneven = (in_flight - (even * weight).floor() - 4.0).max(0.0) * mean * (1.0 - own).powi(2);
    let room = (f64::from(endpoint.vacant) * 20_000.0).floor() - since as f64;
    // Beside one that has room, what there is no room for; of a cache that nobody tells of nothing is known.
    let counts = vacant && endpoint.engine.kv_use.is_some();
    let displaced = f64::from(endpoint.turnover) * new + if counts { (new - room.max(0.0)).max(0.0) } else { 0.0 };
    let work = pending as f64 + new + 0.02 * mean * in_flight + held_up + uneven + 4.0 * mean * kv;
    work / weight + 5.0 * new + 6.0 * displaces * displaced + if has_room { 0.0 } else { 3.0 * mean }
}

/// Depth held, tokens pending, requests, foreign load, weight, percent of the cache in use, whether what it holds is
/// believed, percent of the cache replaced of late, percent of it that holds nothing yet, whether the engine tells of
/// its cache, tokens of what runs there.
type Drawn = (u64, u32, u32, u32, u32, u32, bool, u32, u32, (bool, u64));

/// So many endpoints. Those that cannot be the least are left out by less than their whole cost.
fn drawn(count: Range<usize>) -> impl Strategy<Value = Vec<Drawn>> {
    let requests = prop_oneof![3 => 0u32..5, 1 => 0u32..40];
    let vacant = prop_oneof![2 => Just(0), 1 => 0u32..=100];
    let cache = (prop::bool::weighted(0.8), prop_oneof![Just(0u64), 1..60_000u64]);
    let believed = prop::bool::weighted(0.8);
    let one = (0u64..40, 0u32..9_000, requests, 0u32..5, 1u32..4, 0u32..=100, believed, 0u32..=100, vacant, cache);
    prop::collection::vec(one, count)
}

proptest! {
    #[test]
    fn the_least_cost_is_chosen(
        each in prop_oneof![3 => drawn(1..12), 1 => drawn(30..80)],
        tokens in 64u32..4_000,
        precise: bool, are_held: bool,
    ) {
        let made = |(slot, (_, _, _, foreign, weight, kv, believed, turnover, vacant, (known, resident))): (u16, &Drawn)| Endpoint {
            rung: if *believed { Rung::Approximate } else { Rung::Hash },
            // Where prompts are held and others send here, a home counts, too: see
            // `fronts_that_know_nothing_of_each_other_meet`.
            foreign: if are_held { 0 } else { *foreign },
            weight: *weight,
            turnover: *turnover as f32 / 100.0,
            resident_at: *resident,
            vacant: if *known { *vacant as f32 / 100.0 } else { 0.0 },
            engine: EngineLoad {
                kv_use: known.then_some(*kv as f32 / 100.0),
                kv_capacity_tokens: Some(20_000),
                ..EngineLoad::default()
            },
            ..endpoint(slot)
        };
        let endpoints: Vec<Endpoint> = (0..).zip(&each).map(made).collect();
        let mut fleet = Fleet::by(if precise { Policy::Precise } else { Policy::Warm }, endpoints.clone());
        if are_held {
            fleet.had(600);
        }
        let prompt = chain(5, 40);
        for (slot, (depth, pending, count, ..)) in (0..).zip(&each) {
            fleet.holds(slot, &prompt[..*depth as usize]);
            (0..*count).for_each(|_| fleet.computes(slot, pending / count));
        }
        let choice = fleet.choose(&prompt, tokens, Avoid::default()).unwrap();
        let mut matches = Matches::default();
        fleet.index.longest(&prompt, fleet.snapshot.pools[0].eligible().ids(), &mut matches);
        let loads = fleet.counters.loads();
        let vacant = endpoints.iter().any(|endpoint| endpoint.vacant > 0.0);
        let displaced = (f64::from(loads.held_share(PoolId(0))), vacant);
        let load: u32 = endpoints.iter().map(|one| loads.in_flight(one.id.slot) + one.foreign).sum();
        let even = f64::from(load) / endpoints.iter().map(|one| f64::from(one.weight)).sum::<f64>();
        let costs: Vec<(f64, Option<f64>)> = as_taken(&endpoints).iter().map(|(endpoint, own, like_others)| {
            let slot = endpoint.id.slot;
            let depth = if endpoint.rung == Rung::Hash { 0 } else { matches.depth(slot) };
            let held = (f64::from(depth) * 64.0).min(f64::from(tokens));
            let since = if *like_others { 0 } else { loads.dispatched(slot) };
            let loads = (loads.pending(slot), loads.in_flight(slot), since);
            let lacks = lacks(endpoint, loads.1, since, f64::from(tokens), held);
            (cost(endpoint, loads, f64::from(tokens), held, displaced, (even, *own)), lacks)
        }).collect();
        // What is counted in whole tokens may have room for one more, or one less.
        prop_assume!(costs.iter().all(|(_, lacks)| lacks.is_none_or(|lacks| lacks.abs() > 2.0)));
        let costs: Vec<f64> = costs.into_iter().map(|(cost, _)| cost).collect();
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        // Whole tokens, and an inverse of the weight that is rounded down.
        prop_assert!(costs[choice.endpoint.slot as usize] <= least * 1.001 + 4.0, "{:?} of {costs:?}", choice);
        let told = choice.costs.unwrap();
        let close = |told: Cost, slot: u16| (f64::from(told.total) - costs[slot as usize]).abs() <= costs[slot as usize] * 0.001 + 4.0;
        prop_assert!(close(told.chosen, choice.endpoint.slot), "{told:?} of {costs:?}");
        prop_assert_eq!((choice.runner_up.is_some(), told.runner_up.is_some()), (costs.len() > 1, costs.len() > 1));
        if let Some((slot, cost)) = choice.runner_up.zip(told.runner_up) {
            prop_assert!(slot != choice.endpoint.slot && close(cost, slot), "{choice:?} of {costs:?}");
            let others = costs.iter().enumerate().filter(|(at, _)| *at != choice.endpoint.slot as usize);
            let second = others.map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
            prop_assert!(costs[slot as usize] <= second * 1.001 + 8.0, "{choice:?} of {costs:?}");
        }
    }
}
