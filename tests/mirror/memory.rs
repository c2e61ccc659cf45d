//! Memory, whatever engines say: ten million events in release, a million otherwise.
//!
//!     MIRROR_EVENTS=10000000 cargo test --release --test mirror -- memory --nocapture

use warmfront::kvevents::{Removed, Stored};
use warmfront::mirror::{Mirror, Reading, Sink};
use warmfront::vocabulary::{Lead, Vocabulary};

use crate::{removed, roots, stored};

struct Deaf;

impl Sink for Deaf {
    fn hold(&mut self, _: Option<u64>, _: u64, _: u32) {}
    fn worth(&mut self, _: u64, _: u32) {}
    fn release(&mut self, _: u64) {}
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % below
    }
}

const BLOCKS: u32 = 3_000;

/// Texts of 0 to 300 bytes; id 3 has none.
fn vocabulary() -> Vocabulary {
    let texts: Vec<Vec<u8>> = (0..64_usize).map(|id| vec![id as u8; [4, 5, 3, 0, 7, 40, 64, 300][id % 8]]).collect();
    let tokens: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(&text[..])).collect();
    Vocabulary::new(&tokens, &[], Lead::First, &[])
}

fn event(mirror: &mut Mirror, dice: &mut Dice, reading: &Reading<'_>, names: &mut Vec<u64>, tokens: &mut Vec<u32>) {
    // Most names come again, so that all of them are stored, gone, ambiguous, and followed in turn.
    let name = |dice: &mut Dice| if dice.roll(50) == 0 { dice.0 } else { dice.roll(12_000) };
    let kind = dice.roll(1_000);
    names.clear();
    tokens.clear();
    let count = if kind.is_multiple_of(50) { 60 } else { 1 + dice.roll(4) };
    let first = name(dice);
    names.extend((0..count).map(|place| if kind.is_multiple_of(3) { name(dice) } else { first.wrapping_add(place) }));
    if kind < 550 {
        let size = [1, 2, 4, 8, 16][dice.roll(5) as usize];
        let dull = dice.roll(4) > 0;
        tokens.extend(
            (0..count * size).map(|place| if dull { (first + place) as u32 % 3 } else { dice.roll(65) as u32 }),
        );
        let parent = [None, Some(first.wrapping_sub(1)), Some(name(dice))][dice.roll(3) as usize];
        let block_size = if kind % 100 == 7 { u32::MAX } else { size as u32 };
        let medium = (kind % 100 == 8).then_some(&b"CPU"[..]);
        mirror.stored(&Stored { block_size, medium, ..stored(names, parent, tokens) }, reading, &mut Deaf);
    } else if kind < 999 || dice.roll(500) > 0 {
        let group = (kind % 100 == 9).then_some(5);
        mirror.removed(&Removed { group, ..removed(names) }, &mut Deaf);
    } else {
        mirror.cleared();
    }
}

#[test]
fn no_events_take_more_memory_than_is_said() {
    let events: u64 = std::env::var("MIRROR_EVENTS").map_or(1_000_000, |events| events.parse().unwrap());
    let vocabulary = vocabulary();
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let (mut names, mut tokens, mut most) = (Vec::with_capacity(64), Vec::with_capacity(1_024), 0);
    let measured = allocation_counter::measure(|| {
        let (mut mirror, mut dice) = (Mirror::new(BLOCKS), Dice(7));
        for _ in 0..events {
            event(&mut mirror, &mut dice, &reading, &mut names, &mut tokens);
            most = most.max(mirror.blocks());
        }
        let counts = mirror.counts();
        println!("{events} events: {counts:?}");
        let seen = [
            counts.copies,
            counts.ambiguous,
            counts.orphans,
            counts.opaque,
            counts.malformed,
            counts.beyond,
            counts.groups,
            counts.tiers,
            counts.unknown,
        ];
        assert!(seen.iter().all(|count| *count > events / 2_000), "{counts:?}");
    });
    let said = Mirror::bytes(BLOCKS);
    println!("{} bytes of {said}, {most} blocks of {BLOCKS}", measured.bytes_max);
    assert_eq!(most, BLOCKS);
    assert!(measured.bytes_max as usize <= said, "{} bytes and not {said}", measured.bytes_max);
    assert!(measured.bytes_max as usize > said / 2, "{said} bytes say nothing of {}", measured.bytes_max);
}

/// Pairs of which the first goes, so that as many nodes are gone and followed as there are blocks.
#[test]
fn blocks_that_are_gone_and_followed_are_bounded() {
    let vocabulary = vocabulary();
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let measured = allocation_counter::measure(|| {
        let mut mirror = Mirror::new(100);
        for round in 0..200 {
            let begin = 1_000 * round;
            for pair in 0..99 {
                let names = [begin + 2 * pair, begin + 2 * pair + 1];
                mirror.stored(&stored(&names, None, &[0, 1]), &reading, &mut Deaf);
                mirror.removed(&removed(&names[..1]), &mut Deaf);
            }
            assert_eq!(mirror.blocks(), 99);
            let all: Vec<u64> = (begin..begin + 198).filter(|name| (name - begin) % 2 == 1).collect();
            mirror.removed(&removed(&all), &mut Deaf);
            assert_eq!(mirror.blocks(), 0);
        }
    });
    assert!(measured.bytes_max as usize <= Mirror::bytes(100) + 8 * 99, "and the list of the test");
}

#[test]
fn no_restored_bytes_take_more_memory_than_is_said() {
    let mut bytes = Vec::new();
    Mirror::new(0).save(&mut bytes);
    // So many nodes, says the number at the end, and then nothing.
    let end = bytes.len() - 12;
    bytes.truncate(end);
    bytes.extend(1_000_u32.to_le_bytes());
    let sum = xxhash_rust::xxh64::xxh64(&bytes, 0);
    bytes.extend(sum.to_le_bytes());
    let measured = allocation_counter::measure(|| assert!(Mirror::restore(&bytes, 1_000).is_err()));
    assert!(measured.bytes_max as usize <= Mirror::bytes(1_000), "{}", measured.bytes_max);
}
