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

/// If more chains than this go on from the end of a prompt, these are many conversations, and not the branches of one.
const BRANCHES_MAX: usize = 8;

/// Blocks at which whole prompts end and many chains go on, each in its own way: all that chats share before a first
/// message that is shorter than a block.
pub(super) fn everybodys(requests: &[Request]) -> HashSet<u64> {
    let ends = requests.iter().filter_map(|one| one.blocks.last());
    let mut ways: HashMap<u64, Vec<u64>> = ends.map(|end| (*end, Vec::new())).collect();
    for two in requests.iter().flat_map(|one| one.blocks.windows(2)) {
        let ways = ways.get_mut(&two[0]).filter(|ways| ways.len() <= BRANCHES_MAX && !ways.contains(&two[1]));
        if let Some(ways) = ways {
            ways.push(two[1]);
        }
    }
    ways.retain(|_, ways| ways.len() > BRANCHES_MAX);
    ways.into_keys().collect()
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
