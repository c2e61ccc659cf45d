//! The way of endpoints from one state of health to the next, in a fleet without sockets and without a clock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use warmfront::config::{Config, Upstream};
use warmfront::control::fleet::Fleet;
use warmfront::control::health::{Failure, How, Turn, Why};
use warmfront::counters::stats::Stats;
use warmfront::counters::{Counted, Counters};
use warmfront::fleet::{Endpoint, Health, Loads};
use warmfront::policy::{Avoid, Request, choose};
use warmfront::snapshot::Snapshot;

/// How often control looks at what shards have counted.
const GLANCE: u64 = 20;

struct Rig {
    fleet: Fleet,
    counters: &'static Counters,
    now: Instant,
    /// What was said, by engine, and how often shards were to know.
    said: Vec<(String, Turn)>,
    published: usize,
}

/// What happens to one engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    ProbeOk,
    ProbeFails,
    ProbeRefused,
    ProbeSilent,
    /// A request fails by its fault.
    Fault,
    /// A request ends well.
    Good,
    /// It says that it is shutting down.
    Drain,
    /// So many milliseconds pass, for all.
    Wait(u64),
}
use Event::{Drain, Fault, Good, ProbeFails, ProbeOk, ProbeRefused, ProbeSilent, Wait};

impl Rig {
    fn new(config: Config) -> Rig {
        let config = Arc::new(config);
        let (fleet, now) = (Fleet::new(Arc::clone(&config), Vec::new(), Arc::default()), Instant::now());
        let mut rig = Rig { fleet, counters: Counters::leak(), now, said: Vec::new(), published: 0 };
        for place in 0..config.upstream.len() {
            rig.fleet.resolved(place, vec![at(place)], now);
        }
        rig.look();
        rig
    }

    /// Engines that serve the same, all of them up.
    fn up(count: usize) -> Rig {
        let mut rig = Rig::new(of(count));
        (0..count).for_each(|place| rig.happens(place, ProbeOk));
        rig
    }

    fn slot(&self, place: usize) -> u16 {
        self.fleet.target(place).expect("resolved").0.slot
    }

    fn happens(&mut self, place: usize, event: Event) {
        let failed = |how| Err(Failure { why: "no".into(), how });
        match event {
            ProbeOk => self.probe(place, Ok(())),
            ProbeFails => self.probe(place, failed(How::Otherwise)),
            ProbeRefused => self.probe(place, failed(How::Refused)),
            ProbeSilent => self.probe(place, failed(How::Silent)),
            Fault => _ = self.counters.outcomes().fault(self.slot(place)),
            Good => self.counters.outcomes().good(self.slot(place)),
            Drain => _ = self.counters.outcomes().bar(self.slot(place)),
            Wait(ms) => {
                for _ in 0..ms / GLANCE {
                    self.now += Duration::from_millis(GLANCE);
                    self.look();
                }
                self.now += Duration::from_millis(ms % GLANCE);
            }
        }
        self.look();
    }

    fn probe(&mut self, place: usize, outcome: Result<(), Failure>) {
        let (id, _) = self.fleet.target(place).expect("resolved");
        let (turn, changed) = self.fleet.probed(place, id, outcome, self.now);
        self.said.extend(turn.map(|turn| (format!("engine-{place}"), turn)));
        self.published += usize::from(changed);
    }

    fn look(&mut self) {
        let (turns, changed) = self.fleet.look(self.counters, self.now);
        self.said.extend(turns.into_iter().map(|(engine, turn)| (engine.to_string(), turn)));
        self.published += usize::from(changed);
    }

    fn snapshot(&mut self) -> Snapshot {
        let mut snapshot = self.fleet.snapshot();
        snapshot.seal();
        snapshot
    }

    fn endpoint(&mut self, place: usize) -> Endpoint {
        let slot = self.slot(place);
        self.snapshot().endpoints[usize::from(slot)].clone().expect("taken")
    }

    fn health(&mut self, place: usize) -> Health {
        self.endpoint(place).health
    }

