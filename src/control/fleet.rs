//! The fleet as control keeps it, and the snapshots made of it. No I/O and no clock of its own: probes,
//! scrapes and look-ups report here, `now` is an argument.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::health::{Course, Failure, Turn};
use super::member::{Member, Tenancy};
use super::models::{self, Card, Learnt};
use super::pools::Pools;
use super::scrape::Reading;
use crate::config::{Config, Upstream};
use crate::counters::Outcomes;
use crate::fleet::{Endpoint, EndpointId, Health};
use crate::limits::ENDPOINTS_MAX;
use crate::scan::Plan;
use crate::snapshot::{ModelsAnswer, Snapshot};

/// How long a slot rests after its endpoint left the pools: shards that still hold an older snapshot
/// have read the new one by then.
const QUARANTINE: Duration = Duration::from_secs(2);
/// In how many steps a slow start goes on, and the longest pause between two.
const STEPS: u64 = 10;
const STEP_MAX: Duration = Duration::from_secs(1);

/// Everything control knows of its engines.
#[derive(Debug)]
pub struct Fleet {
    config: Arc<Config>,
    members: Vec<Member>,
    slots: Vec<Slot>,
    pools: Pools,
    answer: ModelsAnswer,
    epoch: u64,
    /// When slow starts last went a step on.
    stepped: Option<Instant>,
    plan: Arc<Plan>,
    session_headers: Arc<[Box<str>]>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// An endpoint that was taken out, finishing what it has.
    leaving: Option<(Endpoint, Instant)>,
    taken: bool,
}

impl Fleet {
    /// The engines of `config`, none of them resolved; `keys` are those of `api_key_file`, by place.
    pub fn new(config: Arc<Config>, keys: Vec<Option<Arc<str>>>) -> Fleet {
        let keys = keys.into_iter().chain(std::iter::repeat(None));
        let member = |(upstream, key): (&Upstream, Option<Arc<str>>)| Member {
            upstream: upstream.clone(),
            name: upstream.label().into(),
            key,
            addresses: Vec::new(),
            now: None,
            models: None,
            models_error: None,
            faults: 0,
            ejections: 0,
        };
        let members = config.upstream.iter().zip(keys).map(member).collect();
        let pools = Pools::new(Arc::clone(&config));
        let headers = config.routing.session_headers.iter();
        Fleet {
            members,
            slots: Vec::new(),
            pools,
            answer: ModelsAnswer::default(),
            epoch: 0,
            stepped: None,
            plan: Arc::new(config.routing.plan()),
            session_headers: headers.map(|name| name.as_str().into()).collect(),
            config,
        }
    }

    /// The engines, in the order of the configuration.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What the engine at `place` is to be asked with, if it has an address.
    pub fn target(&self, place: usize) -> Option<(EndpointId, SocketAddr)> {
        let now = self.members.get(place)?.now.as_ref()?;
        Some((now.id, now.address))
    }

    /// The host name of an engine was looked up. Its endpoint stays while its address is among the answers.
    pub fn resolved(&mut self, place: usize, addresses: Vec<SocketAddr>, now: Instant) -> bool {
        let Some(member) = self.members.get_mut(place) else { return false };
        member.addresses = addresses;
        let kept = member.now.as_ref().is_some_and(|tenancy| member.addresses.contains(&tenancy.address));
        match member.addresses.first().copied() {
            Some(first) if !kept => self.settle(place, first, now),
            // No answer: name servers fail more often than engines move.
            _ => false,
        }
    }

    /// A probe was answered with 200, or not. Tells what it changed, and whether shards must know.
    pub fn probed(
        &mut self,
        place: usize,
        id: EndpointId,
        outcome: Result<(), Failure>,
        now: Instant,
    ) -> (Option<Turn>, bool) {
        let config = Arc::clone(&self.config);
        let Some(tenancy) = self.tenancy(place, id) else { return (None, false) };
        let failed = outcome.is_err();
        let refused_before = tenancy.course.refuses_probes();
        let turn = tenancy.course.probed(outcome, &config.health, now);
        let changed = turn.is_some() || tenancy.course.refuses_probes() != refused_before;
        let failures = tenancy.course.failures();
        let address = tenancy.address;
        // A name with several addresses: the engine may listen on another one.
        let addresses = &self.members[place].addresses;
        let moves = failed && failures.is_multiple_of(config.health.failures_down) && addresses.len() > 1;
        if let Some(at) = addresses.iter().position(|known| moves && *known == address) {
            let next = addresses[(at + 1) % addresses.len()];
            return (turn, self.settle(place, next, now) || changed);
        }
        (turn, changed)
    }

