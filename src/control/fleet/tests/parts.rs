//! Parts of the prefix index in a fleet that it is too small for.

use super::*;
use crate::control::ladder::Tells;
use crate::fleet::Rung;
use crate::index::{Index, Matches};

/// `/metrics` of an engine whose cache holds so many tokens.
fn sized(tokens: u64) -> Reading {
    let blocks = tokens / 16;
    Reading::of(format!("vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{blocks}\"}} 1\n").as_bytes())
}

/// Engines, and the time as they know it.
struct Stage {
    fleet: Fleet,
    index: Arc<Index>,
    tokens: Vec<u64>,
    now: Instant,
}

/// With an index of the usual size, as the parts of a smaller one are too small to tell apart.
fn usual(count: u16) -> Config {
    let mut config = numbered(count);
    config.limits.index_bytes = 64 << 20;
    config
}

impl Stage {
    fn of(tokens: Vec<u64>) -> Stage {
        let count = tokens.len() as u16;
        let mut fleet = fleet_by(count, usual(count));
        let index = fleet.snapshot().index.unwrap();
        Stage { fleet, index, tokens, now: Instant::now() }
    }

    fn id(&self, place: usize) -> EndpointId {
        self.fleet.target(place).unwrap().0
    }

    fn scrape(&mut self, place: usize) {
        let read = Ok((sized(self.tokens[place]), Ours::default()));
        self.fleet.scraped(place, self.id(place), read, self.now);
    }

    /// All engines are scraped, and four turns of control pass.
    fn second(&mut self) {
        (0..self.tokens.len()).for_each(|place| self.scrape(place));
        self.fleet.caches.tick();
        for _ in 0..4 {
            self.now += Duration::from_millis(250);
            self.fleet.tick(self.now, |_| 0, nothing);
        }
    }

    fn capacities(&self) -> Vec<u32> {
        (0..self.tokens.len()).map(|place| self.index.figures(self.id(place).slot).capacity).collect()
    }

    /// None has less than a share, nor what the others leave room for, and those of a size differ by a chunk at most.
    fn is_even(&self) {
        let capacities = self.capacities();
        let (least, most) = (capacities.iter().min().unwrap(), capacities.iter().max().unwrap());
        let share = self.index.share();
        assert!(*least >= share && most - least <= share / 4, "{share}: {capacities:?}");
    }

    fn moves(&mut self, place: usize) {
        let next = SocketAddr::from(([10, 0, 1, 1], self.id(place).generation as u16 * 1_000 + place as u16));
        assert!(self.fleet.resolved(place, vec![next], self.now));
    }

