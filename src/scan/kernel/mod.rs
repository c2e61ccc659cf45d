//! Byte runs: the loops in which a scan spends its time, apart from everything that knows JSON's meaning,
//! so that vector instructions can take their place.
//!
//! A [`Kernel`] is a table of five loops. [`portable`] has them for every CPU, [`wide`] once for all vector
//! instructions, which have a file each. Which table a CPU gets is found out when a scan is made, and no answer
//! depends on it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod escape;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod table;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod wide;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod words;

pub(super) use escape::{plain_escape, unicode_escape, wtf8};

use super::lanes::Lanes;

/// The loops of one instruction set.
pub struct Kernel {
    name: &'static str,
    /// [`Kernel::text_run`] of what lies beyond its first words.
    text_run: fn(&[u8]) -> usize,
    unescape: fn(&[u8], &mut [u8]) -> (usize, usize),
    token_ids: fn(&[u8], &mut [u8]) -> (usize, usize),
    skip: fn(&mut Skip, &[u8]) -> Option<usize>,
    hash: fn(&mut Lanes, &[u8], bool, &mut [u64]),
}

impl Kernel {
    /// The fastest one that this CPU has.
    pub fn detected() -> &'static Kernel {
        Kernel::available().next().unwrap_or(&portable::KERNEL)
    }

    /// The one that every CPU has.
    pub fn portable() -> &'static Kernel {
        &portable::KERNEL
    }

    /// All that this CPU has, the fastest first.
    pub fn available() -> impl Iterator<Item = &'static Kernel> {
        [
            #[cfg(target_arch = "x86_64")]
            avx512::available(),
            #[cfg(target_arch = "x86_64")]
            avx2::available(),
            #[cfg(target_arch = "aarch64")]
            neon::available(),
            Some(&portable::KERNEL),
        ]
        .into_iter()
        .flatten()
    }

    /// What its instructions are called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Length of the clean run at the start of a string's bytes: up to the first quote, backslash or control
    /// character, or all of them.
    #[inline]
    pub(super) fn text_run(&self, bytes: &[u8]) -> usize {
        let (near, far) = bytes.split_at(bytes.len().min(NEAR));
        let run = portable::run_in_words(near);
        if run < NEAR { run } else { NEAR + (self.text_run)(far) }
    }

    /// Decodes text: used bytes of `bytes`, written bytes of `out`. It stops, maybe at once, at whatever needs
    /// a closer look: the quote, an escape that is cut off or malformed, a lone surrogate, the end of either,
    /// or a clean run so long that [`Kernel::text_run`] and no copy are faster. Bytes of `out` behind what is
    /// written may have been overwritten.
    #[inline]
    pub(super) fn unescape(&self, bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
        if out.is_empty() { (0, 0) } else { (self.unescape)(bytes, out) }
    }

    /// Token ids, each with its comma: used bytes of `bytes`, and how many were written to `out` as four bytes,
    /// little-endian. It stops, maybe at once, at anything but a plain whole number below 2^32 with a comma.
    #[inline]
    pub(super) fn token_ids(&self, bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
        (self.token_ids)(bytes, out)
    }

    /// Skips to the end of the value. `Some(used)` when it ends within `bytes`, `None` when all of them belong
    /// to it.
    #[inline]
    pub(super) fn skip(&self, state: &mut Skip, bytes: &[u8]) -> Option<usize> {
        (self.skip)(state, bytes)
    }

    /// Has the lanes take whole steps, and writes the hash behind each of them to a slot: of all `steps` until there
    /// are no slots left, else of those that end a block.
    #[inline]
    pub(super) fn hash(&self, lanes: &mut Lanes, bytes: &[u8], steps: bool, slots: &mut [u64]) {
        (self.hash)(lanes, bytes, steps, slots);
    }
}

/// Where a skipped value stands: a container is over when its brackets balance, a string at its quote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Skip {
    /// Open brackets. Their kinds are not compared: nothing inside is looked at.
    pub depth: u64,
    /// Inside a string.
    pub in_string: bool,
    /// The byte before was a backslash that escapes the next one.
    pub escaped: bool,
}

/// Length of the white space at the start.
#[inline]
pub(super) fn white_space(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).unwrap_or(bytes.len())
}

/// Whether a number or literal may have this byte in it.
#[inline]
pub(super) fn is_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

/// Whether this byte may stand behind one.
#[inline]
pub(super) fn ends_scalar(byte: u8) -> bool {
    matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t')
}

/// Bytes compared at once.
pub(super) const BLOCK: usize = 64;
/// So many bytes are looked at word by word before the search for a far byte is set up.
const NEAR: usize = 16;

#[cfg(test)]
mod tests;
