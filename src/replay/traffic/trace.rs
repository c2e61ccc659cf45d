//! Recorded requests, whatever format they came in ([`super::mooncake`], [`super::access`]).

use std::collections::{HashMap, HashSet};

use super::{Open, Request, Source, Traffic, Window};

/// Longest prompt or reply that is believed, in tokens.
pub(super) const TOKENS_MAX: u64 = 16 << 20;

/// A trace in memory.
#[derive(Debug)]
pub struct Trace {
    name: String,
    block_tokens: u32,
    requests: Vec<Request>,
}

impl Trace {
    /// Makes a trace of requests in order of arrival; `name` is told to people.
    pub(super) fn of(name: &str, block_tokens: u32, requests: Vec<Request>) -> Trace {
        Trace { name: name.to_owned(), block_tokens, requests }
    }

    /// The requests, in order of arrival.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Keeps the first `count` requests.
    pub fn keep_first(&mut self, count: usize) {
        self.requests.truncate(count);
    }

    /// Takes out requests too long for any engine; returns how many.
    pub fn drop_longer_than(&mut self, tokens: u32) -> usize {
        let before = self.requests.len();
        self.requests.retain(|request| request.prompt.saturating_add(request.output) <= tokens);
        // Otherwise the time before the first request that is left would count as time in which nothing was asked.
        let begins_ns = self.requests.first().map_or(0, |first| first.arrival_ns);
        self.requests.iter_mut().for_each(|request| request.arrival_ns -= begins_ns);
        before - self.requests.len()
    }
}

impl Source for Trace {
    fn traffic(&self, load: f64) -> Box<dyn Traffic + '_> {
        Box::new(Open::new(&self.requests, load))
    }

    fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    fn window(&self, _load: f64) -> Window {
        Window { from_ns: 0, until_ns: None }
    }

    fn describe(&self) -> String {
        let prompt: u64 = self.requests.iter().map(|request| u64::from(request.prompt)).sum();
        let output: u64 = self.requests.iter().map(|request| u64::from(request.output)).sum();
        let (count, name) = (self.requests.len().max(1) as u64, &self.name);
        let seconds = self.requests.last().map_or(0, |last| last.arrival_ns / 1_000_000_000);
        format!(
            "{name}: {count} requests in {seconds} s, {} prompt and {} output tokens in the mean",
            prompt / count,
            output / count
        )
    }

    fn tokens_max(&self) -> u32 {
        self.requests.iter().map(|request| request.prompt.saturating_add(request.output)).max().unwrap_or(0)
    }

    fn check(&self, _load: f64) -> Result<(), String> {
        Ok(())
    }
}

/// If more prompts than this go on from the end of a prompt, these are many conversations, and not the branches of one.
const BRANCHES_MAX: usize = 8;

/// How prompts go on that reach the end of another's last whole block.
#[derive(Default)]
struct GoOn {
    /// The next blocks of longer ones.
    ways: Vec<u64>,
    /// Prompts that end in the block that follows, except next turns of the one before.
    short: usize,
    /// Tokens that the last of these has with its reply; 0: there was none.
    tokens: u32,
}

impl GoOn {
    fn branches(&self) -> usize {
        // The first prompt that ends here is the one from which others go on.
        self.ways.len() + self.short.saturating_sub(1)
    }
}

/// Blocks at which whole prompts end and many others go on, each in its own way: all that chats share before a first
/// message, if that is shorter than a block. `requests` are in order of arrival.
pub(super) fn everybodys(requests: &[Request]) -> HashSet<u64> {
    let mut ends: HashMap<u64, GoOn> = HashMap::new();
    for one in requests {
        let Some(last) = one.blocks.last() else { continue };
        let end = ends.entry(*last).or_default();
        // A next turn brings back the prompt before and its reply: a chat of few words has many in one block.
        end.short += usize::from(end.tokens == 0 || one.prompt < end.tokens);
        end.tokens = one.prompt.saturating_add(one.output);
    }
    for two in requests.iter().flat_map(|one| one.blocks.windows(2)) {
        let end = ends.get_mut(&two[0]).filter(|end| end.branches() <= BRANCHES_MAX && !end.ways.contains(&two[1]));
        if let Some(end) = end {
            end.ways.push(two[1]);
        }
    }
    ends.retain(|_, end| end.branches() > BRANCHES_MAX);
    ends.into_keys().collect()
}

/// Finds which session a prompt continues if nothing says so: the one whose whole prompt it begins with. Last blocks of
/// whole prompts lead to their sessions.
#[derive(Default)]
pub(super) struct Continued(HashMap<u64, u64>);

impl Continued {
    /// Returns the session of these chained blocks; a new one is called `number`. The first block alone is no sign: all
    /// requests may share it.
    pub(super) fn of(&mut self, blocks: &[u64], number: u64) -> u64 {
        let session = self.found(blocks).unwrap_or(number);
        self.is(blocks, session);
        session
    }

    /// Returns the session of the longest whole prompt with which these blocks begin.
    pub(super) fn found(&self, blocks: &[u64]) -> Option<u64> {
        blocks.iter().skip(1).rev().find_map(|block| self.0.get(block).copied())
    }

    /// From now on a prompt that begins with these blocks continues this session.
    pub(super) fn is(&mut self, blocks: &[u64], session: u64) {
        if let Some(last) = blocks.last().filter(|_| blocks.len() > 1) {
            self.0.insert(*last, session);
        }
    }
}
