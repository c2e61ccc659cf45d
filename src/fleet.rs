//! Endpoints and their state, as control sees them and shards read them.

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

/// Where an endpoint's counters lie (`slot`), and which tenant of that slot is meant (`generation`).
/// A slot is given to another endpoint only when its in-flight count is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndpointId {
    /// Index into [`crate::counters::Counters`] and [`crate::snapshot::Snapshot::endpoints`].
    pub slot: u16,
    /// Counts the tenants of the slot.
    pub generation: u32,
}

/// Index of a pool in [`crate::snapshot::Snapshot::pools`]; of the first [`crate::limits::LABELLED_POOLS_MAX`] stable
/// for the life of the process, so that it may label statistics, of the others for as long as anybody serves it, and an
/// hour.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PoolId(pub u16);

/// May an endpoint be chosen?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// Not yet probed: chosen, since a failed connect moves on to another.
    Unknown,
    /// Answers its probes.
    Up,
    /// Fails its probes: walked past, probed on.
    Down,
    /// Being taken out: finishes what it has, gets nothing new.
    Draining,
    /// Says that it sleeps, its memory given back: finishes what it has,
    /// gets nothing new until it says that it is awake.
    Asleep,
    /// Failed its requests, whatever its probes say: walked past for a while, then tried.
    Ejected,
    /// Failed its requests some time ago: gets one at a time beside what is open there from before, and is back in
    /// service when one ends well.
    Trial,
}

impl Health {
    /// Whether new requests may go there.
    #[inline]
    pub fn takes_requests(self) -> bool {
        matches!(self, Health::Unknown | Health::Up | Health::Trial)
    }
}

/// Whose server an engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// vllm-project/vllm
    Vllm,
    /// sgl-project/sglang
    Sglang,
}

/// What an engine's `/metrics` says of its load. Absent values drop their terms.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct EngineLoad {
    /// Requests running, summed over data-parallel ranks.
    pub running: Option<u32>,
    /// Requests waiting, summed over data-parallel ranks.
    pub waiting: Option<u32>,
    /// KV cache in use, 0..=1, mean over ranks.
    pub kv_use: Option<f32>,
    /// KV capacity in tokens, summed over ranks.
    pub kv_capacity_tokens: Option<u64>,
    /// Prompt tokens processed since the engine's start.
    pub prompt_tokens_total: Option<u64>,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries_total: Option<u64>,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits_total: Option<u64>,
    /// Tokens generated since the engine's start.
    pub generation_tokens_total: Option<u64>,
    /// Requests that have ended since.
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
    /// Which of the ranks there it is, where requests are to name one.
    pub rank: Option<u16>,
    /// Share of the load relative to the others; at least 1.
    pub weight: u32,
    /// May it be chosen?
    pub health: Health,
    /// Whose server it is, where its metrics have said so.
    pub kind: Option<EngineKind>,
    /// What the engine reported at its last scrape.
    pub engine: EngineLoad,
    /// Load on this endpoint that is not ours: the engine's running + waiting beyond our own at the scrape.
    pub foreign: u32,
    /// [`Loads::dispatched`] when the scrape of `engine` began: what was dispatched since may be missing in it.
    pub dispatched_at: u64,
    /// [`Loads::resident`] at that moment: what came and what went since is missing in it.
    pub resident_at: u64,
    /// What was told of its cache last, also where that is too old to be `engine`: for as long as it is the same
    /// process, and for nothing but room.
    pub room: Option<Room>,
    /// How much of its cache was replaced of late, 0..=1: see [`Turnover`].
    pub turnover: f32,
    /// How much of its cache holds nothing yet, as far as the index knows, 0..=1.
    pub vacant: f32,
    /// Most requests of ours that run there, whatever the load elsewhere; [`Endpoint::NO_CAP`]: as many as come.
    pub cap: u32,
    /// How much of its weight counts, in percent: less than [`Endpoint::WHOLE`] while it starts slowly.
    pub share_percent: u8,
    /// Its kernel refused or reset the last two probes: nobody is there who could still answer.
    pub refuses_probes: bool,
    /// How far is believed what is known of its cache.
    pub rung: Rung,
}

impl Endpoint {
    /// See [`Endpoint::cap`].
    pub const NO_CAP: u32 = u32::MAX;
    /// See [`Endpoint::share_percent`].
    pub const WHOLE: u8 = 100;

    /// One of weight 1 that nothing is known of yet.
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
