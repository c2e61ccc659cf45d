//! Room that goes from one endpoint to another, and what is due to each of it.

use warmfront::index::{Capacity, Index, Inserted, Missed, Origin};

use crate::{chain, depth, id, insert, made};

/// Chunks of 16 blocks, 4 for each slot.
fn index() -> Index {
    Index::new(Capacity { endpoints: 4, blocks: 4 * 64, lengths: false }).unwrap()
}

#[test]
fn who_gives_room_back_keeps_its_youngest() {
    let index = index();
    assert_eq!((index.assign(id(0, 1), Some(256)), index.assign(id(1, 1), Some(64))), (Ok(256), Ok(0)));
    // Trees with branches and rows that others share, in cells that were used before.
    let prompts: Vec<_> = (0..60).map(|i| chain([0, i % 7, i / 3].into_iter().chain(i..i + 9))).collect();
    for prompt in &prompts {
        insert(&index, prompt, id(0, 1));
    }
    for prompt in prompts.iter().step_by(9) {
        index.remove(prompt[5], id(0, 1)).unwrap();
    }
    index.resize(id(0, 1), 150).unwrap();
    assert_eq!(index.resize(id(1, 1), 64), Ok(64), "there at once");
    for prompt in prompts.iter().rev().take(5) {
        insert(&index, prompt, id(1, 1));
    }
    for blocks in [100, 97, 96, 80, 33] {
        assert_eq!(index.resize(id(0, 1), blocks), Ok(blocks));
        index.audit().unwrap();
        let depths = prompts.iter().map(|prompt| depth(&index, prompt, id(0, 1)));
        let held: Vec<u32> = depths.collect();
        assert!(held[58..] == [12, 12], "{blocks}: {held:?}");
        assert!(index.figures(0).blocks <= blocks && held[0] <= 3, "{blocks}: {held:?}");
        assert_eq!(depth(&index, &prompts[58], id(1, 1)), 12);
    }
    // What is left goes on as it would have.
    assert_eq!(index.resize(id(0, 1), 160), Ok(160));
    assert_eq!(insert(&index, &prompts[58], id(0, 1)), Inserted { before: 12, now: 12, evicted: 0 });
    insert(&index, &chain(1_000..1_148), id(0, 1));
    assert_eq!(depth(&index, &prompts[58], id(0, 1)), 12);
    insert(&index, &chain(2_000..2_001), id(0, 1));
    assert_eq!(depth(&index, &prompts[58], id(0, 1)), 11, "the oldest leaf");
    index.audit().unwrap();
}

#[test]
fn nothing_is_left_behind_where_all_room_is_given_back() {
    let index = index();
    index.assign(id(0, 1), Some(200)).unwrap();
    insert(&index, &chain(0..180), id(0, 1));
    assert_eq!((index.resize(id(0, 1), 0), index.audit()), (Ok(0), Ok(0)));
    assert_eq!(index.assign(id(1, 1), Some(256)), Ok(256));
    assert_eq!(index.resize(id(0, 1), 10), Ok(0));
    insert(&index, &chain(0..256), id(1, 1));
    assert_eq!((index.resize(id(1, 1), 20), index.resize(id(0, 1), 10)), (Ok(20), Ok(10)));
    assert_eq!(insert(&index, &chain(0..10), id(0, 1)).now, 10);
    assert_eq!((index.audit(), index.figures(1).evicted), (Ok(30), 236), "those of both have a row of each");
    assert_eq!(index.resize(id(1, 2), 1), Err(Missed::NotTheirs));
}

/// More go than are looked at in one claim of the ledger.
#[test]
fn a_large_ledger_gets_small_in_parts() {
    let index = Index::new(Capacity { endpoints: 1, blocks: 20_000, lengths: false }).unwrap();
    index.assign(id(0, 1), None).unwrap();
    for i in 0..100 {
        index.insert(&chain([i + 1_000].into_iter().chain(0..199)), id(0, 1), Origin::Choice).unwrap();
    }
    assert_eq!(index.resize(id(0, 1), 399), Ok(399));
    let held = |i: u64| depth(&index, &chain([i + 1_000].into_iter().chain(0..199)), id(0, 1));
    assert_eq!(([held(99), held(98), held(97)], index.audit()), ([200, 199, 0], Ok(399)));
    assert_eq!(index.figures(0).evicted, 20_000 - 399);
}

