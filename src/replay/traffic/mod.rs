//! Requests as a replay knows them, and where they come from.
//!
//! Everything is derived from [`Request`]: whatever can fill it (a trace, a generator, a front's log with chained
//! hashes and lengths) can be replayed.

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
    /// Nanoseconds from the start to its arrival.
    pub arrival_ns: u64,
    /// Prompt tokens, at least one.
    pub prompt: u32,
    /// Tokens to generate, at least one.
    pub output: u32,
    /// Chained hashes of its full blocks, each naming all tokens up to the block's end: the prompt's, and after them
    /// the reply's, if a later prompt may bring the reply back.
    pub blocks: Arc<[u64]>,
    /// The session that a header would name.
    pub session: Option<u64>,
    /// Number that stands for the start of the first user message.
    pub opening: Option<u64>,
    /// The conversation to which it belongs: for [`Traffic::after`] and [`Request::tenant`].
    pub thread: u32,
}

/// The first tenant's share of the traffic, in percent.
const FIRST_TENANT_PERCENT: u64 = 90;

impl Request {
    /// Returns the tenant that asks, of so many: all requests of a session are one tenant's; others have one each by
    /// itself.
    pub fn tenant(&self, tenants: u16) -> u16 {
        let drawn = chain::mix(self.session.map_or(self.arrival_ns, |_| self.thread.into()), draws::TENANT);
        match u64::from(tenants).saturating_sub(1) {
            0 => 0,
            _ if drawn % 100 < FIRST_TENANT_PERCENT => 0,
            others => 1 + (drawn / 100 % others) as u16,
        }
    }

    /// Returns the blocks of the prompt.
    pub fn prompt_blocks(&self, block_tokens: u32) -> &[u64] {
        let full = (self.prompt / block_tokens.max(1)) as usize;
        &self.blocks[..full.min(self.blocks.len())]
    }

    /// Returns the blocks that a cache may spare computing: all but the last token's, which is always computed.
    pub fn findable(&self, block_tokens: u32) -> &[u64] {
        let most = (self.prompt.saturating_sub(1) / block_tokens.max(1)) as usize;
        &self.blocks[..most.min(self.blocks.len())]
    }
}

/// The time whose requests and tokens are counted; the time before it warms caches up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First nanosecond that counts.
    pub from_ns: u64,
    /// First nanosecond that counts no more; `None`: until the last request has ended.
    pub until_ns: Option<u64>,
}

impl Window {
    /// Whether an instant lies inside.
    pub fn holds(&self, at_ns: u64) -> bool {
        at_ns >= self.from_ns && self.until_ns.is_none_or(|until| at_ns < until)
    }
}

/// Requests on their way. The same traffic asks the same under every policy, except for when.
pub trait Traffic {
    /// Returns the next request that follows on no other, in order of arrival.
    fn next(&mut self) -> Option<Request>;
    /// Returns the request that follows on the end of `ended`.
    fn after(&mut self, ended: &Request, now_ns: u64) -> Option<Request>;
}

/// Where traffic comes from; each policy gets it from the start.
pub trait Source: Sync {
    /// Makes the traffic at `load` times its own rate.
    fn traffic(&self, load: f64) -> Box<dyn Traffic + '_>;
    /// Tokens in a block.
    fn block_tokens(&self) -> u32;
    /// The time that is counted at that load.
    fn window(&self, load: f64) -> Window;
    /// One line for people.
    fn describe(&self) -> String;
    /// Most tokens that a prompt and its output may have together.
    fn tokens_max(&self) -> u32;
    /// Says why this traffic is impossible at this load: more than memory should hold, or nothing to count.
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

/// Requests whose arrivals are given and do not depend on replies.
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
