use super::rank::LANES;
use super::*;

mod islands;

const SECOND: u64 = 1_000_000;

thread_local!(pub(super) static LOOKS: Cell<usize> = const { Cell::new(0) });

fn queue() -> &'static Queue {
    Box::leak(Box::default())
}

fn asks(endpoint: u16) -> Newcomer {
    Newcomer { priority: 0, tenant: Tenant::ONLY, held: 0.0, new: 0, needs: 0, endpoint, shard: 0 }
}

fn of_tenant(lane: u8, weight: u32) -> Newcomer {
    Newcomer { tenant: Tenant { lane, weight }, ..asks(0) }
}

#[test]
fn who_waits_longest_is_next_for_its_endpoint() {
    let queue = queue();
    let first = queue.join(&asks(3), 10, 0).unwrap();
    let second = queue.join(&Newcomer { shard: 1, ..asks(3) }, 10, SECOND).unwrap();
    let elsewhere = queue.join(&Newcomer { shard: 2, ..asks(4) }, 10, 2 * SECOND).unwrap();
    assert!(first.is_next() && !second.is_next() && elsewhere.is_next());
    elsewhere.aims_at(3, 0, queue.seen());
    assert_eq!((elsewhere.is_next(), elsewhere.turn(), queue.waiting()), (false, Turn::InVain, 3));
    drop(first);
    assert_eq!((second.is_next(), second.waited(3 * SECOND)), (true, 2 * SECOND));
    drop((second, elsewhere));
    assert_eq!(queue.waiting(), 0);
}

/// Each that looks for room asks this, dozens in a row while as many wait as may.
#[test]
fn who_is_not_next_sees_so_at_the_first_who_came_before() {
    let queue = queue();
    let most = QUEUE_MAX as u32;
    let places: Vec<Place> = (0..most).map(|at| queue.join(&asks(3), most, at.into()).unwrap()).collect();
    LOOKS.set(0);
    assert_eq!(places.iter().filter(|place| place.is_next()).count(), 1);
    assert!(LOOKS.get() < 2 * (QUEUE_MAX + places.len()), "{} looks", LOOKS.get());
}

/// Who joins while others are looked at takes nobody's place in that, wherever it stands.
#[test]
fn who_joined_before_is_never_passed_over() {
    let queue = queue();
    let join = |endpoint: u16| queue.join(&asks(endpoint), 10, 0).unwrap();
    let (first, second, last) = (join(0), join(1), join(2));
    drop(second);
    let mut ranks = queue.ranks();
    let mut next = || ranks.next().map(|(_, rank)| rank.endpoint());
    assert_eq!(next(), Some(0));
    let newcomer = join(3);
    assert_eq!((next(), next()), (Some(3), Some(2)), "who waits last in the queue was there before");
    let more = (join(4), join(5));
    drop((first, newcomer, last));
    assert_eq!((next(), next(), next()), (Some(4), Some(5), None));
    drop(more);
    assert_eq!((queue.waiting(), queue.ranks().count(), queue.joined()), (0, 0, 6));
}

#[test]
fn who_comes_first_looks_first_at_what_ended() {
    let queue = queue();
    let first = queue.join(&Newcomer { shard: 1, ..asks(3) }, 10, 0).unwrap();
    let second = queue.join(&Newcomer { shard: 2, ..asks(4) }, 10, SECOND).unwrap();
    let third = queue.join(&Newcomer { shard: 2, ..asks(5) }, 10, 2 * SECOND).unwrap();
    let turns = || (first.turn(), second.turn(), third.turn());
    assert_eq!(turns(), (Turn::Now, Turn::Now, Turn::Now), "nothing ended");
    assert_eq!(queue.next_elsewhere(0), None);
    queue.freed(6);
    let behind = Turn::Behind(0);
    assert_eq!(turns(), (Turn::Now, behind, behind), "whatever they wait for");
    assert_eq!((queue.next_elsewhere(0), queue.next_elsewhere(1)), (Some(1), Some(2)));
    first.aims_at(3, 0, queue.seen());
    assert_eq!(turns(), (Turn::Now, Turn::Now, Turn::Now), "those of a shard look in their order by themselves");
    assert_eq!((queue.next_elsewhere(1), queue.next_elsewhere(2)), (Some(2), None));
    queue.freed(3);
    first.aims_at(7, 0, queue.seen());
    second.aims_at(7, 0, queue.seen());
    assert_eq!((turns(), queue.next_elsewhere(0)), ((Turn::Now, Turn::InVain, Turn::Now), Some(2)), "the third has to");
}

