//! The prefix index: held to an exact model of its rules (`model`), then its bounds one by one, then threads.

mod answers;
mod hits;
mod model;
mod promises;
mod room;
mod rules;
mod steps;
#[path = "../fleet/stops.rs"]
mod stops;
mod threads;

use proptest::prelude::*;
pub(crate) use rules::{chain, id};
use warmfront::fleet::EndpointId;
use warmfront::index::{BadCapacity, Capacity, Index, Inserted, Matches, Missed, ORIGINS, Origin, probes_max};
use warmfront::limits::ENDPOINTS_MAX;

fn made(endpoints: usize, blocks_each: usize) -> (Index, Vec<EndpointId>) {
    let index = Index::new(Capacity { endpoints, blocks: endpoints * blocks_each, lengths: false }).unwrap();
    let ids: Vec<_> = (0..endpoints as u16).map(|slot| id(slot, 1)).collect();
    ids.iter().for_each(|&id| assert_eq!(index.assign(id, None), Ok(blocks_each as u32)));
    (index, ids)
}

fn insert(index: &Index, chain: &[u64], id: EndpointId) -> Inserted {
    index.insert(chain, id, Origin::Choice).unwrap()
}

fn depth(index: &Index, chain: &[u64], id: EndpointId) -> u32 {
    let mut found = Matches::default();
    index.longest(chain, &[id], &mut found);
    found.depth(id.slot)
}

#[test]
fn each_endpoint_counts_with_what_it_holds() {
    let (index, ids) = made(130, 64);
    let prompt = chain(0..40);
    for (slot, held) in [(0, 40), (64, 17), (65, 17), (129, 1)] {
        insert(&index, &prompt[..held], ids[slot]);
    }
    let mut found = Matches::default();
    index.longest(&prompt, &ids, &mut found);
    let levels: Vec<(u32, Vec<u16>)> = found.levels().map(|(depth, set)| (depth, set.slots().collect())).collect();
    assert_eq!(levels, [(40, vec![0]), (17, vec![64, 65]), (1, vec![129])]);
    assert_eq!((found.deepest(), found.depth(65), found.depth(1), found.depth(u16::MAX)), (40, 17, 0, 0));
    index.longest(&prompt, &ids[1..65], &mut found);
    assert_eq!((found.deepest(), found.depth(0)), (17, 0), "only those asked for");
    index.longest(&[], &ids, &mut found);
    assert_eq!(found.deepest(), 0);
}

/// What was seen of a larger index must not be in the answer of a smaller one.
#[test]
fn matches_serve_one_index_after_another() {
    let mut found = Matches::default();
    for endpoints in [ENDPOINTS_MAX, 3, 70, 300] {
        let (index, ids) = made(endpoints, 16);
        let prompt = chain(0..10);
        insert(&index, &prompt, *ids.last().unwrap());
        index.longest(&prompt, &ids, &mut found);
        let holders: Vec<u16> = found.levels().flat_map(|(_, set)| set.slots()).collect();
        assert_eq!(holders, [endpoints as u16 - 1]);
    }
}

#[test]
fn a_prompt_longer_than_the_capacity_is_held_to_there() {
    let (index, ids) = made(1, 16);
    insert(&index, &chain(100..110), ids[0]);
    let prompt = chain(0..20);
    assert_eq!(insert(&index, &prompt, ids[0]), Inserted { before: 0, now: 16, evicted: 10 });
    assert_eq!(insert(&index, &prompt, ids[0]), Inserted { before: 16, now: 16, evicted: 0 });
    assert_eq!((depth(&index, &prompt, ids[0]), index.figures(0).refused), (16, 2));
    assert_eq!(index.audit(), Ok(16));
}

/// No hash of prefixes makes such a chain; engines and files may say anything.
#[test]
fn a_block_over_and_over_takes_no_more_than_its_two_buckets() {
    let (index, ids) = made(4, 1_000);
    let block = chain(0..1)[0];
    let inserted = insert(&index, &[block; 1_000], ids[0]);
    assert!((1..=16).contains(&inserted.now), "{inserted:?}");
    assert_eq!((index.audit(), index.figures(0).refused), (Ok(inserted.now as usize), 1));
    let removed = std::iter::from_fn(|| index.remove(block, ids[0]).ok().filter(|blocks| *blocks > 0));
    assert_eq!((removed.sum::<u32>(), index.audit()), (inserted.now, Ok(0)));
    assert_eq!(insert(&index, &[], ids[0]), Inserted::default());
}

