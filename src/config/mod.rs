//! Configuration: defaults, then the TOML file, then flags. All faults are told before anything starts, with file, line
//! and what was probably meant; all at once, unless a value of a wrong type keeps the others from being read.

mod access;
mod cidr;
mod listeners;
mod load;
mod log;
mod origin;
mod problem;
mod queue;
mod ranks;
mod routing;
mod shape;
mod shards;
mod upstream;
mod validate;
mod wanting;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use access::Access;
pub use cidr::Cidr;
pub use listeners::{admin_is_open, is_ipv6_alone};
pub use load::{Flags, Read, address};
pub use log::{Log, LogFormat};
pub use problem::{Invalid, Problem};
pub use queue::{PriorityFirst, Queue};
pub use shards::{Pin, Shards};
pub use upstream::{KvEvents, Upstream, Url};
pub use wanting::Wanting;

use crate::limits::Limits;
use crate::policy::{Policy, Settings, ShadowPolicy};
use crate::scan::Plan;

/// Everything an operator may set. The file's keys are exactly the names here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Listeners, shards, what is public.
    pub serve: Serve,
    /// How requests are spread, in every pool that does not say otherwise.
    pub routing: Settings,
    /// Which requests wait for room, and in which order.
    pub queue: Queue,
    /// Bounds of memory and waiting.
    pub limits: Limits,
    /// How engines are probed.
    pub health: Health,
    /// How engines are read: models, load, addresses.
    pub control: Control,
    /// What is logged.
    pub log: Log,
    /// By served id: keys of `[routing]` that differ in this pool.
    pub pool: BTreeMap<String, toml::Table>,
    /// The engines.
    pub upstream: Vec<Upstream>,
}

/// `[serve]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Serve {
    /// Addresses clients connect to.
    pub listen: Vec<SocketAddr>,
    /// How many shards (pinned threads).
    pub shards: Shards,
    /// Whether each shard is pinned to a CPU of its own: physical cores first, then their siblings.
    pub pin: Pin,
    /// How bytes are moved.
    pub driver: Driver,
    /// Address of the admin listener.
    pub admin: SocketAddr,
    /// Peers that may ask the admin listener for more than `/metrics`, `/healthz` and `/readyz`.
    pub admin_from: Vec<Cidr>,
    /// Paths passed on beside the inference and read-only ones; a trailing `/*` opens all below.
    pub paths: Vec<String>,
    /// Origins whose pages may read what the front answers itself; `*`: all.
    pub allowed_origins: Vec<String>,
    /// Peers whose `x-warmfront-explain: 1` is answered.
    pub explain_from: Vec<Cidr>,
    /// Served id whose pool takes requests that name no model, or cannot be scanned; empty: the base model where all
    /// engines serve the same, else 400.
    pub default_model: String,
    /// What a client's FIN after a complete request means.
    pub half_close: HalfClose,
    /// Whether a stream that its engine breaks off ends with an event that says so, where one can stand.
    pub stream_error_event: bool,
}

impl Default for Serve {
    fn default() -> Self {
        Serve {
            listen: vec![SocketAddr::from(([0, 0, 0, 0], 8000))],
            shards: Shards::Auto,
            pin: Pin::Auto,
            driver: Driver::Auto,
            admin: SocketAddr::from(([127, 0, 0, 1], 9911)),
            admin_from: Cidr::everywhere(),
            paths: Vec::new(),
            allowed_origins: vec!["*".into()],
            explain_from: Cidr::loopback(),
            default_model: String::new(),
            half_close: HalfClose::Leaves,
            stream_error_event: true,
        }
    }
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// io_uring where it works, else epoll.
    Auto,
    /// io_uring; refused where it cannot be used.
    Uring,
    /// epoll.
    Epoll,
}

/// What a client's FIN after a complete request means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HalfClose {
    /// The client has gone: its request is cancelled at the engine.
    Leaves,
    /// The client only stopped sending: its reply is still delivered.
    Waits,
}