    fn eject(&mut self, place: usize) {
        (0..3).for_each(|_| self.happens(place, Fault));
    }

    fn faults(&self, engine: &str) -> u64 {
        let deeds = self.fleet.deeds(&Counted::read(self.counters, Stats::leak(1)));
        deeds.get(engine).map_or(0, |deeds| deeds.faults)
    }

    /// How long each ejection of an engine was, in milliseconds.
    fn ejections(&self, engine: &str) -> Vec<u128> {
        let length = |(name, turn): &(String, Turn)| match turn {
            Turn::Ejected(_, length) if name == engine => Some(length.as_millis()),
            _ => None,
        };
        self.said.iter().filter_map(length).collect()
    }
}

fn at(place: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 9_000 + place as u16))
}

/// `count` engines that serve `m`.
fn of(count: usize) -> Config {
    serving(&vec![&["m"] as &[&str]; count])
}

fn serving(models: &[&[&str]]) -> Config {
    let upstream = |(place, models): (usize, &&[&str])| Upstream {
        name: format!("engine-{place}"),
        models: models.iter().map(|id| id.to_string()).collect(),
        ..Upstream::new(format!("http://10.0.0.1:{}", 9_000 + place).parse().expect("an URL"))
    };
    let mut config = Config { upstream: models.iter().enumerate().map(upstream).collect(), ..Config::default() };
    // Nobody asks it: a prefix index for each of hundreds of fleets takes longer than all else.
    config.limits.index_bytes = 0;
    config
}

/// One of two engines; the other is up. What happens, and what it is then.
#[test]
fn each_event_leads_where_it_should() {
    use Health::{Down, Ejected, Trial, Unknown, Up};
    let table: &[(&str, &[(Event, Health)])] = &[
        (
            "probes alone",
            &[
                (ProbeFails, Unknown),
                (ProbeOk, Up),
                (ProbeFails, Up),
                (ProbeFails, Down),
                (ProbeFails, Down),
                (ProbeOk, Up),
            ],
        ),
        (
            "a row of faults that a good end breaks",
            &[(ProbeOk, Up), (Fault, Up), (Fault, Up), (Good, Up), (Fault, Up), (Fault, Up), (Fault, Ejected)],
        ),
        (
            "back after its time and one good end",
            &[
                (ProbeOk, Up),
                (Fault, Up),
                (Fault, Up),
                (Fault, Ejected),
                (Wait(4_960), Ejected),
                (Wait(60), Trial),
                (Good, Up),
                (Fault, Up),
                (Fault, Up),
            ],
        ),
        (
            "one fault ends a trial, and the next time is longer",
            &[
                (ProbeOk, Up),
                (Drain, Ejected),
                (Wait(5_020), Trial),
                (Fault, Ejected),
                (Wait(9_960), Ejected),
                (Wait(60), Trial),
                (Drain, Ejected),
                (Wait(19_960), Ejected),
                (Wait(60), Trial),
            ],
        ),
        (
            "a trial that gets no request waits, and its probes still count",
            &[
                (ProbeOk, Up),
                (Drain, Ejected),
                (Wait(5_020), Trial),
                (Wait(100_000), Trial),
                (ProbeFails, Trial),
                (ProbeFails, Down),
                (ProbeOk, Trial),
                (Good, Up),
            ],
        ),
        (
            "requests from before that end well do not free it",
            &[
                (ProbeOk, Up),
                (Fault, Up),
                (Fault, Up),
                (Fault, Ejected),
                (Good, Ejected),
                (Wait(5_020), Trial),
                (Wait(100), Trial),
            ],
        ),
        (
            "no trial before a probe is good",
            &[(ProbeOk, Up), (Drain, Ejected), (ProbeFails, Ejected), (Wait(6_000), Ejected), (ProbeOk, Trial)],
        ),
        (
            "down hides what requests say, and it goes on",
            &[
                (ProbeOk, Up),
                (Drain, Ejected),
                (ProbeFails, Ejected),
                (ProbeFails, Down),
                (Wait(6_000), Down),
                (ProbeOk, Trial),
                (Good, Up),
            ],
        ),
        (
            "who listens where nobody did is another process",
            &[
                (ProbeOk, Up),
                (Drain, Ejected),
                (ProbeRefused, Ejected),
                (ProbeRefused, Down),
                (Fault, Down),
                (Wait(100), Down),
                (ProbeOk, Up),
                (Fault, Up),
                (Fault, Up),
                (Fault, Ejected),
            ],
        ),
        (
            "barred while down",
            &[
                (ProbeFails, Unknown),
                (ProbeFails, Down),
                (Fault, Down),
                (Fault, Down),
                (Fault, Down),
                (ProbeOk, Ejected),
                (Wait(5_020), Trial),
                (Good, Up),
            ],
        ),
        ("barred before the first probe", &[(Drain, Ejected), (Wait(6_000), Ejected), (ProbeOk, Trial), (Good, Up)]),
    ];
    for (name, steps) in table {
        let mut rig = Rig::new(of(2));
        rig.happens(1, ProbeOk);
        for (number, (event, health)) in steps.iter().enumerate() {
            rig.happens(0, *event);
            assert_eq!(rig.health(0), *health, "{name}: {event:?}, step {number}; {:?}", rig.said);
            let barred = rig.counters.outcomes().is_barred(0);
            assert!(
                !barred || matches!(health, Down | Ejected),
                "{name}: shards avoid what is published as {health:?}"
            );
        }
        assert_eq!(rig.health(1), Up, "{name}");
    }
}

