//! What the demo prints at its end: one table.

use super::fleet::Totals;

/// One policy's outcome, in simulated seconds.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The policy's name.
    pub policy: String,
    /// Times to first token, ascending.
    pub ttft: Vec<f64>,
    /// Output tokens a second.
    pub tokens_per_second: f64,
    /// Share of prompt tokens found in caches.
    pub hit_rate: f64,
    /// Requests at the busiest engine over the mean of all.
    pub imbalance: f64,
    /// Replies verified.
    pub replies: u64,
    /// Replies that failed.
    pub failed: u64,
    /// CPU of the front over the measured time, in cores; `None` without a front.
    pub front_cores: Option<f64>,
    /// Share of the measured time by which an engine began its steps late: of the engine that was latest.
    pub lag: f64,
    /// The same share for the clients' thread, which verifies what all of them read.
    pub clients_lag: f64,
}

impl Outcome {
    /// Mean of `ttft`.
    pub fn ttft_mean(&self) -> f64 {
        self.ttft.iter().sum::<f64>() / self.ttft.len().max(1) as f64
    }

    /// Returns the value below which this share of `ttft` lies.
    pub fn ttft_at(&self, share: f64) -> f64 {
        let last = self.ttft.len().saturating_sub(1);
        self.ttft.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
    }

    /// Computes hit rate, imbalance and lag from the fleet's counters before and after.
    pub fn count(&mut self, before: &Totals, after: &Totals, simulated_seconds: f64) {
        let queries = after.queries.saturating_sub(before.queries);
        let hits = after.hits.saturating_sub(before.hits);
        self.hit_rate = hits as f64 / queries.max(1) as f64;
        let requests: Vec<u64> =
            after.requests.iter().zip(&before.requests).map(|(after, before)| after.saturating_sub(*before)).collect();
        let most = requests.iter().max().copied().unwrap_or(0) as f64;
        let mean = requests.iter().sum::<u64>() as f64 / requests.len().max(1) as f64;
        self.imbalance = if mean > 0.0 { most / mean } else { 0.0 };
        let lags = after.lag_seconds.iter().zip(&before.lag_seconds).map(|(after, before)| after - before);
        self.lag = lags.fold(0.0, f64::max) / simulated_seconds;
    }
}

/// Writes the table as text, with ratios to the first row.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut out = format!(
        "{:<14}{:>10}{:>10}{:>10}{:>12}{:>10}{:>11}{:>9}{:>8}{:>8}{:>12}\n",
        "policy",
        "TTFT mean",
        "p50",
        "p99",
        "tokens/s",
        "hit rate",
        "imbalance",
        "replies",
        "TTFT",
        "tok/s",
        "front CPU"
    );
    let first = outcomes.first().cloned().unwrap_or_default();
    for outcome in outcomes {
        let ratio = |of: f64, to: f64| if to > 0.0 { format!("x {:.2}", of / to) } else { "-".into() };
        let cores = outcome.front_cores.map_or("-".into(), |cores| format!("{cores:.2} cores"));
        out.push_str(&format!(
            "{:<14}{:>8.2} s{:>8.2} s{:>8.2} s{:>12.0}{:>8.1} %{:>11.2}{:>9}{:>8}{:>8}{:>12}\n",
            outcome.policy,
            outcome.ttft_mean(),
            outcome.ttft_at(0.5),
            outcome.ttft_at(0.99),
            outcome.tokens_per_second,
            outcome.hit_rate * 100.0,
            outcome.imbalance,
            outcome.replies,
            ratio(outcome.ttft_mean(), first.ttft_mean()),
            ratio(outcome.tokens_per_second, first.tokens_per_second),
            cores,
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(requests: &[u64], queries: u64, hits: u64) -> Totals {
        Totals { queries, hits, requests: requests.to_vec(), preemptions: 0, lag_seconds: vec![0.0; requests.len()] }
    }

    #[test]
    fn counters_give_hit_rate_and_imbalance_of_the_time_between() {
        let mut outcome = Outcome::default();
        outcome.count(&totals(&[10, 10], 100, 50), &totals(&[20, 40], 300, 200), 10.0);
        assert_eq!((outcome.hit_rate, outcome.imbalance), (0.75, 1.5));
    }

    #[test]
    fn an_engine_that_was_late_before_hides_none_that_is_late_now() {
        let late = |lag_seconds: &[f64]| Totals { lag_seconds: lag_seconds.to_vec(), ..totals(&[1, 1], 1, 1) };
        let mut outcome = Outcome::default();
        outcome.count(&late(&[5.0, 0.0]), &late(&[5.0, 4.0]), 10.0);
        assert_eq!(outcome.lag, 0.4);
    }

    #[test]
    fn percentiles_are_of_the_values_seen() {
        let outcome = Outcome { ttft: (1..=101).map(f64::from).collect(), ..Outcome::default() };
        assert_eq!((outcome.ttft_at(0.5), outcome.ttft_at(0.99), outcome.ttft_mean()), (51.0, 100.0, 51.0));
        assert_eq!(Outcome::default().ttft_at(0.99), 0.0);
    }

    #[test]
    fn the_table_compares_with_its_first_row() {
        let row = |policy: &str, ttft, tokens_per_second| Outcome {
            policy: policy.into(),
            ttft: vec![ttft],
            tokens_per_second,
            ..Outcome::default()
        };
        let text = table(&[row("random", 4.0, 1000.0), row("prefix-hash", 1.0, 2500.0)]);
        assert!(text.lines().nth(2).unwrap().contains("x 0.25  x 2.50"), "{text}");
    }
}
