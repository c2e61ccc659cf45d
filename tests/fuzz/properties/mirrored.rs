//! What an engine holds by its own word: any events leave a closed set of links, and any saved bytes are refused or
//! bear any events.

use std::collections::BTreeMap;

use warmfront::kvevents::{Extras, Removed, Stored};
use warmfront::mirror::{Mirror, Reading, Sink};
use warmfront::vocabulary::{Lead, Vocabulary};
use xxhash_rust::xxh64::xxh64;

/// An index of one engine that bears nothing but the order which is promised.
#[derive(Default, Clone, PartialEq, Debug)]
pub struct Held(
    /// What each link follows, and its tokens.
    pub BTreeMap<u64, (Option<u64>, u32)>,
    /// How many follow each.
    BTreeMap<u64, u32>,
);

impl Sink for Held {
    fn hold(&mut self, after: Option<u64>, link: u64, tokens: u32) {
        assert!(after.is_none_or(|after| self.0.contains_key(&after)), "{link:x} is held behind nothing");
        assert_eq!(self.0.insert(link, (after, tokens)), None, "{link:x} is held twice");
        if let Some(after) = after {
            *self.1.entry(after).or_default() += 1;
        }
    }

    fn worth(&mut self, link: u64, tokens: u32) {
        let known = self.0.get_mut(&link).unwrap_or_else(|| panic!("{link:x} is worth something and not held"));
        known.1 = tokens;
    }

    fn release(&mut self, link: u64) {
        let (after, _) = self.0.remove(&link).unwrap_or_else(|| panic!("{link:x} is released and not held"));
        assert_eq!(self.1.remove(&link).unwrap_or(0), 0, "{link:x} is released before what is behind it");
        if let Some(after) = after {
            *self.1.get_mut(&after).unwrap() -= 1;
        }
    }
}

/// One that bears anything, for mirrors that are made up.
struct Deaf;

impl Sink for Deaf {
    fn hold(&mut self, _: Option<u64>, _: u64, _: u32) {}
    fn worth(&mut self, _: u64, _: u32) {}
    fn release(&mut self, _: u64) {}
}

const BLOCKS: u32 = 24;

/// The first byte says what the rest is: events, or a saved mirror without its checksum.
pub fn mirror(bytes: &[u8]) {
    match bytes {
        [0, events @ ..] => told(events),
        [_, saved @ ..] => made_up(saved),
        [] => {}
    }
}

/// What is told is in order, is what is owned, and is all told again by what was saved.
fn told(events: &[u8]) {
    let (mut mirror, mut held) = (Mirror::new(BLOCKS), Held::default());
    each(
        events,
        &mut mirror,
        &mut held,
        |held| *held = Held::default(),
        |mirror, held| {
            assert!(held.0.keys().all(|link| mirror.owns(*link)) && mirror.blocks() <= BLOCKS);
        },
    );
    let (mut saved, mut again) = (Vec::new(), Held::default());
    mirror.save(&mut saved);
    let mut restored = Mirror::restore(&saved, BLOCKS).expect("what was saved");
    restored.retell(&mut again);
    assert!(again.0.keys().eq(held.0.keys()), "what is told again is what was held");
    // As often as each may have been stored, until it is not known any more.
    for name in 0..52 {
        while restored.counts().unknown <= name {
            restored.removed(&removed(&[name]), &mut again);
        }
    }
    assert!(again.0.is_empty() && restored.blocks() == 0, "something stays for ever");
}

fn made_up(saved: &[u8]) {
    let sealed = [saved, &xxh64(saved, 0).to_le_bytes()].concat();
    let Ok(mut mirror) = Mirror::restore(&sealed, BLOCKS) else { return };
    mirror.retell(&mut Deaf);
    each(saved, &mut mirror, &mut Deaf, |_| (), |_, _| ());
    mirror.save(&mut Vec::new());
}

/// Events of small names, so that they are stored, gone, followed and ambiguous in turn.
fn each<S: Sink>(
    script: &[u8],
    mirror: &mut Mirror,
    sink: &mut S,
    clear: impl Fn(&mut S),
    after: impl Fn(&Mirror, &S),
) {
    let texts: [Option<&[u8]>; 8] = [
        Some(b" a"),
        Some(b" "),
        Some(b"a"),
        Some(&[b'x'; 40]),
        Some(&[b'y'; 64]),
        Some(&[b'a'; 130]),
        None,
        Some(b"<s>"),
    ];
    let vocabulary = Vocabulary::new(&texts, &[7], Lead::BehindSpecial, &[]);
    let root = |adapter: Option<&[u8]>, _: Option<&[u8]>| adapter.map_or(5, |name| 5 + name.len() as u64);
    let reading = Reading { vocabulary: &vocabulary, root: &root };
    for event in script.chunks(6) {
        let [kind, first, parent, rest @ ..] = event else { break };
        let names: Vec<u64> = (0..1 + u64::from(kind >> 6)).map(|place| u64::from(first % 48) + place).collect();
        match kind % 16 {
            0..8 => {
                let size = 1 + usize::from(kind >> 4 & 1);
                let tokens: Vec<u32> = rest
                    .iter()
                    .cycle()
                    .take(if rest.is_empty() { 0 } else { size * names.len() })
                    .map(|id| u32::from(id % 8))
                    .collect();
                let parent = match parent % 4 {
                    0 => None,
                    1 => Some(u64::from(first % 48).wrapping_sub(1)),
                    _ => Some(u64::from(parent % 48)),
                };
                let lora_name = [None, None, Some(&b"tuned"[..]), Some(b"none")][usize::from(first >> 6)];
                let block_size = size as u32;
                let extras = Extras::default();
                let (medium, group, attention, window) = (None, None, None, None);
                let stored = Stored {
                    hashes: &names,
                    parent,
                    tokens: &tokens,
                    block_size,
                    medium,
                    lora_name,
                    salt: None,
                    nameless: false,
                    group,
                    attention,
                    window,
                    extras,
                };
                if !mirror.stored(&stored, &reading, sink) {
                    clear(sink);
                }
            }
            8..15 if mirror.removed(&removed(&names), sink) => {}
            8..15 => clear(sink),
            _ if *parent < 16 => {
                mirror.cleared();
                clear(sink);
            }
            _ => {}
        }
        after(mirror, sink);
    }
}

fn removed(hashes: &[u64]) -> Removed<'_> {
    Removed { hashes, medium: None, group: None }
}
