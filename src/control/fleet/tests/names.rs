//! Host names of which each look-up tells something else.

use super::*;

/// An engine that answers, of a name that told two addresses by turns, and is at the second.
struct Turning {
    fleet: Fleet,
    now: Instant,
}

impl Turning {
    fn new() -> Turning {
        let mut turning = Turning { fleet: fleet(1), now: Instant::now() };
        turning.probed(Ok(()), 1);
        assert!(turning.told(&[1]), "a name that tells another address for the first time has moved");
        turning.probed(Ok(()), 1);
        assert!(!turning.told(&[0]));
        assert_eq!(turning.is_at(), at(1));
        turning
    }

    fn told(&mut self, ports: &[u16]) -> bool {
        self.fleet.resolved(0, ports.iter().copied().map(at).collect(), self.now)
    }

    fn is_at(&self) -> SocketAddr {
        self.fleet.target(0).unwrap().1
    }

    fn probed(&mut self, outcome: Result<(), Failure>, times: u32) {
        for _ in 0..times {
            let (id, _) = self.fleet.target(0).unwrap();
            self.fleet.probed(0, id, outcome.clone(), self.now);
        }
    }
}

/// What a balancer of load says of itself: one address of eight, or some of them, another time others.
#[test]
fn an_engine_stays_where_its_name_tells_addresses_by_turns() {
    let mut turning = Turning::new();
    let (id, _) = turning.fleet.target(0).unwrap();
    let index = turning.fleet.snapshot().index.unwrap();
    index.insert(&[1], id, Origin::Choice).unwrap();
    for turn in 0..100 {
        assert!(!turning.told(&[turn % 8]));
        assert!(!turning.told(&[(turn + 5) % 8, (turn + 2) % 8]));
        turning.now += Duration::from_secs(30);
        turning.fleet.tick(turning.now, |_| 0, nothing);
    }
    assert_eq!((turning.fleet.target(0), index.figures(id.slot).blocks), (Some((id, at(1))), 1));
    // That it is told no more is seen in the end, though it answers.
    let moved = (0..100).position(|turn| turning.told(&[2 + turn % 3]));
    assert!(moved.is_some_and(|behind| (10..20).contains(&behind)), "{moved:?}");
}

/// At once, and not with the next look-up.
#[test]
fn an_engine_leaves_an_address_that_is_not_told_where_it_does_not_serve_there() {
    let mut turning = Turning::new();
    turning.probed(failed(), 1);
    assert_eq!(turning.is_at(), at(1));
    turning.probed(failed(), 1);
    assert_eq!((turning.is_at(), turning.fleet.members()[0].health()), (at(0), Some(Health::Down)));

    let mut turning = Turning::new();
    let counters = Counters::leak();
    turning.fleet.look(counters, turning.now);
    let (id, _) = turning.fleet.target(0).unwrap();
    counters.outcomes().bar(id.slot);
    assert!(turning.fleet.look(counters, turning.now).1, "shards must know");
    assert_eq!((turning.is_at(), turning.fleet.members()[0].health()), (at(0), Some(Health::Unknown)));
}

/// What is told of it is where it is to be: it waits there until it is tried again.
#[test]
fn an_engine_that_is_ejected_stays_at_an_address_that_is_told() {
    let mut turning = Turning::new();
    turning.told(&[0, 1]);
    let counters = Counters::leak();
    turning.fleet.look(counters, turning.now);
    let (id, _) = turning.fleet.target(0).unwrap();
    counters.outcomes().bar(id.slot);
    turning.fleet.look(counters, turning.now);
    assert_eq!((turning.is_at(), turning.fleet.members()[0].health()), (at(1), Some(Health::Ejected)));
}
