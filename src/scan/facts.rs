//! What a scan has learnt from a body.

use std::ops::Deref;

use xxhash_rust::xxh64::xxh64;

use super::Api;
use super::kernel::Kernel;
use super::prompt::{MEDIUM_BYTES, Prompts};
use super::words::Word;

/// Longest `model` that is kept, in bytes; no engine serves a longer one.
pub const MODEL_BYTES_MAX: usize = 256;
/// Most body fields that may carry a session key.
pub const SESSION_FIELDS_MAX: usize = 8;

/// Hash of the prompt's prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixHash {
    /// Of the whole prefix, by [`super::lanes`].
    pub hash: u64,
    /// How many canonical bytes took part.
    pub bytes: u64,
}

/// How much has been read of the prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Bytes of decoded text and raw JSON (tools, tool calls).
    pub text_bytes: u64,
    /// Number of token ids.
    pub ids: u64,
    /// Number of images and other media.
    pub media: u64,
}

impl Counts {
    pub(super) fn and(self, more: Counts) -> Counts {
        Counts {
            text_bytes: self.text_bytes + more.text_bytes,
            ids: self.ids + more.ids,
            media: self.media + more.media,
        }
    }

    /// Returns the canonical bytes that text and media take in a chain.
    pub fn chained_bytes(self) -> u64 {
        self.text_bytes.saturating_add(self.media.saturating_mul(MEDIUM_BYTES))
    }

    /// Returns the counts less those of `before`.
    #[must_use]
    pub fn less(self, before: Counts) -> Counts {
        Counts {
            text_bytes: self.text_bytes.saturating_sub(before.text_bytes),
            ids: self.ids.saturating_sub(before.ids),
            media: self.media.saturating_sub(before.media),
        }
    }
}

/// The facts about one body: a function of the bytes read so far, never of how they were cut. Of a field that occurs
/// twice the last one counts, as most engines read it.
pub struct Facts {
    pub(super) model: Word,
    pub(super) stated: Stated,
    pub(super) prompt: Prompts,
}

/// What the top-level fields of a body say, except model and prompt. It is reset as a whole: a field left over would be
/// believed of the next body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stated {
    pub(super) model_is_string: bool,
    /// `stream`, if it is a boolean.
    pub stream: Option<bool>,
    pub(super) max_tokens: Option<u64>,
    pub(super) max_output_tokens: Option<u64>,
    /// `n`, if it is a whole number.
    pub choices: Option<u64>,
    /// `priority`, if it is a whole number.
    pub priority: Option<i64>,
    /// XXH64 of `cache_salt`.
    pub(super) cache_salt: Option<u64>,
    /// XXH64 of `lora_path`, SGLang's adapter on the `model`.
    pub adapter: Option<u64>,
    /// XXH64 of SGLang's `extra_key`.
    pub(super) extra_key: Option<u64>,
    /// XXH64 of `previous_response_id`.
    pub previous: Option<u64>,
    /// `background`, if it is true.
    pub background: bool,
    /// `use_beam_search`, if it is true.
    pub beam_search: bool,
    /// `echo`, if it is true.
    pub(super) echo: bool,
    /// `logprobs`, if it is other than null; in a chat it is taken as set, see [`Facts::reset`].
    pub(super) logprobs: bool,
    /// `prompt_logprobs`, if it is other than null.
    pub(super) prompt_logprobs: bool,
    /// SGLang's `return_logprob`, and whether its `logprob_start_len` is the prompt's begin.
    pub(super) return_logprob: bool,
    pub(super) logprob_from_begin: bool,
    /// `prompt_logprob_token_ids`, if it is a list.
    pub(super) prompt_logprob_ids: bool,
    /// `skip_reading_prefix_cache`, if it is a boolean.
    pub(super) skips_cache: Option<bool>,
    pub(super) sessions: [Option<u64>; SESSION_FIELDS_MAX],
    /// Whether `tools` is there, other than null.
    pub tools: bool,
    /// Number of repeated fields among those that routing looks at.
    pub duplicates: u32,
}

impl Deref for Facts {
    type Target = Stated;

    fn deref(&self) -> &Stated {
        &self.stated
    }
}

impl Facts {
    pub(super) fn new(kernel: &'static Kernel) -> Self {
        Facts { model: Word::new(), stated: Stated::default(), prompt: Prompts::new(kernel) }
    }

    /// Forgets the last body, except the prompt, which the caller resets by its mode.
    pub(super) fn reset(&mut self, api: Api) {
        self.model.clear();
        // `top_logprobs` of a chat is 0 by default, so that an echo of it always carries logprobs.
        self.stated = Stated { logprobs: api == Api::Chat, ..Stated::default() };
    }

    /// Returns `model`, decoded; `None` also if it is longer than [`MODEL_BYTES_MAX`].
    pub fn model(&self) -> Option<&[u8]> {
        self.model.get().filter(|_| self.model_is_string)
    }

