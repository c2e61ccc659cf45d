//! XXH64's lanes: half of the work in vectors, the other half in the one order in which it is not held up.

#![allow(unsafe_code, reason = "the order of these instructions decides over a third of their time")]

use std::arch::asm;

use super::super::digest::{PRIME_1, PRIME_2, link};
use super::wide::Isa;
use super::{BLOCK, portable};
use crate::limits::BLOCK_BYTES;

/// Multiplies words of 64 bits in vectors.
pub trait Multiplies: Isa {
    /// The words of a block, each times this one.
    fn multiplied(self, block: Self::Block, by: u64) -> [u64; 8];
}

/// See [`super::Kernel::stripes`]. Half of its multiplications do not wait for each other: those are taken out of
/// the chain, into vector instructions.
#[inline(always)]
pub fn stripes<I: Multiplies>(isa: I, lanes: &mut [u64; 4], bytes: &[u8]) {
    let (parts, rest) = bytes.as_chunks::<PART>();
    for part in parts {
        rounds(lanes, products(isa, part).as_flattened());
    }
    portable::stripes(lanes, rest);
}

/// See [`super::Kernel::links`]: the same. What a link takes is done while the next rounds wait for each other.
#[inline(always)]
pub fn links<I: Multiplies>(
    isa: I,
    lanes: &mut [u64; 4],
    mut before: u64,
    step: usize,
    bytes: &[u8],
    links: &mut [u64],
) {
    let (parts, rest) = bytes.as_chunks::<PART>();
    let (links, rest_links) = links.split_at_mut(links.len() - rest.len() / step);
    for (part, links) in parts.iter().zip(links.chunks_mut(PART / step)) {
        let products = products(isa, part);
        for (words, slot) in products.as_flattened().chunks(step / 8).zip(links) {
            rounds(lanes, words);
            before += step as u64;
            *slot = link(*lanes, before);
        }
    }
    portable::links(lanes, before, step, rest, rest_links);
}

/// The words of a part, each times the second prime.
#[inline(always)]
fn products<I: Multiplies>(isa: I, part: &[u8; PART]) -> [[u64; 8]; PART / BLOCK] {
    let blocks = part.as_chunks::<BLOCK>().0;
    std::array::from_fn(|place| isa.multiplied(isa.load(&blocks[place]), PRIME_2))
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

/// Bytes multiplied before they enter the chain: the longest step.
const PART: usize = BLOCK_BYTES;
