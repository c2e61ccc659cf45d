//! The loops on blocks of 64 bytes, written once for every instruction set that has an [`Isa`].
//!
//! A block becomes masks, one bit for each byte, lowest first. Unusual bytes, and those after the last whole block, are
//! left to [`portable`]. Everything here is inlined into one function for each set that is compiled with its
//! instructions: hence the attributes.

use super::super::lanes::{Adder, Lanes};
use super::escape::unicode_escape;
use super::{BLOCK, Skip, portable, words};
use crate::limits::BLOCK_BYTES;

/// The instructions of one set, on a block of 64 bytes. A value of it proves that the CPU has them.
pub trait Isa: Adder {
    /// 64 bytes in registers.
    type Block: Copy;
    /// Most bytes that [`Isa::unicode`] uses.
    const UNICODE_BYTES: usize = BLOCK;

    fn load(self, bytes: &[u8; BLOCK]) -> Self::Block;
    fn store(self, block: Self::Block, out: &mut [u8; BLOCK]);
    /// Returns which bytes equal this one.
    fn equal(self, block: Self::Block, byte: u8) -> u64;
    /// Returns which bytes are below this one.
    fn below(self, block: Self::Block, byte: u8) -> u64;
    /// Returns which bytes end a run of text if they are not escaped: quotes and control characters.
    #[inline(always)]
    fn ends(self, block: Self::Block) -> u64 {
        self.equal(block, b'"') | self.below(block, b' ')
    }
    /// Returns the block with this bit set in every byte.
    fn with_bit(self, block: Self::Block, bit: u8) -> Self::Block;
    /// Translates the letters of `escaped` and leaves all other bytes as they are; also returns which letters stand for
    /// nothing, `u` included.
    fn translated(self, block: Self::Block, escaped: u64) -> (Self::Block, u64);
    /// Writes the bytes of `keep` side by side, and anything after them.
    fn compress(self, block: Self::Block, keep: u64, out: &mut [u8; BLOCK]);
    /// Returns for each bit whether an odd number of bits is set up to and with it.
    #[inline(always)]
    fn parity(self, bits: u64) -> u64 {
        [1, 2, 4, 8, 16, 32].iter().fold(bits, |bits, shift| bits ^ bits << shift)
    }
    /// Decodes the `\uXXXX` at the start, as many as it can and no surrogate; returns bytes used and bytes written.
    #[inline(always)]
    fn unicode(self, _bytes: &[u8; BLOCK], _out: &mut [u8; BLOCK]) -> (usize, usize) {
        (0, 0)
    }
    /// Reads numbers of at most eight digits that end before a bit of `commas`, at most eight of them. Returns how many
    /// bytes are used, the last comma's included, and how many numbers are read.
    #[inline(always)]
    fn numbers(self, bytes: &[u8; BLOCK], digits: u64, commas: u64, out: &mut [u8; 4 * IDS]) -> (usize, usize) {
        words::numbers(bytes, starts(digits), commas, out)
    }
}

/// See [`super::Kernel::text_run`].
#[inline(always)]
pub fn text_run<I: Isa>(isa: I, bytes: &[u8]) -> usize {
    let (blocks, tail) = bytes.as_chunks::<BLOCK>();
    for (place, block) in blocks.iter().enumerate() {
        let block = isa.load(block);
        let ends = isa.ends(block) | isa.equal(block, b'\\');
        if ends != 0 {
            return place * BLOCK + ends.trailing_zeros() as usize;
        }
    }
    bytes.len() - tail.len() + portable::run_in_words(tail)
}

