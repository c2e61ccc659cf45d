//! Byte runs: the three loops in which a scan spends its time, apart from everything that knows JSON's
//! meaning, so that vector kernels can take their place.

/// Length of the clean run at the start of a string's bytes: up to the first quote, backslash or control
/// character, or all of them.
#[inline]
pub(super) fn text_run(bytes: &[u8]) -> usize {
    let (blocks, tail) = bytes.as_chunks::<BLOCK>();
    for (index, block) in blocks.iter().enumerate() {
        // Without an early exit inside the block the compiler compares it with vector instructions.
        if block.iter().fold(false, |found, &byte| found | ends_run(byte)) {
            return index * BLOCK + run_in_words(block);
        }
    }
    bytes.len() - tail.len() + run_in_words(tail)
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
        let found = memchr::memchr2(b'"', b'\\', rest)?;
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
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (control | (quote.wrapping_sub(ONES) & !quote) | (backslash.wrapping_sub(ONES) & !backslash)) & HIGH
}

const BLOCK: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ends_at_the_first_of_every_byte_that_ends_one() {
        for length in 0..100 {
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
