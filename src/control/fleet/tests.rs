//! The fleet as control keeps it.

use super::*;
use crate::config::Upstream;
use crate::control::caches::Unit;
use crate::control::models::{Card, Learnt, ModelsError};
use crate::control::scrape::{self, Reading};
use crate::control::tests::config_of;
use crate::control::truth::Ours;
use crate::counters::stats::Stats;
use crate::counters::{Asked, Compared, Counted, Prediction, Predictions};
use crate::fleet::Method;
use crate::index::Origin;
use crate::snapshot::{Pool, Selected};

fn fleet(count: u16) -> Fleet {
    fleet_by(count, numbered(count))
}

fn numbered(count: u16) -> Config {
    config_of((0..count).map(|n| Upstream::new(format!("http://engine-{n}:8000").parse().unwrap())))
}

fn fleet_by(count: u16, config: Config) -> Fleet {
    let mut fleet = Fleet::new(Arc::new(config), Vec::new(), Arc::default());
    for place in 0..count {
        fleet.resolved(place.into(), vec![at(place)], Instant::now());
    }
    fleet
}

fn at(n: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 9_000 + n))
}

fn nothing(_: &[u16]) -> Counted {
    Counted::read(Counters::leak(), Stats::leak(1))
}

fn failed() -> Result<(), Failure> {
    Err(Failure { why: "x".into(), how: How::Otherwise })
}

fn serves(fleet: &mut Fleet, place: usize, ids: &[&str]) {
    let (id, _) = fleet.target(place).unwrap();
    let cards = ids.iter().map(|id| Card::made(id)).collect();
    fleet.learnt(place, id, Ok(Learnt { cards, asks_key: false, left_out: 0 }));
}

/// As pods are that a rolling update replaces: else the log has that the engine is up, and of where it is nothing.
#[test]
fn that_an_engine_moves_is_said_once() {
    let mut fleet = fleet(1);
    for (address, moved) in [(at(0), None), (at(7), Some((at(0), at(7)))), (at(7), None)] {
        let before = fleet.address_at(0);
        fleet.resolved(0, vec![address], Instant::now());
        assert_eq!(fleet.moved(0, before), moved);
    }
}

#[test]
fn an_engine_that_moves_gets_another_slot_and_its_own_back_only_when_idle() {
    let mut fleet = fleet(1);
    let (first, _) = fleet.target(0).unwrap();
    let mut now = Instant::now();
    assert!(fleet.resolved(0, vec![at(7)], now));
    let (second, address) = fleet.target(0).unwrap();
    assert_eq!((second.slot, address), (1, at(7)));
    let snapshot = fleet.snapshot();
    assert_eq!(snapshot.endpoints[0].as_ref().unwrap().health, Health::Draining);
    assert_eq!(*snapshot.pools[0].members, [1]);
    // Requests are still in flight there, however long ago it left.
    now += slots::QUARANTINE * 2;
    assert!(!fleet.tick(now, |slot| u32::from(slot == 0), nothing));
    assert!(fleet.tick(now, |_| 0, nothing));
    assert!(fleet.snapshot().endpoints[0].is_none());
    fleet.resolved(0, vec![at(8)], now);
    let (third, _) = fleet.target(0).unwrap();
    assert_eq!((third.slot, third.generation), (0, first.generation + 1));
}

/// Its name may be told where it will be long before it is there; meanwhile others serve.
#[test]
fn an_engine_that_moves_answers_a_probe_before_it_gets_requests_if_others_serve() {
    let mut fleet = fleet(3);
    let now = Instant::now();
    (0..3).for_each(|place| serves(&mut fleet, place, &[["a"], ["a"], ["b"]][place]));
    let health = |fleet: &Fleet| fleet.members().iter().map(|member| member.health().unwrap()).collect::<Vec<_>>();
    let up = |fleet: &mut Fleet, place: usize| {
        let (id, _) = fleet.target(place).unwrap();
        assert_eq!(fleet.probed(place, id, Ok(()), now).0, Some(Turn::Up));
    };
    (0..3).for_each(|place| up(&mut fleet, place));
    assert!(fleet.resolved(0, vec![at(7)], now) && fleet.resolved(2, vec![at(8)], now));
    assert_eq!(health(&fleet), [Health::Down, Health::Up, Health::Unknown], "nobody else has the third one's model");
    assert!(fleet.members()[0].why().is_some_and(|why| why.contains("new address")));
    up(&mut fleet, 0);
    assert!(fleet.members()[0].now.as_ref().unwrap().course.is_starting_slowly(), "with an empty cache");
    // Both that serve it move at once: one of them is tried all the same.
    assert!(fleet.resolved(0, vec![at(3)], now) && fleet.resolved(1, vec![at(4)], now));
    assert_eq!(health(&fleet), [Health::Down, Health::Unknown, Health::Unknown]);
}

#[test]
fn an_address_that_is_still_answered_is_kept() {
    let mut fleet = fleet(1);
    let now = Instant::now();
    assert!(!fleet.resolved(0, vec![at(3), at(0)], now));
    assert!(!fleet.resolved(0, Vec::new(), now));
    assert_eq!(fleet.target(0).unwrap().1, at(0));
    // Two failures: down, and the next address is tried.
    let (id, _) = fleet.target(0).unwrap();
    fleet.resolved(0, vec![at(0), at(3)], now);
    assert_eq!(fleet.probed(0, id, failed(), now), (None, false));
    assert_eq!(fleet.probed(0, id, failed(), now), (Some(Turn::Down), true));
    assert_eq!(fleet.target(0).unwrap().1, at(3));
    // Reports about the endpoint before are late.
    assert_eq!(fleet.probed(0, id, Ok(()), now), (None, false));
}

