//! Where engines say that they connect to, to tell their KV events: who comes to a port is taken for the engine that it
//! is for, so that two cannot have one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Keeper;
use crate::config::KvEvents;
use crate::control::fleet::Fleet;
use crate::kvevents::{Endpoint, Settings};

type ByPlace = BTreeMap<usize, Vec<Endpoint>>;

/// By place: where the engine says that it connects to us.
#[derive(Debug, Default)]
pub(super) struct Doors(Mutex<ByPlace>);

impl Doors {
    /// Those of engines that are gone are nobody's.
    pub(super) fn retain(&self, places: &[usize]) {
        self.all().retain(|place, _| places.contains(place));
    }

    fn all(&self) -> MutexGuard<'_, ByPlace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    /// The engine at `place` says that these are its sockets.
    pub fn comes_by(&self, place: usize, sources: &[Settings]) {
        let doors = sources.iter().map(|source| &source.events).filter(|end| end.waits);
        self.doors.all().insert(place, doors.cloned().collect());
    }

    /// Why nobody waits where the engine at `place` says that it connects, if somebody else means that: neither of two
    /// that say so is believed. An operator is, who names a place in the configuration.
    pub fn door_taken(&self, place: usize) -> Option<String> {
        let (all, config) = (self.doors.all(), self.config());
        let ours = |door: &Endpoint| {
            let mut listeners = config.serve.listen.iter().chain([&config.serve.admin]);
            let listener = listeners.find(|listener| listener.port() == door.port)?;
            Some(format!("that of this front, which listens on {listener}"))
        };
        let taken =
            |door: &Endpoint| Some((door.clone(), others(&self.fleet(), &all, place, door).or_else(|| ours(door))?));
        let (door, whose) = all.get(&place)?.iter().find_map(taken)?;
        let at = Endpoint { waits: false, ..door };
        Some(format!(
            "it says that it tells its KV events by connecting to {at}, a port that would be for this engine alone and is {whose}; give each engine \
             a port of its own in its --kv-events-config, or have the engines listen (tcp://*:PORT)"
        ))
    }
}

/// Whom else this door is for.
fn others(fleet: &Fleet, told: &ByPlace, place: usize, door: &Endpoint) -> Option<String> {
    let means = |place: usize, configured: &KvEvents| {
        let told = told.get(&place).into_iter().flatten().any(|end| end.meets(door));
        told || matches!(configured, KvEvents::At(end) if end.waits && end.meets(door))
    };
    let mut others = fleet.members().iter().filter(|member| member.place != place);
    let other = others.find(|other| means(other.place, &other.upstream.kv_events))?;
    Some(format!("that of {} as well", other.name))
}
