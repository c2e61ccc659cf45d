//! `[queue]`: requests that wait in the front for room in an engine's cache.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::{Cidr, Config};
use crate::limits::{QUEUE_MAX, TENANT_WEIGHT_MAX};
use crate::policy::{Queueing, Settings};

/// How many requests wait, for how long, and in which order. Whether they wait at all is each pool's `queue`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Most requests that wait, in all pools together; further ones are answered 429.
    /// Once it is full, pools without an engine in common share it evenly.
    pub waiting_max: u32,
    /// Longest wait; then 429.
    pub timeout_ms: u64,
    /// Header field whose value names the tenant that a request counts for, such as `x-tenant` or `authorization`;
    /// empty: all are one.
    pub tenant_header: String,
    /// Peers whose `x-warmfront-priority`, or `priority` in the body, is believed.
    pub priority_from: Vec<Cidr>,
    /// Whether low or high priorities go first.
    pub priority_first: PriorityFirst,
    /// By the value of that field: how much more of the room a tenant gets than one of weight 1.
    pub weights: BTreeMap<String, u32>,
}

/// Which priority goes first. Engines order their own queues by the same numbers, and differ in this.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PriorityFirst {
    /// As vLLM, and SGLang with `--schedule-low-priority-values-first`.
    #[default]
    Lowest,
    /// As SGLang otherwise.
    Highest,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            waiting_max: 1_024,
            timeout_ms: 30_000,
            tenant_header: String::new(),
            priority_from: Cidr::everywhere(),
            priority_first: PriorityFirst::Lowest,
            weights: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Why `queue` or `weights` have no effect in any pool, in words, if they have none.
    pub(super) fn queue_wanting(&self) -> Option<&'static str> {
        let pools = || self.pool.keys().map(|id| self.settings_for(id)).chain([self.routing.clone()]);
        let is_asked = !self.queue.weights.is_empty() || pools().any(|pool| pool.queue == Queueing::On);
        let queues = |pool: Settings| pool.queue != Queueing::Off && pool.policy.counts_tokens();
        if !is_asked {
            None
        } else if !pools().any(queues) {
            Some(
                "requests wait for room in a cache under the policies `warm` and `precise` alone, and no pool that may queue has one of them",
            )
        } else if self.limits.index_bytes == 0 {
            Some(
                "whether a request waits depends on what is known of the caches, which is nothing with `index_bytes = 0`",
            )
        } else {
            None
        }
    }
}

/// Faults of the values of `[queue]`.
pub(super) fn faults(queue: &Queue, found: &mut Vec<Problem>) {
    let mut wrong = |key: &str, message: String| found.push(Problem::new(["queue", key], message));
    if queue.waiting_max == 0 {
        wrong(
            "waiting_max",
            "`waiting_max` cannot be 0; write `queue = \"off\"` in [routing] to let nobody wait".into(),
        );
    }
    if queue.waiting_max as usize > QUEUE_MAX {
        wrong("waiting_max", format!("`waiting_max` cannot be above {QUEUE_MAX}"));
    }
    if queue.timeout_ms == 0 {
        wrong("timeout_ms", "`timeout_ms` cannot be 0; write `queue = \"off\"` in [routing] to let nobody wait".into());
    }
    let header = &queue.tenant_header;
    let token = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    if !header.bytes().all(token) {
        wrong(
            "tenant_header",
            format!("\"{header}\" is not a header name; write it in lower case, such as \"x-tenant\""),
        );
    }
    if header.is_empty() && !queue.weights.is_empty() {
        wrong(
            "weights",
            "`weights` name tenants, but no `tenant_header` says which header field has their names".into(),
        );
    }
    for (tenant, weight) in &queue.weights {
        if !(1..=TENANT_WEIGHT_MAX).contains(weight) {
            let message = format!("the weight of this tenant is {weight}; write 1 to {TENANT_WEIGHT_MAX}");
            found.push(Problem::new(["queue", "weights", tenant], message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_in_which_nobody_waits_is_said() {
        let weights = "[queue]\ntenant_header = \"x-tenant\"\nweights = { a = 2 }\n";
        for (text, words) in [
            ("[routing]\npolicy = \"least-load\"\n", None),
            ("[routing]\nqueue = \"on\"\n", None),
            (weights, None),
            ("[routing]\npolicy = \"least-load\"\nqueue = \"on\"\n", Some("no pool that may queue")),
            ("[routing]\npolicy = \"least-load\"\nqueue = \"on\"\n[pool.x]\npolicy = \"precise\"\n", None),
            ("[routing]\nqueue = \"on\"\n[limits]\nindex_bytes = 0\n", Some("`index_bytes = 0`")),
            (&format!("[routing]\nqueue = \"off\"\n{weights}"), Some("no pool that may queue")),
            (
                &format!("[routing]\npolicy = \"session\"\nshadow_policy = \"warm\"\n{weights}"),
                Some("no pool that may queue"),
            ),
        ] {
            let said = Config::parse(text, std::path::Path::new("w.toml")).unwrap().queue_wanting();
            assert_eq!(said.is_some(), words.is_some(), "{text}: {said:?}");
            assert!(words.is_none_or(|words| said.is_some_and(|said| said.contains(words))), "{text}: {said:?}");
        }
    }
}
