//! One configured engine as control knows it, and the endpoint it has now.

mod begin;
mod processes;
mod serves;

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::Notify;

use super::caches::Unit;
use super::health::Course;
use super::models::{Cards, Learnt, Lock};
use super::names;
use super::saved::{Heard, Process};
use super::scrape::Reading;
use super::truth::Truth;
use crate::config::Upstream;
use crate::fleet::{Endpoint, EndpointId, EngineKind, EngineLoad, Health, Room, Turnover};
use crate::limits::TOKENS_MAX;
pub use processes::Processes;

/// One configured engine.
#[derive(Debug)]
pub struct Member {
    /// As configured.
    pub upstream: Upstream,
    /// Its number among control's tasks; never given to another engine.
    pub place: usize,
    /// It came to a fleet that serves: others have warm caches.
    pub latecomer: bool,
    /// Its name.
    pub name: Arc<str>,
    /// Key for control's own calls.
    pub key: Option<Arc<str>>,
    /// What its host name stands for.
    pub addresses: Vec<SocketAddr>,
    /// The log has said that these are several of one family,
    pub said_shared: bool,
    /// that several engines answer at one,
    pub said_by_turns: bool,
    /// and that one has several caches.
    pub said_ranks: bool,
    /// The endpoint it has now, if its name could be resolved.
    pub now: Option<Tenancy>,
    /// It was down where it was, and left its slot to others.
    pub gave_way: bool,
    /// What it serves; `None`: neither configured nor learnt yet.
    pub models: Option<Learnt>,
    /// Whether it asks for a key, as it said last.
    pub lock: Lock,
    /// Another process than the one that told its models may answer there by now.
    pub models_doubted: bool,
    /// Another process does, as far as is known; after mere silence the next scrape tells whether it is the same one.
    pub models_anothers: bool,
    /// The cards of the ids that it served before they were forgotten for that.
    pub forgotten: Option<Cards>,
    /// The list has none of the configured ids by now, of which the list before had some.
    pub lists_others: bool,
    /// Why its models are not known.
    pub models_error: Option<String>,
    /// Rung when its models are to be read now.
    pub models_wanted: Arc<Notify>,
    /// The requests for models in vain, when it was last asked for its models because of them.
    pub in_vain: InVain,
    /// Rung when shards have counted more trouble with it.
    pub troubled: Arc<Notify>,
    /// How much they had counted when that was looked at.
    pub trouble: u32,
    /// How often it was taken out of service for what became of requests.
    pub ejections: u64,
    /// How often it failed a probe.
    pub probe_failures: u64,
    /// How often its `/metrics` could not be read.
    pub scrape_failures: u64,
    /// How often they said that it sleeps: what it told of its cache before is of none any more.
    pub slept: u64,
}

/// How often requests for models had been in vain when an engine was asked for its models because of that.
#[derive(Debug, Default)]
pub struct InVain {
    /// At the engine.
    pub there: u32,
    /// For want of any that serves the model.
    pub in_all: u64,
    /// When it was asked.
    pub rung: Option<Instant>,
}

/// One endpoint: an address in a slot.
#[derive(Debug)]
pub struct Tenancy {
    /// Slot and generation.
    pub id: EndpointId,
    /// Where it listens.
    pub address: SocketAddr,
    /// May it be chosen?
    pub course: Course,
    /// What it said of itself, and when.
    pub reading: Option<(Reading, Instant)>,
    /// Why the last scrape failed.
    pub scrape_error: Option<String>,
    /// Load that is not ours.
    pub foreign: u32,
    /// Requests of ours that it counted as several at its last scrape.
    pub several: u32,
    /// See [`Endpoint::dispatched_at`].
    pub dispatched_at: u64,
    /// See [`Endpoint::resident_at`].
    pub resident_at: u64,
    /// What it told of its cache last, and when: it outlasts the reading.
    pub room: Option<(Room, Instant)>,
    /// See [`Endpoint::turnover`].
    pub turnover: Turnover,
    /// What was predicted of its cache, and what is known by now.
    pub truth: Truth,
    /// How often the index was told that its cache is empty.
    pub emptied: u64,
    /// What an earlier process of ours knew of what it tells, until that is used.
    pub remembered: Arc<Mutex<Option<Heard>>>,
    /// What is noted of its cache.
    pub unit: Unit,
    /// Whether it has said what it is.
    pub is_known: bool,
    /// When its process began, as it said last.
    pub began: Option<f64>,
    /// Those that answered there.
    pub processes: Processes,
    /// How many tokens of prompts it had counted by its last scrape:
    /// tells processes apart that do not say when they began.
    pub computed: Option<u64>,
    /// Whose server it is, as far as it has said so: known for longer than its figures are believed.
    pub kind: Option<EngineKind>,
    /// Tokens of the unit in which it finds prompts; it outlasts what is too old of its readings, as what it is does.
    pub match_unit: Option<u32>,
    /// Which process it is, likewise.
    pub process: Option<Process>,
    /// It said last that it sleeps.
    pub asleep: bool,
    /// It answers again since then: whether it is the same process its next scrape tells.
    pub was_silent: Option<Instant>,
}

