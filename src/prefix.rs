//! Keys: what of a request decides its home on the ring. All are XXH64 with seed 0. They hash values that the scan has
//! made ([`crate::scan::Facts::prefix`], `session`, `salt`), so that every shard, restart and machine makes the same of
//! the same request; beside them the names of models, and for the chains of engines a form and the salt of an event.

use xxhash_rust::xxh64::{Xxh64, xxh64};

pub use crate::scan::PrefixHash;

/// The key of a prompt prefix served by a pool. Each part is fixed in length or says its length, so that no
/// two requests meet because their parts read alike end to end.
pub fn key(pool_or_model: &[u8], salt: Option<u64>, prefix: &PrefixHash) -> u64 {
    keyed(b'p', pool_or_model, salt, prefix.hash)
}

/// What the chain of a prompt begins with, so that chains meet only where engines share: in one form of the prompt, one
/// model or adapter, one salt.
pub fn root(pool_or_model: &[u8], salt: Option<u64>) -> u64 {
    keyed(b'c', pool_or_model, salt, GENERIC_FORM)
}

/// The same of a prompt in the form that its engine gives it: whatever pool it is asked for, the engine's cache is one
/// for all that name its base model. `adapter`: the one that computes it, if any, by [`adapter_hash`].
pub fn form_root(adapter: Option<u64>, salt: Option<u64>, form: u64) -> u64 {
    let name = adapter.map(u64::to_le_bytes);
    keyed(b'f', name.as_ref().map_or(&[], |name| &name[..]), salt, form)
}

/// An adapter as [`form_root`] has it: equal to that of the same name in a body's `lora_path`.
pub fn adapter_hash(name: &[u8]) -> u64 {
    xxh64(name, 0)
}

/// The canonical form that [`crate::scan`] makes of every prompt, whatever the model's template. In the first one all
/// media were alike, the second and the fourth were hashed otherwise, in the third media were a few bytes: what is left
/// of their chains, in files and logs, is equal to none of today's.
const GENERIC_FORM: u64 = 5;

/// The key of a session in a pool. `session` is the XXH64 of its text: [`text_hash`], or
/// [`crate::scan::Facts::session`].
pub fn session_key(pool_or_model: &[u8], session: u64) -> u64 {
    keyed(b's', pool_or_model, None, session)
}

/// The hash of a text that stands beside a body, equal to that of the same text in one of its fields: a session in a
/// header field, the salt of an engine's event.
pub fn text_hash(text: &[u8]) -> u64 {
    xxh64(text, 0)
}

fn keyed(kind: u8, pool_or_model: &[u8], salt: Option<u64>, hash: u64) -> u64 {
    let mut key = Xxh64::new(0);
    key.update(&[kind]);
    key.update(&(pool_or_model.len() as u64).to_le_bytes());
    key.update(pool_or_model);
    match salt {
        None => key.update(&[0]),
        Some(salt) => {
            key.update(&[1]);
            key.update(&salt.to_le_bytes());
        }
    }
    key.update(&hash.to_le_bytes());
    key.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(hash: u64) -> PrefixHash {
        PrefixHash { hash, bytes: 1 }
    }

    #[test]
    fn keys_differ_in_every_part() {
        let keys = [
            key(b"m", None, &prefix(1)),
            key(b"n", None, &prefix(1)),
            key(b"m", None, &prefix(2)),
            key(b"m", Some(0), &prefix(1)),
            key(b"m", Some(1), &prefix(1)),
            key(b"m\0", None, &prefix(1)),
            root(b"m", None),
            form_root(Some(adapter_hash(b"m")), None, 1),
            form_root(None, None, 1),
            form_root(None, Some(1), 1),
            form_root(None, None, 2),
            session_key(b"m", 1),
            session_key(b"m", 2),
        ];
        let distinct: std::collections::HashSet<u64> = keys.into_iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    /// Fronts of different releases are to agree: a change of these values, or of how prompts are hashed, which is
    /// pinned in `scan::lanes`, moves every key of every fleet, every session, and leaves all that was kept of caches
    /// unfound. Computed by another implementation of XXH64.
    #[test]
    fn key_is_pinned() {
        assert_eq!(key(b"llama", Some(7), &prefix(0x1234)), 0x3af6_f7de_52cc_cc67);
        assert_eq!(session_key(b"llama", 7), 0x192b_b8e4_a3aa_fb42);
        assert_eq!(root(b"llama", Some(7)), 0x7e5a_5e53_694b_dfe8);
        assert_eq!(form_root(Some(adapter_hash(b"my-lora")), Some(7), 0x1234), 0x1021_07d1_9617_e092);
        assert_eq!(form_root(None, None, 0x1234), 0x1348_2cf3_b8ff_43a7);
    }
}
