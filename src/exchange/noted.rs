//! What is counted and learnt of a prompt that goes to an endpoint: what it costs there, and that it will be held, as
//! the index notes; and what of that is taken back where nothing was computed.

use std::num::NonZeroU64;

use super::event::{Context, Micros};
use super::kept::Kept;
use super::shown::Shown;
use super::warm::{self, LookedUp};
use super::{Exchange, Leg, Lender};
use crate::counters::stats::{Count, RequestKey, ShardStats, Timing, TokenCount};
use crate::counters::{Admission, Prediction};
use crate::fleet::{EndpointId, Method, Rung};
use crate::index::{Index, Inserted, Missed};
use crate::limits::BLOCK_BYTES;
use crate::policy::Tokens;
use crate::scan::Api;
use crate::snapshot::PoolId;

/// An estimate (bytes by a pool's mean bytes per token) may be this many times too long before a prompt is taken to be
/// longer than its model's context.
const GUESS_FACTOR: f64 = 2.0;

/// The blocks of a prompt that were not held there before.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    /// The first one of the rendered chain, and of the plain one if kept beside it. A block whose hash is 0 is left
    /// out.
    first: [Option<NonZeroU64>; 2],
    /// The last one, in the last of these chains that has any.
    last: u64,
}

impl News {
    fn of([part, whole]: [Option<(NonZeroU64, u64)>; 2]) -> News {
        let last = whole.or(part).map_or(0, |(_, last)| last);
        News { first: [part, whole].map(|chain| chain.map(|(first, _)| first)), last }
    }

    /// By chain, the first and as far as it is known the last.
    fn lines(self) -> impl Iterator<Item = (u64, Option<u64>)> {
        let ([part, whole], last) = (self.first, self.last);
        let lines =
            [part.map(|first| (first, whole.is_none().then_some(last))), whole.map(|first| (first, Some(last)))];
        lines.into_iter().flatten().map(|(first, last)| (first.get(), last))
    }
}

/// What was thought of a prompt's endpoint, and what was noted there behind the choice.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) prediction: Prediction,
    /// Until it is known whether it is computed.
    new: News,
    demand: Demand,
    /// A stranger's prompt, until its engine has judged it.
    pub(super) kept: Option<Box<Kept>>,
}

/// What a prompt asks of its endpoint.
#[derive(Clone, Copy, Debug)]
struct Demand {
    /// Of the tokens that were predicted, those that it is believed to hold.
    held: u32,
    /// Length of the whole prompt in bytes; what is no text is in it by [`LookedUp::no_text_bytes`].
    bytes: u64,
    stage: Stage,
}

/// How far a request is on its way to its engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It was chosen for before it was read to its end, and nothing of its demand counts yet: nothing is computed
    /// before all of it was sent, and it may be long in coming, or never come.
    Comes,
    /// Its demand counts.
    There,
    Sent,
}

impl Noted {
    /// Nothing is noted in the index yet.
    fn of(prediction: Prediction, demand: Demand) -> Noted {
        Noted { prediction, new: News::default(), demand, kept: None }
    }

    fn tokens(&self) -> Tokens {
        let (Prediction { tokens, held: predicted, .. }, held) = (self.prediction, self.demand.held);
        Tokens { held, new: tokens - held, predicted }
    }

    fn count(&self, pool: Option<PoolId>, admission: &mut Admission, cx: &Context<'_>) {
        let tokens = self.tokens();
        admission.computes(tokens.new);
        let row = pool.map_or(RequestKey::NONE, |pool| pool.0);
        cx.stats.count_tokens(row, TokenCount::Held, tokens.held);
        cx.stats.count_tokens(row, TokenCount::New, tokens.new);
        if let Some(pool) = pool {
            admission.occupies(warm::occupied(&tokens, pool, cx.counters.loads()));
        }
    }

    fn moves_means(&self, pool: Option<PoolId>, cx: &Context<'_>) {
        if let Some(pool) = pool {
            cx.counters.prompt(pool, self.prediction.tokens, self.demand.held);
        }
    }
}