/// Each ejection in a row is twice as long, to a bound; service as long as the last one begins anew.
#[test]
fn ejections_grow_and_are_forgotten() {
    let mut rig = Rig::up(2);
    let fails_and_recovers = |rig: &mut Rig| {
        rig.eject(0);
        rig.happens(0, Wait(60_020));
        assert_eq!(rig.health(0), Health::Trial);
        rig.happens(0, Good);
    };
    for _ in 0..6 {
        fails_and_recovers(&mut rig);
        rig.happens(0, Wait(4_900));
    }
    rig.happens(0, Wait(60_000));
    fails_and_recovers(&mut rig);
    fails_and_recovers(&mut rig);
    assert_eq!(rig.ejections("engine-0"), [5_000, 10_000, 20_000, 40_000, 60_000, 60_000, 5_000, 10_000]);
    assert_eq!(rig.fleet.members()[0].ejections, 8);
    assert_eq!(rig.faults("engine-0"), 24);
}

/// What is said: why it was ejected, in the words of the one reason.
#[test]
fn reasons_are_told_apart() {
    let mut rig = Rig::up(2);
    let why = |rig: &Rig| match rig.said.last() {
        Some((_, Turn::Ejected(why, _))) => Some(*why),
        _ => None,
    };
    rig.happens(0, Fault);
    rig.happens(0, Drain);
    assert_eq!(why(&rig), Some(Why::Drain));
    assert_eq!(
        rig.fleet.members()[0].now.as_ref().and_then(|now| now.course.why()).as_deref(),
        Some(Why::Drain.as_str())
    );
    rig.happens(0, Wait(5_000));
    rig.happens(0, Fault);
    assert_eq!(why(&rig), Some(Why::Trial));
    rig.happens(0, Wait(10_000));
    rig.happens(0, Good);
    rig.eject(0);
    assert_eq!(why(&rig), Some(Why::Faults));
    // A request from before ends well between a row of faults and the look: still no word of its own.
    rig.happens(0, Wait(60_000));
    rig.happens(0, Good);
    (0..3).for_each(|_| _ = rig.counters.outcomes().fault(0));
    rig.happens(0, Good);
    assert_eq!(why(&rig), Some(Why::Faults));
}

