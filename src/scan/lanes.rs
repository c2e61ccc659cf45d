//! The hash of canonical bytes, block by block.
//!
//! The words of a block go to four lanes in turn, as in XXH3's stripes (Yann Collet, 2019). A word is XORed with the
//! key of its place and cut in two; the product of the halves is added to its lane, and the word itself to the lane
//! beside it. These are additions and products of 32 bits, of which vector instructions do four at once, and no word
//! waits for the one before. At a block's end the four lanes, two of them with the chain of all earlier blocks added,
//! are multiplied in pairs to 128 bits whose halves are XORed, as in wyhash (Wang Yi, 2019): this is the next link of
//! the chain. After any step of a block the same product is the hash of all bytes so far.
//!
//! Unlike in XXH3, a word is rotated by its place, a byte more in each round, before it is added itself. Sums of words
//! are the same in every order, and sums of products differ little if the words do: for eight rows of 32 bytes that are
//! alike but for a letter, two orders met once in 2^36 pairs. With the rotation such letters are side by side.
//!
//! Like XXH64 with a known seed it resists chance, not malice: a client that makes two prompts with one hash has one of
//! them sent where the other is cached, and a wrong prediction counted.

use crate::limits::{BLOCK_BYTES, STEP_BYTES};

/// The hash state after some bytes, to which others may come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lanes {
    /// Number of bytes taken: whole pieces.
    bytes: u64,
    /// The chain of all whole blocks.
    chain: u64,
    /// The lanes of the block that is not whole yet.
    sums: Sums,
}

/// The four lanes of a block.
pub(super) type Sums = [u64; 4];
/// The rounds of one step.
pub(super) type Rounds = [Round; STEP_BYTES / ROUND];

/// How the words in one place of a block are mixed, one for each lane; a vector lies in one cache line.
#[repr(align(32))]
pub(super) struct Round {
    pub keys: [u64; 4],
    /// For vector instructions: for each byte, which byte of the pair of words is added to the lane beside, rotated.
    pub beside: [u8; ROUND],
    /// By how many bits a word is rotated to the left.
    turn: u32,
}

/// Bytes of a piece: two words, for two lanes that are beside each other.
pub(super) const PIECE: usize = 16;
/// Bytes of a round: a word for each lane.
pub(super) const ROUND: usize = 2 * PIECE;

const _: () = assert!(STEP_BYTES.is_multiple_of(ROUND), "a step begins with the first lane");
const _: () = assert!(BLOCK_BYTES.is_multiple_of(STEP_BYTES), "a block is whole steps");

impl Lanes {
    /// The state before the first byte: digits of pi.
    pub const START: Lanes = Lanes { bytes: 0, chain: 0x4528_21e6_38d0_1377, sums: EMPTY };

    /// Returns how many bytes were taken.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes whole steps, and writes the hash after each of them to a slot while there are slots; without `steps` only
    /// the hashes at the ends of blocks.
    #[inline(always)]
    pub fn take_steps(&mut self, bytes: &[u8], steps: bool, slots: &mut [u64], adder: impl Adder) {
        // Apart, so that they stay in registers.
        let (mut lanes, mut slots) = (*self, slots.iter_mut());
        for step in bytes.as_chunks::<STEP_BYTES>().0 {
            lanes.sums = adder.added(lanes.sums, step, rounds(lanes.bytes));
            lanes.bytes += STEP_BYTES as u64;
            let ends = lanes.ends();
            if ends {
                (lanes.chain, lanes.sums) = (lanes.link(lanes.bytes), EMPTY);
            }
            if (ends || steps)
                && let Some(slot) = slots.next()
            {
                *slot = lanes.value();
            }
        }
        *self = lanes;
    }

    /// Takes whole blocks after whole blocks, and writes the hash after each of them to a slot.
    #[inline(always)]
    pub fn take_blocks(&mut self, bytes: &[u8], slots: &mut [u64], adder: impl Adder) {
        let (mut lanes, mut slots) = (*self, slots.iter_mut());
        for block in bytes.as_chunks::<BLOCK_BYTES>().0 {
            for (step, rounds) in block.as_chunks().0.iter().zip(&ROUNDS) {
                lanes.sums = adder.added(lanes.sums, step, rounds);
            }
            lanes.bytes += BLOCK_BYTES as u64;
            (lanes.chain, lanes.sums) = (lanes.link(lanes.bytes), EMPTY);
            if let Some(slot) = slots.next() {
                *slot = lanes.chain;
            }
        }
        *self = lanes;
    }

