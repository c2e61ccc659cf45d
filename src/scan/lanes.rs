//! The hash of canonical bytes: four lanes take sixteen bytes each, in turns, and can be asked for their value behind
//! any of them.
//!
//! A lane's step is that of wyhash (Wang Yi, 2019) and its kin: the first eight bytes against a constant, the others
//! against the lane, multiplied to 128 bits of which one half is laid upon the other. Four multiplications take 64
//! bytes, where XXH64 needs sixteen; it is plain Rust, and the same on every CPU. Like XXH64's with a known seed it
//! keeps chance apart and no malice: who makes two prompts of one hash has one of them sent where the other is cached,
//! and a wrong prediction counted (a second half equal to its lane, which plain text can be made to have, clears it:
//! what stood before in that section is forgotten).

/// Four hashes of a quarter of the pieces each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lanes([u64; 4]);

/// Bytes that a lane takes at once.
pub(super) const PIECE: usize = 16;
/// Bytes that all lanes take, one behind the other.
pub(super) const TURN: usize = 4 * PIECE;

impl Lanes {
    /// Of no bytes: the first digits of pi, none of which a value or a step is laid upon.
    pub const START: Lanes =
        Lanes([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89]);

    /// Takes whole turns; what is left of `bytes` is not looked at.
    #[inline]
    pub fn take(&mut self, bytes: &[u8]) {
        let mut lanes = self.0;
        for turn in bytes.as_chunks::<TURN>().0 {
            for (lane, piece) in lanes.iter_mut().zip(turn.as_chunks().0) {
                *lane = step(*lane, piece);
            }
        }
        self.0 = lanes;
    }

    /// Takes one piece, before which there were `bytes`, a multiple of pieces.
    #[inline]
    pub fn take_piece(&mut self, bytes: u64, piece: &[u8; PIECE]) {
        let lane = &mut self.0[bytes as usize / PIECE % 4];
        *lane = step(*lane, piece);
    }

    /// The hash of all `bytes` that were taken.
    #[inline]
    pub fn value(self, bytes: u64) -> u64 {
        let [a, b, c, d] = self.0;
        folded(a ^ PRIME_1, b ^ PRIME_2) ^ folded(c ^ PRIME_3, d ^ PRIME_4.wrapping_add(bytes))
    }

    /// The hash once these have come to the whole turns before: less than a turn, of which the last piece is filled up
    /// with zeros. That they are none of the bytes says their number.
    pub fn finish(mut self, mut bytes: u64, rest: &[u8]) -> u64 {
        let all = bytes + rest.len() as u64;
        for run in rest.chunks(PIECE) {
            let mut piece = [0; PIECE];
            piece[..run.len()].copy_from_slice(run);
            self.take_piece(bytes, &piece);
            bytes += PIECE as u64;
        }
        self.value(all)
    }

    /// The lanes as they are, to be written down.
    pub fn words(&self) -> &[u64; 4] {
        &self.0
    }

    /// Lanes that were written down.
    pub fn of_words(words: [u64; 4]) -> Lanes {
        Lanes(words)
    }
}

#[inline(always)]
fn step(lane: u64, piece: &[u8; PIECE]) -> u64 {
    // Read as one word: as two the compiler takes them for vectors, and halves the speed.
    let words = u128::from_le_bytes(*piece);
    folded(words as u64 ^ PRIME_1, (words >> 64) as u64 ^ lane)
}

/// All bits of a product, one half upon the other.
#[inline(always)]
pub(super) fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// A link of a chain: the hash of a prefix below `root`. One multiplication, folded.
#[inline]
pub(super) fn linked(root: u64, prefix: u64) -> u64 {
    folded(root ^ prefix, PRIME_1 ^ root.rotate_left(32))
}

/// Odd, and as good as random: those of XXH64.
pub(super) const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;

/// The hash of bytes that are all there.
#[cfg(test)]
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mut lanes = Lanes::START;
    let (turns, rest) = bytes.split_at(bytes.len() - bytes.len() % TURN);
    lanes.take(turns);
    lanes.finish(turns.len() as u64, rest)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A small seeded generator (splitmix64).
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    #[test]
    fn pieces_are_turns_taken_apart() {
        let bytes: Vec<u8> = (0..640u32).map(|n| ((n * n) >> 3) as u8).collect();
        let mut apart = Lanes::START;
        for (place, piece) in bytes.as_chunks().0.iter().enumerate() {
            apart.take_piece((place * PIECE) as u64, piece);
            let all = &bytes[..(place + 1) * PIECE];
            assert_eq!(apart.value(all.len() as u64), hash(all));
        }
    }

    /// Of what differs in one bit half of the hash differs, whichever bit it is and wherever, and each bit of the hash
    /// as often as not.
    #[test]
    fn a_bit_changes_half_of_the_hash() {
        let mut state = 7;
        for length in [8, 15, 16, 17, 63, 64, 65, 100, 256, 1_000] {
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
            // 3,000 in the mean, 39 the deviation.
            assert!(flips.iter().all(|&flips| flips.abs_diff(3_000) < 240), "of {length} bytes: {flips:?}");
        }
    }

    /// What prompts are like: mostly the same, in few letters, with zeros in token ids, shifted, repeated, swapped.
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
        // Two of twenty different pieces, or words, in each other's place.
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

    /// Fronts of one release must agree, whatever they run on, and chains outlive a process in files: another value
    /// here is another `GENERIC_FORM`, and another version of those files.
    #[test]
    fn hashes_are_pinned() {
        let bytes: Vec<u8> = (0..=255).collect();
        let pinned = [0, 1, 16, 100, 256].map(|length| hash(&bytes[..length]));
        assert_eq!(pinned, PINNED, "{pinned:#018x?}");
    }

    /// Computed by a few lines of Python.
    const PINNED: [u64; 5] = [
        0x2988_2abe_5634_ca70,
        0xe50b_e777_1a4a_bbbd,
        0xf302_74ab_3ae4_0a6e,
        0xa980_4233_bfff_892b,
        0xb88d_579d_c92f_8d2d,
    ];
}
