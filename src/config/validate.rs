//! Faults of values that have the right type.

use std::collections::HashMap;

use serde::Serialize;

use super::problem::Problem;
use super::{Config, Health, Serve, Shards, Upstream};
use super::{listeners, origin, queue, routing};
use crate::limits::{ENDPOINTS_MAX, Limits, RECEIPTS_MAX, RECEIVE_BYTES, WEIGHT_MAX};

/// Most that `head_bytes_max` can be: one receive buffer has to hold a head.
const HEAD_BYTES_HARD: usize = RECEIVE_BYTES;
const HOUR_MS: u64 = 3_600_000;
const MONTH_MS: u64 = 31 * 24 * HOUR_MS;
/// Most that `publish_interval_ms` can be: for that long shards may not learn that an engine is down, nor of a reload
/// that shortens it.
const PUBLISH_INTERVAL_MS_MAX: u64 = 5_000;
/// Most that `connect_tries_max` can be: how many tried endpoints a request remembers.
const CONNECT_TRIES_HARD: u32 = 8;
/// Keys of `[limits]` that may be 0: nothing read ahead and nothing lingered for are sensible; a bound of 0 elsewhere
/// stops all traffic.
const MAY_BE_ZERO: &[&str] = &[
    "read_ahead_bytes",
    "linger_bytes_max",
    "interim_replies_max",
    "idle_upstreams_max",
    "budget_bytes",
    "index_bytes",
    "linger_timeout_ms",
    "upload_grace_ms",
    "upload_bytes_per_second_min",
    "drain_delay_ms",
    "drain_timeout_ms",
    "retry_percent",
    "failed_charge_ms",
];

/// Faults of the values a file sets.
pub(super) fn values(config: &Config) -> Vec<Problem> {
    let mut found = Vec::new();
    serve(&config.serve, &mut found);
    limits(&config.limits, &mut found);
    health(&config.health, &mut found);
    for (key, value) in [
        ("scrape_interval_ms", config.control.scrape_interval_ms),
        ("scrape_timeout_ms", config.control.scrape_timeout_ms),
        ("scrape_bytes_max", config.control.scrape_bytes_max as u64),
        ("models_interval_ms", config.control.models_interval_ms),
        ("models_timeout_ms", config.control.models_timeout_ms),
        ("models_bytes_max", config.control.models_bytes_max as u64),
        ("resolve_interval_ms", config.control.resolve_interval_ms),
        ("publish_interval_ms", config.control.publish_interval_ms),
    ] {
        at_least_one("control", key, value, &mut found);
    }
    if config.control.publish_interval_ms > PUBLISH_INTERVAL_MS_MAX {
        let words = format!(
            "`publish_interval_ms` cannot be above {PUBLISH_INTERVAL_MS_MAX}: shards may learn that late that an engine is \
             down; write 10, or some hundred if a large fleet changes all the time"
        );
        found.push(Problem::new(["control", "publish_interval_ms"], words));
    }
    let next = next_scrape_ms(config);
    if config.control.stale_after_ms <= next {
        let words = format!(
            "`stale_after_ms` must be above {next}, since `scrape_interval_ms` varies by a tenth: readings would be stale before the next ones"
        );
        found.push(Problem::new(["control", "stale_after_ms"], words));
    }
    too_long(config, &mut found);
    routing::faults(&config.routing, &["routing"], &mut found);
    queue::faults(&config.queue, &mut found);
    routing::pools(config, &mut found);
    upstreams(&config.upstream, &mut found);
    if config.log.receipts > RECEIPTS_MAX {
        let words = format!("`receipts` cannot be above {RECEIPTS_MAX}; for older requests keep an access log");
        found.push(Problem::new(["log", "receipts"], words));
    }
    let file = config.control.caches_file.as_os_str().as_encoded_bytes();
    if !file.is_empty() && (!file.starts_with(b"/") || file.ends_with(b"/")) {
        // Relative ones would depend on where the process was started.
        let words = format!(
            "`caches_file` is the whole path of a file, or \"\" for none, not \"{}\"",
            config.control.caches_file.display()
        );
        found.push(Problem::new(["control", "caches_file"], words));
    }
    found.extend(config.log.level_fault().map(|words| Problem::new(["log", "level"], words)));
    found
}

/// Faults of file and flags together.
pub(super) fn whole(config: &Config) -> Vec<Problem> {
    let mut found = values(config);
    if config.upstream.is_empty() {
        found.push(Problem::new(
            ["upstream"],
            "no engine to forward to; give --upstream http://HOST:PORT, or a configuration file with\n\
             \n    [[upstream]]\n    url = \"http://HOST:PORT\"\n",
        ));
    }
    listeners::whole(config, &mut found);
    found
}

/// The longest interval between two readings: intervals vary by a tenth, so that not all engines are asked at once.
fn next_scrape_ms(config: &Config) -> u64 {
    config.control.scrape_interval_ms.saturating_mul(11) / 10
}