/// A trial gets its request whatever is open there from before, and is over with its verdict.
#[test]
fn a_trial_begins_beside_what_is_open() {
    for (verdict, health) in [(Good, Health::Up), (Fault, Health::Ejected)] {
        let mut rig = Rig::up(3);
        let (counters, slot) = (rig.counters, rig.slot(0));
        let ids: Vec<_> = (0..3).map(|place| rig.fleet.target(place).expect("resolved").0).collect();
        let open: Vec<_> = ids.iter().flat_map(|id| [*id; 2]).map(|id| counters.try_admit(id, None)).collect();
        rig.eject(0);
        assert_eq!(counters.loads().open_before(slot), 0, "there is no trial yet");
        rig.happens(0, Wait(5_020));
        assert_eq!((rig.health(0), counters.loads().open_before(slot)), (Health::Trial, 2));
        let snapshot = rig.snapshot();
        let mut avoid = Avoid::default();
        ids[1..].iter().for_each(|id| avoid.push(id.slot));
        let request = Request { avoid, ..Request::default() };
        let choice = choose(&snapshot.pools[0], counters.loads(), &request).expect("on trial");
        assert_eq!((choice.endpoint, choice.caps.counted), (ids[0], 3));
        let own = counters.try_admit_below(ids[0], choice.caps).expect("its trial's");
        assert!(choose(&snapshot.pools[0], counters.loads(), &request).is_err(), "one at a time");
        rig.happens(0, verdict);
        assert_eq!((rig.health(0), counters.loads().open_before(slot)), (health, 0));
        drop((own, open));
        assert_eq!((counters.in_flight(slot), counters.underflow()), (0, 0));
    }
}

/// A request that no engine survives must not take the fleet out: half of it stays, whatever is said of it.
#[test]
fn faults_eject_at_most_half() {
    for count in 1..9 {
        let mut rig = Rig::up(count);
        for round in 0..4 {
            for place in 0..count {
                rig.eject(place);
                assert!(
                    rig.health(place) != Health::Up || !rig.counters.outcomes().is_barred(rig.slot(place)),
                    "{round}"
                );
            }
            rig.happens(0, Wait(1_000));
        }
        let up = (0..count).filter(|place| rig.health(*place) == Health::Up).count();
        assert_eq!(up, count - count / 2, "of {count}");
        assert_eq!(rig.snapshot().pools[0].eligible().slots().len(), up);
        // Each is said to be spared once in its time, not once a row of faults.
        let spared = |rig: &Rig| rig.said.iter().filter(|(_, turn)| *turn == Turn::Spared).count();
        assert_eq!(spared(&rig), up);
        rig.happens(0, Wait(2_000));
        (0..count).for_each(|place| rig.eject(place));
        assert_eq!(spared(&rig), 2 * up);
    }
}

/// Engines that fail their probes are out already: half of the rest stays.
#[test]
fn the_half_is_one_of_those_that_answer() {
    let mut rig = Rig::up(6);
    (0..2).for_each(|place| (0..2).for_each(|_| rig.happens(place, ProbeFails)));
    (2..6).for_each(|place| rig.eject(place));
    assert_eq!((2..6).filter(|place| rig.health(*place) == Health::Up).count(), 2);
    // Who is down may be barred all the same: it stands its trial when it is back.
    rig.eject(0);
    rig.happens(0, ProbeOk);
    assert_eq!(rig.health(0), Health::Ejected);
}

/// What an engine says of itself is believed: all of them may drain, and then all are tried.
#[test]
fn all_may_drain() {
    let mut rig = Rig::up(3);
    (0..3).for_each(|place| rig.happens(place, Drain));
    assert!((0..3).all(|place| rig.health(place) == Health::Ejected));
    let snapshot = rig.snapshot();
    assert!(snapshot.pools[0].eligible().last_resort());
    assert_eq!(snapshot.pools[0].eligible().slots().len(), 3);
}

/// An operator has them drained: they are no help to those that are left.
#[test]
fn who_is_drained_by_hand_does_not_count_where_half_are_to_stay() {
    let mut config = of(4);
    config.upstream[..2].iter_mut().for_each(|upstream| upstream.drain = true);
    let mut rig = Rig::new(config);
    (0..4).for_each(|place| rig.happens(place, ProbeOk));
    (2..4).for_each(|place| rig.eject(place));
    use Health::{Draining, Ejected, Up};
    assert_eq!([0, 1, 2, 3].map(|place| rig.health(place)), [Draining, Draining, Ejected, Up]);
}

