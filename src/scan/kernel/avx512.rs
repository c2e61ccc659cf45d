//! AVX-512 with VBMI2: compares make masks in one instruction, `vpermi2b` translates a whole block of escape
//! letters, and `vpcompressb` closes the gaps between what is left.

#![allow(unsafe_code, reason = "vector instructions: loads and stores of whole blocks, and what only some CPUs have")]

use std::arch::x86_64::*;

use super::super::lanes::{Adder, Rounds, Step, Sums};
use super::BLOCK;
use super::escape::{HEX, PLAIN};
use super::wide::{IDS, Isa, low_bits, starts};

/// Made only if the CPU has the features listed at the end.
#[derive(Clone, Copy)]
struct Avx512(());

// SAFETY of every block below: a value of `Avx512` is made only in functions compiled with, and reached only on
// CPUs that have, all features that these intrinsics need. Loads and stores go through references to as many
// bytes as they touch.
impl Isa for Avx512 {
    type Block = __m512i;
    const UNICODE_BYTES: usize = 60;

    #[inline(always)]
    fn load(self, bytes: &[u8; BLOCK]) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, block: __m512i, out: &mut [u8; BLOCK]) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), block) }
    }

    #[inline(always)]
    fn equal(self, block: __m512i, byte: u8) -> u64 {
        // SAFETY: see above.
        unsafe { _mm512_cmpeq_epi8_mask(block, _mm512_set1_epi8(byte as i8)) }
    }

    #[inline(always)]
    fn below(self, block: __m512i, byte: u8) -> u64 {
        // SAFETY: see above.
        unsafe { _mm512_cmplt_epu8_mask(block, _mm512_set1_epi8(byte as i8)) }
    }

    /// With one bit flipped the quote comes right after the control characters, and the space does not.
    #[inline(always)]
    fn ends(self, block: __m512i) -> u64 {
        // SAFETY: see above.
        let flipped = unsafe { _mm512_xor_si512(block, _mm512_set1_epi8((b'"' ^ b' ') as i8)) };
        self.below(flipped, b' ' + 1)
    }

    #[inline(always)]
    fn with_bit(self, block: __m512i, bit: u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_or_si512(block, _mm512_set1_epi8(bit as i8)) }
    }

    #[inline(always)]
    fn translated(self, block: __m512i, escaped: u64) -> (__m512i, u64) {
        // SAFETY: see above.
        unsafe {
            let (low, high) = (self.load(&PLAIN_LOW), self.load(&PLAIN_HIGH));
            let plain = _mm512_permutex2var_epi8(low, block, high);
            // Translations are above zero and, being ASCII, not above 128. The table has 128 places: bytes beyond them
            // find those of others.
            let beyond = _mm512_and_si512(block, _mm512_set1_epi8(i8::MIN));
            (_mm512_mask_mov_epi8(block, escaped, plain), _mm512_mask_cmple_epu8_mask(escaped, plain, beyond))
        }
    }

    #[inline(always)]
    fn compress(self, block: __m512i, keep: u64, out: &mut [u8; BLOCK]) {
        // Into a register and then stored whole: with a memory operand this instruction is slow on some CPUs.
        // SAFETY: see above.
        self.store(unsafe { _mm512_maskz_compress_epi8(keep, block) }, out);
    }

    #[inline(always)]
    fn parity(self, bits: u64) -> u64 {
        // SAFETY: see above.
        unsafe {
            _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(bits as i64), _mm_set1_epi8(-1))) as u64
        }
    }

    /// Decodes ten at a time.
    #[inline(always)]
    fn unicode(self, bytes: &[u8; BLOCK], out: &mut [u8; BLOCK]) -> (usize, usize) {
        // SAFETY: see above.
        unsafe {
            let block = self.load(bytes);
            let begins = self.equal(block, b'\\') & self.equal(block, b'u') >> 1;
            let whole = (!begins & ESCAPE_STARTS | 1 << 60).trailing_zeros() / 6;
            let digits = _mm512_permutexvar_epi8(self.load(&DIGITS), block);
            let (low, high) = (self.load(&HEX_LOW), self.load(&HEX_HIGH));
            let nibbles = _mm512_permutex2var_epi8(low, digits, high);
            // A byte is no digit if the table has 0xff for it, or if it is beyond the table's 128 places.
            let wrong = _mm512_movepi8_mask(_mm512_or_si512(nibbles, digits));
            let bytes = _mm512_maddubs_epi16(nibbles, _mm512_set1_epi16(0x0110));
            let points = _mm512_madd_epi16(bytes, _mm512_set1_epi32(0x0001_0100));
            let surrogates =
                _mm512_cmpeq_epi32_mask(_mm512_and_si512(points, _mm512_set1_epi32(0xf800)), _mm512_set1_epi32(0xd800));
            let count = whole.min((surrogates as u32 | 1 << 16).trailing_zeros()).min(wrong.trailing_zeros() / 4);
            let (utf8, bytes) = self.utf8(points);
            let keep = bytes & low_bits(4 * count as usize);
            self.compress(utf8, keep, out);
            (6 * count as usize, keep.count_ones() as usize)
        }
    }

    #[inline(always)]
    fn numbers(self, bytes: &[u8; BLOCK], digits: u64, commas: u64, out: &mut [u8; 4 * IDS]) -> (usize, usize) {
        // SAFETY: see above.
        unsafe {
            let block = self.load(bytes);
            let commas = _pdep_u64(low_bits(IDS), commas);
            let (places, each) = (self.load(&PLACES), self.load(&EACH_EIGHTFOLD));
            let ends = _mm512_permutexvar_epi8(each, _mm512_maskz_compress_epi8(commas, places));
            let starts = _mm512_permutexvar_epi8(each, _mm512_maskz_compress_epi8(starts(digits), places));
            // Puts the last digit of each number into the last of its eight bytes.
            let from = _mm512_add_epi8(ends, _mm512_set1_epi64(0xfffe_fdfc_fbfa_f9f8_u64 as i64));
            let digits = _mm512_permutexvar_epi8(from, block);
            let inside = _mm512_cmpge_epi8_mask(from, starts);
            let digits = _mm512_maskz_sub_epi8(inside, digits, _mm512_set1_epi8(b'0' as i8));
            let twos = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x010a));
            let fours = _mm512_madd_epi16(twos, _mm512_set1_epi32(0x0001_0064));
            let eights =
                _mm512_add_epi64(_mm512_mul_epu32(fours, _mm512_set1_epi64(10_000)), _mm512_srli_epi64::<32>(fours));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtepi64_epi32(eights));
            let long = _mm512_cmpgt_epi8_mask(_mm512_sub_epi8(ends, starts), _mm512_set1_epi8(8));
            let commas = match long {
                0 => commas,
                _ => _pdep_u64(low_bits(long.trailing_zeros() as usize / 8), commas),
            };
            let count = commas.count_ones() as usize;
            (64 - commas.leading_zeros() as usize, count)
        }
    }
}