impl Tenancy {
    /// How many tokens its cache holds, as far as they are noted and as it said last.
    pub fn tokens(&self) -> Option<u64> {
        self.reading.as_ref().and_then(|(reading, _)| self.unit.tokens(reading))
    }

    /// Its load, as far as that is believed. How large its cache is stays so for as long as it is the same process.
    fn load(&self) -> EngineLoad {
        let kv_capacity_tokens = self.process.and_then(|process| process.tokens);
        let unread = || EngineLoad { kv_capacity_tokens, ..EngineLoad::default() };
        self.reading.as_ref().map_or_else(unread, |(reading, _)| reading.load)
    }

    /// Whether its next scrape can tell if it is the same process.
    pub fn can_say(&self) -> bool {
        self.began.is_some() || self.computed.is_some()
    }

    /// Whether another process answers here than before. `was_silent`: since the last scrape.
    pub fn is_another(&self, reading: &Reading, was_silent: bool) -> bool {
        // With more ranks (elastic expert parallelism) one process counts anew.
        if let Some((began, begins)) = self.began.zip(reading.started) {
            return begins != began;
        }
        let before = self.reading.as_ref().and_then(|(before, _)| before.computed());
        if before.zip(reading.computed()).is_some_and(|(before, now)| now < before) {
            return true;
        }
        match (self.began, reading.started) {
            (Some(_), _) | (_, Some(_)) => was_silent,
            // What had computed as much at once would have to be another front's doing.
            (None, None) => {
                let goes_on = |before: u64| reading.computed().is_some_and(|now| now > 0 && now >= before);
                was_silent && self.computed.is_some_and(|before| !goes_on(before))
            }
        }
    }

    /// It is known that another process answers here: what the one before had counted tells no more of this one.
    pub fn counts_anew(&mut self) {
        (self.computed, self.was_silent) = (None, None);
        if let Some((before, _)) = &mut self.reading {
            (before.load.prompt_tokens_total, before.unnamed_prompt_tokens) = (None, None);
        }
    }
}

impl Member {
    /// One that nothing is known of yet.
    pub fn new(place: usize, upstream: Upstream, key: Option<Arc<str>>, latecomer: bool) -> Member {
        Member {
            place,
            latecomer,
            name: upstream.label().into(),
            upstream,
            key,
            addresses: Vec::new(),
            said_shared: false,
            said_by_turns: false,
            said_ranks: false,
            now: None,
            gave_way: false,
            models: None,
            models_doubted: false,
            models_anothers: false,
            forgotten: None,
            lists_others: false,
            lock: Lock::Unknown,
            models_error: None,
            models_wanted: Arc::default(),
            in_vain: InVain::default(),
            troubled: Arc::default(),
            trouble: 0,
            ejections: 0,
            probe_failures: 0,
            scrape_failures: 0,
            slept: 0,
        }
    }