/// `[health]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Path that answers 200 while an engine can serve.
    pub path: String,
    /// Time between two probes of one engine.
    pub probe_interval_ms: u64,
    /// Longest wait for one probe's answer. SGLang's `/health` takes a second and more: it has a token made, and looks
    /// for it once a second.
    pub probe_timeout_ms: u64,
    /// Failed probes in a row after which an engine gets nothing new.
    pub failures_down: u32,
    /// Good probes in a row after which it is chosen again.
    pub successes_up: u32,
    /// How long an engine whose requests fail gets nothing new; doubled each time that this happens in a row.
    pub eject_ms: u64,
    /// The longest of these times.
    pub eject_ms_max: u64,
    /// Time in which an engine that is back takes up its whole share; 0: at once.
    pub slow_start_ms: u64,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            path: "/health".into(),
            probe_interval_ms: 1_000,
            probe_timeout_ms: 5_000,
            failures_down: 2,
            successes_up: 1,
            eject_ms: 5_000,
            eject_ms_max: 60_000,
            slow_start_ms: 30_000,
        }
    }
}

/// `[control]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Control {
    /// Time between two readings of an engine's `/metrics`.
    pub scrape_interval_ms: u64,
    /// Longest wait for one reading.
    pub scrape_timeout_ms: u64,
    /// Longest line of a `/metrics` answer that is read.
    pub scrape_bytes_max: usize,
    /// Age at which an engine's figures are no longer believed and the front's own counts stand alone.
    pub stale_after_ms: u64,
    /// Time between two readings of an engine's `/v1/models`.
    pub models_interval_ms: u64,
    /// Longest wait for one reading.
    pub models_timeout_ms: u64,
    /// Longest `/v1/models` answer that is read.
    pub models_bytes_max: usize,
    /// Time between two look-ups of an engine's host name.
    pub resolve_interval_ms: u64,
    /// Least time between two publications of the fleet to the shards.
    pub publish_interval_ms: u64,
    /// File in which what is known of the engines' caches outlasts a restart; empty: none. It is written each minute,
    /// or less often if it is long, down to each half hour; and at the end.
    pub caches_file: PathBuf,
}

impl Default for Control {
    fn default() -> Self {
        Control {
            scrape_interval_ms: 1_000,
            scrape_timeout_ms: 1_000,
            scrape_bytes_max: 8 << 20,
            stale_after_ms: 5_000,
            models_interval_ms: 5_000,
            models_timeout_ms: 2_000,
            models_bytes_max: 8 << 20,
            resolve_interval_ms: 30_000,
            publish_interval_ms: 10,
            caches_file: PathBuf::new(),
        }
    }
}

impl Config {
    /// Whether any pool's policy, or its shadow, counts tokens.
    pub fn counts_tokens(&self) -> bool {
        self.routing.counts_tokens() || self.pool.keys().any(|id| self.settings_for(id).counts_tokens())
    }

    /// Whether any pool's policy, or its shadow, goes by the engines' KV events.
    pub fn listens(&self) -> bool {
        let listens = |settings: &Settings| settings.looks_at(Policy::Precise);
        listens(&self.routing) || self.pool.keys().any(|id| listens(&self.settings_for(id)))
    }

    /// What bodies are scanned for: all that any pool needs, since only the body tells which pool it is for.
    pub fn plan(&self) -> Plan {
        let mut pools: Vec<Settings> = self.pool.keys().map(|id| self.settings_for(id)).collect();
        pools.push(self.routing.clone());
        self.routing.plan_among(&pools)
    }

    /// Switches shadow policies off in all pools.
    pub fn drop_shadows(&mut self) {
        self.routing.shadow_policy = ShadowPolicy::OFF;
        self.pool.values_mut().for_each(|differs| drop(differs.remove("shadow_policy")));
    }

    /// How the pool of `served_id` chooses: `[routing]`, with what `[pool."served_id"]` overrides.
    pub fn settings_for(&self, served_id: &str) -> Settings {
        let Some(differs) = self.pool.get(served_id) else { return self.routing.clone() };
        // `validate` has checked it, so that an error here is a fault of ours; the pool then chooses as the others do.
        overlay(&self.routing, differs).unwrap_or_else(|_| self.routing.clone())
    }
}

/// `base` with the keys of `differs` replaced.
fn overlay(base: &Settings, differs: &toml::Table) -> Result<Settings, toml::de::Error> {
    let mut table = toml::Table::try_from(base).unwrap_or_default();
    table.extend(differs.clone());
    table.try_into()
}
