//! What an engine can make a mirror do: no more than its messages' lengths are worth, whatever it says.

use std::time::{Duration, Instant};

use warmfront::limits::MIRROR_BLOCKS_MAX;
use warmfront::mirror::{Halt, Mirror, Reading, Sink, Stint};
use warmfront::vocabulary::{Lead, Vocabulary};

use crate::{Held, plain, removed, roots, stored};

const BLOCKS: u32 = 2_000;
/// Tokens of a block: two links.
const SIZE: u32 = 32;

/// Counts what is told, and holds it to the order that is promised.
#[derive(Default)]
struct Counted(Held, u64);

impl Sink for Counted {
    fn hold(&mut self, after: Option<u64>, link: u64, tokens: u32) {
        self.1 += 1;
        self.0.hold(after, link, tokens);
    }

    fn worth(&mut self, link: u64, tokens: u32) {
        self.0.worth(link, tokens);
    }

    fn release(&mut self, link: u64) {
        self.1 += 1;
        self.0.release(link);
    }
}

/// Bears anything.
struct Deaf;

impl Sink for Deaf {
    fn hold(&mut self, _: Option<u64>, _: u64, _: u32) {}
    fn worth(&mut self, _: u64, _: u32) {}
    fn release(&mut self, _: u64) {}
}

/// The first block of a long prompt comes and goes below all that follows it, as no cache has it.
#[test]
fn a_root_that_comes_and_goes_is_borne_for_a_while() {
    let (mut mirror, mut told, vocabulary) = (Mirror::new(BLOCKS), Counted::default(), plain(200));
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let names: Vec<u64> = (1..=u64::from(BLOCKS)).collect();
    let tokens: Vec<u32> = (0..BLOCKS * SIZE).map(|place| 100 + place * place % 90).collect();
    mirror.stored(&stored(&names, None, &tokens), &reading, &mut told);
    assert_eq!((mirror.blocks(), mirror.overflowed()), (BLOCKS, false));
    let (all, first) = (told.0.0.len(), &tokens[..SIZE as usize]);
    // Once is a whim.
    mirror.removed(&removed(&[1]), &mut told);
    assert_eq!((told.0.0.len(), mirror.overflowed()), (0, false));
    mirror.stored(&stored(&[1], None, first), &reading, &mut told);
    assert_eq!((told.0.0.len(), mirror.overflowed()), (all, false));
    told.1 = 0;
    let events = 100_000;
    for _ in 0..events / 2 {
        if !mirror.removed(&removed(&[1]), &mut told) || !mirror.stored(&stored(&[1], None, first), &reading, &mut told)
        {
            told.0 = Held::default();
        }
    }
    assert!(told.1 < 10 * (all as u64 + events), "{} were told of", told.1);
    assert!(mirror.overflowed() && mirror.counts().beyond >= u64::from(BLOCKS) - 1, "{:?}", mirror.counts());
    // It is known again once it says that it begins anew.
    mirror.cleared();
    let mut told = Counted::default();
    mirror.stored(&stored(&names, None, &tokens), &reading, &mut told);
    assert_eq!((told.0.0.len(), mirror.blocks(), mirror.overflowed()), (all, BLOCKS, false));
}

