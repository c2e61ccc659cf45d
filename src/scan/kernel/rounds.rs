//! XXH64's lanes: half of the work in vectors, the other half in the one order in which it is not held up.

#![allow(unsafe_code, reason = "the order of these instructions decides over a third of their time")]

use std::arch::asm;

use super::super::digest::{PRIME_1, PRIME_2, link};
use super::wide::Isa;
use super::{BLOCK, portable};

/// Multiplies words of 64 bits in vectors.
pub trait Multiplies: Isa {
    /// Writes the words of a block, each times this one.
    fn multiplied(self, block: Self::Block, by: u64, out: &mut [u64; 8]);
}

/// See [`super::Kernel::stripes`]. Half of its multiplications do not wait for each other: those are taken out of
/// the chain, into vector instructions.
#[inline(always)]
pub fn stripes<I: Multiplies>(isa: I, lanes: &mut [u64; 4], bytes: &[u8]) {
    let mut products = [0; PRODUCTS];
    for part in bytes.chunks(8 * PRODUCTS) {
        let (blocks, rest) = part.as_chunks::<BLOCK>();
        let (slots, _) = products.as_chunks_mut();
        for (block, slot) in blocks.iter().zip(slots) {
            isa.multiplied(isa.load(block), PRIME_2, slot);
        }
        rounds(lanes, products.get(..8 * blocks.len()).unwrap_or_default());
        portable::stripes(lanes, rest);
    }
}

/// See [`super::Kernel::links`]: the same, a block at a time. What a link takes is done while the next rounds wait for each other.
#[inline(always)]
pub fn links<I: Multiplies>(isa: I, lanes: &mut [u64; 4], mut before: u64, bytes: &[u8], links: &mut [u64]) {
    let mut products = [0; PRODUCTS];
    for (part, links) in bytes.as_chunks::<BLOCK>().0.chunks(PRODUCTS / 8).zip(links.chunks_mut(PRODUCTS / 8)) {
        let (slots, _) = products.as_chunks_mut();
        for (block, slot) in part.iter().zip(slots) {
            isa.multiplied(isa.load(block), PRIME_2, slot);
        }
        for (words, slot) in products.as_chunks::<8>().0.iter().zip(links) {
            rounds(lanes, words);
            before += BLOCK as u64;
            *slot = link(*lanes, before);
        }
    }
}

/// [`super::Kernel::stripes`] of words that are already multiplied by its second prime.
///
/// Lane by lane: on AMD's Zen rotations share a port with the multiplications, and whoever lets the four lanes
/// take turns at them, as compilers do, waits eight cycles a stripe, not six.
#[inline(always)]
fn rounds(lanes: &mut [u64; 4], products: &[u64]) {
    let [mut a, mut b, mut c, mut d] = *lanes;
    for stripe in products.as_chunks::<4>().0 {
        // SAFETY: reads the 32 bytes of `stripe`; registers that change are declared, flags as well by default.
        unsafe {
            asm!(
                "add {a}, [{stripe}]", "rol {a}, 31", "imul {a}, {prime}",
                "add {b}, [{stripe} + 8]", "rol {b}, 31", "imul {b}, {prime}",
                "add {c}, [{stripe} + 16]", "rol {c}, 31", "imul {c}, {prime}",
                "add {d}, [{stripe} + 24]", "rol {d}, 31", "imul {d}, {prime}",
                stripe = in(reg) stripe.as_ptr(),
                prime = in(reg) PRIME_1,
                a = inout(reg) a,
                b = inout(reg) b,
                c = inout(reg) c,
                d = inout(reg) d,
                options(pure, readonly, nostack),
            );
        }
    }
    *lanes = [a, b, c, d];
}

/// Words multiplied before they enter the chain: a kilobyte.
const PRODUCTS: usize = 128;