/// Half is counted among those that serve the same: an adapter of its own keeps no engine in, another model's
/// engines let none out.
#[test]
fn half_is_counted_among_peers() {
    let mut rig = Rig::new(serving(&[&["m", "adapter"], &["m"], &["m"], &["other"], &["other"], &["other"]]));
    (0..6).for_each(|place| rig.happens(place, ProbeOk));
    (0..3).for_each(|place| rig.eject(place));
    let health: Vec<_> = (0..6).map(|place| rig.health(place)).collect();
    use Health::{Ejected, Up};
    assert_eq!(health, [Ejected, Up, Up, Up, Up, Up]);
    // The adapter's only engine is still tried for it.
    let snapshot = rig.snapshot();
    let pool = snapshot.models[b"adapter".as_slice()];
    assert_eq!(snapshot.pools[usize::from(pool.0)].eligible().slots(), [0]);
}

/// From 10 % to all of its share, with a publication about every second, and none when it is over.
#[test]
fn a_slow_start_goes_on_by_itself() {
    let mut rig = Rig::up(2);
    assert_eq!(rig.endpoint(0).share_percent, 100, "the first good probe of all starts at once");
    (0..2).for_each(|_| rig.happens(0, ProbeFails));
    rig.happens(0, ProbeOk);
    let mut shares = vec![rig.endpoint(0).share_percent];
    let before = rig.published;
    for _ in 0..31 {
        rig.happens(0, Wait(1_000));
        shares.push(rig.endpoint(0).share_percent);
    }
    assert!(shares.is_sorted() && shares[0] == 10 && (50..60).contains(&shares[15]) && shares[31] == 100, "{shares:?}");
    assert!((29..=32).contains(&(rig.published - before)), "{} publications", rig.published - before);
    let before = rig.published;
    rig.happens(0, Wait(5_000));
    assert_eq!(rig.published, before);
    assert_eq!(rig.endpoint(1).share_percent, 100);
}

/// The others have warm caches, those of the start had none before each other.
#[test]
fn who_is_added_to_a_fleet_that_serves_starts_slowly() {
    let mut rig = Rig::up(2);
    rig.snapshot();
    let now = rig.now;
    rig.fleet.reconfigure(Arc::new(of(3)), Vec::new(), Arc::default(), now);
    rig.fleet.resolved(2, vec![at(2)], now);
    rig.happens(2, ProbeOk);
    assert_eq!([0, 1, 2].map(|place| rig.endpoint(place).share_percent), [100, 100, 10]);
}

/// Who stood its trial starts slowly, as does one that was somewhere else before; who fails ends it.
#[test]
fn what_begins_and_ends_a_slow_start() {
    let mut rig = Rig::up(2);
    rig.happens(0, Drain);
    rig.happens(0, Wait(5_020));
    rig.happens(0, Good);
    assert_eq!((rig.health(0), rig.endpoint(0).share_percent), (Health::Up, 10));
    rig.happens(0, Drain);
    assert_eq!(rig.endpoint(0).share_percent, 100, "as a last resort it takes what comes");
    let now = rig.now;
    rig.fleet.resolved(1, vec![at(70)], now);
    rig.look();
    assert_eq!((rig.health(1), rig.endpoint(1).share_percent), (Health::Unknown, 10));
    rig.happens(1, Wait(15_000));
    rig.happens(1, ProbeOk);
    assert!((50..60).contains(&rig.endpoint(1).share_percent));

    let mut at_once = of(1);
    at_once.health.slow_start_ms = 0;
    let mut rig = Rig::new(at_once);
    (0..2).for_each(|_| rig.happens(0, ProbeFails));
    rig.happens(0, ProbeOk);
    assert_eq!((rig.health(0), rig.endpoint(0).share_percent), (Health::Up, 100));
}