impl Exchange {
    /// The choice stands, whatever it was made by, and tokens are known: what the endpoint is to compute is counted,
    /// where all of it is there, and what there is to learn is learnt. Answers what it is thought to hold by now.
    pub(super) fn charge_tokens(
        &mut self,
        tokens: Option<Tokens>,
        looked_up: Option<LookedUp>,
        admission: &mut Admission,
        cx: &mut Context<'_>,
    ) -> Option<Noted> {
        let tokens = tokens?;
        let Tokens { held, new, predicted } = tokens;
        let endpoint = admission.endpoint();
        let looked_up = looked_up.unwrap_or_default();
        let LookedUp { text_alone, no_text_bytes, batch, several, silent, .. } = looked_up;
        if several {
            admission.counts_several();
        }
        let stage = if self.upload.body.done() { Stage::There } else { Stage::Comes };
        let demand = Demand { held, bytes: cx.lender.prompt_bytes + no_text_bytes, stage };
        let method = if is_exact(endpoint, looked_up, cx) { Method::Precise } else { Method::Warm };
        let text_bytes = if text_alone { cx.lender.prompt_bytes } else { 0 };
        let omits_zero = !silent && matches!(self.asked.api, Api::Chat | Api::Completions | Api::Messages);
        let prediction = Prediction { method, tokens: held + new, held: predicted, text_bytes, batch, omits_zero };
        let mut noted = Noted::of(prediction, demand);
        if stage == Stage::There {
            noted.count(self.pool, admission, cx);
        }
        match self.stranger {
            true => noted.kept = self.kept(looked_up, cx),
            false => self.learn(&mut noted, endpoint, Some(looked_up), cx),
        }
        Some(noted)
    }

    /// That this endpoint is asked for the prompt, how long that is, and, where it was looked up, that it will be held
    /// there.
    pub(super) fn learn(
        &self,
        noted: &mut Noted,
        endpoint: EndpointId,
        looked_up: Option<LookedUp>,
        cx: &mut Context<'_>,
    ) {
        if noted.demand.stage != Stage::Comes {
            noted.moves_means(self.pool, cx);
        }
        if let Some(looked_up) = looked_up {
            noted.new = self.note_prompt(endpoint, looked_up, is_exact(endpoint, looked_up, cx), cx);
        }
        cx.counters.predictions().asked(endpoint.slot, &noted.prediction);
    }

    /// All of the request was sent: from now on its demand counts at the endpoint.
    pub(super) fn count_sent(&mut self, cx: &mut Context<'_>) {
        let Some(Leg { admission, noted: Some(noted), .. }) = &mut self.leg else { return };
        let before = std::mem::replace(&mut noted.demand.stage, Stage::Sent);
        if before == Stage::Comes {
            noted.count(self.pool, admission, cx);
            if !self.stranger {
                noted.moves_means(self.pool, cx);
            }
        }
        if before != Stage::Sent {
            admission.prompted(noted.demand.bytes);
        }
    }

    /// The first token of a stream was there at this time. Of a batch it is that of one prompt, and says nothing of how
    /// fast all were computed; nor does one that waited for an image to be fetched.
    pub(super) fn first_token_came(&mut self, at: Micros, cx: &mut Context<'_>) {
        self.reply.shown = Shown::Answer;
        let took = at.saturating_sub(self.sent);
        match &mut self.leg {
            Some(Leg { admission, noted: Some(noted), .. }) if noted.prediction.batch || self.asked.media => {
                admission.computed();
            }
            Some(leg) => leg.admission.timed(took),
            None => {}
        }
        if let Some(pool) = self.pool {
            cx.stats.observe(pool.0, Timing::FirstToken, at.saturating_sub(self.whole));
            self.begins_to_give(took, cx);
        }
    }

    /// A stream is opened: with its first token, or its engine has broken it off before that.
    pub(super) fn prompt_may_be_computed(&mut self) {
        if let Some(leg) = &mut self.leg {
            leg.admission.may_be_computed();
        }
    }

    /// The engine has computed the prompt: the first token is there, or the head of a reply that shows none.
    pub(super) fn prompt_computed(&mut self) {
        if let Some(leg) = &mut self.leg {
            leg.admission.computed();
        }
    }

    /// The engine has computed nothing of it, or not all: it refused it, did not get all of it, or was left by its
    /// client. What was noted at its endpoint is not there. Where another request with the same beginning went there
    /// meanwhile, too little is believed until the next.
    pub(super) fn was_not_computed(&mut self, cx: &Context<'_>) {
        self.takes_back(|index, first, _, endpoint| index.take_back(first, endpoint), cx);
    }

    fn takes_back(
        &mut self,
        take_back: fn(&Index, u64, Option<u64>, EndpointId) -> Result<u32, Missed>,
        cx: &Context<'_>,
    ) {
        let Some(Leg { admission, noted: Some(noted), .. }) = &mut self.leg else { return };
        if noted.demand.stage == Stage::Sent {
            admission.unprompted(noted.demand.bytes);
            noted.demand.stage = Stage::There;
        }
        let Some(index) = cx.snapshot.index.as_ref() else { return };
        for (first, last) in std::mem::take(&mut noted.new).lines() {
            if take_back(index, first, last, admission.endpoint()) == Err(Missed::Busy) {
                cx.stats.count(Count::IndexBusy);
            }
        }
    }

