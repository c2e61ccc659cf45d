//! Classes of bytes (RFC 9110 section 5.6.2, RFC 9112 section 2 to 5) and the scans over them.

/// `tchar`: the bytes of methods, field names and list tokens.
pub const TOKEN: [bool; 256] = class(b"!#$%&'*+-.^_`|~", 0);
/// Visible ASCII, the bytes accepted in a request target.
pub const TARGET: [bool; 256] = visible();
/// The bytes that an authority may have outside `[...]`: unreserved, `%` and sub-delims without `,`.
pub const REG_NAME: [bool; 256] = class(b"-._~%!$&'()*+;=", 0);
/// The bytes that may be between `[` and `]` of an authority.
pub const IP_LITERAL: [bool; 256] = class(b":.%-_~", 0);
/// Field values, reason phrases, chunk extensions: HTAB, SP, visible ASCII and `obs-text`.
pub const VALUE: [bool; 256] = class(b"\t !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", 0x80);
/// The value of a hexadecimal digit, 0xff for any other byte.
pub const HEX: [u8; 256] = hex_digits();

/// Makes a class of the listed bytes, letters and digits, and all bytes from `from` up if that is not 0.
const fn class(listed: &[u8], from: u8) -> [bool; 256] {
    let mut table = [false; 256];
    let mut i = 0;
    while i < listed.len() {
        table[listed[i] as usize] = true;
        i += 1;
    }
    let mut byte = 0;
    while byte < 256 {
        if (byte as u8).is_ascii_alphanumeric() || (from != 0 && byte >= from as usize) {
            table[byte] = true;
        }
        byte += 1;
    }
    table
}

const fn visible() -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0x21;
    while byte <= 0x7e {
        table[byte] = true;
        byte += 1;
    }
    table
}

const fn hex_digits() -> [u8; 256] {
    let mut table = [0xff; 256];
    let mut digit = 0;
    while digit < 16 {
        table[b"0123456789abcdef"[digit] as usize] = digit as u8;
        table[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    table
}

/// Whether `byte` belongs to `table`.
#[inline]
pub fn is(table: &[bool; 256], byte: u8) -> bool {
    table[usize::from(byte)]
}

/// Whether every byte belongs to `table`.
pub fn all(table: &[bool; 256], bytes: &[u8]) -> bool {
    run_end(table, bytes, 0) == bytes.len()
}

/// Whether the bytes are a non-empty token.
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(&TOKEN, bytes)
}

/// Returns where the run of bytes of `table` that starts at `from` ends; looks at eight bytes before it asks which of
/// them ends it.
#[inline]
pub fn run_end(table: &[bool; 256], bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    let (eights, _) = rest.as_chunks::<8>();
    let whole = eights.iter().take_while(|eight| eight.iter().fold(true, |all, &byte| all & is(table, byte))).count();
    let tail = rest.get(whole * 8..).unwrap_or_default();
    from + whole * 8 + tail.iter().position(|&byte| !is(table, byte)).unwrap_or(tail.len())
}

/// The lowest bit of each byte of a word.
const ONES: u64 = u64::from_ne_bytes([1; 8]);
/// The highest bit of each byte of a word.
const HIGHS: u64 = ONES * 0x80;

/// `run_end(&TOKEN, ..)`, eight bytes a step while these are letters, digits and `-`, as most bytes of a name are.
#[inline]
pub fn token_end(bytes: &[u8], from: usize) -> usize {
    // Sets the highest bit of each byte that is at least `least`, if no byte of `word` is above 127.
    let from_on = |word: u64, least: u8| word + (ONES * u64::from(0x80 - least));
    let mut at = from;
    while let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*eight);
        let low = word & !HIGHS;
        let lower = low | (ONES * 0x20);
        let letters = from_on(lower, b'a') & !from_on(lower, b'z' + 1);
        let digits = from_on(low, b'0') & !from_on(low, b'9' + 1);
        let dashes = !from_on(low ^ (ONES * u64::from(b'-')), 1);
        let others = (!(letters | digits | dashes) | word) & HIGHS;
        if others == 0 {
            at += 8;
            continue;
        }
        at += (others.trailing_zeros() / 8) as usize;
        if !bytes.get(at).is_some_and(|&byte| is(&TOKEN, byte)) {
            return at;
        }
        at += 1;
    }
    run_end(&TOKEN, bytes, at)
}

