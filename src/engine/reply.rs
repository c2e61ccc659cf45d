//! vLLM 0.32's bodies, field for field: whole replies, stream events, usage, errors.
//!
//! A stream's events differ in their text alone, so what surrounds it is made once a request.

use bytes::Bytes;
use serde_json::{Value, json};

use super::batch::Finish;
use super::request::{Api, Refused};

/// Value of `system_fingerprint`. It names the simulation, so that nobody takes it for an engine.
pub const FINGERPRINT: &str = "vllm-0.32.0-simulated";

/// Token counts of one reply.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Prompt tokens, each prompt counted once.
    pub prompt: u32,
    /// Tokens generated over all choices.
    pub completion: u32,
    /// Prompt tokens found in the prefix cache; absent if the engine was told not to say.
    pub cached: Option<u32>,
}

/// The parts of one request's reply that stay the same.
pub struct Shape {
    api: Api,
    id: String,
    created: u64,
    model: String,
    /// `data: {"id":...,"choices":[{"index":`
    head: String,
}

impl Shape {
    /// `id` is the request's own, without the prefix that the path gives it.
    pub fn new(api: Api, id: &str, created: u64, model: &str) -> Shape {
        let (prefix, object) = match api {
            Api::Chat => ("chatcmpl", "chat.completion.chunk"),
            Api::Completions => ("cmpl", "text_completion"),
        };
        let id = format!("{prefix}-{id}");
        let quoted = Value::from(model);
        let quoted_id = Value::from(id.as_str());
        let head = format!(
            "data: {{\"id\":{quoted_id},\"object\":\"{object}\",\"created\":{created},\"model\":{quoted},\"choices\":[{{\"index\":"
        );
        Shape { api, id, created, model: model.to_owned(), head }
    }

    /// A chat stream's first event for a choice; a completion stream has none.
    pub fn opening(&self, choice: usize, usage: Option<Usage>) -> Option<Bytes> {
        let usage = usage.map(running_usage).unwrap_or_default();
        (self.api == Api::Chat).then(|| {
            Bytes::from(format!(
                "{}{choice},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
                 \"finish_reason\":null}}]{usage},\"prompt_token_ids\":null,\"prompt_text\":null}}\n\n",
                self.head
            ))
        })
    }

    /// One token's event. `text` needs no escape. The last event of a choice carries the
    /// fingerprint unless a usage event will.
    pub fn token(
        &self,
        choice: usize,
        text: &str,
        finish: Option<Finish>,
        usage: Option<Usage>,
        fingerprint: bool,
    ) -> Bytes {
        let usage = usage.map(running_usage).unwrap_or_default();
        let reason = finish_reason(finish);
        let behind = match (self.api, finish) {
            (Api::Chat, None) => "\"token_ids\":null",
            (Api::Chat, Some(_)) => "\"stop_reason\":null,\"token_ids\":null",
            (Api::Completions, _) => "\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null",
        };
        let (open, close) = match self.api {
            Api::Chat => ("\"delta\":{\"content\":\"", "\"}"),
            Api::Completions => ("\"text\":\"", "\""),
        };
        let print = if fingerprint && finish.is_some() {
            format!(",\"system_fingerprint\":\"{FINGERPRINT}\"")
        } else {
            String::new()
        };
        Bytes::from(format!(
            "{}{choice},{open}{text}{close},\"logprobs\":null,\"finish_reason\":{reason},{behind}}}]{usage}{print}}}\n\n",
            self.head
        ))
    }

