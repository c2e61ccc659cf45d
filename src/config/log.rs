//! What is logged, and what is kept of requests.

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::Access;
use super::problem::nearest;

/// The names of levels.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
/// The crates that log: a filter for another one would silence everything.
const LOGGING: [&str; 2] = ["warmfront", "hyper_util"];

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Least severe level printed: error, warn, info, debug, trace; or a filter such as
    /// `info,warmfront::control=debug`.
    pub level: String,
    /// One line of text or one JSON object an event.
    pub format: LogFormat,
    /// Where each finished request gets a line.
    pub access: Access,
    /// How such a line is written: text or JSON.
    pub access_format: LogFormat,
    /// Whether such a line has hashes of the prompt, where a policy makes them.
    pub access_chain: bool,
    /// How many finished requests the admin listener can tell of.
    pub receipts: usize,
}

impl Default for Log {
    fn default() -> Self {
        Log {
            level: "info".into(),
            format: LogFormat::Text,
            access: Access::Off,
            access_format: LogFormat::Json,
            access_chain: false,
            receipts: 1_024,
        }
    }
}

impl Log {
    /// What is wrong with `level`, in words. The filter's own parser takes any word for a target, and then prints
    /// nothing else.
    pub(super) fn level_fault(&self) -> Option<String> {
        let has_level = self.level.split(',').any(is_level);
        let part = self.level.split(',').find_map(|part| part_fault(part, has_level));
        let whole = || self.level.parse::<Targets>().is_err().then(|| format!("\"{}\" is not a log level", self.level));
        part.or_else(whole).map(|what| {
            format!(
                "{what}; `level` is error, warn, info, debug, trace, off, or a filter such as \"info,warmfront::control=debug\""
            )
        })
    }
}

/// What is wrong with one part of a filter.
fn part_fault(part: &str, has_level: bool) -> Option<String> {
    let meant = |word: &str, known: &[&'static str]| {
        nearest(word, known.iter().copied()).map(|meant| format!(", did you mean \"{meant}\"?")).unwrap_or_default()
    };
    let Some((target, level)) = part.split_once('=') else {
        return (!is_level(part)).then(|| format!("\"{part}\" is not a log level{}", meant(part, &LEVELS)));
    };
    let first = target.split([':', '[']).next().unwrap_or_default();
    // Beside a level for all targets an unknown one silences nothing, but it may be one of ours, mistyped.
    let harmless = has_level && nearest(first, LOGGING.iter().copied()).is_none();
    if !LOGGING.contains(&first) && !harmless {
        let meant = meant(first, &LOGGING);
        return Some(format!("nothing is logged by \"{target}\": targets begin with \"warmfront\"{meant}"));
    }
    (!is_level(level)).then(|| format!("\"{level}\" is not a log level{}", meant(level, &LEVELS)))
}

/// Whether a word is a level. Numbers are; an empty word is not, though the parser takes it.
fn is_level(word: &str) -> bool {
    !word.is_empty() && word.parse::<LevelFilter>().is_ok()
}

/// How an event is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For collectors.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(level: &str) -> Option<String> {
        Log { level: level.into(), ..Log::default() }.level_fault()
    }

    #[test]
    fn levels_and_filters_are_taken() {
        for level in [
            "error",
            "INFO",
            "trace",
            "off",
            "info,warmfront::control=debug",
            "warn,warmfront=info",
            "info,hyper_util=off",
            "info,tokio=off,h2=warn",
            "warmfront::kvevents=trace,info",
        ] {
            assert_eq!(fault(level), None, "{level}");
        }
    }

    #[test]
    fn what_would_silence_the_log_is_refused() {
        for (level, words) in [
            ("inof", "\"inof\" is not a log level, did you mean \"info\"?"),
            ("", "\"\" is not a log level; `level` is error, warn, "),
            ("info,", "\"\" is not a log level"),
            ("warmfront", "\"warmfront\" is not a log level"),
            ("info,warmfrnot::control=debug", "\"warmfrnot::control\": targets begin with \"warmfront\", did you mean"),
            ("info,warmfront::control=debgu", "did you mean \"debug\"?"),
            ("info,warmfront::control=", "\"\" is not a log level"),
            ("loud=x=y", "nothing is logged by \"loud\""),
            ("tokio=debug", "nothing is logged by \"tokio\""),
            ("info,tokio=loud", "\"loud\" is not a log level"),
        ] {
            let said = fault(level).unwrap_or_default();
            assert!(said.contains(words), "{level}: {said}");
        }
    }
}
