//! The fleet as control keeps it, and the snapshots made of it. No I/O and no clock of its own: probes,
//! scrapes and look-ups report here, `now` is an argument.

// Whom to listen to, and what of that outlasts this process.
mod events;
// Another configuration's engines.
mod following;
// What engines serve.
mod learnt;
// Who is behind one port.
mod ranks;
// What their metrics say.
mod readings;
// Who has which place in the shards' tables.
mod slots;
// What came of predictions, and caches that are empty.
mod truth;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bank::Bank;
use super::caches::Caches;
use super::forms::Forms;
use super::health::{Failure, How, Trouble, Turn, Why};
use super::keys::Keys;
use super::member::{Member, Tenancy};
use super::models;
use super::pools::Pools;
use super::saved::Saved;
use crate::config::{Config, Upstream};
use crate::counters::Counters;
use crate::fleet::{Endpoint, EndpointId, Health};
use crate::scan::Plan;
use crate::snapshot::{ModelsAnswer, Snapshot};
use following::session_headers;
pub use ranks::{Seated, Server};
use slots::Slot;

/// In how many steps a slow start goes on, and the longest pause between two.
const STEPS: u64 = 10;
const STEP_MAX: Duration = Duration::from_secs(1);
/// How often stale readings and free slots are looked for.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// Everything control knows of its engines.
#[derive(Debug)]
pub struct Fleet {
    config: Arc<Config>,
    pub(super) members: Vec<Member>,
    /// Places given out so far.
    places: usize,
    slots: Vec<Slot>,
    pub(super) bank: Bank,
    pub(super) pools: Pools,
    answer: Arc<ModelsAnswer>,
    /// What engines serve has changed since the answer was made; the next snapshot makes it anew, once for all changes.
    answer_is_old: bool,
    epoch: u64,
    /// The epoch of the oldest snapshot that a shard may still choose by.
    chosen_by: u64,
    /// When slow starts last went a step on.
    stepped: Option<Instant>,
    /// When readings were last looked at.
    ticked: Option<Instant>,
    pub(super) caches: Caches,
    pub(super) forms: Arc<Forms>,
    /// What an earlier process of ours knew of engines that have not said yet which processes they are.
    remembered: Saved,
    plan: Arc<Plan>,
    session_headers: Arc<[Box<str>]>,
}

impl Fleet {
    /// The engines of `config`, none of them resolved; `keys` are theirs, `forms` those of its pools.
    pub fn new(config: Arc<Config>, keys: Keys, forms: Arc<Forms>) -> Fleet {
        let mut fleet = Fleet {
            members: Vec::new(),
            places: 0,
            slots: Vec::new(),
            bank: Bank::default(),
            pools: Pools::new(Arc::clone(&config), Arc::clone(&forms)),
            answer: Arc::default(),
            answer_is_old: false,
            epoch: 0,
            chosen_by: u64::MAX,
            stepped: None,
            ticked: None,
            caches: Caches::default(),
            forms,
            remembered: Saved::default(),
            plan: Arc::new(config.plan()),
            session_headers: session_headers(&config),
            config,
        };
        fleet.caches.follow(&fleet.config);
        fleet.follow(keys, Instant::now());
        fleet
    }

    /// The engines, in the order of the configuration.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The engine with this place.
    pub fn member(&self, place: usize) -> Option<&Member> {
        self.members.get(self.at(place)?)
    }

    fn at(&self, place: usize) -> Option<usize> {
        self.members.iter().position(|member| member.place == place)
    }

    /// What the engine at `place` is to be asked with, if it has an address.
    pub fn target(&self, place: usize) -> Option<(EndpointId, SocketAddr)> {
        let now = self.member(place)?.now.as_ref()?;
        Some((now.id, now.address))
    }

