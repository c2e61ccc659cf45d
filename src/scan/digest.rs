//! XXH64 of bytes that arrive in small runs: they are staged, so that the hash works on long ones. On the way it leaves
//! the hash of every prefix that ends with a whole block or step, where these are asked for.

use super::kernel::BLOCK;
use crate::limits::{BLOCK_BYTES, STEP_BYTES};

/// A streaming XXH64 of seed 0 with a stage before it.
#[derive(Clone)]
pub(super) struct Digest {
    hash: Hash,
    staged: [u8; STAGE_BYTES],
    length: usize,
}

/// What has left the stage: whole steps.
#[derive(Clone)]
struct Hash {
    lanes: [u64; 4],
    bytes: u64,
    /// Bytes from one link to the next.
    step: usize,
    /// A hash of the first step, of the first two, and so on.
    links: Vec<u64>,
    links_max: usize,
}

/// Whole blocks of every kernel, and small beside a core's first cache.
const STAGE_BYTES: usize = 2048;
/// Bytes that one step of the hash takes: eight a lane.
pub(super) const STRIPE: usize = 32;
const _: () = assert!(STEP_BYTES.is_multiple_of(STRIPE), "a step is whole stripes");
const _: () = assert!(STAGE_BYTES >= BLOCK_BYTES + BLOCK, "behind an open block there is room for a kernel's");

impl Digest {
    /// One that leaves hashes of blocks, where any.
    pub fn new() -> Self {
        let hash = Hash { lanes: LANES, bytes: 0, step: BLOCK_BYTES, links: Vec::new(), links_max: 0 };
        Digest { hash, staged: [0; STAGE_BYTES], length: 0 }
    }

    /// One that leaves hashes of steps, with room for so many.
    pub fn stepped(links_max: usize) -> Self {
        let mut digest = Digest::new();
        (digest.hash.step, digest.hash.links) = (STEP_BYTES, Vec::with_capacity(links_max));
        digest
    }

    /// Begins anew, to leave the hashes of so many blocks or steps at most.
    pub fn reset(&mut self, links_max: usize) {
        (self.hash.lanes, self.hash.bytes, self.length) = (LANES, 0, 0);
        self.hash.links.clear();
        self.hash.links_max = links_max;
    }

    /// How many bytes there are.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.hash.bytes + self.length as u64
    }

    /// The last bytes on the stage, as many as were said.
    #[inline]
    pub fn last_written(&self, length: usize) -> &[u8] {
        self.staged.get(self.length.saturating_sub(length)..self.length).unwrap_or_default()
    }

    /// The same as [`Digest::each_link`] of what has left the stage: of all of it after [`Digest::flush`], where it leaves steps.
    pub fn links(&self) -> &[u64] {
        &self.hash.links
    }

    /// A hash of the first block or step, of the first two, and so on.
    pub fn each_link(&self, mut take: impl FnMut(u64)) {
        self.hash.links.iter().for_each(|link| take(*link));
        // Those that are complete on the stage.
        let (mut lanes, mut bytes) = (self.hash.lanes, self.hash.bytes);
        let staged = self.staged.get(..self.length).unwrap_or_default().chunks_exact(self.hash.step);
        for step in staged.take(self.hash.links_max - self.hash.links.len()) {
            stripes(&mut lanes, step);
            bytes += step.len() as u64;
            take(link(lanes, bytes));
        }
    }

    /// Appends a run.
    #[inline]
    pub fn update(&mut self, run: &[u8]) {
        let end = self.length + run.len();
        if let Some(free) = self.staged.get_mut(self.length..end) {
            free.copy_from_slice(run);
            self.length = end;
        } else {
            self.update_long(run);
        }
    }

    /// Appends one that the stage has no room for: what fills up a step goes there, whole ones past it.
    fn update_long(&mut self, run: &[u8]) {
        let fill = self.length.wrapping_neg() % self.hash.step;
        let (fill, run) = run.split_at(fill.min(run.len()));
        self.stage(fill);
        self.flush();
        let (steps, tail) = run.split_at(run.len() - run.len() % self.hash.step);
        self.hash.take(steps);
        self.stage(tail);
    }

    /// Appends less than a step, which there is room for: the stage's size is a multiple of it.
    fn stage(&mut self, run: &[u8]) {
        if let Some(free) = self.staged.get_mut(self.length..self.length + run.len()) {
            free.copy_from_slice(run);
            self.length += run.len();
        }
    }

    /// Room to write the next bytes into; never less than a block of any kernel.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        if self.length > STAGE_BYTES - BLOCK {
            self.flush();
        }
        self.staged.get_mut(self.length..).unwrap_or_default()
    }

    /// So many bytes of the room are written.
    #[inline]
    pub fn written(&mut self, length: usize) {
        self.length = (self.length + length).min(STAGE_BYTES);
    }

    /// Puts this before the next room: both are on the stage then, where what is written can be taken back. It is not longer
    /// than half of the stage.
    pub fn room_behind(&mut self, run: &[u8]) -> &mut [u8] {
        if self.length + run.len() > STAGE_BYTES - BLOCK {
            self.flush();
        }
        self.update(run);
        self.staged.get_mut(self.length..).unwrap_or_default()
    }

    /// Takes back the last bytes on the stage.
    pub fn take_back(&mut self, length: usize) {
        self.length = self.length.saturating_sub(length);
    }

    /// Hashes the whole steps of the stage; what is left of it moves to its start.
    pub fn flush(&mut self) {
        let whole = self.length - self.length % self.hash.step;
        self.hash.take(self.staged.get(..whole).unwrap_or_default());
        self.staged.copy_within(whole..self.length, 0);
        self.length -= whole;
    }

    /// The hash of everything so far.
    pub fn value(&self) -> u64 {
        let staged = self.staged.get(..self.length).unwrap_or_default();
        let (whole, tail) = staged.split_at(self.length - self.length % STRIPE);
        let mut lanes = self.hash.lanes;
        stripes(&mut lanes, whole);
        let length = self.hash.bytes + self.length as u64;
        let start = if length < STRIPE as u64 { PRIME_5 } else { merged(lanes) };
        finished(start.wrapping_add(length), tail)
    }
}

