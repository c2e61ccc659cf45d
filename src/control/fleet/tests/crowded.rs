//! Engines and more slots than there are.

use super::*;
use crate::index::Missed;
use crate::limits::ENDPOINTS_MAX;

/// Engines given by IP address, which nobody looks up again.
fn named(prefix: &str, count: u16) -> Config {
    let upstream = |n: u16| Upstream {
        name: format!("{prefix}-{n}"),
        ..Upstream::new(format!("http://{}", at(n)).parse().expect("an URL"))
    };
    Config { upstream: (0..count).map(upstream).collect(), ..Config::default() }
}

fn resolve(fleet: &mut Fleet, now: Instant) {
    let places: Vec<(usize, u16)> =
        fleet.members().iter().map(|member| (member.place, member.upstream.url.port)).collect();
    places.into_iter().for_each(|(place, port)| _ = fleet.resolved(place, vec![([10, 0, 0, 1], port).into()], now));
}

fn without(fleet: &Fleet) -> usize {
    fleet.members().iter().filter(|member| member.now.is_none()).count()
}

/// One reload renames more engines than there are slots for both.
#[test]
fn engines_that_found_no_slot_get_one_when_it_is_free() {
    const COUNT: u16 = 600;
    let mut now = Instant::now();
    let mut fleet = Fleet::new(Arc::new(named("before", COUNT)), Vec::new(), Arc::default());
    resolve(&mut fleet, now);
    fleet.reconfigure(Arc::new(named("after", COUNT)), Vec::new(), Arc::default(), now);
    resolve(&mut fleet, now);
    let left = 2 * usize::from(COUNT) - ENDPOINTS_MAX;
    assert_eq!(without(&fleet), left);
    assert!(!fleet.tick(now, |_| 0, nothing));
    assert_eq!(without(&fleet), left, "the slots have yet to rest");
    now += slots::QUARANTINE * 2;
    // All but a hundred of those that left still have requests.
    let busy = |slot: u16| u32::from((100..COUNT).contains(&slot));
    assert!(fleet.tick(now, busy, nothing), "shards must know");
    assert_eq!(without(&fleet), left - 100);
    assert!(fleet.tick(now, |_| 0, nothing));
    assert_eq!(without(&fleet), 0);
    let snapshot = fleet.snapshot();
    assert_eq!(snapshot.pools[0].members.len(), usize::from(COUNT));
    let all: HashSet<u16> = fleet.members().iter().filter_map(|member| Some(member.now.as_ref()?.id.slot)).collect();
    assert_eq!(all.len(), usize::from(COUNT), "each has one of its own");
}

/// Engines whose names changed forty times within the time that a slot rests: there would be places for all in the index.
struct Renamed {
    fleet: Fleet,
    now: Instant,
}

impl Renamed {
    fn new(change: impl Fn(&mut Config)) -> Renamed {
        let config = |turn: u32| {
            let mut config = named(&format!("turn-{turn}"), 3);
            change(&mut config);
            Arc::new(config)
        };
        let now = Instant::now();
        let mut fleet = Fleet::new(config(0), Vec::new(), Arc::default());
        resolve(&mut fleet, now);
        for turn in 1..=40 {
            fleet.reconfigure(config(turn), Vec::new(), Arc::default(), now);
            resolve(&mut fleet, now);
        }
        Renamed { fleet, now }
    }

    fn slots(&self) -> Vec<u16> {
        (self.fleet.members().iter()).filter_map(|member| Some(member.now.as_ref()?.id.slot)).collect()
    }

    /// What is sent to an engine is noted, if it has a place in the index.
    fn sends(&mut self, at: usize) -> Result<(), Missed> {
        let id = self.fleet.members()[at].now.as_ref().unwrap().id;
        self.fleet.snapshot().index.unwrap().insert(&[1], id, Origin::Choice).map(drop)
    }

    /// Slots have rested, and so many requests are there.
    fn rests(&mut self, in_flight: impl Fn(u16) -> u32) -> bool {
        self.now += slots::QUARANTINE * 2;
        self.fleet.tick(self.now, in_flight, nothing)
    }
}

#[test]
fn engines_beyond_the_index_come_in_when_there_is_a_place() {
    let mut renamed = Renamed::new(|_| {});
    assert_eq!(renamed.slots(), [120, 121, 122]);
    assert_eq!(renamed.sends(0), Err(Missed::Stranger));
    assert!(!renamed.fleet.tick(renamed.now, |_| 0, nothing), "no slot is free yet");
    let (place, id) = (renamed.fleet.members()[2].place, renamed.fleet.members()[2].now.as_ref().unwrap().id);
    renamed.fleet.probed(place, id, Ok(()), renamed.now);
    // Two of them that left have streams that go on, and one that is there has requests.
    let busy = |slot: u16| match slot {
        0 | 2 => 1,
        122 => 7,
        _ => 0,
    };
    assert!(renamed.rests(busy), "shards must know");
    assert_eq!(renamed.slots(), [1, 3, 4]);
    for at in 0..3 {
        assert_eq!(renamed.sends(at), Ok(()));
    }
    let snapshot = renamed.fleet.snapshot();
    let seen = |slot: usize| snapshot.endpoints[slot].as_ref().map(|endpoint| (endpoint.health, endpoint.foreign));
    assert_eq!(seen(4), Some((Health::Up, 7)), "it is the same engine, with what it has");
    assert_eq!(seen(122), Some((Health::Draining, 0)), "and ends that");
    // It never says how much it has to do: what it was taken for is no longer believed.
    let id = renamed.fleet.members()[2].now.as_ref().unwrap().id;
    assert!(renamed.fleet.scraped(place, id, Err("x".into()), renamed.now));
    assert_eq!(renamed.fleet.snapshot().endpoints[4].as_ref().unwrap().foreign, 0);
    // Who has a place keeps it.
    renamed.rests(|_| 0);
    assert_eq!(renamed.slots(), [1, 3, 4]);
}

/// In the other slot its requests would count from 0.
#[test]
fn an_engine_that_takes_so_many_requests_comes_in_without_any() {
    let mut renamed = Renamed::new(|config| config.upstream.iter_mut().for_each(|one| one.concurrency_max = 2));
    assert!(renamed.rests(|slot| u32::from(slot == 121)));
    assert_eq!(renamed.slots(), [0, 121, 1]);
    assert!(renamed.rests(|_| 0));
    assert_eq!(renamed.slots(), [0, 2, 1]);
}
