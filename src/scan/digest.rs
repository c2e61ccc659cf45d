//! Hashes bytes that arrive in small runs. They are staged, so that the [`Lanes`] work on long runs. On the way it
//! leaves the hash of every prefix that ends with a whole block or step, if these are asked for.

use super::kernel::{BLOCK, Kernel};
use super::lanes::Lanes;
use crate::limits::{BLOCK_BYTES, STEP_BYTES};

/// Lanes with a stage before them.
#[derive(Clone)]
pub(super) struct Digest {
    hash: Hash,
    staged: [u8; STAGE_BYTES],
    length: usize,
}

/// The hash of the bytes that have left the stage: whole steps.
#[derive(Clone)]
struct Hash {
    kernel: &'static Kernel,
    lanes: Lanes,
    /// Whether there is a hash for each step, and not for each block.
    steps: bool,
    /// Hashes of the first step or block, of the first two, and so on.
    prefixes: Vec<u64>,
    prefixes_max: usize,
}

/// Bytes of the stage: whole blocks of every kernel, and small compared with a core's first-level cache.
const STAGE_BYTES: usize = 2048;
const _: () = assert!(STAGE_BYTES.is_multiple_of(BLOCK_BYTES), "a stage is whole blocks and steps");
const _: () = assert!(STAGE_BYTES >= BLOCK_BYTES + BLOCK, "after an open block there is room for a kernel's");

impl Digest {
    /// Makes a digest that leaves hashes of blocks, if any.
    pub fn new(kernel: &'static Kernel) -> Self {
        let hash = Hash { kernel, lanes: Lanes::START, steps: false, prefixes: Vec::new(), prefixes_max: 0 };
        Digest { hash, staged: [0; STAGE_BYTES], length: 0 }
    }

    /// Makes a digest that leaves hashes of steps, with room for so many.
    pub fn stepped(kernel: &'static Kernel, prefixes_max: usize) -> Self {
        let mut digest = Digest::new(kernel);
        (digest.hash.steps, digest.hash.prefixes) = (true, Vec::with_capacity(prefixes_max));
        digest
    }

    /// Begins anew, to leave the hashes of so many blocks or steps at most.
    pub fn reset(&mut self, prefixes_max: usize) {
        (self.hash.lanes, self.length) = (Lanes::START, 0);
        self.hash.prefixes.clear();
        self.hash.prefixes_max = prefixes_max;
    }

    /// Returns how many bytes were appended.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.hash.lanes.bytes() + self.length as u64
    }

    /// Returns the last `length` bytes on the stage.
    #[inline]
    pub fn last_written(&self, length: usize) -> &[u8] {
        self.staged.get(self.length.saturating_sub(length)..self.length).unwrap_or_default()
    }

    /// Returns hashes of the first block or step, of the first two, and so on, of the bytes that have left the stage:
    /// of all after [`Digest::flush`].
    pub fn prefixes(&self) -> &[u64] {
        &self.hash.prefixes
    }

    /// Gives `take` the further such hashes, of blocks or steps that are complete on the stage.
    pub fn each_staged_prefix(&self, take: impl FnMut(u64)) {
        let mut prefixes = [0; STAGE_BYTES / STEP_BYTES];
        let count = self.hash.left(self.length);
        let staged = self.staged.get(..count * self.hash.size()).unwrap_or_default();
        self.hash.foreseen(staged, &mut prefixes);
        prefixes.into_iter().take(count).for_each(take);
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

    /// Appends a run that the stage has no room for: bytes that fill up a block or step go to the stage, whole ones
    /// past it.
    fn update_long(&mut self, run: &[u8]) {
        let fill = self.length.wrapping_neg() % self.hash.size();
        let (fill, run) = run.split_at(fill.min(run.len()));
        self.stage(fill);
        self.flush();
        let (steps, tail) = run.split_at(run.len() - run.len() % self.hash.size());
        self.hash.take(steps);
        self.stage(tail);
    }

    /// Appends less than a block or step, for which there is room: the stage's size is a multiple of it.
    fn stage(&mut self, run: &[u8]) {
        if let Some(free) = self.staged.get_mut(self.length..self.length + run.len()) {
            free.copy_from_slice(run);
            self.length += run.len();
        }
    }

    /// Returns room to write the next bytes into; never less than a block of any kernel.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        if self.length > STAGE_BYTES - BLOCK {
            self.flush();
        }
        self.staged.get_mut(self.length..).unwrap_or_default()
    }

    /// Notes that so many bytes of the room are written.
    #[inline]
    pub fn written(&mut self, length: usize) {
        self.length = (self.length + length).min(STAGE_BYTES);
    }

    /// Appends `run` and returns the room after it. Both are on the stage then, where bytes can be taken back. `run` is
    /// not longer than half of the stage.
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

    /// Hashes the whole blocks or steps on the stage; the rest moves to its start.
    pub fn flush(&mut self) {
        let whole = self.length - self.length % self.hash.size();
        self.hash.take(self.staged.get(..whole).unwrap_or_default());
        self.staged.copy_within(whole..self.length, 0);
        self.length -= whole;
    }

    /// Returns the hash of everything so far.
    pub fn value(&self) -> u64 {
        let staged = self.staged.get(..self.length).unwrap_or_default();
        let (steps, rest) = staged.split_at(self.length - self.length % STEP_BYTES);
        self.hash.foreseen(steps, &mut []).finish(rest)
    }
}

