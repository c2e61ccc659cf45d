//! The figures that are told of a run.

use serde::Serialize;

use super::simulate::{Record, Run};

/// Longest prompt, in tokens, that is also told apart: short prompts suffer most behind long ones.
pub const SHORT_PROMPT: u32 = 8_192;

/// What a request must keep to count as served well.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Objective {
    /// Longest time to first token, in seconds.
    pub ttft_seconds: f64,
    /// Longest mean time between the tokens of a reply, in seconds.
    pub token_seconds: f64,
}

/// Mean and percentiles, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = u64>) -> Spread {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        let Some(last) = values.len().checked_sub(1) else { return Spread::default() };
        let at = |share: f64| values[(last as f64 * share).round() as usize] as f64 / 1e9;
        let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
        Spread { mean: sum as f64 / 1e9 / values.len() as f64, p50: at(0.5), p99: at(0.99) }
    }
}

/// A policy's outcome over another's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Ratio of the mean times to first token.
    pub ttft: f64,
    /// Ratio of the output tokens a second.
    pub tokens: f64,
}

/// How wrong choices were about what their engines would find in their caches: tokens a request, in the mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Misjudged {
    /// Tokens predicted and not found.
    pub too_many: f64,
    /// Tokens found and not predicted.
    pub too_few: f64,
}

impl Misjudged {
    /// Mean absolute error.
    pub fn in_all(&self) -> f64 {
        self.too_many + self.too_few
    }

    fn of(records: &[&Record]) -> Option<Misjudged> {
        let (mut count, mut too_many, mut too_few) = (0u64, 0u64, 0u64);
        for (record, predicted) in records.iter().filter_map(|record| Some((record, record.predicted?))) {
            count += 1;
            too_many += u64::from(predicted.saturating_sub(record.cached));
            too_few += u64::from(record.cached.saturating_sub(predicted));
        }
        let mean = |sum: u64| sum as f64 / count as f64;
        (count > 0).then(|| Misjudged { too_many: mean(too_many), too_few: mean(too_few) })
    }
}

/// The outcome of one policy at one load.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The policy's name.
    pub policy: String,
    /// Multiple of the traffic's own rate.
    pub load: f64,
    /// Requests counted.
    pub requests: u64,
    /// Share of prompt tokens that were cached.
    pub hit_rate: f64,
    /// How wrong the policy's predictions were, if it makes any.
    pub misjudged: Option<Misjudged>,
    /// Times to first token.
    pub ttft: Spread,
    /// The same for prompts up to [`SHORT_PROMPT`].
    pub ttft_short: Spread,
    /// Mean time between the tokens of each request.
    pub between_tokens: Spread,
    /// Output tokens a second.
    pub tokens_per_second: f64,
    /// Share of requests within the objective.
    pub slo: f64,
    /// Tokens computed (prompts not cached, and outputs) at the busiest engine over the mean.
    pub imbalance: f64,
    /// Sequences that had to be computed anew for want of KV blocks, within the window.
    pub preemptions: u64,
    /// Answers of 429 for want of room; the clients asked again.
    pub refusals: u64,
    /// Times to first token of the first tenant and of all others, if there are several tenants.
    pub ttft_tenants: Option<(Spread, Spread)>,
    /// Ratio to the baseline `random`, if that was run at this load.
    pub to_random: Option<Ratio>,
    /// Ratio to the oracle, if that was run at this load.
    pub to_oracle: Option<Ratio>,
}

impl Outcome {
    /// Makes the outcome of the requests in the run's window.
    pub fn of(policy: &str, load: f64, run: &Run, objective: &Objective) -> Outcome {
        let counted: Vec<&Record> = run.records.iter().filter(|record| run.window.holds(record.arrival_ns)).collect();
        let sum = |what: fn(&Record) -> u32| counted.iter().map(|record| u64::from(what(record))).sum::<u64>();
        let prompts = sum(|record| record.prompt).max(1);
        let kept = counted.iter().filter(|record| keeps(record, objective)).count();
        let until_ns = run.window.until_ns.unwrap_or(run.end_ns);
        let seconds = until_ns.saturating_sub(run.window.from_ns) as f64 / 1e9;
        let short = counted.iter().filter(|record| record.prompt <= SHORT_PROMPT);
        Outcome {
            policy: policy.to_owned(),
            load,
            requests: counted.len() as u64,
            hit_rate: sum(|record| record.cached) as f64 / prompts as f64,
            misjudged: Misjudged::of(&counted),
            ttft: Spread::of(counted.iter().map(|record| record.ttft_ns)),
            ttft_short: Spread::of(short.map(|record| record.ttft_ns)),
            between_tokens: Spread::of(
                counted.iter().filter(|record| record.output > 1).map(|record| between_ns(record) as u64),
            ),
            tokens_per_second: if seconds > 0.0 { run.tokens as f64 / seconds } else { 0.0 },
            slo: kept as f64 / counted.len().max(1) as f64,
            imbalance: imbalance(&counted, run.engines),
            preemptions: run.preemptions,
            refusals: run.refusals,
            ttft_tenants: tenants(&counted),
            to_random: None,
            to_oracle: None,
        }
    }

