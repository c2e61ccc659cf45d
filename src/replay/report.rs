//! The table for people.

use std::fmt::Display;

use super::outcome::{Outcome, Ratio, Spread};

/// The columns after the policy's name: blanks before each, its width, and the two rows of its heading.
const COLUMNS: [(usize, usize, [&str; 2]); 14] = [
    (1, 8, ["hit rate", ""]),
    (1, 7, ["off by", "tokens"]),
    (2, 8, ["TTFT", "mean"]),
    (1, 8, ["p50", ""]),
    (1, 8, ["p99", ""]),
    (2, 8, ["<=8k", "mean"]),
    (1, 8, ["p50", ""]),
    (1, 8, ["p99", ""]),
    (2, 7, ["between", "tokens"]),
    (2, 8, ["tokens/s", ""]),
    (2, 7, ["SLO", "kept"]),
    (2, 9, ["imbalance", ""]),
    (2, 13, ["to random", "TTFT   tok/s"]),
    (2, 13, ["to oracle", "TTFT   tok/s"]),
];

/// One table for each load.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    let width = outcomes.iter().map(|outcome| outcome.policy.len()).max().unwrap_or(0).max(6);
    for load in outcomes.chunk_by(|one, other| one.load == other.load) {
        let Some(first) = load.first() else { continue };
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&format!("load x {}, {} requests counted\n", first.load, requests(load)));
        for (above, policy) in ["policy", ""].into_iter().enumerate() {
            out.push_str(&row(policy, width, COLUMNS.map(|(_, _, heads)| heads[above])));
        }
        for outcome in load {
            out.push_str(&row(&outcome.policy, width, figures(outcome)));
        }
        remarks(load, width, &mut out);
    }
    out
}

fn row(policy: &str, width: usize, figures: [impl Display; 14]) -> String {
    let columns = COLUMNS.into_iter().zip(figures);
    let figures: String = columns.map(|((gap, width, _), figure)| format!("{:gap$}{figure:>width$}", "")).collect();
    format!("{policy:<width$}{figures}\n")
}

/// Width of each column.
fn figures(outcome: &Outcome) -> [String; 14] {
    let ratio = |ratio: Option<Ratio>| {
        ratio.map_or_else(|| "-".into(), |ratio| format!("{:.2}   {:.2}", ratio.ttft, ratio.tokens))
    };
    [
        format!("{:.1} %", outcome.hit_rate * 100.0),
        outcome.misjudged.map_or_else(|| "-".into(), |misjudged| tokens(misjudged.in_all())),
        seconds(outcome.ttft.mean),
        seconds(outcome.ttft.p50),
        seconds(outcome.ttft.p99),
        seconds(outcome.ttft_short.mean),
        seconds(outcome.ttft_short.p50),
        seconds(outcome.ttft_short.p99),
        seconds(outcome.between_tokens.mean),
        format!("{:.0}", outcome.tokens_per_second),
        format!("{:.1} %", outcome.slo * 100.0),
        format!("{:.2}", outcome.imbalance),
        ratio(outcome.to_random),
        ratio(outcome.to_oracle),
    ]
}

/// How many requests each row counts: not the same under every policy in a closed loop, or if clients are refused.
fn requests(load: &[Outcome]) -> String {
    let counts = || load.iter().map(|outcome| outcome.requests);
    match (counts().min().unwrap_or(0), counts().max().unwrap_or(0)) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least} to {most}"),
    }
}

/// Refusals, and how tenants fared, if there is anything to say.
fn remarks(load: &[Outcome], width: usize, out: &mut String) {
    for outcome in load {
        let refused = (outcome.refusals > 0).then(|| format!("{} answers of 429, asked again", outcome.refusals));
        let tenants = outcome.ttft_tenants.map(|(first, others)| {
            let told = |spread: Spread| format!("{} p99 {}", seconds(spread.mean), seconds(spread.p99));
            format!("TTFT of the first tenant {}, of the others {}", told(first), told(others))
        });
        let told: Vec<String> = refused.into_iter().chain(tenants).collect();
        if !told.is_empty() {
            out.push_str(&format!("{:<width$} {}\n", outcome.policy, told.join("; ")));
        }
    }
}

/// A mean of tokens, in as many digits as matter.
fn tokens(value: f64) -> String {
    if value > 0.0 && value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// A length of time with its unit, in three or four digits.
pub fn seconds(value: f64) -> String {
    match value {
        value if value < 0.9995 => format!("{:.0} ms", value * 1e3),
        value if value < 99.995 => format!("{value:.2} s"),
        value => format!("{value:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_count_other_requests_say_how_many() {
        let table = |requests: [u64; 3]| table(&requests.map(|requests| Outcome { requests, ..Outcome::default() }));
        assert!(table([961, 761, 800]).starts_with("load x 0, 761 to 961 requests counted\n"));
        assert!(table([961, 961, 961]).starts_with("load x 0, 961 requests counted\n"));
    }

    #[test]
    fn short_prompts_have_a_median_of_their_own() {
        let ttft_short = Spread { mean: 2.0, p50: 0.5, p99: 9.0 };
        let table = table(&[Outcome { ttft_short, ..Outcome::default() }]);
        let told: String = table.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains(" 2.00 s 500 ms 9.00 s "), "{table}");
        let widths: Vec<usize> = table.lines().skip(1).map(str::len).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
    }

    #[test]
    fn lengths_of_time_have_units() {
        assert_eq!(
            ["0 ms", "17 ms", "1.00 s", "12.35 s", "1234 s"],
            [0.0, 0.0168, 0.9999, 12.346, 1_234.0].map(seconds)
        );
    }
}
