//! The one holder of the fleet on control's thread: takes reports, publishes snapshots.

mod caches;
mod counted;
mod learning;
mod leaving;
mod reloads;
mod said;
mod toolsets;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::access::AccessLog;
use super::acquaintance;
use super::answers::Answered;
use super::edit::{Edit, Refused};
use super::fleet::{Fleet, TICK};
use super::forms::Forms;
use super::health::{Failure, Turn};
use super::hearing::Hearing;
use super::member::Member;
use super::names;
use super::reload::{self, Changes, Source};
use super::scrape::Reading;
use super::truth::Ours;
use super::watch;
use crate::config::{Config, Upstream};
use crate::counters::stats::{Count, Stats};
use crate::counters::{Counted, Counters};
use crate::exchange::{Rules, Wanted};
use crate::fleet::EndpointId;
use crate::publish::Published;
use caches::Saving;
use reloads::Reloads;
use said::{Unserved, say, say_asleep, say_moved};

/// How often what shards have counted is looked at.
const GLANCE: Duration = Duration::from_millis(20);

const SECOND: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    config: ArcSwap<Config>,
    /// The configuration as it was read last, without edits.
    read: ArcSwap<Config>,
    /// What the process was started with: some of it lasts until it ends.
    started: Arc<Config>,
    fleet: Mutex<Fleet>,
    counters: &'static Counters,
    stats: &'static Stats,
    published: &'static Published,
    changed: Notify,
    reloads: Reloads,
    /// Held by who is changing the configuration.
    changing: tokio::sync::Mutex<()>,
    saving: Saving,
    /// What watches each engine, by place, and what it goes by; ends when it is dropped.
    watches: Mutex<HashMap<usize, (watch::Plan, JoinSet<()>)>>,
    /// Who listens to each engine's events, by place; none where that is another process's by now.
    ears: Mutex<Option<HashMap<usize, JoinSet<()>>>>,
    /// What they hear.
    heard: Mutex<BTreeMap<usize, Arc<Hearing>>>,
    access: Arc<AccessLog>,
    unserved: Mutex<Unserved>,
    /// Sets of tools that are to be learnt anew.
    outdated: Mutex<Vec<Wanted>>,
}

impl Keeper {
    /// Keeps `fleet`; publishes to `published` when [`Keeper::publish`] runs.
    pub fn new(
        config: Arc<Config>,
        fleet: Fleet,
        counters: &'static Counters,
        stats: &'static Stats,
        published: &'static Published,
        access: Arc<AccessLog>,
    ) -> Keeper {
        Keeper {
            config: ArcSwap::new(Arc::clone(&config)),
            read: ArcSwap::from(Arc::clone(&config)),
            started: config,
            fleet: Mutex::new(fleet),
            counters,
            stats,
            published,
            changed: Notify::new(),
            reloads: Reloads::default(),
            changing: tokio::sync::Mutex::default(),
            saving: Saving::default(),
            watches: Mutex::default(),
            ears: Mutex::new(Some(HashMap::new())),
            heard: Mutex::default(),
            access,
            unserved: Mutex::default(),
            outdated: Mutex::default(),
        }
    }

    /// The configuration in use.
    pub fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    /// The log of finished requests.
    pub fn access(&self) -> &AccessLog {
        &self.access
    }

    /// Looks up where all engines are, before any of them is needed.
    pub async fn look_up(&self) {
        let engines = self.fleet().members().iter().map(|member| (member.place, member.upstream.clone())).collect();
        for (place, addresses) in names::first_lookups(engines).await {
            self.resolved(place, addresses);
        }
    }

    /// Has every engine watched. Who is watched already is watched on: one that began anew with each edit would not come to
    /// its next look-up where these are frequent, and all engines would be asked at one moment.
    pub fn watch(self: &Arc<Self>) {
        let plan = watch::Plan::from(&*self.config());
        let engines: Vec<(usize, Upstream)> =
            self.fleet().members().iter().map(|member| (member.place, member.upstream.clone())).collect();
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        // The engine of a place keeps its name and URL, which is all that its watch knows of it.
        watches.retain(|place, (known, _)| *known == plan && engines.iter().any(|(engine, _)| engine == place));
        for (place, upstream) in engines {
            watches.entry(place).or_insert_with(|| (plan.clone(), watch::start(self, place, &upstream, &plan)));
        }
        drop(watches);
        self.listen();
    }

    /// Takes the configuration that `source` has now, if there is nothing wrong with it.
    ///
    /// # Errors
    /// All that is wrong with it, in words; nothing has changed then.
    pub async fn reload(self: &Arc<Self>, source: &dyn Source) -> Result<Changes, String> {
        self.reloads.begins();
        let outcome = self.read_anew(source).await;
        self.reloads.ended(outcome.is_ok());
        outcome
    }

