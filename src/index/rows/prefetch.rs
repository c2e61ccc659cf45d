//! Memory that is asked for before it is used, so that several answers are under way at once: by prefetches, which no
//! core waits for. A load, though nobody uses its answer, keeps one from going more than some hundred instructions
//! ahead, and a round of a look-up asks for up to 32 lines.

#![allow(unsafe_code, reason = "instructions that prefetch take an address")]

use super::{Place, Row, Rows};

impl Rows {
    /// Asks the memory for what a look at this block will read.
    #[inline]
    pub(in crate::index) fn prefetch(&self, hash: u64) {
        self.places(hash).into_iter().for_each(|bucket| prefetch(self.keys(bucket)));
    }

    /// Asks the memory for the first of a block's buckets.
    #[inline]
    pub(in crate::index) fn prefetch_first(&self, hash: u64) {
        prefetch(self.keys(self.first_place(hash)));
    }

    /// Asks the memory for a row's key.
    #[inline]
    pub(in crate::index) fn prefetch_key(&self, row: Row) {
        prefetch(self.key(row));
    }

    /// Asks the memory for the bits of a place.
    #[inline]
    pub(in crate::index) fn prefetch_bits(&self, place: &Place) {
        prefetch(self.bits(place.row, 0));
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
