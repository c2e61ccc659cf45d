//! What a choice by tokens knows of a prompt.

use super::event::Context;
use super::{Exchange, Hashed, Lender};
use crate::fleet::Loads;
use crate::http::BodyLength;
use crate::index::Matches;
use crate::limits::{BLOCK_BYTES, STEP_BYTES, TOKENS_MAX};
use crate::policy::{Policy, Prompt, Tokens};
use crate::prefix;
use crate::scan::{Api, Facts};
use crate::snapshot::{Pool, PoolId, Snapshot};

/// Canonical bytes of a token id.
const ID_BYTES: f32 = 4.0;

/// A prompt that was looked up: its chain and matches are the lender's.
#[derive(Clone, Copy, Debug, Default)]
pub struct LookedUp {
    tokens: u32,
    pub(super) block_tokens: f32,
    tie: u64,
    /// Token ids of a batch's other prompts: they are computed, and not in the chain.
    ids_beside: u32,
    /// Tokens of its answer, as far as it bounds them.
    answer: u32,
    /// Its engine computes several prompts for it, of which the chain says where the first one is.
    pub(super) batch: bool,
    /// Its engine counts it as several requests.
    pub(super) several: bool,
    /// Text for which what is no text counts: it is to teach nothing of how long tokens are.
    pub(super) no_text_bytes: u64,
    /// It is text and nothing else, and all of it was read.
    pub(super) text_alone: bool,
    /// Its chain is of what its engine writes; else of what the client wrote.
    pub(super) rendered: bool,
    /// Its engine computes all of it, whatever is held there: nobody holds any, for the choice and for what is thought
    /// to come of it.
    recomputed: bool,
    /// Its reply does not say what its engine's cache held, and that is no zero.
    pub(super) silent: bool,
}

impl LookedUp {
    /// For the policy. `matches` were taken from the lender.
    pub fn prompt(self, matches: &Matches) -> Prompt<'_> {
        Prompt { tokens: self.tokens, block_tokens: self.block_tokens, matches, tie: self.tie }
    }

    /// See [`crate::policy::Request::context`]: an engine refuses a prompt whose answer may not fit, too.
    pub fn context(self) -> u32 {
        if self.batch { 0 } else { self.tokens.saturating_add(self.answer) }
    }
}

/// Cuts the prompt into its chain, the lender's, and answers the key of its prefix: the whole conversation would be
/// another one each turn. `None`: it is shorter than a block.
pub fn cut(facts: &Facts, pool: &Pool, lender: &mut Lender) -> Option<u64> {
    facts.chain(prefix::root(pool.root.as_bytes(), facts.salt()), &mut lender.chain);
    lender.whole.clear();
    let blocks = (pool.settings.prefix_bytes as usize / BLOCK_BYTES).max(1).min(lender.chain.len());
    lender.chain.get(..blocks)?.last().copied()
}

/// Of a prompt that was cut, what its facts do not tell.
#[derive(Clone, Copy, Debug)]
pub struct AsRead {
    /// Of its prefix: says where it goes among equals if it is shorter than a block.
    pub key: Option<u64>,
    /// What of it may come behind what was read.
    pub rest: Rest,
    /// Its bytes as its engine writes it, where it was cut from those; of a batch the first prompt's.
    pub rendered: Option<u64>,
}

/// See [`AsRead::rest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Nothing.
    None,
    /// Nobody said how much.
    Unknown,
    /// So many bytes at most.
    Bytes(u64),
}

/// Looks up who holds how much of the prompt that was cut. `None`: nothing can be known of it, and another policy has
/// to choose.
pub fn look_up(
    facts: &Facts,
    as_read: AsRead,
    pool: &Pool,
    snapshot: &Snapshot,
    lender: &mut Lender,
) -> Option<LookedUp> {
    let AsRead { key, rest, rendered } = as_read;
    let counts = facts.counts();
    let beside = facts.beside().unwrap_or_default();
    let first = counts.less(beside).text_bytes;
    let unread = match rest {
        // What comes behind an image, or the beginning of one, is mostly more of that.
        Rest::Bytes(rest) if counts.media == 0 => rest,
        Rest::Bytes(_) | Rest::Unknown | Rest::None => 0,
    };
    lender.prompt_bytes = rendered.unwrap_or(0).max(first) + beside.text_bytes + unread;
    let is_text = counts.ids == 0 && counts.media == 0 && !facts.compares();
    // The turns before a stored response are in its engine's count of the prompt, and not in the body.
    let text_alone = rest == Rest::None && is_text && facts.previous.is_none();
    let text = lender.prompt_bytes as f64 / f64::from(pool.token_bytes);
    let images = counts.media.saturating_mul(pool.settings.image_tokens.into());
    let no_text = counts.ids.saturating_add(images);
    let tokens = (text as u64).saturating_add(no_text);
    let no_text_bytes = (no_text as f64 * f64::from(pool.token_bytes)) as u64;
    let token_bytes = match (counts.text_bytes, counts.media) {
        // Ids are tokens whatever text they stand for.
        (0, 0) => ID_BYTES,
        (_, 0) => pool.token_bytes,
        // Where media are among what is held of it is not known: a block of it is as much as any other.
        (text, _) => counts.chained_bytes() as f32 / (text as f32 / pool.token_bytes + images as f32),
    };
    let tokens = tokens.min(TOKENS_MAX.into()) as u32;
    let block_tokens = BLOCK_BYTES as f32 / token_bytes;
    let ids_beside = beside.ids.min(TOKENS_MAX.into()) as u32;
    let (batch, rendered) = (facts.beside().is_some(), rendered.is_some());
    let recomputed = facts.recomputes();
    let several = batch || facts.choices.is_some_and(|choices| choices > 1);
    let looked_up = LookedUp {
        tokens,
        block_tokens,
        tie: key.unwrap_or(0),
        ids_beside,
        answer: facts.max_tokens().unwrap_or(0).min(TOKENS_MAX.into()) as u32,
        batch,
        several,
        no_text_bytes,
        text_alone,
        rendered,
        recomputed,
        // As vLLM 0.32 leaves it out, whatever was found.
        silent: facts.beam_search,
    };
    look_up_again(looked_up, pool, snapshot, lender)
}