    fn sends(&self, place: usize, first: u64, blocks: u64) -> Vec<u64> {
        let chain: Vec<u64> = (first..first + blocks).map(|at| (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        self.index.insert(&chain, self.id(place), Origin::Choice).unwrap();
        chain
    }

    fn depth(&self, place: usize, chain: &[u64]) -> u32 {
        let mut found = Matches::default();
        self.index.longest(chain, &[self.id(place)], &mut found);
        found.depth(self.id(place).slot)
    }
}

#[test]
fn a_rolling_update_leaves_every_part_as_large_as_it_was() {
    for (engines, tokens) in [(64, 1_000_000), (100, 480_000), (200, 480_000)] {
        let mut stage = Stage::of(vec![tokens; engines]);
        (0..3).for_each(|_| stage.second());
        stage.is_even();
        let before: u64 = stage.capacities().iter().map(|&capacity| u64::from(capacity)).sum();
        for place in 0..engines {
            stage.moves(place);
            let capacity = stage.capacities()[place];
            assert!(capacity >= stage.index.share(), "{engines}: {place} has {capacity} as it comes");
            // Others are scraped before it says anything.
            (1..8).for_each(|other| stage.scrape((place + 8 * other) % engines));
            if place % 4 == 3 {
                stage.second();
            }
        }
        (0..3).for_each(|_| stage.second());
        stage.is_even();
        let after: u64 = stage.capacities().iter().map(|&capacity| u64::from(capacity)).sum();
        assert_eq!(before, after, "{engines}");
        stage.index.audit().unwrap();
    }
}

/// All of them at once, and nobody says how large it is.
#[test]
fn engines_that_move_together_have_parts_of_their_own() {
    let mut stage = Stage::of(vec![480_000; 100]);
    (0..3).for_each(|_| stage.second());
    (0..100).for_each(|place| stage.moves(place));
    stage.is_even();
}

#[test]
fn an_engine_that_is_not_heard_for_a_moment_has_its_part_when_it_is() {
    let mut stage = Stage::of(vec![480_000; 64]);
    for place in 0..64 {
        stage.fleet.notes(place, stage.id(place), Unit::Steps);
    }
    (0..3).for_each(|_| stage.second());
    stage.is_even();
    let before = stage.capacities();
    for place in [0, 33, 63] {
        stage.fleet.empty(place, stage.id(place));
        stage.fleet.notes(place, stage.id(place), Unit::Blocks);
        (0..5).for_each(|_| stage.second());
        assert_eq!(stage.capacities()[place], before[place].min(480_000 * 4 / 256), "no larger than its cache");
        stage.fleet.notes(place, stage.id(place), Unit::Steps);
        assert_eq!(stage.capacities(), before, "at once, and nobody has lost any");
    }
    // And one that is a new process at another address.
    stage.moves(7);
    stage.second();
    stage.fleet.notes(7, stage.id(7), Unit::Steps);
    stage.second();
    stage.is_even();
}

/// One group of its layers may have most of the blocks, and what all groups have room for is a fourth of that.
#[test]
fn a_hybrid_that_is_heard_has_room_for_all_that_one_group_may_hold() {
    let mut fleet = fleet(1);
    let (id, now) = (fleet.target(0).unwrap().0, Instant::now());
    let config = "block_size=\"16\",num_gpu_blocks=\"1000\",kv_cache_size_tokens=\"4000\"";
    let scrape = |fleet: &mut Fleet| {
        let reading = Reading::of(format!("vllm:cache_config_info{{{config}}} 1\n").as_bytes());
        assert_eq!(reading.load.kv_capacity_tokens, Some(4_000));
        fleet.scraped(0, id, Ok((reading, Ours::default())), now);
        fleet.caches.figures(id.slot).capacity
    };
    assert_eq!(scrape(&mut fleet), 4_000 * 4 / 256);
    fleet.notes(0, id, Unit::Steps);
    assert_eq!(fleet.caches.figures(id.slot).capacity, 16_000 * 4 / 64);
    assert_eq!(scrape(&mut fleet), 16_000 * 4 / 64);
    fleet.notes(0, id, Unit::Blocks);
    assert_eq!(scrape(&mut fleet), 4_000 * 4 / 256);
}

/// Nobody tells any more: what was kept for steps goes to those that can use it.
#[test]
fn room_is_not_kept_for_ever() {
    let mut stage = Stage::of(vec![480_000; 64]);
    for place in 0..64 {
        stage.fleet.notes(place, stage.id(place), Unit::Steps);
    }
    (0..3).for_each(|_| stage.second());
    let before = stage.capacities()[1];
    stage.fleet.notes(0, stage.id(0), Unit::Blocks);
    (0..601).for_each(|_| stage.fleet.caches.tick());
    (0..2).for_each(|_| stage.second());
    let (capacities, share) = (stage.capacities(), stage.index.share());
    assert!((share..=7_500).contains(&capacities[0]) && capacities[0] < before, "{share}: {capacities:?}");
    assert!(capacities[1] > before, "{before}: {capacities:?}");
}

#[test]
fn engines_that_come_later_get_as_much_from_those_that_are_there() {
    let mut stage = Stage::of(vec![2_000_000; 40]);
    (0..3).for_each(|_| stage.second());
    stage.is_even();
    // Half of them are full.
    let chains: Vec<_> = (0..20).map(|place| stage.sends(place, place as u64 * 100_000, 24_000)).collect();
    let youngest: Vec<_> = (0..20).map(|place| stage.sends(place, 10_000_000, 200)).collect();
    stage.fleet.reconfigure(Arc::new(usual(60)), Vec::new(), Arc::default(), stage.now);
    for place in 40..60 {
        stage.fleet.resolved(place.into(), vec![at(place)], stage.now);
        let capacity = stage.index.figures(stage.id(place.into()).slot).capacity;
        assert!(capacity >= stage.index.share(), "{place} has {capacity} as it comes");
        stage.tokens.push(2_000_000);
    }
    // Those that came are heard of first: what they lack is taken from the others.
    (40..60).for_each(|place| stage.scrape(place));
    assert!(stage.capacities()[40..].iter().all(|&capacity| capacity > stage.index.share()));
    (0..3).for_each(|_| stage.second());
    stage.is_even();
    stage.index.audit().unwrap();
    for place in 0..20 {
        assert_eq!(stage.depth(place, &youngest[place]), 200, "the oldest went");
        assert!(stage.depth(place, &chains[place]) > 10_000, "and no more than had to");
    }
}

#[test]
fn small_caches_are_known_whole_and_large_ones_up_to_one_size() {
    let large_first = (0..100).map(|place| if place < 50 { 1_600_000 } else { 160_000 }).collect();
    let large_last = (0..100).map(|place| if place < 50 { 160_000 } else { 1_600_000 }).collect();
    let seen = |tokens: Vec<u64>| {
        let mut stage = Stage::of(tokens);
        (0..3).for_each(|_| stage.second());
        let mut capacities = stage.capacities();
        capacities.sort_unstable();
        (stage.index.share(), capacities)
    };
    let (share, capacities) = seen(large_first);
    let differ = |one: &[u32], other: &[u32]| one.iter().zip(other).map(|(one, other)| one.abs_diff(*other)).max();
    assert!(differ(&capacities, &seen(large_last).1) <= Some(share / 4), "whoever is asked first");
    assert!(capacities[0] >= share && capacities[49] <= 2_500, "{share}: {capacities:?}");
    assert!(capacities[50] > 3 * share && capacities[99] - capacities[50] <= share / 4, "{share}: {capacities:?}");
    let (share, capacities) = seen((1..=100).map(|place| place * 20_000).collect());
    let whole = |place: u32| place * 20_000 * 4 / 256;
    assert!((1..=19).all(|place| capacities[place as usize - 1] == whole(place)), "{share}: {capacities:?}");
    assert!(capacities[19] > 2 * share && capacities[99] - capacities[19] <= share / 4, "{share}: {capacities:?}");
}

/// As large as the largest that can be, by its own word: the others have what they had, or as much as it.
#[test]
fn who_says_that_it_holds_far_too_much_takes_little_from_others() {
    let seen = |tokens: Vec<u64>| {
        let mut stage = Stage::of(tokens);
        (0..3).for_each(|_| stage.second());
        stage.capacities()
    };
    for tokens in [400_000, 8_000_000] {
        let (honest, among) = (seen(vec![tokens; 8]), seen([vec![tokens; 7], vec![1 << 32]].concat()));
        let lost = honest[..7].iter().zip(&among).map(|(before, now)| before.saturating_sub(*now)).max();
        assert_eq!(lost, Some(0), "{honest:?} {among:?}");
    }
}

/// So many leave at once that those who come get slots for which the index has no place: they are cold no longer than
/// that lasts.
#[test]
fn who_came_while_others_were_leaving_has_a_part_once_they_have_left() {
    let mut stage = Stage::of(vec![480_000; 64]);
    let seats = stage.index.seats();
    let mut addresses = 1_u16..;
    let mut moves = |stage: &mut Stage, place: usize| {
        let next = SocketAddr::from(([10, 0, 2, 1], addresses.next().unwrap()));
        assert!(stage.fleet.resolved(place, vec![next], stage.now));
    };
    while usize::from(stage.id(0).slot) < seats - 1 {
        moves(&mut stage, 0);
    }
    for place in [1, 2, 3] {
        moves(&mut stage, place);
        assert_eq!(usize::from(stage.id(place).slot), seats - 1 + place);
    }
    let answers = |stage: &mut Stage, place: usize| {
        let (id, _) = stage.fleet.target(place).unwrap();
        stage.fleet.probed(place, id, Ok(()), stage.now);
    };
    let healths = |stage: &Stage| [1, 2, 3].map(|place| stage.fleet.members()[place].health().unwrap());
    for place in 0..64 {
        serves(&mut stage.fleet, place, &["a"]);
        [1, 2].contains(&place).then(|| answers(&mut stage, place));
    }
    (0..2).for_each(|_| stage.second());
    assert_eq!(stage.capacities()[1..4], [0; 3], "the slots of those who left rest yet");
    // Half full: with four of ours, one of which waits.
    let busy = b"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"30000\"} 1\nvllm:num_requests_running 3\n\
        vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n";
    let (streams, heard) = (stage.id(1).slot, stage.id(1));
    stage.fleet.tenancy(1, heard).unwrap().truth.tells(Tells::All, stage.now);
    let mut told = Vec::new();
    let mut second = || {
        (0..64).for_each(|place| stage.scrape(place));
        let (id, ours) = (stage.id(1), Ours { in_flight: 4, resident: 100_000, ..Ours::default() });
        stage.fleet.scraped(1, id, Ok((Reading::of(busy), ours)), stage.now);
        stage.fleet.caches.tick();
        for _ in 0..4 {
            stage.now += Duration::from_millis(250);
            stage.fleet.tick(stage.now, |slot| u32::from(slot == streams), nothing);
            let now = stage.fleet.members()[1].now.as_ref().unwrap();
            let capacity = now.reading.as_ref().and_then(|(reading, _)| reading.load.kv_capacity_tokens);
            let rung = now.truth.ladder.rung();
            told.push((now.id != id, capacity, now.foreign, now.room.map(|(room, _)| room.base), rung));
        }
        [1, 2, 3].map(|place| usize::from(stage.id(place).slot) < seats)
    };
    assert_eq!((0..4).map(|_| second()).last(), Some([true, true, false]), "whatever runs where they were");
    // A quarter of ours waits for its 25,000 tokens.
    let moved = told.iter().find(|told| told.0);
    let expected = (true, Some(480_000), 4, Some(265_000), Rung::Approximate);
    assert_eq!(moved, Some(&expected), "what it told holds until it tells more, and nobody hears it there yet");
    assert_eq!(healths(&stage)[..2], [Health::Up; 2], "they serve on");
    answers(&mut stage, 3);
    (0..4).for_each(|_| stage.second());
    assert!(usize::from(stage.id(3).slot) < seats, "once it is up");
    stage.is_even();
    stage.index.audit().unwrap();
}
