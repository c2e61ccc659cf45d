//! Which server it is, what it serves, and what SGLang says of its own flags.

use serde_json::Value;

use super::finding::{Finding, shown};
use crate::control::client::{Answer, CallError};
use crate::control::models::{Card, Learnt, ModelsError};
use crate::control::scrape::EngineKind;
use crate::kvevents::flagged_ranks;

/// Models that are shown by name.
const NAMED_MAX: usize = 8;

/// SGLang's answer to `/server_info`: its flags, and what came of them. The answer may hold the
/// server's API key, which is not kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Info {
    pub(super) version: Option<String>,
    pub(super) kv_events_config: Option<String>,
    pub(super) reports_cached: Option<bool>,
    /// Its server is the one in Rust.
    pub(super) in_rust: bool,
    pub(super) caches: Option<bool>,
    pub(super) page_size: Option<u64>,
    pub(super) tokens: Option<u64>,
    pub(super) ranks: Option<u64>,
    pub(super) context: Option<u64>,
}

impl Info {
    /// `None` if another kind of server answered.
    pub(super) fn of(answer: &Result<Answer, CallError>) -> Option<Info> {
        let answer = answer.as_ref().ok().filter(|answer| answer.status == 200)?;
        let root: Value = serde_json::from_slice(&answer.body).ok()?;
        let is_flag = |name: &str| root.get(name).and_then(Value::as_bool);
        let number = |name: &str| root.get(name).and_then(Value::as_u64);
        let text = |name: &str| root.get(name).and_then(Value::as_str).map(str::to_owned);
        // vLLM has a path of this name too, for its developers.
        root.get("disable_radix_cache")?;
        Some(Info {
            version: text("version"),
            kv_events_config: text("kv_events_config"),
            reports_cached: is_flag("enable_cache_report"),
            in_rust: root.get("frontend").and_then(Value::as_str) == Some("rust"),
            caches: is_flag("disable_radix_cache").map(|disabled| !disabled),
            page_size: number("page_size"),
            tokens: number("max_total_num_tokens"),
            ranks: flagged_ranks(number("dp_size"), number("attn_dp_size")),
            context: number("context_length"),
        })
    }
}

/// The `version` of vLLM's `/version`.
pub(super) fn version(answer: &Answer) -> Option<String> {
    let root: Value = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200)?;
    Some(root.get("version")?.as_str()?.to_owned())
}

pub(super) fn name(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Vllm => "vLLM",
        EngineKind::Sglang => "SGLang",
    }
}

/// Which server answers.
pub(super) fn server(kind: Option<EngineKind>, version: Option<&str>) -> Finding {
    let version = version.map(|version| format!(" {}", shown(version))).unwrap_or_default();
    match kind {
        Some(kind) if !version.is_empty() => Finding::good("server", format!("{}{version}", name(kind))),
        Some(kind) => Finding::unknown("server", format!("{}, which does not say its version", name(kind))),
        None => Finding::unknown("server", "answers, and is neither vLLM nor SGLang by what it says"),
    }
}

/// Its models and adapters, and the longest context of any. `keyless`: it has a key that cannot be read here.
pub(super) fn models(learnt: &Result<Learnt, ModelsError>, context: Option<u64>, keyless: bool) -> Finding {
    const SUBJECT: &str = "models";
    let learnt = match learnt {
        Ok(learnt) => learnt,
        Err(ModelsError::KeyWanted) if keyless => return Finding::unknown(SUBJECT, "told only with its key"),
        Err(why @ (ModelsError::KeyWanted | ModelsError::KeyRefused)) => {
            return Finding::advice(SUBJECT, why.to_string());
        }
        Err(why) => return Finding::unknown(SUBJECT, shown(&why.to_string())),
    };
    let (adapters, models): (Vec<&Card>, Vec<&Card>) = learnt.cards.iter().partition(|card| card.is_adapter);
    if models.is_empty() && adapters.is_empty() {
        return Finding::advice(SUBJECT, "it lists none, so that no request is sent there");
    }
    let mut words = listed(&models);
    if !adapters.is_empty() {
        words += &format!("; adapters {}", listed(&adapters));
    }
    match context.or(longest(learnt)) {
        Some(tokens) => Finding::good(SUBJECT, format!("{words}; context of {tokens} tokens")),
        None => Finding::good(SUBJECT, format!("{words}; the longest context is not told")),
    }
}

/// The longest context that its cards name.
pub(super) fn longest(learnt: &Learnt) -> Option<u64> {
    learnt.cards.iter().filter_map(|card| card.context).max().map(u64::from)
}

fn listed(cards: &[&Card]) -> String {
    let names: Vec<String> = cards.iter().take(NAMED_MAX).map(|card| shown(&card.id)).collect();
    let more = cards.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hyper::HeaderMap;

    fn learnt(cards: &[Card]) -> Result<Learnt, ModelsError> {
        Ok(Learnt { cards: cards.to_vec().into(), asks_key: false, left_out: 0 })
    }

    #[test]
    fn models_and_adapters_are_told_apart() {
        let base = Card { context: Some(4_096), ..Card::made("base") };
        let lora = Card { is_adapter: true, ..Card::made("lo\x1bra") };
        let found = models(&learnt(&[base, lora]), None, false);
        assert_eq!(found, Finding::good("models", "base; adapters lo\\u{1b}ra; context of 4096 tokens"));
        let many: Vec<Card> = (0..20).map(|number| Card::made(&format!("m{number}"))).collect();
        assert!(models(&learnt(&many), Some(7), false).words.ends_with("m7 and 12 more; context of 7 tokens"));
        assert_eq!(models(&learnt(&[]), None, false).mark.as_str(), "advice");
        assert_eq!(models(&Err(ModelsError::KeyWanted), None, false).mark.as_str(), "advice");
        assert_eq!(models(&Err(ModelsError::Shape), None, false).mark.as_str(), "unknown");
    }

    #[test]
    fn sglang_tells_of_itself() {
        let answer =
            |body: &str| Ok(Answer { status: 200, fields: HeaderMap::new(), body: Bytes::from(body.to_owned()) });
        let info = Info::of(&answer(
            r#"{"version": "0.5.4", "disable_radix_cache": true, "kv_events_config": null, "enable_cache_report": false,
                "page_size": 1, "dp_size": 2, "max_total_num_tokens": 5000, "context_length": null, "api_key": "secret"}"#,
        ))
        .unwrap();
        assert_eq!(
            (info.caches, info.reports_cached, info.page_size, info.ranks),
            (Some(false), Some(false), Some(1), Some(2))
        );
        assert_eq!((info.version.as_deref(), info.kv_events_config.as_deref()), (Some("0.5.4"), None));
        assert!(!format!("{info:?}").contains("secret"));
        let newer = r#"{"version": "0.5.23", "disable_radix_cache": false, "dp_size": 1, "attn_dp_size": 8, "frontend": "rust"}"#;
        let newer = Info::of(&answer(newer)).unwrap();
        assert_eq!((newer.ranks, newer.in_rust), (Some(8), true), "groups of attention have caches of their own");
        assert!(Info::of(&answer(r#"{"vllm_config": "..."}"#)).is_none() && Info::of(&answer("[")).is_none());
    }
}
