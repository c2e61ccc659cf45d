//! What there is no room for.

use warmfront::mirror::{Mirror, Reading};
use warmfront::vocabulary::{Lead, Vocabulary};

use crate::rules::even;
use crate::{Held, plain, removed, roots, stored};

#[test]
fn no_more_blocks_than_there_is_room_for() {
    let (mut mirror, mut held, vocabulary) = (Mirror::new(3), Held::default(), plain(200));
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let prompt = even(0, 80);
    mirror.stored(&stored(&[1, 2, 3, 4, 5], None, &prompt), &reading, &mut held);
    assert_eq!((mirror.blocks(), mirror.counts().beyond, mirror.overflowed(), held.0.len()), (3, 2, true, 3));
    mirror.stored(&stored(&[3], Some(2), &prompt[32..48]), &reading, &mut held);
    assert_eq!(mirror.counts().copies, 1, "a copy takes no room");
    mirror.removed(&removed(&[4]), &mut held);
    assert_eq!(mirror.counts().unknown, 1);
    mirror.removed(&removed(&[2]), &mut held);
    mirror.stored(&stored(&[8], None, &prompt[..16]), &reading, &mut held);
    mirror.stored(&stored(&[2], Some(1), &prompt[16..32]), &reading, &mut held);
    assert_eq!(
        (mirror.blocks(), mirror.counts().beyond),
        (3, 3),
        "one that is gone and followed has no place of its own"
    );
    mirror.cleared();
    assert_eq!((mirror.blocks(), mirror.overflowed()), (0, false));
}

/// vLLM tells of reused blocks again where a request asks for that, and of their end once: copies that are none stay.
#[test]
fn who_told_of_more_than_it_can_hold_is_over_until_that_is_forgotten() {
    let (mut mirror, mut held, vocabulary) = (Mirror::new(3), Held::default(), plain(200));
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let is = |mirror: &Mirror| (mirror.blocks(), mirror.is_overfull(), mirror.overflowed());
    for name in 1..=4 {
        for _ in 0..2 {
            mirror.stored(&stored(&[name], None, &even(name as u32, 16)), &reading, &mut held);
        }
        mirror.removed(&removed(&[name]), &mut held);
    }
    assert_eq!(is(&mirror), (3, true, true));
    let again = |mirror: &Mirror| {
        let mut bytes = Vec::new();
        mirror.save(&mut bytes);
        Mirror::restore(&bytes, 3).unwrap()
    };
    assert_eq!(is(&again(&mirror)), is(&mirror));
    mirror.give_up();
    mirror.stored(&stored(&[5], None, &even(5, 16)), &reading, &mut held);
    assert_eq!(is(&mirror), (1, false, true));
    assert_eq!(is(&again(&mirror)), is(&mirror));
    mirror.cleared();
    assert_eq!(is(&mirror), (0, false, false));
}

/// Large blocks have the room of several each, which makes them no more.
#[test]
fn no_more_large_blocks_than_an_engine_may_have() {
    let (mut mirror, mut held, vocabulary) = (Mirror::new(Mirror::blocks_for(2, 64)), Held::default(), plain(200));
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    mirror.bound(2);
    for name in 1..=2 {
        mirror.stored(&stored(&[name], None, &even(name as u32, 64)), &reading, &mut held);
    }
    assert_eq!((mirror.blocks(), mirror.overflowed(), mirror.room()), (2, false, 4));
    let mut larger = mirror.grown(8).unwrap();
    for mirror in [&mut mirror, &mut larger] {
        mirror.stored(&stored(&[3], None, &even(3, 64)), &reading, &mut held);
        assert_eq!((mirror.blocks(), mirror.is_overfull()), (2, true));
    }
    mirror.bound(9);
    mirror.stored(&stored(&[3, 4], None, &even(3, 128)), &reading, &mut held);
    assert_eq!((mirror.blocks(), mirror.counts().beyond), (4, 1));
    mirror.bound(1);
    mirror.stored(&stored(&[5], None, &even(5, 64)), &reading, &mut held);
    assert_eq!((mirror.blocks(), mirror.counts().beyond), (4, 2), "an engine that has fewer");
}

#[test]
fn no_more_links_than_there_is_room_for() {
    let vocabulary = plain(200);
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let prompt = even(0, 9 * 64);
    let (mut mirror, mut held) = (Mirror::new(2), Held::default());
    mirror.stored(&stored(&[1], None, &prompt), &reading, &mut held);
    assert_eq!((mirror.blocks(), mirror.counts().beyond, mirror.overflowed(), held.0.len()), (1, 1, false, 0));
    let (mut mirror, mut held) = (Mirror::new(Mirror::blocks_for(2, 9 * 64)), Held::default());
    mirror.stored(&stored(&[1], None, &prompt), &reading, &mut held);
    assert_eq!((mirror.blocks(), mirror.counts().beyond, mirror.overflowed(), held.0.len()), (1, 0, false, 36));
    assert_eq!((Mirror::blocks_for(5, 16), Mirror::blocks_for(5, 33), Mirror::blocks_for(5, 0)), (5, 10, 5));
}

/// Of 75 spaces a token: a block has 18 links or 19, and 16 tokens have one in the mean.
#[test]
fn very_long_tokens_leave_others_room() {
    let words: Vec<Vec<u8>> = (0..90).map(|word| format!("{word:04}").into_bytes()).chain([vec![b' '; 75]]).collect();
    let tokens: Vec<Option<&[u8]>> = words.iter().map(|word| Some(&word[..])).collect();
    let vocabulary = Vocabulary::new(&tokens, &[], Lead::Nowhere, &[]);
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let (mut mirror, mut held) = (Mirror::new(100), Held::default());
    let prompt = |name: u64, token: u32| [&[name as u32 % 90][..], &[token; 15]].concat();
    for name in 1..=30 {
        mirror.stored(&stored(&[name], None, &prompt(name, 90)), &reading, &mut held);
    }
    let unread = mirror.counts().beyond;
    assert!((1..30).contains(&unread), "{unread}");
    let before = held.0.len();
    assert!((100..=200).contains(&before), "{before}");
    for name in 31..=100 {
        mirror.stored(&stored(&[name], None, &prompt(name, 7)), &reading, &mut held);
    }
    assert_eq!((held.0.len(), mirror.counts().beyond, mirror.overflowed()), (before + 70, unread, false));
}