    async fn read_anew(self: &Arc<Self>, source: &dyn Source) -> Result<Changes, String> {
        let _alone = self.changing.lock().await;
        let config = Arc::new(source.load()?);
        let keys = reload::keys(&config)?;
        let read = Arc::clone(&config);
        let forms =
            tokio::task::spawn_blocking(move || Forms::read(&read)).await.map_err(|error| error.to_string())??;
        forms.say();
        let changes = self.take(Arc::clone(&config), keys, Some(forms)).await?;
        self.read.store(Arc::clone(&config));
        source.in_use(&config);
        Ok(changes)
    }

    /// What became of reading the configuration anew.
    pub fn reloads(&self) -> &Reloads {
        &self.reloads
    }

    /// Changes the list of engines, until the configuration is read anew. No file is read but the key of an engine that is
    /// added: who drains an engine because a disk is gone needs it now. Forms follow pools, which no edit changes.
    ///
    /// # Errors
    /// What is wrong with the change, in words; nothing has changed then.
    pub async fn edit(self: &Arc<Self>, edit: &Edit) -> Result<Changes, Refused> {
        let _alone = self.changing.lock().await;
        let mut config = (*self.config()).clone();
        edit.names_known_keys(&self.read.load().upstream)?;
        edit.apply(&mut config.upstream)?;
        let config = config.checked().map_err(|invalid| Refused::Wrong(invalid.to_string()))?;
        let keys = reload::missing_keys(&config, self.fleet().members()).map_err(Refused::Wrong)?;
        self.take(Arc::new(config), keys, None).await.map_err(Refused::Wrong)
    }

    /// `forms`: those in use, where there are none.
    async fn take(
        self: &Arc<Self>,
        config: Arc<Config>,
        keys: Vec<Option<Arc<str>>>,
        forms: Option<Forms>,
    ) -> Result<Changes, String> {
        let before = self.config();
        let access = (before.log != config.log).then(|| self.access.prepare(&config.log)).transpose()?;
        let mut changes = Changes::between(&before, &config, &self.started);
        // Before anything changes: a snapshot of engines without addresses would refuse every request.
        let before: Vec<Upstream> = self.fleet().members().iter().map(|member| member.upstream.clone()).collect();
        let new = config.upstream.iter().filter(|upstream| !before.iter().any(|known| known.is_same(upstream)));
        let addresses = names::first_lookups(new.map(|upstream| (upstream.label(), upstream.clone())).collect()).await;
        let lists = acquaintance::first_lists(&config, &keys, &addresses).await;
        let now = Instant::now();
        let mut fleet = self.fleet();
        let stays = |member: &Member| {
            member.now.is_some() && config.upstream.iter().any(|upstream| upstream.is_same(&member.upstream))
        };
        if addresses.is_empty() && !config.upstream.is_empty() && !fleet.members().iter().any(stays) {
            return Err("name servers know none of the engines".into());
        }
        let forms = match forms {
            Some(mut read) => {
                self.outdated().extend(read.keep(&fleet.forms));
                Arc::new(read)
            }
            None => Arc::clone(&fleet.forms),
        };
        let keys_before: HashMap<usize, _> =
            fleet.members().iter().map(|known| (known.place, known.key.clone())).collect();
        (changes.added, changes.removed) = fleet.reconfigure(Arc::clone(&config), keys, forms, now);
        changes.restart.extend(fleet.waits_for_restart());
        self.reloads.wait_for_restart(changes.restart.len());
        for (label, addresses) in addresses {
            let place = fleet.members().iter().find(|member| *member.name == *label).map(|member| member.place);
            if let Some(place) = place {
                fleet.resolved(place, addresses, now);
            }
        }
        fleet.first_learnt(lists);
        // An engine that refused the key of before is not to wait for its turn.
        let rekeyed = |member: &&Member| keys_before.get(&member.place).is_some_and(|before| *before != member.key);
        for member in fleet.members().iter().filter(rekeyed) {
            member.models_wanted.notify_one();
            changes.rekeyed.push(member.name.to_string());
        }
        drop(fleet);
        self.config.store(Arc::clone(&config));
        if let Some(access) = access {
            self.access.take(access);
        }
        self.published.publish_rules(Rules::from(&*config));
        self.publish_now();
        self.watch();
        Ok(changes)
    }