#[test]
fn each_is_due_what_it_wants_up_to_one_level() {
    let shares = |wants: &[u32]| index().shares(wants);
    assert!(shares(&[]).is_empty());
    assert_eq!(shares(&[100, 0, 30, 17]), [100, 0, 30, 17], "there is room for all");
    assert_eq!(shares(&[1_000]), [256]);
    assert_eq!(shares(&[256, 256]), [128, 128]);
    assert_eq!(shares(&[256, 256, 256]), [96, 80, 80], "in whole chunks of 16");
    assert_eq!(shares(&[1_000; 4]), [64; 4]);
    assert_eq!(shares(&[600, 300]), [128, 128]);
    assert_eq!(shares(&[600, 100]), [144, 100]);
    assert_eq!(shares(&[10_000, 64, 64, 64]), [64; 4], "none has less than an even part");
    assert_eq!(shares(&[10_000, 10, 64, 20]), [144, 10, 64, 20]);
    assert_eq!(shares(&[u32::MAX, 0, u32::MAX, 40]), [112, 0, 96, 40]);
}

proptest::proptest! {
    #[test]
    fn all_are_due_what_there_is_and_none_too_little(wants in proptest::collection::vec(0u32..400, 4)) {
        let index = index();
        let all = index.shares(&wants);
        let sum: u32 = all.iter().map(|due| due.next_multiple_of(16)).sum();
        proptest::prop_assert!(sum <= 256);
        for (&want, &due) in wants.iter().zip(&all) {
            proptest::prop_assert!(due <= want && due >= want.min(index.share()), "{wants:?}: {due}");
            proptest::prop_assert!(due == want || sum == 256, "{wants:?}: {due} while some is left");
            let most = due.next_multiple_of(16) + 16;
            proptest::prop_assert!(due == want || all.iter().all(|other| *other <= most), "{wants:?}: {all:?}");
        }
        for (slot, &due) in (0..).zip(&all) {
            proptest::prop_assert_eq!(index.assign(id(slot, 1), Some(due)), Ok(due));
        }
    }
}

/// As many as an index is made for at least, of which few are there.
fn roomy() -> Index {
    Index::new(Capacity { endpoints: 64, blocks: 64 * 112, lengths: false }).unwrap()
}

proptest::proptest! {
    #[test]
    fn few_are_due_all_that_there_is(wants in proptest::collection::vec(1u32..10_000, 1..=6)) {
        let index = roomy();
        let due = index.shares(&wants);
        let sum: u32 = due.iter().map(|due| due.next_multiple_of(16)).sum();
        for (&want, &due) in wants.iter().zip(&due) {
            proptest::prop_assert!(due == want || sum == 64 * 112, "{wants:?}: {due} while some is left");
        }
        for (slot, &due) in (0..).zip(&due) {
            proptest::prop_assert_eq!(index.assign(id(slot, 1), Some(due)), Ok(due));
        }
    }
}

/// It may be a mistake of its own.
#[test]
fn who_wants_far_too_much_takes_an_even_part_at_most() {
    let among = |others: u32| roomy().shares(&[[u32::MAX].as_slice(), &[others; 7]].concat());
    assert_eq!(among(800), [[1_568].as_slice(), &[800; 7]].concat());
    assert_eq!(among(1_000), [896; 8]);
}

/// And what it lists of it goes with it.
#[test]
fn one_may_have_all_room_and_give_it_back() {
    let index = roomy();
    let all = allocation_counter::measure(|| assert_eq!(index.assign(id(0, 1), Some(u32::MAX)), Ok(64 * 112)));
    assert!((1..=64 * 7 * 32).contains(&all.bytes_current), "{all:?}");
    let prompt = chain(0..64 * 112);
    assert_eq!(insert(&index, &prompt, id(0, 1)).now, 64 * 112);
    assert_eq!((depth(&index, &prompt, id(0, 1)), index.audit()), (64 * 112, Ok(64 * 112)));
    let share = allocation_counter::measure(|| assert_eq!(index.resize(id(0, 1), 112), Ok(112)));
    assert_eq!((share.bytes_current, index.audit()), (-all.bytes_current, Ok(112)));
    assert_eq!(index.assign(id(1, 1), Some(63 * 112)), Ok(63 * 112));
}

#[test]
fn a_share_is_what_is_assigned_to_who_says_nothing() {
    let (index, ids) = made(3, 40);
    assert_eq!((index.share(), index.figures(ids[2].slot).capacity), (40, 40));
}