#[test]
fn as_many_good_probes_in_a_row_lead_up_as_are_asked_for() {
    use Health::{Down, Unknown, Up};
    let mut config = of(1);
    config.health.successes_up = 2;
    let mut rig = Rig::new(config);
    for (event, health) in [
        (ProbeOk, Unknown),
        (ProbeOk, Up),
        (ProbeFails, Up),
        (ProbeFails, Down),
        (ProbeOk, Down),
        (ProbeFails, Down),
        (ProbeOk, Down),
        (ProbeOk, Up),
    ] {
        rig.happens(0, event);
        assert_eq!(rig.health(0), health, "{event:?}");
    }
}

/// Two in a row that the kernel refused, and nothing else, say that nobody is there.
#[test]
fn refused_probes_are_told_from_failed_ones() {
    let mut rig = Rig::up(1);
    for (event, refuses, publishes) in [
        (ProbeRefused, false, false),
        (ProbeFails, false, true), // down
        (ProbeRefused, false, false),
        (ProbeRefused, true, true),
        (ProbeRefused, true, false),
        (ProbeFails, false, true),
        (ProbeRefused, false, false),
        (ProbeRefused, true, true),
        (ProbeOk, false, true),
    ] {
        let before = rig.published;
        rig.happens(0, event);
        assert_eq!(rig.endpoint(0).refuses_probes, refuses, "{event:?}");
        assert_eq!(rig.snapshot().any_refuses, refuses, "{event:?}");
        assert_eq!(rig.published > before, publishes, "{event:?}");
    }
}

/// Load makes engines slow one after the other: each that went would leave its part to the rest, down to the last.
#[test]
fn half_of_a_pool_stays_where_probes_are_not_answered_in_time() {
    use Health::{Down, Ejected, Up};
    let health = |rig: &mut Rig| [0, 1, 2, 3].map(|place| rig.health(place));
    let slow = |rig: &Rig| {
        let slow = rig.said.iter().filter(|(_, turn)| *turn == Turn::Slow);
        slow.map(|(engine, _)| engine.clone()).collect::<Vec<_>>()
    };
    let twice = |rig: &mut Rig, places: &[usize], event| {
        (0..2).for_each(|_| places.iter().for_each(|place| rig.happens(*place, event)));
    };
    let mut rig = Rig::up(4);
    twice(&mut rig, &[0, 1, 2], ProbeSilent);
    assert_eq!(health(&mut rig), [Down, Down, Up, Up]);
    twice(&mut rig, &[0, 1, 2, 3], ProbeSilent);
    assert_eq!(
        (health(&mut rig), slow(&rig)),
        ([Down, Down, Up, Up], vec!["engine-2".into(), "engine-3".into()]),
        "each once"
    );
    let in_time = |rig: &Rig| rig.said.iter().filter(|(_, turn)| *turn == Turn::InTime).count();
    assert_eq!((rig.fleet.members()[2].probe_failures, in_time(&rig)), (4, 0));
    let before = rig.published;
    (0..3).for_each(|_| rig.happens(3, ProbeOk));
    assert_eq!((in_time(&rig), rig.published), (1, before), "once, and it changes nothing");
    // Silence and faults are doubts of one kind.
    rig.eject(2);
    assert_eq!(health(&mut rig), [Down, Down, Up, Up]);
    rig.happens(0, ProbeOk);
    rig.happens(2, ProbeSilent);
    assert_eq!(health(&mut rig), [Up, Down, Down, Up], "there is room for its silence now");
    // Who refuses is gone, however few are left.
    twice(&mut rig, &[1, 3], ProbeRefused);
    assert_eq!(health(&mut rig), [Up, Down, Down, Down]);
    let mut rig = Rig::up(4);
    twice(&mut rig, &[0, 1, 2, 3], ProbeRefused);
    assert_eq!(health(&mut rig), [Down; 4], "a rack that is gone is gone");
    twice(&mut rig, &[0, 1], ProbeSilent);
    rig.happens(2, ProbeOk);
    rig.happens(3, ProbeOk);
    rig.eject(3);
    assert_eq!(health(&mut rig), [Down, Down, Up, Ejected], "who comes back slowly was not taken out for that");
    // Nobody has been there yet.
    let mut rig = Rig::new(of(1));
    twice(&mut rig, &[0], ProbeSilent);
    assert_eq!((rig.health(0), slow(&rig)), (Down, vec![]));
}

