//! Log lines on the fleet: one for each change, never one for a request.

use std::mem;

use crate::config::Config;
use crate::control::health::Turn;
use crate::control::ladder::{Ladder, Why};
use crate::control::member::Member;
use crate::control::unserved::unserved;
use crate::snapshot::Snapshot;

/// Models that the configuration names and no engine serves, as the log was last told.
#[derive(Debug, Default)]
pub(super) struct Unserved(Vec<String>);

impl Unserved {
    /// Logs what has changed, once the models of all engines are known.
    pub(super) fn look(&mut self, config: &Config, now: &Snapshot) {
        if !now.models_complete {
            return;
        }
        let names = unserved(config, |id| now.models.contains_key(id.as_bytes()));
        let before = mem::replace(&mut self.0, names);
        for name in self.0.iter().filter(|name| !before.contains(name)) {
            tracing::warn!(name, "no engine serves the model that the configuration names here, which has no effect");
        }
        for name in before.iter().filter(|name| !self.0.contains(name)) {
            tracing::info!(name, "the model is served, or the configuration names it no longer");
        }
    }
}

/// Logs a change of an engine's health.
pub(super) fn say(engine: &str, turn: Turn, why: &str) {
    match turn {
        Turn::Up => tracing::info!(engine, "engine is up"),
        Turn::Answers => tracing::info!(engine, "engine answers its probes; it has yet to serve a request well"),
        Turn::Down => tracing::warn!(engine, why, "engine is down; it is probed on"),
        Turn::Slow => tracing::warn!(
            engine,
            why,
            "engine stays in service although it does not answer its probes in time: without it fewer than half of those that serve its models would be in service"
        ),
        Turn::InTime => tracing::info!(engine, "engine answers its probes in time again"),
        Turn::Ejected(_, length) => {
            let ms = length.as_millis() as u64;
            tracing::warn!(engine, why, ms, "engine is ejected: it gets nothing new for so long");
        }
        Turn::Spared => tracing::warn!(
            engine,
            why,
            "engine stays in service: without it fewer than half of those that serve its models would be in service"
        ),
        Turn::SparedAgain => {}
        Turn::Trial => tracing::info!(engine, "engine is on trial: it gets one request at a time"),
        Turn::Recovered => tracing::info!(engine, "engine is back in service: it has served a request well"),
        Turn::Anew => tracing::info!(engine, "engine is back in service: another process answers there than failed"),
    }
}

/// Logs that an engine fell asleep, or woke.
pub(super) fn say_asleep(member: Option<&Member>) {
    let Some(member) = member else { return };
    let engine = &*member.name;
    match member.asleep() {
        true => tracing::warn!(engine, "engine sleeps: it gets nothing new until it says that it is awake"),
        false => tracing::info!(engine, "engine is awake"),
    }
}

/// Logs that an engine is on another rung.
pub(super) fn say_moved(engine: &str, ladder: &Ladder) {
    let rung = ladder.rung().as_str();
    match (ladder.rung().believes_index(), ladder.why()) {
        (true, Some(why @ (Why::Told | Why::Missed | Why::Untold))) => {
            let words = match why {
                Why::Told => "this engine tells what it holds, and nothing of it is missing",
                Why::Missed => "this engine is asked what it has told before",
                _ => "not all that this engine tells is heard; what was sent there counts",
            };
            tracing::info!(engine, rung, why = why.as_str(), "{words}");
        }
        (true, why) => {
            let why = why.map_or("", Why::as_str);
            tracing::info!(engine, rung, why, "what the index says of this engine's cache is believed again");
        }
        (false, Some(Why::CacheOff)) => {
            tracing::info!(engine, rung, "this engine caches no prefixes; it counts as holding nothing");
        }
        (false, why) => {
            let why = why.map_or("", Why::as_str);
            tracing::warn!(
                engine,
                rung,
                why,
                "this engine's cache does not hold what the index says; it counts as holding nothing until it does"
            );
        }
    }
}
