//! Which sequences a step computes, and how far: continuous batching over the paged cache.
//!
//! vLLM's scheduler with chunked prefill. A step has a budget of tokens. Running sequences take
//! theirs first, in order of arrival: one to decode, or the next chunk of a prompt. What is left
//! admits waiting ones, which first take the blocks that the cache still holds of their prompt. When
//! a running sequence finds no block, the last admitted gives its blocks up and waits again, at the
//! head of the queue, to be computed anew from what the cache then still holds.

use std::collections::VecDeque;
use std::sync::Arc;

use super::cache::{ByHash, Cache};
use super::profile::{Profile, Work};
use super::tokens;

/// One sequence to compute: a prompt and the length of its reply.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Tokens to generate, at least one.
    pub output: u32,
    /// Whether the end counts as the model's own (`stop`) or the client's limit (`length`).
    pub natural_end: bool,
    /// Start of the hash chain: prompts share blocks only under the same salt.
    pub salt: u64,
    /// Varies the reply between choices of one prompt.
    pub choice: u32,
}

/// One sequence of which only lengths and the hashes of its blocks are known, as traces tell them.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Tokens of the prompt, at least one.
    pub prompt: u32,
    /// Tokens to generate, at least one.
    pub output: u32,
    /// Chained hashes of its full blocks from the first: those of the prompt, and after them those of the reply as far
    /// as a later prompt may bring them back. Blocks without a hash are computed and never found again.
    pub blocks: Arc<[u64]>,
}

/// A token as a step has computed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Sequence that it belongs to.
    pub id: u64,
    /// The token itself.
    pub token: u32,
    /// With a sequence's first token: the prompt tokens found in the cache.
    pub first: Option<First>,
    /// With a sequence's last token: why it ended.
    pub finish: Option<Finish>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended.
    Stop,
    /// The client's limit.
    Length,
}

/// What is known with a sequence's first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// Prompt tokens that the cache held.
    pub cached: u32,
    /// When the sequence was submitted.
    pub arrived_ns: u64,
}

struct Sequence {
    prompt: u32,
    output: u32,
    /// Whether the sequence will end by the model's own `stop`.
    natural_end: bool,
    generated: u32,
    /// Tokens whose keys and values are in `blocks`.
    computed: u32,
    cached: u32,
    /// Chained hashes of the full blocks of prompt and reply; in `tail` the tokens after them.
    hashes: Vec<u64>,
    tail: Vec<u32>,
    /// Its tokens are not known: all hashes that it will have are there from the start.
    outlined: bool,
    blocks: Vec<u32>,
    published: usize,
    salt: u64,
    seed: u64,
    arrived_ns: u64,
    preempted: bool,
}

/// Counts that only rise, in tokens unless named otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Prompt tokens looked up in the prefix cache, once a sequence.
    pub prefix_queries: u64,
    /// Looked-up prompt tokens that were found.
    pub prefix_hits: u64,
    /// Prompt tokens of sequences that reached their first token.
    pub prompt: u64,
    /// Tokens generated.
    pub generated: u64,
    /// Times that a sequence gave its blocks up.
    pub preemptions: u64,
}

/// The sequences of one engine.
pub struct Batch {
    block_size: usize,
    sequences: ByHash<Sequence>,
    running: Vec<u64>,
    waiting: VecDeque<u64>,
    planned: Vec<(u64, u32)>,
    last_id: u64,
    /// Counts since the start.
    pub counts: Counts,
}

