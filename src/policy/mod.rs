//! The choice of an endpoint: a pure function of snapshot, counters and request.

use serde::{Deserialize, Serialize};

/// The policies, by the name operators write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Uniformly.
    Random,
    /// One after the other, per shard.
    RoundRobin,
    /// Fewest in flight, random among ties.
    LeastLoad,
    /// Session key on the bounded ring.
    Session,
    /// Prompt prefix on the bounded ring (CHWBL).
    PrefixHash,
}

/// How full a home may be before a key is sent past it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Integers with a slack, weighted.
    Slots,
    /// KubeAI's published rule, so that its users can compare.
    Kubeai,
}

/// Which part of the prompt makes the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefixMode {
    /// Text of the first user message (KubeAI's).
    FirstUser,
    /// The whole prompt in canonical order from its start: tools and system prompt take part.
    Conversation,
}

/// How one pool chooses: `[routing]`, overridden by `[pool.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The policy.
    pub policy: Policy,
    /// Which part of the prompt makes the key.
    pub prefix: PrefixMode,
    /// `first-user`: how many characters of it.
    pub prefix_chars: u32,
    /// `conversation`: how many canonical bytes of it.
    pub prefix_bytes: u32,
    /// Points on the ring per endpoint and unit of weight.
    pub replication: u32,
    /// Which bound.
    pub bound: Bound,
    /// c of the bound, in percent of the mean load.
    pub load_percent: u32,
    /// Requests a home may always have beyond the mean.
    pub load_slack: u32,
    /// Header fields that may carry a session key, first found wins.
    pub session_headers: Vec<String>,
    /// Top-level body fields that may carry a session key, looked at when no header does.
    pub session_fields: Vec<String>,
    /// Tokens an image counts in the estimate.
    pub image_tokens: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let words = |list: &[&str]| list.iter().map(|word| word.to_string()).collect();
        Settings {
            policy: Policy::PrefixHash,
            prefix: PrefixMode::FirstUser,
            prefix_chars: 100,
            prefix_bytes: 4096,
            replication: 256,
            bound: Bound::Slots,
            load_percent: 125,
            load_slack: 4,
            session_headers: words(&[
                "x-session-id",
                "x-smg-routing-key",
                "x-user-id",
                "x-claude-code-session-id",
                "x-session-token",
                "x-dynamo-session-id",
            ]),
            session_fields: words(&["prompt_cache_key", "user"]),
            image_tokens: 1_000,
        }
    }
}
