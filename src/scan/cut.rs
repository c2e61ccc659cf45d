//! A chain that grows by some bytes at a time and may branch anywhere. It is made of what the engine says it holds, and
//! equals the one that [`super::Renderer`] makes of a body in its engine's form.

use super::lanes::{Lanes, PIECE, linked};
use crate::limits::STEP_BYTES;

/// The hash state after some first bytes of a prompt. 64 bytes, to be copied where two prompts part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    lanes: Lanes,
    /// The last `left` bytes, which make no whole piece yet; zeros after them.
    rest: [u8; PIECE - 1],
    left: u8,
}

const _: () = assert!(size_of::<Cut>() == 64);

/// The end of a step. Equal `link`s mean equal first `at` bytes below the same root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes from the beginning of the prompt, a multiple of [`STEP_BYTES`]. If it is a multiple of
    /// [`crate::limits::BLOCK_BYTES`], too, `link` is that of a block.
    pub at: u64,
    /// A link of the chain.
    pub link: u64,
}

const _: () = assert!(STEP_BYTES.is_multiple_of(PIECE), "a step is whole pieces");

impl Default for Cut {
    fn default() -> Cut {
        Cut { lanes: Lanes::START, rest: [0; PIECE - 1], left: 0 }
    }
}

impl Cut {
    /// Number of bytes that [`Cut::to_bytes`] writes.
    pub const BYTES: usize = 8 * Lanes::WORDS + PIECE;

    /// Returns how many bytes were pushed.
    pub fn bytes(&self) -> u64 {
        self.lanes.bytes() + u64::from(self.left)
    }

    /// Returns the state as bytes, to be saved.
    pub fn to_bytes(&self) -> [u8; Cut::BYTES] {
        let mut out = [0; Cut::BYTES];
        let words = self.lanes.words().into_iter().flat_map(u64::to_le_bytes);
        out.iter_mut().zip(words.chain(self.rest).chain([self.left])).for_each(|(to, byte)| *to = byte);
        out
    }

    /// Restores a saved state; `None` if no pushed bytes can lead to it.
    pub fn from_bytes(bytes: &[u8; Cut::BYTES]) -> Option<Cut> {
        let (words, [rest @ .., left]) = bytes.split_last_chunk::<PIECE>()?;
        let words = words.as_chunks().0.try_into().ok().map(|words: [[u8; 8]; Lanes::WORDS]| words)?;
        let lanes = Lanes::of_words(words.map(u64::from_le_bytes))?;
        (usize::from(*left) < PIECE).then_some(Cut { lanes, rest: *rest, left: *left })
    }

