//! What a choice by tokens knows of a prompt, and what it leaves for the next one.

use super::event::{Context, Lender};
use super::usage::Usage;
use super::{Exchange, Waiting};
use crate::counters::stats::Event as Count;
use crate::counters::{Admission, Prediction};
use crate::fleet::{EndpointId, Loads, Method, Rung};
use crate::http::BodyLength;
use crate::index::{Matches, Missed};
use crate::limits::{BLOCK_BYTES, STEP_BYTES, TOKENS_MAX};
use crate::policy::{Prompt, Tokens};
use crate::prefix;
use crate::scan::Facts;
use crate::snapshot::{Pool, PoolId, Snapshot};

/// Canonical bytes of a token id.
const ID_BYTES: f32 = 4.0;

/// A prompt that was looked up: its chain and matches are the lender's.
#[derive(Clone, Copy, Debug, Default)]
pub struct LookedUp {
    tokens: u32,
    block_tokens: f32,
    tie: u64,
    /// It is text and nothing else, and all of it was read.
    text_alone: bool,
    /// Its chain is of what its engine writes; else of what the client wrote.
    rendered: bool,
}

impl LookedUp {
    /// For the policy. `matches` were taken from the lender.
    pub fn prompt(self, matches: &Matches) -> Prompt<'_> {
        Prompt { tokens: self.tokens, block_tokens: self.block_tokens, matches, tie: self.tie }
    }
}

/// Cuts the prompt into its chain, the lender's, and answers the key of its prefix: the whole conversation would be another one
/// each turn. `None`: it is shorter than a block.
pub fn cut(facts: &Facts, pool: &Pool, lender: &mut Lender) -> Option<u64> {
    facts.chain(prefix::root(pool.name.as_bytes(), facts.cache_salt), &mut lender.chain);
    let blocks = (pool.settings.prefix_bytes as usize / BLOCK_BYTES).max(1).min(lender.chain.len());
    lender.chain.get(..blocks)?.last().copied()
}

/// Looks up who holds how much of the prompt that was cut, of which `beyond` bytes were not read. `rendered`: its bytes as its engine writes
/// it, where it was cut from those. `None`: nothing can be known of it, and another policy has to choose.
pub fn look_up(
    facts: &Facts,
    beyond: u64,
    rendered: Option<u64>,
    pool: &Pool,
    snapshot: &Snapshot,
    lender: &mut Lender,
) -> Option<LookedUp> {
    let counts = facts.counts();
    lender.prompt_bytes = rendered.unwrap_or(0).max(counts.text_bytes + beyond);
    let text_alone = beyond == 0 && counts.ids == 0 && counts.media == 0;
    let text = lender.prompt_bytes as f64 / f64::from(pool.token_bytes);
    let images = counts.media.saturating_mul(pool.settings.image_tokens.into());
    let tokens = (text as u64).saturating_add(counts.ids).saturating_add(images);
    // Ids are tokens whatever text they stand for.
    let token_bytes = if counts.text_bytes == 0 { ID_BYTES } else { pool.token_bytes };
    let tokens = tokens.min(TOKENS_MAX.into()) as u32;
    let block_tokens = BLOCK_BYTES as f32 / token_bytes;
    let rendered = rendered.is_some();
    look_up_again(LookedUp { tokens, block_tokens, tie: 0, text_alone, rendered }, pool, snapshot, lender)
}

/// The same of a prompt whose length is known; its chain is the lender's.
pub fn look_up_again(prompt: LookedUp, pool: &Pool, snapshot: &Snapshot, lender: &mut Lender) -> Option<LookedUp> {
    let index = snapshot.index.as_ref().filter(|_| pool.settings.counts_tokens())?;
    let matches = lender.matches.get_or_insert_default();
    if prompt.rendered {
        index.longest_in_steps(&lender.chain, &lender.steps, pool.eligible().ids(), matches);
    } else {
        index.longest(&lender.chain, pool.eligible().ids(), matches);
    }
    let found = pool.eligible().most(matches);
    let tokens = match found.tokens {
        // What is held of it is known; what comes behind that is as long as such text mostly is.
        Some(held) => {
            let bytes = u64::from(found.blocks) * BLOCK_BYTES as u64 + u64::from(found.steps) * STEP_BYTES as u64;
            let rest = lender.prompt_bytes.saturating_sub(bytes) as f64 / f64::from(pool.token_bytes);
            (u64::from(held) + rest as u64).min(TOKENS_MAX.into()) as u32
        }
        None => prompt.tokens,
    };
    let tie = lender.chain.get(found.blocks as usize).or(lender.chain.last()).copied();
    Some(LookedUp { tokens, tie: tie.unwrap_or(0), ..prompt })
}

