//! When a mock engine sent an event: the event tells it itself, where vLLM's events have the second of their request.
//! So the load generator sees how late an event comes: a front that holds tokens back to write them together would
//! otherwise only look cheap.
//!
//! Ten digits as in vLLM's: a one, eight of microseconds, and a check digit.

use std::ops::Range;

pub const DIGITS: usize = 10;
/// Microseconds after which the count begins anew: far longer than a run waits for any byte.
const AROUND_US: u64 = 100_000_000;

pub fn write(us: u64) -> [u8; DIGITS] {
    let mut digits = [b'1'; DIGITS];
    let mut rest = us % AROUND_US;
    for digit in digits[TIME].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    digits[DIGITS - 1] = check(&digits);
    digits
}

/// `None`: no engine writes this.
pub fn read(digits: &[u8]) -> Option<u64> {
    let right = digits.len() == DIGITS && digits[0] == b'1' && digits.iter().all(u8::is_ascii_digit);
    let right = right && digits[DIGITS - 1] == check(digits);
    right.then(|| digits[TIME].iter().fold(0, |us, digit| us * 10 + u64::from(digit - b'0')))
}

pub fn delay_us(sent: u64, now: u64) -> u64 {
    (now + AROUND_US - sent % AROUND_US) % AROUND_US
}

const TIME: Range<usize> = 1..DIGITS - 1;

fn check(digits: &[u8]) -> u8 {
    b'0' + (digits[TIME].iter().map(|digit| u32::from(digit - b'0')).sum::<u32>() % 10) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_a_changed_digit_is_not() {
        for us in [0, 7, 12_345_678, 99_999_999, 5_299_999_999] {
            let digits = write(us);
            assert_eq!(read(&digits), Some(us % AROUND_US));
            for at in 0..DIGITS {
                for other in (b'0'..=b'9').filter(|other| *other != digits[at]) {
                    let mut altered = digits;
                    altered[at] = other;
                    assert_eq!(read(&altered), None, "{us}, digit {at}");
                }
            }
        }
        assert_eq!((read(b"1"), read(b"1xxxxxxxx0")), (None, None));
    }

    #[test]
    fn a_delay_is_counted_across_the_beginning_anew() {
        assert_eq!(delay_us(read(&write(299_999_990)).unwrap(), 300_000_005), 15);
        assert_eq!(delay_us(40, 40), 0);
    }
}
