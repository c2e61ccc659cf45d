//! How large an index is.

use super::rows::Rows;
use crate::limits::ENDPOINTS_MAX;

/// What an index is made for. All its memory is taken at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Slots, 1..=[`ENDPOINTS_MAX`]: endpoints with slots beyond have no part in it.
    pub endpoints: usize,
    /// Blocks that all endpoints hold together; at least [`Capacity::BLOCKS_MIN`] for each slot. Rounded up.
    pub blocks: usize,
    /// With a table of tokens by link ([`super::Index::note_tokens`]): 8 bytes more for each block.
    pub lengths: bool,
}

/// How that is cut up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Words of a row's bits.
    pub words: usize,
    pub buckets: u32,
    /// A chunk has two to the power of this many cells.
    pub shift: u32,
    /// As many for each slot.
    pub chunks: usize,
    /// Links whose tokens are kept.
    pub lengths: usize,
}

impl Capacity {
    /// Fewest blocks for a slot.
    pub const BLOCKS_MIN: usize = if cfg!(feature = "modelled") { 1 } else { 16 };

    /// The blocks of an endpoint of unknown capacity: as many as of every other.
    pub fn share(&self) -> u32 {
        (self.blocks / self.endpoints.max(1)).try_into().unwrap_or(u32::MAX)
    }

    pub(super) fn shape(&self) -> Result<Shape, BadCapacity> {
        let share = self.blocks.checked_div(self.endpoints).unwrap_or(0);
        if self.endpoints == 0 || self.endpoints > ENDPOINTS_MAX {
            return Err(BadCapacity::Endpoints);
        }
        if share < Self::BLOCKS_MIN {
            return Err(BadCapacity::TooFew);
        }
        // A share is 16 to 32 chunks: what `blocks` leaves of the memory for one chunk each is little, and so is what
        // an endpoint leaves over of its last one.
        let shift = (share / 16).max(Self::BLOCKS_MIN).ilog2();
        let chunks = self.endpoints.checked_mul(share.div_ceil(1 << shift)).ok_or(BadCapacity::TooMany)?;
        let blocks = chunks.checked_mul(1 << shift).filter(|&blocks| blocks < 1 << 31).ok_or(BadCapacity::TooMany)?;
        let buckets = Rows::buckets(blocks).ok_or(BadCapacity::TooMany)?;
        // A power of two, so that a row's words lie in one line (or two).
        let words = self.endpoints.div_ceil(64).next_power_of_two();
        Ok(Shape { words, buckets, shift, chunks, lengths: if self.lengths { blocks } else { 0 } })
    }
}

/// Why there is no such index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadCapacity {
    /// No endpoint or too many.
    #[error("an index is for 1 to {ENDPOINTS_MAX} endpoints")]
    Endpoints,
    /// Too few blocks.
    #[error("an index needs at least {} blocks for each endpoint", Capacity::BLOCKS_MIN)]
    TooFew,
    /// Too many blocks.
    #[error("an index holds fewer than 2^31 blocks")]
    TooMany,
}
