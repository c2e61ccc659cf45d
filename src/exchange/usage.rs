//! How many tokens a request had, as the end of its reply tells: `usage` of an unstreamed body, or of the last event of
//! a stream whose client asked for it. Bodies are not parsed: what stands behind the key up to the end of body or event
//! tells how deep it stood, so that its beginning is not needed.
//!
//! The APIs have names of their own for it, as vLLM 0.32 writes them: `prompt_tokens` and `input_tokens`
//! (`/v1/responses`) count the whole prompt; Anthropic's `input_tokens` leaves out what was read from the cache or
//! written to it, which stand beside it. A stream of `/v1/responses` has it one object deeper, in the event that ends
//! it, whose type vLLM names behind it and SGLang before it; one of `/v1/messages` in its last but one. SGLang's own
//! `/generate` tells it always, as `meta_info`, in each event of a stream; its streams of `/v1/messages` tell their
//! prompt with the event that opens one, and with its last but one the answer alone.
//!
//! What a model wrote is never taken for it: inside a string the key's quotes would be escaped. Keys of that name
//! deeper in a body, such as in the schema of a tool, stand at another depth.
//! A wrong reading would cost an estimate and no more.

mod walk;

use std::sync::LazyLock;

use memchr::memmem::{Finder, rfind};
use memchr::{memchr, memrchr};

use super::Exchange;
use super::event::Context;
use super::noted::Noted;
use crate::counters::stats::{RequestKey, TokenCount};
use crate::fleet::{Endpoint, EngineKind};
use crate::scan::Api;
use walk::{Told, Walk};

/// So many last bytes of a body, or of an event, are looked at: vLLM's usage and what stands behind it are some 400.
pub(super) const LOOK_BYTES: usize = 1_024;
/// and so many of them first.
const NEAR_BYTES: usize = 320;
/// Keys of that name that are tried in one look.
const KEYS_MAX: usize = 8;
const KEY: &[u8] = b"\"usage\"";
/// How SGLang begins these events of a message.
const MESSAGE_START: &[u8] = b"{\"type\":\"message_start\"";
const MESSAGE_DELTA: &[u8] = b"{\"type\":\"message_delta\"";
const META_KEY: &[u8] = b"\"meta_info\"";
/// As `meta_info` has it once the answer is over: before that it is null.
static FIND_ENDED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"finish_reason\":{"));
static FIND_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(KEY));
static FIND_ABORTED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"finish_reason\":\"abort\""));
static FIND_PREVIOUS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"previous_response_id\":\""));

/// Tokens of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Usage {
    /// Of its prompt.
    pub prompt: Option<u32>,
    /// Of these, found in the prefix cache; engines tell it only where they are asked to.
    pub cached: Option<u32>,
    /// Generated.
    pub completion: Option<u32>,
    /// Nothing was: vLLM, as it ends or is put to sleep, answers 200 to what never ran.
    pub aborted: bool,
    /// What was cached was told by Anthropic's names.
    by_anthropics_names: bool,
    /// It is of the event that opens a message.
    opens: bool,
}

impl Usage {
    /// With what an earlier event told and this one does not.
    fn behind(self, before: Option<Usage>) -> Usage {
        let before = before.unwrap_or_default();
        Usage {
            prompt: self.prompt.or(before.prompt),
            cached: self.cached.or(before.cached),
            completion: self.completion.or(before.completion),
            by_anthropics_names: self.by_anthropics_names || before.by_anthropics_names,
            ..self
        }
    }

    /// As the engine that told it means it: of a message others than vLLM may say that nothing was cached where they do
    /// not know; vLLM then says nothing.
    pub fn meant_by(mut self, engine: Option<EngineKind>) -> Usage {
        // vLLM tells at the end what it knows of its cache, and of a message that is left that does not come.
        if self.opens && self.cached.is_none() && engine != Some(EngineKind::Sglang) {
            self.prompt = None;
        }
        let may_not_know = self.by_anthropics_names && engine != Some(EngineKind::Vllm);
        self.cached = self.cached.filter(|cached| *cached > 0 || !may_not_know);
        self
    }
}

/// What is known of a reply, at any cut of its bytes.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The end of a body, or of a line that goes on in the next piece. Allocated once, for replies that are cut there.
    kept: Vec<u8>,
}

impl Reader {
    /// More of a stream's data, of a reply of this API.
    #[inline]
    pub fn stream(&mut self, data: &[u8], api: Api) -> Option<Usage> {
        if self.kept.is_empty() && tells_nothing(data) { None } else { self.lines(data, api) }
    }