/// Its name has addresses of two families, of which name servers told one for once: what is known of its cache would go
/// with its endpoint.
#[test]
fn an_engine_stays_where_it_answers_while_only_the_other_family_is_told() {
    let mut fleet = fleet(1);
    let now = Instant::now();
    let six = |n| SocketAddr::new([0xFD00, 0, 0, 0, 0, 0, 0, n].into(), 9_000);
    assert!(fleet.resolved(0, vec![six(1), at(1)], now));
    assert!(fleet.resolved(0, vec![at(1)], now), "it has answered nowhere yet");
    assert!(fleet.resolved(0, vec![six(1)], now));
    let (id, _) = fleet.target(0).unwrap();
    assert_eq!(fleet.probed(0, id, Ok(()), now).0, Some(Turn::Up));
    (0..3).for_each(|_| assert!(!fleet.resolved(0, vec![at(1)], now)));
    assert_eq!(fleet.target(0), Some((id, six(1))));
    // It is gone from there: the one that was told is next.
    assert_eq!(fleet.probed(0, id, failed(), now).0, None);
    fleet.probed(0, id, failed(), now);
    (0..20).for_each(|_| _ = fleet.probed(0, id, failed(), now));
    assert_eq!(fleet.target(0).unwrap().1, at(1));
    // Of its own family it is told another.
    let (id, _) = fleet.target(0).unwrap();
    fleet.probed(0, id, Ok(()), now);
    assert!(fleet.resolved(0, vec![six(1), at(2)], now));
}

/// Dead at both its addresses it is down, and not unknown at one after the other.
#[test]
fn an_engine_of_two_addresses_is_down_until_it_answers_at_one() {
    let mut fleet = fleet(1);
    let now = Instant::now();
    let refused = || Err(Failure { why: "x".into(), how: How::Refused });
    let probe = |fleet: &mut Fleet, outcome| {
        let (id, _) = fleet.target(0).unwrap();
        let (turn, _) = fleet.probed(0, id, outcome, now);
        let member = &fleet.members()[0];
        (turn, fleet.target(0).unwrap().1, member.health().unwrap())
    };
    let (id, _) = fleet.target(0).unwrap();
    assert_eq!(fleet.probed(0, id, Ok(()), now).0, Some(Turn::Up));
    fleet.resolved(0, vec![at(0), at(3)], now);
    assert_eq!(probe(&mut fleet, refused()), (None, at(0), Health::Up));
    assert_eq!(probe(&mut fleet, refused()), (Some(Turn::Down), at(3), Health::Down));
    for turn in 0..10 {
        let place = if turn % 4 < 2 { 3 } else { 0 };
        let next = if (turn + 1) % 4 < 2 { 3 } else { 0 };
        assert_eq!(fleet.target(0).unwrap().1, at(place), "turn {turn}");
        assert_eq!(probe(&mut fleet, refused()), (None, at(next), Health::Down), "turn {turn}");
    }
    assert_eq!(probe(&mut fleet, Ok(())).2, Health::Up);
    // Nobody has ever been there: the other one is tried at once.
    let mut fresh = self::fleet(1);
    fresh.resolved(0, vec![at(0), at(3)], now);
    assert_eq!(probe(&mut fresh, refused()), (None, at(3), Health::Unknown));
    assert_eq!(probe(&mut fresh, Ok(())), (Some(Turn::Up), at(3), Health::Up));
}

/// Its events are those of the engine that is asked, whatever else its name stands for.
#[test]
fn a_name_of_several_engines_is_not_what_one_is_called_by() {
    let mut fleet = fleet(1);
    let six = SocketAddr::from(([0xFD00, 0, 0, 0, 0, 0, 0, 1], 9_000));
    let elsewhere = SocketAddr::from(([10, 0, 0, 2], 9_000));
    for (addresses, host) in [
        (vec![at(0)], "10.0.0.1"),
        (vec![elsewhere, at(0)], "10.0.0.1"),
        (vec![six, at(0)], "engine-0"),
        (vec![six, at(0), elsewhere], "10.0.0.1"),
        (vec![], "10.0.0.1"),
    ] {
        fleet.resolved(0, addresses, Instant::now());
        assert_eq!(fleet.members()[0].host_of(fleet.target(0).unwrap().1), host);
    }
}

#[test]
fn foreign_load_is_what_is_not_ours_and_is_forgotten_when_stale() {
    let mut fleet = fleet(1);
    let (id, _) = fleet.target(0).unwrap();
    let mut now = Instant::now();
    let ours = |in_flight| Ours { in_flight, ..Ours::default() };
    let reading = || scrape::Reading::of(b"vllm:num_requests_running 5\nvllm:num_requests_waiting 2\n");
    assert!(fleet.scraped(0, id, Ok((reading(), ours(3))), now));
    assert_eq!(fleet.snapshot().endpoints[0].as_ref().unwrap().foreign, 4);
    assert!(!fleet.scraped(0, id, Ok((reading(), ours(3))), now));
    assert!(fleet.scraped(0, id, Ok((reading(), ours(9))), now));
    assert_eq!(fleet.snapshot().endpoints[0].as_ref().unwrap().foreign, 0);
    // Two requests of ours with several answers each, or prompts, may be all of it.
    assert!(fleet.scraped(0, id, Ok((reading(), ours(3))), now));
    assert!(fleet.scraped(0, id, Ok((reading(), Ours { several: 2, ..ours(3) })), now));
    assert_eq!(fleet.snapshot().endpoints[0].as_ref().unwrap().foreign, 0);
    fleet.scraped(0, id, Ok((reading(), ours(0))), now);
    now += Duration::from_millis(fleet.config.control.stale_after_ms + 1);
    assert!(fleet.tick(now, |_| 0, nothing));
    let endpoint = fleet.snapshot().endpoints[0].clone().unwrap();
    assert_eq!((endpoint.foreign, endpoint.engine.running), (0, None));
}

