//! The credentials that engines have let in, as hashes. Engines judge keys, but shards choose before that: from this
//! table they tell a client whose key an engine has taken from a stranger, who may be anybody.
//!
//! A credential is kept only if its engine refuses others: an engine without keys lets everybody in, and clients
//! without a key could otherwise drive known ones out of the table. A credential that was driven out, or that two
//! shards wrote at once, counts as a stranger's again. While no engine asks for keys this costs one load per request.

use std::num::NonZeroU64;

use crate::atomics::{AtomicBool, AtomicU64, Ordering};
use crate::limits::POOLS_MAX;

/// Cache lines of the table, of eight words each. A key takes one word for each pool and one for all of them.
const LINES: usize = if cfg!(feature = "modelled") { 1 } else { 1 << 10 };
const WORDS: usize = 8;
/// The word of a free place.
const NOBODY: u64 = 0;
/// Words of 64 bits, one for each pool: whether it has kept anybody out.
const POOL_WORDS: usize = if cfg!(feature = "modelled") { 1 } else { POOLS_MAX / u64::BITS as usize };

/// A group of paths that engines guard together. vLLM 0.32 guards the paths that begin with one of four prefixes, older
/// releases those with the first, other engines all paths. So a refusal in one realm says nothing of another: if that
/// is not guarded, anybody is let in there with any key, and would be remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Realm {
    /// All other paths.
    Rest,
    /// `/v1`.
    V1,
    /// `/v2`.
    V2,
    /// `/inference`.
    Inference,
    /// `/cohere`.
    Cohere,
}

const REALMS: usize = Realm::Cohere as usize + 1;

impl Realm {
    /// The realm of a path. Compares as vLLM does: `/v10` begins with `/v1`.
    pub fn of_path(path: &[u8]) -> Realm {
        match path {
            _ if path.starts_with(b"/v1") => Realm::V1,
            _ if path.starts_with(b"/v2") => Realm::V2,
            _ if path.starts_with(b"/inference") => Realm::Inference,
            _ if path.starts_with(b"/cohere") => Realm::Cohere,
            _ => Realm::Rest,
        }
    }
}

/// The hash of a request's credentials.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credential(NonZeroU64);

