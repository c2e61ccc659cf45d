//! AVX2: a block in two registers. It has no instruction that closes gaps, so that the new places of a word's bytes are
//! looked up in a table.

#![allow(unsafe_code, reason = "vector instructions: loads and stores of whole blocks, and what only some CPUs have")]

use std::arch::x86_64::*;

use super::super::lanes::{Adder, ROUND, Rounds, Step, Sums};
use super::BLOCK;
use super::wide::{IDS, Isa, low_bits, starts};
use super::words::{self, LETTERS, STAND_FOR, kept};

/// Made only if the CPU has the features listed at the end.
#[derive(Clone, Copy)]
struct Avx2(());

// SAFETY of every block below: a value of `Avx2` is made only in functions compiled with, and reached only on
// CPUs that have, all features that these intrinsics need. Loads and stores go through references to as many
// bytes as they touch.
impl Isa for Avx2 {
    type Block = [__m256i; 2];
    const UNICODE_BYTES: usize = 24;

    #[inline(always)]
    fn load(self, bytes: &[u8; BLOCK]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_si256(bytes.as_ptr().cast()), _mm256_loadu_si256(bytes.as_ptr().add(32).cast())] }
    }

    #[inline(always)]
    fn store(self, [low, high]: [__m256i; 2], out: &mut [u8; BLOCK]) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_si256(out.as_mut_ptr().cast(), low);
            _mm256_storeu_si256(out.as_mut_ptr().add(32).cast(), high);
        }
    }

    #[inline(always)]
    fn equal(self, [low, high]: [__m256i; 2], byte: u8) -> u64 {
        // SAFETY: see above.
        unsafe {
            let byte = _mm256_set1_epi8(byte as i8);
            self.mask(_mm256_cmpeq_epi8(low, byte), _mm256_cmpeq_epi8(high, byte))
        }
    }

    #[inline(always)]
    fn below(self, [low, high]: [__m256i; 2], byte: u8) -> u64 {
        // SAFETY: see above.
        unsafe {
            let most = _mm256_set1_epi8(byte.wrapping_sub(1) as i8);
            let below = |part| _mm256_cmpeq_epi8(_mm256_min_epu8(part, most), part);
            self.mask(below(low), below(high))
        }
    }

    #[inline(always)]
    fn ends(self, [low, high]: [__m256i; 2]) -> u64 {
        // SAFETY: see above.
        unsafe {
            let (quote, most) = (_mm256_set1_epi8(b'"' as i8), _mm256_set1_epi8(0x1f));
            let ends = |part| {
                let control = _mm256_cmpeq_epi8(_mm256_min_epu8(part, most), part);
                _mm256_or_si256(_mm256_cmpeq_epi8(part, quote), control)
            };
            self.mask(ends(low), ends(high))
        }
    }

    #[inline(always)]
    fn with_bit(self, [low, high]: [__m256i; 2], bit: u8) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            let bit = _mm256_set1_epi8(bit as i8);
            [_mm256_or_si256(low, bit), _mm256_or_si256(high, bit)]
        }
    }

    #[inline(always)]
    fn translated(self, [low, high]: [__m256i; 2], escaped: u64) -> ([__m256i; 2], u64) {
        let (low, low_known) = self.half_translated(low, escaped as u32);
        let (high, high_known) = self.half_translated(high, (escaped >> 32) as u32);
        ([low, high], escaped & !self.mask(low_known, high_known))
    }

    #[inline(always)]
    fn compress(self, [low, high]: [__m256i; 2], keep: u64, out: &mut [u8; BLOCK]) {
        let mut to = out.as_mut_ptr();
        // SAFETY: see above. There is room for sixteen bytes at each call, since none before writes more than it was
        // given.
        unsafe {
            to = to.add(self.pair_compressed(_mm256_castsi256_si128(low), keep, to));
            to = to.add(self.pair_compressed(_mm256_extracti128_si256::<1>(low), keep >> 16, to));
            to = to.add(self.pair_compressed(_mm256_castsi256_si128(high), keep >> 32, to));
            self.pair_compressed(_mm256_extracti128_si256::<1>(high), keep >> 48, to);
        }
    }

    #[inline(always)]
    fn parity(self, bits: u64) -> u64 {
        // SAFETY: see above.
        unsafe {
            _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(bits as i64), _mm_set1_epi8(-1))) as u64
        }
    }

    /// Decodes four at a time if each takes three bytes of UTF-8, as in Chinese, Japanese and Korean; no others.
    #[inline(always)]
    fn unicode(self, bytes: &[u8; BLOCK], out: &mut [u8; BLOCK]) -> (usize, usize) {
        // SAFETY: see above.
        unsafe {
            let all = |value: i32| _mm256_set1_epi32(value);
            let [block, _] = self.load(bytes);
            let equal = |byte: u8| _mm256_movemask_epi8(_mm256_cmpeq_epi8(block, _mm256_set1_epi8(byte as i8))) as u32;
            let begins = equal(b'\\') & equal(b'u') >> 1;
            // Puts two escapes into each half.
            let halves = _mm256_permute4x64_epi64::<0b10_01_01_00>(block);
            let places = _mm256_setr_epi8(
                2, 3, 4, 5, 8, 9, 10, 11, -1, -1, -1, -1, -1, -1, -1, -1, //
                6, 7, 8, 9, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1,
            );
            let digits = _mm256_shuffle_epi8(halves, places);
            let within = |bytes, first: u8, most: i8| {
                let from_first = _mm256_sub_epi8(bytes, _mm256_set1_epi8(first as i8));
                _mm256_cmpeq_epi8(_mm256_min_epu8(from_first, _mm256_set1_epi8(most)), from_first)
            };
            let letters = within(_mm256_or_si256(digits, _mm256_set1_epi8(0x20)), b'a', 5);
            let right = _mm256_or_si256(within(digits, b'0', 9), letters);
            let nibbles = _mm256_add_epi8(
                _mm256_and_si256(digits, _mm256_set1_epi8(15)),
                _mm256_and_si256(letters, _mm256_set1_epi8(9)),
            );
            let pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x0110));
            let points = _mm256_madd_epi16(pairs, all(0x0001_0100));
            let class = _mm256_and_si256(points, all(0xf800));
            let other = _mm256_or_si256(_mm256_cmpeq_epi32(class, all(0)), _mm256_cmpeq_epi32(class, all(0xd800)));
            let good = _mm256_movemask_epi8(_mm256_andnot_si256(other, right)) as u32;
            if begins & ESCAPE_STARTS != ESCAPE_STARTS || good & EIGHTS != EIGHTS {
                return (0, 0);
            }
            let six = |bits| _mm256_and_si256(bits, all(0x3f));
            let (high, middle) = (_mm256_srli_epi32::<12>(points), six(_mm256_srli_epi32::<6>(points)));
            let low = _mm256_or_si256(_mm256_slli_epi32::<8>(middle), _mm256_slli_epi32::<16>(six(points)));
            let utf8 = _mm256_or_si256(_mm256_or_si256(high, low), all(0x80_80e0));
            let places = _mm256_setr_epi8(
                0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, //
                0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
            );
            let utf8 = _mm256_shuffle_epi8(utf8, places);
            let (first, second) = (_mm256_extract_epi64::<0>(utf8) as u64, _mm256_extract_epi64::<2>(utf8) as u64);
            if let Some(slot) = out.first_chunk_mut() {
                *slot = (first as u128 | (second as u128) << 48).to_le_bytes();
            }
            (Self::UNICODE_BYTES, 12)
        }
    }

    /// Reads eight words, whether there are as many numbers or not: their count is as good as random, and no branch
    /// depends on it.
    #[inline(always)]
    fn numbers(self, bytes: &[u8; BLOCK], digits: u64, commas: u64, out: &mut [u8; 4 * IDS]) -> (usize, usize) {
        let starts = starts(digits);
        let four = digits & digits >> 1 & (digits & digits >> 1) >> 2;
        if four & four >> 4 & digits >> 8 != 0 {
            // A number is longer than eight digits.
            return words::numbers(bytes, starts, commas, out);
        }
        // Numbers that begin where a whole word is left.
        let late = starts & !LAST_WORD;
        let (mut starts, commas) = (starts & LAST_WORD, commas & late.wrapping_sub(1) & !late);
        let (mut left, mut words) = (commas, [0; IDS]);
        for slot in &mut words {
            let start = (starts | 1 << (BLOCK - 8)).trailing_zeros() as usize;
            let length = left.trailing_zeros().wrapping_sub(start as u32);
            (starts, left) = (starts & starts.wrapping_sub(1), left & left.wrapping_sub(1));
            // SAFETY: eight bytes from there are in the block.
            let word = unsafe { bytes.as_ptr().add(start).cast::<u64>().read_unaligned() };
            *slot = word.wrapping_shl(length.wrapping_mul(8).wrapping_neg());
        }
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), self.eight(words)) };
        let read = commas ^ left;
        (64 - read.leading_zeros() as usize, read.count_ones() as usize)
    }
}