impl Hash {
    /// Hashes whole steps.
    fn take(&mut self, bytes: &[u8]) {
        let known = self.links.len();
        let linked = (bytes.len() / self.step).min(self.links_max - known);
        let (steps, rest) = bytes.split_at(linked * self.step);
        self.links.resize(known + linked, 0);
        let slots = self.links.get_mut(known..).unwrap_or_default();
        for (step, slot) in steps.chunks_exact(self.step).zip(slots) {
            stripes(&mut self.lanes, step);
            self.bytes += step.len() as u64;
            *slot = link(self.lanes, self.bytes);
        }
        stripes(&mut self.lanes, rest);
        self.bytes += rest.len() as u64;
    }
}

/// XXH64's lanes, taken through all of `bytes`, which are whole stripes.
#[inline]
pub(super) fn stripes(lanes: &mut [u64; 4], bytes: &[u8]) {
    let mut own = *lanes;
    for stripe in bytes.as_chunks::<8>().0.as_chunks::<4>().0 {
        for (lane, word) in own.iter_mut().zip(stripe) {
            *lane = round(*lane, u64::from_le_bytes(*word).wrapping_mul(PRIME_2));
        }
    }
    *lanes = own;
}

/// A hash of so many bytes, whole stripes, that have left these lanes. Not XXH64: its last mixing is a chain of fifteen
/// multiplications, which for every 256 bytes would cost more than the bytes.
#[inline]
pub(super) fn link(lanes: [u64; 4], bytes: u64) -> u64 {
    let [a, b, c, d] = lanes;
    folded(a ^ PRIME_1, b ^ PRIME_2) ^ folded(c ^ PRIME_3, d ^ PRIME_4.wrapping_add(bytes))
}

/// All bits of a product, one half upon the other.
#[inline]
pub(super) fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// The step of one lane, given its input times [`PRIME_2`].
#[inline(always)]
fn round(lane: u64, product: u64) -> u64 {
    lane.wrapping_add(product).rotate_left(31).wrapping_mul(PRIME_1)
}

fn merged(lanes: [u64; 4]) -> u64 {
    let [a, b, c, d] = lanes;
    let start =
        a.rotate_left(1).wrapping_add(b.rotate_left(7)).wrapping_add(c.rotate_left(12)).wrapping_add(d.rotate_left(18));
    lanes.into_iter().fold(start, |hash, lane| {
        (hash ^ round(0, lane.wrapping_mul(PRIME_2))).wrapping_mul(PRIME_1).wrapping_add(PRIME_4)
    })
}

