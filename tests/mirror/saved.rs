//! What is written down: damaged, foreign, made up.

use warmfront::mirror::{Mirror, Refused};
use warmfront::vocabulary::{Lead, Vocabulary};
use xxhash_rust::xxh64::xxh64;

use crate::{Engine, Held, plain};

/// Some of everything: held, shared, copied, gone and followed, ambiguous, unread.
fn engine() -> Engine {
    let mut engine = Engine::new(plain(200));
    let prompt: Vec<u32> = (10..90).collect();
    engine.store(&[1, 2, 3, 4, 5], None, &prompt);
    engine.store(&[1, 2], None, &prompt[..32]);
    engine.store(&[6], Some(2), &prompt[..16]);
    engine.store(&[7, 8], Some(99), &prompt[..32]);
    engine.store(&[9, 10, 11], None, &prompt[16..64]);
    engine.store(&[10], Some(3), &prompt[16..32]);
    engine.store(&[12, 13], None, &[200; 32]);
    engine.store(&[14, 15, 16], None, &prompt[32..80]);
    engine.remove(&[14]);
    engine
}

fn saved(engine: &Engine) -> Vec<u8> {
    let mut saved = Vec::new();
    engine.mirror.save(&mut saved);
    saved
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len().saturating_sub(8);
    let sum = xxh64(&bytes[..body], 0);
    bytes.truncate(body);
    bytes.extend(sum.to_le_bytes());
    bytes
}

#[test]
fn what_is_restored_goes_on_as_before() {
    let mut engine = engine();
    let mirror = Mirror::restore(&saved(&engine), 1_000).unwrap();
    let mut held = Held::default();
    mirror.retell(&mut held);
    assert_eq!(held, engine.held);
    let mut again = Engine { mirror, held, vocabulary: plain(200) };
    let prompt: Vec<u32> = (10..90).collect();
    for engine in [&mut engine, &mut again] {
        engine.store(&[14], None, &prompt[32..48]);
        engine.store(&[20], Some(16), &prompt[..16]);
        engine.store(&[21], Some(13), &prompt[..16]);
        engine.remove(&[1, 10, 2, 7]);
    }
    assert_eq!((&again.held, again.mirror.blocks()), (&engine.held, engine.mirror.blocks()));
    assert_eq!(saved(&again).len(), saved(&engine).len(), "but for the order");
    let (old, new) = (engine.mirror.counts(), again.mirror.counts());
    assert_eq!((new.stored, new.unknown, new.opaque), (3, 0, 1), "counts begin anew: {old:?}");
}

/// Where a block ends is known still, and with it whether the tokenizer puts a space before what follows.
#[test]
fn behind_a_special_token_the_tokenizers_own_space_is_left_out_still() {
    let tokens = [&b"<s>"[..], b" Hello", b" there", b"<|end|>"].map(Some);
    let vocabulary = || Vocabulary::new(&tokens, &[0, 3], Lead::BehindSpecial, &[0]);
    let mut engine = Engine::new(vocabulary());
    let prompt: Vec<u32> = [0, 1, 2, 3].into_iter().chain([1, 2].into_iter().cycle().take(30)).collect();
    engine.store(&[1], None, &prompt[..4]);
    let mirror = Mirror::restore(&saved(&engine), 1_000).unwrap();
    let mut held = Held::default();
    mirror.retell(&mut held);
    let mut again = Engine { mirror, held, vocabulary: vocabulary() };
    for engine in [&mut engine, &mut again] {
        engine.store(&[2], Some(1), &prompt[4..]);
    }
    assert!(engine.held.0.len() > 1);
    assert_eq!(again.held, engine.held);
}

#[test]
fn an_empty_one_is_one() {
    let mirror = Mirror::restore(&saved(&Engine::new(plain(1))), 0).unwrap();
    assert_eq!((mirror.blocks(), mirror.overflowed()), (0, false));
}

#[test]
fn damage_is_refused() {
    let whole = saved(&engine());
    for length in 0..whole.len() {
        assert!(Mirror::restore(&whole[..length], 100).is_err(), "{length} bytes of it");
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        assert!(Mirror::restore(&changed, 100).is_err(), "byte {at}");
    }
    let refused = |bytes: &[u8]| Mirror::restore(bytes, 100).err();
    assert_eq!(refused(b""), Some(Refused::Foreign));
    assert_eq!(refused(b"<html>not one of ours</html>"), Some(Refused::Foreign));
    assert_eq!(refused(&[&b"wfmirror\x01"[..], &whole[9..]].concat()), Some(Refused::Version));
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    assert_eq!(refused(&damaged), Some(Refused::Checksum));
    assert_eq!(refused(&sealed([&whole[..whole.len() - 8], &[0; 9]].concat())), Some(Refused::Nonsense));
    assert_eq!(Mirror::restore(&whole, 7).err(), Some(Refused::Beyond));
    assert!(Mirror::restore(&whole, 100).is_ok());
}

/// Changed in any byte and sealed again, it is refused or taken, and what is taken bears any events.
#[test]
fn what_cannot_be_is_refused_or_does_no_harm() {
    struct Deaf;
    impl warmfront::mirror::Sink for Deaf {
        fn hold(&mut self, _: Option<u64>, _: u64, _: u32) {}
        fn worth(&mut self, _: u64, _: u32) {}
        fn release(&mut self, _: u64) {}
    }
    let whole = saved(&engine());
    let vocabulary = plain(200);
    let reading = warmfront::mirror::Reading { vocabulary: &vocabulary, root: &crate::roots };
    let prompt: Vec<u32> = (10..90).collect();
    let (mut taken, mut refused) = (0, 0);
    for at in 22..whole.len() - 8 {
        for change in [1, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] ^= change;
            let Ok(mut mirror) = Mirror::restore(&sealed(changed), 100) else {
                refused += 1;
                continue;
            };
            taken += 1;
            for names in [&[1, 2, 3, 4, 5][..], &[14, 15, 16, 20, 21]] {
                mirror.stored(&crate::stored(names, None, &prompt), &reading, &mut Deaf);
            }
            mirror.retell(&mut Deaf);
            for name in (1..22).chain(1..22) {
                mirror.removed(&crate::removed(&[name]), &mut Deaf);
            }
            saved(&Engine { mirror, held: Held::default(), vocabulary: plain(1) });
        }
    }
    assert!(taken > 1_000 && refused > 300, "{taken} taken, {refused} refused");
}
