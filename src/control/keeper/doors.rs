//! The ports of this front at which engines say that they connect to tell their KV events. Whatever connects to a port
//! is taken for its engine, so that two engines cannot share one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Keeper;
use crate::config::KvEvents;
use crate::control::fleet::Fleet;
use crate::control::member::Member;
use crate::fleet::Health;
use crate::kvevents::{Endpoint, Settings};

/// How long an engine has to be unreachable before it counts as gone: a machine that is off, or a pod that was deleted,
/// refuses nothing.
const GONE_AFTER: Duration = Duration::from_secs(60);

type ByPlace = BTreeMap<usize, Vec<Endpoint>>;

/// The ports of this front at which each engine says that it connects, by place.
#[derive(Debug, Default)]
pub(super) struct Doors(Mutex<ByPlace>);

impl Doors {
    /// Keeps the doors of the engines at these places, and forgets all others.
    pub(super) fn retain(&self, places: &[usize]) {
        self.all().retain(|place, _| places.contains(place));
    }

    fn all(&self) -> MutexGuard<'_, ByPlace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    /// Notes the sockets that the engine at `place` tells.
    pub fn comes_by(&self, place: usize, sources: &[Settings]) {
        let doors = sources.iter().map(|source| &source.events).filter(|end| end.waits);
        self.doors.all().insert(place, doors.cloned().collect());
    }

    /// Why the front does not listen where the engine at `place` says that it connects: another engine says the same
    /// (neither is believed), the configuration gives that port to another one, or the front listens there itself.
    pub fn door_taken(&self, place: usize) -> Option<String> {
        self.door_taken_at(place, Instant::now())
    }

    fn door_taken_at(&self, place: usize, now: Instant) -> Option<String> {
        let (all, config) = (self.doors.all(), self.config());
        let ours = |door: &Endpoint| {
            let mut listeners = config.serve.listen.iter().chain([&config.serve.admin]);
            let listener = listeners.find(|listener| listener.port() == door.port)?;
            Some(format!("that of this front, which listens on {listener}"))
        };
        let taken = |door: &Endpoint| {
            Some((door.clone(), others(&self.fleet(), &all, place, door, now).or_else(|| ours(door))?))
        };
        let (door, whose) = all.get(&place)?.iter().find_map(taken)?;
        let at = Endpoint { waits: false, ..door };
        Some(format!(
            "it says that it tells its KV events by connecting to {at}, a port that would have to be for this engine alone but is {whose}; give each engine \
             a port of its own in its --kv-events-config, or have the engines listen (tcp://*:PORT)"
        ))
    }
}

/// The other engine that names the same door, if any. One that is gone does not count: another may run with its flags
/// by now.
fn others(fleet: &Fleet, told: &ByPlace, place: usize, door: &Endpoint, now: Instant) -> Option<String> {
    let means = |other: &Member| {
        let told = told.get(&other.place).filter(|_| !is_gone(other, now));
        let configured = matches!(&other.upstream.kv_events, KvEvents::At(end) if end.waits && end.meets(door));
        configured || told.into_iter().flatten().any(|end| end.meets(door))
    };
    let mut others = fleet.members().iter().filter(|member| member.place != place);
    let other = others.find(|&other| means(other))?;
    Some(format!("that of {} as well", other.name))
}

/// Whether no engine is there. One that answers wrongly, or not in time, may still connect.
fn is_gone(member: &Member, now: Instant) -> bool {
    let course = member.now.as_ref().map(|tenancy| &tenancy.course);
    course.is_none_or(|course| {
        course.health() == Health::Down && (course.refuses_probes() || course.is_absent_for(GONE_AFTER, now))
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use super::*;
    use crate::config::Upstream;
    use crate::control::health::{Failure, How};
    use crate::control::keeper::tests;
    use crate::control::tests::config_of;

    /// Of two engines, which have not been probed yet.
    fn keeper() -> Arc<Keeper> {
        let upstream = |n| Upstream::new(format!("http://engine-{n}:8000").parse().unwrap());
        let keeper = tests::keeper(config_of((0..2).map(upstream)));
        for place in 0..2_u8 {
            let address = SocketAddr::from(([10, 0, 0, place], 8_000));
            keeper.fleet().resolved(place.into(), vec![address], Instant::now());
        }
        keeper
    }

    fn says(keeper: &Keeper, place: usize, at: &str) {
        let events = at.parse().unwrap();
        keeper.comes_by(place, &[Settings { events, replay: None, topic: String::new(), peers: None }]);
    }

    #[test]
    fn nobody_is_waited_for_at_a_port_of_the_front_itself() {
        let keeper = keeper();
        let why = |at: &str| {
            says(&keeper, 0, at);
            keeper.door_taken(0)
        };
        assert_eq!((why("@tcp://10.0.0.9:5557"), why("tcp://10.0.0.9:8000")), (None, None));
        for (at, ours) in [("@tcp://10.0.0.9:8000", "0.0.0.0:8000"), ("tcp://*:9911", "127.0.0.1:9911")] {
            let words = format!("is that of this front, which listens on {ours}; give each engine");
            assert!(why(at).is_some_and(|why| why.contains(&words)), "{at}: {:?}", why(at));
        }
    }

    #[test]
    fn what_an_engine_said_that_is_gone_keeps_nobody_out() {
        let keeper = keeper();
        (0..2).for_each(|place| says(&keeper, place, "@tcp://10.0.0.9:5557"));
        let probed = |outcome: Result<(), How>| {
            let id = keeper.fleet().target(0).unwrap().0;
            for _ in 0..10 {
                let outcome = outcome.map_err(|how| Failure { why: "x".into(), how });
                keeper.fleet().probed(0, id, outcome, Instant::now());
            }
            [0, 1].map(|place| keeper.door_taken(place).is_some())
        };
        assert_eq!(probed(Ok(())), [true, true]);
        for how in [How::Unconnected, How::Silent, How::Otherwise] {
            assert_eq!(probed(Err(how)), [true, true], "it may be busy or ill, and connects");
        }
        assert_eq!(probed(Err(How::Refused)), [true, false]);
        assert_eq!(probed(Ok(())), [true, true], "it is back");
    }

    /// Nothing says so of a machine that is off.
    #[test]
    fn what_an_engine_said_that_nobody_finds_keeps_others_out_for_a_minute() {
        let keeper = keeper();
        (0..2).for_each(|place| says(&keeper, place, "@tcp://10.0.0.9:5557"));
        let begin = Instant::now();
        let is_taken = |seconds, how| {
            let (id, now) = (keeper.fleet().target(0).unwrap().0, begin + Duration::from_secs(seconds));
            for _ in 0..10 {
                keeper.fleet().probed(0, id, Err(Failure { why: "x".into(), how }), now);
            }
            keeper.door_taken_at(1, now).is_some()
        };
        assert_eq!([0, 30, 59].map(|seconds| is_taken(seconds, How::Unconnected)), [true; 3]);
        assert!(is_taken(60, How::Silent), "it takes connections");
        assert_eq!([61, 120, 121].map(|seconds| is_taken(seconds, How::Unconnected)), [true, true, false]);
    }
}