/// See [`super::Kernel::unescape`].
#[inline(always)]
pub fn unescape<I: Isa>(isa: I, bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
    let size = out.len();
    let (mut rest, mut room, mut recent) = (bytes, out, Recent::MAX);
    while let (Some(block), Some(slot)) = (rest.first_chunk(), room.first_chunk_mut()) {
        let loaded = isa.load(block);
        let backslashes = isa.equal(loaded, b'\\');
        let (escapes, escaped) = escapes(backslashes, 0);
        let (plain, unknown) = isa.translated(loaded, escaped);
        // An escape whose letter is in the next block waits for it. A control character that is escaped is among the
        // unknown.
        let stops = isa.ends(loaded) & !escaped | unknown >> 1 | escapes & 1 << 63;
        // A branch, so that the next block's place does not wait for this one's masks.
        if stops == 0 {
            isa.compress(plain, !escapes, slot);
            (rest, room) = after(rest, BLOCK, room, BLOCK - escapes.count_ones() as usize);
            // Whether one block has an escape is as good as random in most texts, so that no branch depends on it.
            recent = recent << 1 | (backslashes != 0) as Recent;
            if recent == 0 {
                return (bytes.len() - rest.len(), size - room.len());
            }
            continue;
        }
        let mut keep = !escapes;
        let (mut plain, mut stops) = (plain, stops);
        let unicode = escapes & isa.equal(loaded, b'u') >> 1;
        if unicode != 0 && !is_run(block, unicode) {
            let mut bytes = [0; BLOCK];
            isa.store(plain, &mut bytes);
            let (done, dropped) = unicode_in_place(block, unicode, &mut bytes);
            (plain, stops) = (isa.load(&bytes), stops & !(done | dropped));
            keep = (keep | done) & !dropped;
        }
        let length = stops.trailing_zeros() as usize;
        keep &= low_bits(length);
        isa.compress(plain, keep, slot);
        (rest, room) = after(rest, length, room, keep.count_ones() as usize);
        if length >= BLOCK - 1 {
            continue;
        }
        let (used, written) = match rest {
            [b'\\', b'u', ..] => unicode_run(isa, rest, room),
            _ => (0, 0),
        };
        (rest, room) = after(rest, used, room, written);
        if used == 0 {
            return (bytes.len() - rest.len(), size - room.len());
        }
    }
    let (at, to) = (bytes.len() - rest.len(), size - room.len());
    if rest.len() >= BLOCK && to > 0 {
        return (at, to);
    }
    let (used, written) = portable::unescape(rest, room);
    (at + used, to + written)
}

/// Returns the rest of bytes of which so many are used, and of the room of which so many are written.
#[inline(always)]
fn after<'a, 'b>(bytes: &'a [u8], used: usize, room: &'b mut [u8], written: usize) -> (&'a [u8], &'b mut [u8]) {
    (bytes.get(used..).unwrap_or_default(), room.get_mut(written..).unwrap_or_default())
}

/// Whether another `\uXXXX` follows the first of these, as in scripts of which every letter is one.
#[inline(always)]
fn is_run(block: &[u8; BLOCK], unicode: u64) -> bool {
    let behind = unicode.trailing_zeros() as usize + 6;
    matches!(block.get(behind..), Some([b'\\', b'u', ..]))
}

/// Writes the text of each of these `\uXXXX` in its place, which is longer. Returns which are done, all up to the first
/// that is not whole here or stands for nothing, and which bytes are left over after them.
fn unicode_in_place(block: &[u8; BLOCK], unicode: u64, out: &mut [u8; BLOCK]) -> (u64, u64) {
    let (mut left, mut done, mut dropped) = (unicode, 0, 0);
    while left != 0 {
        let place = left.trailing_zeros() as usize;
        let Some((used, point)) = block.get(place..).and_then(unicode_escape) else { break };
        let Some(slot) = out.get_mut(place..).and_then(|rest| rest.first_chunk_mut()) else { break };
        let (utf8, length) = super::wtf8(point);
        *slot = utf8;
        done |= 1 << place;
        dropped |= low_bits(used - length) << (place + length);
        // A pair of surrogates is two escapes.
        left &= !(low_bits(used) << place);
    }
    (done, dropped)
}

