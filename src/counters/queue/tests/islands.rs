//! Who waits for one island stands in nobody's way who waits for another.

use super::*;

/// Endpoint 0 has an island of its own, whose engines are quick; 5 is slow.
fn two_islands() -> &'static Queue {
    let queue = queue();
    queue.islands_are(&[0, 1, 1, 1, 1, 1, 1, 1]);
    queue
}

#[test]
fn who_comes_to_a_slow_island_does_not_wait_for_what_a_quick_one_served() {
    let queue = two_islands();
    let at = |endpoint: u16, lane: u8, now: u64| joins(queue, &Newcomer { endpoint, ..of_tenant(lane, 1) }, now);
    let (flood, late) = (at(5, 2, 0), at(5, 2, 1));
    let quick = at(0, 1, 0);
    for now in 0..100 {
        at(0, 1, now).released(1_000, now);
    }
    let newcomer = at(5, 3, 2);
    assert!(flood.is_next(), "who was served as little, and came before it");
    flood.released(1_000, 200);
    assert!(newcomer.is_next() && !late.is_next());
    drop(quick);
}

/// An engine that moves to another slot, or a pool that is added, gives an island another number, and with it a book in
/// which somebody was served much.
#[test]
fn who_waits_while_islands_change_is_not_behind_what_was_served_before() {
    let queue = two_islands();
    let at = |lane: u8, now: u64| joins(queue, &Newcomer { endpoint: 5, ..of_tenant(lane, 1) }, now);
    for now in 0..100 {
        at(1, now).released(1_000, now);
    }
    queue.islands_are(&[0, 1, 1, 1, 1, 5, 1, 1]);
    let (early, late) = (at(1, 200), at(2, 201));
    queue.islands_are(&[0, 1, 1, 1, 1, 1, 1, 1]);
    assert!(early.is_next() && !late.is_next(), "both were served as little since");
    early.released(1_000, 300);
    let again = at(1, 302);
    queue.islands_are(&[0, 1, 1, 1, 1, 1, 1, 1]);
    assert!(late.is_next() && !again.is_next(), "what does not change leaves all as it was");
}

/// There is nobody whom it passes, and nothing that would later go on to where it stood.
#[test]
fn who_is_served_while_others_wait_elsewhere_is_in_nobodys_debt() {
    let queue = two_islands();
    let at = |lane: u8, now: u64| joins(queue, &of_tenant(lane, 1), now);
    let _other_island = joins(queue, &Newcomer { endpoint: 5, ..of_tenant(4, 1) }, 0);
    let _less_urgent = joins(queue, &Newcomer { priority: 1, ..of_tenant(4, 1) }, 0);
    for _ in 0..100 {
        assert!(queue.passed(&Newcomer { new: 1_000, ..of_tenant(1, 1) }).is_none());
    }
    let (first, second, other) = (at(2, 1), at(2, 2), at(1, 3));
    assert!(first.is_next());
    first.released(1_000, 4);
    assert!(other.is_next() && !second.is_next());
}

#[test]
fn who_waits_for_other_islands_stands_in_nobodys_way() {
    let queue = two_islands();
    let waits = joins(queue, &Newcomer { endpoint: 5, shard: 1, priority: -1, ..asks(5) }, 0);
    let here = joins(queue, &asks(0), 1);
    queue.freed(0);
    assert!(
        queue.lets_pass(&Newcomer { priority: -1, ..asks(0) }),
        "who waits here is less urgent, who waits there is not asked"
    );
    assert!(!queue.lets_pass(&asks(0)), "who waits here has yet to look");
    assert_eq!((here.turn(), queue.next_elsewhere(0)), (Turn::Now, None), "it has nothing to look for");
    queue.freed(6);
    assert_eq!((here.turn(), waits.turn(), queue.next_elsewhere(0)), (Turn::Now, Turn::Now, Some(1)));
    here.aims_at(0, 0, queue.seen());
    let of_shard = |shard: u16| joins(queue, &Newcomer { shard, ..asks(6) }, u64::from(shard));
    let (first, second) = (of_shard(2), of_shard(3));
    waits.aims_at(5, 0, queue.seen());
    first.aims_at(6, 0, queue.seen());
    (0..3).for_each(|_| queue.freed(0));
    queue.freed(7);
    waits.aims_at(5, 0, queue.seen());
    queue.freed(7);
    assert_eq!(second.turn(), Turn::Behind(0), "what is open elsewhere is not open here");
}

/// Who waits for a model whose queue is long does not keep those of another out.
#[test]
fn a_full_queue_is_shared_evenly_by_islands() {
    let queue = two_islands();
    let crowd: Vec<_> = (0..4).map(|now| queue.join(&Newcomer { priority: -1, ..asks(0) }, 4, now).unwrap()).collect();
    let standing = || crowd.iter().map(Place::stands).collect::<Vec<_>>();
    let first = queue.join(&asks(2), 4, 4).expect("it has none yet");
    let second = queue.join(&asks(2), 4, 5).expect("one of four");
    assert_eq!((standing(), queue.waiting()), (vec![true, true, false, false], 4), "the last who came go first");
    assert!(queue.join(&asks(2), 4, 6).is_none(), "they have two each");
    assert!(queue.join(&asks(0), 4, 6).is_none());
    let urgent = queue.join(&Newcomer { priority: -1, ..asks(2) }, 4, 7).expect("of its own");
    assert_eq!((first.stands(), second.stands(), urgent.stands()), (true, false, true));
    drop((crowd, first, second, urgent));
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn how_long_a_wait_will_be_goes_by_the_pace_of_its_island() {
    let queue = two_islands();
    let at = |endpoint: u16, now: u64| joins(queue, &asks(endpoint), now);
    let _crowd: Vec<_> = (0..50).map(|_| at(5, 0)).collect();
    for second in 10..18 {
        (0..10).for_each(|_| _ = at(0, second * SECOND).released(1, second * SECOND));
    }
    at(5, 10 * SECOND).released(1, 10 * SECOND);
    assert_eq!((queue.wait_seconds(0, 18 * SECOND), queue.wait_seconds(5, 18 * SECOND)), (1, 60));
}
