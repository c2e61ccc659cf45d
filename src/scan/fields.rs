//! The field names that have a meaning, at the top of a body and inside messages.

use super::Api;
use super::section::Section;

/// What a top-level field is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Ignored,
    Model,
    Stream,
    StreamOptions,
    MaxTokens,
    MaxOutputTokens,
    Choices,
    Priority,
    Background,
    /// The stored response that this one goes on from.
    Previous,
    Echo,
    Logprobs,
    PromptLogprobs,
    /// SGLang's `return_logprob`, and from which token of the prompt on.
    ReturnLogprob,
    LogprobStart,
    BeamSearch,
    /// vLLM's object with fields that other bodies have at their top.
    SamplingParams,
    Salt,
    /// SGLang's adapter, beside a `model` that is its base.
    Adapter,
    /// A further string by which SGLang keeps prompts apart.
    ExtraKey,
    Tools,
    Prompt(Section),
    /// SGLang's token ids in place of messages and tools.
    Ids,
    /// Media of the prompt that are in a field of their own.
    Media,
    Session(u8),
}

impl Field {
    /// Returns the field of a name, session fields excepted.
    pub fn of(api: Api, name: &[u8]) -> Field {
        match name {
            b"model" => Field::Model,
            b"stream" => Field::Stream,
            b"stream_options" => Field::StreamOptions,
            b"max_tokens" => Field::MaxTokens,
            b"max_completion_tokens" | b"max_output_tokens" => Field::MaxOutputTokens,
            b"n" => Field::Choices,
            b"priority" => Field::Priority,
            b"cache_salt" => Field::Salt,
            b"lora_path" => Field::Adapter,
            b"extra_key" => Field::ExtraKey,
            b"background" if api == Api::Responses => Field::Background,
            b"previous_response_id" if api == Api::Responses => Field::Previous,
            b"echo" if logs_prompts(api) => Field::Echo,
            b"logprobs" if api == Api::Completions => Field::Logprobs,
            b"prompt_logprobs" if logs_prompts(api) => Field::PromptLogprobs,
            b"return_logprob" if api == Api::Generate => Field::ReturnLogprob,
            b"logprob_start_len" if api == Api::Generate => Field::LogprobStart,
            b"use_beam_search" if logs_prompts(api) => Field::BeamSearch,
            b"sampling_params" if api == Api::Generate => Field::SamplingParams,
            b"tools" if has_tools(api) => Field::Tools,
            b"input_ids" if api == Api::Chat => Field::Ids,
            _ if has_media(api, name) => Field::Media,
            _ => section_of(api, name).map_or(Field::Ignored, Field::Prompt),
        }
    }

    /// Whether it takes part in what a prompt's hashes are made of.
    pub fn is_of_prompt(self) -> bool {
        let is_apart = matches!(self, Field::Salt | Field::Adapter | Field::ExtraKey);
        is_apart || matches!(self, Field::Prompt(_) | Field::Ids | Field::Tools | Field::Media)
    }

    /// Returns its bit in the set of fields seen.
    pub fn bit(self) -> u32 {
        match self {
            Field::Ignored | Field::Media => 0,
            Field::Model => 1,
            Field::Stream => 1 << 1,
            Field::StreamOptions => 1 << 2,
            Field::MaxTokens => 1 << 3,
            Field::MaxOutputTokens => 1 << 4,
            Field::Choices => 1 << 5,
            Field::Salt => 1 << 6,
            Field::Tools => 1 << 7,
            Field::Prompt(section) => 1 << (8 + section as u32),
            Field::Ids => 1 << (8 + Section::Main as u32),
            Field::Priority => 1 << 12,
            Field::Echo => 1 << 13,
            Field::Logprobs => 1 << 14,
            Field::PromptLogprobs => 1 << 15,
            Field::Session(place) => 1 << (16 + place as u32),
            Field::Adapter => 1 << 24,
            Field::ExtraKey => 1 << 25,
            Field::SamplingParams => 1 << 26,
            Field::Background => 1 << 27,
            Field::BeamSearch => 1 << 28,
            Field::Previous => 1 << 29,
            Field::ReturnLogprob => 1 << 30,
            Field::LogprobStart => 1 << 31,
        }
    }
}

/// Whether any API gives a body's field of this name a meaning, so that it cannot name a session as well. The id of a
/// previous response may name one, if it is configured to.
pub fn reads(name: &str) -> bool {
    use Api::{Chat, Completions, Embeddings, Generate, Messages, Rerank, Responses, Score, Tokenize};
    [Chat, Completions, Embeddings, Generate, Messages, Rerank, Responses, Score, Tokenize]
        .into_iter()
        .any(|api| !matches!(Field::of(api, name.as_bytes()), Field::Ignored | Field::Previous))
}

