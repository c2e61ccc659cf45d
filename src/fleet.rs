//! Endpoints and their state, as control writes them and shards read them.

mod belief;
mod flights;
mod loads;
mod rates;
mod room;
mod trials;
mod turnover;

use std::net::SocketAddr;
use std::sync::Arc;

pub use belief::{METHODS, Method, Rung};
pub use flights::Caps;
pub(crate) use loads::{ANSWER_TOKENS, Cells};
pub use loads::{Loads, Means};
pub use room::Room;
pub use turnover::Turnover;

/// Where an endpoint's counters are (`slot`), and which endpoint of those that had this slot is meant (`generation`). A
/// slot is given to another endpoint only when its in-flight count is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndpointId {
    /// Index into [`crate::counters::Counters`] and [`crate::snapshot::Snapshot::endpoints`].
    pub slot: u16,
    /// Counts the endpoints that have had the slot.
    pub generation: u32,
}

/// Index of a pool in [`crate::snapshot::Snapshot::pools`]; For the first [`crate::limits::LABELLED_POOLS_MAX`] pools
/// it is stable for the life of the process, so that it may label statistics; for the others while an endpoint serves
/// the pool, and for an hour after.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PoolId(pub u16);

/// Whether an endpoint may be chosen, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// Not yet probed: chosen, since a failed connect moves on to another.
    Unknown,
    /// Answers its probes.
    Up,
    /// Fails its probes: passed over, probed on.
    Down,
    /// Is taken out: finishes its requests, gets no new ones.
    Draining,
    /// Says that it sleeps, its memory given back: finishes its requests, gets no new ones until it says that it is
    /// awake.
    Asleep,
    /// Failed its requests, whatever its probes say: passed over for a while, then on trial.
    Ejected,
    /// Failed its requests some time ago: gets one request at a time beside those that are open there from before, and
    /// is back in service when one ends well.
    Trial,
}

impl Health {
    /// Whether new requests may go there.
    #[inline]
    pub fn takes_requests(self) -> bool {
        matches!(self, Health::Unknown | Health::Up | Health::Trial)
    }
}

/// Which server an engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// vllm-project/vllm
    Vllm,
    /// sgl-project/sglang
    Sglang,
}

/// The load that an engine's `/metrics` tells. If a value is missing, its term is left out.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct EngineLoad {
    /// Requests running, summed over data-parallel ranks.
    pub running: Option<u32>,
    /// Requests waiting, summed over data-parallel ranks.
    pub waiting: Option<u32>,
    /// Part of the KV cache in use, 0..=1, mean over ranks.
    pub kv_use: Option<f32>,
    /// KV capacity in tokens, summed over ranks.
    pub kv_capacity_tokens: Option<u64>,
    /// Prompt tokens processed since the engine's start.
    pub prompt_tokens_total: Option<u64>,
    /// Prompt tokens looked up in the prefix cache since the engine's start.
    pub prefix_queries_total: Option<u64>,
    /// Prompt tokens found in the prefix cache since the engine's start.
    pub prefix_hits_total: Option<u64>,
    /// Tokens generated since the engine's start.
    pub generation_tokens_total: Option<u64>,
    /// Requests that have ended since the engine's start.
    pub requests_total: Option<u64>,
}

/// One vLLM or SGLang server, or one of its data-parallel ranks.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Slot and generation.
    pub id: EndpointId,
    /// The name its ring points are made from: configured, else `host:port` of its URL.
    pub name: Arc<str>,
    /// Where shards connect to.
    pub address: SocketAddr,
    /// Its data-parallel rank, if requests have to name one.
    pub rank: Option<u16>,
    /// Share of the load relative to the others; at least 1.
    pub weight: u32,
    /// Whether it may be chosen.
    pub health: Health,
    /// Which server it runs, once its metrics have said so.
    pub kind: Option<EngineKind>,
    /// The load that the engine reported at its last scrape.
    pub engine: EngineLoad,
    /// Requests on this endpoint that are not ours: the engine's running and waiting ones beyond ours at the scrape.
    pub foreign: u32,
    /// [`Loads::dispatched`] when the scrape of `engine` began: what was dispatched later may be missing in `engine`.
    pub dispatched_at: u64,
    /// [`Loads::resident`] at that moment: what came or went later is missing in `engine`.
    pub resident_at: u64,
    /// What the engine told last of its cache, also if that is too old to be `engine`. It is kept for as long as the
    /// process is the same, and used only to tell how much room there is.
    pub room: Option<Room>,
    /// Part of its cache that was replaced of late, 0..=1: see [`Turnover`].
    pub turnover: f32,
    /// Part of its cache that holds nothing yet, as far as the index knows, 0..=1.
    pub vacant: f32,
    /// Most requests of ours that may run there, whatever the load elsewhere; [`Endpoint::NO_CAP`]: no limit.
    pub cap: u32,
    /// Percent of its weight that counts: less than [`Endpoint::WHOLE`] while it starts slowly.
    pub share_percent: u8,
    /// Whether its kernel refused or reset the last two probes: no process is there that could still answer.
    pub refuses_probes: bool,
    /// How far what is known of its cache is believed.
    pub rung: Rung,
}

impl Endpoint {
    /// See [`Endpoint::cap`].
    pub const NO_CAP: u32 = u32::MAX;
    /// See [`Endpoint::share_percent`].
    pub const WHOLE: u8 = 100;
    /// More than was ever dispatched, as [`Endpoint::dispatched_at`]: nothing is missing in `engine`.
    pub const NOTHING_SINCE: u64 = i64::MAX as u64 / 2;

    /// Makes an endpoint of weight 1 of which nothing is known yet.
    pub fn new(id: EndpointId, name: Arc<str>, address: SocketAddr) -> Endpoint {
        Endpoint {
            id,
            name,
            address,
            rank: None,
            weight: 1,
            health: Health::Unknown,
            kind: None,
            engine: EngineLoad::default(),
            foreign: 0,
            dispatched_at: 0,
            resident_at: 0,
            room: None,
            turnover: 0.0,
            vacant: 0.0,
            cap: Endpoint::NO_CAP,
            share_percent: Endpoint::WHOLE,
            refuses_probes: false,
            rung: Rung::default(),
        }
    }
}
