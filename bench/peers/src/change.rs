//! What a change costs: ours now against ours before, by pairs of one round.

use crate::fronts::CHANGES;
use crate::report::{Report, median};
use crate::scenario::Scenario;

/// A change may cost so much; more than that is told from noise by [`interval`].
const COST_MAX: f64 = 1.03;

/// A table of all scenarios and drivers. An error where one certainly became dearer.
pub fn tell(report: &Report, scenarios: &[Scenario], fronts: &[String]) -> Result<(), String> {
    let measured =
        |(now, before): &&(&str, &str)| [now, before].iter().all(|name| fronts.iter().any(|front| front == *name));
    let changes: Vec<_> = CHANGES.iter().filter(measured).collect();
    let mut dearer = Vec::new();
    for (at, (now, before)) in changes.into_iter().enumerate() {
        if at == 0 {
            println!("\nCPU now x before: median, and interval that holds it 19 times of 20");
        }
        for scenario in scenarios {
            let ratios = report.ratios(scenario, now, before);
            let pairs = ratios.len();
            let (Some(middle), Some((low, high))) = (median(ratios.clone()), interval(ratios)) else { continue };
            println!("{now:18}{:14}{middle:>8.3} ({low:.3}-{high:.3}) of {pairs} pairs", scenario.name);
            if low > COST_MAX {
                dearer.push(format!("{now}, {}: {low:.3} at least", scenario.name));
            }
        }
    }
    if dearer.is_empty() { Ok(()) } else { Err(format!("dearer than before:\n  {}", dearer.join("\n  "))) }
}

/// The order statistics between which the median of what was sampled lies with 95 % confidence (sign test). `None`: too
/// few samples to say.
fn interval(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_unstable_by(f64::total_cmp);
    let count = values.len();
    // So many of the smallest may lie above the median with a chance of 2.5 %.
    let (mut ways, mut sum, mut outside) = (1.0, 0.0, 0);
    let all = 2f64.powi(count as i32);
    for drawn in 0..count {
        sum += ways / all;
        if sum > 0.025 {
            break;
        }
        outside = drawn + 1;
        ways *= (count - drawn) as f64 / (drawn + 1) as f64;
    }
    let low = outside.checked_sub(1)?;
    Some((values[low], values[count - 1 - low]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the sign test: for 6 to 8 samples the outermost, for 9 to 11 the second, for 20 the sixth.
    #[test]
    fn the_interval_of_a_median() {
        let of = |count: usize| interval((1..=count).map(|value| value as f64).collect());
        assert_eq!((of(0), of(5)), (None, None));
        assert_eq!((of(6), of(8)), (Some((1.0, 6.0)), Some((1.0, 8.0))));
        assert_eq!((of(9), of(10), of(11)), (Some((2.0, 8.0)), Some((2.0, 9.0)), Some((2.0, 10.0))));
        assert_eq!(of(20), Some((6.0, 15.0)));
    }
}
