//! How many tokens a request had, as the end of its reply tells: `usage` of an unstreamed body, or of the last event of
//! a stream whose client asked for it. Bodies are not parsed: what stands behind the key up to the end of body or event
//! tells how deep it stood, so that its beginning is not needed.
//!
//! The APIs have names of their own for it, as vLLM 0.32 writes them: `prompt_tokens` and `input_tokens`
//! (`/v1/responses`) count the whole prompt; Anthropic's `input_tokens` leaves out what was read from the cache or
//! written to it, which stand beside it. A stream of `/v1/responses` has it one object deeper, in the event that ends
//! it, whose type vLLM names behind it and SGLang before it; one of `/v1/messages` in its last but one.
//!
//! What a model wrote is never taken for it: inside a string the key's quotes would be escaped. Keys of that name
//! deeper in a body, such as in the schema of a tool, stand at another depth.
//! A wrong reading would cost an estimate and no more.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use memchr::{memchr, memchr2, memrchr};

use super::Exchange;
use super::event::Context;
use super::noted::Noted;
use crate::counters::stats::Count;
use crate::fleet::{Endpoint, EngineKind};
use crate::limits::TOKENS_MAX;

/// So many last bytes of a body, or of an event, are looked at: vLLM's usage and what stands behind it are some 400.
pub(super) const LOOK_BYTES: usize = 1_024;
/// and so many of them first.
const NEAR_BYTES: usize = 320;
/// Keys of that name that are tried in one look.
const KEYS_MAX: usize = 8;
const KEY: &[u8] = b"\"usage\"";
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
}

