//! Faults of `[routing]`, and of the pools that differ from it.

use serde::Deserialize;

use super::Config;
use super::problem::{Problem, plainer};
use crate::limits::REPLICATION_MAX;
use crate::policy::{Policy, Settings};
use crate::scan::{self, SESSION_FIELDS_MAX};

/// Faults of the keys that name sessions.
fn sessions(settings: &Settings, wrong: &mut impl FnMut(&str, String)) {
    for name in &settings.session_headers {
        let token = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if name.is_empty() || !name.bytes().all(token) {
            wrong(
                "session_headers",
                format!("\"{name}\" is not a header name; write it in lower case, such as \"x-session-id\""),
            );
        }
    }
    for name in &settings.session_fields {
        if name.is_empty() || name.len() > 64 {
            wrong("session_fields", format!("\"{name}\" is not a body field's name of 1 to 64 bytes"));
        } else if name.contains('.') {
            wrong(
                "session_fields",
                format!("\"{name}\" would be within another field; only a field at the top of a body can be named"),
            );
        } else if scan::reads(name) {
            wrong(
                "session_fields",
                format!("\"{name}\" is read for another purpose; it cannot name a session as well"),
            );
        }
    }
}

/// Faults of the settings at `table`.
pub(super) fn faults(settings: &Settings, table: &[&str], found: &mut Vec<Problem>) {
    let mut wrong = |key: &str, message: String| {
        let path = table.iter().copied().chain([key]).map(str::to_owned).collect();
        found.push(Problem { path, message, span: None });
    };
    if settings.load_percent < 100 {
        wrong(
            "load_percent",
            format!(
                "`load_percent` is {}; below 100 not even an even share of the load would be allowed (125 is usual)",
                settings.load_percent
            ),
        );
    }
    if settings.load_percent > 100_000 {
        wrong("load_percent", "`load_percent` cannot be above 100000".into());
    }
    if !(1..=REPLICATION_MAX).contains(&settings.replication) {
        wrong(
            "replication",
            format!(
                "`replication` is {}; it must lie between 1 and {REPLICATION_MAX} (256 is usual)",
                settings.replication
            ),
        );
    }
    if settings.prefix_chars == 0 {
        wrong("prefix_chars", "`prefix_chars` cannot be 0: every prompt would have the same key".into());
    }
    if settings.prefix_bytes == 0 {
        wrong("prefix_bytes", "`prefix_bytes` cannot be 0: every prompt would have the same key".into());
    }
    sessions(settings, &mut wrong);
    if settings.session_fields.len() > SESSION_FIELDS_MAX {
        wrong("session_fields", format!("`session_fields` cannot name more than {SESSION_FIELDS_MAX} fields"));
    }
    let no_names = settings.session_headers.is_empty() && settings.session_fields.is_empty();
    for (key, policy) in [("policy", Some(settings.policy)), ("shadow_policy", settings.shadow_policy.0)] {
        if no_names && policy == Some(Policy::Session) {
            wrong(key, "\"session\" needs `session_headers` or `session_fields`; both are empty".into());
        }
    }
    if let (true, Some(shadow)) = (settings.policy.counts_tokens(), settings.shadow_policy.0)
        && shadow.counts_tokens()
        && shadow != settings.policy
    {
        let message = format!(
            "`shadow_policy` is \"{}\", which cannot be compared with \"{}\": both choose by one index, and what it holds depends on `policy`",
            shadow.as_str(),
            settings.policy.as_str()
        );
        wrong("shadow_policy", message);
    }
}

/// Keys of `[routing]` that say what bodies are scanned for.
const SCANNED_FOR: &[&str] = &["prefix", "prefix_chars", "prefix_bytes", "session_headers", "session_fields"];

/// Faults of each pool's overrides: one by one, so that the faulty one is named, then of all of them together.
pub(super) fn pools(config: &Config, found: &mut Vec<Problem>) {
    let mut outer = Vec::new();
    faults(&config.routing, &["routing"], &mut outer);
    for (id, differs) in &config.pool {
        let before = found.len();
        for (key, value) in differs {
            if SCANNED_FOR.contains(&key.as_str()) {
                let message = format!(
                    "`{key}` is the same for all pools, since a body is scanned before its pool is known: set it in [routing]"
                );
                found.push(Problem::new(["pool", id, key], message));
                continue;
            }
            let alone = toml::Table::from_iter([(key.clone(), value.clone())]);
            if let Err(error) = Settings::deserialize(alone) {
                found.push(Problem::new(["pool", id, key], plainer(error.message())));
            }
        }
        if found.len() == before {
            let mut inner = Vec::new();
            faults(&config.settings_for(id), &["pool", id], &mut inner);
            // A fault of `[routing]` itself is told once, there. But a value that the pool has from there may be wrong
            // in the pool alone, beside a key that differs.
            inner.retain(|problem| {
                let is_own = problem.path.last().is_some_and(|key| differs.contains_key(key));
                is_own
                    || !outer
                        .iter()
                        .any(|said| said.path.last() == problem.path.last() && said.message == problem.message)
            });
            found.append(&mut inner);
        }
    }
}
