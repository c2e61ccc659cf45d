//! XXH64 of bytes that arrive in small runs: short runs are gathered so that the hash works on long ones.

use xxhash_rust::xxh64::Xxh64;

/// A streaming hash with a small buffer before it.
#[derive(Clone)]
pub(super) struct Digest {
    hash: Xxh64,
    gathered: [u8; GATHER_BYTES],
    length: usize,
}

const GATHER_BYTES: usize = 1024;

impl Digest {
    pub fn new() -> Self {
        Digest { hash: Xxh64::new(0), gathered: [0; GATHER_BYTES], length: 0 }
    }

    pub fn reset(&mut self) {
        self.hash.reset(0);
        self.length = 0;
    }

    /// Appends a run.
    #[inline]
    pub fn update(&mut self, run: &[u8]) {
        let end = self.length + run.len();
        if let Some(free) = self.gathered.get_mut(self.length..end) {
            free.copy_from_slice(run);
            self.length = end;
        } else {
            self.update_long(run);
        }
    }

    fn update_long(&mut self, run: &[u8]) {
        self.flush();
        if run.len() < GATHER_BYTES / 2 {
            self.update(run);
        } else {
            self.hash.update(run);
        }
    }

    /// Room to write the next bytes into; never less than a few dozen.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        if self.length > GATHER_BYTES - 64 {
            self.flush();
        }
        self.gathered.get_mut(self.length..).unwrap_or_default()
    }

    /// So many bytes of the room are written.
    #[inline]
    pub fn written(&mut self, length: usize) {
        self.length = (self.length + length).min(GATHER_BYTES);
    }

    fn flush(&mut self) {
        self.hash.update(self.gathered.get(..self.length).unwrap_or_default());
        self.length = 0;
    }

    /// The hash of everything so far.
    pub fn value(&self) -> u64 {
        let mut hash = self.hash.clone();
        hash.update(self.gathered.get(..self.length).unwrap_or_default());
        hash.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_any_length_hash_as_one() {
        let bytes: Vec<u8> = (0..20_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
        let (mut digest, mut start, mut length) = (Digest::new(), 0, 1);
        while start < bytes.len() {
            let end = (start + length).min(bytes.len());
            digest.update(&bytes[start..end]);
            assert_eq!(digest.value(), xxhash_rust::xxh64::xxh64(&bytes[..end], 0));
            (start, length) = (end, (length * 7 + 3) % 1_100);
        }
    }
}
