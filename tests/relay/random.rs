//! Seeded randomness: the same seed, the same test.

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Ordered places to cut `len` bytes at.
    pub fn cuts(&mut self, len: usize, count: usize) -> Vec<usize> {
        let mut cuts: Vec<_> = (0..count).map(|_| self.below(len + 1)).collect();
        cuts.sort_unstable();
        cuts
    }
}