    /// Compares with another outcome at the same load.
    pub fn ratio_to(&self, other: &Outcome) -> Ratio {
        let ratio = |of: f64, to: f64| if to > 0.0 { of / to } else { 0.0 };
        Ratio {
            ttft: ratio(self.ttft.mean, other.ttft.mean),
            tokens: ratio(self.tokens_per_second, other.tokens_per_second),
        }
    }
}

fn tenants(records: &[&Record]) -> Option<(Spread, Spread)> {
    let spread = |first: bool| {
        Spread::of(records.iter().filter(|record| (record.tenant == 0) == first).map(|record| record.ttft_ns))
    };
    records.iter().any(|record| record.tenant != 0).then(|| (spread(true), spread(false)))
}

fn keeps(record: &Record, objective: &Objective) -> bool {
    record.ttft_ns as f64 <= objective.ttft_seconds * 1e9 && between_ns(record) <= objective.token_seconds * 1e9
}

/// Mean nanoseconds between two tokens of an answer.
fn between_ns(record: &Record) -> f64 {
    record.rest_ns as f64 / f64::from(record.output.saturating_sub(1).max(1))
}

fn imbalance(records: &[&Record], engines: usize) -> f64 {
    let mut work = vec![0u64; engines];
    for record in records {
        if let Some(work) = work.get_mut(usize::from(record.engine)) {
            *work += u64::from(record.prompt - record.cached) + u64::from(record.output);
        }
    }
    let most = work.iter().max().copied().unwrap_or(0) as f64;
    let mean = work.iter().sum::<u64>() as f64 / engines.max(1) as f64;
    if mean > 0.0 { most / mean } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::traffic::Window;

    fn record(arrival_ns: u64, ttft_ns: u64, prompt: u32, engine: u16) -> Record {
        let (cached, predicted) = (prompt / 2, Some(60));
        Record { arrival_ns, ttft_ns, rest_ns: 900, prompt, cached, predicted, output: 10, engine, tenant: 0 }
    }

    #[test]
    fn only_the_window_is_counted() {
        let window = Window { from_ns: 1_000_000_000, until_ns: Some(3_000_000_000) };
        let records = vec![
            record(0, 9_000_000_000, 100, 0),
            record(1_000_000_000, 1_000_000_000, 100, 0),
            Record { tenant: 3, ..record(2_000_000_000, 3_000_000_000, 9_000, 1) },
            record(3_000_000_000, 9_000_000_000, 100, 0),
        ];
        let run = Run { records, window, tokens: 400, end_ns: 9, preemptions: 0, refusals: 0, engines: 2 };
        let objective = Objective { ttft_seconds: 2.0, token_seconds: 1e-7 };
        let outcome = Outcome::of("x", 1.0, &run, &objective);
        assert_eq!((outcome.requests, outcome.hit_rate, outcome.slo), (2, 0.5, 0.5));
        assert_eq!(outcome.ttft, Spread { mean: 2.0, p50: 3.0, p99: 3.0 });
        let alone = |seconds| Spread { mean: seconds, p50: seconds, p99: seconds };
        assert_eq!(outcome.ttft_short, alone(1.0));
        assert_eq!(outcome.ttft_tenants, Some((alone(1.0), alone(3.0))));
        assert_eq!(outcome.between_tokens, alone(1e-7));
        assert_eq!(outcome.tokens_per_second, 200.0);
        // 60 predicted; 50 and 4,500 found.
        assert_eq!(outcome.misjudged, Some(Misjudged { too_many: 5.0, too_few: 2_220.0 }));
        // 60 and 4,510 tokens computed.
        assert!((outcome.imbalance - 4_510.0 / 2_285.0).abs() < 1e-9);
        // 900 ns over 9 pauses are 100 ns.
        let strict = Objective { ttft_seconds: 2.0, token_seconds: 99e-9 };
        assert_eq!(Outcome::of("x", 1.0, &run, &strict).slo, 0.0);
    }
}
