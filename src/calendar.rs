//! Writes and reads dates and times as text; numbers count from the beginning of 1970, UTC.

const MICROS: u64 = 1_000_000;
const DAY_SECONDS: u64 = 86_400;
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Writes microseconds as an IMF-fixdate, as in a `Date` field (RFC 9110, 5.6.7).
pub fn imf_fixdate(micros: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let Civil { year, month, day, hour, minute, second } = Civil::of(micros);
    let name = |names: &[&'static str], place: u64| names.get(place as usize).copied().unwrap_or_default();
    let weekday = name(&WEEKDAYS, micros / MICROS / DAY_SECONDS % 7);
    let month = name(&MONTHS, month - 1);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Reads an IMF-fixdate as seconds. Its weekday is not checked.
pub fn of_imf_fixdate(text: &[u8]) -> Option<u64> {
    let (_, rest) = std::str::from_utf8(text).ok()?.split_once(", ")?;
    let parts: Vec<&str> = rest.split([' ', ':']).collect();
    let [day, month, year, hour, minute, second, "GMT"] = parts[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let days = days_before(number(year)?, month, number(day)?)?;
    Some(days * DAY_SECONDS + seconds_before(number(hour)?, number(minute)?, number(second)?)?)
}

/// Writes microseconds as an RFC 3339 time.
pub fn rfc3339(micros: u64) -> String {
    let Civil { year, month, day, hour, minute, second } = Civil::of(micros);
    let micros = micros % MICROS;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Reads an RFC 3339 time, with any fraction and offset, as microseconds.
pub fn of_rfc3339(text: &str) -> Option<u64> {
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !marks.iter().all(|(at, mark)| text.as_bytes().get(*at) == Some(mark)) {
        return None;
    }
    let part = |range: std::ops::Range<usize>| number(text.get(range)?);
    let days = days_before(part(0..4)?, part(5..7)?, part(8..10)?)?;
    let seconds = days * DAY_SECONDS + seconds_before(part(11..13)?, part(14..16)?, part(17..19)?)?;
    let rest = text.get(19..)?;
    let digits = rest.strip_prefix('.').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    let fraction = rest.get(1..=digits.min(6)).unwrap_or_default();
    let micros = if digits == 0 { 0 } else { fraction.parse::<u64>().ok()? * 10_u64.pow(6 - fraction.len() as u32) };
    let zone = rest.get(if rest.starts_with('.') { digits + 1 } else { 0 }..)?;
    let seconds = match zone.as_bytes() {
        b"Z" => seconds,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let offset = (number(zone.get(1..3)?)? * 60 + number(zone.get(4..6)?)?) * 60;
            if *sign == b'+' { seconds.checked_sub(offset)? } else { seconds + offset }
        }
        _ => return None,
    };
    Some(seconds * MICROS + micros)
}

/// Reads up to four digits, without a sign.
fn number(text: &str) -> Option<u64> {
    let digits = text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Returns the days from 1970 to a day: Howard Hinnant's `days_from_civil`, with years that begin in March.
fn days_before(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    Some(year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468)
}

/// Returns the seconds of a day until a time; a leap second is the next minute's first.
fn seconds_before(hour: u64, minute: u64, second: u64) -> Option<u64> {
    (hour <= 23 && minute <= 59 && second <= 60).then(|| hour * 3_600 + minute * 60 + second)
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
    /// Howard Hinnant's `civil_from_days`, with years that begin in March.
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
            assert_eq!(of_imf_fixdate(text.as_bytes()), Some(seconds), "{text}");
        }
    }

    #[test]
    fn what_is_no_date_is_not_read_as_one() {
        for wrong in [
            "",
            "now",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nox 1994 08:49:37 GMT",
            "Sun, 06 Nov 0000 08:49:37 GMT",
            "Sun, 06 Nov 99999999999999999999 08:49:37 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(of_imf_fixdate(wrong.as_bytes()), None, "{wrong}");
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
            assert_eq!(of_rfc3339(expected), Some(seconds * MICROS), "{expected}");
        }
    }

    #[test]
    fn times_are_read_with_any_fraction_and_offset() {
        assert_eq!(of_rfc3339("1970-01-01T00:00:00Z"), Some(0));
        let micros = 1_795_289_660_397_338;
        assert_eq!(of_rfc3339(&rfc3339(micros)), Some(micros));
        assert_eq!(of_rfc3339("2000-02-29T23:59:59.5Z"), Some(951_868_799_500_000));
        assert_eq!(of_rfc3339("2026-11-21T20:34:20.397338999+01:00"), Some(micros));
        assert_eq!(of_rfc3339("2026-11-21T17:04:20.397338-02:30"), Some(micros));
        for wrong in [
            "",
            "2026-11-21",
            "2026-11-21 19:34:20Z",
            "2026-13-21T19:34:20Z",
            "2026-11-21T19:34:20",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:59:59+01:00",
            "2026-11-21T19:34:20.Z1",
            "2026-11-21T19:34:20++1:00",
            "2026-1é-21T19:34:20Z",
            "2026-11-21T19:34:20é",
        ] {
            assert_eq!(of_rfc3339(wrong), None, "{wrong}");
        }
    }
}