    /// The host name of an engine was looked up. Its endpoint stays while its address is among the answers.
    pub fn resolved(&mut self, place: usize, addresses: Vec<SocketAddr>, now: Instant) -> bool {
        let Some(at) = self.at(place) else { return false };
        let before = self.address_at(at);
        self.members[at].looked_up(addresses);
        let changed = self.seat(at, now);
        if let Some((from, to)) = self.moved(at, before) {
            let engine = &*self.members[at].name;
            tracing::info!(engine, %from, %to, "engine's host name stands for another address: its next requests go there");
        }
        changed
    }

    /// Another process has these engines in service: see [`super::health::Course::presume`].
    pub fn presume(&mut self) {
        self.members.iter_mut().filter_map(|member| member.now.as_mut()).for_each(|tenancy| tenancy.course.presume());
    }

    fn address_at(&self, at: usize) -> Option<SocketAddr> {
        self.members[at].now.as_ref().map(|tenancy| tenancy.address)
    }

    /// From where to where an engine has moved, if it was elsewhere `before`; of several ranks only the first tells it.
    fn moved(&self, at: usize, before: Option<SocketAddr>) -> Option<(SocketAddr, SocketAddr)> {
        let is_first = self.members[at].upstream.is_first();
        before.zip(self.address_at(at)).filter(|(from, to)| from != to && is_first)
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
        let Some(at) = self.at(place) else { return (None, false) };
        let is_silent = outcome.as_ref().is_err_and(|failure| failure.how == How::Silent);
        let (failed, may_go) = (outcome.is_err(), is_silent && self.may_fall_silent(at));
        let member = &mut self.members[at];
        let Some(tenancy) = member.now.as_mut().filter(|tenancy| tenancy.id == id) else { return (None, false) };
        member.probe_failures += u64::from(failed);
        let (was_known, refused_before) = (tenancy.course.is_known(), tenancy.course.refuses_probes());
        let turn = tenancy.course.probed(outcome, may_go, &config.health, now);
        let changed = turn.is_some_and(|turn| !matches!(turn, Turn::Slow | Turn::InTime))
            || tenancy.course.refuses_probes() != refused_before;
        if was_known && matches!(turn, Some(Turn::Up | Turn::Answers)) {
            // Whoever answers there after a silence may be another process, and if it cannot say so, is: for its cache.
            // What requests said of it stands unless nobody listened there.
            tenancy.was_silent = Some(now);
            member.models_doubted |= member.models.is_some();
            let (says_nothing, tokens) = (!tenancy.can_say(), tenancy.tokens());
            if says_nothing && refused_before && tenancy.processes.join(None, None, now) {
                self.begin_anew(place, id, tokens, now);
            } else if says_nothing {
                self.empty_cache(place, id, tokens, now);
            }
        }
        (turn, failed && self.look_elsewhere(place, now) || changed)
    }