    /// Takes one piece.
    #[inline]
    pub fn take_piece(&mut self, piece: &[u8; PIECE]) {
        let (place, pair) = (self.bytes as usize % STEP_BYTES / ROUND, self.bytes as usize % ROUND / PIECE);
        let Round { keys, turn, .. } = &rounds(self.bytes)[place];
        let lanes = &mut self.sums.as_chunks_mut().0[pair];
        *lanes = added_piece(*lanes, piece, keys.as_chunks().0[pair], *turn);
        self.bytes += PIECE as u64;
        if self.ends() {
            (self.chain, self.sums) = (self.link(self.bytes), EMPTY);
        }
    }

    /// Returns the hash of all bytes taken, which are whole steps.
    #[inline]
    pub fn value(&self) -> u64 {
        if self.ends() { self.chain } else { self.link(self.bytes) }
    }

    /// Returns the hash after these last bytes, which come after whole steps. They are less than a step, and filled up
    /// with zeros; the number of bytes, which is hashed too, tells that from zeros in the text.
    pub fn finish(mut self, rest: &[u8]) -> u64 {
        if rest.is_empty() {
            return self.value();
        }
        let mut step = [0; STEP_BYTES];
        step[..rest.len()].copy_from_slice(rest);
        self.sums = Words.added(self.sums, &step, rounds(self.bytes));
        self.link(self.bytes + rest.len() as u64)
    }

    /// Whether no block has begun.
    #[inline(always)]
    pub fn ends(&self) -> bool {
        self.bytes.is_multiple_of(BLOCK_BYTES as u64)
    }

    /// Returns the chain with this block's lanes so far, after so many bytes in all.
    #[inline(always)]
    fn link(&self, bytes: u64) -> u64 {
        let [a, b, c, d] = self.sums;
        let (a, c) = (a.wrapping_add(self.chain), c.wrapping_add(self.chain.rotate_left(32)));
        folded(a ^ PRIME_1, b ^ PRIME_2) ^ folded(c ^ PRIME_3, d ^ PRIME_4.wrapping_add(bytes))
    }

    /// Returns the state as words, to be saved.
    pub fn words(&self) -> [u64; Lanes::WORDS] {
        let [a, b, c, d] = self.sums;
        [self.bytes, self.chain, a, b, c, d]
    }

    /// Restores a saved state; `None` if it cannot come of any bytes.
    pub fn of_words([bytes, chain, a, b, c, d]: [u64; Lanes::WORDS]) -> Option<Lanes> {
        let taken = bytes < 1 << 48 && bytes.is_multiple_of(PIECE as u64);
        taken.then_some(Lanes { bytes, chain, sums: [a, b, c, d] })
    }

    pub const WORDS: usize = 6;
}

/// The bytes of a step.
pub(super) type Step = [u8; STEP_BYTES];

/// Adds words to a block's lanes, by whatever instructions.
pub(super) trait Adder: Copy {
    /// Returns the sums with these bytes added.
    fn added(self, sums: Sums, step: &Step, rounds: &Rounds) -> Sums;
}

/// Adds word by word, to the same result as every kernel's instructions.
#[derive(Clone, Copy)]
pub(super) struct Words;

impl Adder for Words {
    #[inline(always)]
    fn added(self, [a, b, c, d]: Sums, step: &Step, rounds: &Rounds) -> Sums {
        let (mut first, mut second) = ([a, b], [c, d]);
        for (pieces, Round { keys, turn, .. }) in step.as_chunks().0.as_chunks::<2>().0.iter().zip(rounds) {
            let keys = keys.as_chunks().0;
            first = added_piece(first, &pieces[0], keys[0], *turn);
            second = added_piece(second, &pieces[1], keys[1], *turn);
        }
        let ([a, b], [c, d]) = (first, second);
        [a, b, c, d]
    }
}

#[inline(always)]
fn added_piece([one, other]: [u64; 2], piece: &[u8; PIECE], [its, others]: [u64; 2], turn: u32) -> [u64; 2] {
    let words = u128::from_le_bytes(*piece);
    let (word, beside) = (words as u64, (words >> 64) as u64);
    [
        one.wrapping_add(product(word ^ its)).wrapping_add(beside.rotate_left(turn)),
        other.wrapping_add(product(beside ^ others)).wrapping_add(word.rotate_left(turn)),
    ]
}

/// Returns the product of a word's halves.
#[inline(always)]
fn product(word: u64) -> u64 {
    (word & 0xffff_ffff) * (word >> 32)
}

