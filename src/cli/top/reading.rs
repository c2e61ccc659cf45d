//! What a front's `/metrics` said at one moment. A series that is not there is `None`:
//! older and newer fronts have others.

use std::collections::BTreeMap;

use crate::cli::shown::has_effect;
use crate::control::sample::Sample;

/// One reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    pub version: Option<String>,
    /// Seconds since the front's start: its clock, by which rates are taken.
    pub uptime: Option<f64>,
    pub draining: Option<f64>,
    pub in_flight: Option<f64>,
    /// Events of streams after the first.
    pub events: Option<f64>,
    pub waiting: Option<f64>,
    /// Finished requests by status; 0: the client left, or the front ended, before one was sent.
    pub statuses: BTreeMap<u16, f64>,
    /// The same by the reason of their choice.
    pub reasons: BTreeMap<String, f64>,
    /// Requests that the front answered with an error, by cause.
    pub refused: BTreeMap<String, f64>,
    /// How waits in the queue ended.
    pub queue_ends: BTreeMap<String, f64>,
    /// Of all models.
    pub first_token: Histogram,
    pub endpoints: BTreeMap<String, Endpoint>,
    pub shards: BTreeMap<u16, Shard>,
}

/// One endpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Endpoint {
    pub health: Option<String>,
    pub rung: Option<String>,
    pub in_flight: Option<f64>,
    pub pending: Option<f64>,
    pub share: Option<f64>,
    /// 1: it fails, and is kept in service.
    pub kept: Option<f64>,
    /// As the engine reports.
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    pub kv_use: Option<f64>,
    /// Tokens of prompts sent there, and those of them thought to be in its cache.
    pub sent: Option<f64>,
    pub held: Option<f64>,
    /// Tokens that the engine looked up in its cache, and those that it found.
    pub queries: Option<f64>,
    pub hits: Option<f64>,
    /// Finished requests.
    pub requests: Option<f64>,
    pub faults: Option<f64>,
    pub first_token: Histogram,
}

/// One thread of the front.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shard {
    pub driver: Option<String>,
    pub clients: Option<f64>,
    pub turns: Option<f64>,
    pub stalls: Option<f64>,
}

impl Reading {
    /// Reads OpenMetrics text; what is not understood is skipped.
    pub(super) fn of(text: &[u8]) -> Reading {
        let mut reading = Reading::default();
        for sample in text.split(|byte| *byte == b'\n').filter_map(Sample::of) {
            if let Some(name) = sample.name.strip_prefix("warmfront_") {
                reading.take(name, &sample);
            }
        }
        reading
    }

    fn take(&mut self, name: &str, sample: &Sample<'_>) {
        let value = sample.value;
        match name {
            "build_info" => self.version = label(sample, "version"),
            "uptime_seconds" => self.uptime = Some(value),
            "draining" => self.draining = Some(value),
            "counted_in_flight" => self.in_flight = Some(value),
            "queue_waiting" => self.waiting = Some(value),
            "inter_token_seconds_count" => add(&mut self.events, value),
            "requests_total" => self.finished(sample),
            "refused_total" => count(&mut self.refused, sample, "cause"),
            "queue_ends_total" => count(&mut self.queue_ends, sample, "end"),
            "time_to_first_token_seconds_bucket" => self.first_token.take(sample),
            _ if name.starts_with("shard_") => self.shard(name, sample),
            _ => self.endpoint(name, sample),
        }
    }

    fn finished(&mut self, sample: &Sample<'_>) {
        if let Some(status) = sample.label("status").and_then(|status| status.parse().ok()) {
            *self.statuses.entry(status).or_default() += sample.value;
        }
        count(&mut self.reasons, sample, "reason");
        // Those that never came to a choice have no endpoint.
        if let Some(name) = label(sample, "endpoint").filter(|name| name != "none") {
            add(&mut self.endpoints.entry(name).or_default().requests, sample.value);
        }
    }