/// How full it is nobody knows then; how large it is does not change, unless it is another.
#[test]
fn how_large_a_cache_is_outlasts_what_its_engine_says_of_its_load() {
    let mut fleet = fleet(1);
    let (id, _) = fleet.target(0).unwrap();
    let mut now = Instant::now();
    let text = b"process_start_time_seconds 5\nvllm:kv_cache_usage_perc 0.5\n\
                 vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n";
    fleet.scraped(0, id, Ok((Reading::of(text), Ours::default())), now);
    let known = |fleet: &mut Fleet| {
        let engine = fleet.snapshot().endpoints[0].as_ref().unwrap().engine;
        (engine.kv_use, engine.kv_capacity_tokens)
    };
    assert_eq!(known(&mut fleet), (Some(0.5), Some(16_000)));
    now += Duration::from_millis(fleet.config.control.stale_after_ms + 1);
    assert!(fleet.tick(now, |_| 0, nothing));
    assert_eq!(known(&mut fleet), (None, Some(16_000)));
    fleet.begin_anew(0, id, None, now);
    assert_eq!(known(&mut fleet), (None, None));
}

/// Hybrid models' engines find whole blocks of thousands of tokens. The largest of a pool's counts for all.
#[test]
fn shards_believe_no_more_than_engines_find_in_their_units() {
    use crate::index::Matches;
    use crate::policy::{self, Policy, Prompt, Request};

    let mut fleet = fleet(2);
    let (counters, index) = (Counters::leak(), fleet.snapshot().index.unwrap());
    let says = |fleet: &mut Fleet, place: usize, unit: &str| {
        let text = format!("vllm:cache_config_info{{{unit},kv_cache_size_tokens=\"16000\"}} 1\n");
        let (id, _) = fleet.target(place).unwrap();
        fleet.scraped(place, id, Ok((Reading::of(text.as_bytes()), Ours::default())), Instant::now());
    };
    let held = |fleet: &mut Fleet, chain: &[u64], tokens: u32| {
        let mut snapshot = fleet.snapshot();
        snapshot.seal();
        let (pool, mut matches) = (&snapshot.pools[0], Matches::default());
        index.longest(chain, pool.eligible().ids(), &mut matches);
        let prompt = Some(Prompt { tokens, block_tokens: 64.0, matches: &matches, tie: 0 });
        let request = Request { prompt, ..Request::default() };
        policy::choose_by(Policy::Warm, pool, counters.loads(), &request).unwrap().tokens.unwrap().held
    };
    let chain: Vec<u64> = (1..=140u64).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    (0..2).for_each(|place| says(&mut fleet, place, "block_size=\"16\""));
    index.insert(&chain[..125], fleet.target(0).unwrap().0, Origin::Choice).unwrap();
    let both = |fleet: &mut Fleet| [held(fleet, &chain[..12], 900), held(fleet, &chain, 9_000)];
    assert_eq!(both(&mut fleet), [768, 8_000]);
    says(&mut fleet, 1, "block_size=\"3584\",prefix_match_unit=\"None\"");
    assert_eq!(both(&mut fleet), [0, 7_168]);
    let (begin, stale) = (Instant::now(), Duration::from_millis(fleet.config.control.stale_after_ms));
    let ticks = 2 * stale.as_millis() / TICK.as_millis();
    (1..=ticks as u32).for_each(|tick| _ = fleet.tick(begin + tick * TICK, |_| 0, nothing));
    assert!(fleet.members()[1].now.as_ref().is_some_and(|tenancy| tenancy.reading.is_none()));
    assert_eq!(both(&mut fleet), [0, 7_168], "it has gone silent, and is as it was");
    says(&mut fleet, 1, "block_size=\"3584\",prefix_match_unit=\"16\"");
    assert_eq!(both(&mut fleet), [768, 8_000], "it finds prompts within a block");
    says(&mut fleet, 1, "block_size=\"3584\",prefix_match_unit=\"None\"");
    let fails = |fleet: &mut Fleet, place: usize| {
        let (id, _) = fleet.target(place).unwrap();
        (0..2).for_each(|_| _ = fleet.probed(place, id, failed(), Instant::now()));
        assert_eq!(fleet.members()[place].health(), Some(Health::Down));
    };
    assert_eq!(both(&mut fleet), [0, 7_168]);
    fails(&mut fleet, 1);
    assert_eq!(both(&mut fleet), [768, 8_000], "who is down finds nothing");
    fails(&mut fleet, 0);
    assert_eq!(both(&mut fleet), [0, 7_168], "one of them is tried all the same");
}