impl Adder for Avx512 {
    #[inline(always)]
    fn added(self, sums: Sums, step: &Step, rounds: &Rounds) -> Sums {
        // SAFETY: see above.
        unsafe { super::avx2::added(sums, step, rounds) }
    }
}

impl Avx512 {
    /// Returns code points of 32 bits each as UTF-8, and which of those bytes count.
    #[inline(always)]
    fn utf8(self, points: __m512i) -> (__m512i, u64) {
        // SAFETY: see above.
        unsafe {
            let all = |value: u32| _mm512_set1_epi32(value as i32);
            let six = |bits: __m512i| _mm512_and_si512(bits, all(0x3f));
            let last = six(points);
            let middle = six(_mm512_srli_epi32::<6>(points));
            let high = _mm512_or_si512(_mm512_srli_epi32::<12>(points), _mm512_slli_epi32::<8>(middle));
            let three = _mm512_or_si512(high, _mm512_or_si512(_mm512_slli_epi32::<16>(last), all(0x80_80e0)));
            let high = _mm512_srli_epi32::<6>(points);
            let two = _mm512_or_si512(high, _mm512_or_si512(_mm512_slli_epi32::<8>(last), all(0x80c0)));
            let (ascii, short) =
                (_mm512_cmplt_epu32_mask(points, all(0x80)), _mm512_cmplt_epu32_mask(points, all(0x800)));
            let choose = |three, two, one| _mm512_mask_mov_epi32(_mm512_mask_mov_epi32(three, short, two), ascii, one);
            let count = choose(all(0xff_ffff), all(0xffff), all(0xff));
            (choose(three, two, points), _mm512_movepi8_mask(count))
        }
    }
}

super::table::kernel!(
    "avx512",
    Avx512,
    is_x86_feature_detected,
    [
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512vbmi",
        "avx512vbmi2",
        "bmi1",
        "bmi2",
        "lzcnt",
        "popcnt",
        "pclmulqdq"
    ]
);

/// [`PLAIN`] of the bytes below 128, in two registers.
const PLAIN_LOW: [u8; BLOCK] = part(&PLAIN, 0);
const PLAIN_HIGH: [u8; BLOCK] = part(&PLAIN, BLOCK);
/// [`HEX`] of the bytes below 128, in two registers.
const HEX_LOW: [u8; BLOCK] = part(&HEX, 0);
const HEX_HIGH: [u8; BLOCK] = part(&HEX, BLOCK);

/// Mask of the places where ten `\uXXXX` in a row begin.
const ESCAPE_STARTS: u64 = 0o01_01_01_01_01_01_01_01_01_01;
/// Where their digits are.
const DIGITS: [u8; BLOCK] = {
    let mut places = [0; BLOCK];
    let mut digit = 0;
    while digit < 40 {
        places[digit] = (6 * (digit / 4) + 2 + digit % 4) as u8;
        digit += 1;
    }
    places
};
/// 0, 1, 2, ...
const PLACES: [u8; BLOCK] = {
    let mut places = [0; BLOCK];
    let mut place = 0;
    while place < BLOCK {
        places[place] = place as u8;
        place += 1;
    }
    places
};
/// Each of the first eight bytes eight times.
const EACH_EIGHTFOLD: [u8; BLOCK] = {
    let mut places = [0; BLOCK];
    let mut place = 0;
    while place < BLOCK {
        places[place] = (place / 8) as u8;
        place += 1;
    }
    places
};

/// Returns 64 entries of a table, from `start` on.
const fn part(table: &[u8; 256], start: usize) -> [u8; BLOCK] {
    let mut part = [0; BLOCK];
    let mut place = 0;
    while place < BLOCK {
        part[place] = table[start + place];
        place += 1;
    }
    part
}