    /// Looks at what shards have counted, and lets time pass. Returns what changed, by the engines' names, and
    /// whether shards must know.
    pub fn look(&mut self, counters: &Counters, now: Instant) -> (Vec<(Arc<str>, Turn)>, bool) {
        let outcomes = counters.outcomes();
        let config = Arc::clone(&self.config);
        let mut turns = Vec::new();
        self.bar_servers(outcomes);
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            let Some(tenancy) = &mut member.now else { continue };
            let slot = tenancy.id.slot;
            if tenancy.course.seen().is_none() {
                // Counts that the slot's former tenant left.
                counters.forget(slot);
            }
            if let Some(was_barred) = tenancy.course.takes_anew() {
                let is_back = was_barred || outcomes.is_barred(slot);
                outcomes.forget(slot);
                counters.trial_over(slot);
                turns.extend(is_back.then(|| (Arc::clone(&member.name), Turn::Anew)));
            }
            let (was_barred, is_to_be_tried) = (tenancy.course.is_barred(), tenancy.course.is_to_be_tried());
            if is_to_be_tried && !self.may_be_tried(at, now) {
                continue;
            }
            let outcome = outcomes.read(slot);
            let may_eject = outcome.barred.is_some() && !was_barred && self.may_eject(at);
            let member = &mut self.members[at];
            let Some(tenancy) = &mut member.now else { continue };
            let given = outcomes.given(slot);
            let turn = tenancy.course.looked(outcome, given, may_eject, &config.health, now);
            let Some(turn) = turn else { continue };
            match turn {
                Turn::Trial => counters.on_trial(slot),
                Turn::Recovered => counters.trial_over(slot),
                Turn::Spared | Turn::SparedAgain => outcomes.spare(slot),
                Turn::Ejected(..) => {
                    counters.trial_over(slot);
                    member.ejections += 1;
                }
                _ => {}
            }
            turns.push((Arc::clone(&member.name), turn));
            if was_barred && matches!(turn, Turn::Ejected(Why::Drain, _)) {
                self.end_with(at, now);
            }
        }
        let stepped = self.step(now) | self.look_at_leaving(|slot| counters.loads().running(slot));
        let changed = turns.iter().any(|(_, turn)| !matches!(turn, Turn::Spared | Turn::SparedAgain));
        (turns, stepped || changed)
    }

    /// Why the engine of this name was barred last, or would have been.
    pub fn trouble_of(&self, name: &str) -> Option<Trouble> {
        let member = self.members.iter().find(|member| &*member.name == name)?;
        member.now.as_ref()?.course.trouble()
    }

    /// Rings for each engine with which shards have had more trouble than when this was called before.
    pub fn ring_for_trouble(&mut self, trouble: impl Fn(u16) -> u32) {
        for member in &mut self.members {
            let Some(slot) = member.now.as_ref().map(|tenancy| tenancy.id.slot) else { continue };
            let now = trouble(slot);
            if std::mem::replace(&mut member.trouble, now) != now {
                member.troubled.notify_one();
            }
        }
    }

    /// Whether one more endpoint may be taken out for its faults: as long as half of those that are there, of all that
    /// serve the same models, stay in service, or of their servers, with all of their ranks. A rank may fail by itself,
    /// and a server by each of its ranks.
    ///
    /// Faults of most of a fleet at once are seldom its own. A request that no engine survives walks from one to the
    /// next by itself; ejecting each would put the whole load on the last, and then on none. Silence is of the same
    /// kind: who is too busy for his probes leaves his load to others. So half of them are believed to be wrong at
    /// most. That an engine says it is shutting down, or that its kernel refuses, is no suspicion, and has no such
    /// limit.
    fn may_eject(&self, at: usize) -> bool {
        let Some(member) = self.members.get(at) else { return false };
        let (is_peer, is_any) = (is_peer_of(member), |out: usize, _: usize| out > 0);
        self.half_stay(member, &is_peer, |_, _| false, is_any)
            || self.half_stay(member, &is_peer, Upstream::is_beside, is_any)
    }

    /// Whether one more server may be taken out for its silence, which is that of all its ranks: one that lost some of
    /// them would have the others do the work of all. Others are in service as long as most of their ranks are.
    fn may_fall_silent(&self, at: usize) -> bool {
        let Some(member) = self.members.get(at) else { return false };
        // Who has not said what it serves may serve what any other does.
        let is_peer = |other: &&Member| !member.has_ids() || is_peer_of(member)(other);
        self.half_stay(member, is_peer, Upstream::is_beside, |out, there| 2 * out >= there)
    }

    /// Whether half of its peers stay in service without this one, those that stand beside each other counted as one:
    /// which is out where so many are of so many.
    fn half_stay(
        &self,
        member: &Member,
        is_peer: impl Fn(&&Member) -> bool,
        are_one: fn(&Upstream, &Upstream) -> bool,
        are_out: fn(usize, usize) -> bool,
    ) -> bool {
        // One that is out already does not count.
        if matches!(member.health(), Some(Health::Down | Health::Ejected | Health::Trial)) {
            return true;
        }
        let is_out = |member: &Member| match member.health()? {
            Health::Draining | Health::Asleep => None,
            Health::Down => member.now.as_ref()?.course.is_silent().then_some(true),
            health => Some(matches!(health, Health::Ejected | Health::Trial)),
        };
        let (mut there, mut out) = (0, 0);
        for ranks in self.members.chunk_by(|one, other| are_one(&one.upstream, &other.upstream)) {
            let of_it: Vec<bool> = ranks.iter().filter(&is_peer).filter_map(is_out).collect();
            let out_of_it = of_it.iter().filter(|is_out| **is_out).count();
            let is_other = ranks.iter().all(|rank| rank.place != member.place);
            there += usize::from(!of_it.is_empty());
            out += usize::from(is_other && !of_it.is_empty() && are_out(out_of_it, of_it.len()));
        }
        2 * (out + 1) <= there
    }

    /// Slow starts go on, step by step: each step is a publication.
    fn step(&mut self, now: Instant) -> bool {
        let rules = &self.config.health;
        let pause = Duration::from_millis(rules.slow_start_ms / STEPS).min(STEP_MAX);
        let waits = self.stepped.is_some_and(|at| now.saturating_duration_since(at) < pause);
        let tenancies = self.members.iter_mut().filter_map(|member| member.now.as_mut());
        let mut starting = tenancies.filter(|tenancy| tenancy.course.is_starting_slowly()).peekable();
        if waits || starting.peek().is_none() {
            return false;
        }
        starting.for_each(|tenancy| tenancy.course.step(rules, now));
        self.stepped = Some(now);
        true
    }

    /// The fleet as shards are to see it.
    pub fn snapshot(&mut self) -> Snapshot {
        self.epoch += 1;
        let mut endpoints: Vec<Option<Endpoint>> =
            self.slots.iter().map(|slot| slot.leaving.as_ref().map(|leaving| leaving.endpoint.clone())).collect();
        let leavers = self.leavers();
        for member in &self.members {
            if let Some(tenancy) = &member.now {
                let endpoint = leavers.beside(member.endpoint(tenancy));
                endpoints[usize::from(tenancy.id.slot)] = Some(endpoint);
            }
        }
        let view = self.pools.view(&self.members);
        if std::mem::take(&mut self.answer_is_old) {
            self.answer = Arc::new(models::merged(&self.members));
        }
        Snapshot {
            epoch: self.epoch,
            endpoints,
            pools: view.pools,
            models: view.models,
            default_pool: view.default_pool,
            unlearnt: view.unlearnt,
            only: view.only,
            models_complete: view.complete,
            index: self.caches.index(),
            plan: Arc::clone(&self.plan),
            session_headers: Arc::clone(&self.session_headers),
            models_answer: Arc::clone(&self.answer),
            ..Snapshot::default()
        }
    }

    /// Every shard chooses by the snapshot of that epoch or a later one; who has no shards need not say so.
    pub fn chosen_by(&mut self, epoch: u64) {
        self.chosen_by = epoch;
    }

    /// Whether any engine that is there, by its probes, could take a request.
    pub fn usable(&self) -> bool {
        let serving = self.members.iter().filter(|member| !member.upstream.drain);
        let usable = |tenancy: &Tenancy| tenancy.course.is_there() && !tenancy.asleep;
        serving.filter_map(|member| member.now.as_ref()).any(usable)
    }

    pub(super) fn tenancy(&mut self, place: usize, id: EndpointId) -> Option<&mut Tenancy> {
        let at = self.at(place)?;
        self.members.get_mut(at)?.now.as_mut().filter(|tenancy| tenancy.id == id)
    }
}

/// A test whether an engine serves any model that `member` does.
fn is_peer_of(member: &Member) -> impl Fn(&&Member) -> bool {
    move |other| other.shares_a_model(member) || !other.has_ids() && !member.has_ids()
}

#[cfg(test)]
mod tests;