/// Returns the rounds of the step that begins after so many bytes, or in which they end.
#[inline(always)]
fn rounds(bytes: u64) -> &'static Rounds {
    &ROUNDS[bytes as usize % BLOCK_BYTES / STEP_BYTES]
}

/// Returns the two halves of a 128-bit product, XORed.
#[inline(always)]
pub(super) fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// Returns a link of a chain: the hash of a prefix below `root`. One multiplication, folded.
#[inline]
pub(super) fn linked(root: u64, prefix: u64) -> u64 {
    folded(root ^ prefix, PRIME_1 ^ root.rotate_left(32))
}

/// The lanes of a block before its first byte: digits of pi.
const EMPTY: Sums = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

/// The rounds of a block.
static ROUNDS: [Rounds; BLOCK_BYTES / STEP_BYTES] = {
    let mut rounds = [const { [const { Round { keys: [0; 4], beside: [0; ROUND], turn: 0 } }; _] }; _];
    let mut place = 0;
    while place < BLOCK_BYTES / ROUND {
        rounds[place * ROUND / STEP_BYTES][place % (STEP_BYTES / ROUND)] = round(place);
        place += 1;
    }
    rounds
};

/// Makes the round of this place of a block. The keys are as good as random: splitmix64 makes them from seed 0.
const fn round(place: usize) -> Round {
    let (mut keys, mut beside) = ([0; 4], [0; ROUND]);
    let (mut lane, mut byte) = (0, 0);
    while lane < 4 {
        keys[lane] = splitmix((4 * place + lane) as u64);
        lane += 1;
    }
    while byte < ROUND {
        // The places of a word's bytes and of those beside it differ in one bit.
        beside[byte] = (((byte & 8) ^ 8) | ((byte + 8 - place % 8) & 7)) as u8;
        byte += 1;
    }
    Round { keys, beside, turn: 8 * (place % 8) as u32 }
}

