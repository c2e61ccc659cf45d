//! The loops over byte runs in which a scan spends its time, kept apart from everything that knows JSON's meaning, so
//! that vector instructions can take their place.
//!
//! A [`Kernel`] is a table of five loops. [`portable`] has them for every CPU; [`wide`] has them once for all vector
//! instruction sets, each of which has a file of its own. The table for a CPU is chosen when a scan is made; no result
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
    /// [`Kernel::text_run`] after its first bytes.
    text_run: fn(&[u8]) -> usize,
    unescape: fn(&[u8], &mut [u8]) -> (usize, usize),
    token_ids: fn(&[u8], &mut [u8]) -> (usize, usize),
    skip: fn(&mut Skip, &[u8]) -> Option<usize>,
    hash: fn(&mut Lanes, &[u8], bool, &mut [u64]),
}

impl Kernel {
    /// Returns the fastest kernel that this CPU can run.
    pub fn detected() -> &'static Kernel {
        Kernel::available().next().unwrap_or(&portable::KERNEL)
    }

    /// Returns the kernel that every CPU can run.
    pub fn portable() -> &'static Kernel {
        &portable::KERNEL
    }

    /// Returns all kernels that this CPU can run, the fastest first.
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

    /// Name of its instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the length of the clean run at the start of a string's bytes: up to the first quote, backslash or
    /// control character, or all of them.
    #[inline]
    pub(super) fn text_run(&self, bytes: &[u8]) -> usize {
        let (near, far) = bytes.split_at(bytes.len().min(NEAR));
        let run = portable::run_in_words(near);
        if run < NEAR { run } else { NEAR + (self.text_run)(far) }
    }

    /// Decodes text; returns how many bytes of `bytes` were used and of `out` written. It stops, maybe at once, at
    /// anything that needs a closer look: the quote, an escape that is cut off or malformed, a lone surrogate, the end
    /// of either, or a clean run so long that [`Kernel::text_run`] without a copy is faster. Bytes of `out` after the
    /// written ones may have been overwritten.
    #[inline]
    pub(super) fn unescape(&self, bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
        if out.is_empty() { (0, 0) } else { (self.unescape)(bytes, out) }
    }

    /// Reads token ids with their commas; returns how many bytes of `bytes` were used, and how many ids were written to
    /// `out` as four bytes each, little-endian. It stops, maybe at once, at anything but a plain whole number below
    /// 2^32 with a comma.
    #[inline]
    pub(super) fn token_ids(&self, bytes: &[u8], out: &mut [u8]) -> (usize, usize) {
        (self.token_ids)(bytes, out)
    }

    /// Skips to the end of the value: `Some(used)` if it ends within `bytes`, `None` if all of them belong to it.
    #[inline]
    pub(super) fn skip(&self, state: &mut Skip, bytes: &[u8]) -> Option<usize> {
        (self.skip)(state, bytes)
    }

    /// Has the lanes take whole steps, as [`Lanes::take_steps`].
    #[inline]
    pub(super) fn hash(&self, lanes: &mut Lanes, bytes: &[u8], steps: bool, slots: &mut [u64]) {
        (self.hash)(lanes, bytes, steps, slots);
    }
}

/// How far a skipped value is: an object or array is over when its brackets balance, a string at its quote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Skip {
    /// Number of open brackets. Their kinds are not compared: nothing inside is looked at.
    pub depth: u64,
    /// Whether the next byte is inside a string.
    pub in_string: bool,
    /// Whether the last byte was a backslash that escapes the next one.
    pub escaped: bool,
}

/// Returns the length of the white space at the start.
#[inline]
pub(super) fn white_space(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).unwrap_or(bytes.len())
}

/// Whether a number or literal may contain this byte.
#[inline]
pub(super) fn is_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

/// Whether this byte may follow a number or literal.
#[inline]
pub(super) fn ends_scalar(byte: u8) -> bool {
    matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t')
}

/// Bytes compared at once.
pub(super) const BLOCK: usize = 64;
/// Number of bytes that are looked at word by word before the vector search is set up.
const NEAR: usize = 16;

#[cfg(test)]
mod tests;