    /// Pushes further bytes; calls `step` with each step that they end, below this root.
    pub fn push(&mut self, root: u64, mut bytes: &[u8], mut step: impl FnMut(Step)) {
        while !bytes.is_empty() {
            let left = usize::from(self.left);
            let (run, behind) = bytes.split_at(bytes.len().min(PIECE - left));
            let mut piece = [0; PIECE];
            piece[..left].copy_from_slice(&self.rest[..left]);
            piece[left..left + run.len()].copy_from_slice(run);
            bytes = behind;
            if left + run.len() < PIECE {
                (self.rest, self.left) = (*piece.first_chunk().unwrap_or(&self.rest), (left + run.len()) as u8);
                return;
            }
            (self.rest, self.left) = ([0; PIECE - 1], 0);
            self.lanes.take_piece(&piece);
            let at = self.lanes.bytes();
            if at.is_multiple_of(STEP_BYTES as u64) {
                step(Step { at, link: linked(root, self.lanes.value()) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest::Digest;
    use super::super::kernel::Kernel;
    use super::*;
    use crate::limits::BLOCK_BYTES;

    #[test]
    fn blocks_are_those_of_a_digest_however_it_is_pushed() {
        let bytes: Vec<u8> = (0..9 * BLOCK_BYTES as u32 + 100).map(|n| ((n * n) >> 3) as u8).collect();
        let mut digest = Digest::new(Kernel::detected());
        digest.reset(100);
        digest.update(&bytes);
        let mut expected = Vec::new();
        digest.flush();
        expected.extend(digest.prefixes().iter().map(|prefix| linked(7, *prefix)));
        for run in [1, 5, 31, 32, 33, 64, 100, 256, 1_000, 5_000] {
            let (mut cut, mut steps) = (Cut::default(), Vec::new());
            bytes.chunks(run).for_each(|run| cut.push(7, run, |step| steps.push(step)));
            let mut at_once = Cut::default();
            at_once.push(7, &bytes, |_| {});
            assert_eq!((cut, cut.bytes()), (at_once, bytes.len() as u64));
            let ends: Vec<u64> = steps.iter().map(|step| step.at).collect();
            assert_eq!(ends, (1..=bytes.len() / STEP_BYTES).map(|n| (n * STEP_BYTES) as u64).collect::<Vec<_>>());
            let blocks = steps.iter().filter(|step| step.at.is_multiple_of(BLOCK_BYTES as u64));
            assert_eq!(blocks.map(|step| step.link).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn what_is_written_down_goes_on_as_before() {
        let bytes: Vec<u8> = (0..1_000u32).map(|n| ((n * n) >> 3) as u8).collect();
        for at in [0, 1, 31, 32, 63, 64, 100, 640] {
            let (mut cut, mut whole, mut steps) = (Cut::default(), Vec::new(), Vec::new());
            bytes[..at].chunks(5).for_each(|run| cut.push(7, run, |step| whole.push(step)));
            steps.clone_from(&whole);
            assert!(cut.rest[usize::from(cut.left)..].iter().all(|byte| *byte == 0), "zeros behind {at}");
            let mut again = Cut::from_bytes(&cut.to_bytes()).unwrap();
            assert_eq!(again, cut);
            cut.push(7, &bytes[at..], |step| whole.push(step));
            again.push(7, &bytes[at..], |step| steps.push(step));
            assert_eq!((again, steps), (cut, whole));
        }
        assert_eq!(Cut::from_bytes(&[0xff; Cut::BYTES]), None, "its bytes would be more than a count holds");
    }

    /// A saved file may contain anything: a state that no bytes lead to is refused.
    #[test]
    fn what_was_never_pushed_is_not_taken() {
        let written = |bytes: u64, left: u8| {
            let mut written = Cut::default().to_bytes();
            written[..8].copy_from_slice(&bytes.to_le_bytes());
            written[Cut::BYTES - 1] = left;
            Cut::from_bytes(&written)
        };
        for (bytes, left) in [(1 << 48, 0), (u64::MAX - 15, 15), (1, 0), (15, 15), (17, 0), (0, 16), (64, 255)] {
            assert_eq!(written(bytes, left), None, "{bytes} and {left}");
        }
        for (bytes, left) in [((1 << 48) - 16, 15), (16, 0), (240, 15)] {
            let mut cut = written(bytes, left).unwrap();
            cut.push(7, &[0x5a; 1_000], |_| {});
            assert_eq!(cut.bytes(), bytes + u64::from(left) + 1_000);
        }
    }

    #[test]
    fn steps_are_those_of_a_digest_however_it_is_pushed() {
        let bytes: Vec<u8> = (0..20 * BLOCK_BYTES as u32 + 100).map(|n| ((n * n) >> 3) as u8).collect();
        let mut expected = Vec::new();
        Cut::default().push(7, &bytes, |step| expected.push(step.link));
        for (most, run) in [(0, 7), (5, 1), (5, 5_000), (33, 100), (70, 31), (1_000, 32), (1_000, 96), (1_000, 3_000)] {
            let mut digest = Digest::stepped(Kernel::detected(), most);
            digest.reset(most);
            for (place, run) in bytes.chunks(run).enumerate() {
                digest.update(run);
                if place % 3 == 0 {
                    digest.flush();
                }
            }
            let mut links = Vec::new();
            digest.flush();
            links.extend(digest.prefixes().iter().map(|prefix| linked(7, *prefix)));
            assert_eq!(links, expected[..most.min(expected.len())], "{most} in runs of {run}");
        }
    }
}
