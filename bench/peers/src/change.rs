//! What a change costs: our front now against our front before, by pairs of one round.

use crate::fronts::CHANGES;
use crate::report::{Report, median};
use crate::scenario::Scenario;

/// A change may cost up to this ratio; [`interval`] tells more than that from noise.
const COST_MAX: f64 = 1.03;

/// Prints a table of all scenarios and drivers. Fails if one certainly became dearer, or if that cannot be told.
pub fn tell(report: &Report, scenarios: &[Scenario], fronts: &[String]) -> Result<(), String> {
    let measured =
        |(now, before): &&(&str, &str)| [now, before].iter().all(|name| fronts.iter().any(|front| front == *name));
    let changes: Vec<_> = CHANGES.iter().filter(measured).collect();
    if changes.is_empty() {
        return Err("--before: no front took part both now and before".into());
    }
    println!("\nnow x before: median, and interval that holds it 19 times of 20");
    let (mut dearer, mut untold) = (Vec::new(), Vec::new());
    for (now, before) in changes {
        for scenario in scenarios {
            let mut ratios = report.ratios(scenario, now, before);
            let pairs = ratios.len();
            let middle = median(ratios.clone()).map_or("-".to_string(), |middle| format!("{middle:.3}"));
            let Some((low, high)) = interval(&mut ratios) else {
                println!(
                    "{now:18}{:14}{:10}{middle:>8} of {pairs} pairs: too few to say",
                    scenario.name, scenario.cost.heading
                );
                untold.push(format!("{now}, {}: {pairs} pairs", scenario.name));
                continue;
            };
            println!(
                "{now:18}{:14}{:10}{middle:>8} ({low:.3}-{high:.3}) of {pairs} pairs",
                scenario.name, scenario.cost.heading
            );
            if low > COST_MAX {
                dearer.push(format!("{now}, {}: {low:.3} at least", scenario.name));
            }
        }
    }
    let faults: Vec<String> = [("dearer than before", dearer), ("too few pairs to say what it costs", untold)]
        .into_iter()
        .filter(|(_, places)| !places.is_empty())
        .map(|(words, places)| format!("{words}:\n  {}", places.join("\n  ")))
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// Returns the order statistics between which the samples' median lies with 95 % confidence (sign test). `None`: too
/// few samples to say.
pub fn interval(samples: &mut [f64]) -> Option<(f64, f64)> {
    samples.sort_unstable_by(f64::total_cmp);
    let count = samples.len();
    // `cut` of the smallest may lie above the median with a chance of 2.5 %: binomial(count, 1/2), added up from one
    // side.
    let (mut outside, mut chance, mut cut) = (0.0, 0.5f64.powi(count as i32), 0);
    while cut < count / 2 && outside + chance <= 0.025 {
        outside += chance;
        chance *= (count - cut) as f64 / (cut + 1) as f64;
        cut += 1;
    }
    let low = cut.checked_sub(1)?;
    Some((*samples.get(low)?, *samples.get(count - 1 - low)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Sample;

    /// The verdict on `rounds` rounds, in each of which the change made a request `ratio` times as dear.
    fn told(rounds: usize, ratio: f64) -> Result<(), String> {
        let scenario = Scenario::plain();
        let (now, before) = CHANGES[0];
        let mut report = Report::new(Vec::new(), &[]);
        for round in 0..rounds {
            for (front, cost) in [(now, 10.0 * ratio), (before, 10.0)] {
                let values = [(scenario.cost.key.to_string(), cost)].into();
                report.add(Sample { scenario: scenario.name, front: front.into(), round, values });
            }
        }
        tell(&report, &[scenario], &[now.into(), before.into()])
    }

    #[test]
    fn what_is_dearer_is_told_and_what_too_few_rounds_do_not_show_is_no_success() {
        assert_eq!(told(10, 1.0), Ok(()));
        assert!(told(10, 2.0).unwrap_err().starts_with("dearer than before"));
        assert!(told(5, 2.0).unwrap_err().starts_with("too few pairs"));
        assert!(told(0, 2.0).unwrap_err().starts_with("too few pairs"));
        let report = Report::new(Vec::new(), &[]);
        assert!(tell(&report, &[Scenario::plain()], &[CHANGES[0].0.into()]).is_err(), "nothing to compare with");
    }

    /// The sign test's table: for 6 to 8 samples the outermost, for 9 to 11 the second, for 20 the sixth.
    #[test]
    fn the_interval_of_a_median() {
        let of = |count: usize| interval(&mut (1..=count).map(|value| value as f64).collect::<Vec<_>>());
        assert_eq!((of(0), of(5)), (None, None));
        assert_eq!((of(6), of(8)), (Some((1.0, 6.0)), Some((1.0, 8.0))));
        assert_eq!((of(9), of(10), of(11)), (Some((2.0, 8.0)), Some((2.0, 9.0)), Some((2.0, 10.0))));
        assert_eq!(of(20), Some((6.0, 15.0)));
    }
}
