//! A client's request, from the bytes of its body; or vLLM's words of refusal.

use serde_json::Value;

use super::batch::Ask;
use super::profile::Profile;
use super::tokens;

/// A refusal in vLLM's shape: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Status, and the `code` of the body.
    pub status: u16,
    /// `type` of the body.
    pub kind: &'static str,
    /// `message` of the body.
    pub message: String,
    /// `param` of the body.
    pub param: Option<String>,
}

/// Which of the two generating paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// One generating request.
#[derive(Debug)]
pub struct Request {
    /// Sequences, choice by choice: `n` for each prompt.
    pub asks: Vec<Ask>,
    /// Prompt tokens, each prompt counted once.
    pub prompt_tokens: u32,
    /// Whether the reply is an event stream.
    pub stream: bool,
    /// `stream_options.include_usage`
    pub usage_at_end: bool,
    /// `stream_options.continuous_usage_stats`
    pub usage_always: bool,
}

/// What the parser needs to know of the engine.
#[derive(Debug, Clone)]
pub struct Serving {
    /// Model ids that are served, the first one by default.
    pub models: Vec<String>,
    /// Length of a reply whose request sets none.
    pub output_tokens: u32,
}

/// Parses and checks a body.
pub fn parse(api: Api, body: &[u8], serving: &Serving, profile: &Profile) -> Result<Request, Refused> {
    let root = json(body)?;
    check_model(&root, serving)?;
    let prompts = match api {
        Api::Chat => vec![chat_prompt(&root)?],
        Api::Completions => completion_prompts(&root)?,
    };
    if let Some(heat) = root.get("temperature").and_then(Value::as_f64).filter(|heat| *heat < 0.0) {
        let message = format!("temperature must be non-negative, got {heat:?}.");
        return Err(bad_value(message, "temperature", &format!("{heat:?}")));
    }
    let n = root.get("n").and_then(Value::as_u64).unwrap_or(1).clamp(1, 128) as u32;
    let limit = output_limit(&root, api, profile)?;
    let salt = root.get("cache_salt").and_then(Value::as_str);
    let salt = salt.map_or(0, |salt| xxhash_rust::xxh3::xxh3_64(salt.as_bytes()));
    let mut asks = Vec::new();
    let mut prompt_tokens = 0;
    for prompt in prompts {
        let len = prompt.len() as u32;
        let room = profile.max_model_len.saturating_sub(len);
        if room == 0 || limit.is_some_and(|limit| limit > room) {
            return Err(too_long(len, limit, profile.max_model_len));
        }
        prompt_tokens += len;
        for choice in 0..n {
            let output = limit.unwrap_or(serving.output_tokens).clamp(1, room);
            let prompt = prompt.clone();
            asks.push(Ask { prompt, output, natural_end: limit.is_none(), salt, choice });
        }
    }
    let option = |name| root.pointer(name).and_then(Value::as_bool).unwrap_or(false);
    Ok(Request {
        asks,
        prompt_tokens,
        stream: option("/stream"),
        usage_at_end: option("/stream_options/include_usage"),
        usage_always: option("/stream_options/continuous_usage_stats"),
    })
}