/// Decodes the `\uXXXX` that follow each other at the start; returns bytes used and bytes written.
#[inline(always)]
fn unicode_run<I: Isa>(isa: I, bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
    let (mut at, mut to) = (0, 0);
    while let (Some(block), Some(slot)) = (block_at(bytes, at), slot_at(out, to)) {
        let (used, written) = isa.unicode(block, slot);
        to += written;
        // A branch, so that the next escapes do not wait for these.
        if used == I::UNICODE_BYTES {
            at += I::UNICODE_BYTES;
            continue;
        }
        at += used;
        if used > 0 {
            continue;
        }
        // It is a pair of surrogates, or the run is over.
        let Some((used, point)) = unicode_escape(block) else { break };
        let (utf8, length) = super::wtf8(point);
        if let Some(slot) = slot.first_chunk_mut() {
            *slot = utf8;
        }
        (at, to) = (at + used, to + length);
    }
    (at, to)
}

/// See [`super::Kernel::token_ids`].
#[inline(always)]
pub fn token_ids<I: Isa>(isa: I, bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
    let (mut at, mut ids) = (0, 0);
    while let Some(block) = block_at(bytes, at)
        && let Some(slot) = out.get_mut(4 * ids..).and_then(|rest| rest.first_chunk_mut())
    {
        let loaded = isa.load(block);
        let (commas, spaces) = (isa.equal(loaded, b','), isa.equal(loaded, b' '));
        let digits = isa.below(loaded, b'9' + 1) & !isa.below(loaded, b'0');
        // Spaces must be before digits, commas after them, and nothing else elsewhere.
        let wrong = !(commas | spaces | digits) | spaces & digits << 1 | commas & !(digits << 1);
        let commas = if wrong == 0 { commas } else { before(commas, wrong) };
        let (used, read) = isa.numbers(block, digits, commas, slot);
        if read == 0 {
            break;
        }
        (at, ids) = (at + used, ids + read);
    }
    let rest = portable::token_ids(bytes.get(at..).unwrap_or_default(), out.get_mut(4 * ids..).unwrap_or_default());
    (at + rest.0, ids + rest.1)
}

/// Returns which of these bits begin a run.
#[inline(always)]
pub fn starts(bits: u64) -> u64 {
    bits & !(bits << 1)
}

/// Returns those of `bits` that are before the first of `wrong`. Rare, and a call, so that nothing waits for it
/// elsewhere.
#[cold]
#[inline(never)]
fn before(bits: u64, wrong: u64) -> u64 {
    bits & low_bits(wrong.trailing_zeros() as usize)
}

/// See [`super::Kernel::skip`].
#[inline(always)]
pub fn skip<I: Isa>(isa: I, state: &mut Skip, bytes: &[u8]) -> Option<usize> {
    let (mut at, mut depth, mut recent) = (0, state.depth, Recent::MAX);
    // `inside`: all ones inside a string. `first`: one if the block's first byte is escaped.
    let (mut inside, mut first) = ((state.in_string as u64).wrapping_neg(), state.escaped as u64);
    while let Some(block) = block_at(bytes, at) {
        let loaded = isa.load(block);
        let (quotes, backslashes) = (isa.equal(loaded, b'"'), isa.equal(loaded, b'\\'));
        let (escapes, escaped) = escapes(backslashes, first);
        let quotes = quotes & !escaped;
        // A string goes on. Whether it has escapes is as good as random, so that no branch depends on it.
        if quotes | !inside == 0 {
            (at, first) = (at + BLOCK, escapes >> 63);
            recent = recent << 1 | (backslashes != 0) as Recent;
            if recent == 0 {
                let rest = bytes.get(at..).unwrap_or_default();
                at += memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                recent = Recent::MAX;
            }
            continue;
        }
        recent = Recent::MAX;
        let strings = isa.parity(quotes) ^ inside;
        if backslashes & !strings != 0 {
            // Outside a string a backslash means nothing, whatever `escapes` made of it.
            let mut slow = Skip { depth, in_string: inside != 0, escaped: first != 0 };
            if let Some(used) = portable::skip(&mut slow, block) {
                *state = slow;
                return Some(at + used);
            }
            (depth, inside, first) = (slow.depth, (slow.in_string as u64).wrapping_neg(), slow.escaped as u64);
            at += BLOCK;
            continue;
        }
        let end = if depth == 0 {
            (quotes != 0).then(|| quotes.trailing_zeros() as usize + 1)
        } else {
            let bent = isa.with_bit(loaded, b'{' ^ b'[');
            balance(&mut depth, isa.equal(bent, b'{') & !strings, isa.equal(bent, b'}') & !strings)
        };
        if let Some(end) = end {
            *state = Skip::default();
            return Some(at + end);
        }
        (inside, first) = ((strings as i64 >> 63) as u64, escapes >> 63);
        at += BLOCK;
    }
    *state = Skip { depth, in_string: inside != 0, escaped: first != 0 };
    portable::skip(state, bytes.get(at..)?).map(|used| at + used)
}