    fn shard(&mut self, name: &str, sample: &Sample<'_>) {
        let Some(number) = sample.label("shard").and_then(|number| number.parse().ok()) else { return };
        let shard = self.shards.entry(number).or_default();
        match name {
            "shard_driver" => shard.driver = label(sample, "driver"),
            "shard_client_connections" => shard.clients = Some(sample.value),
            "shard_turns_total" => shard.turns = Some(sample.value),
            "shard_stalls_total" => shard.stalls = Some(sample.value),
            _ => {}
        }
    }

    fn endpoint(&mut self, name: &str, sample: &Sample<'_>) {
        type Field = fn(&mut Endpoint) -> &mut Option<f64>;
        let field: Field = match name {
            "endpoint_in_flight" => |endpoint| &mut endpoint.in_flight,
            "endpoint_pending_tokens" => |endpoint| &mut endpoint.pending,
            "endpoint_share_ratio" => |endpoint| &mut endpoint.share,
            "endpoint_kept" => |endpoint| &mut endpoint.kept,
            "endpoint_prompt_tokens_total" => |endpoint| &mut endpoint.sent,
            "endpoint_prompt_tokens_held_total" => |endpoint| &mut endpoint.held,
            "endpoint_faults_total" => |endpoint| &mut endpoint.faults,
            "engine_running" => |endpoint| &mut endpoint.running,
            "engine_waiting" => |endpoint| &mut endpoint.waiting,
            "engine_kv_use_ratio" => |endpoint| &mut endpoint.kv_use,
            "engine_prefix_queries_tokens_total" => |endpoint| &mut endpoint.queries,
            "engine_prefix_hits_tokens_total" => |endpoint| &mut endpoint.hits,
            "endpoint_health" | "endpoint_rung" | "endpoint_time_to_first_token_seconds_bucket" => {
                return self.of_endpoint(name, sample);
            }
            _ => return,
        };
        if let Some(name) = label(sample, "endpoint") {
            *field(self.endpoints.entry(name).or_default()) = Some(sample.value);
        }
    }

    fn of_endpoint(&mut self, name: &str, sample: &Sample<'_>) {
        let Some(endpoint) = label(sample, "endpoint") else { return };
        let endpoint = self.endpoints.entry(endpoint).or_default();
        match name {
            // One series for each state, of which one is 1.
            "endpoint_health" if sample.value > 0.0 => endpoint.health = label(sample, "state"),
            "endpoint_rung" if sample.value > 0.0 => endpoint.rung = label(sample, "rung"),
            "endpoint_time_to_first_token_seconds_bucket" => endpoint.first_token.take(sample),
            _ => {}
        }
    }
}

fn add(sum: &mut Option<f64>, value: f64) {
    *sum = Some(sum.unwrap_or(0.0) + value);
}

fn count(sums: &mut BTreeMap<String, f64>, sample: &Sample<'_>, by: &str) {
    if let Some(by) = label(sample, by) {
        *sums.entry(by).or_default() += sample.value;
    }
}

/// A label's value without its escapes. Anything may have answered: characters with an effect on a terminal are
/// replaced.
fn label(sample: &Sample<'_>, name: &str) -> Option<String> {
    let mut escaped = false;
    let meant = sample.label(name)?.chars().filter(|sign| {
        escaped = *sign == '\\' && !escaped;
        !escaped
    });
    Some(meant.map(|sign| if has_effect(sign) { '?' } else { sign }).collect())
}

/// Counts up to each bound, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram(BTreeMap<u64, f64>);

impl Histogram {
    /// A bucket; those of several label sets are summed.
    fn take(&mut self, sample: &Sample<'_>) {
        let bound = match sample.label("le") {
            Some("+Inf") => Some(u64::MAX),
            bound => bound.and_then(|bound| bound.parse().ok()).map(|seconds: f64| (seconds * 1e6).round() as u64),
        };
        if let Some(bound) = bound {
            *self.0.entry(bound).or_default() += sample.value;
        }
    }

    /// The counts that came since `before`.
    pub(super) fn since(&self, before: &Histogram) -> Histogram {
        let earlier = |bound| before.0.get(bound).copied().unwrap_or(0.0);
        Histogram(self.0.iter().map(|(bound, count)| (*bound, (count - earlier(bound)).max(0.0))).collect())
    }

