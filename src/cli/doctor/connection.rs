//! What the head of an answer says of the connection and of the engine's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::{CONNECTION, DATE, HeaderMap};

use super::finding::{Finding, shown};
use crate::calendar::of_imf_fixdate;
use crate::control::scrape::EngineKind;

/// Clocks that differ by less are alike: `date` has whole seconds, and servers renew it once a second.
const APART_MAX: Duration = Duration::from_secs(2);

/// The engine's `date` beside our clock, which showed `sent` before the answer and `came` after it.
pub(super) fn clock(fields: &HeaderMap, sent: SystemTime, came: SystemTime) -> Finding {
    const SUBJECT: &str = "clock";
    let Some(text) = fields.get(DATE) else { return Finding::unknown(SUBJECT, "its answers have no date") };
    let Some(theirs) = of_imf_fixdate(text.as_bytes()).map(Duration::from_secs) else {
        let text = String::from_utf8_lossy(text.as_bytes());
        return Finding::unknown(SUBJECT, format!("its date cannot be read: {}", shown(&text)));
    };
    let ours = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    // `date` names the second under way: their clock is behind only by what is beyond the end of that.
    let behind = ours(sent).saturating_sub(theirs + Duration::from_secs(1));
    let ahead = theirs.saturating_sub(ours(came));
    let apart = |by: Duration, side| {
        let words = format!("{} s {side} ours; keep both by NTP, or times in logs and events mislead", by.as_secs());
        Finding::advice(SUBJECT, words)
    };
    if behind > APART_MAX {
        apart(behind, "behind")
    } else if ahead > APART_MAX {
        apart(ahead, "ahead of")
    } else {
        Finding::good(SUBJECT, "as ours")
    }
}

/// How long idle connections live there, beside how long the front keeps them.
pub(super) fn keep_alive(fields: &HeaderMap, kind: Option<EngineKind>, idle: Duration) -> Finding {
    const SUBJECT: &str = "keep-alive";
    let says = |name: &str, word: &str| {
        let values = fields.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    if says(CONNECTION.as_str(), "close") {
        return Finding::advice(
            SUBJECT,
            "it closes each connection after its answer: each request has to connect anew",
        );
    }
    let told = fields.get("keep-alive").and_then(|value| value.to_str().ok());
    let told = told.and_then(|value| value.split(',').find_map(|part| part.trim().strip_prefix("timeout=")));
    let ours = idle.as_millis();
    let (flag, by_default) = match kind {
        Some(EngineKind::Vllm) => ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "not told, vLLM's default is 5 s"),
        Some(EngineKind::Sglang) => ("SGLANG_TIMEOUT_KEEP_ALIVE", "not told, SGLang's default is 5 s"),
        None => ("its keep-alive", "not told"),
    };
    match told.and_then(|seconds| seconds.parse::<u32>().ok()) {
        Some(seconds) if u128::from(seconds) * 1_000 > ours => {
            Finding::good(SUBJECT, format!("{seconds} s; the front closes idle connections after {ours} ms"))
        }
        Some(seconds) => Finding::advice(
            SUBJECT,
            format!(
                "{seconds} s, and the front keeps idle connections {ours} ms; raise {flag}, or lower `upstream_idle_timeout_ms`"
            ),
        ),
        None => Finding::unknown(SUBJECT, format!("{by_default}; keep it above the front's {ours} ms")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::finding::Mark;

    fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn clocks_are_apart_beyond_two_seconds() {
        let at = |seconds: u64, millis: u64| UNIX_EPOCH + Duration::from_millis(seconds * 1_000 + millis);
        let theirs = fields(&[("date", "Sun, 06 Nov 1994 08:49:37 GMT")]);
        let begin = 784_111_777;
        let found = |sent, came| clock(&theirs, sent, came);
        assert_eq!(found(at(begin, 999), at(begin + 1, 0)).mark, Mark::Good);
        assert_eq!(found(at(begin + 3, 0), at(begin + 3, 1)).mark, Mark::Good);
        let behind = found(at(begin + 33, 0), at(begin + 60, 0));
        assert!(behind.mark == Mark::Advice && behind.words.starts_with("32 s behind ours"), "{behind:?}");
        assert_eq!(found(at(begin - 9, 0), at(begin - 2, 0)).mark, Mark::Good);
        let ahead = found(at(begin - 9, 0), at(begin - 8, 0));
        assert!(ahead.mark == Mark::Advice && ahead.words.starts_with("8 s ahead of ours"), "{ahead:?}");
        assert_eq!(clock(&fields(&[]), at(1, 0), at(1, 0)).mark, Mark::Unknown);
        assert_eq!(clock(&fields(&[("date", "soon")]), at(1, 0), at(1, 0)).mark, Mark::Unknown);
    }

    #[test]
    fn idle_connections_have_to_outlive_the_front_s() {
        let idle = Duration::from_secs(3);
        let mark = |pairs: &[(&'static str, &'static str)]| keep_alive(&fields(pairs), None, idle).mark;
        assert_eq!(mark(&[]), Mark::Unknown);
        assert_eq!(mark(&[("keep-alive", "max=100, timeout=75")]), Mark::Good);
        assert_eq!(mark(&[("keep-alive", "timeout=3")]), Mark::Advice);
        assert_eq!(mark(&[("keep-alive", "timeout=soon")]), Mark::Unknown);
        assert_eq!(mark(&[("connection", "x, Close"), ("keep-alive", "timeout=75")]), Mark::Advice);
        let words = keep_alive(&fields(&[]), Some(EngineKind::Vllm), idle).words;
        assert!(words.contains("5 s") && words.contains("3000 ms"), "{words}");
    }
}
