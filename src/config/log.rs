//! What is logged, and what is kept of requests.

use serde::{Deserialize, Serialize};

use super::Access;

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Least level printed: error, warn, info, debug, trace; or a filter such as `info,warmfront::control=debug`.
    pub level: String,
    /// One line of text or one JSON object an event.
    pub format: LogFormat,
    /// Where each finished request gets a line.
    pub access: Access,
    /// The same of such a line.
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

/// How an event is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For collectors.
    Json,
}