/// Pieces are short, whatever lies below a block, and give the same as all of it at once.
#[test]
fn what_an_event_begins_is_done_in_pieces() {
    let (mut mirror, mut told, vocabulary) = (Mirror::new(100_000), Counted::default(), plain(200));
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let tokens: Vec<u32> = (0..16).collect();
    mirror.stored(&stored(&[1], None, &tokens), &reading, &mut told);
    // Siblings, of which each is told apart from the others by its first two tokens.
    for name in 2..50_000 {
        let mut own = tokens.clone();
        (own[0], own[1]) = (100 + name as u32 % 90, 10 + (name as u32 / 90) % 90);
        own[2] = 10 + name as u32 / 8_100;
        mirror.stored(&stored(&[name], Some(1), &own), &reading, &mut told);
    }
    let all = told.0.0.clone();
    let (events, mut pieces) = ((removed(&[1]), stored(&[1], None, &tokens)), 0);
    let mut in_pieces = |on: &mut dyn FnMut(&mut Mirror, &mut Counted, &mut Stint) -> Halt| {
        loop {
            told.1 = 0;
            let halt = on(&mut mirror, &mut told, &mut Stint::default());
            assert!(told.1 <= 4_096, "{} were told of in one piece", told.1);
            pieces += 1;
            if halt != Halt::Midway {
                break halt;
            }
        }
    };
    let (mut gone, mut back) = (0, 0);
    assert_eq!(
        in_pieces(&mut |mirror, told, stint| mirror.removed_on(&events.0, &mut gone, told, stint)),
        Halt::Through
    );
    let stored = in_pieces(&mut |mirror, told, stint| mirror.stored_on(&events.1, &mut back, &reading, told, stint));
    assert_eq!((stored, gone, back), (Halt::Through, 1, 1));
    assert!(pieces > 2 * 49_999 / 4_096, "{pieces} pieces");
    assert_eq!(told.0.0.len(), all.len());
    // Told again, in pieces, too.
    let (mut telling, mut again) = (Default::default(), Counted::default());
    while !mirror.retell_on(&mut telling, &mut again, &mut Stint::default()) {
        assert!(std::mem::take(&mut again.1) <= 4_096);
    }
    assert!(again.0.0.keys().eq(all.keys()));
}

/// However many blocks an engine says that it has: a message of a few bytes has no more told of than is borne at once.
#[test]
fn what_is_borne_does_not_grow_with_the_cache() {
    let blocks = 300_000;
    let (mut mirror, mut told, vocabulary) = (Mirror::new(MIRROR_BLOCKS_MAX), Deaf, plain(200));
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    mirror.stored(&stored(&[1], None, &[70; 4]), &reading, &mut told);
    for name in 2..=blocks {
        let own = [name % 90, name / 90 % 90, name / 8_100, 199].map(|token| token as u32);
        mirror.stored(&stored(&[name], Some(1), &own), &reading, &mut told);
    }
    assert_eq!(u64::from(mirror.blocks()), blocks);
    let (mut pieces, mut done, mut given_up, root) = (0, 0, 0, [70; 4]);
    while !mirror.overflowed() {
        let halt = mirror.removed_on(&removed(&[1]), &mut done, &mut told, &mut Stint::default());
        pieces += 1;
        if halt == Halt::GivesUp {
            mirror.give_up();
            given_up += 1;
        } else if halt == Halt::Through {
            done = 0;
            given_up += u32::from(!mirror.stored(&stored(&[1], None, &root), &reading, &mut told));
        }
        assert!(pieces < 1_000, "it is never given up");
    }
    assert_eq!(given_up, 1);
    assert_eq!(mirror.blocks(), 0);
}

/// A block of millions of tokens of thousands of bytes.
#[test]
fn no_text_is_read_far_beyond_the_longest_prompt() {
    let long = vec![b'x'; 4_000];
    let vocabulary = Vocabulary::new(&[Some(&long[..])], &[], Lead::Nowhere, &[]);
    let (mut mirror, mut held) = (Mirror::new(BLOCKS), Held::default());
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let begun = Instant::now();
    mirror.stored(&stored(&[1], None, &vec![0; 4 << 20]), &reading, &mut held);
    assert_eq!((mirror.counts().deep, held.0.len()), (1, 0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?} for 16 GB", begun.elapsed());
}

/// What [`MIRROR_BLOCKS_MAX`] says.
#[test]
fn the_largest_takes_what_is_said() {
    assert_eq!((Mirror::bytes(MIRROR_BLOCKS_MAX) as f64 / f64::from(1 << 30) * 10.0).round(), 30.0);
    assert_eq!(Mirror::bytes(u32::MAX), Mirror::bytes(MIRROR_BLOCKS_MAX));
}