/// It may lie there twice, and goes like others.
#[test]
fn a_block_again_and_again_does_no_harm() {
    let mut twice = 0;
    for seed in 0..2_000 {
        let (index, ids) = made(1, 40);
        insert(&index, &chain(100 * seed..100 * seed + seed % 30), ids[0]);
        let mut said = chain(7..27);
        let (first, again) = ((seed % 16) as usize, (seed / 16 % 19) as usize + 1);
        said[again.max(first)] = said[first.min(again)];
        let inserted = insert(&index, &said, ids[0]);
        assert!(inserted.now as usize >= first.max(again).min(20), "{inserted:?}");
        assert_eq!(index.audit(), Ok(index.figures(0).blocks as usize));
        twice += usize::from(inserted.now == 20 && first != again);
        for link in said.iter().chain(&said) {
            let _ = index.remove(*link, ids[0]);
        }
        assert_eq!(insert(&index, &chain(7..27), ids[0]).before, 0);
        insert(&index, &chain(5_000..5_040), ids[0]);
        assert_eq!((index.audit(), index.figures(0).blocks), (Ok(40), 40), "all of it went");
    }
    assert!(twice > 0, "none of these lay there twice");
}

/// What follows a block is noted without what lies before it.
#[test]
fn a_chain_grows_below_the_block_that_is_named() {
    let (index, ids) = made(2, 16);
    let prompt = chain(0..12);
    let append = |after: Option<usize>, links: std::ops::Range<usize>| {
        index.append(after.map(|at| prompt[at]), &prompt[links], ids[0], Origin::Engine)
    };
    assert_eq!(append(None, 0..2), Ok(Inserted { before: 0, now: 2, evicted: 0 }));
    assert_eq!(append(Some(1), 2..3), Ok(Inserted { before: 0, now: 1, evicted: 0 }));
    assert_eq!(append(Some(0), 1..6), Ok(Inserted { before: 2, now: 5, evicted: 0 }), "walked over, then added");
    assert_eq!(append(Some(7), 8..9), Err(Missed::Orphan));
    assert_eq!(index.append(Some(prompt[0]), &prompt[1..2], ids[1], Origin::Engine), Err(Missed::Orphan));
    assert_eq!((depth(&index, &prompt, ids[0]), depth(&index, &prompt, ids[1])), (6, 0));
    assert_eq!(index.figures(0).inserted[Origin::Engine as usize], 6);
    // The block it is appended to is in use, and never goes for what is appended.
    insert(&index, &chain(100..110), ids[0]);
    assert_eq!(append(Some(5), 6..12), Ok(Inserted { before: 0, now: 6, evicted: 6 }));
    assert_eq!((depth(&index, &prompt, ids[0]), depth(&index, &chain(100..110), ids[0])), (12, 4));
    assert_eq!(append(Some(11), 0..0), Ok(Inserted::default()));
    assert_eq!((index.remove(prompt[3], ids[0]), index.audit()), (Ok(9), Ok(7)));
}

/// Of three requests with one beginning the first is given up: the others still compute what they share.
#[test]
fn a_line_is_taken_back_as_far_as_it_is_nobody_elses() {
    let (index, ids) = made(2, 64);
    let line = chain(0..10);
    let take_back = |chain: &[u64], from: usize| index.take_back_line(chain[from], chain.last().copied(), ids[0]);
    let beside = |from: u64| [chain(0..6), chain(from..from + 4)].concat();
    insert(&index, &line, ids[0]);
    assert_eq!((take_back(&line, 2), depth(&index, &line, ids[0])), (Ok(8), 2));
    // Whoever went on from it last, or first.
    for (own, others) in [(&line, [20, 30]), (&beside(30), [20, 0]), (&beside(20), [30, 0])] {
        let others = others.map(|from| if from == 0 { line.clone() } else { beside(from) });
        for prompt in [&line, &beside(20), &beside(30)] {
            insert(&index, prompt, ids[0]);
        }
        assert_eq!(index.take_back_line(own[2], None, ids[0]), Ok(0), "it is not known which of them is given up");
        assert_eq!((take_back(own, 2), depth(&index, own, ids[0])), (Ok(4), 6));
        assert_eq!((others.map(|other| depth(&index, &other, ids[0])), index.audit()), ([10; 2], Ok(14)));
        assert_eq!(take_back(own, 2), Ok(0), "its last block has gone");
        assert_eq!((index.remove(line[0], ids[0]), index.audit()), (Ok(14), Ok(0)));
    }
    // What was built on all of it, where that is one line; who shares all of two lines has nothing of its own.
    insert(&index, &line, ids[0]);
    insert(&index, &[&line[..], &chain(40..42)].concat(), ids[0]);
    assert_eq!(take_back(&line, 8), Ok(4));
    for from in [40, 50] {
        insert(&index, &[&line[..], &chain(from..from + 2)].concat(), ids[0]);
    }
    assert_eq!((take_back(&line, 0), index.audit()), (Ok(0), Ok(14)));
    assert_eq!(index.take_back(line[2], ids[0]), Ok(12), "nobody computes it");
}

