//! What requests show to be let in, as far as engines let it in. Engines judge keys, and shards choose before that: by
//! this they tell whom an engine knows from who may be anybody.
//!
//! Only what was let in is kept, so that who has no key drives nobody out. One that was driven out, or of whom two
//! shards told at once, is a stranger once more. While no engine asks for keys this costs one load for each request.

use std::num::NonZeroU64;

use crate::atomics::{AtomicBool, AtomicU64, Ordering};

/// So many lines of memory, of eight words each; a key takes one word for each pool and one for all of them.
const LINES: usize = if cfg!(feature = "modelled") { 1 } else { 1 << 10 };
const WORDS: usize = 8;
/// The word of a place that nobody has.
const NOBODY: u64 = 0;

/// The hash of what a request shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credential(NonZeroU64);

impl Credential {
    /// By its hash, of which all 64 bits have to be met by who would be taken for another.
    pub fn of(hash: u64) -> Credential {
        Credential(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }

    /// The same before the engines of one pool, which need not take what others take; `None`: before any.
    fn word(self, pool: Option<u16>) -> u64 {
        let apart = pool.map_or(0, |pool| (u64::from(pool) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        (self.0.get() ^ apart).max(NOBODY + 1)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Credentials {
    asked_for: AtomicBool,
    known: Box<[Line]>,
}

#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; WORDS]);

impl Default for Credentials {
    fn default() -> Self {
        let line = || Line(std::array::from_fn(|_| AtomicU64::new(NOBODY)));
        Credentials { asked_for: AtomicBool::new(false), known: (0..LINES).map(|_| line()).collect() }
    }
}

impl Credentials {
    /// Whether an engine ever let somebody not in.
    #[inline]
    pub fn are_asked_for(&self) -> bool {
        self.asked_for.load(Ordering::Relaxed)
    }

    /// Whether an engine of this pool let it in; `None`: of any.
    pub fn are_known(&self, credential: Credential, pool: Option<u16>) -> bool {
        let word = credential.word(pool);
        self.line(word).iter().any(|place| place.load(Ordering::Relaxed) == word)
    }

    /// An engine of this pool let it in.
    pub fn let_in(&self, credential: Credential, pool: u16) {
        for word in [Some(pool), None].map(|pool| credential.word(pool)) {
            let line = self.line(word);
            let place = |holds: u64| line.iter().find(|place| place.load(Ordering::Relaxed) == holds);
            if place(word).is_none() {
                let chance = (word >> u32::BITS) as usize % WORDS;
                place(NOBODY).unwrap_or(&line[chance]).store(word, Ordering::Relaxed);
            }
        }
    }

    /// An engine of this pool kept somebody out. What it showed, where that is known, may have been let in before.
    pub fn kept_out(&self, credential: Option<Credential>, pool: u16) {
        if !self.are_asked_for() {
            self.asked_for.store(true, Ordering::Relaxed);
        }
        let Some(word) = credential.map(|credential| credential.word(Some(pool))) else { return };
        for place in self.line(word).iter().filter(|place| place.load(Ordering::Relaxed) == word) {
            place.store(NOBODY, Ordering::Relaxed);
        }
    }

    fn line(&self, word: u64) -> &[AtomicU64; WORDS] {
        &self.known[word as usize % LINES].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_let_in_is_known_there_until_kept_out() {
        let credentials = Credentials::default();
        let (one, other) = (Credential::of(0), Credential::of(u64::MAX));
        assert!(!credentials.are_asked_for() && !credentials.are_known(one, Some(3)));
        credentials.let_in(one, 3);
        let known = |credential| [Some(3), Some(4), None].map(|pool| credentials.are_known(credential, pool));
        assert_eq!((known(one), known(other)), ([true, false, true], [false; 3]));
        credentials.kept_out(Some(other), 3);
        credentials.kept_out(None, 3);
        assert!(credentials.are_asked_for() && known(one)[0]);
        credentials.kept_out(Some(one), 3);
        assert_eq!(known(one), [false, false, true]);
    }

    #[test]
    fn of_more_than_there_is_room_for_the_last_are_known() {
        let credentials = Credentials::default();
        // By the golden ratio they are spread as hashes are.
        let of = |count: u64| Credential::of((count + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
        for count in 0..100_000 {
            credentials.let_in(of(count), 0);
            assert!(credentials.are_known(of(count), Some(0)) && credentials.are_known(of(count), None));
        }
        let known = (0..100_000).filter(|count| credentials.are_known(of(*count), Some(0))).count();
        assert!((2_000..=LINES * WORDS).contains(&known), "{known}");
    }
}