/// The machine stood still, such as while it was moved: nobody could be asked meanwhile.
#[test]
fn what_is_known_outlasts_a_standstill_until_the_next_scrape() {
    let mut fleet = fleet(1);
    let (id, _) = fleet.target(0).unwrap();
    let mut now = Instant::now();
    fleet.tick(now, |_| 0, nothing);
    fleet.scraped(0, id, Ok((counted(5, 0, "True"), Ours::default())), now);
    let stale = Duration::from_millis(fleet.config.control.stale_after_ms);
    now += 2 * stale;
    assert!(!fleet.tick(now, |_| 0, nothing));
    let scrape = Duration::from_millis(fleet.config.control.scrape_interval_ms);
    let ticks = |fleet: &mut Fleet, now: &mut Instant, span: Duration| {
        (0..span.as_millis() / TICK.as_millis()).any(|_| {
            *now += TICK;
            fleet.tick(*now, |_| 0, nothing)
        })
    };
    assert!(!ticks(&mut fleet, &mut now, scrape), "it could be asked in that time");
    assert!(ticks(&mut fleet, &mut now, stale - scrape), "nobody has answered");
    assert!(fleet.members()[0].now.as_ref().unwrap().reading.is_none());
    // Read again behind a standstill and before it was seen.
    fleet.scraped(0, id, Ok((counted(5, 0, "True"), Ours::default())), now);
    now += 2 * stale;
    fleet.scraped(0, id, Ok((counted(5, 0, "True"), Ours::default())), now);
    assert!(!fleet.tick(now, |_| 0, nothing) && !ticks(&mut fleet, &mut now, stale));
    assert!(ticks(&mut fleet, &mut now, TICK), "it is believed no longer than others");
}

/// Control looks no more often than it publishes: that is no standstill.
#[test]
fn who_publishes_seldom_does_not_stand_still() {
    let mut fleet = fleet(1);
    let config = Arc::make_mut(&mut fleet.config);
    (config.control.publish_interval_ms, config.control.stale_after_ms) = (5_000, 5_000);
    let (id, _) = fleet.target(0).unwrap();
    let now = Instant::now();
    fleet.tick(now, |_| 0, nothing);
    fleet.scraped(0, id, Ok((counted(5, 0, "True"), Ours::default())), now);
    assert!(!fleet.tick(now + Duration::from_secs(5), |_| 0, nothing));
    assert!(fleet.tick(now + Duration::from_secs(5) + TICK, |_| 0, nothing));
    assert!(fleet.members()[0].now.as_ref().unwrap().reading.is_none());
}

/// Those that have no place serve on, cold: it is a restart that gives them one.
#[test]
fn a_fleet_that_outgrows_the_index_waits_for_a_restart() {
    let mut fleet = fleet(1);
    let mut grows = |count: u16| {
        fleet.reconfigure(Arc::new(numbered(count)), Vec::new(), Arc::default(), Instant::now());
        fleet.waits_for_restart().collect::<Vec<_>>()
    };
    assert_eq!((grows(64), grows(65), grows(64)), (vec![], vec!["upstream"], vec![]));
    assert_eq!(self::fleet(65).waits_for_restart().next(), None, "it begins with so many");
}

#[test]
fn a_dead_engine_of_unknown_models_does_not_make_others_wait_for_the_model() {
    let mut fleet = fleet(2);
    assert!(fleet.snapshot().single_pool());
    serves(&mut fleet, 0, &["a"]);
    let snapshot = fleet.snapshot();
    assert!(!snapshot.single_pool() && !snapshot.models_complete);
    assert!(matches!(snapshot.select(Some(b"b")), Selected::Pool(pool) if *pool.members == [1]));
    let (id, _) = fleet.target(1).unwrap();
    for _ in 0..2 {
        fleet.probed(1, id, failed(), Instant::now());
    }
    assert!(matches!(fleet.snapshot().select(None), Selected::Pool(pool) if *pool.members == [0]));
    serves(&mut fleet, 1, &["a"]);
    let snapshot = fleet.snapshot();
    assert!(snapshot.models_complete && snapshot.single_pool());
    assert!(matches!(snapshot.select(None), Selected::Pool(pool) if *pool.members == [0, 1]));
}

#[test]
fn pools_keep_their_ids_and_share_rings() {
    let mut fleet = fleet(2);
    serves(&mut fleet, 0, &["a", "lora"]);
    serves(&mut fleet, 1, &["a", "lora"]);
    let before = fleet.snapshot();
    let (a, lora) = (before.models[b"a".as_slice()], before.models[b"lora".as_slice()]);
    let pool = |snapshot: &Snapshot, id: crate::snapshot::PoolId| snapshot.pools[usize::from(id.0)].clone();
    assert!(Arc::ptr_eq(&pool(&before, a).ring, &pool(&before, lora).ring));
    serves(&mut fleet, 1, &["a", "other"]);
    let after = fleet.snapshot();
    assert_eq!((after.models[b"a".as_slice()], after.models[b"lora".as_slice()]), (a, lora));
    assert!(Arc::ptr_eq(&pool(&before, a).ring, &pool(&after, a).ring), "same members, same ring");
    assert_eq!(*pool(&after, lora).members, [0]);
    serves(&mut fleet, 0, &["a"]);
    let gone = fleet.snapshot();
    assert!(!gone.models.contains_key(b"lora".as_slice()) && pool(&gone, lora).members.is_empty());
    assert!(matches!(gone.select(Some(b"lora")), Selected::UnknownModel));
}