/// A process that takes another's place knows none of its engines, which may all be busy with what that one sent.
#[test]
fn half_of_a_pool_stays_in_a_process_that_takes_anothers_place() {
    use Health::{Down, Unknown, Up};
    let health = |rig: &mut Rig| [0, 1, 2, 3].map(|place| rig.health(place));
    let twice = |rig: &mut Rig, places: &[usize], event| {
        (0..2).for_each(|_| places.iter().for_each(|place| rig.happens(*place, event)));
    };
    let mut rig = Rig::new(of(4));
    rig.fleet.presume();
    twice(&mut rig, &[0, 1, 2], ProbeSilent);
    assert_eq!(health(&mut rig), [Down, Down, Unknown, Unknown]);
    assert!(rig.fleet.usable(), "a balancer is to send on what these are kept for");
    assert!(rig.fleet.members()[2].why().is_some_and(|why| why.contains("kept in service")));
    assert_eq!(rig.said.iter().filter(|(_, turn)| *turn == Turn::Slow).count(), 1);
    twice(&mut rig, &[2], ProbeOk);
    twice(&mut rig, &[3], ProbeRefused);
    assert_eq!(health(&mut rig), [Down, Down, Up, Down], "who refuses is gone");
    // It may be at either of two addresses.
    let mut rig = Rig::new(of(1));
    rig.fleet.presume();
    let now = rig.now;
    rig.fleet.resolved(0, vec![at(0), at(7)], now);
    (0..4).for_each(|_| twice(&mut rig, &[0], ProbeSilent));
    assert_eq!((rig.health(0), rig.slot(0)), (Unknown, 0));
    (0..2).for_each(|_| twice(&mut rig, &[0], ProbeSilent));
    assert_eq!((rig.health(0), rig.slot(0), rig.said.len()), (Unknown, 1, 1), "and is told of once");
    // What hangs for good says neither that it is well nor what it serves.
    let mut rig = Rig::new(serving(&[&["m"], &[]]));
    rig.fleet.presume();
    twice(&mut rig, &[1], ProbeSilent);
    assert_eq!((rig.health(0), rig.health(1)), (Unknown, Down));
}

/// The next tenant of a slot does not pay for the one before.
#[test]
fn a_slot_forgets_its_former_tenant() {
    let mut rig = Rig::up(2);
    rig.happens(0, Drain);
    let moves = |rig: &mut Rig, to| {
        let now = rig.now;
        assert!(rig.fleet.resolved(0, vec![at(to)], now));
        rig.look();
    };
    moves(&mut rig, 70);
    assert_eq!((rig.slot(0), rig.health(0), rig.counters.outcomes().is_barred(0)), (2, Health::Down, true));
    rig.happens(0, Wait(3_000));
    let now = rig.now;
    assert!(rig.fleet.tick(now, |_| 0, |_| Counted::read(Counters::leak(), Stats::leak(1))));
    moves(&mut rig, 71);
    assert_eq!((rig.slot(0), rig.health(0), rig.counters.outcomes().is_barred(0)), (0, Health::Down, false));
    assert_eq!((rig.faults("engine-0"), rig.faults("engine-1")), (0, 0));
}

#[test]
fn caps_are_configured() {
    let mut config = of(2);
    config.upstream[1].concurrency_max = 12;
    let mut rig = Rig::new(config);
    assert_eq!((rig.endpoint(0).cap, rig.endpoint(1).cap), (Endpoint::NO_CAP, 12));
}

fn events(count: usize) -> impl Strategy<Value = Vec<(usize, Event)>> {
    let event = prop_oneof![
        4 => Just(ProbeOk),
        2 => Just(ProbeFails),
        2 => Just(ProbeRefused),
        2 => Just(ProbeSilent),
        6 => Just(Fault),
        3 => Just(Good),
        1 => Just(Drain),
        2 => (0u64..2_000).prop_map(Wait),
        1 => (0u64..70_000).prop_map(Wait),
    ];
    prop::collection::vec((0..count, event), 0..150)
}