/// The bytes behind the last whole stripe, and the last mixing.
fn finished(start: u64, tail: &[u8]) -> u64 {
    let (words, tail) = tail.as_chunks::<8>();
    let (halves, bytes) = tail.as_chunks::<4>();
    let hash = words.iter().fold(start, |hash, word| {
        let mixed = hash ^ round(0, u64::from_le_bytes(*word).wrapping_mul(PRIME_2));
        mixed.rotate_left(27).wrapping_mul(PRIME_1).wrapping_add(PRIME_4)
    });
    let hash = halves.iter().fold(hash, |hash, half| {
        let mixed = hash ^ (u32::from_le_bytes(*half) as u64).wrapping_mul(PRIME_1);
        mixed.rotate_left(23).wrapping_mul(PRIME_2).wrapping_add(PRIME_3)
    });
    let hash = bytes
        .iter()
        .fold(hash, |hash, byte| (hash ^ (*byte as u64).wrapping_mul(PRIME_5)).rotate_left(11).wrapping_mul(PRIME_1));
    let hash = (hash ^ hash >> 33).wrapping_mul(PRIME_2);
    let hash = (hash ^ hash >> 29).wrapping_mul(PRIME_3);
    hash ^ hash >> 32
}

pub(super) const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME_5: u64 = 0x27d4_eb2f_1656_67c5;
/// What the lanes begin with, given seed 0.
pub(super) const LANES: [u64; 4] = [PRIME_1.wrapping_add(PRIME_2), PRIME_2, 0, PRIME_1.wrapping_neg()];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_any_length_hash_as_one() {
        let bytes: Vec<u8> = (0..20_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
        for most in [2, 33, 70, 300, 1_100, 5_000] {
            let (mut digest, mut start, mut length) = (Digest::new(), 0, 1);
            while start < bytes.len() {
                let end = (start + length).min(bytes.len());
                if length % 3 == 0 {
                    digest.update(&bytes[start..end]);
                } else {
                    let mut rest = &bytes[start..end];
                    while !rest.is_empty() {
                        let room = digest.room();
                        assert!(room.len() >= 64);
                        let fits = room.len().min(rest.len());
                        room[..fits].copy_from_slice(&rest[..fits]);
                        digest.written(fits);
                        rest = &rest[fits..];
                    }
                }
                assert_eq!(digest.value(), xxhash_rust::xxh64::xxh64(&bytes[..end], 0));
                (start, length) = (end, (length * 7 + 3) % most);
            }
        }
    }

    #[test]
    fn links_are_the_hashes_of_whole_blocks() {
        let bytes: Vec<u8> = (0..20 * BLOCK_BYTES as u32 + 100).map(|n| ((n * n) >> 3) as u8).collect();
        let after = |count: usize| {
            let mut alone = Digest::new();
            alone.reset(count);
            alone.update(&bytes[..count * BLOCK_BYTES]);
            let mut last = None;
            alone.each_link(|link| last = Some(link));
            last.unwrap()
        };
        let mut digest = Digest::new();
        for (most, run) in [(0, 7), (5, 1), (5, 100), (20, 31), (100, 1_000), (100, 2_048), (100, 9_000)] {
            digest.reset(most);
            let mut taken = 0;
            for run in bytes.chunks(run) {
                digest.update(run);
                taken += run.len();
                let mut links = Vec::new();
                if taken % 3 == 0 || taken == bytes.len() {
                    digest.each_link(|link| links.push(link));
                    assert_eq!(links, (1..=(taken / BLOCK_BYTES).min(most)).map(after).collect::<Vec<_>>());
                }
            }
            assert_eq!(digest.value(), xxhash_rust::xxh64::xxh64(&bytes, 0));
        }
    }

    #[test]
    fn every_short_length_hashes_as_xxh64_does() {
        let bytes: Vec<u8> = (0..300u32).map(|n| ((n * n) >> 2) as u8).collect();
        for end in 0..bytes.len() {
            let mut digest = Digest::new();
            digest.update(&bytes[..end]);
            assert_eq!(digest.value(), xxhash_rust::xxh64::xxh64(&bytes[..end], 0), "of {end}");
        }
    }
}