/// What an engine does at its address is no measure of the one that has its slot next.
#[test]
fn who_gets_a_slot_begins_with_nothing_that_was_learnt_there() {
    let mut fleet = fleet(1);
    let (counters, mut now) = (Counters::leak(), Instant::now());
    fleet.look(counters, now);
    let (first, _) = fleet.target(0).unwrap();
    let rate = || counters.loads().prefill_rate(first.slot);
    let before = rate();
    for _ in 0..50 {
        let mut admission = counters.try_admit(first, None).unwrap();
        admission.computes(1_000);
        admission.timed(10_000);
    }
    counters.outcomes().bar(first.slot);
    fleet.look(counters, now);
    assert!(rate() > 90_000, "its own rate stays, whatever else is looked at");
    fleet.resolved(0, vec![at(7)], now);
    now += slots::QUARANTINE * 2;
    assert!(fleet.tick(now, |slot| counters.in_flight(slot), nothing));
    fleet.resolved(0, vec![at(8)], now);
    fleet.look(counters, now);
    let (third, _) = fleet.target(0).unwrap();
    assert_eq!((third.slot, rate(), counters.outcomes().is_barred(third.slot)), (first.slot, before, false));
}

/// Another name, or none for a moment, makes an engine no larger: what it has yet from before takes its places until it
/// has ended.
#[test]
fn what_an_engine_has_from_before_it_came_back_takes_its_places() {
    let of = |name: &str, concurrency_max: u32| {
        let url = format!("http://{}", at(0)).parse().unwrap();
        config_of([Upstream { name: name.into(), concurrency_max, ..Upstream::new(url) }])
    };
    let (counters, now) = (Counters::leak(), Instant::now());
    let mut fleet = fleet_by(1, of("before", 0));
    let cap = |fleet: &mut Fleet| {
        let changed = fleet.look(counters, now).1;
        let place = fleet.members()[0].place;
        let slot = fleet.target(place).unwrap().0.slot;
        (changed, fleet.snapshot().endpoints[usize::from(slot)].as_ref().unwrap().cap)
    };
    let (id, _) = fleet.target(0).unwrap();
    let mut admissions: Vec<_> = (0..8).map(|_| counters.try_admit(id, None).unwrap()).collect();
    fleet.reconfigure(Arc::new(of("before", 8)), Vec::new(), Arc::default(), now);
    assert_eq!(cap(&mut fleet), (false, 8), "its own are compared with the cap itself");
    fleet.reconfigure(Arc::new(of("before", 0)), Vec::new(), Arc::default(), now);
    admissions[0].stays_charged();
    fleet.reconfigure(Arc::new(of("after", 9)), Vec::new(), Arc::default(), now);
    let place = fleet.members()[0].place;
    fleet.resolved(place, vec![at(0)], now);
    assert_eq!(cap(&mut fleet), (true, 2), "seven run there, and one has ended");
    assert_eq!(cap(&mut fleet), (false, 2));
    admissions.pop();
    assert_eq!(cap(&mut fleet), (true, 3));
    let (mine, _) = fleet.target(place).unwrap();
    let more: Vec<_> = (0..3).map(|_| counters.try_admit(mine, None).unwrap()).collect();
    assert_eq!(cap(&mut fleet), (false, 3), "its own come beside them");
    // Back at once under its name: three and six are there yet.
    fleet.reconfigure(Arc::new(of("before", 8)), Vec::new(), Arc::default(), now);
    let place = fleet.members()[0].place;
    fleet.resolved(place, vec![at(0)], now);
    assert_eq!(cap(&mut fleet), (true, 0), "it is full");
    let tenants: Vec<(u16, &str)> = fleet.tenants().map(|(slot, name)| (slot, &**name)).collect();
    assert_eq!(tenants, [(0, "before"), (1, "after"), (2, "before")]);
    // Elsewhere it is another engine.
    fleet.resolved(place, vec![at(1)], now);
    assert_eq!(cap(&mut fleet).1, 8);
    fleet.resolved(place, vec![at(0)], now);
    drop((admissions, more));
    assert_eq!(cap(&mut fleet), (true, 8));
}

/// Where its ranks were not told apart before, or are not now, each of them may have all of it.
#[test]
fn what_an_engine_has_from_before_takes_the_places_of_the_ranks_that_may_have_it() {
    let of = |name: &str, ranks: u32| {
        let url = format!("http://{}", at(0)).parse().unwrap();
        config_of([Upstream { name: name.into(), ranks, concurrency_max: 8, ..Upstream::new(url) }])
    };
    let (counters, now) = (Counters::leak(), Instant::now());
    let ids = |fleet: &Fleet| fleet.members().iter().map(|member| member.now.as_ref().unwrap().id).collect::<Vec<_>>();
    let caps = |fleet: &mut Fleet| {
        fleet.look(counters, now);
        let (ids, endpoints) = (ids(fleet), fleet.snapshot().endpoints);
        ids.iter().map(|id| endpoints[usize::from(id.slot)].as_ref().unwrap().cap).collect::<Vec<_>>()
    };
    let becomes = |fleet: &mut Fleet, name: &str, ranks: u32| {
        fleet.reconfigure(Arc::new(of(name, ranks)), Vec::new(), Arc::default(), now);
        let places: Vec<usize> = fleet.members().iter().map(|member| member.place).collect();
        places.into_iter().for_each(|place| _ = fleet.resolved(place, vec![at(0)], now));
        caps(fleet)
    };
    let runs = |id, count: u32| (0..count).map(|_| counters.try_admit(id, None).unwrap()).collect::<Vec<_>>();
    let mut fleet = fleet_by(1, of("gpu", 1));
    assert_eq!(caps(&mut fleet), [8]);
    let whole = runs(ids(&fleet)[0], 5);
    assert_eq!(becomes(&mut fleet, "gpu", 2), [3, 3]);
    drop(whole);
    assert_eq!(caps(&mut fleet), [8, 8]);
    let of_each = (runs(ids(&fleet)[0], 2), runs(ids(&fleet)[1], 1));
    assert_eq!(becomes(&mut fleet, "called", 2), [6, 7], "none takes the place of another rank");
    assert_eq!(becomes(&mut fleet, "called", 1), [5]);
    drop(of_each);
    assert_eq!(caps(&mut fleet), [8]);
}

