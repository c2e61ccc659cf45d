//! Tells one medium from another without hashing all of it. Engines name the blocks after an image by the image too, so
//! that a hit must not be predicted if images differ.
//!
//! Short values (addresses, ids) are hashed whole. Of longer ones the length, the head, the end, and one byte of each
//! stretch in between take part: to hash two megabytes of base64 would cost several times as much as to skip them.
//! Compressed media that differ anywhere differ from there on, in length or in nearly every byte, and a PNG ends with
//! checksums of all its pixels. Not told apart are two media of equal length that differ only within one stretch, as
//! uncompressed bitmaps may.

use super::digest::Digest;
use super::kernel::Kernel;
use super::lanes::{PRIME_1, folded};

/// Bytes at the value's start that are all hashed, its quote or bracket included.
const HEAD_BYTES: u64 = 4_096;
/// Bytes at its end that are all hashed. In base64 an image's last checksums and the JSON after them are a quarter of
/// that.
const END_BYTES: usize = 256;
/// One byte of so many is hashed in between. It is a single byte, since a longer sample could be cut by the end of a
/// piece; a sample of a quarter of the stretch would tell more bitmaps apart, and cost a tenth of the time that it
/// takes to skip them.
const STRETCH_BYTES: usize = 2_048;

/// The sample of one value, however it is cut into pieces.
pub(super) struct Sample {
    head: Digest,
    length: u64,
    /// Hash of the bytes sampled after the head: a sum over places, so that none depends on the one before.
    between: u64,
    /// The last bytes after the head.
    end: [u8; END_BYTES],
    end_length: usize,
}

impl Sample {
    pub fn new(kernel: &'static Kernel) -> Self {
        Sample { head: Digest::new(kernel), length: 0, between: 0, end: [0; END_BYTES], end_length: 0 }
    }

    /// Begins a value.
    pub fn begin(&mut self) {
        self.head.reset(0);
        (self.length, self.between, self.end_length) = (0, 0, 0);
    }

    /// Takes more of the value, as the body has it.
    pub fn take(&mut self, bytes: &[u8]) {
        let left = HEAD_BYTES.saturating_sub(self.length) as usize;
        let (head, rest) = bytes.split_at(left.min(bytes.len()));
        self.head.update(head);
        self.length += head.len() as u64;
        if !rest.is_empty() {
            self.take_between(rest);
            self.keep_end(rest);
            self.length += rest.len() as u64;
        }
    }

    /// Ends the value; returns the hash of its sample.
    pub fn value(&mut self) -> u64 {
        self.head.update(self.end.get(..self.end_length).unwrap_or_default());
        self.head.update(&self.between.to_le_bytes());
        self.head.update(&self.length.to_le_bytes());
        self.head.value()
    }

    fn take_between(&mut self, bytes: &[u8]) {
        let mut place = self.length.next_multiple_of(STRETCH_BYTES as u64);
        let before = (place - self.length) as usize;
        for byte in bytes.iter().skip(before).step_by(STRETCH_BYTES) {
            // Place and byte have no bits in common. The point is squared, since sums of linear values would tell
            // little.
            let point = (place | u64::from(*byte)).wrapping_mul(PRIME_1);
            self.between = self.between.wrapping_add(folded(point, !point));
            place += STRETCH_BYTES as u64;
        }
    }

    fn keep_end(&mut self, bytes: &[u8]) {
        let kept = self.end_length.min(END_BYTES.saturating_sub(bytes.len()));
        self.end.copy_within(self.end_length - kept..self.end_length, 0);
        let last = bytes.get(bytes.len().saturating_sub(END_BYTES)..).unwrap_or(bytes);
        if let Some(free) = self.end.get_mut(kept..kept + last.len()) {
            free.copy_from_slice(last);
        }
        self.end_length = kept + last.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(length: usize) -> Vec<u8> {
        let mut state = 0x5eed_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            b'A' + (state >> 40) as u8 % 26
        };
        (0..length).map(|_| byte()).collect()
    }

    fn sampled<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u64 {
        let mut sample = Sample::new(Kernel::detected());
        sample.take(b"what was there before");
        sample.begin();
        pieces.into_iter().for_each(|piece| sample.take(piece));
        sample.value()
    }

    #[test]
    fn cuts_change_nothing() {
        for length in [0, 1, 255, 4_095, 4_096, 4_097, 4_351, 4_352, 4_353, 6_144, 6_145, 9_001, 70_000] {
            let bytes = value(length);
            let whole = sampled([&bytes[..]]);
            for size in [1, 3, 255, 256, 257, 2_047, 2_048, 2_049, 4_096, 16_384] {
                assert_eq!(sampled(bytes.chunks(size)), whole, "{length} bytes by {size}");
            }
        }
    }

    /// A change as long as a stretch, or at either end, is noticed, and so is another length.
    #[test]
    fn what_differs_is_told_apart() {
        let bytes = value(70_000);
        let whole = sampled([&bytes[..]]);
        let changed = |from: usize, to: usize| {
            let mut bytes = bytes.clone();
            bytes[from..to].iter_mut().for_each(|byte| *byte ^= 1);
            sampled([&bytes[..]])
        };
        let head = (0..4_096).map(|place| (place, place + 1));
        let end = (69_744..70_000).map(|place| (place, place + 1));
        let stretches = (4_096..67_000).step_by(97).map(|place| (place, place + STRETCH_BYTES));
        let rests = (4_096..70_000).step_by(997).map(|place| (place, 70_000));
        for (from, to) in head.chain(end).chain(stretches).chain(rests) {
            assert_ne!(changed(from, to), whole, "{from}..{to}");
        }
        let distinct: std::collections::HashSet<u64> = (0..9_000).map(|length| sampled([&bytes[..length]])).collect();
        assert_eq!(distinct.len(), 9_000);
    }

    /// The sum of the bytes in between depends on their places, too.
    #[test]
    fn places_matter() {
        let bytes = value(70_000);
        let whole = sampled([&bytes[..]]);
        for (one, other) in [(2, 3), (3, 33), (20, 21)].map(|(one, other)| (STRETCH_BYTES * one, STRETCH_BYTES * other))
        {
            let mut swapped = bytes.clone();
            swapped.swap(one, other);
            assert!(bytes[one] == bytes[other] || sampled([&swapped[..]]) != whole, "{one} and {other}");
        }
    }
}
