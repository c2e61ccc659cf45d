//! The loops on words of eight bytes and on [`memchr`], for every CPU. Results of vector kernels are compared with
//! these.

use super::super::lanes::{Lanes, Words};
use super::escape::{plain_escape, unicode_escape, wtf8};
use super::{BLOCK, Kernel, NEAR, Skip};

/// The table of these loops.
pub(super) static KERNEL: Kernel = Kernel { name: "portable", text_run, unescape, token_ids, skip, hash };

/// See [`Kernel::text_run`].
fn text_run(bytes: &[u8]) -> usize {
    let found = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
    let run = bytes.get(..found).unwrap_or(bytes);
    // Control characters are refused and therefore rare: a search for the smallest byte rules them out.
    if run.iter().fold(u8::MAX, |least, &byte| least.min(byte)) < 0x20 {
        return run.iter().position(|&byte| byte < 0x20).unwrap_or(found);
    }
    found
}

/// See [`Kernel::unescape`].
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

/// Copies whole blocks that have no byte that ends a run, at most [`LONG`] bytes; returns how many bytes.
#[inline]
fn copy_clean_blocks(bytes: &[u8], out: &mut [u8]) -> usize {
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    let (slots, _) = out.as_chunks_mut::<BLOCK>();
    let mut copied = 0;
    for (block, slot) in blocks.iter().zip(slots).take(LONG / BLOCK) {
        // Without an early exit inside the block the compiler compares it with vector instructions.
        if block.iter().fold(false, |found, &byte| found | (byte == b'"') | (byte == b'\\') | (byte < 0x20)) {
            break;
        }
        *slot = *block;
        copied += BLOCK;
    }
    copied
}

/// See [`Kernel::token_ids`].
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

/// See [`Kernel::hash`].
fn hash(lanes: &mut Lanes, bytes: &[u8], steps: bool, slots: &mut [u64]) {
    lanes.take_steps(bytes, steps, slots, Words);
}

/// See [`Kernel::skip`].
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

/// Skips a string's bytes up to and with its closing quote.
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

/// Finds a quote or backslash. Most skipped strings are short: a few words are looked at before the vector search is
/// set up.
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

/// Skips brackets and everything between them, up to and with the next opening quote or the last bracket.
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

#[inline(always)]
fn ends_run(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

/// Returns the same run, found eight bytes at a time, for runs shorter than a block.
#[inline]
pub(super) fn run_in_words(bytes: &[u8]) -> usize {
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

/// Returns the high bit of each byte that may end a run; exact for the lowest one set, which is all that is used.
#[inline(always)]
fn ends_in_word(word: u64) -> u64 {
    let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
    control | quotes_in_word(word)
}

/// Returns the same for quotes and backslashes.
#[inline(always)]
fn quotes_in_word(word: u64) -> u64 {
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    zero(word ^ (ONES * b'"' as u64)) | zero(word ^ (ONES * b'\\' as u64))
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
/// Most bytes of a run that are copied.
const LONG: usize = 8 * BLOCK;
