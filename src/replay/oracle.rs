//! The oracle: what could be had if it did not matter in which cache a block lies.
//!
//! As many engines as in every other run, each with its own compute, steps and limits; but their KV blocks are one
//! pool, as large as all caches together, in which every engine finds what any of them has computed, at once and
//! without cost. A request goes, at its arrival, to the engine that will give its first token soonest, judged by what
//! is known of their state: when each engine's step ends, how many uncached prompt tokens it still has to compute, how
//! many sequences it has. Among equals it goes where fewest are in flight.
//!
//! Left out is what engines pay besides: attention, which makes long prompts dearer than their tokens, and the KV
//! tokens that decodes read. With both, or attention alone, the oracle was 1 % sooner to 1.5 % later (Mooncake, agents,
//! shared prefixes, chats), the pooled one up to 9 % later, and the clairvoyant 10 % sooner to 10 % later: the soonest
//! first token is not all that matters.
//!
//! A request waits until the pool has room for it, first come, first served: for its own blocks, those still promised
//! to requests before it, and half of what the replies in flight will still need.
//!
//! So no request computes anew what was computed anywhere before and still fits into the memory of all, and none waits
//! while another engine would have been sooner. The oracle does not know the future: a policy may beat it by luck, by a
//! few percent. It is no bound beyond overload, where it matters which request is computed first, and not where.
//!
//! The clairvoyant is the same with separate caches: it sees the state of the engines, and no request waits. The
//! difference between the two is the price of separate caches. It takes what is best for the request at hand, which is
//! not what is best for those that follow: it is no bound, only a landmark.
//!
//! The pooled one has one cache for all as the oracle does, but does not see when an engine's step ends, as nobody
//! outside an engine does: taking the one of many whose step ends soonest is worth half a step of each first token. It
//! is what a router could come to at best.

use std::collections::HashMap;

use super::chooser::{Asked, Chooser, Placed};
use super::fleet::Fleet;

/// See the top of this file.
pub struct Oracle {
    pooled: bool,
    sees_steps: bool,
    /// Uncached tokens of requests without a first token, as they were at their choice, by engine.
    pending: Vec<u64>,
    in_flight: Vec<u32>,
    /// Engine, uncached tokens (until the first token), and output of each request in flight, by number.
    placed: HashMap<u64, (usize, u64, u64)>,
    /// Tokens of all replies in flight.
    outputs: u64,
}

impl Oracle {
    /// Nothing placed yet.
    pub fn new(engines: usize) -> Oracle {
        let (pending, in_flight) = (vec![0; engines], vec![0; engines]);
        Oracle { pooled: true, sees_steps: true, pending, in_flight, placed: HashMap::new(), outputs: 0 }
    }

    /// Makes the clairvoyant.
    pub fn with_caches_apart(engines: usize) -> Oracle {
        Oracle { pooled: false, ..Oracle::new(engines) }
    }

    /// Makes the pooled one.
    pub fn without_steps(engines: usize) -> Oracle {
        Oracle { sees_steps: false, ..Oracle::new(engines) }
    }

    /// Estimates the nanoseconds from now to the first token of a prompt with `uncached` tokens to compute.
    fn wait_ns(&self, engine: usize, uncached: u64, now_ns: u64, fleet: &Fleet) -> f64 {
        let Some(profile) = fleet.profile(engine) else { return f64::INFINITY };
        let figures = fleet.figures(engine);
        let left = fleet.step_ends_ns(engine).filter(|_| self.sees_steps).map_or(0, |ends| ends.saturating_sub(now_ns));
        let pending = self.pending.get(engine).copied().unwrap_or(0).saturating_sub(fleet.prefilled(engine));
        let tokens = (pending + uncached) as f64;
        let steps = (tokens / f64::from(profile.max_num_batched_tokens)).ceil().max(1.0);
        // A pool does not tell which engine's decodes read which tokens: the sequences are counted instead.
        let step_ns = profile.decode_step_ms * 1e6 + figures.running as f64 * profile.decode_sequence_us * 1e3;
        left as f64 + steps * step_ns + tokens / profile.prefill_tokens_per_second * 1e9
    }
}

impl Oracle {
    fn has_room(&self, asked: &Asked, uncached: u64, fleet: &Fleet) -> bool {
        let computed: u64 = (0..fleet.len()).map(|engine| fleet.prefilled(engine)).sum();
        let promised = self.pending.iter().sum::<u64>().saturating_sub(computed);
        let free = fleet.free_beside(asked.request.findable(asked.block_tokens)) as u64;
        // Each request in flight has a last block that is not full.
        let needed = (uncached + promised + self.outputs / 2) / u64::from(asked.block_tokens);
        needed + self.placed.len() as u64 <= free
    }
}

impl Chooser for Oracle {
    fn choose(&mut self, asked: &Asked, fleet: &Fleet) -> Option<Placed> {
        let blocks = asked.request.findable(asked.block_tokens);
        let uncached = |engine: usize| {
            let found = fleet.held(engine, blocks) as u64 * u64::from(asked.block_tokens);
            u64::from(asked.request.prompt).saturating_sub(found)
        };
        if self.pooled && !self.placed.is_empty() && !self.has_room(asked, uncached(0), fleet) {
            return None;
        }
        let cost = |engine: usize| {
            let wait_ns = self.wait_ns(engine, uncached(engine), asked.now_ns, fleet);
            (wait_ns, self.in_flight.get(engine).copied().unwrap_or(0))
        };
        let best = (0..fleet.len()).map(|engine| (cost(engine), engine)).min_by(|(one, _), (other, _)| {
            // Waits that differ by less than a millisecond count as equal.
            let rounded = |wait: f64| (wait / 1e6).round();
            rounded(one.0).total_cmp(&rounded(other.0)).then(one.1.cmp(&other.1))
        });
        let engine = best.map_or(0, |(_, engine)| engine);
        let uncached = uncached(engine);
        if let (Some(pending), Some(in_flight)) = (self.pending.get_mut(engine), self.in_flight.get_mut(engine)) {
            *pending += uncached;
            *in_flight += 1;
        }
        self.outputs += u64::from(asked.request.output);
        self.placed.insert(asked.number, (engine, uncached, u64::from(asked.request.output)));
        Some(engine.into())
    }

    fn first_token(&mut self, number: u64) {
        let Some((engine, uncached, _)) = self.placed.get_mut(&number) else { return };
        if let Some(pending) = self.pending.get_mut(*engine) {
            *pending -= std::mem::take(uncached);
        }
    }

    fn ended(&mut self, number: u64, _engine: usize, _tokens: u32) {
        let Some((engine, _, output)) = self.placed.remove(&number) else { return };
        self.outputs -= output;
        if let Some(in_flight) = self.in_flight.get_mut(engine) {
            *in_flight -= 1;
        }
    }

    fn pools_caches(&self) -> bool {
        self.pooled
    }
}
