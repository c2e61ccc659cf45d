//! The memory that a mirror takes, as a sum.

use super::Mirror;
use super::text::{STAGE_BYTES, TEXT_BYTES_MAX};
use super::tree::Node;
use crate::limits::{MIRROR_BLOCKS_MAX, MIRROR_LINKS_PER_BLOCK, STEP_BYTES};

/// How many things a mirror has room for.
pub(super) struct Room {
    /// Nodes: twice as many as blocks, since the node of a block that is gone stays while another follows it, and each
    /// block follows one.
    pub nodes: usize,
    pub links: usize,
    /// Links of one block.
    pub found: usize,
}

/// Steps of the longest prompt that is looked at.
const STEPS_MAX: usize = TEXT_BYTES_MAX as usize / STEP_BYTES;

impl Room {
    pub const fn of(blocks_max: u32) -> Room {
        let blocks = if blocks_max < MIRROR_BLOCKS_MAX { blocks_max } else { MIRROR_BLOCKS_MAX } as usize;
        let links = blocks * MIRROR_LINKS_PER_BLOCK as usize;
        Room { nodes: 2 * blocks, links, found: if links < STEPS_MAX { links } else { STEPS_MAX } }
    }

    pub const fn bytes(&self) -> usize {
        let nodes = self.nodes * size_of::<Node>();
        let names = table_bytes(self.nodes);
        let owners = table_bytes(self.links);
        let kept = self.links * size_of::<u64>();
        let found = self.found * size_of::<u64>();
        size_of::<Mirror>() + nodes + names + owners + kept + found + STAGE_BYTES
    }
}

/// Returns the bytes of a [`super::links::table`]: it has a power of two of buckets, seven eighths of them for entries,
/// each with a byte beside it, and some bytes at the end.
const fn table_bytes(entries_max: usize) -> usize {
    let buckets = (2 * entries_max * 8 / 7 + 1).next_power_of_two();
    (if buckets < 16 { 16 } else { buckets }) * (size_of::<(u64, u32)>() + 1) + 64
}