    /// Looks at what shards have counted, and lets time pass. Returns what changed, by the engines' names, and
    /// whether shards must know.
    pub fn look(&mut self, outcomes: &Outcomes, now: Instant) -> (Vec<(Arc<str>, Turn)>, bool) {
        let config = Arc::clone(&self.config);
        let mut turns = Vec::new();
        for place in 0..self.members.len() {
            let Some(tenancy) = &self.members[place].now else { continue };
            let slot = tenancy.id.slot;
            if tenancy.course.seen().is_none() {
                // What its former tenant left there.
                outcomes.forget(slot);
            }
            let outcome = outcomes.read(slot);
            let may_eject = outcome.barred && !tenancy.course.is_barred() && self.may_eject(place);
            let member = &mut self.members[place];
            let Some(tenancy) = &mut member.now else { continue };
            let seen = tenancy.course.seen().unwrap_or(outcome);
            member.faults += u64::from(outcome.faults.wrapping_sub(seen.faults));
            let Some(turn) = tenancy.course.looked(outcome, may_eject, &config.health, now) else { continue };
            match turn {
                Turn::Trial => outcomes.on_trial(slot),
                Turn::Spared | Turn::SparedAgain => outcomes.forget(slot),
                Turn::Ejected(..) => member.ejections += 1,
                _ => {}
            }
            turns.push((Arc::clone(&member.name), turn));
        }
        let stepped = self.step(now);
        let changed = turns.iter().any(|(_, turn)| !matches!(turn, Turn::Spared | Turn::SparedAgain));
        (turns, stepped || changed)
    }

    /// Whether one more engine may be ejected for its faults: as long as half of those that answer their probes,
    /// of all that serve the same models, stay in service.
    ///
    /// Faults of most of a fleet at once are seldom its own. A request that no engine survives walks from one to
    /// the next by itself; ejecting each would put the whole load on the last, and then on none. So half of them
    /// are believed to be wrong at most. That an engine says it is shutting down is no suspicion, and has no such limit.
    fn may_eject(&self, place: usize) -> bool {
        let Some(member) = self.members.get(place) else { return false };
        if member.health() == Some(Health::Down) {
            return true;
        }
        let ids: Option<HashSet<&str>> = member.ids().map(|ids| ids.into_iter().collect());
        let is_peer = |other: &&Member| match (&ids, other.ids()) {
            (Some(ids), Some(others)) => others.iter().any(|id| ids.contains(id)),
            (ids, others) => ids.is_none() && others.is_none(),
        };
        let peers = self.members.iter().filter(is_peer).filter_map(Member::health);
        let answering: Vec<Health> = peers.filter(|health| *health != Health::Down).collect();
        let out = answering.iter().filter(|health| matches!(health, Health::Ejected | Health::Trial)).count();
        2 * (out + 1) <= answering.len()
    }

    /// Slow starts go on, step by step: each step is a publication.
    fn step(&mut self, now: Instant) -> bool {
        let rules = &self.config.health;
        let pause = Duration::from_millis(rules.slow_start_ms / STEPS).min(STEP_MAX);
        let waits = self.stepped.is_some_and(|at| now.saturating_duration_since(at) < pause);
        let tenancies = self.members.iter_mut().filter_map(|member| member.now.as_mut());
        let mut starting = tenancies.filter(|tenancy| tenancy.course.starts_slowly()).peekable();
        if waits || starting.peek().is_none() {
            return false;
        }
        starting.for_each(|tenancy| tenancy.course.step(rules, now));
        self.stepped = Some(now);
        true
    }

    /// An engine's `/metrics` was read, while `ours` requests of ours were in flight there; or was not.
    pub fn scraped(
        &mut self,
        place: usize,
        id: EndpointId,
        read: Result<(Reading, u32), String>,
        now: Instant,
    ) -> bool {
        let Some(tenancy) = self.tenancy(place, id) else { return false };
        let (reading, ours) = match read {
            Ok(read) => read,
            Err(why) => {
                tenancy.scrape_error = Some(why);
                return false;
            }
        };
        tenancy.scrape_error = None;
        let theirs =
            reading.load.running.zip(reading.load.waiting).map(|(running, waiting)| running.saturating_add(waiting));
        let foreign = theirs.map_or(0, |theirs| theirs.saturating_sub(ours));
        let before = tenancy.reading.as_ref().map(|(reading, _)| reading.load);
        let changed = before != Some(reading.load) || tenancy.foreign != foreign;
        tenancy.foreign = foreign;
        tenancy.reading = Some((reading, now));
        changed
    }

    /// An engine's `/v1/models` was read, or was not.
    pub fn learnt(&mut self, place: usize, id: EndpointId, learnt: Result<Learnt, String>) -> bool {
        if self.tenancy(place, id).is_none() {
            return false;
        }
        let member = &mut self.members[place];
        match learnt {
            Ok(learnt) => {
                member.models_error = None;
                if member.models.as_ref() == Some(&learnt) {
                    return false;
                }
                member.models = Some(learnt);
                self.rebuild_answer();
                true
            }
            Err(why) => {
                member.models_error = Some(why);
                false
            }
        }
    }

