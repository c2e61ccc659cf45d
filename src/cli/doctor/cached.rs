//! Whether replies say how much of a prompt was cached.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::engine::Asking;
use super::finding::{Change, Finding, shown};
use super::server::Info;
use crate::control::scrape::EngineKind;

const SUBJECT: &str = "cached_tokens";
/// The request for one token may have to wait in the engine's queue.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Words of the prompt: at least one KV block of most engines, and no load to speak of.
const WORDS: std::ops::RangeInclusive<u64> = 200..=2_000;
/// Most tokens of one of its words, if a vocabulary does not have the word.
const WORD_TOKENS_MAX: u64 = 8;

/// What the prompt has to fit into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) block_size: Option<u64>,
    pub(super) context: Option<u64>,
    pub(super) caches: Option<bool>,
}

/// The finding without `--ask`. SGLang says itself whether it reports, and which of its servers runs.
pub(super) fn unasked(kind: Option<EngineKind>, own: &Info) -> Finding {
    match own.reports_cached {
        Some(true) if own.in_rust => silent(kind, own),
        Some(true) => Finding::good(SUBJECT, "replies say how much of a prompt was cached"),
        Some(false) => silent(kind, own),
        None => Finding::unknown(SUBJECT, "not asked; --ask sends one prompt twice, for one token each, to see"),
    }
}

fn silent(kind: Option<EngineKind>, own: &Info) -> Finding {
    if own.reports_cached == Some(true) {
        let words = "replies do not say how much of a prompt was cached, though --enable-cache-report is there: predictions stay\n\
                     unproved; SGLang's server in Rust (SGLANG_RUST_SERVER) tells it on /generate alone";
        return Finding::unknown(SUBJECT, words);
    }
    let flag = match kind {
        Some(EngineKind::Sglang) => "--enable-cache-report",
        _ => "--enable-prompt-tokens-details",
    };
    Finding::advice(SUBJECT, "replies do not say how much of a prompt was cached: predictions stay unproved")
        .to(Change::Add(flag))
}

/// Sends a prompt that no cache holds, twice. Returns what the replies tell, and whether the engine computed it.
pub(super) async fn asked(
    asking: &Asking,
    address: SocketAddr,
    model: &str,
    kind: Option<EngineKind>,
    own: &Info,
    room: Room,
) -> (Finding, bool) {
    let body = json!({"model": model, "prompt": prompt(room), "max_tokens": 1, "temperature": 0}).to_string();
    let mut detail = None;
    for _ in 0..2 {
        let call = asking.call(address, "/v1/completions", TIMEOUT);
        let answer = match asking.client.post(&call, Vec::new(), body.clone().into()).await {
            Ok(answer) if answer.status == 200 => answer,
            Ok(answer) => {
                let words = format!("not told: /v1/completions answers {} to a prompt for one token", answer.status);
                return (Finding::unknown(SUBJECT, words), false);
            }
            Err(error) => {
                let words = format!("not told: /v1/completions: {}", shown(&error.to_string()));
                return (Finding::unknown(SUBJECT, words), false);
            }
        };
        let reply: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        detail = reply.pointer("/usage/prompt_tokens_details/cached_tokens").and_then(Value::as_u64);
    }
    let found = match detail {
        Some(0) if room.caches != Some(false) => {
            let words = "replies say it, and said 0 of a prompt sent twice: nothing of it was kept, or it has less than a block";
            Finding::unknown(SUBJECT, words)
        }
        Some(tokens) => Finding::good(SUBJECT, format!("replies say it: {tokens} of a prompt sent twice")),
        // Engines may leave a zero out.
        None if room.caches == Some(false) => Finding::unknown(SUBJECT, "not told, as nothing is cached"),
        None => silent(kind, own),
    };
    (found, true)
}

/// A prompt of some blocks, which begins like none before.
fn prompt(room: Room) -> String {
    let words =
        room.block_size.map_or(*WORDS.start(), |size| size.saturating_mul(3).clamp(*WORDS.start(), *WORDS.end()));
    let words = room.context.map_or(words, |context| words.min(context / WORD_TOKENS_MAX)).max(1);
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{begin} {}", "warm ".repeat(words as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::finding::Mark;

    #[test]
    fn prompts_are_new_and_have_some_blocks() {
        let of = |block_size, context| prompt(Room { block_size, context, caches: None });
        let words = |text: String| text.matches("warm ").count();
        assert_eq!(words(of(None, None)), 200);
        assert_eq!((words(of(Some(528), None)), words(of(Some(u64::MAX), None))), (1_584, 2_000));
        assert_eq!((words(of(Some(16), Some(80))), words(of(Some(16), Some(0)))), (10, 1));
        assert_ne!(of(None, None), of(None, None));
    }

    #[test]
    fn sglang_need_not_be_asked() {
        let own = |reports_cached, in_rust| Info { reports_cached, in_rust, ..Info::default() };
        let found = |reports, in_rust| unasked(Some(EngineKind::Sglang), &own(reports, in_rust));
        for in_rust in [false, true] {
            assert_eq!(found(Some(false), in_rust).change, Some(Change::Add("--enable-cache-report")));
            assert_eq!((found(Some(true), in_rust).change, found(None, in_rust).change), (None, None));
        }
        assert_eq!(found(Some(true), false).mark, Mark::Good);
        // Its flag is there, and changes nothing.
        let rust = found(Some(true), true);
        assert!(rust.mark == Mark::Unknown && rust.words.contains("/generate alone"), "{rust:?}");
    }
}
