//! What many figures come to.

use std::time::Duration;

/// The figure below which this part of them lies; they are put in order.
pub fn quantile(figures: &mut [f64], part: f64) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let place = ((figures.len() as f64 * part) as usize).min(figures.len().saturating_sub(1));
    figures.get(place).copied().unwrap_or(f64::NAN)
}

pub fn median(figures: &mut [f64]) -> f64 {
    quantile(figures, 0.5)
}

/// The interval that the median of what they are drawn from lies in, in 95 of 100 cases or more (order statistics: signs).
/// `None`: too few to say.
pub fn interval(figures: &mut [f64]) -> Option<(f64, f64)> {
    figures.sort_unstable_by(f64::total_cmp);
    let count = figures.len();
    // Adds up what lies outside on one side: binomial(count, 1/2).
    let (mut outside, mut chance, mut cut) = (0.0, 0.5f64.powi(count as i32), 0);
    while cut < count / 2 && outside + chance <= 0.025 {
        outside += chance;
        chance *= (count - cut) as f64 / (cut + 1) as f64;
        cut += 1;
    }
    let low = cut.checked_sub(1)?;
    Some((*figures.get(low)?, *figures.get(count - 1 - low)?))
}

/// Jain's index: 1 where all are alike, 1 / n where one has all.
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
        // 2 of 10 on each side: 1 - 2 * (1 + 10) / 1024 = 97.9 %.
        assert_eq!(interval(&mut ten), Some((2.0, 9.0)));
        // All six above the median or all below: 2 of 64, and of five 2 of 32.
        assert_eq!(
            (interval(&mut ten[..6]), interval(&mut ten[..5]), interval(&mut [])),
            (Some((1.0, 6.0)), None, None)
        );
        assert_eq!((jain(&[2.0, 2.0]), jain(&[1.0, 0.0])), (1.0, 0.5));
    }
}