/// An engine with room refuses one prompt after the other: nothing that lies there goes for them.
#[test]
fn what_is_taken_back_is_no_turnover() {
    let (index, ids) = made(1, 64);
    insert(&index, &chain(0..20), ids[0]);
    for prompt in (1..=20).map(|i| chain(100 * i..100 * i + 12)) {
        insert(&index, &prompt, ids[0]);
        assert_eq!(index.take_back(prompt[4], ids[0]), Ok(8));
        assert_eq!(index.take_back_line(prompt[0], Some(prompt[3]), ids[0]), Ok(4));
    }
    let figures = index.figures(0);
    assert_eq!((figures.gone(), figures.removed, figures.taken_back, figures.blocks), (0, 0, 20 * 12, 20));
    assert_eq!(index.remove(chain(0..20)[5], ids[0]), Ok(15));
    assert_eq!(index.figures(0).gone(), 15, "what its engine says");
}

#[test]
fn a_slot_given_to_another_is_cold() {
    let (index, _) = made(2, 16);
    let prompt = chain(0..12);
    insert(&index, &prompt, id(0, 1));
    insert(&index, &prompt, id(1, 1));
    // Another tenant, then the same one again after a restart.
    for generation in [2, 2] {
        index.assign(id(0, generation), None).unwrap();
        assert_eq!((depth(&index, &prompt, id(0, 1)), depth(&index, &prompt, id(0, 2))), (0, 0));
        assert_eq!((depth(&index, &prompt, id(1, 1)), index.figures(0).blocks), (12, 0));
        assert_eq!(index.insert(&prompt, id(0, 1), Origin::Choice), Err(Missed::NotTheirs));
        assert_eq!(index.remove(prompt[0], id(0, 1)), Err(Missed::NotTheirs));
        insert(&index, &prompt[..7], id(0, 2));
        assert_eq!(depth(&index, &prompt, id(0, 2)), 7);
    }
    index.forget(0).unwrap();
    assert_eq!(index.insert(&prompt, id(0, 2), Origin::Choice), Err(Missed::NotTheirs));
    assert_eq!((depth(&index, &prompt, id(0, 2)), index.figures(0).capacity), (0, 0));
    assert_eq!(
        (index.insert(&prompt, id(2, 1), Origin::Choice), index.forget(2)),
        (Err(Missed::NotTheirs), Err(Missed::NotTheirs))
    );
    assert_eq!(index.audit(), Ok(12));
}

#[test]
fn capacities_are_granted_while_there_are_blocks() {
    let index = Index::new(Capacity { endpoints: 4, blocks: 4 * 64, lengths: false }).unwrap();
    assert_eq!(index.assign(id(0, 1), Some(150)), Ok(150));
    assert_eq!(index.assign(id(1, 1), Some(500)), Ok(96), "what is left, in whole chunks of 16");
    assert_eq!(index.assign(id(2, 1), None), Ok(0));
    assert_eq!(insert(&index, &chain(0..5), id(2, 1)).now, 0);
    index.forget(0).unwrap();
    assert_eq!(index.assign(id(2, 1), None), Ok(64));
    let prompt = chain(0..90);
    assert_eq!(insert(&index, &prompt, id(1, 1)).now, 90);
    assert_eq!(index.resize(id(1, 1), 40), Ok(40));
    assert_eq!((depth(&index, &prompt, id(1, 1)), index.figures(1).evicted), (40, 50));
    assert_eq!(index.resize(id(1, 1), 120), Ok(120));
    assert_eq!(insert(&index, &prompt, id(1, 1)), Inserted { before: 40, now: 90, evicted: 0 });
    assert_eq!(index.audit(), Ok(90));
}

#[test]
fn nonsense_is_refused() {
    let of = |endpoints, blocks| Index::new(Capacity { endpoints, blocks, lengths: false }).err();
    assert_eq!(of(0, 1_000), Some(BadCapacity::Endpoints));
    assert_eq!(of(ENDPOINTS_MAX + 1, 1 << 20), Some(BadCapacity::Endpoints));
    assert_eq!(of(64, 64 * 16 - 1), Some(BadCapacity::TooFew));
    let with_lengths = Capacity { endpoints: 1, blocks: 1 << 10, lengths: true };
    let without = Index::bytes(Capacity { lengths: false, ..with_lengths }).unwrap();
    assert_eq!(Index::bytes(with_lengths), Ok(without + (8 << 10)));
    for blocks in [1 << 31, usize::MAX / 2, usize::MAX] {
        assert_eq!(of(64, blocks), Some(BadCapacity::TooMany));
        assert_eq!(Index::bytes(Capacity { endpoints: 64, blocks, lengths: true }), Err(BadCapacity::TooMany));
    }
    assert_eq!(of(64, 64 * 16), None);
}

