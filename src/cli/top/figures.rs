//! Figures in few characters; an unknown one is `-`.

/// What is not known.
const UNKNOWN: &str = "-";

fn shown(value: Option<f64>, words: impl Fn(f64) -> String) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| UNKNOWN.into(), words)
}

/// A number in at most five characters, below 1e18.
pub(super) fn number(value: Option<f64>) -> String {
    shown(value, |value| {
        let (mut scaled, mut units) = (value, ["k", "M", "G", "T"].iter());
        let mut unit = "";
        // A number that would be rounded to one more character is shown in the next unit.
        while scaled >= if unit.is_empty() { 9_999.5 } else { 999.5 } {
            let Some(next) = units.next() else { break };
            (scaled, unit) = (scaled / 1e3, next);
        }
        if unit.is_empty() || scaled >= 99.95 { format!("{scaled:.0}{unit}") } else { format!("{scaled:.1}{unit}") }
    })
}

/// A number a second.
pub(super) fn rate(value: Option<f64>) -> String {
    match value {
        Some(value) if value > 0.0 && value < 9.95 => format!("{value:.1}/s"),
        _ => shown(value, |value| number(Some(value)) + "/s"),
    }
}

/// A part of 1, in percent.
pub(super) fn percent(part: Option<f64>) -> String {
    shown(part, |part| format!("{:.0}%", part * 100.0))
}

/// A time given in microseconds.
pub(super) fn time(micros: Option<f64>) -> String {
    shown(micros, |micros| match micros {
        ..9_950.0 => format!("{:.1}ms", micros / 1e3),
        ..999_500.0 => format!("{:.0}ms", micros / 1e3),
        ..99_950_000.0 => format!("{:.1}s", micros / 1e6),
        _ => format!("{:.0}s", micros / 1e6),
    })
}

/// A time given in seconds, in its two greatest units.
pub(super) fn duration(seconds: Option<f64>) -> String {
    shown(seconds, |seconds| {
        let seconds = seconds as u64;
        let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
        match (days, hours, minutes) {
            (0, 0, 0) => format!("{seconds} s"),
            (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
            (0, ..) => format!("{hours} h {minutes} min"),
            _ => format!("{days} d {hours} h"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let numbers = [0.0, 9_999.4, 9_999.5, 12_345.0, 99_949.0, 99_950.0, 999_499.0, 999_500.0, 2.5e8, 3e12, 1e18];
        let words = numbers.map(|value| number(Some(value)));
        assert_eq!(words, ["0", "9999", "10.0k", "12.3k", "99.9k", "100k", "999k", "1.0M", "250M", "3.0T", "1000000T"]);
        assert_eq!(
            [0.0, 0.04, 9.94, 9.95, 12_345.0].map(|value| rate(Some(value))),
            ["0/s", "0.0/s", "9.9/s", "10/s", "12.3k/s"]
        );
        assert_eq!([0.0, 0.005, 1.0].map(|part| percent(Some(part))), ["0%", "0%", "100%"]);
        let times = [400.0, 9_950.0, 85_000.0, 999_500.0, 99_949_999.0, 1e9].map(|micros| time(Some(micros)));
        assert_eq!(times, ["0.4ms", "10ms", "85ms", "1.0s", "99.9s", "1000s"]);
        let lengths = [5.9, 61.0, 7_265.0, 90_000.0].map(|seconds| duration(Some(seconds)));
        assert_eq!(lengths, ["5 s", "1 min 1 s", "2 h 1 min", "1 d 1 h"]);
        let unknown = [number(None), rate(None), percent(None), time(Some(f64::NAN)), duration(Some(f64::INFINITY))];
        assert!(unknown.iter().all(|words| words == "-"), "{unknown:?}");
    }
}
