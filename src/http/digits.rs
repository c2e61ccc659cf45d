//! The numbers of HTTP framing. `str::parse` takes a `+`, and has made desyncs of it (CVE-2021-32715):
//! these take digits and nothing else.

use super::class::HEX;

/// Largest length of a message body.
pub const DECIMAL_MAX: u64 = i64::MAX as u64;
/// Largest size of one chunk: what peers that count in doubles can still hold.
pub const HEX_MAX: u64 = 1 << 53;
/// Most digits of a chunk size; more are leading zeros without a use.
pub const HEX_DIGITS_MAX: usize = 16;

/// `1*DIGIT` up to 2^63-1; anything else is `None`.
pub fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for &byte in bytes {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        if value > DECIMAL_MAX {
            return None;
        }
    }
    Some(value)
}

/// `1*16HEXDIG` up to 2^53; anything else is `None`.
pub fn hex(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > HEX_DIGITS_MAX {
        return None;
    }
    bytes.iter().try_fold(0, |value, &byte| hex_push(value, byte))
}

/// `value` with one hexadecimal digit more, while that stays within [`HEX_MAX`].
#[inline]
pub fn hex_push(value: u64, byte: u8) -> Option<u64> {
    let digit = HEX[usize::from(byte)];
    if digit > 15 || value > HEX_MAX >> 4 {
        return None;
    }
    let value = (value << 4) | u64::from(digit);
    (value <= HEX_MAX).then_some(value)
}

/// Appends `value` in decimal.
pub fn write_decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        // At most 20 digits, so `at` stays in range.
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The obvious parser, over big enough numbers.
    fn naive(bytes: &[u8], radix: u32, max: u64) -> Option<u64> {
        let mut value = 0u128;
        for &byte in bytes {
            let digit = char::from(byte).to_digit(radix).filter(|_| byte.is_ascii())?;
            value = (value * u128::from(radix) + u128::from(digit)).min(u128::from(u64::MAX) * 2);
        }
        (!bytes.is_empty() && value <= u128::from(max)).then_some(value as u64)
    }

    #[test]
    fn every_string_of_one_and_two_bytes_and_every_byte_in_a_number() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                for text in [&[a][..], &[a, b], &[b'1', a, b], &[a, b'0', b], &[a, b, b'9']] {
                    assert_eq!(decimal(text), naive(text, 10, DECIMAL_MAX), "{text:?}");
                    assert_eq!(hex(text), naive(text, 16, HEX_MAX), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn bounds_are_exact() {
        assert_eq!(decimal(b"9223372036854775807"), Some(DECIMAL_MAX));
        for text in ["9223372036854775808", "18446744073709551616", "99999999999999999999", "36893488147419103233"] {
            assert_eq!(decimal(text.as_bytes()), None, "{text}");
        }
        assert_eq!(decimal(b"00000000000000000000000000000000000007"), Some(7));
        assert_eq!(hex(b"20000000000000"), Some(HEX_MAX));
        for text in ["20000000000001", "ffffffffffffff", "10000000000000000", "00000000000000001", ""] {
            assert_eq!(hex(text.as_bytes()), None, "{text}");
        }
        assert_eq!(hex(b"0000000000000001"), Some(1));
        for around in [0, 1, 9, 10, 15, 16, 255, 256, HEX_MAX >> 4, (HEX_MAX >> 4) + 1, HEX_MAX - 1] {
            assert_eq!(hex(format!("{around:x}").as_bytes()), Some(around));
            assert_eq!(hex(format!("{around:X}").as_bytes()), Some(around));
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for value in [0, 1, 9, 10, 99, 100, 12_345, DECIMAL_MAX] {
            let mut out = Vec::new();
            write_decimal(&mut out, value);
            assert_eq!(decimal(&out), Some(value));
        }
        let mut out = Vec::new();
        write_decimal(&mut out, u64::MAX);
        assert_eq!(out, u64::MAX.to_string().as_bytes());
    }
}