#[test]
fn bytes_are_what_is_allocated_and_nothing_after() {
    for (endpoints, each) in [(1, 16), (3, 100), (64, 1_000), (65, 333), (512, 20)] {
        let capacity = Capacity { endpoints, blocks: endpoints * each, lengths: each % 2 == 0 };
        let mut index = None;
        let made = allocation_counter::measure(|| index = Some(Index::new(capacity).unwrap()));
        assert_eq!(made.bytes_current as usize, Index::bytes(capacity).unwrap(), "{capacity:?}");
        let index = index.unwrap();
        let prompts: Vec<_> = (0..20).map(|from| chain(from..from + 30)).collect();
        let mut found = Matches::default();
        let used = allocation_counter::measure(|| {
            for generation in 1..3 {
                index.assign(id(0, generation), None).unwrap();
                for prompt in &prompts {
                    insert(&index, prompt, id(0, generation));
                    index.longest(prompt, &[id(0, generation)], &mut found);
                }
                index.resize(id(0, generation), 17).unwrap();
                index.remove(prompts[19][3], id(0, generation)).unwrap();
            }
        });
        assert_eq!(used.count_total, 0, "{capacity:?}");
        index.audit().unwrap();
    }
}

#[test]
fn figures_say_who_said_it_and_what_went() {
    let (index, ids) = made(1, 16);
    let prompt = chain(0..10);
    index.insert(&prompt[..4], ids[0], Origin::Choice).unwrap();
    index.insert(&prompt, ids[0], Origin::Engine).unwrap();
    index.insert(&chain(50..60), ids[0], Origin::Saved).unwrap();
    assert_eq!(index.remove(prompt[3], ids[0]), Ok(3), "with what is built on it");
    let figures = index.figures(0);
    let mut inserted = [0; ORIGINS];
    (inserted[0], inserted[1], inserted[3]) = (4, 6, 10);
    assert_eq!((figures.inserted, figures.evicted, figures.removed), (inserted, 4, 3));
    assert_eq!((figures.gone(), figures.came()), (7, 20));
    assert_eq!((figures.blocks, figures.capacity, figures.busy, figures.refused), (13, 16, 0, 0));
    assert_eq!(index.figures(1), Default::default());
}

/// Rows are made and left in any order for long: places must not run out before the capacity does.
#[test]
fn a_full_index_finds_room_for_new_blocks() {
    let (index, ids) = made(8, 512);
    for i in 0..4_000 {
        let inserted = insert(&index, &chain(i * 100..i * 100 + 64), ids[i as usize % 8]);
        assert_eq!(inserted.now, 64);
    }
    assert_eq!((0..8).map(|slot| index.figures(slot).blocks).sum::<u32>(), 8 * 512);
    assert_eq!(index.audit(), Ok(8 * 512));
}

/// Rows are shared where one holder had a row alone, and left by one after the other, beyond the first word of holders.
#[test]
fn who_has_a_slot_beyond_the_first_word_leaves_what_it_held() {
    let (index, ids) = made(130, 16);
    let slots = [0, 63, 64, 129];
    for round in 0..600 {
        let prompt = chain(3 * round as u64..3 * round as u64 + 12);
        // Each of them is the second holder at times.
        for slot in (0..4).filter(|place| *place != round % 4).map(|place| slots[place]) {
            insert(&index, &prompt, ids[slot]);
            assert_eq!(depth(&index, &prompt, ids[slot]), 12, "round {round}");
        }
        assert_eq!(depth(&index, &prompt, ids[slots[round % 4]]), 0, "round {round}");
        if round % 10 == 0 {
            index.audit().unwrap();
        }
    }
}