/// Reads the body as JSON, or returns the refusal that vLLM's validation gives.
pub fn json(body: &[u8]) -> Result<Value, Refused> {
    if body.is_empty() {
        return Err(invalid("'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'", "body"));
    }
    serde_json::from_slice(body).map_err(|error| {
        let lines = body.split(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
        let at = lines.map(|line| line.len() + 1).sum::<usize>() + error.column();
        let what = format!(
            "'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', \
             'input': '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}"
        );
        invalid(&what, &format!("body.{at}"))
    })
}

/// Refuses with 404 a model that is not served; a body without one asks for the first.
pub fn check_model(root: &Value, serving: &Serving) -> Result<(), Refused> {
    let Some(model) = root.get("model").and_then(Value::as_str) else { return Ok(()) };
    if serving.models.iter().any(|served| served == model) {
        return Ok(());
    }
    Err(Refused {
        status: 404,
        kind: "NotFoundError",
        message: format!("The model `{model}` does not exist. Valid aliases: {}.", serving.models.join(", ")),
        param: Some("model".into()),
    })
}

/// Tokens of a conversation as the chat template lays it out: tools, messages, and the marker that
/// lets the assistant speak.
pub fn chat_prompt(root: &Value) -> Result<Vec<u32>, Refused> {
    let messages = match root.get("messages") {
        Some(Value::Array(messages)) => messages,
        Some(other) => {
            let what = format!(
                "'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list', 'input': '{}'",
                other.as_str().map_or_else(|| other.to_string(), str::to_owned)
            );
            return Err(invalid(&what, "body.messages"));
        }
        None => return Err(missing("messages", root)),
    };
    let mut out = Vec::new();
    if let Some(tools) = root.get("tools").filter(|tools| !tools.is_null()) {
        out.push(tokens::role_marker("tool"));
        tokens::push_text(&mut out, &tools.to_string());
        out.push(tokens::END_OF_MESSAGE);
    }
    for message in messages {
        let text = |name| message.get(name).and_then(Value::as_str);
        out.push(tokens::role_marker(text("role").unwrap_or("")));
        match message.get("content") {
            Some(Value::String(content)) => tokens::push_text(&mut out, content),
            Some(Value::Array(parts)) => push_parts(&mut out, parts),
            _ => {}
        }
        if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
            tokens::push_text(&mut out, &calls.to_string());
        }
        out.push(tokens::END_OF_MESSAGE);
    }
    out.push(tokens::role_marker("assistant"));
    Ok(out)
}

/// Text parts are joined before they are cut, as the template does; an image ends a text.
fn push_parts(out: &mut Vec<u32>, parts: &[Value]) {
    let mut text = String::new();
    for part in parts {
        if let Some(more) = part.get("text").and_then(Value::as_str) {
            text.push_str(more);
        } else if let Some(address) = part.pointer("/image_url/url").and_then(Value::as_str) {
            tokens::push_text(out, &std::mem::take(&mut text));
            tokens::push_image(out, address);
        }
    }
    tokens::push_text(out, &text);
}

fn completion_prompts(root: &Value) -> Result<Vec<Vec<u32>>, Refused> {
    let prompts = match root.get("prompt") {
        Some(Value::Array(list)) if !list.is_empty() && list.iter().all(Value::is_u64) => {
            vec![ids(list)]
        }
        Some(Value::Array(list)) if !list.is_empty() => list.iter().map(one_prompt).collect::<Result<_, _>>()?,
        Some(single) => vec![one_prompt(single)?],
        None => return Err(missing("prompt", root)),
    };
    Ok(prompts)
}

fn one_prompt(value: &Value) -> Result<Vec<u32>, Refused> {
    match value {
        Value::String(text) if !text.is_empty() => {
            let mut out = Vec::new();
            tokens::push_text(&mut out, text);
            Ok(out)
        }
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_u64) => Ok(ids(list)),
        _ => Err(Refused {
            status: 400,
            kind: "BadRequestError",
            message: "prompt must be a string, a list of strings or lists of token ids, and not empty".into(),
            param: Some("prompt".into()),
        }),
    }
}

fn ids(list: &[Value]) -> Vec<u32> {
    list.iter().filter_map(Value::as_u64).map(|id| id as u32).collect()
}

