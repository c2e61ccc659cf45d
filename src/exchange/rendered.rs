//! A prompt as its engine writes it, where that is known of the pool's model.

use super::Exchange;
use super::Lender;
use super::event::Context;
use crate::counters::stats::Count;
use crate::http::BodyLength;
use crate::prefix;
use crate::scan::{Api, Form, Why};
use crate::snapshot::Pool;

/// A body that is written as engines would write its prompt.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// What it looks like.
    pub api: Api,
    /// All of it, as the client sent it.
    pub bytes: &'a [u8],
    /// [`crate::scan::Facts::salt_alone`].
    pub salt: Option<u64>,
    /// The adapter that it names beside its model.
    pub adapter: Option<u64>,
    /// How long its text and media are in a chain, whatever is written around them.
    pub chained_bytes: u64,
    /// Whether it has tools, as far as it was read.
    pub tools: bool,
}

/// Cuts the prompt in the form of the pool's model into the lender's chain and its steps. Answers how many bytes that
/// are. Where there is more of it, the chain that the lender had of all of it is kept beside.
///
/// # Errors
/// Why the form knows less than half of this prompt, of which more is known by what was sent where.
pub fn cut(body: &Body<'_>, form: &Form, pool: &Pool, lender: &mut Lender) -> Result<u64, Why> {
    let renderer = lender.renderer.get_or_insert_default();
    let rendering = renderer.render(body.api, form, body.bytes, body.tools);
    if rendering.bytes == 0 || rendering.bytes < body.chained_bytes / 2 {
        return Err(rendering.ends.unwrap_or(Why::Prompt));
    }
    if rendering.ends.is_some() {
        std::mem::swap(&mut lender.chain, &mut lender.whole);
    }
    let of_pool = || pool.is_adapter.then(|| prefix::adapter_hash(pool.name.as_bytes()));
    let root = prefix::form_root(body.adapter.or_else(of_pool), body.salt, form.id);
    renderer.links(root, &mut lender.chain, &mut lender.steps);
    Ok(rendering.bytes)
}

impl Exchange {
    /// See [`cut`].
    pub(super) fn rendered(&self, chained_bytes: u64, pool: &Pool, cx: &mut Context<'_>) -> Option<u64> {
        let form: &Form = pool.form.as_ref()?;
        let held = self.upload.held_whole && self.upload.body.done();
        // Chunks are held as they are sent on, with their framing between.
        let whole = held && matches!(self.asked.framing.body, BodyLength::Length(_));
        let facts = self.upload.scan.as_ref().map(|scan| scan.facts());
        let (salt, adapter) = facts.map_or((None, None), |facts| (facts.salt_alone(), facts.adapter));
        let tools = facts.is_some_and(|facts| facts.tools);
        // More than that is held where nobody can be chosen without the model: to write it in one turn would keep
        // others waiting.
        let is_short = |bytes: &&[u8]| bytes.len() <= cx.rules.limits.hold_bytes;
        let bytes = self.upload.held.get(self.upload.head_len()..).filter(|_| whole).filter(is_short);
        let body = bytes.map(|bytes| Body { api: self.asked.api, bytes, salt, adapter, chained_bytes, tools });
        let cut = body.map(|body| cut(&body, form, pool, cx.lender));
        if let (Some(Err(_)), Some(bytes), false) = (&cut, bytes, self.stranger) {
            meets_tools(form, bytes, cx.lender);
        }
        cx.stats.count(cut.map_or(Count::NotRenderedHeld, |cut| cut.map_or_else(count_of, |_| Count::Rendered)));
        cut?.ok()
    }
}

/// What a body could not be written for may be its tools.
fn meets_tools(form: &Form, bytes: &[u8], lender: &mut Lender) {
    let Lender { renderer, toolsets, .. } = lender;
    let tools = renderer.as_ref().and_then(|renderer| bytes.get(renderer.unknown_tools()?));
    if let Some(tools) = tools {
        toolsets.met(form.id, tools);
    }
}

fn count_of(why: Why) -> Count {
    match why {
        Why::Template => Count::NotRenderedTemplate,
        Why::Field => Count::NotRenderedField,
        Why::Tools => Count::NotRenderedTools,
        Why::Toolset => Count::NotRenderedToolset,
        Why::Role | Why::Place => Count::NotRenderedRole,
        Why::Message => Count::NotRenderedMessage,
        Why::Call => Count::NotRenderedCall,
        Why::Media => Count::NotRenderedMedia,
        Why::Stop | Why::Space | Why::Empty | Why::Parts => Count::NotRenderedContent,
        Why::Api => Count::NotRenderedApi,
        _ => Count::NotRenderedOther,
    }
}
