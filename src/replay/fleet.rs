//! The simulated engines of one run, and which cache they compute in.

use super::profiles;
use crate::engine::batch::{Outline, Token};
use crate::engine::cache::{Cache, Change};
use crate::engine::core::{Core, Figures};
use crate::engine::profile::Profile;

/// Engines, each with a cache of its own, or all with one.
pub struct Fleet {
    engines: Vec<Core>,
    /// End of the step that each engine is in.
    step_ends_ns: Vec<Option<u64>>,
    /// The shared cache, as large as all of theirs together.
    pooled: Option<Cache>,
}

impl Fleet {
    /// Cold engines of these weights: see [`profiles::of_weight`].
    pub fn new(profile: &Profile, weights: &[u32], pooled: bool) -> Fleet {
        let profiles: Vec<Profile> = weights.iter().map(|weight| profiles::of_weight(profile, *weight)).collect();
        let blocks = profiles.iter().fold(0u32, |sum, profile| sum.saturating_add(profile.blocks()));
        Fleet {
            step_ends_ns: vec![None; profiles.len()],
            pooled: pooled.then(|| Cache::new(blocks)),
            engines: profiles.into_iter().map(Core::new).collect(),
        }
    }

    /// Number of engines.
    pub fn len(&self) -> usize {
        self.engines.len()
    }

    /// Whether there are no engines.
    pub fn is_empty(&self) -> bool {
        self.engines.is_empty()
    }

    /// Returns an engine's profile.
    pub fn profile(&self, engine: usize) -> Option<&Profile> {
        self.engines.get(engine).map(Core::profile)
    }

    /// Counts how many of these chained blocks, from the first, an engine finds in its cache now: what KV events would
    /// tell if they came at once.
    pub fn held(&self, engine: usize, blocks: &[u64]) -> usize {
        match &self.pooled {
            Some(cache) => cache.lookup(blocks).0,
            None => self.engines.get(engine).map_or(0, |core| core.held(blocks)),
        }
    }

    /// Keeps what changes in the engines' own caches from here on.
    pub(super) fn listen(&mut self) {
        self.engines.iter_mut().for_each(Core::listen);
    }

    /// Moves what has changed in an engine's own cache to the end of `into`.
    pub(super) fn take_changes(&mut self, engine: usize, into: &mut Vec<Change>) {
        if let Some(core) = self.engines.get_mut(engine) {
            core.take_changes(into);
        }
    }

    /// Of a pooled cache: counts the blocks that no sequence uses and this prompt does not find.
    pub fn free_beside(&self, blocks: &[u64]) -> usize {
        self.pooled.as_ref().map_or(0, |cache| cache.free().saturating_sub(cache.lookup(blocks).1))
    }

    /// Returns what an engine's `/metrics` would say now.
    pub fn figures(&self, engine: usize) -> Figures {
        self.engines.get(engine).map(Core::figures).unwrap_or_default()
    }

    /// Counts how often sequences of an engine have given up their blocks.
    pub(super) fn preemptions(&self, engine: usize) -> u64 {
        self.engines.get(engine).map_or(0, Core::preemptions)
    }

    /// Returns when the step ends that an engine is in.
    pub fn step_ends_ns(&self, engine: usize) -> Option<u64> {
        self.step_ends_ns.get(engine).copied().flatten()
    }

    /// Counts the prompt tokens that an engine has computed for sequences without a token yet, its present step
    /// included.
    pub fn prefilled(&self, engine: usize) -> u64 {
        self.engines.get(engine).map_or(0, Core::prefilled)
    }

    /// Queues a sequence.
    pub(super) fn submit(&mut self, engine: usize, now_ns: u64, outline: &Outline) -> Option<u64> {
        Some(self.engines.get_mut(engine)?.submit_outline(now_ns, outline))
    }

    /// Begins a step, unless one is under way or there is nothing to do; returns when it ends.
    pub(super) fn begin(&mut self, engine: usize, now_ns: u64) -> Option<u64> {
        let step = self.step_ends_ns.get_mut(engine).filter(|step| step.is_none())?;
        let core = self.engines.get_mut(engine)?;
        *step = match &mut self.pooled {
            Some(cache) => {
                core.swap_cache(cache);
                let ends_ns = core.begin_step(now_ns);
                core.swap_cache(cache);
                ends_ns
            }
            None => core.begin_step(now_ns),
        };
        *step
    }

    /// Ends an engine's step; returns its tokens.
    pub(super) fn end(&mut self, engine: usize) -> Vec<Token> {
        let mut tokens = Vec::new();
        if let Some(core) = self.engines.get_mut(engine) {
            match &mut self.pooled {
                Some(cache) => {
                    core.swap_cache(cache);
                    core.end_step(&mut tokens);
                    core.swap_cache(cache);
                }
                None => core.end_step(&mut tokens),
            }
        }
        if let Some(step) = self.step_ends_ns.get_mut(engine) {
            *step = None;
        }
        tokens
    }

    /// Whether a step of one engine may free what another waits for.
    pub(super) fn shares_cache(&self) -> bool {
        self.pooled.is_some()
    }
}