    /// Puts what goes on with a line of an earlier piece behind the beginning of that. Answers the rest, which is still
    /// to be read.
    #[inline]
    pub fn join<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        if self.kept.is_empty() { data } else { self.go_on(data) }
    }

    fn go_on<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        if self.joined().is_some() {
            return data;
        }
        let (line, behind) = data.split_at(memchr(b'\n', data).map_or(data.len(), |end| end + 1));
        self.keep(line);
        behind
    }

    /// The line that earlier pieces began, as much of it as is kept, where it is whole by now.
    #[inline]
    pub fn joined(&self) -> Option<&[u8]> {
        self.kept.ends_with(b"\n").then_some(&self.kept)
    }

    fn lines(&mut self, data: &[u8], api: Api) -> Option<Usage> {
        let rest = self.join(data);
        let look = |line: &[u8]| look(line).or_else(|| part_in(line).filter(|_| api == Api::Messages));
        let mut found = None;
        if !self.kept.is_empty() {
            found = look(self.joined()?);
            self.kept.clear();
        }
        let whole = match rest.last() {
            Some(b'\n') => rest.len(),
            _ => memrchr(b'\n', rest).map_or(0, |at| at + 1),
        };
        let (lines, begun) = rest.split_at(whole);
        if FIND_KEY.find(lines).is_some() || api == Api::Generate && FIND_ENDED.find(lines).is_some() {
            let told = lines.split(|byte| *byte == b'\n').filter_map(look);
            found = told.fold(found, |before, now| Some(now.behind(before)));
        }
        self.keep(begun);
        found
    }

    /// More of an unstreamed body, of which so many bytes are `left` behind these; `None`: not known.
    pub fn body(&mut self, data: &[u8], left: Option<u64>) -> Option<Usage> {
        match left {
            Some(0) if self.kept.is_empty() => look(data),
            Some(0) => {
                self.keep(data);
                self.end()
            }
            // All that will be looked at is still to come.
            Some(left) if left >= LOOK_BYTES as u64 => None,
            _ => {
                self.keep(data);
                None
            }
        }
    }

    /// A body whose length was not known has come to its end.
    pub fn end(&mut self) -> Option<Usage> {
        let found = look(&self.kept);
        self.kept.clear();
        found
    }

    fn keep(&mut self, bytes: &[u8]) {
        let bytes = last(bytes);
        if bytes.is_empty() {
            return;
        }
        if self.kept.capacity() == 0 {
            self.kept.reserve_exact(LOOK_BYTES);
        }
        let over = (self.kept.len() + bytes.len()).saturating_sub(LOOK_BYTES);
        self.kept.drain(..over);
        self.kept.extend_from_slice(bytes);
    }
}

/// Whether a piece ends with a whole event of a token: what comes last in it are its choices, or that there is no usage
/// yet. An engine that wrote usage before its choices would not be read.
#[inline]
fn tells_nothing(data: &[u8]) -> bool {
    let event = data.strip_suffix(b"\n\n").or(data.strip_suffix(b"\r\n\r\n"));
    data.is_empty() || event.is_some_and(|event| event.ends_with(b"]}") || event.ends_with(b"\"usage\":null}"))
}

fn last(bytes: &[u8]) -> &[u8] {
    bytes.get(bytes.len().saturating_sub(LOOK_BYTES)..).unwrap_or_default()
}

/// Looks for usage in the end of a JSON object, or of a line that ends with one.
fn look(text: &[u8]) -> Option<Usage> {
    let text = last(text);
    let near = text.len().saturating_sub(NEAR_BYTES);
    usage_behind(text, near).or_else(|| usage_behind(text, 0)).or_else(|| meta_info_in(text))
}

/// What an event of a message tells of its prompt alone, or of its answer alone.
fn part_in(line: &[u8]) -> Option<Usage> {
    let event = line.strip_prefix(b"data:")?.trim_ascii_start();
    let key = || rfind(event, KEY);
    if event.starts_with(MESSAGE_START) {
        let usage = told_at(event, key()?, KEY, true)?.usage()?;
        return Some(Usage { completion: None, opens: true, ..usage });
    }
    let completion = told_at(event, key().filter(|_| event.starts_with(MESSAGE_DELTA))?, KEY, false)?.output?;
    Some(Usage { completion: Some(completion), ..Usage::default() })
}

/// The last one.
fn meta_info_in(text: &[u8]) -> Option<Usage> {
    told_at(text, rfind(text, META_KEY)?, META_KEY, false)?.usage()
}

