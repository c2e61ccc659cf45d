//! The part of XXH64 in which each step waits for the one before.

#![allow(unsafe_code, reason = "the order of these instructions decides over a third of their time")]

use std::arch::asm;

use super::super::digest::PRIME_1;

/// [`super::Kernel::stripes`] of words that are already multiplied by its second prime.
///
/// Lane by lane: on AMD's Zen rotations share a port with the multiplications, and whoever lets the four lanes
/// take turns at them, as compilers do, waits eight cycles a stripe, not six.
#[inline(always)]
pub fn rounds(lanes: &mut [u64; 4], products: &[u64]) {
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
