//! Engines and more slots than there are.

use std::collections::HashSet;

use super::*;
use crate::limits::ENDPOINTS_MAX;

/// Engines given by IP address, which nobody looks up again.
fn named(prefix: &str, count: u16) -> Config {
    let upstream = |n: u16| Upstream {
        name: format!("{prefix}-{n}"),
        ..Upstream::new(format!("http://{}", at(n)).parse().expect("an URL"))
    };
    config_of((0..count).map(upstream))
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

/// There is no slot beside its own, in which it is dead.
#[test]
fn an_engine_that_moves_where_all_slots_are_taken_leaves_its_own() {
    const COUNT: u16 = ENDPOINTS_MAX as u16;
    let mut now = Instant::now();
    let mut fleet = Fleet::new(Arc::new(named("all", COUNT)), Vec::new(), Arc::default());
    resolve(&mut fleet, now);
    let (id, address) = fleet.target(7).unwrap();
    let (other, _) = fleet.target(8).unwrap();
    fleet.probed(8, other, Ok(()), now);
    assert!(!fleet.resolved(7, vec![at(2_000)], now));
    assert_eq!(fleet.target(7), Some((id, address)), "it may be there yet");
    (0..2).for_each(|_| _ = fleet.probed(7, id, failed(), now));
    assert!(fleet.resolved(7, vec![at(2_000)], now), "shards must know");
    assert_eq!(fleet.target(7), None);
    assert!(!fleet.resolved(7, vec![at(2_000)], now), "its slot has yet to rest");
    now += slots::QUARANTINE * 2;
    assert!(!fleet.tick(now, |slot| u32::from(slot == id.slot), nothing), "it has a request yet");
    assert!(fleet.tick(now, |_| 0, nothing));
    assert_eq!(fleet.target(7), Some((EndpointId { generation: id.generation + 1, ..id }, at(2_000))));
    assert_eq!(fleet.members()[7].health(), Some(Health::Down), "it has to answer there before it gets requests");
}