    /// The fleet, for as long as the guard lives; never held over an await.
    pub fn fleet(&self) -> MutexGuard<'_, Fleet> {
        // A panic while it was held is a fault of one report; the fleet is still the best there is.
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Fleet::target`].
    pub fn target(&self, place: usize) -> Option<(EndpointId, SocketAddr)> {
        self.fleet().target(place)
    }

    /// Key for control's own calls to an engine.
    pub fn key(&self, place: usize) -> Option<Arc<str>> {
        self.fleet().member(place)?.key.clone()
    }

    /// See [`Fleet::resolved`].
    pub fn resolved(&self, place: usize, addresses: Vec<SocketAddr>) {
        let changed = self.fleet().resolved(place, addresses, Instant::now());
        self.changed_if(changed);
    }

    /// See [`Fleet::probed`]. True: its models may be others than before.
    pub fn probed(&self, place: usize, id: EndpointId, outcome: Result<(), Failure>) -> bool {
        let why = outcome.as_ref().err().map(|failure| failure.why.clone()).unwrap_or_default();
        let mut fleet = self.fleet();
        let (turn, changed) = fleet.probed(place, id, outcome, Instant::now());
        let engine = fleet.member(place).map(|member| Arc::clone(&member.name)).unwrap_or_else(|| "".into());
        drop(fleet);
        if let Some(turn) = turn {
            say(&engine, turn, &why);
        }
        self.changed_if(changed);
        matches!(turn, Some(Turn::Up | Turn::Answers))
    }

    /// See [`Fleet::look`] and [`Fleet::compare`]. True: shards must know.
    fn look(&self) -> bool {
        let now = Instant::now();
        let mut fleet = self.fleet();
        let (turns, changed) = fleet.look(self.counters, now);
        let (moved, compared) = fleet.compare(self.counters.predictions(), now);
        fleet.ring_for_trouble(|slot| self.trouble(slot));
        // Where one that has no address may serve what nobody else does, that is refused for want of an engine.
        let snapshot = self.published.current();
        let unlearnt = snapshot.unlearnt.and_then(|id| snapshot.pool(id));
        let unreachable = unlearnt.filter(|pool| pool.members.is_empty()).map(|_| Count::RefusedUnreachable);
        let unknown = [Some(Count::RefusedUnknownModel), unreachable].into_iter().flatten();
        let unknown = unknown.map(|count| self.stats.total(count)).sum();
        fleet.ring_for_models(|slot| self.counters.not_found(slot), unknown, now);
        drop(fleet);
        turns.into_iter().for_each(|(engine, turn)| say(&engine, turn, ""));
        moved.iter().for_each(|moved| say_moved(&moved.engine, &moved.ladder));
        changed || compared
    }

    /// See [`Fleet::scraped`].
    pub fn scraped(&self, place: usize, id: EndpointId, read: Result<(Reading, Ours), String>) {
        let mut fleet = self.fleet();
        let asleep = |fleet: &Fleet| fleet.member(place).is_some_and(Member::asleep);
        let was_asleep = asleep(&fleet);
        let changed = fleet.scraped(place, id, read, Instant::now());
        if asleep(&fleet) != was_asleep {
            say_asleep(fleet.member(place));
        }
        let answered = fleet.tenancy(place, id).and_then(|tenancy| tenancy.truth.answered());
        drop(fleet);
        if let Some(Answered { requests, tokens }) = answered {
            let snapshot = self.published.current();
            let pools = snapshot.pools.iter().filter(|pool| pool.members.contains(&id.slot));
            pools.for_each(|pool| self.counters.answers(pool.id.0, requests, tokens));
        }
        self.changed_if(changed);
    }

    /// Waits for more of [`Keeper::trouble`].
    pub async fn troubled(&self, place: usize) {
        let bell = self.fleet().member(place).map(|member| Arc::clone(&member.troubled));
        rung(bell).await;
    }

    /// Publishes the fleet as it is.
    pub fn publish_now(&self) {
        // What a former tenant of a slot left in its counts is forgotten before shards see the new one.
        self.look();
        let snapshot = self.fleet().snapshot();
        self.unserved.lock().unwrap_or_else(PoisonError::into_inner).look(&self.config(), &snapshot);
        self.counters.queue().islands_are(&snapshot.islands());
        self.published.publish(snapshot);
    }

    /// Looks at what shards have counted, for ever: a thousand engines are read in microseconds.
    pub async fn watch_outcomes(self: Arc<Self>) {
        loop {
            tokio::time::sleep(GLANCE).await;
            let changed = self.look();
            self.changed_if(changed);
        }
    }

    /// Publishes on change, not more often than `publish_interval_ms`, for ever.
    pub async fn publish(self: Arc<Self>) {
        let (mut ticked, mut second) = (Instant::now(), Instant::now());
        loop {
            let mut changed = tokio::time::timeout(TICK, self.changed.notified()).await.is_ok();
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                if ticked.duration_since(second) >= SECOND {
                    second = ticked;
                    let mut fleet = self.fleet();
                    fleet.caches.tick();
                    fleet.pools.tick(ticked);
                }
                changed |= self.fleet().tick(
                    ticked,
                    |slot| self.counters.in_flight(slot),
                    |slots| Counted::read_at(slots, self.counters, self.stats),
                );
            }
            if changed {
                self.publish_now();
                tokio::time::sleep(Duration::from_millis(self.config().control.publish_interval_ms)).await;
            }
        }
    }

    fn changed_if(&self, changed: bool) {
        if changed {
            self.changed.notify_one();
        }
    }
}

/// Waits for a bell; for ever where its engine is gone.
async fn rung(bell: Option<Arc<Notify>>) {
    match bell {
        Some(bell) => bell.notified().await,
        None => std::future::pending().await,
    }
}
