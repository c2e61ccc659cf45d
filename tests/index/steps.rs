//! What is held within a block, and how many tokens a match has.

use proptest::prelude::*;
use warmfront::index::{Capacity, DEPTHS_SEARCHED, Found, Index, Matches, Origin, STEPS, probes_max};

use crate::{chain, id, insert, made};

/// The steps of each block of a prompt and of what follows the last.
fn steps(chain: &[u64]) -> Vec<u64> {
    let before = [7].into_iter().chain(chain.iter().copied());
    before
        .flat_map(|block| (1..=STEPS as u64).map(move |step| (block ^ step).wrapping_mul(0xD6E8_FEB8_6659_FD93)))
        .collect()
}

/// The endpoint holds so many blocks and steps beyond them.
fn hold(index: &Index, prompt: &[u64], slot: u16, blocks: usize, held: usize) {
    insert(index, &prompt[..blocks], id(slot, 1));
    let within = &steps(prompt)[STEPS * blocks..][..held];
    index.append(blocks.checked_sub(1).map(|last| prompt[last]), within, id(slot, 1), Origin::Engine).unwrap();
}

fn found(blocks: u32, steps: u32) -> Found {
    Found { blocks, steps, tokens: None }
}

#[test]
fn who_holds_more_of_a_block_comes_first() {
    let (index, ids) = made(70, 64);
    let prompt = chain(0..20);
    for (slot, blocks, held) in [(0, 12, 0), (1, 12, 2), (66, 12, 2), (3, 12, 1), (4, 7, 3), (5, 20, 3), (6, 3, 0)] {
        hold(&index, &prompt, slot, blocks, held);
    }
    let mut all = Matches::default();
    index.longest_in_steps(&prompt, &steps(&prompt), &ids, &mut all);
    let levels: Vec<_> = all.levels_in_steps().map(|(found, set)| (found, set.slots().collect::<Vec<_>>())).collect();
    let expected =
        [(20, 3, vec![5]), (12, 2, vec![1, 66]), (12, 1, vec![3]), (12, 0, vec![0]), (7, 3, vec![4]), (3, 0, vec![6])];
    assert_eq!(levels, expected.map(|(blocks, steps, slots)| (found(blocks, steps), slots)));
    assert_eq!((all.found(66), all.found(2), all.depth(3)), (found(12, 2), Found::default(), 12));
    assert_eq!((all.deepest(), all.alone()), (20, Some(5)));
    // One alone among those of equal depth.
    index.longest_in_steps(&prompt, &steps(&prompt), &[ids[0], ids[3]], &mut all);
    assert_eq!((all.alone(), all.deepest()), (Some(3), 12));
    index.longest(&prompt, &[ids[0], ids[3]], &mut all);
    assert_eq!((all.alone(), all.found(3)), (None, found(12, 0)), "not asked for");
    // A prompt that ends within a block.
    index.longest_in_steps(&prompt[..12], &steps(&prompt)[..STEPS * 12 + 1], &ids, &mut all);
    assert_eq!((all.found(5), all.found(66), all.found(0)), (found(12, 0), found(12, 1), found(12, 0)));
}

/// Of those that hold most of a prompt's beginning, to the block, and of no others.
#[test]
fn those_that_hold_most_are_told_apart_by_what_they_were_sent() {
    let (index, ids) = made(70, 64);
    let (prompt, whole) = (chain(0..12), chain(100..140));
    for (slot, blocks, held) in [(0, 12, 0), (1, 12, 2), (66, 12, 2), (3, 11, 3), (4, 12, 0)] {
        hold(&index, &prompt, slot, blocks, held);
    }
    for (slot, blocks) in [(0, 30), (1, 9), (66, 30), (3, 40), (5, 40)] {
        insert(&index, &whole[..blocks], id(slot, 1));
    }
    let mut all = Matches::default();
    let sent =
        |all: &Matches| all.sent().map(|(blocks, set)| (blocks, set.slots().collect())).collect::<Vec<(_, Vec<_>)>>();
    index.longest_of_both(&prompt, &steps(&prompt), &whole, &ids, &mut all);
    assert_eq!(sent(&all), [(30, vec![0, 66]), (9, vec![1])]);
    assert_eq!(
        (all.found(0), all.found(66), all.found(3), all.found(5)),
        (found(12, 0), found(12, 2), found(11, 3), found(0, 0))
    );
    index.longest_of_both(&prompt, &steps(&prompt), &[], &ids, &mut all);
    assert_eq!((sent(&all), all.found(66)), (vec![], found(12, 2)));
    index.longest_of_both(&chain(200..212), &[], &whole, &ids, &mut all);
    assert_eq!(sent(&all), [], "nobody holds its beginning");
    index.longest_of_both(&prompt, &steps(&prompt), &whole, &ids, &mut all);
    index.longest(&prompt, &ids, &mut all);
    assert_eq!(sent(&all), [], "not asked for");
}

/// Of more depths than are searched, too: those that were sent the common beginning alone are told with it.
#[test]
fn what_many_were_sent_is_told_of_all() {
    let (index, ids) = made(10, 640);
    let (prompt, whole) = (chain(0..4), chain(1_000..1_512));
    let sent = [90, 170, 230, 333, 500, 61, 61, 61, 61, 61];
    for (slot, blocks) in (0..).zip(sent) {
        insert(&index, &prompt, id(slot, 1));
        insert(&index, &whole[..blocks], id(slot, 1));
    }
    let mut all = Matches::default();
    index.longest_of_both(&prompt, &[], &whole, &ids, &mut all);
    let told = |slot: u16| all.sent().find(|(_, holders)| holders.contains(slot)).map_or(0, |(blocks, _)| blocks);
    assert_eq!([1, 2, 3, 4, 5, 6, 7, 8, 9].map(told), [170, 230, 333, 500, 61, 61, 61, 61, 61]);
    assert!((61..=90).contains(&told(0)), "{}", told(0));
}

