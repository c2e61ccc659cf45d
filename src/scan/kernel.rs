//! Byte runs: the loops in which a scan spends its time, apart from everything that knows JSON's meaning,
//! so that vector kernels can take their place.

/// Length of the clean run at the start of a string's bytes: up to the first quote, backslash or control
/// character, or all of them.
#[inline]
pub(super) fn text_run(bytes: &[u8]) -> usize {
    let (near, far) = bytes.split_at(bytes.len().min(NEAR));
    let run = run_in_words(near);
    if run < NEAR {
        return run;
    }
    let found = memchr::memchr2(b'"', b'\\', far).unwrap_or(far.len());
    let far = far.get(..found).unwrap_or(far);
    // Control characters are refused and therefore rare: one look for the smallest byte rules them out.
    if far.iter().fold(u8::MAX, |least, &byte| least.min(byte)) < 0x20 {
        return NEAR + far.iter().position(|&byte| byte < 0x20).unwrap_or(found);
    }
    NEAR + found
}

/// Decodes text: used bytes of `bytes`, written bytes of `out`. It stops, maybe at once, at whatever needs a
/// closer look: the quote, an escape that is cut off or malformed, a lone surrogate, the end of either, or a
/// clean run so long that [`text_run`] and no copy are faster.
pub(super) fn unescape(bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
    let (mut at, mut to, mut clean_words) = (0, 0, 0);
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>())
        && let Some(slot) = out.get_mut(to..).and_then(|rest| rest.first_chunk_mut::<8>())
    {
        *slot = *word;
        let ends = ends_in_word(u64::from_le_bytes(*word));
        if ends == 0 {
            (at, to, clean_words) = (at + 8, to + 8, clean_words + 1);
            if clean_words == 2 {
                let clean =
                    copy_clean_blocks(bytes.get(at..).unwrap_or_default(), out.get_mut(to..).unwrap_or_default());
                (at, to) = (at + clean, to + clean);
                if clean >= LONG {
                    break;
                }
            }
            continue;
        }
        clean_words = 0;
        let clean = ends.trailing_zeros() as usize / 8;
        (at, to) = (at + clean, to + clean);
        let Some(escape) = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>()) else { break };
        let plain = if escape[0] == b'\\' { plain_escape(escape[1]) } else { 0 };
        if plain != 0 {
            slot[clean] = plain;
            (at, to) = (at + 2, to + 1);
            continue;
        }
        let Some((used, point)) = unicode_escape(bytes.get(at..).unwrap_or_default()) else { break };
        let Some(slot) = out.get_mut(to..).and_then(|rest| rest.first_chunk_mut::<4>()) else { break };
        let (utf8, length) = wtf8(point);
        *slot = utf8;
        (at, to) = (at + used, to + length);
    }
    (at, to)
}

/// Copies whole blocks without a byte that ends a run, at most [`LONG`] bytes; says how many bytes.
#[inline]
fn copy_clean_blocks(bytes: &[u8], out: &mut [u8]) -> usize {
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    let (slots, _) = out.as_chunks_mut::<BLOCK>();
    let mut copied = 0;
    for (block, slot) in blocks.iter().zip(slots).take(LONG / BLOCK) {
        // No early exit inside the block: so the compiler compares it with vector instructions.
        if block.iter().fold(false, |found, &byte| found | (byte == b'"') | (byte == b'\\') | (byte < 0x20)) {
            break;
        }
        *slot = *block;
        copied += BLOCK;
    }
    copied
}

/// A whole `\uXXXX`, or a pair of them that makes one code point: bytes used, code point.
#[inline]
fn unicode_escape(bytes: &[u8]) -> Option<(usize, u32)> {
    let unit = |escape: &[u8; 6]| {
        let [b'\\', b'u', digits @ ..] = escape else { return None };
        let nibbles = digits.map(|digit| HEX[digit as usize]);
        let all = nibbles.iter().fold(0, |all, nibble| all | nibble);
        (all < 16).then(|| nibbles.iter().fold(0, |value, nibble| value << 4 | *nibble as u32))
    };
    let high = unit(bytes.first_chunk()?)?;
    match high {
        0xd800..0xdc00 => {
            let low = unit(bytes.get(6..)?.first_chunk()?).filter(|low| low & 0xfc00 == 0xdc00)?;
            Some((12, 0x1_0000 + ((high & 0x3ff) << 10) + (low & 0x3ff)))
        }
        _ => Some((6, high)),
    }
}