/// Returns the `place`th number of splitmix64 from seed 0 on (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014).
const fn splitmix(place: u64) -> u64 {
    let state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(place + 1);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Odd and as good as random: the primes of XXH64.
pub(super) const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;

/// Returns the hash of these bytes.
#[cfg(test)]
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mut lanes = Lanes::START;
    let (steps, rest) = bytes.split_at(bytes.len() - bytes.len() % STEP_BYTES);
    lanes.take_steps(steps, false, &mut [], Words);
    lanes.finish(rest)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A small seeded generator.
    fn random(state: &mut u64) -> u64 {
        *state += 1;
        splitmix(*state << 32)
    }

    #[test]
    fn pieces_are_steps_taken_apart() {
        let bytes: Vec<u8> = (0..640u32).map(|n| ((n * n) >> 3) as u8).collect();
        let mut apart = Lanes::START;
        for (place, piece) in (1..).zip(bytes.as_chunks::<PIECE>().0) {
            apart.take_piece(piece);
            if (place * PIECE).is_multiple_of(STEP_BYTES) {
                assert_eq!(apart.value(), hash(&bytes[..place * PIECE]));
            }
        }
    }

    /// Slots are filled after each step or block, however the bytes are taken, and no more than there are.
    #[test]
    fn slots_are_the_hashes_of_prefixes() {
        let bytes: Vec<u8> = (0..8 * BLOCK_BYTES as u32).map(|n| ((n * n) >> 3) as u8).collect();
        let mut blocks = [7; 9];
        let mut lanes = Lanes::START;
        lanes.take_blocks(&bytes, &mut blocks, Words);
        for (place, hash_of) in blocks[..8].iter().enumerate() {
            assert_eq!(*hash_of, hash(&bytes[..(place + 1) * BLOCK_BYTES]));
        }
        assert_eq!((blocks[8], lanes.value()), (7, blocks[7]));
        for first in [0, 1, 3, 4, 5] {
            let (before, behind) = bytes.split_at(first * STEP_BYTES);
            for steps in [true, false] {
                let (mut lanes, mut slots) = (Lanes::START, [7; 40]);
                lanes.take_steps(before, steps, &mut [], Words);
                lanes.take_steps(behind, steps, &mut slots[..5], Words);
                let size = if steps { STEP_BYTES } else { BLOCK_BYTES };
                let ends = (1..).map(|place| place * size).filter(|end| *end > before.len());
                let expected: Vec<u64> = ends.take(5).map(|end| hash(&bytes[..end])).collect();
                assert_eq!((slots[..5].to_vec(), lanes.value()), (expected, blocks[7]), "from {first}, {steps}");
            }
        }
    }

    /// If one bit differs, wherever it is, half of the hash differs, and each bit of the hash in half of the tries.
    #[test]
    fn a_bit_changes_half_of_the_hash() {
        let mut state = 7;
        for length in [8, 15, 16, 17, 63, 64, 65, 100, 256, 257, 1_000] {
            let (mut flips, mut tries) = ([0_u32; 64], 0);
            while tries < 6_000 {
                let mut bytes: Vec<u8> = (0..length).map(|_| b' ' + (random(&mut state) % 90) as u8).collect();
                let before = hash(&bytes);
                let bit = random(&mut state) as usize % (8 * length);
                bytes[bit / 8] ^= 1 << (bit % 8);
                let changed = before ^ hash(&bytes);
                (0..64).for_each(|place| flips[place] += (changed >> place & 1) as u32);
                tries += 1;
            }
            // The mean is 3,000, the deviation 39.
            assert!(flips.iter().all(|&flips| flips.abs_diff(3_000) < 240), "of {length} bytes: {flips:?}");
        }
    }

    /// Bytes like those of prompts: mostly the same, in few letters, with zeros in token ids, shifted, repeated,
    /// swapped.
    #[test]
    fn nothing_alike_meets() {
        let (mut texts, mut hashes) = (HashSet::new(), HashSet::new());
        let mut see = |bytes: &[u8]| {
            hashes.insert(hash(bytes));
            texts.insert(bytes.to_vec());
        };
        for length in 0..2_000 {
            see(&vec![0; length]);
            see(&vec![b'a'; length + 1]);
            see(&b"ab".repeat(length + 1));
        }
        let text = b"the cache holds a prefix of every prompt, ".repeat(30);
        for at in 0..text.len() - 1 {
            for byte in [b'x', b'y', 0] {
                let mut changed = text.clone();
                changed[at] = byte;
                see(&changed);
            }
        }
        // Two of twenty different pieces, or words, change places.
        for size in [8, 16, 64] {
            let bytes: Vec<u8> = (0..20 * size).map(|place| (place / size * 3 + place % 7) as u8).collect();
            for one in 0..20 {
                for other in one + 1..20 {
                    let mut swapped = bytes.clone();
                    (0..size).for_each(|place| swapped.swap(one * size + place, other * size + place));
                    see(&swapped);
                }
            }
        }
        for first in 0..300_u32 {
            for second in 0..300_u32 {
                see([first, second, 0, 0, second].map(u32::to_le_bytes).as_flattened());
            }
        }
        assert!(texts.len() > 90_000);
        assert_eq!(hashes.len(), texts.len());
    }

    /// Rows that are alike but for a letter, in one half of a word each: the products differ so little that only small
    /// numbers decide their sum, and two orders of rows met while words were added without the rotation.
    #[test]
    fn rows_in_another_order_do_not_meet() {
        let row = *b"the blue house has no. ?       \n";
        let of_order = |order: usize| {
            let (mut order, mut left) = (order, b"12345678".to_vec());
            let rows = (1..=8).rev().flat_map(|count| {
                let number = left.remove(order % count);
                order /= count;
                row.map(|byte| if byte == b'?' { number } else { byte })
            });
            hash(&rows.collect::<Vec<u8>>())
        };
        let hashes: HashSet<u64> = (0..40_320).map(of_order).collect();
        assert_eq!(hashes.len(), 40_320);
    }

    /// Fronts of one release must agree, whatever they run on, and chains outlive a process in files: another value
    /// here is another `GENERIC_FORM`, and another version of those files.
    #[test]
    fn hashes_are_pinned() {
        let bytes: Vec<u8> = (0..600).map(|n| n as u8).collect();
        let pinned = [0, 1, 16, 100, 256, 600].map(|length| hash(&bytes[..length]));
        assert_eq!(pinned, PINNED, "{pinned:#018x?}");
        assert_eq!(linked(0x1234_5678_90ab_cdef, pinned[5]), 0x63fd_e560_a980_15c2);
    }

    /// Computed by a few lines of Python.
    const PINNED: [u64; 6] = [
        0x4528_21e6_38d0_1377,
        0x63be_b386_2a7c_ae89,
        0xeed0_a9ea_01a4_5d6d,
        0x424c_e891_c521_fd38,
        0x7d34_251a_c457_4b41,
        0x2a8b_8ca5_34c4_bdc2,
    ];
}