/// The same of a prompt whose length is known; its chain is the lender's.
pub fn look_up_again(prompt: LookedUp, pool: &Pool, snapshot: &Snapshot, lender: &mut Lender) -> Option<LookedUp> {
    let index = snapshot.index.as_ref().filter(|_| pool.settings.counts_tokens())?;
    let matches = lender.matches.get_or_insert_default();
    if prompt.recomputed {
        index.longest(&[], pool.eligible().ids(), matches);
    } else if prompt.rendered {
        index.longest_of_both(&lender.chain, &lender.steps, &lender.whole, pool.eligible().ids(), matches);
    } else {
        index.longest(&lender.chain, pool.eligible().ids(), matches);
    }
    let found = pool.eligible().most(matches);
    let tokens = match found.tokens {
        // What is held of it is known; what comes behind that is as long as such text mostly is.
        Some(held) => {
            let bytes = u64::from(found.blocks) * BLOCK_BYTES as u64 + u64::from(found.steps) * STEP_BYTES as u64;
            let rest = lender.prompt_bytes.saturating_sub(bytes) as f64 / f64::from(pool.token_bytes);
            (u64::from(held) + rest as u64 + u64::from(prompt.ids_beside)).min(TOKENS_MAX.into()) as u32
        }
        None => prompt.tokens,
    };
    // Longer ones are refused; of a batch each is by itself.
    let tokens = if prompt.batch { tokens } else { tokens.min(pool.context) };
    let behind = |chain: &[u64]| chain.get(found.blocks as usize).copied();
    // Where all that is known is held, others that begin so are to go elsewhere.
    let tie = behind(&lender.chain).or_else(|| behind(&lender.whole)).or(lender.chain.last().copied());
    Some(LookedUp { tokens, tie: tie.unwrap_or(prompt.tie), ..prompt })
}

impl Exchange {
    /// Where tokens count: what is known of the prompt.
    pub(super) fn look_up(&mut self, pool: &Pool, cx: &mut Context<'_>) -> Option<LookedUp> {
        let plan = &cx.snapshot.plan;
        let scan = self.upload.scan.as_ref().filter(|_| plan.chain && !self.upload.unscannable)?;
        let facts = scan.facts();
        // Who tells of a prompt alone computes nothing and keeps nothing.
        if !facts.has_prefix() || self.asked.api == Api::Tokenize {
            return None;
        }
        let rest = match self.asked.framing.body {
            _ if scan.is_over() => Rest::None,
            // Too long to be held: the choice does not wait for the rest.
            BodyLength::Length(len) => Rest::Bytes(len.saturating_sub(scan.read())),
            _ => Rest::Unknown,
        };
        // A further try may read less of it.
        self.asked.stream |= facts.stream == Some(true);
        self.asked.asker.says(facts.priority);
        let key = |prefix| prefix::key(pool.root.as_bytes(), facts.salt(), &prefix);
        let by_chain = cut(facts, pool, cx.lender).or_else(|| facts.prefix().map(key));
        let key_of = |plainly: bool| if plainly { facts.plain_prefix().map(key) } else { by_chain };
        let is_plain = |policy: Policy| !policy.counts_tokens();
        let shadows_plainly = pool.settings.shadow_policy.0.is_some_and(is_plain);
        self.key = key_of(plan.plain.chosen && is_plain(pool.settings.policy));
        self.shadow_key = Hashed::of(key_of(plan.plain.shadow && shadows_plainly));
        self.draft.cut(&cx.lender.chain, cx.rules.access_chain);
        let chained_bytes = facts.counts().less(facts.beside().unwrap_or_default()).chained_bytes();
        let rendered = self.rendered(chained_bytes, pool, cx);
        let facts = self.upload.scan.as_ref()?.facts();
        look_up(facts, AsRead { key: by_chain, rest, rendered }, pool, cx.snapshot, cx.lender)
    }
}

/// What a prompt and the answer that is expected of it occupy until its end.
pub(super) fn occupied(tokens: &Tokens, pool: PoolId, loads: &Loads) -> u32 {
    (tokens.held + tokens.new).saturating_add(loads.mean_answer(pool)).min(TOKENS_MAX)
}
