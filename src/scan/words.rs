//! Short values that are kept while they arrive: strings, numbers, hashes of strings, names of session fields.

use xxhash_rust::xxh64::Xxh64;

use super::text::Taker;
use super::{MODEL_BYTES_MAX, SESSION_FIELDS_MAX};

/// Longest number that is read; a longer one is unknown, not an error.
const SCALAR_BYTES_MAX: usize = 24;

/// A value of at most so many bytes. Of a longer one only that it is too long is known.
pub(super) struct Short<const MOST: usize> {
    bytes: [u8; MOST],
    length: usize,
    over: bool,
}

/// A string, decoded: a key, a model, a role.
pub(super) type Word = Short<MODEL_BYTES_MAX>;

/// A number or literal.
pub(super) type Scalar = Short<SCALAR_BYTES_MAX>;

impl<const MOST: usize> Short<MOST> {
    pub fn new() -> Self {
        Short { bytes: [0; MOST], length: 0, over: false }
    }

    pub fn clear(&mut self) {
        (self.length, self.over) = (0, false);
    }

    /// Appends a run, or notes that the value is too long.
    #[inline]
    pub fn put(&mut self, run: &[u8]) {
        let end = self.length + run.len();
        match self.bytes.get_mut(self.length..end) {
            Some(free) => {
                free.copy_from_slice(run);
                self.length = end;
            }
            None => self.over = true,
        }
    }

    /// Returns the value, unless it was too long.
    #[inline]
    pub fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length).filter(|_| !self.over)
    }
}

impl Word {
    pub fn is_empty(&self) -> bool {
        self.length == 0 && !self.over
    }

    /// Sets the value; `None`: it is too long.
    pub fn set(&mut self, text: Option<&[u8]>) {
        self.clear();
        match text {
            Some(text) => self.put(text),
            None => self.over = true,
        }
    }
}

impl Taker for Word {
    #[inline]
    fn take(&mut self, run: &[u8]) -> usize {
        self.put(run);
        run.len()
    }
}

/// A string of any length of which only the hash is needed: a salt, a session key.
pub(super) struct Opaque {
    hash: Xxh64,
    empty: bool,
}

impl Opaque {
    pub fn new() -> Self {
        Opaque { hash: Xxh64::new(0), empty: true }
    }

    pub fn clear(&mut self) {
        self.hash.reset(0);
        self.empty = true;
    }

    /// Returns its XXH64; `None` if it is empty: an empty string names no one.
    pub fn value(&self) -> Option<u64> {
        (!self.empty).then(|| self.hash.digest())
    }
}

impl Taker for Opaque {
    fn take(&mut self, run: &[u8]) -> usize {
        self.hash.update(run);
        self.empty &= run.is_empty();
        run.len()
    }
}

impl Scalar {
    /// Returns its bytes; none if it is too long.
    pub fn text(&self) -> &[u8] {
        self.get().unwrap_or_default()
    }

    /// Returns it as a whole number; `None` for everything else, such as fractions and more than 64 bits.
    pub fn integer(&self) -> Option<u64> {
        let digits = self.text();
        if digits.is_empty() {
            return None;
        }
        digits.iter().try_fold(0u64, |value, &byte| {
            let digit = (byte as char).to_digit(10)?;
            value.checked_mul(10)?.checked_add(digit as u64)
        })
    }

    /// Returns it as a whole number with or without a sign.
    pub fn signed(&self) -> Option<i64> {
        std::str::from_utf8(self.text()).ok()?.parse().ok()
    }
}

/// Names of session fields, end to end.
pub(super) struct SessionNames {
    bytes: Vec<u8>,
    ends: [usize; SESSION_FIELDS_MAX],
    count: usize,
}

impl SessionNames {
    pub fn new() -> Self {
        SessionNames { bytes: Vec::new(), ends: [0; SESSION_FIELDS_MAX], count: 0 }
    }

    /// Takes the names of a plan, in reused memory.
    pub fn set(&mut self, names: &[Box<[u8]>]) {
        self.bytes.clear();
        self.count = 0;
        for (name, end) in names.iter().zip(&mut self.ends) {
            self.bytes.extend_from_slice(name);
            *end = self.bytes.len();
            self.count += 1;
        }
    }

    /// Returns the place of a name in the list.
    pub fn place(&self, name: &[u8]) -> Option<u8> {
        let mut start = 0;
        for (place, &end) in self.ends.iter().take(self.count).enumerate() {
            if self.bytes.get(start..end) == Some(name) {
                return Some(place as u8);
            }
            start = end;
        }
        None
    }

    /// Returns how many names there are.
    pub fn count(&self) -> usize {
        self.count
    }
}