impl Batch {
    /// Makes a batch without sequences, with blocks of `block_size` tokens.
    pub fn new(block_size: u32) -> Batch {
        Batch {
            block_size: block_size as usize,
            sequences: ByHash::default(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            planned: Vec::new(),
            last_id: 0,
            counts: Counts::default(),
        }
    }

    /// Counts the sequences in steps now.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Counts the prompt tokens computed so far, those of the present step included, for sequences that have no token
    /// yet.
    pub fn prefilled(&self) -> u64 {
        let running = self.running.iter().filter_map(|id| self.sequences.get(id));
        let placed = |one: &Sequence| (one.blocks.len() * self.block_size).min(one.prompt as usize) as u64;
        running.filter(|one| one.generated == 0).map(|one| placed(one).saturating_sub(one.cached.into())).sum()
    }

    /// Counts the sequences that wait for a place.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Puts a sequence at the end of the queue.
    pub fn submit(&mut self, now_ns: u64, ask: &Ask) -> u64 {
        let mut sequence = Sequence {
            hashes: Vec::with_capacity(ask.prompt.len() / self.block_size),
            tail: Vec::with_capacity(self.block_size),
            natural_end: ask.natural_end,
            salt: ask.salt,
            ..Sequence::new(now_ns, ask.prompt.len() as u32, ask.output)
        };
        for token in &ask.prompt {
            sequence.push(*token, self.block_size);
        }
        // The same as `tokens::reply_seed`, from hashes that are there already.
        let parent = sequence.hashes.last().copied().unwrap_or(ask.salt);
        sequence.seed = tokens::chain(parent.wrapping_add(u64::from(ask.choice)), &sequence.tail);
        self.enqueue(sequence)
    }

    /// Queues a sequence whose tokens are not known; the tokens that it generates mean nothing.
    pub fn submit_outline(&mut self, now_ns: u64, outline: &Outline) -> u64 {
        self.enqueue(Sequence {
            hashes: outline.blocks.to_vec(),
            outlined: true,
            ..Sequence::new(now_ns, outline.prompt.max(1), outline.output)
        })
    }

    fn enqueue(&mut self, sequence: Sequence) -> u64 {
        self.last_id += 1;
        self.sequences.insert(self.last_id, sequence);
        self.waiting.push_back(self.last_id);
        self.last_id
    }

    /// Ends a sequence early; its computed blocks stay in the cache. A sequence with an unknown id has ended already.
    pub fn abort(&mut self, cache: &mut Cache, id: u64) -> bool {
        let Some(mut sequence) = self.sequences.remove(&id) else { return false };
        cache.release(&mut sequence.blocks, sequence.published);
        self.running.retain(|other| *other != id);
        self.waiting.retain(|other| *other != id);
        true
    }

    /// Chooses the work of the next step; `None` when there is nothing to do.
    pub fn plan(&mut self, cache: &mut Cache, profile: &Profile) -> Option<Work> {
        let mut work = Work::default();
        let mut budget = profile.max_num_batched_tokens;
        self.planned.clear();
        let preempted = self.plan_running(cache, &mut budget, &mut work);
        // As in vLLM a step that preempts admits no sequence, unless it would have nothing to do at all.
        if !preempted || self.planned.is_empty() {
            self.admit(cache, profile, &mut budget, &mut work);
        }
        (!self.planned.is_empty()).then_some(work)
    }

    fn plan_running(&mut self, cache: &mut Cache, budget: &mut u32, work: &mut Work) -> bool {
        let mut preempted = false;
        let mut at = 0;
        while let Some(&id) = self.running.get(at) {
            let Some(sequence) = self.sequences.get_mut(&id) else { break };
            let count = sequence.left().min(*budget);
            if count == 0 {
                break;
            }
            if sequence.grow(cache, count, self.block_size) {
                sequence.add_to(work, count);
                self.planned.push((id, count));
                *budget -= count;
                at += 1;
                continue;
            }
            // No sequence after this place is planned yet, so the victim's blocks are not in use.
            preempted = true;
            let Some(victim) = self.running.pop() else { break };
            self.counts.preemptions += 1;
            if let Some(sequence) = self.sequences.get_mut(&victim) {
                sequence.give_up(cache);
            }
            self.waiting.push_front(victim);
        }
        preempted
    }

    fn admit(&mut self, cache: &mut Cache, profile: &Profile, budget: &mut u32, work: &mut Work) {
        while *budget > 0 && self.running.len() < profile.max_num_seqs {
            let Some(&id) = self.waiting.front() else { return };
            let Some(sequence) = self.sequences.get_mut(&id) else { return };
            // The last prompt token is always computed: its logits are what the first new token is drawn from.
            let known = sequence.total();
            let findable = (known as usize - 1) / self.block_size;
            let hashes = &sequence.hashes[..findable.min(sequence.hashes.len())];
            let (held, idle) = cache.lookup(hashes);
            let whole = (known as usize).div_ceil(self.block_size);
            if whole - held > cache.free().saturating_sub(idle) {
                return;
            }
            cache.take_held(&hashes[..held], &mut sequence.blocks);
            sequence.published = held;
            sequence.computed = (held * self.block_size) as u32;
            let count = (known - sequence.computed).min(*budget);
            sequence.grow(cache, count, self.block_size);
            if !sequence.preempted {
                sequence.cached = sequence.computed;
                self.counts.prefix_queries += u64::from(known);
                self.counts.prefix_hits += u64::from(sequence.computed);
            }
            sequence.add_to(work, count);
            self.planned.push((id, count));
            *budget -= count;
            self.waiting.pop_front();
            self.running.push(id);
        }
    }

    /// Ends the planned step: every sequence that is computed to its end gets one more token.
    pub fn finish(&mut self, cache: &mut Cache, out: &mut Vec<Token>) {
        let mut planned = std::mem::take(&mut self.planned);
        for (id, count) in planned.drain(..) {
            // A sequence that was aborted during the step is gone.
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            sequence.computed += count;
            if sequence.left() > 0 {
                continue;
            }
            let token = if sequence.outlined { 0 } else { tokens::generated(sequence.seed, sequence.generated) };
            let first =
                (sequence.generated == 0).then_some(First { cached: sequence.cached, arrived_ns: sequence.arrived_ns });
            if first.is_some() {
                self.counts.prompt += u64::from(sequence.prompt);
            }
            self.counts.generated += 1;
            sequence.generated += 1;
            if !sequence.outlined {
                sequence.push(token, self.block_size);
            }
            let finish = sequence.ends();
            out.push(Token { id, token, first, finish });
            if finish.is_some() {
                self.abort(cache, id);
            }
        }
        self.planned = planned;
    }
}

impl Sequence {
    /// Makes a sequence of which nothing is computed and no token known.
    fn new(now_ns: u64, prompt: u32, output: u32) -> Sequence {
        Sequence {
            prompt,
            output: output.max(1),
            natural_end: false,
            generated: 0,
            computed: 0,
            cached: 0,
            hashes: Vec::new(),
            tail: Vec::new(),
            outlined: false,
            blocks: Vec::new(),
            published: 0,
            salt: 0,
            seed: 0,
            arrived_ns: now_ns,
            preempted: false,
        }
    }