impl Config {
    /// Why readings of engines may go stale before the next ones come, in words: if each takes as long as it may.
    pub(super) fn readings_wanting(&self) -> Option<String> {
        let next = next_scrape_ms(self).saturating_add(self.control.scrape_timeout_ms);
        (self.control.stale_after_ms <= next).then(|| {
            format!(
                "if /metrics is slow, readings will be stale before the next ones: the longest interval and `scrape_timeout_ms` \
                 are {next} together; set `stale_after_ms` above that, or lower the timeout"
            )
        })
    }
}

fn at_least_one(table: &str, key: &str, value: u64, found: &mut Vec<Problem>) {
    if value == 0 {
        found.push(Problem::new([table, key], format!("`{key}` cannot be 0")));
    }
}

/// Faults of times that are too long. Instants are microseconds: a time meant as for ever would wrap round to the past.
fn too_long(config: &Config, found: &mut Vec<Problem>) {
    let tables = [
        ("limits", numbers(&config.limits)),
        ("health", numbers(&config.health)),
        ("control", numbers(&config.control)),
        ("queue", numbers(&config.queue)),
    ];
    for (table, keys) in tables {
        for (key, _) in keys.iter().filter(|(key, value)| key.ends_with("_ms") && *value > MONTH_MS) {
            let words = format!("`{key}` cannot be above {MONTH_MS}, 31 days");
            found.push(Problem::new([table, key], words));
        }
    }
}

fn serve(serve: &Serve, found: &mut Vec<Problem>) {
    let mut wrong = |key: &str, message: String| found.push(Problem::new(["serve", key], message));
    if serve.shards == Shards::Count(0) {
        wrong(
            "shards",
            "`shards` cannot be 0: no thread would accept connections; write \"auto\" for one a core".into(),
        );
    }
    if let Shards::Count(1025..) = serve.shards {
        wrong("shards", "`shards` cannot be above 1024".into());
    }
    if serve.listen.is_empty() {
        wrong("listen", "`listen` is empty: clients could not connect; write for example [\"0.0.0.0:8000\"]".into());
    }
    if let Some(twice) = listeners::twice(serve) {
        wrong("listen", twice);
    }
    for fault in serve.allowed_origins.iter().filter_map(|origin| origin::fault(origin)) {
        wrong("allowed_origins", fault);
    }
    for path in &serve.paths {
        let pattern = path.strip_suffix("/*").unwrap_or(path);
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"?#*%".contains(&byte);
        if !path.starts_with('/') || !pattern.bytes().all(plain) {
            wrong(
                "paths",
                format!("\"{path}\" is not a path; write one such as \"/metrics\", or \"/admin/*\" for all below"),
            );
        }
    }
}

fn limits(limits: &Limits, found: &mut Vec<Problem>) {
    for (key, value) in numbers(limits) {
        if !MAY_BE_ZERO.contains(&key.as_str()) {
            at_least_one("limits", &key, value, found);
        }
    }
    let mut wrong = |key: &str, message: String| found.push(Problem::new(["limits", key], message));
    if limits.head_bytes_max > HEAD_BYTES_HARD {
        wrong(
            "head_bytes_max",
            format!("`head_bytes_max` cannot be above {HEAD_BYTES_HARD}, the size of one receive buffer"),
        );
    }
    if (1..256).contains(&limits.head_bytes_max) {
        wrong("head_bytes_max", "`head_bytes_max` below 256 refuses every client".into());
    }
    if limits.head_fields_max > 1_000 {
        wrong("head_fields_max", "`head_fields_max` cannot be above 1000".into());
    }
    if limits.hold_bytes as u64 > limits.body_bytes_max {
        let most = limits.body_bytes_max;
        wrong(
            "hold_bytes",
            format!("`hold_bytes` cannot be above `body_bytes_max` ({most}): no body is longer than that"),
        );
    }
    if limits.budget_bytes != 0 && limits.hold_bytes > limits.budget_bytes {
        let most = limits.budget_bytes;
        wrong(
            "hold_bytes",
            format!("`hold_bytes` cannot be above `budget_bytes` ({most}), which all held bodies share"),
        );
    }
    if limits.read_ahead_bytes > RECEIVE_BYTES {
        wrong(
            "read_ahead_bytes",
            format!("`read_ahead_bytes` cannot be above {RECEIVE_BYTES}, the size of one receive buffer"),
        );
    }
    if limits.retry_percent > 100 {
        wrong("retry_percent", "`retry_percent` is a share of all requests: at most 100".into());
    }
    if limits.connect_tries_max > CONNECT_TRIES_HARD {
        wrong("connect_tries_max", format!("`connect_tries_max` cannot be above {CONNECT_TRIES_HARD}"));
    }
}

/// Every key of a table that is a number, with its value.
fn numbers(table: &impl Serialize) -> Vec<(String, u64)> {
    // Not by way of TOML, which has no number of 2^63 or more: a table with one would not be checked at all.
    let Ok(serde_json::Value::Object(table)) = serde_json::to_value(table) else { return Vec::new() };
    table.iter().filter_map(|(key, value)| Some((key.clone(), value.as_u64()?))).collect()
}

