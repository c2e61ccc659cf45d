//! Loads whose answers nobody waits for, so that several are under way at once.

use std::hint::black_box;

use super::{Place, Row, Rows};
use crate::atomics::Ordering;

impl Rows {
    /// Asks the memory for what a look at this block will read, without waiting for it.
    #[inline]
    pub(in crate::index) fn warm(&self, hash: u64) {
        if cfg!(not(feature = "modelled")) {
            for bucket in self.places(hash) {
                black_box(self.keys(bucket)[0].load(Ordering::Relaxed));
            }
        }
    }

    /// Asks the memory for a row's key, without waiting for it.
    #[inline]
    pub(in crate::index) fn warm_key(&self, row: Row) {
        if cfg!(not(feature = "modelled")) {
            black_box(self.key(row).load(Ordering::Relaxed));
        }
    }

    /// Asks the memory for the bits of a place.
    #[inline]
    pub(in crate::index) fn warm_bits(&self, place: &Place) {
        if cfg!(not(feature = "modelled")) {
            black_box(self.bits(place.row, 0).load(Ordering::Relaxed));
        }
    }
}