fn any_events() -> impl Strategy<Value = (usize, Vec<(usize, Event)>)> {
    (1usize..6).prop_flat_map(|count| (Just(count), events(count)))
}

/// Whatever happened: somebody can be chosen, no ejection outlives its bound, shards and control agree, and
/// good probes and good answers bring everybody back.
fn leads_back(count: usize, events: Vec<(usize, Event)>, successes_up: u32) -> Result<(), TestCaseError> {
    let mut config = of(count);
    config.health.successes_up = successes_up;
    let longest = u128::from(config.health.eject_ms_max);
    let mut rig = Rig::new(config);
    for (place, event) in events {
        rig.happens(place, event);
        let snapshot = rig.snapshot();
        let choice = choose(&snapshot.pools[0], &Loads::default(), &Request::default());
        prop_assert!(choice.is_ok(), "nobody to choose after {event:?}");
        for place in 0..count {
            let health = rig.health(place);
            prop_assert!(
                !rig.counters.outcomes().is_barred(rig.slot(place)) || matches!(health, Health::Ejected | Health::Down),
                "shards avoid what is published as {health:?}"
            );
            let course = &rig.fleet.members()[place].now.as_ref().expect("resolved").course;
            let probed_well = course.probe_error().is_none() && course.answers();
            let ejected_ms = rig.now.saturating_duration_since(course.since()).as_millis();
            prop_assert!(health != Health::Ejected || !probed_well || ejected_ms <= longest + 1_000);
        }
        prop_assert!(rig.ejections("engine-0").iter().all(|length| (5_000..=longest).contains(length)));
    }
    for _ in 0..2 {
        (0..count).for_each(|place| (0..successes_up).for_each(|_| rig.happens(place, ProbeOk)));
        rig.happens(0, Wait(60_020));
        (0..count).for_each(|place| rig.happens(place, Good));
    }
    rig.happens(0, Wait(31_000));
    for place in 0..count {
        prop_assert_eq!((rig.health(place), rig.endpoint(place).share_percent), (Health::Up, 100));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn there_is_always_a_way_back_by_one_good_probe((count, events) in any_events()) {
        leads_back(count, events, 1)?;
    }

    #[test]
    fn there_is_always_a_way_back_by_two_good_probes((count, events) in any_events()) {
        leads_back(count, events, 2)?;
    }
}

/// A name with two addresses: a busy engine stays where it answered, with what is known of it there; who refuses is
/// looked for at the other at once.
#[test]
fn who_answered_is_looked_for_elsewhere_once_it_refuses_or_is_silent_for_long() {
    let start = || {
        let mut rig = Rig::up(1);
        let here = at(0);
        rig.fleet.resolved(0, vec![here, at(9)], rig.now);
        (rig, here)
    };
    let address = |rig: &Rig| rig.fleet.target(0).expect("resolved").1;
    let (mut rig, here) = start();
    let slot = rig.slot(0);
    (0..4).for_each(|_| rig.happens(0, ProbeFails));
    assert_eq!((rig.health(0), address(&rig), rig.slot(0)), (Health::Down, here, slot));
    rig.happens(0, ProbeOk);
    assert_eq!((rig.health(0), rig.slot(0)), (Health::Up, slot), "the same endpoint");
    (0..10).for_each(|_| rig.happens(0, ProbeFails));
    assert_eq!(address(&rig), at(9), "silent for long");
    let (mut rig, _) = start();
    (0..2).for_each(|_| rig.happens(0, ProbeRefused));
    assert_eq!(address(&rig), at(9), "refused");
    // As all start together.
    let mut rig = Rig::new(of(1));
    rig.fleet.resolved(0, vec![here, at(9)], rig.now);
    rig.happens(0, ProbeRefused);
    assert_eq!((address(&rig), rig.endpoint(0).share_percent), (at(9), Endpoint::WHOLE), "the first one ever");
}
