//! Properties of ring, choice and counters, over generated fleets.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use warmfront::counters::{Admission, Counters};
use warmfront::fleet::{Endpoint, EndpointId, Health, Loads};
use warmfront::policy::{
    Avoid, Bound, CHOICES_MAX, Choice, Nobody, Policy, Pool, PoolId, Reason, Request, Settings, choose,
};
use warmfront::ring::Ring;
use warmfront::snapshot::Snapshot;

/// An endpoint named after its slot, of weight 1, up.
fn endpoint(slot: u16) -> Endpoint {
    let id = EndpointId { slot, generation: 40 + u32::from(slot) };
    let name = format!("engine-{slot}:8000").into();
    Endpoint { health: Health::Up, ..Endpoint::new(id, name, ([10, 0, 0, 1], 8000).into()) }
}

fn ring_of<'a>(endpoints: impl IntoIterator<Item = &'a Endpoint>) -> Ring {
    let members: Vec<_> = endpoints.into_iter().map(|one| (one.id.slot, &*one.name, one.weight)).collect();
    Ring::build(&members, 256)
}

/// A sealed snapshot of one pool.
fn snapshot(endpoints: Vec<Endpoint>, settings: Settings) -> Snapshot {
    let members: Arc<[u16]> = endpoints.iter().map(|one| one.id.slot).collect();
    let pool = Pool::new(PoolId(0), "m".into(), members, Arc::new(ring_of(&endpoints)), Arc::new(settings));
    let mut slots = vec![None; endpoints.iter().map(|one| one.id.slot as usize + 1).max().unwrap_or(0)];
    for one in endpoints {
        let slot = one.id.slot as usize;
        slots[slot] = Some(one);
    }
    let mut snapshot = Snapshot { endpoints: slots, pools: vec![pool], ..Snapshot::default() };
    snapshot.seal();
    snapshot
}

fn fleet(count: u16, settings: Settings) -> Snapshot {
    snapshot((0..count).map(endpoint).collect(), settings)
}

fn by(policy: Policy) -> Settings {
    Settings { policy, ..Settings::default() }
}

fn keyed(key: u64) -> Request<'static> {
    Request { key: Some(key), session: Some(key), random: key.rotate_left(17), ..Request::default() }
}

