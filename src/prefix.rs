//! Keys, which decide a request's home on the ring, and roots of chains. All are XXH64 with seed 0. They hash values
//! that the scan has made ([`crate::scan::Facts::prefix`], `session`, `salt`), so that every shard, restart and machine
//! makes the same of the same request, and names of models; for the chains of engines also a form and the salt of an
//! event.

use xxhash_rust::xxh64::{Xxh64, xxh64};

pub use crate::scan::PrefixHash;

/// Returns the key of a prompt prefix in a pool. Each part has a fixed length or is hashed with its length, so that
/// different parts never make the same bytes.
pub fn key(pool_or_model: &[u8], salt: Option<u64>, prefix: &PrefixHash) -> u64 {
    keyed(b'p', pool_or_model, salt, prefix.hash)
}

/// Returns the root of a prompt's chain. Chains meet only if engines can share what they compute: for one form of the
/// prompt, one model or adapter, one salt.
pub fn root(pool_or_model: &[u8], salt: Option<u64>) -> u64 {
    keyed(b'c', pool_or_model, salt, GENERIC_FORM)
}

/// Returns the root for a prompt in the form that its engine gives it: an engine has one cache for all pools with its
/// base model. `adapter`: the [`adapter_hash`] of the one that computes it, if any.
pub fn form_root(adapter: Option<u64>, salt: Option<u64>, form: u64) -> u64 {
    let name = adapter.map(u64::to_le_bytes);
    keyed(b'f', name.as_ref().map_or(&[], |name| &name[..]), salt, form)
}

/// Returns the hash of an adapter for [`form_root`], equal to that of the same name in a body's `lora_path`.
pub fn adapter_hash(name: &[u8]) -> u64 {
    xxh64(name, 0)
}

/// Number of the canonical form that [`crate::scan`] makes of every prompt, whatever the model's template. In form 1
/// all media were alike, forms 2 and 4 were hashed in other ways, in form 3 media were a few bytes. What is left of
/// their chains, in files and logs, equals none of today's.
const GENERIC_FORM: u64 = 5;

/// Returns the key of a session in a pool. `session` is the XXH64 of its text: [`text_hash`], or
/// [`crate::scan::Facts::session`].
pub fn session_key(pool_or_model: &[u8], session: u64) -> u64 {
    keyed(b's', pool_or_model, None, session)
}

/// Returns the hash of a text outside a body, equal to that of the same text in one of its fields: a session in a
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

    /// Fronts of different releases must agree: a change of these values, or of how prompts are hashed, which is pinned
    /// in `scan::lanes`, moves every key of every fleet, every session, and makes all that was kept of caches useless.
    /// Computed by another implementation of XXH64.
    #[test]
    fn key_is_pinned() {
        assert_eq!(key(b"llama", Some(7), &prefix(0x1234)), 0x3af6_f7de_52cc_cc67);
        assert_eq!(session_key(b"llama", 7), 0x192b_b8e4_a3aa_fb42);
        assert_eq!(root(b"llama", Some(7)), 0x7e5a_5e53_694b_dfe8);
        assert_eq!(form_root(Some(adapter_hash(b"my-lora")), Some(7), 0x1234), 0x1021_07d1_9617_e092);
        assert_eq!(form_root(None, None, 0x1234), 0x1348_2cf3_b8ff_43a7);
    }
}
