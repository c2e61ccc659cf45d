//! The one holder of the fleet on control's thread: takes reports, publishes snapshots.

mod caches;
mod counted;
mod doors;
mod following;
mod learning;
mod leaving;
mod reloads;
mod said;
mod taking;
mod toolsets;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::access::AccessLog;
use super::answers::Answered;
use super::fleet::{Fleet, Seated, Server, TICK};
use super::health::{Failure, Turn};
use super::member::Member;
use super::named::Named;
use super::names;
use super::scrape::Reading;
use super::truth::Ours;
use super::watch;
use crate::config::{Config, Upstream};
use crate::counters::stats::{Count, Stats};
use crate::counters::{Counted, Counters};
use crate::exchange::Wanted;
use crate::fleet::EndpointId;
use crate::publish::Published;
use caches::{Hearings, Saving};
use doors::Doors;
pub(super) use following::begun_with;
pub use following::engines;
use said::{Unserved, say, say_asleep, say_moved};
use taking::Taking;

/// How often control looks at what shards have counted.
const GLANCE: Duration = Duration::from_millis(20);

/// After a publication the next one waits for so many times as long as it took: hundreds of engines change each second,
/// and if they serve a thousand adapters, probes and scrapes need their turns between two publications.
const PUBLISHING_PAUSE: u32 = 3;

