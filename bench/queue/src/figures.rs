//! Summaries of many figures.

use std::time::Duration;

/// Returns the figure below which this part of them lies; sorts them.
pub fn quantile(figures: &mut [f64], part: f64) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let place = ((figures.len() as f64 * part) as usize).min(figures.len().saturating_sub(1));
    figures.get(place).copied().unwrap_or(f64::NAN)
}

pub fn median(figures: &mut [f64]) -> f64 {
    quantile(figures, 0.5)
}

/// Jain's index: 1 if all are alike, 1 / n if one has all.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares)
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_by_hand() {
        let mut ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!((quantile(&mut ten, 0.0), median(&mut ten), quantile(&mut ten, 0.99)), (1.0, 6.0, 10.0));
        assert_eq!((jain(&[2.0, 2.0]), jain(&[1.0, 0.0])), (1.0, 0.5));
    }
}