impl Usage {
    /// As the engine that told it means it: of a message others than vLLM may say that nothing was cached where they do
    /// not know; vLLM then says nothing.
    pub fn meant_by(mut self, engine: Option<EngineKind>) -> Usage {
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
    /// More of a stream's data.
    #[inline]
    pub fn stream(&mut self, data: &[u8]) -> Option<Usage> {
        if self.kept.is_empty() && tells_nothing(data) { None } else { self.lines(data) }
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

    fn lines(&mut self, data: &[u8]) -> Option<Usage> {
        let rest = self.join(data);
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
        if FIND_KEY.find(lines).is_some() {
            found = lines.split(|byte| *byte == b'\n').filter_map(look).next_back().or(found);
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
    usage_behind(text, near).or_else(|| usage_behind(text, 0))
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
    let (before, key) = text.split_at_checked(at)?;
    // Behind a backslash it is text.
    if !matches!(before.last()?, b',' | b'{' | b' ' | b'\n' | b'\t' | b'\r') {
        return None;
    }
    let value = key.get(KEY.len()..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let told = Walk::new(value.strip_prefix(b"{")?).told()?;
    // The prompt of a response that goes on from another is more than what was asked.
    let goes_on = told.prompt.is_none() && FIND_PREVIOUS.find(before).is_some();
    let usage = told.usage().filter(|_| !goes_on)?;
    // Inside a string its quotes would be escaped.
    let aborted = usage.completion == Some(0) && FIND_ABORTED.find(before).is_some();
    Some(Usage { aborted, ..usage })
}

/// Goes over JSON from inside an object of usage to the end of what that stands in.
#[derive(Default)]
struct Walk<'a> {
    rest: &'a [u8],
    /// 1: among the members of usage; 0: among those of what it stands in, behind it; -1: of what that stands in.
    depth: i32,
    /// Usage has ended.
    behind: bool,
    /// The last string, until a comma: a key where a value follows.
    key: &'a [u8],
    in_details: bool,
    in_turns: bool,
    /// Several prompts were computed for one request: built-in tools were called.
    several_turns: bool,
    /// What it stands in goes on from an earlier response, as SGLang says behind it.
    goes_on: bool,
    /// It stands in the event that ends a response: by its type or, where that came before, by its number alone.
    completed: Option<bool>,
    told: Told,
}

/// Numbers by the names that they have.
#[derive(Default)]
struct Told {
    prompt: Option<u32>,
    completion: Option<u32>,
    cached: Option<u32>,
    /// Of the prompt, some were an image's or the like.
    media: bool,
    input: Option<u32>,
    output: Option<u32>,
    cache_read: Option<u32>,
    cache_creation: Option<u32>,
}

impl Told {
    fn usage(&self) -> Option<Usage> {
        let beside = self.cache_read.unwrap_or(0).saturating_add(self.cache_creation.unwrap_or(0));
        let input = self.input.map(|input| input.saturating_add(beside)).filter(|input| *input <= TOKENS_MAX);
        // Behind an error that had no answer some say 0.
        let prompt = self.prompt.or(input).filter(|prompt| *prompt > 0)?;
        // Beside these SGLang writes a zero where it is not to tell.
        let cached = self.cached.filter(|cached| *cached > 0 || !self.media);
        let cached = cached.or(self.cache_read).map(|cached| cached.min(prompt));
        let by_anthropics_names = self.prompt.is_none() && self.cache_read.is_some();
        Some(Usage {
            prompt: Some(prompt),
            cached,
            completion: self.completion.or(self.output),
            aborted: false,
            by_anthropics_names,
        })
    }
}

impl<'a> Walk<'a> {
    fn new(rest: &'a [u8]) -> Walk<'a> {
        Walk { rest, depth: 1, ..Walk::default() }
    }

    /// `None`: it stands deeper, or the text does not end with what it stands in.
    fn told(mut self) -> Option<Told> {
        self.leave(0)?;
        if !self.rest.trim_ascii().is_empty() {
            self.leave(-1)?;
            if self.completed != Some(true) || !self.rest.trim_ascii().is_empty() {
                return None;
            }
        }
        (!self.several_turns && !self.goes_on).then_some(self.told)
    }

    /// Goes on to behind the end of what stands at this depth.
    fn leave(&mut self, depth: i32) -> Option<()> {
        while self.depth >= depth {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => self.string()?,
                b'0'..=b'9' => self.number(byte),
                b'{' | b'[' => self.open(byte),
                b'}' | b']' => {
                    self.depth -= 1;
                    self.behind |= self.depth == 0;
                    self.in_details &= self.depth > 1;
                    self.in_turns = false;
                    self.key = b"";
                }
                b',' => {
                    self.several_turns |= self.in_turns;
                    self.key = b"";
                }
                b'-' => self.key = b"",
                _ => {}
            }
        }
        Some(())
    }

    fn open(&mut self, byte: u8) {
        self.depth += 1;
        let details = byte == b'{' && matches!(self.key, b"prompt_tokens_details" | b"input_tokens_details");
        self.in_details |= self.depth == 2 && !self.behind && details;
        self.in_turns = self.depth == 3 && self.in_details && self.key == b"input_tokens_per_turn";
        self.key = b"";
    }

    fn string(&mut self) -> Option<()> {
        let mut end = 0;
        loop {
            end += memchr2(b'"', b'\\', self.rest.get(end..)?)?;
            if self.rest.get(end) == Some(&b'"') {
                break;
            }
            end += 2;
        }
        let before = self.key;
        (self.key, self.rest) = (self.rest.get(..end)?, self.rest.get(end + 1..)?);
        self.goes_on |= self.depth == 0 && before == b"previous_response_id";
        if self.depth == -1 && before == b"type" {
            self.completed = Some(matches!(self.key, b"response.completed" | b"response.incomplete"));
        }
        Some(())
    }

    fn number(&mut self, first: u8) {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (more, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let add = |sum: u32, digit: &u8| sum.saturating_mul(10).saturating_add(u32::from(digit - b'0'));
        let number = more.iter().fold(u32::from(first - b'0'), add);
        let whole = matches!(rest.first(), Some(b',' | b'}' | b' ' | b'\n' | b'\t' | b'\r'));
        let told = (whole && number <= TOKENS_MAX).then_some(number);
        match (self.depth, self.key) {
            // Before an answer has ended its usage is null.
            (-1, b"sequence_number") => self.completed = self.completed.or(Some(true)),
            _ if self.behind => {}
            (1, b"prompt_tokens") => self.told.prompt = told,
            (1, b"completion_tokens") => self.told.completion = told,
            (1, b"input_tokens") => self.told.input = told,
            (1, b"output_tokens") => self.told.output = told,
            (1, b"cache_read_input_tokens") => self.told.cache_read = told,
            (1, b"cache_creation_input_tokens") => self.told.cache_creation = told,
            (2, b"cached_tokens") if self.in_details => self.told.cached = told,
            (2, b"image_tokens" | b"audio_tokens" | b"video_tokens") if self.in_details => {
                self.told.media |= number > 0;
            }
            _ => {}
        }
        self.key = b"";
    }
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
        cx.stats.add(Count::ToldPrompt, prompt.into());
        cx.stats.add(Count::ToldCached, self.reply.cached_tokens.unwrap_or(0).into());
        cx.stats.add(Count::ToldCompletion, self.reply.completion_tokens.unwrap_or(0).into());
        if let Some((pool, answer)) =
            self.pool.zip(self.reply.completion_tokens).filter(|(_, answer)| self.can_be(*answer, cx))
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