/// The last one whose key stands there or behind.
fn usage_behind(text: &[u8], mut from: usize) -> Option<Usage> {
    let mut found = None;
    for _ in 0..KEYS_MAX {
        let Some(at) = FIND_KEY.find(text.get(from..).unwrap_or_default()) else { break };
        found = usage_at(text, from + at).or(found);
        from += at + KEY.len();
    }
    found
}

/// Reads it where its key stands.
fn usage_at(text: &[u8], at: usize) -> Option<Usage> {
    let told = told_at(text, at, KEY, false)?;
    let before = text.get(..at)?;
    // The prompt of a response that goes on from another is more than what was asked.
    let goes_on = told.prompt.is_none() && FIND_PREVIOUS.find(before).is_some();
    let usage = told.usage().filter(|_| !goes_on)?;
    // Inside a string its quotes would be escaped.
    let aborted = usage.completion == Some(0) && FIND_ABORTED.find(before).is_some();
    Some(Usage { aborted, ..usage })
}

/// What the object of a key says that stands there; `deeper`: in an object that is the last member of another.
fn told_at(text: &[u8], at: usize, key: &[u8], deeper: bool) -> Option<Told> {
    let (before, member) = text.split_at_checked(at)?;
    // Behind a backslash it is text.
    if !matches!(before.last()?, b',' | b'{' | b' ' | b'\n' | b'\t' | b'\r') {
        return None;
    }
    let value = member.get(key.len()..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    Walk::new(value.strip_prefix(b"{")?, key == META_KEY, deeper).told()
}

impl Exchange {
    /// The reply told how many tokens there were.
    pub(super) fn tokens_told(&mut self, usage: Option<Usage>, cx: &Context<'_>) {
        // Without a body nothing was asked for: `GET /v1/responses/ID` tells again what was told before.
        let Some(usage) = usage.filter(|_| self.upload.bytes > 0) else { return };
        let usage = usage.meant_by(self.endpoint_now(cx).and_then(|endpoint| endpoint.kind));
        self.reply.prompt_tokens = usage.prompt.or(self.reply.prompt_tokens);
        self.reply.cached_tokens = usage.cached.or(self.reply.cached_tokens);
        self.reply.completion_tokens = usage.completion.or(self.reply.completion_tokens);
        if let Some(leg) = &mut self.leg {
            leg.aborted |= usage.aborted;
        }
    }

    /// At the end: what the reply told is counted, and compared with what was thought. Of what was broken off nothing
    /// was found in a cache, computed or answered: that no token came says nothing of the pool's answers.
    pub(super) fn count_told(&self, cx: &Context<'_>) {
        let Some(prompt) = self.reply.prompt_tokens.filter(|_| !self.was_broken_off()) else { return };
        let pool = self.pool.map_or(RequestKey::NONE, |pool| pool.0);
        cx.stats.count_tokens(pool, TokenCount::ToldPrompt, prompt);
        cx.stats.count_tokens(pool, TokenCount::ToldCached, self.reply.cached_tokens.unwrap_or(0));
        cx.stats.count_tokens(pool, TokenCount::ToldCompletion, self.reply.completion_tokens.unwrap_or(0));
        // Of a batch, or of several choices, nobody tells how long each answer was.
        let is_of_one = self.leg.as_ref().is_none_or(|leg| !leg.admission.is_of_several());
        if let Some((pool, answer)) =
            self.pool.zip(self.reply.completion_tokens).filter(|(_, answer)| is_of_one && self.can_be(*answer, cx))
        {
            cx.counters.answer(pool, answer);
        }
        if let Some(leg) = &self.leg
            && let Some(Noted { prediction, .. }) = leg.noted
        {
            cx.counters.predictions().told(leg.slot(), &prediction, prompt, self.reply.cached_tokens);
        }
    }

    /// No answer is longer than what its engine's cache holds, where that is known: a reply that says so is wrong.
    fn can_be(&self, answer: u32, cx: &Context<'_>) -> bool {
        let capacity = self.endpoint_now(cx).and_then(|endpoint| endpoint.engine.kv_capacity_tokens);
        capacity.is_none_or(|capacity| u64::from(answer) <= capacity)
    }

    /// What is known of where the request is.
    fn endpoint_now<'a>(&self, cx: &Context<'a>) -> Option<&'a Endpoint> {
        cx.snapshot.endpoint(self.endpoint()?)
    }
}

#[cfg(test)]
mod tests;
