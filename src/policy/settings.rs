//! How a pool chooses, as an operator sets it, and what bodies are scanned for in consequence.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::Policy;
use crate::scan::{Needs, Plain, Plan, PrefixMode};

/// `shadow_policy`: a second policy whose choices are counted and never followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShadowPolicy(pub Option<Policy>);

impl ShadowPolicy {
    /// None.
    pub const OFF: ShadowPolicy = ShadowPolicy(None);
}

impl TryFrom<String> for ShadowPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let named = || Policy::value_variants().iter().find(|policy| policy.as_str() == text);
        match text.as_str() {
            "" | "off" => Ok(ShadowPolicy::OFF),
            _ => named().map(|policy| ShadowPolicy(Some(*policy))).ok_or_else(|| {
                let names: Vec<&str> = Policy::value_variants().iter().map(|policy| policy.as_str()).collect();
                format!("`shadow_policy` is \"off\" or the name of a policy ({}), not \"{text}\"", names.join(", "))
            }),
        }
    }
}

impl From<ShadowPolicy> for String {
    fn from(shadow: ShadowPolicy) -> String {
        shadow.0.map_or("off", Policy::as_str).into()
    }
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

/// Whether requests of policy `warm` wait in the front for room in the cache that holds their prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Queueing {
    /// While that pays.
    Auto,
    /// Always.
    On,
    /// Never: the engines queue them.
    Off,
}

/// How one pool chooses: `[routing]`, overridden by `[pool.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The policy.
    pub policy: Policy,
    /// What is computed beside it.
    pub shadow_policy: ShadowPolicy,
    /// Which part of the prompt makes the key.
    pub prefix: PrefixMode,
    /// `first-user`: how many characters of it.
    pub prefix_chars: u32,
    /// `conversation`: how many canonical bytes of it.
    pub prefix_bytes: u32,
    /// Whether requests wait in the front for room.
    pub queue: Queueing,
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
    /// `precise`: folder of the model's `tokenizer.json` and chat template; empty: not known here.
    pub tokenizer: PathBuf,
}

impl Settings {
    /// What bodies are scanned for, where there is one pool.
    pub fn plan(&self) -> Plan {
        self.plan_among(std::slice::from_ref(self))
    }

    /// The same where there are several `pools`; these settings are those that say what is read for all of them.
    pub fn plan_among(&self, pools: &[Settings]) -> Plan {
        let chain = pools.iter().any(Settings::counts_tokens);
        // The keys of a pool are made as its own policy says, whatever is read for another's sake.
        let keyed = |policy: Policy| policy.needs().contains(Needs::PREFIX) && !policy.counts_tokens();
        let chosen = pools.iter().any(|pool| keyed(pool.policy));
        let shadow = pools.iter().any(|pool| pool.shadow_policy.0.is_some_and(keyed));
        Plan {
            prefix: self.prefix,
            prefix_chars: self.prefix_chars,
            prefix_bytes: self.prefix_bytes,
            chain,
            plain: Plain { chosen: chain && chosen, shadow: chain && shadow },
            session_fields: self.session_fields.iter().map(|name| name.as_bytes().into()).collect(),
        }
    }

    /// Whether this policy is the pool's own or its shadow.
    #[inline]
    pub fn looks_at(&self, policy: Policy) -> bool {
        self.policy == policy || self.shadow_policy.0 == Some(policy)
    }

    /// Whether the pool's own policy or its shadow counts tokens.
    #[inline]
    pub fn counts_tokens(&self) -> bool {
        self.policy.counts_tokens() || self.shadow_policy.0.is_some_and(Policy::counts_tokens)
    }

    /// What of a body the pool's own policy and its shadow need.
    pub fn needs(&self) -> Needs {
        self.shadow_policy.0.map_or(Needs::NONE, Policy::needs) | self.policy.needs()
    }
}

impl Default for Settings {
    fn default() -> Self {
        let words = |list: &[&str]| list.iter().map(|word| word.to_string()).collect();
        Settings {
            policy: Policy::Warm,
            shadow_policy: ShadowPolicy::OFF,
            prefix: PrefixMode::FirstUser,
            prefix_chars: 100,
            prefix_bytes: 4096,
            queue: Queueing::Auto,
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
            tokenizer: PathBuf::new(),
        }
    }
}