    /// Its host name stands for these. That it stands for several engines is said once.
    ///
    /// Each family is asked for by itself, and one of the answers may be wanting: where it answers its probes it stays,
    /// unless another address of that family is told.
    pub fn looked_up(&mut self, mut addresses: Vec<SocketAddr>) {
        let here = self.now.as_ref().filter(|tenancy| tenancy.course.answers()).map(|tenancy| tenancy.address);
        let is_wanting = |here: &SocketAddr| addresses.iter().all(|other| other.is_ipv4() != here.is_ipv4());
        addresses.extend(here.filter(is_wanting));
        let is_shared = names::is_shared(&addresses);
        if is_shared && self.upstream.is_first() && !std::mem::replace(&mut self.said_shared, is_shared) {
            tracing::warn!(
                engine = &*self.name,
                ?addresses,
                "this engine's host name stands for several addresses, of which one is used at a time: each engine needs a name or an address of its own, or its [[upstream]] `each_address = true`"
            );
        }
        self.addresses = addresses;
    }

    /// What to call the host of its endpoint at `address`: by that, since its name may stand for other engines as well;
    /// by its name where this stands for one machine's two families, of which another of its sockets may know one
    /// alone.
    pub fn host_of(&self, address: SocketAddr) -> String {
        if self.has_two_families() { self.upstream.url.host.clone() } else { address.ip().to_string() }
    }

    /// The addresses of its endpoint at `address`, as far as its name tells them.
    pub fn addresses_of(&self, address: SocketAddr) -> Arc<[IpAddr]> {
        let others = self.addresses.iter().filter(|other| **other != address && self.has_two_families());
        std::iter::once(&address).chain(others).map(SocketAddr::ip).collect()
    }

    /// Whether its name stands for one machine's two families.
    fn has_two_families(&self) -> bool {
        self.addresses.len() > 1 && !names::is_shared(&self.addresses)
    }

    /// Tokens that its cache holds: of an engine that does not say how long a prompt may be, no longer ones fit.
    pub fn cached_context(&self) -> Option<u32> {
        let (reading, _) = self.now.as_ref()?.reading.as_ref()?;
        reading.load.kv_capacity_tokens.map(|tokens| tokens.min(TOKENS_MAX.into()) as u32)
    }

    /// Most requests of ours that may be there.
    pub fn cap(&self) -> u32 {
        let most = self.upstream.concurrency_max;
        if most == 0 { Endpoint::NO_CAP } else { most }
    }

    /// The health of the endpoint it has.
    pub fn health(&self) -> Option<Health> {
        Some(self.health_of(self.now.as_ref()?))
    }

    fn health_of(&self, tenancy: &Tenancy) -> Health {
        match tenancy.course.health() {
            _ if self.upstream.drain => Health::Draining,
            Health::Down => Health::Down,
            // What it did before says nothing of when it is to be tried.
            _ if tenancy.asleep => Health::Asleep,
            health => health,
        }
    }

    /// Whether it said last that it sleeps.
    pub fn asleep(&self) -> bool {
        self.now.as_ref().is_some_and(|tenancy| tenancy.asleep)
    }

    /// Whether it fails and is kept in service.
    pub fn is_kept(&self) -> bool {
        matches!(self.health(), Some(Health::Unknown | Health::Up)) && self.why().is_some()
    }

    /// Why it is of that health, where that needs words.
    pub fn why(&self) -> Option<Cow<'_, str>> {
        match self.health()? {
            Health::Asleep => Some("it says that it sleeps; POST /wake_up there wakes it".into()),
            _ => self.now.as_ref()?.course.why(),
        }
    }

    /// An endpoint of it as shards are to see it.
    pub fn endpoint(&self, tenancy: &Tenancy) -> Endpoint {
        Endpoint {
            rank: self.upstream.rank,
            weight: self.upstream.weight,
            health: self.health_of(tenancy),
            kind: tenancy.kind,
            cap: self.cap(),
            share_percent: tenancy.course.share_percent(),
            refuses_probes: tenancy.course.refuses_probes(),
            rung: tenancy.truth.ladder.rung(),
            engine: tenancy.load(),
            foreign: tenancy.foreign,
            dispatched_at: tenancy.dispatched_at,
            resident_at: tenancy.resident_at,
            room: tenancy.room.map(|(room, _)| room),
            turnover: tenancy.turnover.part(),
            vacant: tenancy.turnover.vacant(),
            ..Endpoint::new(tenancy.id, Arc::clone(&self.name), tenancy.address)
        }
    }
}
