//! How many tokens a prompt has up to a link: noted by control, read by shards. A table of fixed size without locks
//! that may forget.
//!
//! A word says both, the link's tag and its tokens, so that what is read always belongs together. A bucket is a cache
//! line: its words are in the order in which they were noted last, and the one noted longest ago goes for a new one. A
//! reader may miss a link that is being noted again, as if it were forgotten; not while others are noted.
//!
//! A word keeps 40 bits of a link, and others choose the bucket: the tokens of another link are taken for this one's
//! with a probability of at most 8 / 2^40, or 10^-11.

use super::rows::{LINE, Line, prefetch};
use crate::atomics::Ordering;
use crate::pages::filled;

/// The lower bits of a word. 0: the word is free.
const TOKENS: u64 = (1 << 24) - 1;
const TAG_FROM: u32 = TOKENS.trailing_ones();

#[derive(Debug)]
pub(super) struct Lengths {
    buckets: Box<[Line]>,
}

impl Lengths {
    /// Buckets for so many links.
    fn buckets(links: usize) -> usize {
        links.div_ceil(LINE).max(1)
    }

    /// Bytes of a table for so many links.
    pub(super) fn bytes(links: usize) -> Option<usize> {
        Self::buckets(links).checked_mul(size_of::<Line>())
    }

    pub(super) fn new(links: usize) -> Lengths {
        Lengths { buckets: filled(Self::buckets(links), Line::default) }
    }

    #[inline]
    fn bucket(&self, link: u64) -> &Line {
        // By those bits foremost that the tag leaves out.
        let spread = link.rotate_right(TAG_FROM) >> 32;
        &self.buckets[((spread * self.buckets.len() as u64) >> 32) as usize]
    }

    /// Notes it as the youngest of its bucket. What no word can say (no tokens, or 2^24) is not noted. For one thread:
    /// of two at once one may lose what it notes.
    pub(super) fn note(&self, link: u64, tokens: u32) {
        if tokens == 0 || u64::from(tokens) > TOKENS {
            return;
        }
        let Line(words) = self.bucket(link);
        let gives_way = |word: u64| word & TOKENS == 0 || is_of(word, link);
        let place = words.iter().position(|word| gives_way(word.load(Ordering::Relaxed))).unwrap_or(LINE - 1);
        // From the last on, so that a reader, who goes from the first on, meets each word that stays. Release, for the
        // same order.
        for at in (1..=place).rev() {
            words[at].store(words[at - 1].load(Ordering::Relaxed), Ordering::Release);
        }
        words[0].store(link & !TOKENS | u64::from(tokens), Ordering::Release);
    }

    /// Prefetches what [`Lengths::tokens`] reads.
    #[inline]
    pub(super) fn prefetch(&self, link: u64) {
        prefetch(self.bucket(link));
    }

    /// Tokens up to this link, if they were noted and not forgotten.
    #[inline]
    pub(super) fn tokens(&self, link: u64) -> Option<u32> {
        let words = self.bucket(link).0.iter().map(|word| word.load(Ordering::Acquire));
        let word = words.filter(|word| word & TOKENS != 0).find(|&word| is_of(word, link))?;
        Some((word & TOKENS) as u32)
    }
}

#[inline]
fn is_of(word: u64, link: u64) -> bool {
    word ^ link <= TOKENS
}