/// See [`super::Kernel::hash`].
#[inline(always)]
pub fn hash<I: Isa>(isa: I, lanes: &mut Lanes, bytes: &[u8], steps: bool, slots: &mut [u64]) {
    let blocks = if !steps && lanes.ends() { bytes.len() / BLOCK_BYTES } else { 0 };
    let (whole, rest) = bytes.split_at(blocks * BLOCK_BYTES);
    lanes.take_blocks(whole, slots, isa);
    let slots = slots.get_mut(blocks..).unwrap_or_default();
    lanes.take_steps(rest, steps, slots, isa);
}

/// Counts a block's brackets; `Some`: the offset after the one at which they balance.
#[inline(always)]
fn balance(depth: &mut u64, open: u64, mut close: u64) -> Option<usize> {
    let (opened, closed) = (open.count_ones() as u64, close.count_ones() as u64);
    if closed >= *depth {
        let mut closed = 0;
        while close != 0 {
            let place = close.trailing_zeros();
            closed += 1;
            if *depth + (open & low_bits(place as usize)).count_ones() as u64 == closed {
                return Some(place as usize + 1);
            }
            close &= close - 1;
        }
    }
    *depth = *depth + opened - closed;
    None
}

/// Returns which backslashes escape the byte after them, and which bytes are escaped. `first`: one if this block's
/// first byte is.
///
/// In a run of backslashes every second one escapes. The subtraction of the possible first ones from the odd bits after
/// them carries through each run, and so tells this for all runs at once (Langdale and Lemire, Parsing Gigabytes of
/// JSON per Second, 2019).
#[inline(always)]
fn escapes(backslashes: u64, first: u64) -> (u64, u64) {
    const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let begins = backslashes & !first;
    let ends = (begins << 1 | ODD).wrapping_sub(begins) ^ ODD;
    (ends & backslashes, ends ^ (backslashes | first))
}

#[inline(always)]
fn block_at(bytes: &[u8], at: usize) -> Option<&[u8; BLOCK]> {
    bytes.get(at..)?.first_chunk()
}

#[inline(always)]
fn slot_at(out: &mut [u8], at: usize) -> Option<&mut [u8; BLOCK]> {
    out.get_mut(at..)?.first_chunk_mut()
}

/// Returns the lowest `count` bits.
#[inline(always)]
pub const fn low_bits(count: usize) -> u64 {
    if count >= 64 { !0 } else { (1 << count) - 1 }
}

/// A bit for each of the last sixteen blocks: whether it had an escape. After sixteen without any, it is better not to
/// copy the rest of a string, and to skip it by a search for far bytes.
type Recent = u16;
/// Most numbers that are read at once.
pub const IDS: usize = 8;
