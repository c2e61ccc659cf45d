//! One simulated engine without sockets, threads or a clock: time is an argument.
//!
//! `begin_step` chooses and prices a step, `end_step` hands out its tokens. A shell sleeps between
//! the two; a replay jumps. Times are simulated nanoseconds since the engine's start.

use super::batch::{Ask, Batch, Finish, Outline, Token};
use super::cache::{Cache, Change};
use super::profile::Profile;

/// Upper bounds of vLLM's `time_to_first_token_seconds`, in seconds.
pub const TTFT_BOUNDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];

/// How sequences ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// By the model's own end.
    pub stop: u64,
    /// At the client's limit.
    pub length: u64,
    /// Because the client left. vLLM counts these under no label; so does the exposition.
    pub abort: u64,
}

/// The figures of an engine at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Sequences in steps now.
    pub running: usize,
    /// Sequences that wait for a place.
    pub waiting: usize,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_usage: f64,
    /// Counts since the start.
    pub counts: super::batch::Counts,
    /// Ends since the start.
    pub ends: Ends,
    /// Requests refused because the queue was full.
    pub refused: u64,
    /// Times to first token: one count for each bound, the last for all beyond.
    pub ttft: [u64; TTFT_BOUNDS.len() + 1],
    /// Sum of the times to first token.
    pub ttft_sum_ns: u64,
    /// Steps, and below the simulated time they took.
    pub steps: u64,
    /// See `steps`.
    pub busy_ns: u64,
}

/// The queue is full; try later or elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// A simulated engine.
pub struct Core {
    profile: Profile,
    cache: Cache,
    batch: Batch,
    step_ends_ns: Option<u64>,
    figures: Figures,
}

impl Core {
    /// Makes a cold engine; the profile has passed [`Profile::check`].
    pub fn new(profile: Profile) -> Core {
        Core {
            cache: Cache::new(profile.blocks()),
            batch: Batch::new(profile.block_size),
            step_ends_ns: None,
            figures: Figures::default(),
            profile,
        }
    }

    /// The profile that the engine was made from.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Queues the sequences of one request, all or none. Ids are given in order.
    pub fn submit(&mut self, now_ns: u64, asks: &[Ask], ids: &mut Vec<u64>) -> Result<(), Busy> {
        let most = self.profile.max_num_queued_reqs;
        if most > 0 && self.batch.waiting() >= most {
            self.figures.refused += 1;
            return Err(Busy);
        }
        ids.extend(asks.iter().map(|ask| self.batch.submit(now_ns, ask)));
        Ok(())
    }

    /// Queues one sequence of which only the outline is known.
    pub fn submit_outline(&mut self, now_ns: u64, outline: &Outline) -> u64 {
        self.batch.submit_outline(now_ns, outline)
    }

    /// Counts how many of these chained blocks, from the first, the prefix cache holds.
    pub fn held(&self, blocks: &[u64]) -> usize {
        self.cache.lookup(blocks).0
    }

    /// Keeps changes in the prefix cache from here on.
    pub fn listen(&mut self) {
        self.cache.listen();
    }

    /// Moves the changes to the end of `into`, in order.
    pub fn take_changes(&mut self, into: &mut Vec<Change>) {
        self.cache.take_changes(into);
    }

    /// Counts the prompt tokens computed so far, those of the present step included, for sequences that have no token
    /// yet.
    pub fn prefilled(&self) -> u64 {
        self.batch.prefilled()
    }

    /// Counts how often sequences have given their blocks up.
    pub fn preemptions(&self) -> u64 {
        self.batch.counts.preemptions
    }

    /// Swaps its cache with `other`: engines that take turns with one cache share it. Only between steps of engines
    /// whose sequences are all in that cache.
    pub fn swap_cache(&mut self, other: &mut Cache) {
        std::mem::swap(&mut self.cache, other);
    }

    /// Ends a sequence whose client left.
    pub fn abort(&mut self, id: u64) {
        if self.batch.abort(&mut self.cache, id) {
            self.figures.ends.abort += 1;
        }
    }

    /// Starts a step at `now_ns` and returns when it ends; `None` when there is nothing to do.
    pub fn begin_step(&mut self, now_ns: u64) -> Option<u64> {
        debug_assert!(self.step_ends_ns.is_none(), "one step at a time");
        let work = self.batch.plan(&mut self.cache, &self.profile)?;
        let took = self.profile.step_time(&work).as_nanos() as u64;
        self.figures.steps += 1;
        self.figures.busy_ns += took;
        self.step_ends_ns = Some(now_ns + took);
        self.step_ends_ns
    }