/// A thread ends amid what it writes: what it leaves is never believed again, and others' is as it was.
#[test]
fn a_ledger_that_broke_is_nobodys() {
    let (index, ids) = made(2, 16);
    let prompt = chain(0..10);
    ids.iter().for_each(|&id| assert_eq!(insert(&index, &prompt, id).now, 10));
    let breaks = || index.save(ids[0], &mut |_, _| std::panic::resume_unwind(Box::new("amid it")));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(breaks)).is_err());
    assert_eq!(index.insert(&prompt, ids[0], Origin::Choice), Err(Missed::NotTheirs));
    assert_eq!((depth(&index, &prompt, ids[0]), depth(&index, &prompt, ids[1])), (0, 10));
    assert_eq!(index.assign(ids[0], None), Err(Missed::Busy));
    assert_eq!((depth(&index, &prompt, ids[0]), insert(&index, &chain(0..12), ids[1]).now), (0, 12));
}

/// What was saved of an index means nothing to one of another size.
#[test]
fn indexes_of_another_size_have_another_layout() {
    let layouts =
        [(1, 16), (2, 16), (2, 64), (4, 64), (130, 64)].map(|(endpoints, each)| made(endpoints, each).0.layout());
    assert!((1..layouts.len()).all(|at| !layouts[..at].contains(&layouts[at])), "{layouts:x?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// However many depths there are, in sets of any width: the deepest are exact, half of the rest are told what that
    /// half holds at least, nobody is told too much, and looking is bounded.
    #[test]
    fn looking_is_bounded_and_never_says_too_much(
        held in proptest::collection::vec(0usize..=600, 1..40),
        length in 1usize..=600,
        endpoints in proptest::sample::select(vec![40, 100, 200, 400, 1_000]),
    ) {
        // Who holds something lies all over the slots; the others have no room.
        let index = Index::new(Capacity { endpoints, blocks: 40 * 640 + endpoints * 16, lengths: false }).unwrap();
        let ids: Vec<_> = (0..endpoints as u16).map(|slot| id(slot, 1)).collect();
        ids.iter().for_each(|&id| assert_eq!(index.assign(id, Some(0)), Ok(0)));
        let prompt = chain(0..600);
        let mut truth = vec![0; endpoints];
        for (place, &held) in held.iter().enumerate() {
            let slot = place * endpoints / 40;
            prop_assert_eq!(index.resize(ids[slot], 640), Ok(640));
            prop_assert_eq!(insert(&index, &prompt[..held], ids[slot]).now as usize, held);
            truth[slot] = held.min(length) as u32;
        }
        let mut found = Matches::default();
        index.longest(&prompt[..length], &ids, &mut found);
        prop_assert!(found.probes() as usize <= probes_max(length, 0), "{} of {}", found.probes(), probes_max(length, 0));
        let mut depths: Vec<u32> = truth.iter().copied().filter(|&depth| depth > 0).collect();
        depths.sort();
        depths.dedup();
        let exact = depths.iter().rev().nth(3).copied().unwrap_or(1);
        let mut rest: Vec<u32> = truth.iter().copied().filter(|&depth| (1..exact).contains(&depth)).collect();
        rest.sort();
        let shared = rest.get(rest.len() / 2).copied().unwrap_or(0);
        for (slot, is) in truth.into_iter().enumerate() {
            let said = found.depth(slot as u16);
            prop_assert!(said <= is && (said == is || is < exact), "{slot}: {said} of {is}");
            prop_assert!(said >= shared.min(is) || is < shared, "{slot}: {said} of {is}, and half of them hold {shared}");
        }
        prop_assert!(found.levels().zip(found.levels().skip(1)).all(|(a, b)| a.0 > b.0));
    }
}

#[test]
fn the_bound_is_what_the_documents_say() {
    assert_eq!([0, 1, 4, 5, 24, 512, 65_536].map(|blocks| probes_max(blocks, 0)), [0, 21, 21, 41, 41, 81, 141]);
}

/// An application's prompts begin alike, and five engines hold more of one conversation, each another part: the others
/// hold the common beginning, and are not taken for cold.
#[test]
fn a_common_beginning_is_found_behind_many_depths() {
    let (index, ids) = made(16, 640);
    let prompt = chain(0..512);
    for (place, &id) in ids.iter().enumerate() {
        // The last holds nothing, and one but half of the beginning.
        let held = [90, 170, 230, 333, 500].get(place).copied().unwrap_or(if place == 14 { 30 } else { 61 });
        if place < 15 {
            assert_eq!(insert(&index, &prompt[..held], id).now as usize, held);
        }
    }
    let mut found = Matches::default();
    index.longest(&prompt, &ids, &mut found);
    let depths: Vec<u32> = ids.iter().map(|id| found.depth(id.slot)).collect();
    assert_eq!(depths[1..5], [170, 230, 333, 500]);
    assert!((61..=90).contains(&depths[0]), "{depths:?}");
    assert_eq!(depths[5..14], [61; 9]);
    assert!(depths[14] <= 30 && depths[15] == 0, "{depths:?}");
}