impl Credential {
    /// Wraps the hash. To be taken for another client a stranger has to meet all its 64 bits.
    pub fn of(hash: u64) -> Credential {
        Credential(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }

    /// Its word for one pool, whose engines need not take the keys that others take; `None`: for all pools.
    fn word(self, pool: Option<u16>) -> u64 {
        let apart = pool.map_or(0, |pool| (u64::from(pool) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        (self.0.get() ^ apart).max(NOBODY + 1)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Credentials {
    /// By realm.
    asked_for: [AskedFor; REALMS],
    known: Box<[Line]>,
    /// How many words were replaced by others.
    driven_out: AtomicU64,
}

/// Which pools have ever kept anybody out of one realm.
#[derive(Debug)]
struct AskedFor {
    by_any: AtomicBool,
    /// One bit for each pool.
    by_pool: Box<[AtomicU64]>,
}

impl Default for AskedFor {
    fn default() -> Self {
        let by_pool = (0..POOL_WORDS).map(|_| AtomicU64::new(0)).collect();
        AskedFor { by_any: AtomicBool::new(false), by_pool }
    }
}

impl AskedFor {
    fn bit(&self, pool: u16) -> (&AtomicU64, u64) {
        let (word, bit) = (usize::from(pool) / u64::BITS as usize, u32::from(pool) % u64::BITS);
        (&self.by_pool[word % POOL_WORDS], 1 << bit)
    }
}

#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; WORDS]);

impl Default for Credentials {
    fn default() -> Self {
        let line = || Line(std::array::from_fn(|_| AtomicU64::new(NOBODY)));
        let known = (0..LINES).map(|_| line()).collect();
        Credentials { asked_for: Default::default(), known, driven_out: AtomicU64::new(0) }
    }
}

impl Credentials {
    /// Whether an engine of this pool has ever kept anybody out of the realm; `None`: of any pool.
    #[inline]
    pub fn are_asked_for(&self, realm: Realm, pool: Option<u16>) -> bool {
        let asked_for = &self.asked_for[realm as usize];
        let by_any = asked_for.by_any.load(Ordering::Relaxed);
        by_any
            && pool.is_none_or(|pool| {
                let (word, bit) = asked_for.bit(pool);
                word.load(Ordering::Relaxed) & bit != 0
            })
    }

    /// Whether an engine of this pool has let this credential in; `None`: of any pool.
    pub fn are_known(&self, credential: Credential, pool: Option<u16>) -> bool {
        let word = credential.word(pool);
        self.line(word).iter().any(|place| place.load(Ordering::Relaxed) == word)
    }

    /// Notes that an engine of this pool, which keeps others out, let this credential in.
    pub fn let_in(&self, credential: Credential, pool: u16) {
        for word in [Some(pool), None].map(|pool| credential.word(pool)) {
            let line = self.line(word);
            let place = |holds: u64| line.iter().find(|place| place.load(Ordering::Relaxed) == holds);
            if place(word).is_none() {
                let place = place(NOBODY).unwrap_or_else(|| &line[self.chance()]);
                place.store(word, Ordering::Relaxed);
            }
        }
    }

    /// The place of a full line to replace, a different one each time. If a key always replaced the same place, two
    /// keys in use could drive each other out for ever, beside words that nobody uses any more.
    fn chance(&self) -> usize {
        let count = self.driven_out.fetch_add(1, Ordering::Relaxed);
        // Multiplied by the golden ratio, so that no pattern of keys keeps step with it.
        (count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - WORDS.ilog2())) as usize
    }

    /// Notes that an engine of this pool refused a request, and forgets its credential, if known: it may have been let
    /// in before.
    pub fn kept_out(&self, credential: Option<Credential>, realm: Realm, pool: u16) {
        if !self.are_asked_for(realm, Some(pool)) {
            let asked_for = &self.asked_for[realm as usize];
            let (word, bit) = asked_for.bit(pool);
            word.fetch_or(bit, Ordering::Relaxed);
            asked_for.by_any.store(true, Ordering::Relaxed);
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
        assert!(!credentials.are_asked_for(Realm::V1, None) && !credentials.are_known(one, Some(3)));
        credentials.let_in(one, 3);
        let known = |credential| [Some(3), Some(4), None].map(|pool| credentials.are_known(credential, pool));
        assert_eq!((known(one), known(other)), ([true, false, true], [false; 3]));
        credentials.kept_out(Some(other), Realm::V1, 3);
        credentials.kept_out(None, Realm::V1, 3);
        assert!(credentials.are_asked_for(Realm::V1, None) && known(one)[0]);
        credentials.kept_out(Some(one), Realm::V1, 3);
        assert_eq!(known(one), [false, false, true]);
    }

    /// `GUARDED_PREFIX` of vLLM 0.32, and what its other servers leave open.
    #[test]
    fn realms_are_what_vllm_guards() {
        for (paths, realm) in [
            (&["/v1/completions", "/v1", "/v10/x", "/v1?x"][..], Realm::V1),
            (&["/v2/embed", "/v2/rerank"], Realm::V2),
            (&["/inference/v1/generate"], Realm::Inference),
            (&["/cohere/v2/chat"], Realm::Cohere),
            (
                &["/invocations", "/pooling", "/classify", "/score", "/rerank", "/version", "/", "", "/x/v1/"],
                Realm::Rest,
            ),
        ] {
            paths.iter().for_each(|path| assert_eq!(Realm::of_path(path.as_bytes()), realm, "{path}"));
        }
    }

    #[test]
    fn keys_are_asked_for_where_somebody_was_kept_out_alone() {
        let credentials = Credentials::default();
        let asked =
            |realm| [None, Some(2), Some(66), Some(u16::MAX)].map(|pool| credentials.are_asked_for(realm, pool));
        credentials.kept_out(None, Realm::V1, 66);
        assert_eq!((asked(Realm::V1), asked(Realm::Rest)), ([true, false, true, false], [false; 4]));
        credentials.kept_out(None, Realm::Rest, 2);
        assert_eq!((asked(Realm::V1), asked(Realm::Rest)), ([true, false, true, false], [true, true, false, false]));
    }

    /// By the golden ratio they are spread as hashes are.
    fn of(count: u64) -> Credential {
        Credential::of((count + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29))
    }

    #[test]
    fn keys_in_use_are_soon_all_known_behind_many_that_are_not() {
        let credentials = Credentials::default();
        (1_000..101_000).for_each(|count| credentials.let_in(of(count), 0));
        let strangers = |_| {
            let is_strange = |count: &u64| {
                let known = credentials.are_known(of(*count), Some(0));
                credentials.let_in(of(*count), 0);
                !known
            };
            (0..1_000).filter(is_strange).count()
        };
        let rounds: Vec<usize> = (0..20).map(strangers).collect();
        assert!(rounds[0] > 900 && rounds[10..].iter().all(|strangers| *strangers == 0), "{rounds:?}");
    }

    #[test]
    fn of_more_than_there_is_room_for_the_last_are_known() {
        let credentials = Credentials::default();
        for count in 0..100_000 {
            credentials.let_in(of(count), 0);
            assert!(credentials.are_known(of(count), Some(0)) && credentials.are_known(of(count), None));
        }
        let known = (0..100_000).filter(|count| credentials.are_known(of(*count), Some(0))).count();
        assert!((2_000..=LINES * WORDS).contains(&known), "{known}");
    }
}