#[test]
fn as_many_look_side_by_side_as_places_are_open() {
    let queue = queue();
    let of_shard = |shard: u16| queue.join(&Newcomer { shard, ..asks(shard) }, 10, u64::from(shard) * SECOND).unwrap();
    let [first, second, third] = [0, 1, 2].map(of_shard);
    (7..9).for_each(|endpoint| queue.freed(endpoint));
    assert_eq!((second.turn(), third.turn()), (Turn::Now, Turn::Behind(0)), "two are open");
    second.released(10, 3 * SECOND);
    assert_eq!(third.turn(), Turn::Behind(0), "one is");
    first.aims_at(0, 0, queue.seen());
    assert_eq!(third.turn(), Turn::Now);
    queue.freed(7);
    third.aims_at(2, 0, queue.seen());
    queue.freed(7);
    assert_eq!(third.turn(), Turn::Behind(0), "one that does not suit is not open");
}

#[test]
fn who_looked_before_an_end_has_to_look_again() {
    let queue = queue();
    let first = queue.join(&Newcomer { shard: 1, ..asks(3) }, 10, 0).unwrap();
    let second = queue.join(&asks(4), 10, SECOND).unwrap();
    let seen = queue.seen();
    queue.freed(3);
    first.aims_at(3, 0, seen);
    let behind = Turn::Behind(0);
    assert_eq!(second.turn(), behind, "it chose before");
    second.aims_at(3, 0, seen);
    assert_eq!(second.turn(), behind, "the same for one who waits there, too");
    first.aims_at(3, 0, queue.seen());
    assert_eq!(second.turn(), Turn::InVain);
}

#[test]
fn who_looked_in_vain_is_passed_by_who_needs_less_and_was_served_as_little() {
    let queue = queue();
    let needs =
        |needs: u32, lane: u8, shard: u16| queue.join(&Newcomer { needs, shard, ..of_tenant(lane, 1) }, 10, 0).unwrap();
    let (first, as_much, others) = (needs(900, 1, 1), needs(900, 1, 2), needs(899, 2, 0));
    first.aims_at(0, 900, queue.seen());
    assert_eq!((as_much.turn(), others.turn()), (Turn::InVain, Turn::Now));
    queue.freed(3);
    assert_eq!(others.turn(), Turn::Behind(0), "there may be room for the first by now");
    first.aims_at(0, 900, queue.seen());
    others.aims_at(0, 500, queue.seen());
    let less = needs(500, 1, 3);
    assert_eq!(less.turn(), Turn::InVain, "one that was not first found that 500 are too much, too");
    less.aims_at(0, 499, queue.seen());
    assert_eq!((others.turn(), needs(498, 1, 3).turn()), (Turn::InVain, Turn::Now));
    first.aims_at(0, 900, queue.seen());
    assert_eq!(
        (others.turn(), less.turn()),
        (Turn::Now, Turn::Now),
        "the first has looked again: there may be room without an end"
    );
    queue.passed(&Newcomer { new: 1_000, ..of_tenant(2, 1) });
    let more = needs(1, 2, 4);
    assert_eq!(more.turn(), Turn::Later, "it was served more");
    more.aims_at(1, 1, queue.seen());
    assert_eq!(more.turn(), Turn::Now, "it waits elsewhere");
    let idle = queue.join(&Newcomer { priority: 1, ..of_tenant(1, 1) }, 10, 0).unwrap();
    assert_eq!(idle.turn(), Turn::Later);
}