impl Adder for Avx2 {
    #[inline(always)]
    fn added(self, sums: Sums, step: &Step, rounds: &Rounds) -> Sums {
        // SAFETY: see above.
        unsafe { added(sums, step, rounds) }
    }
}

impl Avx2 {
    /// Converts eight numbers, some of which may be empty, whose digits are at the end of a word each.
    #[inline(always)]
    fn eight(self, words: [u64; IDS]) -> __m256i {
        let [a, b, c, d, e, f, g, h] = words;
        // SAFETY: see above.
        unsafe {
            let four = |a: u64, b: u64, c: u64, d: u64| _mm256_setr_epi64x(a as i64, b as i64, c as i64, d as i64);
            let fours = |words| {
                let digits = _mm256_and_si256(words, _mm256_set1_epi8(15));
                let twos = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(0x010a));
                _mm256_madd_epi16(twos, _mm256_set1_epi32(0x0001_0064))
            };
            // Packing takes two of each operand in turn.
            let packed = _mm256_packus_epi32(fours(four(a, b, e, f)), fours(four(c, d, g, h)));
            _mm256_madd_epi16(packed, _mm256_set1_epi32(10_000 | 1 << 16))
        }
    }

    #[inline(always)]
    fn mask(self, low: __m256i, high: __m256i) -> u64 {
        // SAFETY: see above.
        unsafe { _mm256_movemask_epi8(low) as u32 as u64 | (_mm256_movemask_epi8(high) as u64) << 32 }
    }

    /// Closes the gaps of two words: one shuffle moves the kept bytes of each to its start, and the second is stored
    /// where the first ends. Returns how many bytes are kept.
    ///
    /// # Safety
    ///
    /// `to` has room for sixteen bytes.
    #[inline(always)]
    unsafe fn pair_compressed(self, pair: __m128i, keep: u64, to: *mut u8) -> usize {
        let (first, second) = (keep & 0xff, keep >> 8 & 0xff);
        // SAFETY: see above; the second word is stored at most eight bytes after `to`.
        unsafe {
            let behind = i64::from_le_bytes(KEPT_BEHIND[second as usize]);
            let places = _mm_set_epi64x(behind, i64::from_le_bytes(KEPT[first as usize]));
            let kept = _mm_shuffle_epi8(pair, places);
            _mm_storel_epi64(to.cast(), kept);
            _mm_storeh_pd(to.add(first.count_ones() as usize).cast(), _mm_castsi128_pd(kept));
        }
        (keep & 0xffff).count_ones() as usize
    }

    /// Returns half a block with the letters of `escaped` translated, and which bytes are letters of an escape.
    #[inline(always)]
    fn half_translated(self, bytes: __m256i, escaped: u32) -> (__m256i, __m256i) {
        // SAFETY: see above.
        unsafe {
            let table = |table: &[u8; 16]| _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            let is = |byte: u8| _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(byte as i8));
            let middle = _mm256_and_si256(_mm256_srli_epi16::<1>(bytes), _mm256_set1_epi8(15));
            let letters = _mm256_cmpeq_epi8(_mm256_shuffle_epi8(table(&LETTERS), middle), bytes);
            let known = _mm256_or_si256(_mm256_or_si256(letters, is(b'"')), _mm256_or_si256(is(b'\\'), is(b'/')));
            // Brings each bit of the mask to its byte.
            let spread = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let masks = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(escaped as i32), spread), bits);
            let changes = _mm256_and_si256(_mm256_cmpeq_epi8(masks, bits), letters);
            (_mm256_blendv_epi8(bytes, _mm256_shuffle_epi8(table(&STAND_FOR), middle), changes), known)
        }
    }
}