fn health(health: &Health, found: &mut Vec<Problem>) {
    for (key, value) in [
        ("probe_interval_ms", health.probe_interval_ms),
        ("probe_timeout_ms", health.probe_timeout_ms),
        ("failures_down", health.failures_down.into()),
        ("successes_up", health.successes_up.into()),
        ("eject_ms", health.eject_ms),
    ] {
        at_least_one("health", key, value, found);
    }
    if health.eject_ms_max < health.eject_ms {
        let message = format!(
            "`eject_ms_max` is less than `eject_ms` ({}), which is the first and shortest of these times",
            health.eject_ms
        );
        found.push(Problem::new(["health", "eject_ms_max"], message));
    }
    for (key, value) in [("eject_ms_max", health.eject_ms_max), ("slow_start_ms", health.slow_start_ms)] {
        if value > HOUR_MS {
            let message = format!("`{key}` cannot be above {HOUR_MS}, an hour: a healthy engine would stand idle");
            found.push(Problem::new(["health", key], message));
        }
    }
    if !health.path.starts_with('/') || !health.path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        let message = format!("\"{}\" is not a path; write one such as \"/health\"", health.path);
        found.push(Problem::new(["health", "path"], message));
    }
}

fn upstreams(upstreams: &[Upstream], found: &mut Vec<Problem>) {
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut urls: HashMap<String, usize> = HashMap::new();
    for (index, upstream) in upstreams.iter().enumerate() {
        let place = index.to_string();
        let mut wrong = |key: &str, message: String| found.push(Problem::new(["upstream", &place, key], message));
        if upstream.weight == 0 {
            wrong("weight", "`weight` cannot be 0; set `drain = true` to send it nothing".into());
        }
        if upstream.weight > WEIGHT_MAX {
            wrong("weight", format!("`weight` cannot be above {WEIGHT_MAX}: its points would crowd the ring"));
        }
        if upstream.models.iter().any(|id| id.is_empty() || id.len() > 256) {
            wrong("models", "`models` lists served ids of 1 to 256 bytes".into());
        }
        if let Some(why) = upstream.name_fault() {
            wrong("name", why);
        }
        if let Err(why) = upstream.kv_source() {
            wrong("kv_events", why);
        }
        if let Some(why) = upstream.ranks_fault() {
            wrong("ranks", why);
        }
        let authority = upstream.url.authority();
        if let Some(first) = urls.insert(authority, index) {
            let (first, second, url) = (nth(first), nth(index), &upstream.url);
            let words = format!("the {first} and the {second} [[upstream]] have the same `url`, {url}");
            wrong("url", format!("{words}; a server of several data-parallel ranks is named once, with `ranks`"));
        } else if let Some((label, first)) = called_alike(upstream, index, &mut names) {
            wrong(
                "name",
                format!(
                    "the {} and the {} [[upstream]] are both called \"{label}\"; names make the ring's points and must differ",
                    nth(first),
                    nth(index)
                ),
            );
        }
    }
    let ranks = upstreams.iter().map(|upstream| upstream.ranks as usize).fold(0, usize::saturating_add);
    if ranks > ENDPOINTS_MAX {
        let words = match upstreams.iter().any(Upstream::has_ranks) {
            true => format!("there can be at most {ENDPOINTS_MAX} ranks of all [[upstream]]s together, not {ranks}"),
            false => format!("there can be at most {ENDPOINTS_MAX} [[upstream]]s"),
        };
        found.push(Problem::new(["upstream"], words));
    }
}

/// A name that it has in common with an upstream before it, and that one's index. Its names are its server's and its
/// ranks'.
fn called_alike(upstream: &Upstream, index: usize, names: &mut HashMap<String, usize>) -> Option<(String, usize)> {
    let ranks = upstream.each_rank().map(|rank| rank.label());
    let mut own: Vec<String> = std::iter::once(upstream.label()).chain(ranks).collect();
    own.dedup();
    let taken = own.iter().find_map(|name| Some((name.clone(), *names.get(name)?)));
    names.extend(own.into_iter().map(|name| (name, index)));
    taken
}

fn nth(index: usize) -> String {
    let suffix = match (index + 1) % 100 {
        11..=13 => "th",
        other => match other % 10 {
            1 => "st",
            2 => "nd",
            3 => "rd",
            _ => "th",
        },
    };
    format!("{}{suffix}", index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_readings_outlast_the_next_ones() {
        for (interval, timeout, stale, is_said) in [
            (1_000, 1_000, 5_000, false),
            (1_000, 1_000, 2_101, false),
            (1_000, 1_000, 2_100, true),
            (1_000, 1_000, 1_500, true),
            (200, 3_000, 500, true),
            (1, u64::MAX, u64::MAX, true),
        ] {
            let mut config = Config::default();
            config.control.scrape_interval_ms = interval;
            config.control.scrape_timeout_ms = timeout;
            config.control.stale_after_ms = stale;
            assert_eq!(config.readings_wanting().is_some(), is_said, "{interval} {timeout} {stale}");
        }
        assert_eq!(Config::default().readings_wanting(), None);
    }
}