/// `max_completion_tokens`, `max_tokens`, or a completion's default of 16.
fn output_limit(root: &Value, api: Api, profile: &Profile) -> Result<Option<u32>, Refused> {
    let named = |name: &str| root.get(name).and_then(Value::as_i64);
    let limit = match api {
        Api::Chat => named("max_completion_tokens").or_else(|| named("max_tokens")),
        Api::Completions => named("max_tokens").or(Some(16)),
    };
    let most = i64::from(profile.max_model_len);
    match limit {
        Some(limit) if limit < 1 => {
            Err(bad_value(format!("max_tokens must be at least 1, got {limit}."), "max_tokens", &limit.to_string()))
        }
        Some(limit) if limit > most => Err(bad_value(
            format!(
                "max_tokens={limit} cannot be greater than max_model_len={most}. Please request fewer output tokens."
            ),
            "max_tokens",
            &limit.to_string(),
        )),
        limit => Ok(limit.map(|limit| limit as u32)),
    }
}

fn too_long(prompt: u32, limit: Option<u32>, most: u32) -> Refused {
    let message = if prompt >= most {
        format!(
            "This model's maximum context length is {most} tokens. However, your prompt contains {prompt} input tokens, \
             which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
        )
    } else {
        format!(
            "This model's maximum context length is {most} tokens. However, you requested {} output tokens and your \
             prompt contains {prompt} input tokens, for a total of {} tokens. Please reduce the length of the input \
             prompt or the number of requested output tokens.",
            limit.unwrap_or(1),
            prompt + limit.unwrap_or(1)
        )
    };
    bad_value(message, "input_tokens", &prompt.to_string())
}

fn bad_value(message: String, param: &str, value: &str) -> Refused {
    Refused {
        status: 400,
        kind: "BadRequestError",
        message: format!("{message} (parameter={param}, value={value})"),
        param: Some(param.into()),
    }
}

fn missing(field: &str, root: &Value) -> Refused {
    let items = root.as_object().map_or(0, serde_json::Map::len);
    let what = format!(
        "'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required', 'input': '<dict of {items} items>'"
    );
    invalid(&what, &format!("body.{field}"))
}

fn invalid(what: &str, at: &str) -> Refused {
    Refused {
        status: 400,
        kind: "Bad Request",
        message: format!("1 validation error:\n  {{{what}}}"),
        param: Some(at.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving() -> Serving {
        Serving { models: vec!["tiny-llama".into()], output_tokens: 200 }
    }

    fn ask(api: Api, body: &str) -> Result<Request, Refused> {
        parse(api, body.as_bytes(), &serving(), &Profile::default())
    }

    #[test]
    fn history_is_a_prefix_of_the_next_turn_whatever_the_parts() {
        let first = ask(Api::Chat, r#"{"messages":[{"role":"user","content":"one two"}]}"#).unwrap();
        let next = ask(
            Api::Chat,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"one "},{"type":"text","text":"two"}]},
                {"role":"assistant","content":" abc def"},{"role":"user","content":"x"}]}"#,
        )
        .unwrap();
        assert!(next.asks[0].prompt.starts_with(&first.asks[0].prompt));
        assert!(first.asks[0].natural_end && first.asks[0].output == 200);
    }

    #[test]
    fn prompts_come_as_text_lists_and_ids() {
        let count = |body| ask(Api::Completions, body).unwrap().asks.len();
        assert_eq!(count(r#"{"prompt":"abc"}"#), 1);
        assert_eq!(count(r#"{"prompt":["abc","def"],"n":2}"#), 4);
        assert_eq!(count(r#"{"prompt":[1,2,3]}"#), 1);
        assert_eq!(count(r#"{"prompt":[[1,2,3],[4]]}"#), 2);
        assert_eq!(ask(Api::Completions, r#"{"prompt":[]}"#).unwrap_err().status, 400);
        assert_eq!(ask(Api::Completions, r#"{"prompt":"abc"}"#).unwrap().asks[0].output, 16);
    }

    #[test]
    fn reply_that_cannot_fit_is_refused() {
        let refused = ask(Api::Completions, r#"{"prompt":"abcd","max_tokens":16384}"#).unwrap_err();
        assert_eq!((refused.status, refused.kind), (400, "BadRequestError"));
    }
}