/// Returns the section of the prompt that a field of this API has.
fn section_of(api: Api, name: &[u8]) -> Option<Section> {
    use Section::{Extra, Main, System};
    Some(match (api, name) {
        (Api::Chat, b"messages") => Main,
        (Api::Completions, b"prompt") => Main,
        (Api::Completions, b"suffix") => Extra,
        (Api::Embeddings, b"input" | b"messages" | b"text" | b"input_ids") => Main,
        (Api::Responses, b"input") => Main,
        (Api::Responses, b"instructions") => System,
        (Api::Messages, b"messages") => Main,
        (Api::Messages, b"system") => System,
        (Api::Rerank, b"query") => Main,
        (Api::Rerank, b"documents") => Extra,
        (Api::Score, b"text_1" | b"queries" | b"data_1" | b"query") => Main,
        (Api::Score, b"text_2" | b"documents" | b"data_2" | b"items") => Extra,
        (Api::Tokenize, b"prompt" | b"messages") => Main,
        (Api::Generate, b"text" | b"input_ids" | b"token_ids") => Main,
        _ => return None,
    })
}

/// Whether a field has media beside the prompt: SGLang's, each with its place in the text, or vLLM's beside token ids.
fn has_media(api: Api, name: &[u8]) -> bool {
    match name {
        b"image_data" | b"video_data" | b"audio_data" => matches!(api, Api::Generate | Api::Embeddings),
        b"features" | b"content_parts" => api == Api::Generate,
        _ => false,
    }
}

fn has_tools(api: Api) -> bool {
    matches!(api, Api::Chat | Api::Responses | Api::Messages | Api::Tokenize)
}

/// Whether a body may ask at its top how likely its prompt is: see [`super::Facts::recomputes`].
pub(super) fn logs_prompts(api: Api) -> bool {
    matches!(api, Api::Chat | Api::Completions)
}

/// Returns the sections beside the main one that take part in a conversation's prefix, or are computed with it: the
/// prefix is settled only when they were read too, wherever they are.
pub(super) fn expected_sections(api: Api) -> &'static [Section] {
    match api {
        Api::Chat | Api::Tokenize => &[Section::Tools],
        Api::Responses | Api::Messages => &[Section::Tools, Section::System],
        // Its media, which further fields may have: only the body's end tells that there are no more.
        Api::Generate => &[Section::System],
        // Part of no prefix: waited for only if everything is counted.
        Api::Rerank | Api::Score => &[Section::Extra],
        _ => &[],
    }
}

/// What a field of a message or of a part of its content is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inner {
    Ignored,
    Role,
    /// Text, or parts of it.
    Content,
    /// An image or another medium.
    Media,
    /// The name by which the engine knows a part's medium, whatever its content: vLLM's `uuid`.
    MediumName,
    /// JSON that templates render: it takes part as it is written.
    Raw,
    /// In sampling parameters: whether to tell how likely the prompt's tokens were, and whether to skip the cache.
    PromptLogprobs,
    PromptLogprobIds,
    SkipsCache,
}

impl Inner {
    /// Returns the field of a name inside sampling parameters.
    pub fn of_sampling(name: &[u8]) -> Inner {
        match name {
            b"prompt_logprobs" => Inner::PromptLogprobs,
            b"prompt_logprob_token_ids" => Inner::PromptLogprobIds,
            b"skip_reading_prefix_cache" => Inner::SkipsCache,
            _ => Inner::Ignored,
        }
    }

    /// Returns the field of a name inside a message or part.
    pub fn of(name: &[u8]) -> Inner {
        match name {
            b"role" => Inner::Role,
            b"content" | b"text" | b"output" | b"thinking" => Inner::Content,
            b"image_url" | b"image" | b"image_embeds" | b"source" | b"input_audio" | b"audio_url" | b"audio_embeds"
            | b"video_url" | b"video" | b"video_embeds" | b"file" | b"file_data" => Inner::Media,
            // Embeddings in place of tokens, or encrypted thinking.
            b"data" => Inner::Media,
            b"uuid" => Inner::MediumName,
            b"tool_calls" | b"function_call" | b"tool_call_id" | b"tool_use_id" | b"call_id" | b"name"
            | b"arguments" | b"input" | b"reasoning" | b"reasoning_content" => Inner::Raw,
            _ => Inner::Ignored,
        }
    }
}
