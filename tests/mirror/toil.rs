//! What an engine can make a mirror do: no more than its messages' lengths are worth, whatever it says.

use std::time::{Duration, Instant};

use warmfront::limits::MIRROR_BLOCKS_MAX;
use warmfront::mirror::{Mirror, Reading, Sink};
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
        mirror.removed(&removed(&[1]), &mut told);
        mirror.stored(&stored(&[1], None, first), &reading, &mut told);
    }
    assert!(told.1 < 10 * (all as u64 + events), "{} were told of", told.1);
    assert!(mirror.overflowed() && mirror.counts().beyond >= u64::from(BLOCKS) - 1, "{:?}", mirror.counts());
    // It is known again once it says that it begins anew.
    mirror.cleared();
    let mut told = Counted::default();
    mirror.stored(&stored(&names, None, &tokens), &reading, &mut told);
    assert_eq!((told.0.0.len(), mirror.blocks(), mirror.overflowed()), (all, BLOCKS, false));
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
    assert_eq!((Mirror::bytes(MIRROR_BLOCKS_MAX) as f64 / f64::from(1 << 30) * 10.0).round(), 31.0);
    assert_eq!(Mirror::bytes(u32::MAX), Mirror::bytes(MIRROR_BLOCKS_MAX));
}
