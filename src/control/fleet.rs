//! The fleet as control keeps it, and the snapshots made of it. No I/O and no clock of its own: probes,
//! scrapes and look-ups report here, `now` is an argument.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::models::{self, Card, Learnt};
use super::pools::Pools;
use super::scrape::Reading;
use crate::config::{Config, Upstream};
use crate::fleet::{Endpoint, EndpointId, Health};
use crate::limits::ENDPOINTS_MAX;
use crate::scan::Plan;
use crate::snapshot::{ModelsAnswer, Snapshot};

/// How long a slot rests after its endpoint left the pools: shards that still hold an older snapshot
/// have read the new one by then.
const QUARANTINE: Duration = Duration::from_secs(2);

/// Everything control knows of its engines.
#[derive(Debug)]
pub struct Fleet {
    config: Arc<Config>,
    members: Vec<Member>,
    slots: Vec<Slot>,
    pools: Pools,
    answer: ModelsAnswer,
    epoch: u64,
    plan: Arc<Plan>,
    session_headers: Arc<[Box<str>]>,
}

/// One configured engine.
#[derive(Debug)]
pub struct Member {
    /// As configured.
    pub upstream: Upstream,
    /// Its name.
    pub name: Arc<str>,
    /// Key for control's own calls.
    pub key: Option<Arc<str>>,
    /// What its host name stands for.
    pub addresses: Vec<SocketAddr>,
    /// The endpoint it has now, if its name could be resolved.
    pub now: Option<Tenancy>,
    /// What it serves; `None`: neither configured nor learnt yet.
    pub models: Option<Learnt>,
    /// Why its models are not known.
    pub models_error: Option<String>,
}

/// One endpoint: an address in a slot.
#[derive(Debug)]
pub struct Tenancy {
    /// Slot and generation.
    pub id: EndpointId,
    /// Where it listens.
    pub address: SocketAddr,
    /// May it be chosen?
    pub health: Health,
    failures: u32,
    successes: u32,
    /// Why the last probe failed.
    pub probe_error: Option<String>,
    /// What it said of itself, and when.
    pub reading: Option<(Reading, Instant)>,
    /// Why the last scrape failed.
    pub scrape_error: Option<String>,
    /// Load that is not ours.
    pub foreign: u32,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// An endpoint that was taken out, finishing what it has.
    leaving: Option<(Endpoint, Instant)>,
    taken: bool,
}

