//! The time of day in words, from microseconds since 1970.

const MICROS: u64 = 1_000_000;
const DAY_SECONDS: u64 = 86_400;

/// As a `Date` field has it (RFC 9110, 5.6.7).
pub fn imf_fixdate(micros: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let Civil { year, month, day, hour, minute, second } = Civil::of(micros);
    let name = |names: &[&'static str], place: u64| names.get(place as usize).copied().unwrap_or_default();
    let weekday = name(&WEEKDAYS, micros / MICROS / DAY_SECONDS % 7);
    let month = name(&MONTHS, month - 1);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// As RFC 3339 has it, to the microsecond.
pub fn rfc3339(micros: u64) -> String {
    let Civil { year, month, day, hour, minute, second } = Civil::of(micros);
    let micros = micros % MICROS;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

struct Civil {
    year: u64,
    /// 1 to 12.
    month: u64,
    /// 1 to 31.
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Civil {
    /// Howard Hinnant's `civil_from_days`, of years that begin in March.
    fn of(micros: u64) -> Civil {
        let (days, second) = (micros / MICROS / DAY_SECONDS, micros / MICROS % DAY_SECONDS);
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + u64::from(month <= 2);
        Civil { year, month, day, hour: second / 3_600, minute: second / 60 % 60, second: second % 60 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_fields_have_them() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            // The RFC's own.
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(imf_fixdate(seconds * MICROS + 999_999), text);
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
            (1_735_689_600, "2025-01-01T00:00:00.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(rfc3339(seconds * MICROS), expected);
        }
    }
}
