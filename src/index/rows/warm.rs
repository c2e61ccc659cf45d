//! Memory that is asked for before it is used, so that several answers are under way at once.
//!
//! What is looked at is prefetched: a load keeps a core from going more than some hundred instructions ahead, and a
//! round of a look-up asks for up to 32 lines. What is about to be written is loaded: with prefetches instead a new
//! block took as long in a small index, and a tenth more in a large one (`bench/README.md`).

#![allow(unsafe_code, reason = "instructions that prefetch take an address")]

use std::hint::black_box;

use super::{Place, Row, Rows};
use crate::atomics::{AtomicU64, Ordering};

impl Rows {
    /// Prefetches what a look at this block will read.
    #[inline]
    pub(in crate::index) fn warm(&self, hash: u64) {
        self.places(hash).into_iter().for_each(|bucket| prefetch(self.keys(bucket)));
    }

    /// Loads what a place for this block will be looked for in.
    #[inline]
    pub(in crate::index) fn load(&self, hash: u64) {
        self.places(hash).into_iter().for_each(|bucket| load(&self.keys(bucket)[0]));
    }

    /// Loads a row's key.
    #[inline]
    pub(in crate::index) fn load_key(&self, row: Row) {
        load(self.key(row));
    }

    /// Loads the bits of a place.
    #[inline]
    pub(in crate::index) fn load_bits(&self, place: &Place) {
        load(self.bits(place.row, 0));
    }
}

/// Nobody waits for the answer.
#[inline]
fn load(word: &AtomicU64) {
    if cfg!(not(feature = "modelled")) {
        black_box(word.load(Ordering::Relaxed));
    }
}

/// Asks for the line of this, if the processor has an instruction for that.
#[inline]
pub(in crate::index) fn prefetch<T>(what: &T) {
    let address = std::ptr::from_ref(what).cast::<i8>();
    // SAFETY: it changes nothing but what is in the caches, whatever the address. All of x86-64 have it, with SSE.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address);
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