    fn total(&self) -> u32 {
        self.prompt + self.generated
    }

    fn left(&self) -> u32 {
        self.total() - self.computed
    }

    /// Returns why it ends with the token generated last, if it does.
    fn ends(&self) -> Option<Finish> {
        let why = if self.natural_end { Finish::Stop } else { Finish::Length };
        (self.generated >= self.output).then_some(why)
    }

    fn push(&mut self, token: u32, block_size: usize) {
        self.tail.push(token);
        if self.tail.len() == block_size {
            let parent = self.hashes.last().copied().unwrap_or(self.salt);
            self.hashes.push(tokens::chain(parent, &self.tail));
            self.tail.clear();
        }
    }

    /// Makes room for `count` more tokens and publishes the blocks that they fill: as in vLLM a sequence admitted to
    /// the same step may already share them.
    fn grow(&mut self, cache: &mut Cache, count: u32, block_size: usize) -> bool {
        let after = (self.computed + count) as usize;
        let missing = after.div_ceil(block_size).saturating_sub(self.blocks.len());
        if missing > 0 && !cache.take_free(missing, &mut self.blocks) {
            return false;
        }
        let full = after / block_size;
        for at in self.published..full {
            if let (Some(block), Some(hash)) = (self.blocks.get(at), self.hashes.get(at)) {
                cache.publish(*block, *hash);
            }
        }
        self.published = full;
        true
    }

    fn give_up(&mut self, cache: &mut Cache) {
        cache.release(&mut self.blocks, self.published);
        self.computed = 0;
        self.published = 0;
        self.preempted = true;
    }

