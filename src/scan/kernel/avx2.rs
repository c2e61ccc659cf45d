//! AVX2: a block in two registers. It has no instruction that closes gaps, so words are looked up in a table.

#![allow(unsafe_code, reason = "vector instructions: loads and stores of whole blocks, and what only some CPUs have")]

use std::arch::x86_64::*;

use super::BLOCK;
use super::wide::Isa;
use super::words::{self, LETTERS, STAND_FOR, Shuffles};

/// Made only where the CPU has the features listed at the end.
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
    fn compress(self, block: [__m256i; 2], keep: u64, out: &mut [u8; BLOCK]) {
        words::compress(self, block, keep, out);
    }

    #[inline(always)]
    fn parity(self, bits: u64) -> u64 {
        // SAFETY: see above.
        unsafe {
            _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(bits as i64), _mm_set1_epi8(-1))) as u64
        }
    }

    /// Four at a time that take three bytes each, as in Chinese, Japanese and Korean; no others.
    #[inline(always)]
    fn unicode(self, bytes: &[u8; BLOCK], out: &mut [u8; BLOCK]) -> (usize, usize) {
        // SAFETY: see above.
        unsafe {
            let all = |value: i32| _mm256_set1_epi32(value);
            let [block, _] = self.load(bytes);
            let equal = |byte: u8| _mm256_movemask_epi8(_mm256_cmpeq_epi8(block, _mm256_set1_epi8(byte as i8))) as u32;
            let begins = equal(b'\\') & equal(b'u') >> 1;
            // Two escapes in each half.
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
}

impl Shuffles for Avx2 {
    #[inline(always)]
    fn shuffled(self, word: &[u8; 8], places: &[u8; 8]) -> [u8; 8] {
        // SAFETY: see above.
        unsafe {
            let (word, places) = (i64::from_le_bytes(*word), i64::from_le_bytes(*places));
            _mm_cvtsi128_si64(_mm_shuffle_epi8(_mm_cvtsi64_si128(word), _mm_cvtsi64_si128(places))).to_le_bytes()
        }
    }
}

impl Avx2 {
    #[inline(always)]
    fn mask(self, low: __m256i, high: __m256i) -> u64 {
        // SAFETY: see above.
        unsafe { _mm256_movemask_epi8(low) as u32 as u64 | (_mm256_movemask_epi8(high) as u64) << 32 }
    }

    /// Half a block with the letters of `escaped` translated, and which bytes are letters of an escape.
    #[inline(always)]
    fn half_translated(self, bytes: __m256i, escaped: u32) -> (__m256i, __m256i) {
        // SAFETY: see above.
        unsafe {
            let table = |table: &[u8; 16]| _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            let is = |byte: u8| _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(byte as i8));
            let middle = _mm256_and_si256(_mm256_srli_epi16::<1>(bytes), _mm256_set1_epi8(15));
            let letters = _mm256_cmpeq_epi8(_mm256_shuffle_epi8(table(&LETTERS), middle), bytes);
            let known = _mm256_or_si256(_mm256_or_si256(letters, is(b'"')), _mm256_or_si256(is(b'\\'), is(b'/')));
            // Each bit of the mask over its byte.
            let spread = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let masks = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(escaped as i32), spread), bits);
            let changes = _mm256_and_si256(_mm256_cmpeq_epi8(masks, bits), letters);
            (_mm256_blendv_epi8(bytes, _mm256_shuffle_epi8(table(&STAND_FOR), middle), changes), known)
        }
    }
}

super::table::kernel!("avx2", Avx2, is_x86_feature_detected, ["avx2", "bmi1", "bmi2", "lzcnt", "popcnt", "pclmulqdq"]);

/// Where four `\uXXXX` that follow each other begin.
const ESCAPE_STARTS: u32 = 0o01_01_01_01;
/// The lower eight bytes of each half.
const EIGHTS: u32 = 0x00ff_00ff;