/// Keys as hashes are: spread over 64 bits.
fn key(i: u64) -> u64 {
    (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Chooses and admits as a shard does.
fn place(snapshot: &Snapshot, counters: &'static Counters, request: &Request) -> (Choice, Admission) {
    try_place(snapshot, counters, request).expect("an endpoint takes requests")
}

/// The same, where caps may be reached: a cap holds also for the last choice.
fn try_place(
    snapshot: &Snapshot,
    counters: &'static Counters,
    request: &Request,
) -> Result<(Choice, Admission), Nobody> {
    for attempt in 1.. {
        let choice = choose(&snapshot.pools[0], counters.loads(), request)?;
        let bound = choice.bound.filter(|_| attempt < CHOICES_MAX);
        if let Some(admission) = counters.try_admit_below(choice.endpoint, choice.caps.and(bound)) {
            return Ok((choice, admission));
        }
    }
    unreachable!("somebody else was admitted each time")
}

/// The bound by its definition, in wide integers.
fn slots_of(total: u64, weight: u64, weights: u64, settings: &Settings) -> u64 {
    let share = u128::from(total + 1) * u128::from(weight);
    let weights = u128::from(weights);
    let relative = (share * u128::from(settings.load_percent)).div_ceil(100 * weights);
    let absolute = share / weights + u128::from(settings.load_slack);
    relative.max(absolute).max(1) as u64
}

// The ring.

#[test]
fn homes_are_balanced() {
    for count in [2u16, 8, 64] {
        let endpoints: Vec<Endpoint> = (0..count).map(endpoint).collect();
        let ring = ring_of(&endpoints);
        let keys = u64::from(count) * 5_000;
        let mut homes = vec![0u64; count as usize];
        for i in 0..keys {
            homes[ring.walk(key(i)).next().expect("points") as usize] += 1;
        }
        // 256 points: shares deviate by 1/16 on average; four times that is far outside.
        for (slot, &share) in homes.iter().enumerate() {
            assert!((3_750..=6_250).contains(&share), "slot {slot} of {count} is home to {share}, mean 5000");
        }
    }
}

#[test]
fn weights_multiply_homes() {
    let mut endpoints: Vec<Endpoint> = (0..4).map(endpoint).collect();
    endpoints[2].weight = 3;
    let ring = ring_of(&endpoints);
    let heavy = (0..60_000).filter(|&i| ring.walk(key(i)).next() == Some(2)).count();
    assert!((27_000..=33_000).contains(&heavy), "weight 3 of 6 is home to {heavy} of 60000");
}

proptest! {
    /// Who joins takes keys from all and moves none between the others; who leaves, the reverse.
    #[test]
    fn only_the_keys_of_a_newcomer_move(count in 1u16..24, newcomer in 100u16..200, seed: u64) {
        let mut endpoints: Vec<Endpoint> = (0..count).map(endpoint).collect();
        let before = ring_of(&endpoints);
        endpoints.push(endpoint(newcomer));
        let after = ring_of(&endpoints);
        let keys = 4_000u64;
        let mut moved = 0;
        for i in 0..keys {
            let key = key(seed.wrapping_add(i));
            let (old, new) = (before.walk(key).next(), after.walk(key).next());
            prop_assert!(new == old || new == Some(newcomer));
            moved += u64::from(new != old);
        }
        let fair = keys / (u64::from(count) + 1);
        prop_assert!(moved < fair * 3 / 2 + 50, "{moved} moved, fair share {fair}");
    }

    /// Order of members and their slots are not part of the points: every front agrees by name.
    #[test]
    fn rings_agree_by_name(count in 1u16..16, shift in 0u16..900, keys in prop::collection::vec(any::<u64>(), 32)) {
        let endpoints: Vec<Endpoint> = (0..count).map(endpoint).collect();
        let mut elsewhere = endpoints.clone();
        elsewhere.iter_mut().for_each(|one| one.id.slot += shift);
        elsewhere.reverse();
        let (here, there) = (ring_of(&endpoints), ring_of(&elsewhere));
        for key in keys {
            prop_assert!(here.walk(key).map(|slot| slot + shift).eq(there.walk(key)));
        }
    }

    /// "x-1" with point 12 is not "x-11" with point 2.
    #[test]
    fn names_that_extend_each_other_share_no_points(name in "[a-z]-[0-9]{1,2}", digit in 0u8..10) {
        let longer = format!("{name}{digit}");
        let ring = Ring::build(&[(0, &name, 1), (1, &longer, 1)], 256);
        // Equal points would stand in pairs, so that the second of a pair never has a key of its own.
        let runs = ring.walk(0).collect::<Vec<_>>().chunk_by(|a, b| a == b).count();
        prop_assert!((206..=306).contains(&runs), "{runs} runs of 512 points");
    }
}

// The bound.

#[derive(Clone, Debug)]
enum Step {
    Begin(u64),
    End(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few keys, so that hot homes overflow; more begins than ends, so that load builds up.
    let step = prop_oneof![
        3 => (0u64..6).prop_map(|i| Step::Begin(key(i))),
        1 => any::<usize>().prop_map(Step::End),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #[test]
    fn no_endpoint_is_chosen_at_its_bound(
        weights in prop::collection::vec(1u32..5, 1..12),
        foreign in prop::collection::vec(0u32..6, 12),
        (percent, slack) in (100u32..200, 0u32..5),
        steps in steps(),
    ) {
        let endpoints = weights.iter().zip(&foreign).zip(0u16..).map(|((&weight, &foreign), slot)| {
            Endpoint { weight, foreign, ..endpoint(slot) }
        });
        let settings = Settings { load_percent: percent, load_slack: slack, ..Settings::default() };
        let snapshot = snapshot(endpoints.collect(), settings.clone());
        let counters = Counters::leak();
        let weight_sum: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        let load = |slot: u16| u64::from(counters.in_flight(slot)) + u64::from(foreign[slot as usize]);
        let total = || (0..weights.len() as u16).map(load).sum::<u64>();

        let mut running = Vec::new();
        for step in steps {
            match step {
                Step::Begin(key) => {
                    let before = total();
                    let (choice, admission) = place(&snapshot, counters, &keyed(key));
                    let slot = choice.endpoint.slot;
                    prop_assert_eq!(choice.total, Some(before));
                    prop_assert_eq!(u64::from(choice.in_flight) + 1, load(slot));
                    if choice.reason == Reason::AllFull {
                        // The bounds add up to more than the load, so only a short walk can miss all.
                        continue;
                    }
                    let slots = slots_of(before, weights[slot as usize].into(), weight_sum, &settings);
                    prop_assert!(load(slot) <= slots, "{} on {slot}, bound {slots}", load(slot));
                    prop_assert_eq!(choice.bound.map(u64::from), Some(slots - u64::from(foreign[slot as usize])));
                    running.push(admission);
                }
                Step::End(i) if !running.is_empty() => drop(running.swap_remove(i % running.len())),
                Step::End(_) => {}
            }
        }
        drop(running);
        prop_assert!((0..weights.len() as u16).all(|slot| counters.in_flight(slot) == 0));
        prop_assert_eq!(counters.underflow(), 0);
    }

    /// The walk, against the same rule written naively: distinct endpoints in ring order, first below its bound.
    #[test]
    fn the_walk_takes_the_first_acceptable(
        count in 1u16..10,
        ups in prop::collection::vec(prop::bool::weighted(0.7), 10),
        loads in prop::collection::vec(0u32..12, 10),
        avoided in prop::collection::vec(0u16..10, 0..3),
        key: u64,
    ) {
        let endpoints: Vec<Endpoint> = (0..count).zip(&ups).map(|(slot, &up)| {
            Endpoint { health: if up { Health::Up } else { Health::Draining }, ..endpoint(slot) }
        }).collect();
        let settings = Settings { load_slack: 1, ..Settings::default() };
        let snapshot = snapshot(endpoints, settings.clone());
        let counters = Counters::leak();
        let mut running = Vec::new();
        for slot in 0..count {
            let id = EndpointId { slot, generation: 0 };
            running.extend((0..loads[slot as usize]).filter_map(|_| counters.try_admit(id, None)));
        }
        let mut avoid = Avoid::default();
        avoided.iter().for_each(|&slot| avoid.push(slot));

        let up: Vec<u16> = (0..count).filter(|&slot| ups[slot as usize]).collect();
        let total: u64 = up.iter().map(|&slot| u64::from(loads[slot as usize])).sum();
        let ring = &snapshot.pools[0].ring;
        let candidates = ring.walk(key).take(4 * count as usize).filter(|slot| up.contains(slot) && !avoid.contains(*slot));
        let first = candidates.clone().find(|&slot| {
            u64::from(loads[slot as usize]) < slots_of(total, 1, up.len() as u64, &settings)
        });
        let least = up.iter().filter(|slot| !avoid.contains(**slot)).map(|&slot| loads[slot as usize]).min();

        let choice = choose(&snapshot.pools[0], counters.loads(), &Request { avoid, ..keyed(key) });
        match (choice, first) {
            (Ok(choice), Some(first)) => {
                prop_assert_eq!(choice.endpoint, EndpointId { slot: first, generation: 40 + u32::from(first) });
                let home = candidates.clone().next();
                let reason = if !avoid.is_empty() { Reason::Retry } else if home == Some(first) { Reason::Home } else { Reason::Spill };
                prop_assert_eq!(choice.reason, reason);
            }
            (Ok(choice), None) => prop_assert_eq!(Some(loads[choice.endpoint.slot as usize]), least),
            (Err(nobody), first) => {
                prop_assert_eq!(nobody, Nobody::NoneTakesRequests);
                prop_assert!(first.is_none() && least.is_none());
            }
        }
    }
}

/// Shards race for the last slots of a hot home: beyond its bound it gets at most one request from each other shard.
#[test]
fn overshoot_is_at_most_the_other_shards() {
    const SHARDS: usize = 6;
    const HELD: usize = 20;
    let counters = Counters::leak();
    let settings = Settings { load_slack: 0, ..Settings::default() };
    let snapshot = fleet(4, settings.clone());
    // With every shard holding its share the total never passes this, so neither does a bound.
    let bound = slots_of((SHARDS * (HELD + 1)) as u64, 1, 4, &settings);
    std::thread::scope(|scope| {
        for shard in 0..SHARDS {
            let snapshot = &snapshot;
            scope.spawn(move || {
                let mut running = std::collections::VecDeque::new();
                for i in 0..4_000 {
                    // One hot key, and a few others.
                    let hot = if i % 8 == 0 { key((i + shard) as u64) } else { key(7) };
                    let (choice, admission) = place(snapshot, counters, &keyed(hot));
                    running.push_back(admission);
                    let seen = u64::from(counters.in_flight(choice.endpoint.slot));
                    assert!(seen < bound + SHARDS as u64, "{seen} in flight, bound {bound}");
                    if running.len() > HELD {
                        running.pop_front();
                    }
                }
            });
        }
    });
    assert!((0..4).all(|slot| counters.in_flight(slot) == 0));
    assert_eq!(counters.underflow(), 0);
}

/// Without releases in between, a bound that all shards share is never passed at all.
#[test]
fn a_shared_bound_holds_among_threads() {
    let counters = Counters::leak();
    let id = EndpointId { slot: 3, generation: 0 };
    let admitted: Vec<Admission> = std::thread::scope(|scope| {
        let shards: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..500).filter_map(|_| counters.try_admit(id, Some(1_001))).collect::<Vec<_>>()))
            .collect();
        shards.into_iter().flat_map(|shard| shard.join().expect("no panic")).collect()
    });
    assert_eq!((admitted.len(), counters.in_flight(3)), (1_001, 1_001));
}

// What other routers got wrong.

/// A burst that completes nothing still spreads: load counts at the choice.
#[test]
fn a_burst_does_not_land_on_one_endpoint() {
    for policy in [Policy::LeastLoad, Policy::PrefixHash, Policy::Session] {
        let counters = Counters::leak();
        let snapshot = fleet(8, by(policy));
        // All of one key and one draw: but for their load, they would all go to one endpoint.
        let running: Vec<_> = (0..800).map(|_| place(&snapshot, counters, &keyed(key(7)))).collect();
        let most = (0..8).map(|slot| counters.in_flight(slot)).max();
        // 1.25 * 801 / 8, or the mean and the slack.
        assert!(most <= Some(126), "{policy:?}: {most:?} of 800 on one of 8");
        drop(running);
    }
}

/// Everyone has the same system prompt: the home fills to its bound, the rest spill over the fleet.
#[test]
fn one_key_for_all_still_uses_the_fleet() {
    let counters = Counters::leak();
    let snapshot = fleet(8, by(Policy::PrefixHash));
    let placed: Vec<_> = (0..400).map(|_| place(&snapshot, counters, &keyed(key(1)))).collect();
    // 400 over bounds of 62 or 63 fill six endpoints; the rest is on a seventh.
    assert!((0..8).all(|slot| counters.in_flight(slot) <= 63));
    assert!((0..8).filter(|&slot| counters.in_flight(slot) > 0).count() >= 7);
    assert_eq!(placed[0].0.reason, Reason::Home);
    let (spill, _) = placed.iter().find(|(choice, _)| choice.reason == Reason::Spill).expect("a spill");
    assert_eq!(spill.runner_up, Some(placed[0].0.endpoint.slot), "a spill names the home");
}

/// The slack keeps a hot prefix home at low counts, where a relative bound alone would spray it.
#[test]
fn a_few_requests_stay_at_home() {
    let counters = Counters::leak();
    let snapshot = fleet(8, by(Policy::PrefixHash));
    let placed: Vec<_> = (0..5).map(|_| place(&snapshot, counters, &keyed(key(1)))).collect();
    assert!(placed[..4].iter().all(|(choice, _)| choice.reason == Reason::Home));
    assert_eq!(placed[4].0.reason, Reason::Spill);
}

/// Nothing to tell endpoints apart: each gets its share, not the first all of it.
#[test]
fn ties_are_broken_at_random() {
    let snapshot = fleet(8, by(Policy::LeastLoad));
    let mut chosen = HashMap::<u16, u32>::new();
    for i in 0..8_000 {
        let choice = choose(&snapshot.pools[0], &Loads::default(), &keyed(key(i))).expect("eight are up");
        *chosen.entry(choice.endpoint.slot).or_default() += 1;
    }
    assert!(chosen.len() == 8 && chosen.values().all(|count| (850..1_150).contains(count)), "{chosen:?}");
}

/// A missing key falls to the least load, and says why.
#[test]
fn the_ladder_names_what_was_missing() {
    let (prefix, session) = (fleet(4, by(Policy::PrefixHash)), fleet(4, by(Policy::Session)));
    let counters = Counters::leak();
    let busy: Vec<_> = [0, 1, 3].map(|slot| counters.try_admit(EndpointId { slot, generation: 0 }, None)).into();
    let reason = |snapshot: &Snapshot, request: Request| {
        let choice = choose(&snapshot.pools[0], counters.loads(), &request).expect("four are up");
        assert_eq!(choice.endpoint.slot, 2, "the least loaded");
        choice.reason
    };
    assert_eq!(reason(&prefix, Request::default()), Reason::NoPrefix);
    assert_eq!(reason(&prefix, Request { unscannable: true, ..Request::default() }), Reason::Unscannable);
    assert_eq!(reason(&session, Request::default()), Reason::NoSession);
    drop(busy);
}

/// A home that fails its probes: its keys go on along the ring, each to its next endpoint, not all to one.
#[test]
fn keys_of_a_failed_home_scatter() {
    let whole = fleet(8, by(Policy::PrefixHash));
    let endpoints =
        (0..8).map(|slot| Endpoint { health: if slot == 5 { Health::Down } else { Health::Up }, ..endpoint(slot) });
    let without = snapshot(endpoints.collect(), by(Policy::PrefixHash));
    let (loads, mut heirs) = (Loads::default(), HashMap::<u16, u32>::new());
    for i in 0..4_000 {
        let home = choose(&whole.pools[0], &loads, &keyed(key(i))).expect("up").endpoint;
        let choice = choose(&without.pools[0], &loads, &keyed(key(i))).expect("up");
        assert_eq!(choice.reason, Reason::Home);
        if home.slot == 5 {
            *heirs.entry(choice.endpoint.slot).or_default() += 1;
        } else {
            assert_eq!(choice.endpoint, home, "other keys stay");
        }
    }
    assert!(!heirs.contains_key(&5) && heirs.len() == 7, "{heirs:?}");
}

/// Failing probes never empty a fleet; draining does.
#[test]
fn a_fleet_that_fails_all_probes_is_tried() {
    let all = |health| (0..3).map(|slot| Endpoint { health, ..endpoint(slot) }).collect::<Vec<_>>();
    let down = snapshot(all(Health::Down), by(Policy::PrefixHash));
    assert!(choose(&down.pools[0], &Loads::default(), &keyed(1)).is_ok());
    assert!(down.pools[0].eligible().last_resort());
    let draining = snapshot(all(Health::Draining), by(Policy::PrefixHash));
    assert!(choose(&draining.pools[0], &Loads::default(), &keyed(1)).is_err());
}

#[test]
fn endpoints_tried_are_not_chosen_again() {
    for policy in [Policy::Random, Policy::RoundRobin, Policy::LeastLoad, Policy::Session, Policy::PrefixHash] {
        let snapshot = fleet(4, by(policy));
        let mut request = keyed(key(3));
        for tried in 0..4 {
            let choice = choose(&snapshot.pools[0], &Loads::default(), &request).expect("one is left");
            assert!(!request.avoid.contains(choice.endpoint.slot), "{policy:?}");
            assert_eq!(choice.reason == Reason::Retry, tried > 0, "{policy:?}");
            request.avoid.push(choice.endpoint.slot);
        }
        assert_eq!(
            choose(&snapshot.pools[0], &Loads::default(), &request),
            Err(Nobody::NoneTakesRequests),
            "{policy:?}"
        );
    }
}

/// Load that other fronts put on an endpoint fills its bound as ours does.
#[test]
fn foreign_load_counts() {
    let home = choose(&fleet(4, by(Policy::PrefixHash)).pools[0], &Loads::default(), &keyed(1)).expect("up").endpoint;
    let endpoints = |foreign| {
        (0..4).map(move |slot| Endpoint { foreign: if slot == home.slot { foreign } else { 0 }, ..endpoint(slot) })
    };
    let full = snapshot(endpoints(40).collect(), by(Policy::PrefixHash));
    let choice = choose(&full.pools[0], &Loads::default(), &keyed(1)).expect("up");
    assert_eq!((choice.reason, choice.runner_up, choice.total), (Reason::Spill, Some(home.slot), Some(40)));
    // T = 3, n = 4: max(ceil(1.25), floor(1) + 4) = 5 slots, of which foreign load takes 3.
    let partly = snapshot(endpoints(3).collect(), by(Policy::PrefixHash));
    let choice = choose(&partly.pools[0], &Loads::default(), &keyed(1)).expect("up");
    assert_eq!((choice.endpoint, choice.in_flight, choice.bound), (home, 3, Some(2)));
    let least = snapshot(endpoints(1).collect(), by(Policy::LeastLoad));
    for i in 0..100 {
        assert_ne!(choose(&least.pools[0], &Loads::default(), &keyed(key(i))).expect("up").endpoint, home);
    }
}

#[test]
fn weights_share_out_every_policy() {
    for policy in [Policy::Random, Policy::RoundRobin, Policy::LeastLoad] {
        let endpoints = (0..4).map(|slot| Endpoint { weight: 1 + u32::from(slot == 1) * 2, ..endpoint(slot) });
        let (snapshot, counters) = (snapshot(endpoints.collect(), by(policy)), Counters::leak());
        let placed: Vec<_> =
            (0..6_000).map(|i| place(&snapshot, counters, &Request { turn: i, ..keyed(key(i)) })).collect();
        let heavy = counters.in_flight(1);
        assert!((2_850..3_150).contains(&heavy), "{policy:?}: weight 3 of 6 has {heavy} of 6000");
        drop(placed);
    }
}

/// Each request counts where it would go, else all that are idle are alike.
#[test]
fn the_least_load_of_idle_ones_is_that_of_the_heaviest() {
    let slow = Endpoint { share_percent: 10, ..endpoint(0) };
    for (one, other) in [(endpoint(0), Endpoint { weight: 4, ..endpoint(1) }), (slow, endpoint(1))] {
        let snapshot = snapshot(vec![one, other], by(Policy::LeastLoad));
        let chosen = |i| choose(&snapshot.pools[0], &Loads::default(), &keyed(key(i))).expect("up").endpoint.slot;
        assert!((0..100).all(|i| chosen(i) == 1));
    }
}

#[test]
fn round_robin_goes_round() {
    let snapshot = fleet(3, by(Policy::RoundRobin));
    let turns = (0..7).map(|turn| {
        let request = Request { turn, ..Request::default() };
        choose(&snapshot.pools[0], &Loads::default(), &request).expect("up").endpoint.slot
    });
    assert!(turns.eq([0, 1, 2, 0, 1, 2, 0]));
}

/// KubeAI's rule by hand: n = 4, factor 1.25; the home takes load <= (T+1)/4 * 1.25, load before placement.
#[test]
fn kubeai_mode_follows_the_published_rule() {
    // (load of the home, load of each other) -> does the home take one more?
    let vectors = [
        ((0, 0), true),   // T = 0
        ((1, 0), false),  // T = 1: 1 > 0.625; no slack
        ((1, 1), true),   // T = 4: 1 <= 1.5625
        ((2, 1), false),  // T = 5: 2 > 1.875
        ((3, 2), true),   // T = 9: 3 <= 3.125
        ((5, 3), false),  // T = 14: 5 > 4.6875
        ((5, 4), true),   // T = 17: 5 <= 5.625
        ((10, 7), true),  // T = 31: 10 <= 10.0 exactly
        ((11, 7), false), // T = 32: 11 > 10.3125
    ];
    let settings = Settings { bound: Bound::Kubeai, ..by(Policy::PrefixHash) };
    let snapshot = fleet(4, settings);
    let home = snapshot.pools[0].ring.walk(key(9)).next().expect("points");
    for ((at_home, at_others), takes) in vectors {
        let counters = Counters::leak();
        let mut running = Vec::new();
        for slot in 0..4 {
            let id = EndpointId { slot, generation: 0 };
            let load = if slot == home { at_home } else { at_others };
            running.extend((0..load).filter_map(|_| counters.try_admit(id, None)));
        }
        let choice = choose(&snapshot.pools[0], counters.loads(), &keyed(key(9))).expect("up");
        assert_eq!(choice.endpoint.slot == home, takes, "{at_home} at home, {at_others} elsewhere");
        assert_eq!(choice.reason, if takes { Reason::Home } else { Reason::Spill });
    }
}

/// When none is acceptable KubeAI takes the first endpoint it found. That takes a factor below one.
#[test]
fn kubeai_mode_falls_back_to_the_home() {
    let settings = Settings { bound: Bound::Kubeai, load_percent: 50, ..by(Policy::PrefixHash) };
    let (snapshot, counters) = (fleet(4, settings), Counters::leak());
    let home = snapshot.pools[0].ring.walk(key(9)).next().expect("points");
    let mut running = Vec::new();
    for slot in 0..4 {
        let load = if slot == home { 20 } else { 10 };
        let id = EndpointId { slot, generation: 0 };
        running.extend((0..load).filter_map(|_| counters.try_admit(id, None)));
    }
    let choice = choose(&snapshot.pools[0], counters.loads(), &keyed(key(9))).expect("up");
    assert_eq!((choice.endpoint.slot, choice.reason, choice.bound), (home, Reason::AllFull, None));
}

#[test]
fn a_choice_allocates_nothing() {
    for policy in [Policy::Random, Policy::RoundRobin, Policy::LeastLoad, Policy::Session, Policy::PrefixHash] {
        let (snapshot, counters) = (fleet(64, by(policy)), Counters::leak());
        let allocations = allocation_counter::measure(|| {
            for i in 0..500 {
                for request in [keyed(key(i)), Request::default()] {
                    let choice = choose(&snapshot.pools[0], counters.loads(), &request).expect("up");
                    // Kept, so that bounds fill and walks get long.
                    std::mem::forget(counters.try_admit(choice.endpoint, None));
                }
            }
        });
        assert_eq!(allocations.count_total, 0, "{policy:?}");
    }
}

/// Pools of equal members share one table, and a sealed snapshot follows its endpoints.
#[test]
fn sealing_follows_health() {
    let mut snapshot = fleet(2, by(Policy::RoundRobin));
    let mut twin = snapshot.pools[0].clone();
    twin.id = PoolId(1);
    snapshot.pools.push(twin);
    snapshot.endpoints[0].as_mut().expect("taken").health = Health::Down;
    snapshot.seal();
    assert!(snapshot.pools.iter().all(|pool| pool.eligible().slots() == [1]));
    assert!(std::ptr::eq(snapshot.pools[0].eligible(), snapshot.pools[1].eligible()));
    let known = snapshot.endpoint(EndpointId { slot: 1, generation: 41 });
    assert_eq!(known.map(|one| one.id.slot), Some(1));
    assert!(snapshot.endpoint(EndpointId { slot: 1, generation: 42 }).is_none());
}