    fn add_to(&self, work: &mut Work, count: u32) {
        if count == 1 && self.generated > 0 {
            work.decodes += 1;
            work.decode_kv_tokens += u64::from(self.total());
        } else {
            let (count, before) = (u64::from(count), u64::from(self.computed));
            work.prefill_tokens += count;
            work.prefill_pairs += count * before + count * count / 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(prompt: Vec<u32>, output: u32) -> Ask {
        Ask { prompt, output, natural_end: false, salt: 0, choice: 0 }
    }

    fn profile(blocks: u32) -> Profile {
        Profile {
            block_size: 4,
            kv_tokens: blocks * 4,
            max_num_seqs: 8,
            max_num_batched_tokens: 16,
            ..Profile::default()
        }
    }

    fn step(batch: &mut Batch, cache: &mut Cache, profile: &Profile) -> (Work, Vec<Token>) {
        let work = batch.plan(cache, profile).expect("work");
        let mut out = Vec::new();
        batch.finish(cache, &mut out);
        (work, out)
    }

    #[test]
    fn an_outline_that_comes_back_to_a_block_asks_for_no_less_than_nothing() {
        let (profile, mut cache) = (profile(4), Cache::new(4));
        let mut batch = Batch::new(4);
        let outline = |blocks: &[u64]| Outline { prompt: 4 * blocks.len() as u32, output: 1, blocks: blocks.into() };
        batch.submit_outline(0, &outline(&[1, 2]));
        step(&mut batch, &mut cache, &profile);
        batch.submit_outline(0, &outline(&[3, 4]));
        let held = batch.plan(&mut cache, &profile);
        batch.submit_outline(0, &outline(&[1, 1, 1, 1]));
        assert!(held.is_some() && batch.plan(&mut cache, &profile).is_some_and(|work| work.prefill_tokens > 0));
    }

    #[test]
    fn prompts_are_cut_by_the_budget_and_decodes_go_first() {
        let (profile, mut cache) = (profile(64), Cache::new(64));
        let mut batch = Batch::new(4);
        let short = batch.submit(0, &ask(vec![1, 2, 3], 5));
        assert_eq!(step(&mut batch, &mut cache, &profile).1.len(), 1);
        batch.submit(0, &ask((0..40).collect(), 1));
        let (work, out) = step(&mut batch, &mut cache, &profile);
        assert_eq!((work.decodes, work.prefill_tokens), (1, 15));
        assert_eq!(out.iter().map(|t| t.id).collect::<Vec<_>>(), [short]);
        let (work, _) = step(&mut batch, &mut cache, &profile);
        assert_eq!((work.decodes, work.prefill_tokens), (1, 15));
        assert_eq!(work.prefill_pairs, 15 * 15 + 112);
        let (work, out) = step(&mut batch, &mut cache, &profile);
        assert_eq!((work.decodes, work.prefill_tokens), (1, 10));
        assert!(out[1].finish == Some(Finish::Length) && out[1].first.is_some());
    }

    #[test]
    fn prefill_counts_chunks_under_way_until_the_first_token() {
        let (profile, mut cache) = (profile(64), Cache::new(64));
        let mut batch = Batch::new(4);
        batch.submit(0, &ask((0..39).collect(), 2));
        let mut seen = vec![batch.prefilled()];
        while batch.plan(&mut cache, &profile).is_some() {
            seen.push(batch.prefilled());
            batch.finish(&mut cache, &mut Vec::new());
        }
        assert_eq!(seen, [0, 16, 32, 39, 0]);
    }

    #[test]
    fn the_next_turn_finds_prompt_and_reply_but_computes_its_last_token() {
        let (profile, mut cache) = (profile(64), Cache::new(64));
        let mut batch = Batch::new(4);
        batch.submit(0, &ask(vec![9; 8], 5));
        let mut turn = vec![9; 8];
        while let Some(_work) = batch.plan(&mut cache, &profile) {
            let mut out = Vec::new();
            batch.finish(&mut cache, &mut out);
            turn.extend(out.iter().map(|t| t.token));
        }
        assert_eq!(turn.len(), 13);
        // 12 of 13 tokens are computed: the last one generated never was.
        assert_eq!(cache.free(), 64);
        batch.submit(0, &ask(turn.clone(), 1));
        let (work, out) = step(&mut batch, &mut cache, &profile);
        assert_eq!(out[0].first.unwrap().cached, 12);
        assert_eq!(work.prefill_tokens, 1);
        turn.truncate(12);
        batch.submit(0, &ask(turn, 1));
        let (work, out) = step(&mut batch, &mut cache, &profile);
        assert_eq!(out[0].first.unwrap().cached, 8, "a whole prompt is never served from the cache");
        assert_eq!(work.prefill_tokens, 4);
        assert_eq!((batch.counts.prefix_queries, batch.counts.prefix_hits), (33, 20));
    }

    #[test]
    fn a_full_cache_preempts_the_last_and_everyone_ends() {
        let (profile, mut cache) = (profile(6), Cache::new(6));
        let mut batch = Batch::new(4);
        let first = batch.submit(0, &ask(vec![1; 8], 12));
        let second = batch.submit(0, &ask(vec![2; 8], 12));
        let mut ended = Vec::new();
        let mut tokens = 0;
        while batch.plan(&mut cache, &profile).is_some() {
            let mut out = Vec::new();
            batch.finish(&mut cache, &mut out);
            tokens += out.len();
            ended.extend(out.iter().filter(|t| t.finish.is_some()).map(|t| t.id));
        }
        assert_eq!(ended, [first, second]);
        assert_eq!(tokens, 24);
        assert!(batch.counts.preemptions > 0);
        assert_eq!(cache.free(), 6);
    }

    #[test]
    fn an_abort_gives_blocks_back_in_any_state() {
        let (profile, mut cache) = (profile(64), Cache::new(64));
        let mut batch = Batch::new(4);
        let ids: Vec<u64> = (0..12).map(|i| batch.submit(0, &ask(vec![i; 6], 50))).collect();
        batch.plan(&mut cache, &profile);
        for id in ids {
            assert!(batch.abort(&mut cache, id));
            assert!(!batch.abort(&mut cache, id));
        }
        let mut out = Vec::new();
        batch.finish(&mut cache, &mut out);
        assert!(out.is_empty());
        assert_eq!((cache.free(), batch.running(), batch.waiting()), (64, 0, 0));
        assert!(batch.plan(&mut cache, &profile).is_none());
    }

    /// Three turns of a conversation among other prompts, once by tokens and once by their hashes alone.
    #[test]
    fn outlines_are_computed_as_their_tokens_would_be() {
        let profile = profile(14);
        let prompts: Vec<Vec<u32>> = vec![
            vec![5; 11],
            (0..21).collect(),
            vec![5; 11],
            vec![8; 16],
            vec![9; 3],
            (0..37).collect(),
            vec![5; 11],
            (0..30).collect(),
        ];
        let chained = |prompt: &[u32]| {
            let blocks = prompt.chunks_exact(4).scan(0, |parent, block| {
                *parent = tokens::chain(*parent, block);
                Some(*parent)
            });
            blocks.collect::<Arc<[u64]>>()
        };
        let run = |replies: Option<&[Vec<u32>]>| {
            let (mut batch, mut cache) = (Batch::new(4), Cache::new(14));
            let (mut seen, mut said) = (Vec::new(), vec![Vec::new(); prompts.len()]);
            for (turn, prompt) in prompts.iter().enumerate() {
                let output = 3 + turn as u32;
                match replies {
                    Some(replies) => {
                        let blocks = chained(&[&prompt[..], &replies[turn]].concat());
                        batch.submit_outline(0, &Outline { prompt: prompt.len() as u32, output, blocks })
                    }
                    None => batch.submit(0, &ask(prompt.clone(), output)),
                };
                while batch.waiting() + batch.running() > turn % 2 {
                    let work = batch.plan(&mut cache, &profile);
                    let mut out = Vec::new();
                    batch.finish(&mut cache, &mut out);
                    out.iter().for_each(|token| said[token.id as usize - 1].push(token.token));
                    let tokens: Vec<_> = out.iter().map(|t| (t.id, t.first, t.finish)).collect();
                    seen.push((work, tokens, cache.free()));
                }
            }
            ((seen, batch.counts.prefix_hits, batch.counts.preemptions), said)
        };
        let (by_tokens, replies) = run(None);
        let (by_hashes, _) = run(Some(&replies));
        assert!(by_tokens.1 > 0 && by_tokens.2 > 0, "no hit or no preemption: {by_tokens:?}");
        assert_eq!(by_tokens, by_hashes);
    }

    #[test]
    fn salts_separate() {
        let (profile, mut cache) = (profile(64), Cache::new(64));
        let mut batch = Batch::new(4);
        batch.submit(0, &ask(vec![3; 9], 1));
        step(&mut batch, &mut cache, &profile);
        batch.submit(0, &Ask { salt: 77, ..ask(vec![3; 9], 1) });
        let (_, out) = step(&mut batch, &mut cache, &profile);
        assert_eq!(out[0].first.unwrap().cached, 0);
    }
}