    /// The usage event that ends a stream which asked for it.
    pub fn usage(&self, usage: Usage) -> Bytes {
        let head = self.head.strip_suffix("{\"index\":").unwrap_or(&self.head);
        let details = usage.cached.map(|cached| {
            format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{cached},\"created_cache_tokens\":0}}")
        });
        Bytes::from(format!(
            "{head}],\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{},\"completion_tokens\":{}{}}},\
             \"system_fingerprint\":\"{FINGERPRINT}\"}}\n\n",
            usage.prompt,
            usage.prompt + usage.completion,
            usage.completion,
            details.unwrap_or_default()
        ))
    }

    /// The whole of an unstreamed reply.
    pub fn whole(&self, choices: &[(String, Finish)], usage: Usage) -> Bytes {
        let choices: Vec<String> =
            choices.iter().enumerate().map(|(index, (text, finish))| self.whole_choice(index, text, *finish)).collect();
        let (object, behind) = match self.api {
            Api::Chat => {
                ("chat.completion", "\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"prompt_text\":null,")
            }
            Api::Completions => ("text_completion", ""),
        };
        let details = match usage.cached {
            Some(cached) => {
                format!("{{\"cached_tokens\":{cached},\"created_cache_tokens\":0,\"multimodal_tokens\":null}}")
            }
            None => "null".to_owned(),
        };
        Bytes::from(format!(
            "{{\"id\":{},\"object\":\"{object}\",\"created\":{},\"model\":{},\"choices\":[{}],\"service_tier\":null,\
             \"system_fingerprint\":\"{FINGERPRINT}\",\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{},\
             \"completion_tokens\":{},\"prompt_tokens_details\":{details},\"completion_tokens_details\":null}},\
             {behind}\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}",
            Value::from(self.id.as_str()),
            self.created,
            Value::from(self.model.as_str()),
            choices.join(","),
            usage.prompt,
            usage.prompt + usage.completion,
            usage.completion,
        ))
    }

    fn whole_choice(&self, index: usize, text: &str, finish: Finish) -> String {
        let text = Value::from(text);
        let reason = finish_reason(Some(finish));
        match self.api {
            Api::Chat => format!(
                "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":{text},\"refusal\":null,\
                 \"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null}},\"logprobs\":null,\
                 \"finish_reason\":{reason},\"stop_reason\":null,\"token_ids\":null,\"routed_experts\":null}}"
            ),
            Api::Completions => format!(
                "{{\"index\":{index},\"text\":{text},\"logprobs\":null,\"finish_reason\":{reason},\"stop_reason\":null,\
                 \"token_ids\":null,\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"routed_experts\":null}}"
            ),
        }
    }
}

/// The value of `finish_reason`.
fn finish_reason(finish: Option<Finish>) -> &'static str {
    match finish {
        Some(Finish::Stop) => "\"stop\"",
        Some(Finish::Length) => "\"length\"",
        None => "null",
    }
}

/// `usage` inside the events of a stream with `continuous_usage_stats`.
fn running_usage(usage: Usage) -> String {
    format!(
        ",\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{},\"completion_tokens\":{},\"completion_tokens_details\":null}}",
        usage.prompt,
        usage.prompt + usage.completion,
        usage.completion
    )
}

/// The body of a refusal.
pub fn error(refused: &Refused) -> Bytes {
    Bytes::from(format!(
        "{{\"error\":{{\"message\":{},\"type\":\"{}\",\"param\":{},\"code\":{}}}}}",
        Value::from(refused.message.as_str()),
        refused.kind,
        Value::from(refused.param.clone()),
        refused.status
    ))
}

/// `GET /v1/models`.
pub fn models(models: &[String], created: u64, max_model_len: u32) -> Bytes {
    let list: Vec<String> = models
        .iter()
        .map(|model| {
            let id = Value::from(model.as_str());
            format!(
                "{{\"id\":{id},\"object\":\"model\",\"created\":{created},\"owned_by\":\"vllm\",\"root\":{id},\
                 \"parent\":null,\"max_model_len\":{max_model_len},\"permission\":[{{\"id\":\"modelperm-{created:016x}\",\
                 \"object\":\"model_permission\",\"created\":{created},\"allow_create_engine\":false,\
                 \"allow_sampling\":true,\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,\
                 \"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,\"is_blocking\":false}}]}}"
            )
        })
        .collect();
    Bytes::from(format!("{{\"object\":\"list\",\"data\":[{}]}}", list.join(",")))
}

/// `POST /tokenize`.
pub fn tokenized(tokens: &[u32], max_model_len: u32) -> Bytes {
    let value = json!(tokens);
    Bytes::from(format!(
        "{{\"count\":{},\"max_model_len\":{max_model_len},\"tokens\":{value},\"token_strs\":null}}",
        tokens.len()
    ))
}
