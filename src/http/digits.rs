//! Reads and writes the numbers of HTTP framing. `str::parse` accepts a `+`, which has led to desyncs (CVE-2021-32715):
//! these functions take digits and nothing else.

use super::class::HEX;

/// Largest length of a message body.
pub const DECIMAL_MAX: u64 = i64::MAX as u64;
/// Largest size of one chunk, in bytes: peers that count in doubles can still represent it.
pub const HEX_MAX: u64 = 1 << 53;
/// Most digits of a chunk size: more could only be leading zeros.
pub const HEX_DIGITS_MAX: usize = 16;

/// Reads `1*DIGIT` up to 2^63-1; anything else is `None`.
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

/// Reads `1*16HEXDIG` up to 2^53; anything else is `None`.
pub fn hex(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > HEX_DIGITS_MAX {
        return None;
    }
    bytes.iter().try_fold(0, |value, &byte| hex_push(value, byte))
}

/// Returns `value` with one hexadecimal digit more, if that stays within [`HEX_MAX`].
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
#[inline]
pub fn write_decimal(out: &mut Vec<u8>, value: u64) {
    let digit = |place: u64| b'0' + (value / place % 10) as u8;
    // Most numbers are parts of an address or a status.
    match value {
        0..10 => out.push(digit(1)),
        10..100 => out.extend_from_slice(&[digit(10), digit(1)]),
        100..1_000 => out.extend_from_slice(&[digit(100), digit(10), digit(1)]),
        _ => write_long(out, value),
    }
}

fn write_long(out: &mut Vec<u8>, mut value: u64) {
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

    /// Every string of one, two and three bytes, by what each byte is worth.
    #[test]
    fn every_string_of_up_to_three_bytes() {
        let worth = |radix: u32| -> [Option<u64>; 256] {
            std::array::from_fn(|byte| char::from(byte as u8).to_digit(radix).map(u64::from))
        };
        let (tens, sixteens) = (worth(10), worth(16));
        let longer = |value: Option<u64>, radix: u64, digit: Option<u64>| Some(value? * radix + digit?);
        assert_eq!((decimal(b""), hex(b"")), (None, None));
        for a in 0..=255u8 {
            let one = (tens[usize::from(a)], sixteens[usize::from(a)]);
            assert_eq!((decimal(&[a]), hex(&[a])), one, "{a:#04x}");
            for b in 0..=255u8 {
                let two = (longer(one.0, 10, tens[usize::from(b)]), longer(one.1, 16, sixteens[usize::from(b)]));
                assert_eq!((decimal(&[a, b]), hex(&[a, b])), two, "{a:#04x} {b:#04x}");
                for c in 0..=255u8 {
                    let three = (longer(two.0, 10, tens[usize::from(c)]), longer(two.1, 16, sixteens[usize::from(c)]));
                    if (decimal(&[a, b, c]), hex(&[a, b, c])) != three {
                        panic!("{a:#04x} {b:#04x} {c:#04x}");
                    }
                }
            }
        }
    }

    /// Numbers of 1 to 40 digits around every bound, and every byte at every place of each.
    #[test]
    fn every_length_and_every_byte_in_it() {
        let (mut decimals, mut hexes) = (0, 0);
        for len in 1..=40 {
            for digit in "0123456789".chars() {
                let text: String = std::iter::repeat_n(digit, len).collect();
                assert_eq!(decimal(text.as_bytes()), naive(text.as_bytes(), 10, DECIMAL_MAX), "{text}");
                let led = format!("{text:0>40}");
                assert_eq!(decimal(led.as_bytes()), naive(text.as_bytes(), 10, DECIMAL_MAX), "{led}");
                decimals += usize::from(decimal(text.as_bytes()).is_some());
            }
            for digit in "0123456789abcdefABCDEF".chars() {
                let text: String = std::iter::repeat_n(digit, len).collect();
                let expected = naive(text.as_bytes(), 16, HEX_MAX).filter(|_| len <= HEX_DIGITS_MAX);
                assert_eq!(hex(text.as_bytes()), expected, "{text}");
                hexes += usize::from(expected.is_some());
            }
            let plain: Vec<u8> = (0..len).map(|place| b"1020304050"[place % 10]).collect();
            for place in 0..len {
                for byte in 0..=255u8 {
                    let mut text = plain.clone();
                    text[place] = byte;
                    assert_eq!(decimal(&text), naive(&text, 10, DECIMAL_MAX), "{}", text.escape_ascii());
                    let expected = naive(&text, 16, HEX_MAX).filter(|_| len <= HEX_DIGITS_MAX);
                    assert_eq!(hex(&text), expected, "{}", text.escape_ascii());
                }
            }
        }
        // 1 to 18 digits of any kind, 19 up to 8s; zeros of any length. 1 to 13 of any kind, 14 of 1s; zeros up to 16.
        assert_eq!((decimals, hexes), (10 * 18 + 9 + 21, 22 * 13 + 2 + 2));
    }

    #[test]
    fn around_every_power_and_bound() {
        let powers = (0..63).map(|power| 1u128 << power).chain((0..20).map(|power| 10u128.pow(power)));
        let bounds = [u128::from(DECIMAL_MAX), u128::from(HEX_MAX), 1 << 63, 1 << 64, (1 << 64) + (1 << 53), 1 << 65];
        for middle in powers.chain(bounds) {
            for value in middle.saturating_sub(40)..=middle + 40 {
                let fits = |max: u64| u64::try_from(value).ok().filter(|value| *value <= max);
                assert_eq!(decimal(value.to_string().as_bytes()), fits(DECIMAL_MAX), "{value}");
                assert_eq!(hex(format!("{value:x}").as_bytes()), fits(HEX_MAX), "{value:x}");
                assert_eq!(hex(format!("{value:X}").as_bytes()), fits(HEX_MAX), "{value:X}");
                let Some(fitting) = fits(u64::MAX) else { continue };
                let mut out = Vec::new();
                write_decimal(&mut out, fitting);
                assert_eq!(out, value.to_string().as_bytes());
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