/// What a probe's result changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Nothing that shards must know.
    Same,
    /// It serves from now on: its models may be others than before.
    Up,
    /// It is walked past from now on.
    Down,
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

    /// A probe was answered with 200, or not.
    pub fn probed(&mut self, place: usize, id: EndpointId, outcome: Result<(), String>, now: Instant) -> Turn {
        let health = self.config.health.clone();
        let Some(member) = self.members.get_mut(place) else { return Turn::Same };
        let Some(tenancy) = member.now.as_mut().filter(|tenancy| tenancy.id == id) else { return Turn::Same };
        match outcome {
            Ok(()) => {
                (tenancy.failures, tenancy.successes) = (0, tenancy.successes.saturating_add(1));
                tenancy.probe_error = None;
                if tenancy.health == Health::Up || tenancy.successes < health.successes_up {
                    return Turn::Same;
                }
                tenancy.health = Health::Up;
                Turn::Up
            }
            Err(why) => {
                (tenancy.successes, tenancy.failures) = (0, tenancy.failures.saturating_add(1));
                tenancy.probe_error = Some(why);
                if tenancy.failures < health.failures_down {
                    return Turn::Same;
                }
                let turned = tenancy.health != Health::Down;
                tenancy.health = Health::Down;
                // A name with several addresses: the engine may listen on another one.
                let others = member.addresses.len() > 1 && tenancy.failures.is_multiple_of(health.failures_down);
                let place_of = member.addresses.iter().position(|address| *address == tenancy.address);
                if let (true, Some(at)) = (others, place_of) {
                    let next = member.addresses[(at + 1) % member.addresses.len()];
                    self.settle(place, next, now);
                }
                if turned { Turn::Down } else { Turn::Same }
            }
        }
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
        self.members.iter().filter_map(|member| member.now.as_ref()).any(|tenancy| tenancy.health == Health::Up)
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
        let old = member.now.replace(Tenancy {
            id,
            address,
            health: Health::Unknown,
            failures: 0,
            successes: 0,
            probe_error: None,
            reading: None,
            scrape_error: None,
            foreign: 0,
        });
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

impl Member {
    /// Ids it serves: those configured, else those learnt; `None`: not known yet.
    pub fn ids(&self) -> Option<Vec<&str>> {
        match self.upstream.models.as_slice() {
            [] => self.models.as_ref().map(|learnt| learnt.cards.iter().map(|card| &*card.id).collect()),
            configured => Some(configured.iter().map(String::as_str).collect()),
        }
    }

    /// A card for each id it serves.
    fn cards(&self) -> Vec<Card> {
        let learnt = self.models.as_ref().map(|learnt| learnt.cards.as_slice()).unwrap_or_default();
        let described = |id: &str| learnt.iter().find(|card| &*card.id == id).cloned();
        let ids = self.ids().unwrap_or_default();
        ids.into_iter().map(|id| described(id).unwrap_or_else(|| Card::made(id))).collect()
    }

    fn endpoint(&self, tenancy: &Tenancy) -> Endpoint {
        Endpoint {
            weight: self.upstream.weight,
            health: tenancy.health,
            engine: tenancy.reading.as_ref().map(|(reading, _)| reading.load).unwrap_or_default(),
            foreign: tenancy.foreign,
            ..Endpoint::new(tenancy.id, Arc::clone(&self.name), tenancy.address)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::scrape;
    use crate::snapshot::Selected;

    fn fleet(count: u16) -> Fleet {
        let upstream = |n| Upstream::new(format!("http://engine-{n}:8000").parse().unwrap());
        let config = Config { upstream: (0..count).map(upstream).collect(), ..Config::default() };
        let mut fleet = Fleet::new(Arc::new(config), Vec::new());
        for place in 0..count {
            fleet.resolved(place.into(), vec![at(place)], Instant::now());
        }
        fleet
    }

    fn at(n: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 9_000 + n))
    }

    fn serves(fleet: &mut Fleet, place: usize, ids: &[&str]) {
        let (id, _) = fleet.target(place).unwrap();
        let cards = ids.iter().map(|id| Card::made(id)).collect();
        fleet.learnt(place, id, Ok(Learnt { cards, asks_key: false }));
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
        now += QUARANTINE * 2;
        assert!(!fleet.tick(now, |slot| u32::from(slot == 0)));
        assert!(fleet.tick(now, |_| 0));
        assert!(fleet.snapshot().endpoints[0].is_none());
        fleet.resolved(0, vec![at(8)], now);
        let (third, _) = fleet.target(0).unwrap();
        assert_eq!((third.slot, third.generation), (0, first.generation + 1));
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
        assert_eq!(fleet.probed(0, id, Err("x".into()), now), Turn::Same);
        assert_eq!(fleet.probed(0, id, Err("x".into()), now), Turn::Down);
        assert_eq!(fleet.target(0).unwrap().1, at(3));
        // Reports about the endpoint before are late.
        assert_eq!(fleet.probed(0, id, Ok(()), now), Turn::Same);
    }

    #[test]
    fn foreign_load_is_what_is_not_ours_and_is_forgotten_when_stale() {
        let mut fleet = fleet(1);
        let (id, _) = fleet.target(0).unwrap();
        let mut now = Instant::now();
        let reading = || scrape::Reading::of(b"vllm:num_requests_running 5\nvllm:num_requests_waiting 2\n");
        assert!(fleet.scraped(0, id, Ok((reading(), 3)), now));
        assert_eq!(fleet.snapshot().endpoints[0].as_ref().unwrap().foreign, 4);
        assert!(!fleet.scraped(0, id, Ok((reading(), 3)), now));
        assert!(fleet.scraped(0, id, Ok((reading(), 9)), now));
        assert_eq!(fleet.snapshot().endpoints[0].as_ref().unwrap().foreign, 0);
        fleet.scraped(0, id, Ok((reading(), 0)), now);
        now += Duration::from_millis(fleet.config.control.stale_after_ms + 1);
        assert!(fleet.tick(now, |_| 0));
        let endpoint = fleet.snapshot().endpoints[0].clone().unwrap();
        assert_eq!((endpoint.foreign, endpoint.engine.running), (0, None));
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
            fleet.probed(1, id, Err("x".into()), Instant::now());
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
}