    /// Whether `model` is there but too long to be kept.
    pub fn model_over(&self) -> bool {
        self.model_is_string && self.model.get().is_none()
    }

    /// Returns the XXH64 of the best session field of [`super::Plan::session_fields`] that the body has as a non-empty
    /// string.
    pub fn session(&self) -> Option<u64> {
        self.sessions.iter().flatten().next().copied()
    }

    pub(super) fn set_session(&mut self, place: u8, hash: Option<u64>) {
        if let Some(session) = self.stated.sessions.get_mut(place as usize) {
            *session = hash;
        }
    }

    pub(super) fn has_session(&self, place: usize) -> bool {
        self.sessions.get(place).is_some_and(Option::is_some)
    }

    /// Returns the hash that keeps the prompt apart from equal ones of its model: of `cache_salt`, `extra_key`, and the
    /// adapter that `lora_path` names.
    pub fn salt(&self) -> Option<u64> {
        self.salted(self.adapter)
    }

    /// Returns the same without the adapter, for callers that handle [`Stated::adapter`] by itself.
    pub fn salt_alone(&self) -> Option<u64> {
        self.salted(None)
    }

    fn salted(&self, adapter: Option<u64>) -> Option<u64> {
        let salt = self.cache_salt.map_or([0; 8], u64::to_le_bytes);
        match (adapter, self.extra_key) {
            (None, None) => self.cache_salt,
            (Some(adapter), None) => Some(xxh64(&salt, adapter)),
            (adapter, Some(extra)) => Some(xxh64([salt, extra.to_le_bytes()].as_flattened(), adapter.unwrap_or(0))),
        }
    }

    /// Returns the most tokens asked for: `max_completion_tokens` or `max_output_tokens`, else `max_tokens`.
    pub fn max_tokens(&self) -> Option<u64> {
        self.max_output_tokens.or(self.max_tokens)
    }

    /// Whether the body asks how likely the prompt itself was, as evaluations do. The engine then computes the whole
    /// prompt, whatever its cache holds (`skip_reading_prefix_cache` in vLLM's `SamplingParams`, which a body of token
    /// ids may set itself), and caches it like any other. (SGLang finds as much as stands before `logprob_start_len`.)
    pub fn recomputes(&self) -> bool {
        let by_sglang = self.return_logprob && self.logprob_from_begin;
        let by_vllm = self.prompt_logprobs || self.prompt_logprob_ids || self.echo && self.logprobs;
        by_sglang || self.skips_cache.unwrap_or(by_vllm)
    }

    /// Returns the prefix as far as it is known; `None` if the prompt has no text.
    pub fn prefix(&self) -> Option<PrefixHash> {
        self.prompt.prefix()
    }

    /// Whether [`Facts::prefix`] returns one, without computing its hash.
    pub fn has_prefix(&self) -> bool {
        self.prompt.has_prefix()
    }

    /// Returns the prefix that the body would have without a chain, if [`super::Plan::plain`] asks for it; else
    /// [`Facts::prefix`].
    pub fn plain_prefix(&self) -> Option<PrefixHash> {
        self.prompt.plain_prefix()
    }

    /// Replaces `chain` by the prompt's, as far as it was read: for each whole block of [`crate::limits::BLOCK_BYTES`]
    /// canonical bytes a hash of it, of all before it, and of `root`; at most [`crate::limits::LINKS_MAX`]. It is empty
    /// if [`super::Plan::chain`] did not ask for it.
    pub fn chain(&self, root: u64, chain: &mut Vec<u64>) {
        self.prompt.chain(root, chain);
    }

    /// Returns what was read of the prompt, or of all prompts of a batch. It is complete only if
    /// [`super::Needs::PREFIX`] was asked for, and [`super::Needs::WHOLE`] or [`super::Plan::chain`].
    pub fn counts(&self) -> Counts {
        self.prompt.counts()
    }

    /// Returns the part of [`Facts::counts`] that is not of the first prompt, which alone has prefix and chain: other
    /// prompts of a batch, documents that a query is compared with. `None`: there is one prompt.
    pub fn beside(&self) -> Option<Counts> {
        self.prompt.beside()
    }

    /// Whether the prompt is compared with other texts, one by one: it may be computed once for each of them.
    pub fn compares(&self) -> bool {
        self.prompt.compares()
    }

    /// Returns the bytes of the prompt read so far, counting four for a token id.
    pub fn prompt_bytes(&self) -> u64 {
        let counts = self.counts();
        counts.text_bytes + 4 * counts.ids
    }

    /// Whether the prompt holds images or other media.
    pub fn images(&self) -> bool {
        self.counts().media > 0
    }

    /// Estimates the tokens of what was read of the prompt: four bytes a token, ids as they are, `image_tokens` for a
    /// medium.
    pub fn tokens_estimate(&self, image_tokens: u32) -> u64 {
        let counts = self.counts();
        counts.text_bytes.div_ceil(4) + counts.ids + counts.media * image_tokens as u64
    }
}
