//! The names that have a meaning, at the top of a body and inside messages.

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
    BeamSearch,
    /// vLLM's of its own: what other bodies say at their top stands inside.
    SamplingParams,
    Salt,
    /// SGLang's adapter, beside a `model` that is its base.
    Adapter,
    /// What else SGLang keeps prompts apart by.
    ExtraKey,
    Tools,
    Prompt(Section),
    /// Token ids of SGLang's, in place of messages and tools.
    Ids,
    /// Media that belong to the prompt and stand beside it.
    Media,
    Session(u8),
}

impl Field {
    /// The field of a name, session fields aside.
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
            b"use_beam_search" if logs_prompts(api) => Field::BeamSearch,
            b"sampling_params" if api == Api::Generate => Field::SamplingParams,
            b"tools" if has_tools(api) => Field::Tools,
            b"input_ids" if api == Api::Chat => Field::Ids,
            _ if has_media(api, name) => Field::Media,
            _ => section_of(api, name).map_or(Field::Ignored, Field::Prompt),
        }
    }

    /// Its bit in the set of fields seen.
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
        }
    }
}

/// Whether a body's field of this name is read for what it says, in whichever API: it cannot name a session as well. A
/// response that goes before may, if it is configured to.
pub fn reads(name: &str) -> bool {
    use Api::{Chat, Completions, Embeddings, Generate, Messages, Rerank, Responses, Score, Tokenize};
    [Chat, Completions, Embeddings, Generate, Messages, Rerank, Responses, Score, Tokenize]
        .into_iter()
        .any(|api| !matches!(Field::of(api, name.as_bytes()), Field::Ignored | Field::Previous))
}

/// Where a prompt's text stands in a body of this API.
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

/// Media beside the prompt: SGLang's, each with its place in the text, and vLLM's beside token ids.
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

/// The sections beside the main one that take part in a conversation's prefix, or are computed with it: it is settled
/// only when they have been read too, wherever they stand.
pub(super) fn expected_sections(api: Api) -> &'static [Section] {
    match api {
        Api::Chat | Api::Tokenize => &[Section::Tools],
        Api::Responses | Api::Messages => &[Section::Tools, Section::System],
        // Its media, of which any field may be the last: the body's end tells.
        Api::Generate => &[Section::System],
        // Part of no prefix: waited for where all is counted.
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
    /// What the engine is to know a part's medium by, whatever it shows: vLLM's `uuid`.
    MediumName,
    /// JSON that templates render: it takes part as it stands.
    Raw,
    /// Of sampling parameters: how likely the prompt's tokens were, some by their ids, and whether a cache is read.
    PromptLogprobs,
    PromptLogprobIds,
    SkipsCache,
}

impl Inner {
    /// The field of a name inside sampling parameters.
    pub fn of_sampling(name: &[u8]) -> Inner {
        match name {
            b"prompt_logprobs" => Inner::PromptLogprobs,
            b"prompt_logprob_token_ids" => Inner::PromptLogprobIds,
            b"skip_reading_prefix_cache" => Inner::SkipsCache,
            _ => Inner::Ignored,
        }
    }

    /// The field of a name.
    pub fn of(name: &[u8]) -> Inner {
        match name {
            b"role" => Inner::Role,
            b"content" | b"text" | b"output" | b"thinking" => Inner::Content,
            b"image_url" | b"image" | b"image_embeds" | b"source" | b"input_audio" | b"audio_url" | b"audio_embeds"
            | b"video_url" | b"video" | b"video_embeds" | b"file" | b"file_data" => Inner::Media,
            // Embeddings that stand for tokens; and a thinking that nobody can read.
            b"data" => Inner::Media,
            b"uuid" => Inner::MediumName,
            b"tool_calls" | b"function_call" | b"tool_call_id" | b"tool_use_id" | b"call_id" | b"name"
            | b"arguments" | b"input" | b"reasoning" | b"reasoning_content" => Inner::Raw,
            _ => Inner::Ignored,
        }
    }
}