/// Their turn comes, and what does not fit by then is waited for by nobody else.
#[test]
fn no_room_is_kept_for_strangers() {
    let queue = queue();
    let of = |needs: u32, tenant: Tenant| Newcomer { needs, tenant, ..asks(0) };
    let known = Tenant { lane: 1, weight: 1 };
    let stranger = queue.join(&of(900, Tenant::STRANGERS), 10, 0).unwrap();
    queue.passed(&Newcomer { new: 1_000, ..of(0, known) });
    let [as_much, less] = [900, 899].map(|needs| queue.join(&of(needs, known), 10, 0).unwrap());
    queue.freed(0);
    assert!(stranger.is_next() && less.turn() == Turn::Later && !queue.lets_pass(&of(1, known)), "it looks first");
    stranger.aims_at(0, 900, queue.seen());
    assert_eq!((as_much.turn(), less.turn()), (Turn::InVain, Turn::Now), "served more as they were");
    let mut look = Look::default();
    let lets = |look: &Look| [&stranger, &as_much, &less].map(|place| look.lets(place));
    look.in_vain(0, 900, &stranger);
    assert_eq!(lets(&look), [false, false, true]);
    look.in_vain(0, 899, &less);
    assert_eq!(lets(&look), [false; 3]);
    drop((as_much, less));
    assert!(queue.lets_pass(&of(1, known)), "it has looked");
    stranger.aims_at(0, 900, queue.seen());
    let served = |place: &Place| place.order().served;
    let (before, paid) = (served(&stranger), queue.passed(&Newcomer { new: 50, ..of(0, Tenant::STRANGERS) }).unwrap());
    assert!(paid.is_a_strangers() && served(&stranger) > before, "on one account for all of them");
}

#[test]
fn who_is_no_stranger_any_more_waits_on_as_who_it_is() {
    let queue = queue();
    let newcomer = Newcomer { tenant: Tenant::STRANGERS, priority: 3, ..asks(0) };
    let mut stranger = queue.join(&newcomer, 10, 0).unwrap();
    let known = queue.join(&of_tenant(1, 1), 10, SECOND).unwrap();
    assert!(stranger.is_a_strangers() && known.is_next());
    stranger.turns_out_to_be_of(Tenant { lane: 1, weight: 1 }, 0);
    assert!(!stranger.is_a_strangers() && stranger.is_next() && !known.is_next());
    assert_eq!((stranger.waited(2 * SECOND), queue.waiting()), (2 * SECOND, 2));
    assert!(!stranger.released(10, 2 * SECOND).is_a_strangers());
}

#[test]
fn no_name_is_that_of_strangers() {
    let lanes = (0..1 << 12).map(|hash: u64| Tenant::of(hash << 32, 1).lane);
    let seen: std::collections::BTreeSet<u8> = lanes.collect();
    assert_eq!((seen.len(), seen.contains(&Tenant::STRANGERS.lane)), (LANES - 1, false));
}

#[test]
fn behind_one_who_looked_in_vain_those_of_its_line_look_that_need_less() {
    let queue = queue();
    let needs = |needs: u32, lane: u8| queue.join(&Newcomer { needs, ..of_tenant(lane, 1) }, 10, 0).unwrap();
    let [long, longer, short, shorter, others] =
        [(500, 1), (501, 1), (100, 1), (99, 1), (1, 2)].map(|(n, l)| needs(n, l));
    let all = [&long, &longer, &short, &shorter, &others];
    let mut look = Look::default();
    let lets = |look: &Look| all.map(|place| look.lets(place));
    assert_eq!(lets(&look), [true; 5]);
    look.in_vain(0, 500, &long);
    assert_eq!(lets(&look), [false, false, true, true, false]);
    look.in_vain(0, 100, &short);
    look.in_vain(3, 100, &short);
    assert_eq!(lets(&look), [false, false, false, true, false]);
    shorter.aims_at(3, 100, queue.seen());
    assert!(!look.lets(&shorter), "nor there");
    look.opens(3);
    assert_eq!(lets(&look), [false, false, false, true, false]);
    look.closes(3);
    assert_eq!(lets(&look), [false; 5]);
    look.begins();
    assert_eq!(lets(&look), [true; 5]);
}