/// Token ids, each with its comma: used bytes of `bytes`, and how many were written to `out` as four bytes,
/// little-endian. It stops, maybe at once, at anything but a plain whole number below 2^32 with a comma.
pub(super) fn token_ids(bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
    let (slots, _) = out.as_chunks_mut::<4>();
    let mut used = 0;
    for (written, slot) in slots.iter_mut().enumerate() {
        let rest = bytes.get(used..).unwrap_or_default();
        let space = rest.iter().take_while(|&&byte| byte == b' ').count();
        let mut id = 0u64;
        let mut length = 0;
        for &byte in rest.get(space..).unwrap_or_default().iter().take(10) {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            (id, length) = (id * 10 + digit as u64, length + 1);
        }
        let Ok(small) = u32::try_from(id) else { return (used, written) };
        if length == 0 || rest.get(space + length) != Some(&b',') {
            return (used, written);
        }
        *slot = small.to_le_bytes();
        used += space + length + 1;
    }
    (used, slots.len())
}

/// The byte a two-byte escape stands for; 0 for none.
#[inline(always)]
pub(super) fn plain_escape(byte: u8) -> u8 {
    PLAIN[byte as usize]
}

/// UTF-8 of a code point; surrogates get the three bytes they would have.
#[inline]
pub(super) fn wtf8(point: u32) -> ([u8; 4], usize) {
    let tail = |shift: u32| 0x80 | (point >> shift & 0x3f) as u8;
    match point {
        0..0x80 => ([point as u8, 0, 0, 0], 1),
        0x80..0x800 => ([0xc0 | (point >> 6) as u8, tail(0), 0, 0], 2),
        0x800..0x1_0000 => ([0xe0 | (point >> 12) as u8, tail(6), tail(0), 0], 3),
        _ => ([0xf0 | (point >> 18) as u8, tail(12), tail(6), tail(0)], 4),
    }
}

/// Where a skipped value stands: a container is over when its brackets balance, a string at its quote.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skip {
    /// Open brackets. Their kinds are not compared: nothing inside is looked at.
    pub depth: u64,
    /// Inside a string.
    pub in_string: bool,
    /// The byte before was a backslash that escapes the next one.
    pub escaped: bool,
}

/// Skips to the end of the value. `Some(used)` when it ends within `bytes`, `None` when all of them belong to it.
pub(super) fn skip(state: &mut Skip, bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        if state.in_string {
            at += skip_string(state, bytes.get(at..)?)?;
        } else {
            at += skip_structure(state, bytes.get(at..)?)?;
        }
        if state.depth == 0 && !state.in_string {
            return Some(at);
        }
    }
}

/// Skips a string's bytes through its closing quote.
#[inline]
fn skip_string(state: &mut Skip, bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    if state.escaped && !bytes.is_empty() {
        (state.escaped, at) = (false, 1);
    }
    loop {
        let rest = bytes.get(at..)?;
        let found = quote_or_backslash(rest)?;
        at += found + 1;
        if rest.get(found) == Some(&b'"') {
            state.in_string = false;
            return Some(at);
        }
        if at == bytes.len() {
            state.escaped = true;
            return None;
        }
        at += 1;
    }
}

/// Most skipped strings are short: a few words are looked at before the vector search is set up.
#[inline]
fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    let (near, far) = bytes.split_at(bytes.len().min(NEAR));
    let (words, _) = near.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let ends = quotes_in_word(u64::from_le_bytes(*word));
        if ends != 0 {
            return Some(index * 8 + ends.trailing_zeros() as usize / 8);
        }
    }
    let start = words.len() * 8;
    let tail = near.get(start..).unwrap_or_default();
    if let Some(found) = tail.iter().position(|&byte| byte == b'"' || byte == b'\\') {
        return Some(start + found);
    }
    memchr::memchr2(b'"', b'\\', far).map(|found| near.len() + found)
}

