//! What was found of an engine, in words, and what to change in its command line.

pub(super) use crate::cli::shown::shown;
use crate::control::scrape::EngineKind;
use crate::kvevents::EVENTS_PORT;

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) mark: Mark,
    pub(super) subject: &'static str,
    /// May have further lines.
    pub(super) words: String,
    pub(super) change: Option<Change>,
}

/// What a finding asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nothing: it is as it should be.
    Good,
    /// A change, with which requests would find caches better.
    Advice,
    /// The engine does not say, or was not asked.
    Unknown,
}

impl Mark {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Mark::Good => "ok",
            Mark::Advice => "advice",
            Mark::Unknown => "unknown",
        }
    }
}

/// What to change in the engine's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Add(&'static str),
    TakeAway(&'static str),
    Publish(Publish),
}

/// The flag that makes an engine publish its events. Ports are chosen when all engines are known,
/// for some share a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Publish {
    pub(super) kind: EngineKind,
    /// Each has two ports of its own: vLLM and SGLang add the rank's number to both.
    pub(super) ranks: u16,
    /// The first rank's port for events, if it is settled already.
    pub(super) events: Option<u16>,
    /// The first rank's port for replays, if it is settled.
    pub(super) replay: Option<u16>,
    /// The topic that it has; it can be written between quotes.
    pub(super) topic: Option<String>,
}

impl Publish {
    pub(super) fn new(kind: EngineKind, ranks: usize) -> Publish {
        let ranks = u16::try_from(ranks).unwrap_or(u16::MAX).clamp(1, 256);
        Publish { kind, ranks, events: None, replay: None, topic: None }
    }

    /// The flag, quoted for a shell.
    pub(super) fn flag(&self) -> String {
        let enable = match self.kind {
            EngineKind::Vllm => "\"enable_kv_cache_events\": true, ",
            EngineKind::Sglang => "",
        };
        let (events, replay) = (self.events.unwrap_or(EVENTS_PORT), self.replay.unwrap_or(EVENTS_PORT + 1));
        let topic = self.topic.as_ref().map(|topic| format!(", \"topic\": \"{topic}\"")).unwrap_or_default();
        format!(
            "--kv-events-config '{{{enable}\"publisher\": \"zmq\", \"endpoint\": \"tcp://*:{events}\", \
             \"replay_endpoint\": \"tcp://*:{replay}\"{topic}}}'"
        )
    }
}

impl Finding {
    pub(super) fn good(subject: &'static str, words: impl Into<String>) -> Finding {
        Finding { mark: Mark::Good, subject, words: words.into(), change: None }
    }

    pub(super) fn advice(subject: &'static str, words: impl Into<String>) -> Finding {
        Finding { mark: Mark::Advice, ..Finding::good(subject, words) }
    }

    pub(super) fn unknown(subject: &'static str, words: impl Into<String>) -> Finding {
        Finding { mark: Mark::Unknown, ..Finding::good(subject, words) }
    }

    pub(super) fn to(self, change: Change) -> Finding {
        Finding { change: Some(change), ..self }
    }
}

/// Whether a text can stand in a flag that is copied into a shell: none of its characters is special there or in JSON.
pub(super) fn is_plain(text: &str) -> bool {
    text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"@:._/-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_what_engines_take() {
        let flag = |kind| Publish::new(kind, 1).flag();
        assert_eq!(
            flag(EngineKind::Vllm),
            r#"--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'"#
        );
        assert_eq!(
            flag(EngineKind::Sglang),
            r#"--kv-events-config '{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'"#
        );
        let kept = Publish { events: Some(9800), topic: Some("kv".into()), ..Publish::new(EngineKind::Sglang, 1) };
        assert!(kept.flag().contains("*:9800\"") && kept.flag().ends_with("\"topic\": \"kv\"}'"));
    }

    #[test]
    fn what_means_nothing_to_a_shell_may_stand_in_a_flag() {
        assert!(is_plain("kv@127.0.0.1:9100@tiny-llama") && !is_plain("kv'; reboot; '") && !is_plain("a\"b"));
    }
}