impl Exchange {
    /// Where tokens count: what is known of the prompt.
    pub(super) fn look_up(&mut self, pool: &Pool, cx: &mut Context<'_>) -> Option<LookedUp> {
        let plan = &cx.snapshot.plan;
        let facts = self.scan.as_ref().filter(|_| plan.chain && !self.unscannable)?.facts();
        if !facts.has_prefix() {
            return None;
        }
        let beyond = match self.asked.framing.body {
            // Too long to be held: the choice does not wait for the rest.
            BodyLength::Length(len) if !self.body.done() => len.saturating_sub(cx.rules.limits.hold_bytes as u64),
            _ => 0,
        };
        self.asked.stream = facts.stream == Some(true);
        self.asked.asker.says(facts.priority);
        let key = |prefix| prefix::key(pool.name.as_bytes(), facts.cache_salt, &prefix);
        let by_chain = cut(facts, pool, cx.lender).or_else(|| facts.prefix().map(key));
        let key_of = |plainly: bool| if plainly { facts.plain_prefix().map(key) } else { by_chain };
        (self.key, self.shadow_key) = (key_of(plan.plain.chosen), key_of(plan.plain.shadow));
        self.draft.cut(&cx.lender.chain, cx.rules.access_chain);
        let text_bytes = facts.counts().text_bytes;
        let rendered = self.rendered(text_bytes, pool, cx);
        let facts = self.scan.as_ref()?.facts();
        look_up(facts, beyond, rendered, pool, cx.snapshot, cx.lender)
    }

    /// The choice stands, whatever it was made by, and tokens are known: what the endpoint is to compute is counted, and that it will hold the prompt is noted. Answers
    /// what it is thought to hold by now.
    pub(super) fn charge_tokens(
        &mut self,
        tokens: Option<Tokens>,
        looked_up: Option<LookedUp>,
        admission: &mut Admission,
        cx: &mut Context<'_>,
    ) -> Option<Prediction> {
        let tokens = tokens?;
        let Tokens { held, new, predicted } = tokens;
        admission.computes(new);
        admission.prompted(cx.lender.prompt_bytes);
        cx.stats.add(Count::PromptTokensHeld, held.into());
        cx.stats.add(Count::PromptTokensNew, new.into());
        if let Some(pool) = self.pool {
            admission.occupies(occupied(&tokens, pool, cx.counters.loads()));
            cx.counters.prompt(pool.0, held + new, held);
        }
        let endpoint = admission.endpoint();
        let LookedUp { text_alone, rendered, .. } = looked_up.unwrap_or_default();
        let rung = cx.snapshot.endpoint(endpoint).map(|endpoint| endpoint.rung);
        let is_exact = rendered && rung.is_some_and(Rung::is_exact);
        // An engine that tells what it holds tells of answers too.
        let answer_blocks = if is_exact { 0 } else { self.answer_blocks(cx) };
        note(endpoint, rendered, answer_blocks, cx);
        let method = if is_exact { Method::Precise } else { Method::Warm };
        let text_bytes = if text_alone { cx.lender.prompt_bytes } else { 0 };
        let prediction = Prediction { method, tokens: held + new, held: predicted, text_bytes };
        cx.counters.predictions().asked(endpoint.slot, &prediction);
        Some(prediction)
    }

