//! Counts of engines, by name, from endpoints that they no longer have and sockets on which they are no longer heard:
//! so the counters shown for a name never fall, whichever slots, addresses and sockets it had. If more than
//! [`LEFT_MAX`] names have left, the first to leave are dropped: a series that ends takes nothing from sums of rates,
//! but adding their counts to another series would show years as one moment.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::mem::take;
use std::sync::Arc;

use super::hearing::Figures;
use super::member::Member;
use crate::counters::Deeds;

/// How many engines that left are remembered by name: one that returns goes on where it was.
pub const LEFT_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Bank {
    known: BTreeMap<Arc<str>, Past>,
    /// Names of engines that have left, the first to leave first.
    left: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct Past {
    deeds: Deeds,
    /// Of a [`Member`] that is no longer there, as are the next two.
    ejections: u64,
    probe_failures: u64,
    scrape_failures: u64,
    /// Counts of its events from before the present hearing.
    heard: Figures,
}

impl Bank {
    /// Adds counts of an engine of this name: from an endpoint that it no longer has, or by its own counters alone.
    pub fn keep(&mut self, name: Arc<str>, deeds: &Deeds) {
        self.known.entry(name).or_default().deeds.add(deeds);
    }

    /// Keeps the counts of a member that goes.
    pub fn leaves(&mut self, member: &Member) {
        let past = self.known.entry(Arc::clone(&member.name)).or_default();
        past.ejections += member.ejections;
        past.probe_failures += member.probe_failures;
        past.scrape_failures += member.scrape_failures;
    }

    /// Gives a member the counts that it had before, if it was there before.
    pub fn returns(&mut self, member: &mut Member) {
        let Some(past) = self.known.get_mut(&member.name) else { return };
        member.ejections += take(&mut past.ejections);
        member.probe_failures += take(&mut past.probe_failures);
        member.scrape_failures += take(&mut past.scrape_failures);
    }

    /// Adds the counts of a hearing that has ended of the engine of this name.
    pub fn was_heard(&mut self, name: Arc<str>, figures: &Figures) {
        self.known.entry(name).or_default().heard.add(figures);
    }

    /// Counts of earlier hearings of an engine of this name.
    pub fn heard(&self, name: &str) -> Figures {
        self.known.get(name).map(|past| past.heard).unwrap_or_default()
    }

    /// Keeps no more than [`LEFT_MAX`] names beside those that are `here`.
    pub fn forget(&mut self, here: &HashSet<&Arc<str>>) {
        self.left.retain(|name| !here.contains(name));
        let gone = self.known.keys().filter(|name| !here.contains(name) && !self.left.contains(name));
        let gone: Vec<Arc<str>> = gone.cloned().collect();
        self.left.extend(gone);
        while self.left.len() > LEFT_MAX
            && let Some(name) = self.left.pop_front()
        {
            self.known.remove(&name);
        }
    }

    /// All of it, by name.
    pub fn deeds(&self) -> BTreeMap<Arc<str>, Deeds> {
        let known = self.known.iter().filter(|(_, past)| !past.deeds.is_empty());
        known.map(|(name, past)| (Arc::clone(name), past.deeds.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::config::{Config, Upstream};
    use crate::control::fleet::Fleet;
    use crate::control::tests::config_of;
    use crate::counters::stats::{RequestKey, Stats};
    use crate::counters::{Counted, Counters, Prediction};
    use crate::fleet::Method;

    /// A fleet whose requests are counted.
    struct Rig {
        fleet: Fleet,
        counters: &'static Counters,
        stats: &'static Stats,
        now: Instant,
    }

    impl Rig {
        fn of(ports: &[u16]) -> Rig {
            let fleet = Fleet::new(Arc::new(config(ports)), Vec::new(), Arc::default());
            let mut rig = Rig { fleet, counters: Counters::leak(), stats: Stats::leak(1), now: Instant::now() };
            rig.resolve();
            rig
        }

        /// Every engine where its port says that it is.
        fn resolve(&mut self) {
            let at = |member: &Member| (member.place, member.upstream.url.port);
            let members: Vec<(usize, u16)> = self.fleet.members().iter().map(at).collect();
            members.into_iter().for_each(|(place, port)| self.moves(place, port));
        }

        fn moves(&mut self, place: usize, port: u16) {
            self.fleet.resolved(place, vec![SocketAddr::from(([10, 0, 0, 1], port))], self.now);
            self.fleet.look(self.counters, self.now);
        }

        fn reload(&mut self, config: Config) {
            self.fleet.reconfigure(Arc::new(config), Vec::new(), Arc::default(), self.now);
            self.resolve();
        }

        fn slot(&self, name: &str) -> u16 {
            let member = self.fleet.members().iter().find(|member| &*member.name == name).unwrap();
            self.fleet.target(member.place).unwrap().0.slot
        }

        fn serves(&self, slot: u16, requests: usize) {
            let key = RequestKey { pool: 0, slot, status: 200, reason: 0 };
            (0..requests).for_each(|_| self.stats.shard(0).request(key));
            (0..requests).for_each(|_| self.stats.shard(0).first_token_of(slot, 1_000));
        }

        fn rests(&mut self) {
            self.now += Duration::from_secs(3);
            let (counters, stats) = (self.counters, self.stats);
            self.fleet.tick(
                self.now,
                |slot| counters.in_flight(slot),
                |slots| Counted::read_at(slots, counters, stats),
            );
        }

        fn deeds(&self, name: &str) -> Deeds {
            let mut deeds = self.fleet.deeds(&Counted::read(self.counters, self.stats));
            deeds.remove(name).unwrap_or_default()
        }

        fn requests(&self, name: &str) -> u64 {
            let deeds = self.deeds(name);
            let requests = deeds.requests.values().sum();
            assert_eq!(requests, deeds.first_tokens.count());
            requests
        }
    }

    fn config(ports: &[u16]) -> Config {
        let upstream = |port: &u16| Upstream::new(format!("http://engine:{port}").parse().unwrap());
        config_of(ports.iter().map(upstream))
    }

    #[test]
    fn an_engine_that_moves_takes_its_counts_along_and_leaves_none() {
        let mut rig = Rig::of(&[1, 2]);
        let requests = |rig: &Rig| (rig.requests("engine:1"), rig.requests("engine:2"));
        let first = rig.slot("engine:1");
        rig.serves(first, 5);
        rig.serves(rig.slot("engine:2"), 7);
        let admission = rig.counters.try_admit(rig.fleet.target(0).unwrap().0, None).unwrap();
        rig.moves(0, 11);
        rig.rests();
        rig.serves(rig.slot("engine:1"), 1);
        assert_eq!(requests(&rig), (6, 7));
        // The other does not get the slot while a request of the first is there, and that is counted for the first.
        rig.moves(1, 12);
        rig.serves(first, 1);
        drop(admission);
        assert_eq!(requests(&rig), (7, 7));
        rig.rests();
        assert_eq!(requests(&rig), (7, 7));
        rig.moves(1, 13);
        assert_eq!((rig.slot("engine:2"), requests(&rig)), (first, (7, 7)));
        rig.serves(first, 2);
        assert_eq!(requests(&rig), (7, 9));
        rig.rests();
        rig.moves(0, 14);
        rig.rests();
        assert_eq!(requests(&rig), (7, 9));
    }

    /// It is killed with open streams behind its move, and its last replies tell what was in its cache.
    #[test]
    fn what_fails_where_an_engine_was_is_counted_for_it() {
        let mut rig = Rig::of(&[1, 2]);
        let left = rig.slot("engine:1");
        let admission = rig.counters.try_admit(rig.fleet.target(0).unwrap().0, None).unwrap();
        let breaks = |rig: &Rig| {
            rig.counters.outcomes().fault(left);
            let prediction = Prediction {
                method: Method::Warm,
                tokens: 100,
                held: 60,
                text_bytes: 0,
                batch: false,
                omits_zero: false,
            };
            rig.counters.predictions().told(left, &prediction, 100, Some(60));
        };
        let counted = |rig: &Rig, name: &str| {
            let deeds = rig.deeds(name);
            (deeds.faults, deeds.compared_in_all().cached)
        };
        breaks(&rig);
        rig.moves(0, 11);
        breaks(&rig);
        rig.rests();
        assert_eq!((counted(&rig, "engine:1"), counted(&rig, "engine:2")), ((2, 120), (0, 0)));
        // Between two looks, and the slot is free.
        breaks(&rig);
        drop(admission);
        rig.rests();
        rig.moves(1, 12);
        assert_eq!(rig.slot("engine:2"), left);
        assert_eq!((counted(&rig, "engine:1"), counted(&rig, "engine:2")), ((3, 180), (0, 0)));
        breaks(&rig);
        assert_eq!((counted(&rig, "engine:1"), counted(&rig, "engine:2")), ((3, 180), (1, 60)));
    }

    #[test]
    fn one_that_returns_goes_on_where_it_was() {
        let mut rig = Rig::of(&[1, 2]);
        let slot = rig.slot("engine:1");
        rig.serves(slot, 5);
        rig.counters.outcomes().fault(slot);
        rig.fleet.look(rig.counters, rig.now);
        let failures = |rig: &Rig, name: &str| {
            let member = rig.fleet.members().iter().find(|member| &*member.name == name).unwrap();
            (member.probe_failures, member.scrape_failures, rig.fleet.bank.heard(name).missed)
        };
        (rig.fleet.members[0].probe_failures, rig.fleet.members[0].scrape_failures) = (3, 4);
        let figures = Figures { missed: 5, blocks: 6, ..Figures::default() };
        rig.fleet.bank.was_heard("engine:1".into(), &figures);
        rig.reload(config(&[2]));
        rig.rests();
        rig.reload(config(&[2, 3]));
        rig.serves(slot, 1);
        assert_eq!((rig.slot("engine:3"), rig.requests("engine:3"), rig.requests("engine:1")), (slot, 1, 5));
        rig.reload(config(&[1, 2, 3]));
        rig.serves(rig.slot("engine:1"), 1);
        assert_eq!((rig.requests("engine:3"), rig.requests("engine:1")), (1, 6));
        assert_eq!((failures(&rig, "engine:1"), failures(&rig, "engine:3")), ((3, 4, 5), (0, 0, 0)));
        rig.fleet.bank.was_heard("engine:1".into(), &figures);
        assert_eq!((rig.fleet.bank.heard("engine:1").missed, rig.fleet.bank.heard("engine:1").blocks), (10, 0));
        let faults = |rig: &Rig| [1, 2, 3].map(|port| rig.deeds(&format!("engine:{port}")).faults);
        assert_eq!(faults(&rig), [1, 0, 0]);
        // At another address under the same name, from one moment to the next.
        let mut moved = config(&[9, 2, 3]);
        moved.upstream[0].name = "engine:1".into();
        rig.reload(moved);
        assert_eq!((faults(&rig), rig.requests("engine:1")), ([1, 0, 0], 6));
        rig.rests();
        assert_eq!((faults(&rig), rig.requests("engine:1")), ([1, 0, 0], 6));
    }

    /// Engines under ever new names, each of which serves one request. A series tells of its own engine alone: what
    /// rises by what others did in their lives is taken for a burst of requests that never came.
    #[test]
    fn names_are_bounded_and_no_series_rises_by_another() {
        let mut rig = Rig::of(&[1, 2]);
        for port in 3..300 {
            rig.serves(rig.slot(&format!("engine:{}", port - 1)), 1);
            rig.reload(config(&[1, port]));
            rig.rests();
            let deeds = rig.fleet.deeds(&Counted::read(rig.counters, rig.stats));
            let gone = usize::from(port) - 2;
            let shown = deeds.values().filter(|deeds| deeds.requests.values().sum::<u64>() > 0).count();
            assert_eq!(shown, gone.min(LEFT_MAX));
            for (name, deeds) in deeds {
                assert!(deeds.requests.values().sum::<u64>() <= 1, "{name}: {deeds:?}");
            }
        }
        assert_eq!((rig.requests("engine:298"), rig.requests("engine:235"), rig.requests("engine:234")), (1, 1, 0));
        assert!(rig.fleet.bank.known.len() <= LEFT_MAX + 2);
        rig.reload(config(&[1, 234]));
        rig.serves(rig.slot("engine:234"), 1);
        assert_eq!(rig.requests("engine:234"), 1, "one that was forgotten begins anew");
    }
}