    /// At the end: a prompt that its engine did not get whole was not computed.
    pub(super) fn was_not_sent(&mut self, cx: &Context<'_>) {
        let noted = self.leg.as_ref().and_then(|leg| leg.noted.as_ref());
        if noted.is_some_and(|noted| noted.demand.stage != Stage::Sent) {
            self.was_not_computed(cx);
        }
    }

    /// Its client leaves, and engines abort what nobody waits for. A prompt with pending tokens counts as not computed:
    /// no first token came, or, without a stream, so many tokens take longer there. In a busy engine's queue nothing of
    /// it was computed; if it were believed held, the next try would be sent back there and count as no work. The
    /// price: of a prompt that was begun, the computed part is forgotten too, and a warm cache is once taken for a cold
    /// one. What several later prompts build on is left: the first of them computes it.
    pub(super) fn was_left_uncomputed(&mut self, cx: &Context<'_>) {
        if self.leg.as_ref().is_some_and(|leg| leg.admission.prefill_micros() > 0) {
            self.takes_back(Index::take_back_line, cx);
        }
    }

    /// The endpoint will hold this prompt and its answer. For an engine that tells its events this is a promise: it
    /// ends when they should have come and is not taken back; the client's own form of the prompt, of which events say
    /// nothing, stays until its room is needed. Answers what is to be taken back if the prompt is not computed.
    fn note_prompt(
        &self,
        endpoint: EndpointId,
        LookedUp { block_tokens, rendered, .. }: LookedUp,
        is_exact: bool,
        cx: &mut Context<'_>,
    ) -> News {
        let index = cx.snapshot.index.as_ref().filter(|_| self.may_be_held(block_tokens, cx));
        let Some(index) = index else { return News::default() };
        // An engine that tells what it holds tells of answers too.
        let answer = if is_exact { 0 } else { self.answer_blocks(cx) };
        let (stats, Lender { chain, whole, .. }) = (cx.stats, &mut *cx.lender);
        let is_part = !whole.is_empty();
        let behind = if is_part { 0 } else { answer };
        let first = ask(index, chain, behind, endpoint, rendered, stats).filter(|_| !is_exact);
        let of_whole = if is_part { ask(index, whole, answer, endpoint, false, stats) } else { None };
        News::of([first, of_whole])
    }

    /// Whether the prompt that was cut can lie in a cache, as long as it is: what is far too long for its model is
    /// refused, and would push out all that is known of its endpoint. How many tokens it is is a guess.
    fn may_be_held(&self, block_tokens: f32, cx: &Context<'_>) -> bool {
        let pool = self.pool_in(cx.snapshot);
        let tokens = cx.lender.blocks() as f64 * f64::from(block_tokens);
        pool.is_none_or(|pool| tokens <= GUESS_FACTOR * f64::from(pool.context))
    }

    /// Blocks that the answer will probably take in its engine's cache, with what of the prompt is no whole block.
    fn answer_blocks(&self, cx: &Context<'_>) -> usize {
        let Some(pool) = self.pool_in(cx.snapshot) else { return 0 };
        let answer = f64::from(cx.counters.loads().mean_answer(pool.id)) * f64::from(pool.token_bytes);
        let in_blocks = (cx.lender.blocks() * BLOCK_BYTES) as u64;
        (cx.lender.prompt_bytes.saturating_sub(in_blocks) as f64 + answer) as usize / BLOCK_BYTES
    }
}

/// Whether its endpoint tells itself what it holds of a prompt that was looked up so.
fn is_exact(endpoint: EndpointId, looked_up: LookedUp, cx: &Context<'_>) -> bool {
    let rung = cx.snapshot.endpoint(endpoint).map(|endpoint| endpoint.rung);
    looked_up.rendered && rung.is_some_and(Rung::is_exact)
}

/// Notes one chain, and so many blocks of an answer behind it. Answers the first and the last of its own that were
/// not held there before.
fn ask(
    index: &Index,
    chain: &mut Vec<u64>,
    answer: usize,
    endpoint: EndpointId,
    promised: bool,
    stats: &ShardStats,
) -> Option<(NonZeroU64, u64)> {
    match index.ask(chain, answer, endpoint, promised) {
        Ok(Inserted { before, now, .. }) => {
            let now = chain.get(before as usize..chain.len().min(now as usize))?;
            Some((NonZeroU64::new(*now.first()?)?, *now.last()?))
        }
        Err(Missed::Busy) => {
            stats.count(Count::IndexBusy);
            None
        }
        // Beyond the index, or taken out since this turn's snapshot.
        Err(Missed::NotTheirs | Missed::Orphan) => {
            stats.count(Count::IndexStranger);
            None
        }
    }
}