#[test]
fn warmth_and_urgency_come_before_waiting() {
    let queue = queue();
    let cold = queue.join(&asks(0), 10, 0).unwrap();
    let warm = queue.join(&Newcomer { held: 0.9, ..asks(0) }, 10, 8 * SECOND).unwrap();
    assert!(warm.is_next() && !cold.is_next());
    let late = queue.join(&Newcomer { held: 0.9, ..asks(0) }, 10, 10 * SECOND).unwrap();
    assert!(late.order() > cold.order(), "it has waited longer than warmth counts");
    let urgent = queue.join(&Newcomer { priority: -1, ..asks(0) }, 10, 99 * SECOND).unwrap();
    assert!(urgent.is_next());
    let idle = queue.join(&Newcomer { priority: 5, held: 1.0, ..asks(0) }, 10, 0).unwrap();
    assert!(idle.order() > late.order());
}

#[test]
fn who_has_room_passes_its_equals_but_nobody_who_comes_before_it() {
    let queue = queue();
    assert!(queue.lets_pass(&of_tenant(1, 1)));
    queue.passed(&Newcomer { new: 1_000_000, ..of_tenant(1, 1) });
    let waits = queue.join(&of_tenant(1, 1), 10, 0).unwrap();
    queue.freed(0);
    assert!(!queue.lets_pass(&of_tenant(1, 1)), "who waits looks first");
    waits.aims_at(0, 0, queue.seen());
    assert!(queue.lets_pass(&of_tenant(1, 1)), "it did not fit; what passed an empty queue is on no account");
    assert!(!queue.lets_pass(&Newcomer { priority: 1, ..of_tenant(1, 1) }), "less urgent");
    assert!(
        queue.lets_pass(&Newcomer { priority: 1, endpoint: 5, ..of_tenant(1, 1) }),
        "it looked, and waits elsewhere"
    );
    queue.freed(5);
    assert!(!queue.lets_pass(&Newcomer { endpoint: 5, ..of_tenant(1, 1) }), "it may go there now");
    assert!(queue.lets_pass(&Newcomer { priority: -1, endpoint: 5, ..of_tenant(1, 1) }), "more urgent");
    assert!(queue.lets_pass(&of_tenant(1, 1)), "nothing ended here since");
    queue.passed(&Newcomer { new: 1_000, ..of_tenant(2, 1) });
    assert!(!queue.lets_pass(&of_tenant(2, 1)), "its tenant was served more");
    assert!(queue.lets_pass(&of_tenant(3, 1)) && queue.lets_pass(&Newcomer { priority: -1, ..of_tenant(2, 1) }));
    let other = queue.join(&of_tenant(2, 1), 10, 0).unwrap();
    other.released(1_000, 1);
    queue.passed(&Newcomer { new: 10, ..of_tenant(3, 1) });
    assert!(!queue.lets_pass(&of_tenant(3, 1)), "a newcomer begins where those who wait are, not at nothing");
}

