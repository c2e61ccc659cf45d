//! Times to first token by endpoint, as one shard sees them.
//!
//! Takes 16 KiB, and 208 bytes for each endpoint that has ever answered this shard with a stream. Those are allocated
//! at its first stream: otherwise a fleet of some tens would pay for a thousand.

use std::sync::OnceLock;

use super::histogram::{FIRST_TOKEN, Histogram, Reading};
use crate::limits::ENDPOINTS_MAX;

/// By slot; written by one shard, read by control.
#[derive(Debug)]
pub(super) struct FirstTokens(Box<[OnceLock<Box<Histogram>>]>);

impl Default for FirstTokens {
    fn default() -> Self {
        FirstTokens((0..ENDPOINTS_MAX).map(|_| OnceLock::new()).collect())
    }
}

impl FirstTokens {
    #[inline]
    pub(super) fn observe(&self, slot: u16, micros: u64) {
        if let Some(cell) = self.0.get(slot as usize) {
            cell.get_or_init(Box::default).observe(&FIRST_TOKEN, micros);
        }
    }

    pub(super) fn add_to(&self, slot: u16, reading: &mut Reading) {
        if let Some(histogram) = self.0.get(slot as usize).and_then(OnceLock::get) {
            histogram.add_to(reading);
        }
    }
}