    /// Drops readings too old to be believed, and frees slots whose requests have ended.
    pub fn tick(&mut self, now: Instant, in_flight: impl Fn(u16) -> u32) -> bool {
        let stale = Duration::from_millis(self.config.control.stale_after_ms);
        let mut changed = false;
        for tenancy in self.members.iter_mut().filter_map(|member| member.now.as_mut()) {
            if tenancy.reading.as_ref().is_some_and(|(_, at)| now.saturating_duration_since(*at) > stale) {
                tenancy.reading = None;
                tenancy.foreign = 0;
                changed = true;
            }
        }
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let rested =
                slot.leaving.as_ref().is_some_and(|(_, since)| now.saturating_duration_since(*since) > QUARANTINE);
            if rested && in_flight(index as u16) == 0 {
                slot.leaving = None;
                slot.taken = false;
                changed = true;
            }
        }
        changed
    }

    /// The fleet as shards are to see it.
    pub fn snapshot(&mut self) -> Snapshot {
        self.epoch += 1;
        let mut endpoints: Vec<Option<Endpoint>> =
            self.slots.iter().map(|slot| slot.leaving.as_ref().map(|(endpoint, _)| endpoint.clone())).collect();
        for member in &self.members {
            if let Some(tenancy) = &member.now {
                endpoints[usize::from(tenancy.id.slot)] = Some(member.endpoint(tenancy));
            }
        }
        let view = self.pools.view(&self.members);
        Snapshot {
            epoch: self.epoch,
            endpoints,
            pools: view.pools,
            models: view.models,
            default_pool: view.default_pool,
            only: view.only,
            models_complete: view.complete,
            plan: Arc::clone(&self.plan),
            session_headers: Arc::clone(&self.session_headers),
            models_answer: self.answer.clone(),
            ..Snapshot::default()
        }
    }

    /// Whether any engine that answers its probes could take a request.
    pub fn usable(&self) -> bool {
        self.members.iter().filter_map(|member| member.now.as_ref()).any(|tenancy| tenancy.course.answers())
    }

    fn tenancy(&mut self, place: usize, id: EndpointId) -> Option<&mut Tenancy> {
        self.members.get_mut(place)?.now.as_mut().filter(|tenancy| tenancy.id == id)
    }

    /// Gives the engine at `place` an endpoint at `address`; the one it had finishes what it has.
    fn settle(&mut self, place: usize, address: SocketAddr, now: Instant) -> bool {
        let Some(id) = self.take_slot() else {
            tracing::warn!(%address, "every endpoint slot is taken; the address is not used until one is free");
            return false;
        };
        let member = &mut self.members[place];
        // Where it was somewhere else before, a new process has begun, with an empty cache.
        let course = Course::new(member.now.is_none(), &self.config.health, now);
        let old = member.now.replace(Tenancy { id, address, course, reading: None, scrape_error: None, foreign: 0 });
        if let Some(old) = old {
            let endpoint = Endpoint { health: Health::Draining, ..member.endpoint(&old) };
            self.slots[usize::from(old.id.slot)].leaving = Some((endpoint, now));
        }
        self.pools.membership_changed();
        true
    }

    /// A free slot, under a generation it never had.
    fn take_slot(&mut self) -> Option<EndpointId> {
        let free = self.slots.iter().position(|slot| !slot.taken);
        let index = free.unwrap_or(self.slots.len());
        if index == self.slots.len() {
            if index >= ENDPOINTS_MAX {
                return None;
            }
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index];
        slot.taken = true;
        slot.generation = slot.generation.wrapping_add(1);
        Some(EndpointId { slot: index as u16, generation: slot.generation })
    }

    /// The merged `/v1/models`: each id once, as the first engine that serves it describes it.
    fn rebuild_answer(&mut self) {
        let mut cards: Vec<Card> = Vec::new();
        let mut cards_at: HashMap<Box<str>, usize> = HashMap::new();
        for member in &self.members {
            for card in member.cards() {
                cards_at.entry(card.id.clone()).or_insert_with(|| {
                    cards.push(card);
                    cards.len() - 1
                });
            }
        }
        let asking = |member: &&Member| member.models.as_ref().is_some_and(|learnt| learnt.asks_key);
        let value = |member: &Member| member.key.as_ref().map(|key| xxh3_64(format!("Bearer {key}").as_bytes()));
        let mut authorizations: Vec<u64> = self.members.iter().filter(asking).filter_map(value).collect();
        authorizations.sort_unstable();
        authorizations.dedup();
        self.answer = ModelsAnswer {
            list: (!cards.is_empty()).then(|| models::list(cards.iter())),
            cards: cards.into_iter().map(|card| (card.id.as_bytes().into(), card.json)).collect(),
            authorizations,
        };
    }
}

#[cfg(test)]
mod tests;