/// Its streams go on: who leaves it after a while beside them does not leave one that hangs.
#[test]
fn who_is_spared_gave_what_it_gave() {
    let mut fleet = fleet(1);
    let (counters, now) = (Counters::leak(), Instant::now());
    fleet.look(counters, now);
    let outcomes = counters.outcomes();
    outcomes.gives(0, 5_000_000);
    (0..3).for_each(|_| _ = outcomes.fault(0));
    assert!(matches!(fleet.look(counters, now).0[..], [(_, Turn::Spared)]));
    assert!(outcomes.gave_since(0, 1_000_000) && !outcomes.is_barred(0));
}

/// `/metrics` of an engine that was asked for so many tokens of prompts and found so many in its cache.
fn counted(prompts: u64, hits: u64, caching: &str) -> Reading {
    let text = format!(
        "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:prompt_tokens_total {prompts}\n\
         vllm:prefix_cache_queries_total {prompts}\nvllm:prefix_cache_hits_total {hits}\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1000\",enable_prefix_caching=\"{caching}\"}} 1\n"
    );
    Reading::of(text.as_bytes())
}

#[test]
fn shards_are_told_how_fast_caches_turn_over_until_nobody_knows() {
    let mut fleet = fleet(1);
    let (id, _) = fleet.target(0).unwrap();
    let mut now = Instant::now();
    let index = fleet.snapshot().index.unwrap();
    let mut seed = 0u64;
    let mut sends = |blocks: u64| {
        let chain: Vec<u64> = (0..blocks).map(|at| (seed + at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        seed += blocks;
        index.insert(&chain, id, Origin::Choice).unwrap();
    };
    let mut scrape = |fleet: &mut Fleet, restarts: bool| {
        now += Duration::from_secs(1);
        let prompts = if restarts { 1 } else { 5 };
        let changed = fleet.scraped(0, id, Ok((counted(prompts, 0, "True"), Ours::default())), now);
        let endpoint = fleet.snapshot().endpoints[0].clone().unwrap();
        (changed, endpoint.turnover, endpoint.vacant)
    };
    // 16,000 tokens of four bytes in blocks of 256.
    assert_eq!(scrape(&mut fleet, false), (true, 0.0, 1.0));
    sends(125);
    assert_eq!(scrape(&mut fleet, false), (true, 0.0, 0.5), "half of it holds nothing");
    sends(125);
    assert_eq!(scrape(&mut fleet, false), (true, 0.0, 0.0), "there was room");
    sends(50);
    assert_eq!(scrape(&mut fleet, false), (true, 0.2, 0.0), "what an engine says of itself is the same");
    assert_eq!(scrape(&mut fleet, true), (true, 0.0, 1.0), "another process, another cache");
    sends(200);
    assert_eq!(scrape(&mut fleet, false), (true, 0.0, 0.2));
    sends(150);
    assert_eq!(scrape(&mut fleet, false), (true, 0.4, 0.0));
    now += Duration::from_millis(fleet.config.control.stale_after_ms + 1);
    assert!(fleet.tick(now, |_| 0, nothing));
    assert_eq!(fleet.snapshot().endpoints[0].as_ref().unwrap().turnover, 0.0);
}

/// Sixteen thousand tokens are a thousand steps of 64 bytes, and 250 blocks: as many as lie in its cache are noted,
/// whatever they are.
#[test]
fn a_part_of_the_index_is_as_large_as_the_cache_in_what_is_noted_there() {
    let mut fleet = fleet(1);
    let (id, _) = fleet.target(0).unwrap();
    let index = fleet.snapshot().index.unwrap();
    let capacity = || index.figures(id.slot).capacity;
    let scrape = |fleet: &mut Fleet, prompts| {
        fleet.scraped(0, id, Ok((counted(prompts, 0, "True"), Ours::default())), Instant::now());
        capacity()
    };
    assert_eq!(scrape(&mut fleet, 5), 250);
    fleet.notes(0, id, Unit::Steps);
    assert_eq!((capacity(), scrape(&mut fleet, 6)), (1_000, 1_000));
    assert_eq!(scrape(&mut fleet, 1), 1_000, "it has restarted");
    fleet.notes(0, id, Unit::Blocks);
    assert_eq!((capacity(), scrape(&mut fleet, 2)), (250, 250));
}

/// One reply is enough, and for all that serve the same; there is room by the size of the same scrape.
#[test]
fn parts_are_sized_by_what_one_reply_told_of_its_model() {
    let mut fleet = fleet(3);
    (0..3).for_each(|place| serves(&mut fleet, place, &[["m"], ["m"], ["other"]][place]));
    let predictions = Predictions::default();
    let now = Instant::now();
    fleet.compare(&predictions, now);
    let index = fleet.snapshot().index.unwrap();
    let seen = |fleet: &mut Fleet, place: usize| {
        let (id, _) = fleet.target(place).unwrap();
        let vacant = fleet.snapshot().endpoints[usize::from(id.slot)].as_ref().unwrap().vacant;
        (index.figures(id.slot).capacity, vacant)
    };
    let scrape = |fleet: &mut Fleet, place: usize| {
        let (id, _) = fleet.target(place).unwrap();
        let chain: Vec<u64> = (1..=50u64).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        index.insert(&chain, id, Origin::Choice).unwrap();
        fleet.scraped(place, id, Ok((counted(1, 0, "True"), Ours::default())), now);
    };
    scrape(&mut fleet, 0);
    assert_eq!(seen(&mut fleet, 0), (250, 0.8), "16,000 tokens of four bytes in blocks of 256");
    let nothing =
        Prediction { method: Method::Warm, tokens: 250, held: 0, text_bytes: 1_000, batch: false, omits_zero: false };
    predictions.told(0, &nothing, 500, Some(0));
    assert!(fleet.compare(&predictions, now).1, "shards must know");
    assert_eq!(seen(&mut fleet, 0), (125, 0.6), "of two bytes");
    let snapshot = fleet.snapshot();
    let token_bytes = |model: &[u8]| snapshot.pools[usize::from(snapshot.models[model].0)].token_bytes;
    assert_eq!((token_bytes(b"m"), token_bytes(b"other")), (2.0, Pool::TOKEN_BYTES), "prompts are counted by it");
    predictions.told(0, &nothing, 500, Some(0));
    assert!(!fleet.compare(&predictions, now).1, "more of the same is no news");
    scrape(&mut fleet, 1);
    assert_eq!(seen(&mut fleet, 1), (125, 0.6), "it told nothing itself");
    scrape(&mut fleet, 2);
    assert_eq!(seen(&mut fleet, 2), (250, 0.8), "nobody told of its model");
}

#[test]
fn an_engine_that_counts_no_hits_ends_on_hash_and_one_without_a_cache_at_once() {
    let mut fleet = fleet(3);
    let predictions = Predictions::default();
    let now = Instant::now();
    let scrape = |fleet: &mut Fleet, place: usize, turn: u64, hits: u64, caching: &str| {
        let (id, _) = fleet.target(place).unwrap();
        let asked = Asked { requests: 20 * turn, tokens: 40_000 * turn, held: 30_000 * turn, told: 0 };
        let ours = Ours { asked, prompted: 160_000 * turn, ..Ours::default() };
        fleet.scraped(place, id, Ok((counted(40_000 * turn, hits, caching), ours)), now);
        let (moved, _) = fleet.compare(&predictions, now);
        let rungs: Vec<_> = fleet.snapshot().endpoints.iter().flatten().map(|endpoint| endpoint.rung).collect();
        (moved.len(), rungs)
    };
    use crate::fleet::Rung::{Approximate, Hash};
    for turn in 0..=2 {
        assert_eq!(scrape(&mut fleet, 0, turn, 7, "True"), (0, vec![Approximate; 3]), "turn {turn}");
        assert_eq!(scrape(&mut fleet, 1, turn, 29_000 * turn, "True"), (0, vec![Approximate; 3]), "turn {turn}");
    }
    assert_eq!(scrape(&mut fleet, 0, 3, 7, "True"), (1, vec![Hash, Approximate, Approximate]));
    assert_eq!(scrape(&mut fleet, 1, 3, 87_000, "True"), (0, vec![Hash, Approximate, Approximate]));
    assert_eq!(scrape(&mut fleet, 2, 0, 0, "False"), (1, vec![Hash, Approximate, Hash]));
    let compared = |fleet: &Fleet, name: &str| fleet.deeds(&nothing(&[]))[name].compared_in_all();
    assert_eq!(compared(&fleet, "engine-0:8000"), Compared { requests: 60, ..Compared::of(60, 90_000, 0) });
    let about = compared(&fleet, "engine-1:8000");
    assert_eq!((about.predicted, about.cached, about.over), (90_000, 87_000, 3_000));
    // Another process answers there, with a cache: its counters begin anew.
    assert_eq!(scrape(&mut fleet, 0, 1, 0, "True"), (1, vec![Approximate, Approximate, Hash]));
    assert_eq!(scrape(&mut fleet, 2, 1, 0, "True"), (1, vec![Approximate; 3]));
}

/// What engines say of their caches is of then: choices add what came since, and take off what has ended.
#[test]
fn shards_are_told_what_was_ours_when_an_engine_was_asked() {
    let mut fleet = fleet(1);
    let (id, _) = fleet.target(0).unwrap();
    let ours = Ours { dispatched: 7_000, resident: 5_000, ..Ours::default() };
    assert!(fleet.scraped(0, id, Ok((counted(5, 0, "True"), ours)), Instant::now()));
    let endpoint = fleet.snapshot().endpoints[0].clone().unwrap();
    assert_eq!((endpoint.dispatched_at, endpoint.resident_at), (7_000, 5_000));
}

/// Another front, clients that go to the engine by themselves, requests that it counts as several: what it counts
/// between two readings is not ours alone if either shows them.
#[test]
fn what_others_ask_an_engine_for_tells_nothing_of_its_cache() {
    use crate::fleet::Rung::{Approximate, Hash};
    let (predictions, now) = (Predictions::default(), Instant::now());
    for (shown, windows, rung) in [
        (&[][..], 4, Hash),
        (&[0], 3, Hash),
        (&[2], 2, Approximate),
        (&[4], 3, Hash),
        (&[0, 1, 2, 3, 4], 0, Approximate),
    ] {
        for (others, several) in [(3, 0), (0, 2)] {
            let mut fleet = fleet(1);
            let (id, _) = fleet.target(0).unwrap();
            for turn in 0..=4 {
                let is_shown = shown.contains(&turn);
                let asked = Asked { requests: 20 * turn, tokens: 40_000 * turn, held: 30_000 * turn, told: 0 };
                let several = if is_shown { several } else { 0 };
                let ours = Ours { asked, prompted: 160_000 * turn, several, ..Ours::default() };
                let mut reading = counted(40_000 * turn, 7, "True");
                reading.load.running = Some(if is_shown { others } else { 0 });
                fleet.scraped(0, id, Ok((reading, ours)), now);
                fleet.compare(&predictions, now);
            }
            let requests = fleet.deeds(&nothing(&[]))["engine-0:8000"].compared_in_all().requests;
            let tenancy = fleet.members()[0].now.as_ref().unwrap();
            let known = (requests, tenancy.truth.ladder.rung(), tenancy.truth.calibration.token_bytes());
            let token_bytes = (windows > 0).then_some(4.0);
            assert_eq!(known, (20 * windows, rung, token_bytes), "{others} and {several} at {shown:?}");
        }
    }
}

/// An heir serves when it knows its engines: one that sleeps would let its requests hang, and of one whose metrics have
/// not come it is not known whether it does.
#[test]
fn who_has_not_said_how_it_is_loaded_is_not_known() {
    let mut fleet = fleet(1);
    let (id, _) = fleet.target(0).unwrap();
    let is_known = |fleet: &Fleet| [true, false].map(|succeeds| fleet.is_acquainted(succeeds));
    serves(&mut fleet, 0, &["a"]);
    fleet.probed(0, id, Ok(()), Instant::now());
    assert_eq!(is_known(&fleet), [false; 2]);
    fleet.scraped(0, id, Err("x".into()), Instant::now());
    assert_eq!(is_known(&fleet), [true; 2], "it cannot say");
}

/// An heir would wait for as long as it may, and know no more of them.
#[test]
fn who_stays_in_service_though_it_is_silent_is_waited_for_no_longer() {
    let mut fleet = fleet(1);
    let (id, _) = fleet.target(0).unwrap();
    fleet.presume();
    serves(&mut fleet, 0, &["a"]);
    fleet.scraped(0, id, Err("x".into()), Instant::now());
    for is_known in [false, true] {
        let silent = Failure { why: "x".into(), how: How::Silent };
        fleet.probed(0, id, Err(silent), Instant::now());
        assert_eq!(fleet.is_acquainted(true), is_known);
    }
    assert_eq!(fleet.members()[0].health(), Some(Health::Unknown));
}

/// As `/explain` reads them, so do shards.
#[test]
fn names_of_session_keys_are_those_of_the_configuration_in_use() {
    let mut fleet = fleet(1);
    let mut config = Config::clone(&fleet.config);
    config.routing.session_headers = vec!["x-conversation".into()];
    assert_ne!(*fleet.snapshot().session_headers, [Box::<str>::from("x-conversation")]);
    fleet.reconfigure(Arc::new(config), Vec::new(), Arc::default(), Instant::now());
    assert_eq!(*fleet.snapshot().session_headers, [Box::<str>::from("x-conversation")]);
}

/// Who comes is not in the list yet, whoever is before and behind it stays there.
#[cfg(debug_assertions)] // else no overflow is a fault
#[test]
fn a_fault_on_the_way_to_another_list_loses_nobody() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let mut fleet = fleet(3);
    let mut other = numbered(4);
    other.upstream.swap(1, 3);
    let (kept, names) = (other.clone(), |fleet: &Fleet| -> Vec<_> {
        fleet.members().iter().map(|member| member.name.to_string()).collect()
    });
    let before = names(&fleet);
    fleet.has_no_place_left(true);
    let breaks = AssertUnwindSafe(|| fleet.reconfigure(Arc::new(other), Vec::new(), Arc::default(), Instant::now()));
    assert!(catch_unwind(breaks).is_err(), "there was a place");
    assert_eq!((names(&fleet), fleet.snapshot().pools[0].members.len()), (before, 3));
    fleet.has_no_place_left(false);
    let (added, removed) = fleet.reconfigure(Arc::new(kept.clone()), Vec::new(), Arc::default(), Instant::now());
    assert_eq!((added, removed), (vec!["engine-3:8000".to_owned()], vec![]));
    assert_eq!(names(&fleet), kept.upstream.iter().map(Upstream::label).collect::<Vec<_>>());
}

#[cfg(debug_assertions)]
impl Fleet {
    /// Whether whoever comes next meets with a fault of ours.
    pub(in crate::control) fn has_no_place_left(&mut self, none: bool) {
        self.places = if none { usize::MAX } else { self.members.len() };
    }
}

mod asleep;
mod crowded;
mod models;
mod parts;
mod ranked;
mod restarts;
mod room;