const SECOND: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    config: ArcSwap<Config>,
    /// The parts by which another configuration replaces this one.
    taking: Taking,
    fleet: Mutex<Fleet>,
    counters: &'static Counters,
    stats: &'static Stats,
    published: &'static Published,
    changed: Notify,
    saving: Saving,
    /// The tasks that watch each engine, by place, with the plan that they go by; dropping them ends them.
    watches: Mutex<HashMap<usize, (watch::Plan, JoinSet<()>)>>,
    /// The tasks that listen to engines' events, by place; `None` once another process listens in this one's place.
    ears: Mutex<Option<HashMap<usize, JoinSet<()>>>>,
    /// What these tasks have heard.
    heard: Mutex<Hearings>,
    /// The ports at which engines say that they connect to us.
    doors: Doors,
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
            taking: Taking::new(config),
            fleet: Mutex::new(fleet),
            counters,
            stats,
            published,
            changed: Notify::new(),
            saving: Saving::default(),
            watches: Mutex::default(),
            ears: Mutex::new(Some(HashMap::new())),
            heard: Mutex::default(),
            doors: Doors::default(),
            access,
            unserved: Mutex::default(),
            outdated: Mutex::default(),
        }
    }

    /// The keeper, following these names.
    pub(super) fn following(self, named: Named) -> Keeper {
        self.taking.named.store(Arc::new(named));
        self
    }

    /// The configuration in use.
    pub fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    /// The log of finished requests.
    pub fn access(&self) -> &AccessLog {
        &self.access
    }

    /// Looks up where all engines are, before any of them is needed; names of several engines were looked up by then.
    pub async fn look_up(&self) {
        let mut engines = self.servers();
        engines.retain(|(_, engine)| !engine.each_address);
        for (place, addresses) in names::first_lookups(engines).await {
            self.resolved(place, addresses);
        }
    }

    /// Has every engine watched. A watch that runs goes on: if each edit began it anew, frequent edits would keep it
    /// from its next look-up, and all engines would be asked at one moment.
    pub fn watch(self: &Arc<Self>) {
        let plan = watch::Plan::from(&*self.config());
        let engines = self.servers();
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        // The engine of a place keeps its name and URL, which is all that its watch knows of it.
        watches.retain(|place, (known, _)| *known == plan && engines.iter().any(|(engine, _)| engine == place));
        let new: Vec<(usize, Upstream)> =
            engines.into_iter().filter(|(place, _)| !watches.contains_key(place)).collect();
        let apart = watch::apart(new.len());
        for (number, (place, upstream)) in (0..).zip(new) {
            watches.insert(place, (plan.clone(), watch::start(self, place, &upstream, &plan, apart * number)));
        }
        drop(watches);
        self.listen();
    }

    /// The servers, each with the place of its first rank: what that one is asked is asked for all ranks.
    fn servers(&self) -> Vec<(usize, Upstream)> {
        let fleet = self.fleet();
        let first = fleet.members().iter().filter(|member| member.upstream.is_first());
        first.map(|member| (member.place, member.upstream.clone())).collect()
    }

    /// The fleet, for as long as the guard lives; never held over an await.
    pub fn fleet(&self) -> MutexGuard<'_, Fleet> {
        // A panic while it was held is a fault of one report: what the fleet knows is still the best there is.
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Fleet::target`].
    pub fn target(&self, place: usize) -> Option<(EndpointId, SocketAddr)> {
        self.fleet().target(place)
    }

    /// See [`Fleet::server`].
    pub fn server(&self, place: usize) -> Option<Server> {
        self.fleet().server(place)
    }

    /// The API key for control's own calls to an engine.
    pub fn key(&self, place: usize) -> Option<Arc<str>> {
        self.fleet().member(place)?.key.clone()
    }

    /// See [`Fleet::resolved`]; for all ranks of a server at once.
    pub fn resolved(&self, place: usize, addresses: Vec<SocketAddr>) {
        let mut fleet = self.fleet();
        let mut changed = false;
        for rank in fleet.ranks(place) {
            changed |= fleet.resolved(rank, addresses.clone(), Instant::now());
        }
        drop(fleet);
        self.changed_if(changed);
    }

    /// See [`Fleet::probed`]; an outcome counts for all ranks of the server at once. True: its models may have changed.
    pub fn probed(&self, server: &Server, outcome: &Result<(), Failure>) -> bool {
        let (mut turns, mut changed) = (Vec::new(), false);
        let mut fleet = self.fleet();
        for rank in &server.ranks {
            let (turn, differs) = fleet.probed(rank.place, rank.id, outcome.clone(), Instant::now());
            changed |= differs;
            let engine = fleet.member(rank.place).map(|member| Arc::clone(&member.name));
            turns.extend(engine.zip(turn));
        }
        drop(fleet);
        let why = outcome.as_ref().err().map_or("", |failure| &*failure.why);
        turns.iter().for_each(|(engine, turn)| say(engine, *turn, why));
        self.changed_if(changed);
        turns.iter().any(|(_, turn)| matches!(turn, Turn::Up | Turn::Answers))
    }

    /// See [`Fleet::look`] and [`Fleet::compare`]. True: a snapshot is to be published.
    fn look(&self) -> bool {
        let now = Instant::now();
        let mut fleet = self.fleet();
        let (turns, changed) = fleet.look(self.counters, now);
        let (moved, compared) = fleet.compare(self.counters.predictions(), now);
        fleet.ring_for_trouble(|slot| self.trouble(slot));
        // A model that only an engine without an address serves is refused for want of an engine, and is not unknown.
        let snapshot = self.published.current();
        let unlearnt = snapshot.unlearnt.and_then(|id| snapshot.pool(id));
        let unreachable = unlearnt.filter(|pool| pool.members.is_empty()).map(|_| Count::RefusedUnreachable);
        let unknown = [Count::RefusedUnknownModel, Count::StrangersUnknownModel].into_iter().chain(unreachable);
        let unknown = unknown.map(|count| self.stats.total(count)).sum();
        fleet.ring_for_models(|slot| self.counters.outcomes().not_found(slot), unknown, now);
        let why = |engine: &str| fleet.trouble_of(engine).map_or_else(String::new, |trouble| trouble.to_string());
        let turns: Vec<_> = turns.into_iter().map(|(engine, turn)| (why(&engine), engine, turn)).collect();
        drop(fleet);
        turns.iter().for_each(|(why, engine, turn)| say(engine, *turn, why));
        moved.iter().for_each(|moved| say_moved(&moved.engine, &moved.ladder));
        changed || compared
    }

    /// See [`Fleet::paged`].
    pub fn paged(&self, ranks: &[Seated], readings: &[Reading]) {
        self.fleet().paged(ranks, readings, Instant::now());
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
            let pools = snapshot.pools.iter().filter(|pool| pool.members.binary_search(&id.slot).is_ok());
            pools.for_each(|pool| self.counters.answers(pool.id, requests, tokens));
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
        // Counts of a slot's former endpoint are forgotten before shards see the new one.
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

    /// Lets the fleet's time pass, and publishes on change, not more often than `publish_interval_ms`, for ever.
    pub async fn publish(self: Arc<Self>) {
        let mut clock = Clock { ticked: Instant::now(), second: Instant::now() };
        // Begun anew after a fault, it is to publish what it fell over.
        let mut changed = true;
        loop {
            if changed {
                let began = Instant::now();
                self.publish_now();
                let least = Duration::from_millis(self.config().control.publish_interval_ms);
                tokio::time::sleep(pause(least, began.elapsed())).await;
            }
            changed = tokio::time::timeout(TICK, self.changed.notified()).await.is_ok();
            changed |= self.tick(&mut clock);
        }
    }

    /// Lets the fleet's time pass, as often as it looks for what that changes. True: a snapshot is to be published.
    fn tick(&self, clock: &mut Clock) -> bool {
        if clock.ticked.elapsed() < TICK {
            return false;
        }
        let now = Instant::now();
        clock.ticked = now;
        let mut fleet = self.fleet();
        // Several where `publish_interval_ms` is longer, or control was held up.
        let seconds = now.duration_since(clock.second).as_secs();
        if seconds > 0 {
            clock.second += SECOND * seconds as u32;
            (0..seconds).for_each(|_| fleet.caches.tick());
            fleet.pools.tick(now);
        }
        // Before looking at what is in flight.
        fleet.chosen_by(self.stats.epoch());
        let in_flight = |slot| self.counters.in_flight(slot);
        fleet.tick(now, in_flight, |slots| Counted::read_at(slots, self.counters, self.stats))
    }

    fn changed_if(&self, changed: bool) {
        if changed {
            self.changed.notify_one();
        }
    }
}

/// When the fleet's time last passed by a tick, and by a second.
struct Clock {
    ticked: Instant,
    second: Instant,
}

/// The least time between a publication that `took` so long and the next: no longer than one step of the fleet's time,
/// unless `least` is.
fn pause(least: Duration, took: Duration) -> Duration {
    least.max((took * PUBLISHING_PAUSE).min(TICK))
}

/// Waits for a bell; for ever if its engine is gone.
async fn rung(bell: Option<Arc<Notify>>) {
    match bell {
        Some(bell) => bell.notified().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::control::models::{Card, Learnt};
    use crate::control::tests::config_of;
    use crate::publish::Process;

    /// A keeper for tests of its parts; the engines' addresses are not looked up yet.
    pub(in crate::control) fn keeper(config: Config) -> Arc<Keeper> {
        let config = Arc::new(config);
        let mut fleet = Fleet::new(Arc::clone(&config), Vec::new(), Arc::default());
        let named = Named::of(&config, &Named::default());
        let published = Published::leak(fleet.snapshot());
        let access = Arc::new(AccessLog::new(Process::leak(1), published));
        let keeper = Keeper::new(config, fleet, Counters::leak(), Stats::leak(1), published, access);
        Arc::new(keeper.following(named))
    }

    /// Whether the fleet is not locked.
    pub(in crate::control) fn is_free(keeper: &Keeper) -> bool {
        keeper.fleet.try_lock().is_ok()
    }

    fn engine(name: &str, models: &[&str]) -> Upstream {
        let models = models.iter().map(|id| (*id).to_owned()).collect();
        Upstream { models, ..Upstream::new(format!("http://{name}:8000").parse().unwrap()) }
    }

    #[test]
    fn publications_leave_control_most_of_its_time() {
        let millis = Duration::from_millis;
        for (least, took, expected) in [(10, 1, 10), (10, 50, 150), (0, 2, 6), (10, 5_000, 250), (5_000, 50, 5_000)] {
            assert_eq!(pause(millis(least), millis(took)), millis(expected), "{took} ms");
        }
    }

    /// As a Service whose first pod comes after the front.
    #[tokio::test(flavor = "current_thread")]
    async fn a_name_that_had_no_address_is_followed() {
        let name = Upstream { each_address: true, ..Upstream::new("http://localhost:1".parse().unwrap()) };
        let mut config = config_of([name]);
        config.control.resolve_interval_ms = 10;
        let keeper = keeper(config);
        assert_eq!(keeper.config().upstream[0].label(), "localhost:1", "it was not looked up yet");
        let comes = async {
            while keeper.config().upstream[0].label() != "127.0.0.1:1" {
                tokio::time::sleep(GLANCE).await;
            }
        };
        tokio::select! {
            () = Arc::clone(&keeper).follow_names() => {}
            came = tokio::time::timeout(30 * SECOND, comes) => assert!(came.is_ok(), "no engine came"),
        }
        assert_eq!(keeper.unfollowed_names(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn snapshots_are_published_no_more_often_than_is_configured() {
        let mut config = config_of([engine("gpu-1", &[])]);
        config.control.publish_interval_ms = 3_600_000;
        let keeper = keeper(config);
        let epoch = || keeper.published.current().epoch;
        let (before, looks) = (epoch(), Duration::from_millis(5));
        let changes = async {
            while epoch() == before {
                tokio::time::sleep(looks).await;
            }
            let first = epoch();
            keeper.resolved(0, vec![([10, 0, 0, 1], 8_000).into()]);
            tokio::time::sleep(40 * looks).await;
            (epoch() - first, keeper.target(0).is_some())
        };
        let seen = tokio::select! {
            () = Arc::clone(&keeper).publish() => None,
            seen = tokio::time::timeout(30 * SECOND, changes) => seen.ok(),
        };
        assert_eq!(seen, Some((0, true)));
    }

    /// Requests that wait for one model are not to wait for those of another.
    #[tokio::test(flavor = "current_thread")]
    async fn the_queue_knows_which_engines_may_stand_in_for_each_other() {
        let keeper = keeper(config_of([engine("gpu-1", &["a"]), engine("gpu-2", &["b"]), engine("gpu-3", &["b"])]));
        (0..3u8).for_each(|place| keeper.resolved(place.into(), vec![([10, 0, 0, place], 8_000).into()]));
        keeper.publish_now();
        assert_eq!([0, 1, 2].map(|slot| keeper.counters.queue().island(slot)), [0, 1, 1]);
    }

    /// A shard that the machine lets stand still, for however long, goes on by the snapshot that it has.
    #[tokio::test(flavor = "current_thread")]
    async fn a_slot_is_free_once_no_shard_chooses_by_who_left_it() {
        let keeper = keeper(config_of([engine("gpu-1", &[])]));
        let long_ago = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let moves = |host: u8| keeper.fleet().resolved(0, vec![([10, 0, 0, host], 8_000).into()], long_ago);
        let publishes = || {
            keeper.publish_now();
            keeper.published.current().epoch
        };
        let ticks = || keeper.tick(&mut Clock { ticked: long_ago, second: Instant::now() });
        let is_free = || keeper.fleet().tenants().all(|(slot, _)| slot != 0);
        moves(1);
        let first = publishes();
        keeper.stats.shard(0).chooses_by(first);
        moves(2);
        let second = publishes();
        assert!(!ticks() && !is_free(), "it may be chosen by the first yet");
        keeper.stats.shard(0).chooses_by(second);
        assert!(ticks() && is_free());
    }

    /// Promises to the index end by its clock, and ids that nobody serves any more by that of the pools.
    #[tokio::test(flavor = "current_thread")]
    async fn time_passes_for_the_index_and_for_pools() {
        let keeper = keeper(config_of([engine("gpu-1", &[])]));
        keeper.resolved(0, vec![([10, 0, 0, 1], 8_000).into()]);
        let (id, _) = keeper.target(0).unwrap();
        for model in ["before", "now"] {
            keeper.fleet().learnt(
                0,
                id,
                Ok(Learnt { cards: vec![Card::made(model)].into(), asks_key: false, left_out: 0 }),
            );
            keeper.publish_now();
        }
        let ticks = |second: Instant| {
            keeper.tick(&mut Clock { ticked: Instant::now().checked_sub(TICK).unwrap(), second });
            let fleet = keeper.fleet();
            (fleet.caches.index().unwrap().second(), fleet.pools.any_idle())
        };
        let before = |seconds| Instant::now().checked_sub(seconds * SECOND).unwrap();
        assert_eq!(ticks(Instant::now() + 60 * SECOND), (0, false), "less than a second");
        assert_eq!(ticks(before(1)), (1, true));
        assert_eq!(ticks(before(5)).0, 6, "control was held up");
    }
}