    /// How many values there are.
    pub(super) fn count(&self) -> Option<f64> {
        self.0.last_key_value().map(|(_, count)| *count)
    }

    /// A quantile in microseconds, by proportion within its bucket as Prometheus does it.
    /// Beyond all bounds it is the last of them.
    pub(super) fn quantile(&self, part: f64) -> Option<f64> {
        let rank = part * self.count().filter(|count| *count > 0.0)?;
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in &self.0 {
            if *count >= rank && *count > below {
                let upper = if *bound == u64::MAX { lower } else { *bound as f64 };
                return Some(lower + (upper - lower) * (rank - below) / (count - below));
            }
            if *bound != u64::MAX {
                (lower, below) = (*bound as f64, *count);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::NOW;
    use super::*;

    #[test]
    fn a_reading_of_a_front() {
        let reading = Reading::of(NOW.as_bytes());
        assert_eq!((reading.version.as_deref(), reading.uptime), (Some("0.1.0"), Some(7_265.5)));
        assert_eq!((reading.in_flight, reading.waiting, reading.events), (Some(51.0), Some(4.0), Some(161_200.0)));
        assert_eq!(reading.statuses.get(&200), Some(&2_040.0), "summed over endpoints");
        assert_eq!(reading.reasons.get("warm"), Some(&1_530.0));
        let names: Vec<&str> = reading.endpoints.keys().map(String::as_str).collect();
        assert_eq!(names, ["gpu-1:8000", "gpu-2:8000", "gpu-3"]);
        let first = &reading.endpoints["gpu-1:8000"];
        assert_eq!((first.in_flight, first.pending, first.kv_use), (Some(40.0), Some(12_345.0), Some(0.93)));
        assert_eq!((first.health.as_deref(), first.rung.as_deref()), (Some("up"), Some("approximate")));
        assert_eq!((first.requests, first.first_token.count()), (Some(1_530.0), Some(1_000.0)));
        assert_eq!(reading.endpoints["gpu-3"].kv_use, None, "what is not there is not known");
        assert_eq!((reading.shards[&1].clients, reading.shards[&1].driver.as_deref()), (Some(33.0), Some("uring")));
    }

    #[test]
    fn nonsense_is_skipped() {
        for text in [
            "",
            "warmfront_",
            "warmfront_requests_total{status=\"many\"} 3",
            "warmfront_shard_driver{shard=\"-1\",driver=\"x\"} 1",
            "warmfront_time_to_first_token_seconds_bucket{le=\"soon\"} 1",
            "warmfront_endpoint_in_flight 7",
            "<html>it works</html>",
        ] {
            assert_eq!(Reading::of(text.as_bytes()), Reading::default(), "{text}");
        }
        let hostile = Reading::of(b"warmfront_endpoint_in_flight{endpoint=\"a\\\"\x1b[2Jb\\\\\"} 1\n\xff\xfe 3");
        assert_eq!(hostile.endpoints.keys().collect::<Vec<_>>(), ["a\"?[2Jb\\"]);
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let of = |buckets: &[(u64, f64)]| Histogram(buckets.iter().copied().collect());
        let all = of(&[(100, 0.0), (200, 50.0), (400, 100.0), (u64::MAX, 100.0)]);
        assert_eq!([0.5, 0.75, 1.0].map(|part| all.quantile(part)), [Some(200.0), Some(300.0), Some(400.0)]);
        let beyond = of(&[(100, 1.0), (200, 1.0), (u64::MAX, 4.0)]);
        assert_eq!([0.1, 0.99].map(|part| beyond.quantile(part)), [Some(40.0), Some(200.0)]);
        assert_eq!((of(&[]).quantile(0.5), of(&[(u64::MAX, 0.0)]).quantile(0.5)), (None, None));
        let later = of(&[(100, 0.0), (200, 60.0), (400, 120.0), (u64::MAX, 120.0)]);
        assert_eq!((later.since(&all).count(), later.since(&all).quantile(0.5)), (Some(20.0), Some(200.0)));
        assert_eq!(all.since(&later).quantile(0.5), None, "what fell is nothing");
    }
}
