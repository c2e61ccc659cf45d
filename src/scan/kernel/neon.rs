//! NEON, which every 64-bit ARM has: a block in four registers.

#![allow(unsafe_code, reason = "vector instructions: loads and stores of whole blocks")]

use std::arch::aarch64::*;

use super::super::lanes::{Adder, PIECE, ROUND, Rounds, Step, Sums};
use super::BLOCK;
use super::wide::Isa;
use super::words::{LETTERS, STAND_FOR, kept};

/// Made only if the CPU has the features listed at the end.
#[derive(Clone, Copy)]
struct Neon(());

// SAFETY of every block below: a value of `Neon` is made only in functions compiled with, and reached only on
// CPUs that have, all features that these intrinsics need. Loads and stores go through references to as many
// bytes as they touch.
impl Isa for Neon {
    type Block = [uint8x16_t; 4];

    #[inline(always)]
    fn load(self, bytes: &[u8; BLOCK]) -> [uint8x16_t; 4] {
        let from = bytes.as_ptr();
        // SAFETY: see above.
        unsafe { [vld1q_u8(from), vld1q_u8(from.add(16)), vld1q_u8(from.add(32)), vld1q_u8(from.add(48))] }
    }

    #[inline(always)]
    fn store(self, block: [uint8x16_t; 4], out: &mut [u8; BLOCK]) {
        let (slots, _) = out.as_chunks_mut::<16>();
        for (part, slot) in block.into_iter().zip(slots) {
            // SAFETY: see above.
            unsafe { vst1q_u8(slot.as_mut_ptr(), part) }
        }
    }

    #[inline(always)]
    fn equal(self, [a, b, c, d]: [uint8x16_t; 4], byte: u8) -> u64 {
        // SAFETY: see above.
        unsafe {
            let byte = vdupq_n_u8(byte);
            self.mask([vceqq_u8(a, byte), vceqq_u8(b, byte), vceqq_u8(c, byte), vceqq_u8(d, byte)])
        }
    }

    #[inline(always)]
    fn below(self, [a, b, c, d]: [uint8x16_t; 4], byte: u8) -> u64 {
        // SAFETY: see above.
        unsafe {
            let byte = vdupq_n_u8(byte);
            self.mask([vcltq_u8(a, byte), vcltq_u8(b, byte), vcltq_u8(c, byte), vcltq_u8(d, byte)])
        }
    }

    #[inline(always)]
    fn with_bit(self, [a, b, c, d]: [uint8x16_t; 4], bit: u8) -> [uint8x16_t; 4] {
        // SAFETY: see above.
        unsafe {
            let bit = vdupq_n_u8(bit);
            [vorrq_u8(a, bit), vorrq_u8(b, bit), vorrq_u8(c, bit), vorrq_u8(d, bit)]
        }
    }

    #[inline(always)]
    fn translated(self, [a, b, c, d]: [uint8x16_t; 4], escaped: u64) -> ([uint8x16_t; 4], u64) {
        let (a, a_known) = self.quarter_translated(a, escaped as u16);
        let (b, b_known) = self.quarter_translated(b, (escaped >> 16) as u16);
        let (c, c_known) = self.quarter_translated(c, (escaped >> 32) as u16);
        let (d, d_known) = self.quarter_translated(d, (escaped >> 48) as u16);
        ([a, b, c, d], escaped & !self.mask([a_known, b_known, c_known, d_known]))
    }

    /// Word by word: the kept bytes move to the start of each, and each is stored where the last one ends.
    #[inline(always)]
    fn compress(self, block: [uint8x16_t; 4], keep: u64, out: &mut [u8; BLOCK]) {
        let mut bytes = [0; BLOCK];
        self.store(block, &mut bytes);
        let mut to = 0;
        for (word, keep) in bytes.as_chunks::<8>().0.iter().zip(keep.to_le_bytes()) {
            // Never beyond the last word: the kept bytes are not more than those they come from.
            if let Some(slot) = out.get_mut(to..).and_then(|rest| rest.first_chunk_mut::<8>()) {
                *slot = self.shuffled(word, &KEPT[keep as usize]);
            }
            to += keep.count_ones() as usize;
        }
    }
}