    /// Ends the step begun last; appends its tokens to `out`.
    pub fn end_step(&mut self, out: &mut Vec<Token>) {
        let Some(now_ns) = self.step_ends_ns.take() else { return };
        let before = out.len();
        self.batch.finish(&mut self.cache, out);
        for token in &out[before..] {
            if let Some(first) = token.first {
                self.note_first(now_ns.saturating_sub(first.arrived_ns));
            }
            match token.finish {
                Some(Finish::Stop) => self.figures.ends.stop += 1,
                Some(Finish::Length) => self.figures.ends.length += 1,
                None => {}
            }
        }
    }

    /// Forgets every cached prefix, as `POST /reset_prefix_cache` does.
    pub fn forget(&mut self) {
        self.cache.forget();
    }

    /// Returns the figures now.
    pub fn figures(&self) -> Figures {
        let used = self.cache.capacity() - self.cache.free();
        Figures {
            running: self.batch.running(),
            waiting: self.batch.waiting(),
            kv_usage: used as f64 / self.cache.capacity().max(1) as f64,
            counts: self.batch.counts,
            ..self.figures
        }
    }

    fn note_first(&mut self, took_ns: u64) {
        let seconds = took_ns as f64 / 1e9;
        let at = TTFT_BOUNDS.partition_point(|bound| *bound < seconds);
        self.figures.ttft[at] += 1;
        self.figures.ttft_sum_ns += took_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(seed: u32, prompt: u32, output: u32) -> Ask {
        let prompt = (0..prompt).map(|i| seed * 100_000 + i).collect();
        Ask { prompt, output, natural_end: false, salt: 0, choice: 0 }
    }

    /// Runs until idle from `now`; returns the end and each sequence's time of first token.
    fn run(core: &mut Core, mut now: u64) -> (u64, Vec<(u64, u64)>) {
        let (mut out, mut firsts) = (Vec::new(), Vec::new());
        while let Some(ends) = core.begin_step(now) {
            now = ends;
            out.clear();
            core.end_step(&mut out);
            firsts.extend(out.iter().filter(|t| t.first.is_some()).map(|t| (t.id, now)));
        }
        (now, firsts)
    }

    #[test]
    fn warm_prompts_answer_many_times_sooner() {
        let mut core = Core::new(Profile::default());
        let mut ids = Vec::new();
        core.submit(0, &[ask(1, 8_192, 1)], &mut ids).unwrap();
        let (cold, _) = run(&mut core, 0);
        // 8,192 tokens in four steps of at least 30 ms and 2,048 / 5,500 s each, plus attention.
        assert!((1_600_000_000..2_000_000_000).contains(&cold), "{cold}");
        core.submit(cold, &[ask(1, 8_192, 1)], &mut ids).unwrap();
        let (end, _) = run(&mut core, cold);
        assert!(cold > 20 * (end - cold), "cold {cold} warm {}", end - cold);
        assert_eq!(core.figures().counts.prefix_hits, 8_176);
    }

    #[test]
    fn decode_time_is_base_plus_sequences_plus_what_they_read() {
        let profile = Profile { attention_pair_ns: 0.0, ..Profile::default() };
        let mut core = Core::new(profile);
        let mut ids = Vec::new();
        core.submit(0, &[ask(1, 100, 11), ask(2, 100, 11)], &mut ids).unwrap();
        let (end, firsts) = run(&mut core, 0);
        let prefill = 30_000_000 + 200 * 1_000_000_000 / 5_500;
        assert!(firsts[0].1.abs_diff(prefill) < 1_000, "{firsts:?}");
        let reads: u64 = (101..111).map(|kv| 2 * kv * 490).sum();
        let decodes = 10 * (30_000_000 + 2 * 300_000) + reads;
        assert!((end - firsts[0].1).abs_diff(decodes) < 1_000, "{end}");
    }

    #[test]
    fn a_full_queue_refuses_the_whole_request() {
        let profile = Profile { max_num_queued_reqs: 1, ..Profile::default() };
        let mut core = Core::new(profile);
        let mut ids = Vec::new();
        core.submit(0, &[ask(1, 10, 1)], &mut ids).unwrap();
        assert_eq!(core.submit(0, &[ask(2, 10, 1)], &mut ids), Err(Busy));
        assert_eq!((ids.len(), core.figures().refused), (1, 1));
    }

    #[test]
    fn the_same_run_twice_is_the_same() {
        let go = || {
            let mut core = Core::new(Profile { kv_tokens: 20_000, ..Profile::default() });
            let mut ids = Vec::new();
            for i in 0..60 {
                core.submit(u64::from(i) * 1_000, &[ask(i % 7, 900 + i, 40)], &mut ids).unwrap();
            }
            (run(&mut core, 0), core.figures().counts.prefix_hits)
        };
        assert_eq!(go(), go());
    }
}
