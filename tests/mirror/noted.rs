//! Two ranks of an engine beside an index that notes what they tell, as control does: behind any number of events both
//! say the same.

use std::collections::HashMap;

use warmfront::fleet::EndpointId;
use warmfront::index::{Capacity, Index, Matches, Origin};
use warmfront::mirror::{Mirror, Reading, Sink};

use crate::{ROOT, links, plain, removed, roots, stored, text};

/// `WARMFRONT_NOTED_STEPS` makes it more.
const STEPS: u64 = 60_000;
const SIZE: usize = 16;
const BLOCKS: usize = 12;
const ID: EndpointId = EndpointId { slot: 3, generation: 9 };

/// See `Notes` of control.
struct Notes<'a> {
    index: &'a Index,
    other: &'a Mirror,
    missed: &'a mut u64,
}

impl Sink for Notes<'_> {
    fn hold(&mut self, after: Option<u64>, link: u64, _: u32) {
        *self.missed += u64::from(self.index.append(after, &[link], ID, Origin::Engine).is_err());
    }

    fn worth(&mut self, _: u64, _: u32) {}

    fn release(&mut self, link: u64) {
        if !self.other.owns(link) {
            *self.missed += u64::from(self.index.remove(link, ID).is_err());
        }
    }
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// Prompts of twelve blocks, in families that part at each block.
fn prompts(draw: &mut Draw) -> Vec<Vec<u32>> {
    let mut prompts: Vec<Vec<u32>> = Vec::new();
    for _ in 0..40 {
        let mut own: Vec<u32> = (0..BLOCKS * SIZE).map(|_| 10 + draw.below(90) as u32).collect();
        if !prompts.is_empty() {
            let (from, shared) = (draw.below(prompts.len()), draw.below(BLOCKS * SIZE));
            own[..shared].copy_from_slice(&prompts[from][..shared]);
        }
        prompts.push(own);
    }
    prompts
}

fn name(tokens: &[u32]) -> u64 {
    tokens.iter().fold(7, |name: u64, id| name.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(*id) + 1))
}

fn holds(index: &Index, link: u64, found: &mut Matches) -> bool {
    index.longest(&[link], &[ID], found);
    found.depth(ID.slot) == 1
}

/// `room`: how many links the index has for the endpoint.
fn run(seed: u64, room: u32) {
    let (mut draw, vocabulary) = (Draw(seed), plain(200));
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    let prompts = prompts(&mut draw);
    let all: HashMap<u64, usize> = prompts
        .iter()
        .flat_map(|prompt| links(ROOT, &text(&vocabulary, prompt)))
        .map(|(at, link)| (link, at))
        .collect();
    let index = Index::new(Capacity { endpoints: 8, blocks: 80_000, lengths: false }).unwrap();
    index.assign(ID, Some(room)).unwrap();
    let mut ranks = [Mirror::new(2_000), Mirror::new(2_000)];
    let (mut missed, mut found) = (0, Matches::default());
    let steps = std::env::var("WARMFRONT_NOTED_STEPS").map_or(STEPS, |text| text.parse().expect("a number"));
    for step in 0..steps {
        let [one, other] = &mut ranks;
        let (mirror, other) = if draw.below(2) == 0 { (one, &*other) } else { (other, &*one) };
        let mut notes = Notes { index: &index, other, missed: &mut missed };
        let prompt = &prompts[draw.below(prompts.len())];
        let (from, more) = (draw.below(BLOCKS), 1 + draw.below(BLOCKS));
        let to = (from + more).min(BLOCKS);
        let names: Vec<u64> = (from..to).map(|block| name(&prompt[..(block + 1) * SIZE])).collect();
        match draw.below(1_000) {
            0..450 => {
                let parent = (from > 0).then(|| name(&prompt[..from * SIZE]));
                assert!(
                    mirror.stored(&stored(&names, parent, &prompt[from * SIZE..to * SIZE]), &reading, &mut notes),
                    "these engines are borne"
                );
            }
            450..600 => {
                let names: Vec<u64> = (0..to).map(|block| name(&prompt[..(block + 1) * SIZE])).collect();
                assert!(
                    mirror.stored(&stored(&names, None, &prompt[..to * SIZE]), &reading, &mut notes),
                    "these engines are borne"
                );
            }
            600..998 => {
                let mut names = names;
                if draw.below(3) > 0 {
                    names.reverse();
                }
                assert!(mirror.removed(&removed(&names), &mut notes), "these engines are borne");
            }
            998 => {
                // As after a lost connection: nothing is noted, and then all.
                index.assign(ID, Some(room)).unwrap();
                mirror.retell(&mut notes);
                other.retell(&mut Notes { index: &index, other: mirror, missed: &mut missed });
            }
            _ => {
                mirror.cleared();
                index.assign(ID, Some(room)).unwrap();
                other.retell(&mut Notes { index: &index, other: mirror, missed: &mut missed });
            }
        }
        if step % 500 == 0 || step + 1 == steps {
            index.audit().unwrap_or_else(|fault| panic!("seed {seed}, step {step}: {fault}"));
            for link in all.keys() {
                let (told, noted) = (ranks.iter().any(|mirror| mirror.owns(*link)), holds(&index, *link, &mut found));
                assert!(told || !noted, "seed {seed}, step {step}: what nobody tells is noted");
                assert!(
                    noted || !told || (room as usize) < all.len(),
                    "seed {seed}, step {step}: it is told and not noted"
                );
            }
        }
    }
    assert!(missed == 0 || (room as usize) < all.len(), "seed {seed}: {missed} missed");
}

#[test]
fn an_index_and_its_mirrors_do_not_drift() {
    run(1, 9_000);
}

/// What does not fit goes, and all that is left is told.
#[test]
fn a_small_index_holds_nothing_that_is_not_told() {
    run(2, 60);
}