impl Adder for Neon {
    /// Adds to two lanes at a time.
    #[inline(always)]
    fn added(self, mut sums: Sums, step: &Step, rounds: &Rounds) -> Sums {
        // SAFETY: see above.
        unsafe {
            let mut lanes = [vld1q_u64(sums.as_ptr()), vld1q_u64(sums.as_ptr().add(2))];
            for (words, round) in step.as_chunks::<ROUND>().0.iter().zip(rounds) {
                for (pair, lanes) in lanes.iter_mut().enumerate() {
                    let words = vld1q_u8(words.as_ptr().add(PIECE * pair));
                    let keyed = veorq_u64(vreinterpretq_u64_u8(words), vld1q_u64(round.keys.as_ptr().add(2 * pair)));
                    let beside = vqtbl1q_u8(words, vld1q_u8(round.beside.as_ptr().add(PIECE * pair)));
                    let sums = vaddq_u64(*lanes, vreinterpretq_u64_u8(beside));
                    *lanes = vmlal_u32(sums, vmovn_u64(keyed), vshrn_n_u64::<32>(keyed));
                }
            }
            vst1q_u64(sums.as_mut_ptr(), lanes[0]);
            vst1q_u64(sums.as_mut_ptr().add(2), lanes[1]);
        }
        sums
    }
}

impl Neon {
    /// Returns the bytes of a word at these places, side by side.
    #[inline(always)]
    fn shuffled(self, word: &[u8; 8], places: &[u8; 8]) -> [u8; 8] {
        // SAFETY: see above.
        unsafe {
            let moved = vtbl1_u8(vcreate_u8(u64::from_le_bytes(*word)), vcreate_u8(u64::from_le_bytes(*places)));
            vget_lane_u64::<0>(vreinterpret_u64_u8(moved)).to_le_bytes()
        }
    }

    /// Returns one bit for each byte, which is all ones or zeros, by adding neighbours three times.
    #[inline(always)]
    fn mask(self, [a, b, c, d]: [uint8x16_t; 4]) -> u64 {
        // SAFETY: see above.
        unsafe {
            let bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            let low = vpaddq_u8(vandq_u8(a, bits), vandq_u8(b, bits));
            let high = vpaddq_u8(vandq_u8(c, bits), vandq_u8(d, bits));
            let all = vpaddq_u8(low, high);
            vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(all, all)))
        }
    }

    /// Returns a quarter of a block with the letters of `escaped` translated, and which bytes are letters of an escape.
    #[inline(always)]
    fn quarter_translated(self, bytes: uint8x16_t, escaped: u16) -> (uint8x16_t, uint8x16_t) {
        // SAFETY: see above.
        unsafe {
            let is = |byte: u8| vceqq_u8(bytes, vdupq_n_u8(byte));
            let middle = vandq_u8(vshrq_n_u8::<1>(bytes), vdupq_n_u8(15));
            let letters = vceqq_u8(vqtbl1q_u8(vld1q_u8(LETTERS.as_ptr()), middle), bytes);
            let known = vorrq_u8(vorrq_u8(letters, is(b'"')), vorrq_u8(is(b'\\'), is(b'/')));
            // Brings each bit of the mask to its byte.
            let [low, high] = escaped.to_le_bytes();
            let bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            let escaped = vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), bits);
            let plain = vqtbl1q_u8(vld1q_u8(STAND_FOR.as_ptr()), middle);
            (vbslq_u8(vandq_u8(escaped, letters), plain, bytes), known)
        }
    }
}

super::table::kernel!("neon", Neon, is_aarch64_feature_detected, ["neon"]);

/// By mask: the places of the kept bytes of a word.
static KEPT: [[u8; 8]; 256] = kept(0);