/// `run_end(&TARGET, ..)`, eight bytes a step.
#[inline]
pub fn target_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*eight);
        let low = word & !HIGHS;
        // The highest bit of each byte that is visible ASCII, which 0x7f is not.
        let visible = (low + ONES * (0x80 - 0x21)) & !(low + ONES) & !word;
        let others = !visible & HIGHS;
        if others != 0 {
            return at + (others.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    run_end(&TARGET, bytes, at)
}

/// `run_end(&VALUE, ..)`, eight bytes a step: values are most of a head.
#[inline]
pub fn value_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*eight);
        // A borrow makes false hits only above a true one, so the lowest hit is always true.
        let below_space = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
        let against_del = word ^ (ONES * 0x7f);
        let del = against_del.wrapping_sub(ONES) & !against_del & HIGHS;
        let hits = below_space | del;
        if hits == 0 {
            at += 8;
            continue;
        }
        at += (hits.trailing_zeros() / 8) as usize;
        if bytes.get(at) != Some(&b'\t') {
            return at;
        }
        at += 1;
    }
    run_end(&VALUE, bytes, at)
}

/// Returns `bytes` without the blanks and tabs (OWS) around it.
pub fn trim(bytes: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(*byte, b' ' | b'\t');
    let Some(start) = bytes.iter().position(|byte| !blank(byte)) else { return &[] };
    let end = bytes.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    bytes.get(start..end).unwrap_or_default()
}

/// Returns the elements of a comma-separated list, trimmed; empty ones are kept for the caller to judge.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_the_grammar_lists() {
        for byte in 0..=255u8 {
            let c = byte as char;
            let token = c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c) && byte < 128;
            assert_eq!(is(&TOKEN, byte), token, "tchar {byte:#x}");
            assert_eq!(is(&VALUE, byte), byte == 9 || (byte >= 0x20 && byte != 0x7f), "value {byte:#x}");
            assert_eq!(is(&TARGET, byte), (0x21..=0x7e).contains(&byte), "target {byte:#x}");
            let hex = c.to_digit(16).filter(|_| byte < 128).map_or(0xff, |digit| digit as u8);
            assert_eq!(HEX[usize::from(byte)], hex, "hex {byte:#x}");
        }
    }

    #[test]
    fn the_wide_scans_are_the_naive_ones_for_each_byte_at_each_place() {
        for len in 0..20 {
            for place in 0..len {
                for byte in 0..=255u8 {
                    for filler in [b'a', b'Z', b'-', b'_', 0x80, 0xff, b'\t', b' '] {
                        let mut bytes = vec![filler; len];
                        bytes[place] = byte;
                        for from in 0..3.min(len) {
                            assert_eq!(value_end(&bytes, from), run_end(&VALUE, &bytes, from), "{bytes:?} from {from}");
                            assert_eq!(token_end(&bytes, from), run_end(&TOKEN, &bytes, from), "{bytes:?} from {from}");
                            let target = run_end(&TARGET, &bytes, from);
                            assert_eq!(target_end(&bytes, from), target, "{bytes:?} from {from}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_wide_scans_find_the_first_of_two_bytes() {
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                let bytes = [b'a', first, second, b'b', b'c', b'd', b'e', b'f', b'g'];
                assert_eq!(value_end(&bytes, 0), run_end(&VALUE, &bytes, 0), "{first:#x} {second:#x}");
                assert_eq!(token_end(&bytes, 0), run_end(&TOKEN, &bytes, 0), "{first:#x} {second:#x}");
                assert_eq!(target_end(&bytes, 0), run_end(&TARGET, &bytes, 0), "{first:#x} {second:#x}");
            }
        }
    }

    #[test]
    fn lists_are_cut_at_commas_and_trimmed() {
        assert_eq!(list(b" a ,\tb,,c ").collect::<Vec<_>>(), [&b"a"[..], b"b", b"", b"c"]);
        assert_eq!(list(b"").collect::<Vec<_>>(), [b""]);
        assert_eq!(trim(b" \t "), b"");
    }
}
