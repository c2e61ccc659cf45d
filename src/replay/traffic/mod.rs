//! Requests as a replay knows them, and where they come from.
//!
//! Everything is derived from [`Request`]: a source that can fill it (a trace, a generator, a log of a front
//! with chained hashes and lengths) can be replayed.

pub mod access;
pub mod agents;
pub mod chain;
pub mod chat;
mod frames;
pub mod lines;
pub mod mooncake;
pub mod prefixes;
pub mod trace;

use std::sync::Arc;

use super::chooser::draws;

/// One request. Its model is part of its hashes: prompts for different models share no block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrives, from the start.
    pub arrival_ns: u64,
    /// Prompt tokens, at least one.
    pub prompt: u32,
    /// Tokens to generate, at least one.
    pub output: u32,
    /// Chained hashes of its full blocks, each naming all tokens up to its end: the prompt's, and behind them the
    /// reply's, where a later prompt may bring the reply back.
    pub blocks: Arc<[u64]>,
    /// What a session header would say.
    pub session: Option<u64>,
    /// The start of the first user message.
    pub opening: Option<u64>,
    /// Which of its traffic's conversations it belongs to: for [`Traffic::after`] and [`Request::tenant`].
    pub thread: u32,
}

/// The first tenant's share of the traffic, in percent.
const FIRST_TENANT_PERCENT: u64 = 90;

impl Request {
    /// On whose account it comes, of so many: a session's requests all on one, the others each by itself.
    pub fn tenant(&self, tenants: u16) -> u16 {
        let drawn = chain::mix(self.session.map_or(self.arrival_ns, |_| self.thread.into()), draws::TENANT);
        match u64::from(tenants).saturating_sub(1) {
            0 => 0,
            _ if drawn % 100 < FIRST_TENANT_PERCENT => 0,
            others => 1 + (drawn / 100 % others) as u16,
        }
    }

    /// Blocks that lie in the prompt.
    pub fn prompt_blocks(&self, block_tokens: u32) -> &[u64] {
        let full = (self.prompt / block_tokens.max(1)) as usize;
        &self.blocks[..full.min(self.blocks.len())]
    }

    /// Blocks that a cache can spare: the last token of a prompt is always computed.
    pub fn findable(&self, block_tokens: u32) -> &[u64] {
        let most = (self.prompt.saturating_sub(1) / block_tokens.max(1)) as usize;
        &self.blocks[..most.min(self.blocks.len())]
    }
}

/// The time whose requests and tokens are counted; what lies before it warms caches up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From here on.
    pub from_ns: u64,
    /// Before here; `None`: until the last request has ended.
    pub until_ns: Option<u64>,
}

impl Window {
    /// Whether an instant lies inside.
    pub fn holds(&self, at_ns: u64) -> bool {
        at_ns >= self.from_ns && self.until_ns.is_none_or(|until| at_ns < until)
    }
}

/// Requests on their way. The same traffic under two policies asks the same, except for when.
pub trait Traffic {
    /// The next request that waits for nothing, in order of arrival.
    fn next(&mut self) -> Option<Request>;
    /// The request that follows on the end of another.
    fn after(&mut self, ended: &Request, now_ns: u64) -> Option<Request>;
}

/// Where traffic comes from; each policy gets it anew.
pub trait Source: Sync {
    /// The traffic at `load` times its own rate.
    fn traffic(&self, load: f64) -> Box<dyn Traffic + '_>;
    /// Tokens in a block.
    fn block_tokens(&self) -> u32;
    /// What is counted, at that load.
    fn window(&self, load: f64) -> Window;
    /// One line for people.
    fn describe(&self) -> String;
    /// Longest prompt with its output that may come.
    fn tokens_max(&self) -> u32;
    /// What makes this traffic impossible at this load, in words: more than memory should hold, or nothing to count.
    fn check(&self, load: f64) -> Result<(), String>;
}

/// Most requests that generators make.
const REQUESTS_MAX: f64 = 4e6;
/// Most conversations at a time.
const THREADS_MAX: f64 = 200_000.0;

/// Refuses a warm-up that leaves nothing.
fn leaves_something(warmup_seconds: f64, seconds: f64) -> Result<(), String> {
    match warmup_seconds < seconds {
        true => Ok(()),
        false => {
            Err(format!("--warmup {warmup_seconds} leaves nothing of {seconds} s: lower it or give more --seconds"))
        }
    }
}

/// Requests whose arrivals are given, whatever becomes of them.
pub struct Open<'a> {
    requests: std::slice::Iter<'a, Request>,
    load: f64,
}

impl Open<'_> {
    /// `requests` in order of arrival, `load` times as fast.
    pub fn new(requests: &[Request], load: f64) -> Open<'_> {
        Open { requests: requests.iter(), load }
    }
}

impl Traffic for Open<'_> {
    fn next(&mut self) -> Option<Request> {
        let request = self.requests.next()?;
        Some(Request { arrival_ns: (request.arrival_ns as f64 / self.load) as u64, ..request.clone() })
    }

    fn after(&mut self, _ended: &Request, _now_ns: u64) -> Option<Request> {
        None
    }
}