impl Hash {
    /// Returns the bytes from one hash to the next.
    #[inline]
    fn size(&self) -> usize {
        if self.steps { STEP_BYTES } else { BLOCK_BYTES }
    }

    /// Returns how many hashes so many further bytes leave.
    fn left(&self, bytes: usize) -> usize {
        (bytes / self.size()).min(self.prefixes_max - self.prefixes.len())
    }

    /// Hashes whole steps, or whole blocks if there is a hash for each block.
    fn take(&mut self, bytes: &[u8]) {
        let known = self.prefixes.len();
        self.prefixes.resize(known + self.left(bytes.len()), 0);
        let slots = self.prefixes.get_mut(known..).unwrap_or_default();
        self.kernel.hash(&mut self.lanes, bytes, self.steps, slots);
    }

    /// Returns what the lanes would be after these bytes, and writes the hashes on the way.
    fn foreseen(&self, bytes: &[u8], slots: &mut [u64]) -> Lanes {
        let mut lanes = self.lanes;
        self.kernel.hash(&mut lanes, bytes, self.steps, slots);
        lanes
    }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::hash;
    use super::*;

    #[test]
    fn runs_of_any_length_hash_as_one() {
        let bytes: Vec<u8> = (0..8_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
        for most in [2, 33, 70, 300, 1_100, 5_000] {
            let (mut digest, mut start, mut length) = (Digest::new(Kernel::detected()), 0, 1);
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
                assert_eq!(digest.value(), hash(&bytes[..end]));
                (start, length) = (end, (length * 7 + 3) % most);
            }
        }
    }

    #[test]
    fn prefixes_are_the_hashes_of_whole_blocks() {
        let bytes: Vec<u8> = (0..20 * BLOCK_BYTES as u32 + 100).map(|n| ((n * n) >> 3) as u8).collect();
        let after = |count: usize| {
            let mut alone = Digest::new(Kernel::detected());
            alone.reset(count);
            alone.update(&bytes[..count * BLOCK_BYTES]);
            let mut last = None;
            alone.each_staged_prefix(|prefix| last = Some(prefix));
            last.or(alone.prefixes().last().copied()).unwrap()
        };
        let mut digest = Digest::new(Kernel::detected());
        for (most, run) in [(0, 7), (5, 1), (5, 100), (20, 31), (100, 1_000), (100, 2_048), (100, 9_000)] {
            digest.reset(most);
            let mut taken = 0;
            for run in bytes.chunks(run) {
                digest.update(run);
                taken += run.len();
                if taken % 5 == 0 {
                    digest.flush();
                }
                let mut prefixes = Vec::new();
                if taken % 3 == 0 || taken == bytes.len() {
                    prefixes.extend(digest.prefixes());
                    digest.each_staged_prefix(|prefix| prefixes.push(prefix));
                    assert_eq!(prefixes, (1..=(taken / BLOCK_BYTES).min(most)).map(after).collect::<Vec<_>>());
                }
            }
            assert_eq!(digest.value(), hash(&bytes));
        }
    }

    #[test]
    fn every_short_length_hashes_as_at_once() {
        let bytes: Vec<u8> = (0..300u32).map(|n| ((n * n) >> 2) as u8).collect();
        for end in 0..bytes.len() {
            let mut digest = Digest::new(Kernel::detected());
            digest.update(&bytes[..end]);
            assert_eq!(digest.value(), hash(&bytes[..end]), "of {end}");
        }
    }
}