#[test]
fn a_full_queue_takes_only_who_may_push_another_out() {
    let queue = queue();
    let low = queue.join(&Newcomer { priority: 9, ..asks(0) }, 2, 0).unwrap();
    let usual = queue.join(&asks(0), 2, 0).unwrap();
    assert!(queue.join(&Newcomer { priority: 9, ..asks(0) }, 2, 1).is_none());
    let urgent = queue.join(&Newcomer { priority: -3, ..asks(0) }, 2, 1).unwrap();
    assert!(!low.stands() && usual.stands() && urgent.is_next());
    assert_eq!(queue.waiting(), 2);
    drop(low);
    assert_eq!(queue.waiting(), 2, "it had left when it was pushed out");
    assert!(queue.join(&asks(0), 2, 2).is_none(), "its equals are not pushed out");
    drop((usual, urgent));
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn a_tenant_cannot_fill_the_queue_for_others() {
    let queue = queue();
    let flood: Vec<_> = (0..8).map(|at| queue.join(&of_tenant(1, 1), 8, at).unwrap()).collect();
    assert!(queue.join(&of_tenant(1, 1), 8, 9).is_none());
    let others: Vec<_> = (0..4).map(|at| queue.join(&of_tenant(2, 1), 8, 10 + at)).collect();
    assert!(others.iter().all(Option::is_some));
    assert_eq!(flood.iter().filter(|place| place.stands()).count(), 4);
    assert!(flood[..4].iter().all(Place::stands), "the last ones go");
    assert!(queue.join(&of_tenant(2, 1), 8, 20).is_none(), "a fifth would be more than its part");
    assert!(queue.join(&of_tenant(3, 3), 8, 20).is_some());
}

#[test]
fn places_of_a_full_queue_are_counted_by_weight() {
    let queue = queue();
    let heavy: Vec<_> = (0..3).map(|at| queue.join(&of_tenant(2, 3), 4, at).unwrap()).collect();
    let light = queue.join(&of_tenant(1, 1), 4, 3).unwrap();
    assert!(queue.join(&of_tenant(1, 1), 4, 4).is_none(), "two for one are more than three for three");
    assert!(heavy.iter().chain([&light]).all(Place::stands));
}

#[test]
fn tenants_are_served_by_weight() {
    let queue = queue();
    // One floods, the other asks little: each release goes to who was served least for its weight.
    let mut flood: Vec<_> = (0..400).map(|at| queue.join(&of_tenant(1, 1), 1_000, at).unwrap()).collect();
    let mut heavy: Vec<_> = (0..400).map(|at| queue.join(&of_tenant(2, 3), 1_000, 1_000 + at).unwrap()).collect();
    let mut served = [0; 2];
    for _ in 0..200 {
        let (which, of) = if flood[0].is_next() { (0, &mut flood) } else { (1, &mut heavy) };
        assert!(of[0].is_next());
        served[which] += 1;
        of.remove(0).released(100, SECOND);
    }
    assert!((49..=51).contains(&served[0]) && served[0] + served[1] == 200, "{served:?}");
}

#[test]
fn who_was_away_saves_up_no_turns() {
    let queue = queue();
    for at in 0..100 {
        queue.join(&of_tenant(1, 1), 10, at).unwrap().released(1_000, at);
    }
    let late: Vec<_> = (0..3).map(|at| queue.join(&of_tenant(2, 1), 10, 200 + at).unwrap()).collect();
    let busy = queue.join(&of_tenant(1, 1), 10, 201).unwrap();
    let mut before = 0;
    for place in late {
        if place.order() < busy.order() {
            before += 1;
        }
        place.released(1_000, 300);
    }
    assert!(before <= 2, "{before} of its requests before one of who was there all the time");
}

#[test]
fn all_is_given_back_whatever_they_do() {
    let queue = queue();
    let threads: Vec<_> = (0..4u8)
        .map(|lane| {
            std::thread::spawn(move || {
                let mut places = Vec::new();
                for at in 0..20_000u64 {
                    let priority = (at % 5) as i8 - 2;
                    let newcomer = Newcomer { priority, ..of_tenant(lane, 1 + u32::from(lane)) };
                    places.extend(queue.join(&newcomer, 32, at));
                    if at % 3 == 0 && !places.is_empty() {
                        let place: Place = places.remove(at as usize % places.len());
                        place.aims_at((at % 7) as u16, 0, queue.seen());
                        if at % 2 == 0 { _ = place.released(10, at) } else { drop(place) }
                    }
                    places.retain(|place| place.stands());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(queue.waiting(), 0);
    assert!(queue.words.iter().all(|word| word.load(Ordering::Relaxed) == Rank::NOBODY));
}

#[test]
fn beyond_its_memory_it_is_full() {
    let queue = queue();
    let places: Vec<_> = (0..QUEUE_MAX as u64).map(|at| queue.join(&asks(0), u32::MAX, at).unwrap()).collect();
    assert!(queue.join(&asks(0), u32::MAX, 0).is_none());
    drop(places);
    assert!(queue.join(&asks(0), u32::MAX, 0).is_some());
}

/// Nor do those who pass move on those who wait: who comes next would stand behind all of them.
#[test]
fn what_is_refused_moves_nobodys_turn() {
    let queue = queue();
    let _waiting: Vec<_> = (0..3).map(|at| queue.join(&of_tenant(1, 1), 10, at).unwrap()).collect();
    let victim = Newcomer { new: 1_000, ..of_tenant(2, 1) };
    let served = || queue.tenants.served(queue.book(0, Rank::urgency_of(0)), 2);
    for _ in 0..5 {
        let paid = [(); 2].map(|()| queue.passed(&victim).unwrap());
        paid.into_iter().for_each(|paid| queue.repaid(paid));
    }
    let _late = queue.join(&of_tenant(2, 1), 10, 100).unwrap();
    assert_eq!(served(), 0);
    // What it was served in truth it is charged for.
    assert!(queue.passed(&victim).is_some() && served() > 0);
}

#[test]
fn who_comes_anew_begins_where_the_last_served_of_those_who_wait_is() {
    let queue = queue();
    let urgent = |lane: u8| Newcomer { priority: -1, ..of_tenant(lane, 1) };
    // One goes before all others, for long.
    let (flood, late) = (joins(queue, &of_tenant(2, 1), 0), joins(queue, &of_tenant(2, 1), 1));
    for now in 0..100 {
        joins(queue, &urgent(1), now).released(1_000, now);
    }
    let newcomer = joins(queue, &of_tenant(3, 1), 2);
    flood.released(1_000, 200);
    assert!(newcomer.is_next() && !late.is_next());
    // Nor is who is served at one engine for long to be let go first by all who come to another.
    for now in 0..100 {
        joins(queue, &Newcomer { endpoint: 4, ..of_tenant(5, 1) }, now).released(1_000, now);
    }
    newcomer.released(1_000, 300);
    let other = joins(queue, &of_tenant(6, 1), SECOND);
    assert!(late.is_next());
    late.released(1_000, 401);
    assert!(other.is_next());
}

fn joins(queue: &'static Queue, newcomer: &Newcomer, now: u64) -> Place {
    queue.join(newcomer, 1_000, now).unwrap()
}

/// Where clients come again and again to a full queue, most of what comes is refused.
#[test]
fn who_is_refused_by_a_full_queue_looks_once_at_who_waits() {
    let queue = queue();
    let most = QUEUE_MAX as u32;
    let of_lane = |at: u32| of_tenant(at as u8 % 32, 1);
    let places: Vec<Place> = (0..most).map(|at| queue.join(&of_lane(at), most, at.into()).unwrap()).collect();
    for newcomer in [of_tenant(3, 1), Newcomer { priority: 1, ..of_tenant(40, 1) }] {
        LOOKS.set(0);
        assert!(queue.join(&newcomer, most, 0).is_none());
        assert!(LOOKS.get() <= QUEUE_MAX, "{} looks", LOOKS.get());
    }
    assert!(queue.join(&of_tenant(40, 1), most, 0).is_some());
    drop(places);
}

/// A reload may let fewer wait than do: who comes is refused, and nobody goes for it in vain.
#[test]
fn nobody_is_pushed_out_where_that_makes_no_room() {
    let queue = queue();
    let places: Vec<Place> = (0..10).map(|at| queue.join(&of_tenant(1, 1), 10, at).unwrap()).collect();
    assert!(queue.join(&of_tenant(2, 1), 3, 10).is_none());
    assert!(places.iter().all(Place::stands));
    let taken_in = queue.join(&of_tenant(2, 1), 10, 10);
    assert!(taken_in.is_some() && places.iter().filter(|place| !place.stands()).count() == 1);
}
