//! Chained block hashes of prompts that are put together from pieces.
//!
//! A piece is some text of a known length under a number of its own. Two prompts that begin with the same
//! pieces have the same first blocks, and no others.

/// Makes one number that looks random of two: SplitMix64's finaliser.
pub fn mix(one: u64, other: u64) -> u64 {
    let mut bits = one.rotate_left(32) ^ other.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x2545_f491_4f6c_dd1d);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Returns a block that is twice in a chain. No chain comes back to a block that it has left.
pub(super) fn twice(blocks: &[u64]) -> Option<u64> {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|two| two[0] == two[1]).map(|two| two[0])
}

/// A prompt as it grows.
#[derive(Clone, Debug)]
pub struct Chain {
    block_tokens: u32,
    tokens: u32,
    /// Hashes of all full blocks.
    blocks: Vec<u64>,
    /// Hash and tokens of what comes after them.
    tail: u64,
}

impl Chain {
    /// An empty prompt.
    pub fn new(block_tokens: u32) -> Chain {
        Chain { block_tokens: block_tokens.max(1), tokens: 0, blocks: Vec::new(), tail: 0 }
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: u64, tokens: u32) {
        let mut done = 0;
        while done < tokens {
            let room = self.block_tokens - self.tokens % self.block_tokens;
            let taken = room.min(tokens - done);
            // Which part of the piece it is counts, too: pieces that are cut elsewhere make other blocks.
            self.tail = mix(self.tail, mix(piece, u64::from(done) << 32 | u64::from(taken)));
            self.tokens += taken;
            done += taken;
            if taken == room {
                let parent = self.blocks.last().copied().unwrap_or_default();
                self.blocks.push(mix(parent, self.tail));
                self.tail = 0;
            }
        }
    }

    /// Tokens so far.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Hashes of the full blocks so far.
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(pieces: &[(u64, u32)]) -> Chain {
        let mut chain = Chain::new(16);
        pieces.iter().for_each(|(piece, tokens)| chain.push(*piece, *tokens));
        chain
    }

    #[test]
    fn equal_starts_have_equal_blocks_and_no_others() {
        let (one, other) = (chain(&[(1, 40), (2, 30)]), chain(&[(1, 40), (3, 30)]));
        assert_eq!((one.tokens(), one.blocks().len()), (70, 4));
        assert_eq!(one.blocks()[..2], other.blocks()[..2]);
        assert!(one.blocks()[2..].iter().all(|block| !other.blocks().contains(block)));
        assert_eq!(chain(&[(1, 40)]).blocks(), &one.blocks()[..2]);
    }

    #[test]
    fn the_same_piece_elsewhere_is_another_block() {
        let shifted = chain(&[(9, 1), (1, 64)]);
        assert!(chain(&[(1, 64)]).blocks().iter().all(|block| !shifted.blocks().contains(block)));
        let twice = chain(&[(1, 16), (1, 16)]);
        assert_ne!(twice.blocks()[0], twice.blocks()[1]);
        assert_ne!(twice.blocks()[1], chain(&[(1, 32)]).blocks()[1], "its start is not its middle");
    }
}