/// Adds to all four lanes at once.
///
/// # Safety
///
/// The CPU has AVX2, and the function that this is inlined into is compiled with it.
#[inline(always)]
pub(super) unsafe fn added(sums: Sums, step: &Step, rounds: &Rounds) -> Sums {
    // SAFETY: as the caller says; loads and stores go through references to as many bytes as they touch.
    unsafe {
        let mut lanes = _mm256_loadu_si256(sums.as_ptr().cast());
        for (words, round) in step.as_chunks::<ROUND>().0.iter().zip(rounds) {
            let words = _mm256_loadu_si256(words.as_ptr().cast());
            let keyed = _mm256_xor_si256(words, _mm256_loadu_si256(round.keys.as_ptr().cast()));
            let beside = _mm256_shuffle_epi8(words, _mm256_loadu_si256(round.beside.as_ptr().cast()));
            let products = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
            lanes = _mm256_add_epi64(lanes, _mm256_add_epi64(products, beside));
        }
        let mut sums = [0; 4];
        _mm256_storeu_si256(sums.as_mut_ptr().cast(), lanes);
        sums
    }
}

super::table::kernel!("avx2", Avx2, is_x86_feature_detected, ["avx2", "bmi1", "bmi2", "lzcnt", "popcnt", "pclmulqdq"]);

/// By mask: the places of the kept bytes of a word, and of a word that has another before it.
static KEPT: [[u8; 8]; 256] = kept(0);
static KEPT_BEHIND: [[u8; 8]; 256] = kept(8);

/// Mask of the places from which on there are eight bytes.
const LAST_WORD: u64 = low_bits(BLOCK - 7);
/// Mask of the places where four `\uXXXX` in a row begin.
const ESCAPE_STARTS: u32 = 0o01_01_01_01;
/// Mask of the lower eight bytes of each half.
const EIGHTS: u32 = 0x00ff_00ff;