    /// Blocks that the answer will probably take in its engine's cache, with what of the prompt is no whole block.
    fn answer_blocks(&self, cx: &Context<'_>) -> usize {
        let Some(pool) = self.pool.and_then(|pool| cx.snapshot.pools.get(pool.0 as usize)) else { return 0 };
        let answer = f64::from(cx.counters.loads().mean_answer(pool.id.0)) * f64::from(pool.token_bytes);
        let in_blocks = (cx.lender.chain.len() * BLOCK_BYTES) as u64;
        (cx.lender.prompt_bytes.saturating_sub(in_blocks) as f64 + answer) as usize / BLOCK_BYTES
    }

    /// The reply told how many tokens there were.
    pub(super) fn tokens_told(&mut self, usage: Option<Usage>) {
        // Without a body nothing was asked for: `GET /v1/responses/ID` tells again what was told before.
        let Some(usage) = usage.filter(|_| self.body_bytes > 0) else { return };
        self.prompt_tokens = usage.prompt.or(self.prompt_tokens);
        self.cached_tokens = usage.cached.or(self.cached_tokens);
        self.completion_tokens = usage.completion.or(self.completion_tokens);
    }

    /// At the end: what the reply told is counted, and compared with what was thought.
    pub(super) fn count_told(&self, cx: &Context<'_>) {
        let Some(prompt) = self.prompt_tokens else { return };
        cx.stats.add(Count::ToldPrompt, prompt.into());
        cx.stats.add(Count::ToldCached, self.cached_tokens.unwrap_or(0).into());
        cx.stats.add(Count::ToldCompletion, self.completion_tokens.unwrap_or(0).into());
        if let (Some(pool), Some(answer)) = (self.pool, self.completion_tokens) {
            cx.counters.answer(pool.0, answer);
        }
        if let Some(leg) = &self.leg
            && let Some(prediction) = &leg.prediction
        {
            let slot = leg.admission.endpoint().slot;
            cx.counters.predictions().told(slot, prediction, prompt, self.cached_tokens);
        }
    }

    /// For the reply's head; of a request for no stream, first for as long as its prompt may take to be computed.
    pub(super) fn wait_for_head(&mut self, cx: &Context<'_>) {
        let latest = self.sent + cx.rules.limits.reply_head_timeout_ms * 1_000;
        let computed = self.prefill_micros().map(|prefill| (self.sent + prefill).max(cx.now + 1));
        self.deadline = match computed.filter(|computed| *computed < latest) {
            Some(computed) => Some((computed, Waiting::Prefill)),
            None => Some((latest, Waiting::ReplyHead)),
        };
    }

    /// How long its prompt may take to be computed, where no first token will tell.
    pub(super) fn prefill_micros(&self) -> Option<u64> {
        let leg = self.leg.as_ref().filter(|_| !self.asked.stream)?;
        Some(leg.admission.prefill_micros()).filter(|prefill| *prefill > 0)
    }

    /// The first token of a stream is there.
    pub(super) fn first_token_came(&mut self, cx: &Context<'_>) {
        if let Some(leg) = &mut self.leg {
            leg.admission.timed(cx.now - self.sent);
        }
    }

    /// The engine has computed the prompt: the first token is there, or the head of a reply that shows none.
    pub(super) fn prompt_computed(&mut self) {
        if let Some(leg) = &mut self.leg {
            leg.admission.computed();
        }
    }
}

/// What a prompt and the answer that is expected of it occupy until its end.
pub(super) fn occupied(tokens: &Tokens, pool: PoolId, loads: &Loads) -> u32 {
    (tokens.held + tokens.new).saturating_add(loads.mean_answer(pool.0)).min(TOKENS_MAX)
}

/// The endpoint will hold this prompt and the answer to it. What an engine tells itself holds only until that shows.
fn note(endpoint: EndpointId, rendered: bool, answer_blocks: usize, cx: &mut Context<'_>) {
    let Some(index) = &cx.snapshot.index else { return };
    let noted = index.ask(&mut cx.lender.chain, answer_blocks, endpoint, rendered);
    match noted {
        Ok(_) => {}
        Err(Missed::Busy) => cx.stats.count(Count::IndexBusy),
        // Beyond the index, or taken out since this turn's snapshot.
        Err(Missed::Stranger | Missed::Orphan) => cx.stats.count(Count::IndexStranger),
    }
}