#[test]
fn tokens_are_those_of_the_last_link() {
    let index = Index::new(Capacity { endpoints: 4, blocks: 4 * 64, lengths: true }).unwrap();
    (0..4).for_each(|slot| assert_eq!(index.assign(id(slot, 1), None), Ok(64)));
    let prompt = chain(0..8);
    let within = steps(&prompt);
    for (slot, blocks, held) in [(0, 8, 2), (1, 8, 0), (2, 5, 3), (3, 5, 0)] {
        hold(&index, &prompt, slot, blocks, held);
    }
    index.note_tokens(prompt[7], 512);
    index.note_tokens(within[STEPS * 8 + 1], 540);
    index.note_tokens(within[STEPS * 5 + 2], 999);
    index.note_tokens(within[STEPS * 5 + 2], 370);
    // What no word can say is not noted.
    index.note_tokens(prompt[4], 1 << 24);
    index.note_tokens(prompt[4], 0);
    let mut all = Matches::default();
    let ids: Vec<_> = (0..4).map(|slot| id(slot, 1)).collect();
    let mut tokens = || {
        index.longest_in_steps(&prompt, &within, &ids, &mut all);
        [0, 1, 2, 3].map(|slot| all.found(slot).tokens)
    };
    assert_eq!(tokens(), [Some(540), Some(512), Some(370), None]);
    // What is known of a link not far before it counts: here two blocks of four links, and no more.
    index.note_tokens(within[STEPS * 3 - 1], 20);
    assert_eq!(tokens(), [Some(540), Some(512), Some(370), None]);
    index.note_tokens(prompt[2], 33);
    assert_eq!(tokens(), [Some(540), Some(512), Some(370), Some(33)]);
    index.note_tokens(prompt[4], (1 << 24) - 1);
    assert_eq!(tokens(), [Some(540), Some(512), Some(370), Some((1 << 24) - 1)]);
}

/// The table forgets and never errs; of as many links as it was made for it knows five of six, and those noted last.
#[test]
fn lengths_are_right_or_not_known() {
    const LINKS: usize = 1 << 14;
    let index = Index::new(Capacity { endpoints: 1, blocks: LINKS, lengths: true }).unwrap();
    index.assign(id(0, 1), Some(LINKS as u32)).unwrap();
    let links = chain(0..2 * LINKS as u64);
    let mut all = Matches::default();
    let mut known = |links: &[u64]| {
        let known = links.iter().filter(|&&link| {
            index.append(None, &[link], id(0, 1), Origin::Engine).unwrap();
            index.longest_in_steps(&[link], &[], &[id(0, 1)], &mut all);
            let tokens = all.found(0).tokens;
            assert!(tokens.is_none_or(|tokens| tokens == link as u32 >> 8 | 1), "{tokens:?}");
            tokens.is_some()
        });
        known.count()
    };
    let note = |links: &[u64]| links.iter().for_each(|&link| index.note_tokens(link, link as u32 >> 8 | 1));
    note(&links[..LINKS]);
    let of_all = known(&links[..LINKS]);
    assert!((LINKS * 5 / 6..LINKS).contains(&of_all), "{of_all}");
    note(&links[..100]);
    note(&links[LINKS..LINKS * 9 / 8]);
    note(&links[..100]);
    assert_eq!(known(&links[..100]), 100, "noted again, they are the youngest");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The deepest depths to the step, the rest never too much, and looking is bounded.
    #[test]
    fn steps_are_told_for_the_first_depths(
        held in proptest::collection::vec((0usize..40, 0usize..=STEPS), 1..24),
        blocks in 0usize..40,
        beyond in 0usize..=STEPS,
    ) {
        let (index, ids) = made(24, 64);
        let prompt = chain(0..41);
        held.iter().zip(0..).for_each(|(&(blocks, steps), slot)| hold(&index, &prompt, slot, blocks, steps));
        let mut all = Matches::default();
        let within = &steps(&prompt)[..STEPS * blocks + beyond];
        index.longest_in_steps(&prompt[..blocks], within, &ids, &mut all);
        prop_assert!(all.probes() as usize <= probes_max(blocks, within.len()));
        let truth = |&(depth, steps): &(usize, usize)| {
            if depth < blocks { (depth as u32, steps as u32) } else { (blocks as u32, if depth > blocks { beyond } else { steps.min(beyond) } as u32) }
        };
        // Steps of a block that is held whole need not be held: then nothing is known beyond the last block.
        let truth = |slot: usize| held.get(slot).map_or((0, 0), |held| if held.0 > blocks { (blocks as u32, 0) } else { truth(held) });
        let mut depths: Vec<u32> = (0..24).map(|slot| truth(slot).0).filter(|&depth| depth > 0).collect();
        depths.sort();
        depths.dedup();
        let exact = depths.iter().rev().nth(DEPTHS_SEARCHED - 1).copied().unwrap_or(1);
        for slot in 0..24 {
            let (said, is) = (all.found(slot as u16), truth(slot));
            let said = (said.blocks, said.steps);
            let is = if is.0 == 0 { (0, 0) } else { is };
            prop_assert!(said <= is && (said == is || is.0 < exact), "{}: {:?} of {:?}", slot, said, is);
            prop_assert_eq!(all.depth(slot as u16), said.0);
        }
        let order: Vec<_> = all.levels_in_steps().map(|(found, _)| (found.blocks, found.steps)).collect();
        prop_assert!(order.is_sorted_by(|a, b| a > b), "{:?}", order);
    }
}
