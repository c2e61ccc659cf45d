//! The one holder of the fleet on control's thread: takes reports, publishes snapshots.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::fleet::{Fleet, Turn};
use super::models::Learnt;
use super::scrape::Reading;
use crate::config::Config;
use crate::counters::Counters;
use crate::fleet::EndpointId;
use crate::publish::Published;

/// How often stale readings and free slots are looked for.
const TICK: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    config: Arc<Config>,
    fleet: Mutex<Fleet>,
    counters: &'static Counters,
    published: &'static Published,
    changed: Notify,
    models_wanted: Vec<Notify>,
}

impl Keeper {
    /// Keeps `fleet`; publishes to `published` when [`Keeper::publish`] runs.
    pub fn new(
        config: Arc<Config>,
        fleet: Fleet,
        counters: &'static Counters,
        published: &'static Published,
    ) -> Keeper {
        let models_wanted = config.upstream.iter().map(|_| Notify::new()).collect();
        Keeper { config, fleet: Mutex::new(fleet), counters, published, changed: Notify::new(), models_wanted }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
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
        self.fleet().members().get(place)?.key.clone()
    }

    /// Our requests in flight.
    pub fn in_flight(&self, slot: u16) -> u32 {
        self.counters.in_flight(slot)
    }

    /// Failed connects of the shards so far.
    pub fn connect_failures(&self, slot: u16) -> u32 {
        self.counters.connect_failures(slot)
    }

    /// See [`Fleet::resolved`].
    pub fn resolved(&self, place: usize, addresses: Vec<SocketAddr>) {
        let changed = self.fleet().resolved(place, addresses, Instant::now());
        self.changed_if(changed);
    }

    /// See [`Fleet::probed`].
    pub fn probed(&self, place: usize, id: EndpointId, outcome: Result<(), String>) -> Turn {
        let why = outcome.as_ref().err().cloned().unwrap_or_default();
        let mut fleet = self.fleet();
        let turn = fleet.probed(place, id, outcome, Instant::now());
        let engine = fleet.members().get(place).map(|member| Arc::clone(&member.name)).unwrap_or_else(|| "".into());
        drop(fleet);
        match turn {
            Turn::Same => {}
            Turn::Up => tracing::info!(%engine, "engine is up"),
            Turn::Down => tracing::warn!(%engine, why, "engine is down; it is probed on"),
        }
        self.changed_if(turn != Turn::Same);
        turn
    }

    /// See [`Fleet::scraped`].
    pub fn scraped(&self, place: usize, id: EndpointId, read: Result<(Reading, u32), String>) {
        let changed = self.fleet().scraped(place, id, read, Instant::now());
        self.changed_if(changed);
    }

    /// See [`Fleet::learnt`].
    pub fn learnt(&self, place: usize, id: EndpointId, learnt: Result<Learnt, String>) {
        let changed = self.fleet().learnt(place, id, learnt);
        self.changed_if(changed);
    }

    /// The models of an engine are to be read now.
    pub fn wake_models(&self, place: usize) {
        if let Some(notify) = self.models_wanted.get(place) {
            notify.notify_one();
        }
    }

    /// Waits for [`Keeper::wake_models`].
    pub async fn models_wanted(&self, place: usize) {
        match self.models_wanted.get(place) {
            Some(notify) => notify.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Publishes the fleet as it is.
    pub fn publish_now(&self) {
        let snapshot = self.fleet().snapshot();
        self.published.publish(snapshot);
    }

    /// Publishes on change, not more often than `publish_interval_ms`, for ever.
    pub async fn publish(self: Arc<Self>) {
        let pause = Duration::from_millis(self.config.control.publish_interval_ms);
        let mut ticked = Instant::now();
        loop {
            let mut changed = tokio::time::timeout(TICK, self.changed.notified()).await.is_ok();
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                changed |= self.fleet().tick(ticked, |slot| self.counters.in_flight(slot));
            }
            if changed {
                self.publish_now();
                tokio::time::sleep(pause).await;
            }
        }
    }

    fn changed_if(&self, changed: bool) {
        if changed {
            self.changed.notify_one();
        }
    }
}