/// Skips brackets and everything between them through the next opening quote, or the last bracket.
#[inline]
fn skip_structure(state: &mut Skip, bytes: &[u8]) -> Option<usize> {
    for (index, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => {
                state.in_string = true;
                return Some(index + 1);
            }
            b'[' | b'{' => state.depth += 1,
            b']' | b'}' => {
                state.depth = state.depth.saturating_sub(1);
                if state.depth == 0 {
                    return Some(index + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Length of the white space at the start.
#[inline]
pub(super) fn white_space(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).unwrap_or(bytes.len())
}

#[inline(always)]
fn ends_run(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

/// The same run by eight bytes at a time, for what is shorter than a block.
#[inline]
fn run_in_words(bytes: &[u8]) -> usize {
    let (words, tail) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let ends = ends_in_word(u64::from_le_bytes(*word));
        if ends != 0 {
            return index * 8 + ends.trailing_zeros() as usize / 8;
        }
    }
    let start = bytes.len() - tail.len();
    start + tail.iter().position(|&byte| ends_run(byte)).unwrap_or(tail.len())
}

/// High bit of each byte that may end a run; exact for the lowest one set, which is all that is used.
#[inline(always)]
fn ends_in_word(word: u64) -> u64 {
    let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
    control | quotes_in_word(word)
}

/// The same of quotes and backslashes.
#[inline(always)]
fn quotes_in_word(word: u64) -> u64 {
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    zero(word ^ (ONES * b'"' as u64)) | zero(word ^ (ONES * b'\\' as u64))
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
/// So many bytes are looked at word by word before the search for a far byte is set up.
const NEAR: usize = 16;
/// Bytes compared at once where short runs are copied.
const BLOCK: usize = 64;
/// A run of this length is not copied any further.
const LONG: usize = 8 * BLOCK;

/// [`plain_escape`] by byte.
const PLAIN: [u8; 256] = {
    let mut table = [0; 256];
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table[b'/' as usize] = b'/';
    table[b'b' as usize] = 8;
    table[b'f' as usize] = 12;
    table[b'n' as usize] = b'\n';
    table[b'r' as usize] = b'\r';
    table[b't' as usize] = b'\t';
    table
};

/// Value of a hexadecimal digit by byte; 16 and more: none.
const HEX: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut digit = 0;
    while digit < 16 {
        table[b"0123456789abcdef"[digit] as usize] = digit as u8;
        table[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ends_at_the_first_of_every_byte_that_ends_one() {
        for length in (0..100).step_by(3) {
            for place in 0..=length {
                for byte in 0..=255u8 {
                    let mut bytes = vec![b'a'; length];
                    if let Some(slot) = bytes.get_mut(place) {
                        *slot = byte;
                    }
                    bytes.extend([0xff, b'"', b'!']);
                    let naive = bytes.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20).unwrap();
                    assert_eq!(text_run(&bytes), naive, "{byte:#x} at {place} of {length}");
                }
            }
        }
    }

    #[test]
    fn token_ids_stop_at_what_is_none() {
        let cases: [(&[u8], &[u32], usize); 7] = [
            (b"1, 23,4294967295,5", &[1, 23, 4_294_967_295], 17),
            (b"4294967296,", &[], 0),
            (b"1,12345678901,", &[1], 2),
            (b"1,-2,", &[1], 2),
            (b"1,2]", &[1], 2),
            (b",", &[], 0),
            (b"  7,", &[7], 4),
        ];
        for (bytes, ids, used) in cases {
            let mut out = [0; 40];
            assert_eq!(token_ids(bytes, &mut out), (used, ids.len()), "{}", bytes.escape_ascii());
            let written: Vec<u32> =
                out.as_chunks().0.iter().take(ids.len()).map(|id| u32::from_le_bytes(*id)).collect();
            assert_eq!(written, ids);
        }
        assert_eq!(token_ids(b"1,2,3,", &mut [0; 11]), (4, 2));
    }

    #[test]
    fn skip_ends_where_brackets_balance_at_any_cut() {
        let value = br#"{"a":"]}\"{\\","b":[[{}],"\\\\"]}rest"#;
        let whole = skip(&mut Skip { depth: 1, ..Skip::default() }, &value[1..]);
        assert_eq!(whole, Some(value.len() - 5));
        for cut in 1..value.len() - 4 {
            let mut state = Skip { depth: 1, ..Skip::default() };
            assert_eq!(skip(&mut state, &value[1..cut]), None, "cut {cut}");
            assert_eq!(skip(&mut state, &value[cut..]), Some(value.len() - 4 - cut), "cut {cut}");
        }
    }
}
