//! What is promised, confirmed, and expires: the rules one by one (all of them at random in `model`).

use warmfront::index::{Expired, Index, Inserted, Missed, Origin, PROMISES_MAX};

use crate::{chain, depth, id, insert, made};

fn promising() -> Index {
    let (index, ids) = made(2, 1 << 15);
    index.keeps_promises(ids[0], true).unwrap();
    index
}

fn expire(index: &Index, before: u32) -> u32 {
    let Expired { blocks, more } = index.expire(id(0, 1), before, |_| false).unwrap();
    assert!(!more);
    index.audit().unwrap();
    blocks
}

#[test]
fn what_nobody_confirms_goes_in_time() {
    let index = promising();
    let prompt = chain(0..12);
    insert(&index, &prompt[..4], id(0, 1));
    assert_eq!(index.promise(&prompt, id(0, 1), 100), Ok(Inserted { before: 4, now: 12, evicted: 0 }));
    assert_eq!((expire(&index, 100), depth(&index, &prompt, id(0, 1))), (0, 12), "not before its time");
    assert_eq!((expire(&index, 101), depth(&index, &prompt, id(0, 1))), (8, 4));
    assert_eq!((expire(&index, 101), index.figures(0).expired), (0, 8));
    assert_eq!(index.figures(0).inserted[Origin::Promised as usize], 8);
    // Of the other endpoint nothing is to be confirmed.
    index.promise(&prompt, id(1, 1), 100).unwrap();
    assert_eq!(index.expire(id(1, 1), 200, |_| false), Ok(Expired::default()));
    assert_eq!((depth(&index, &prompt, id(1, 1)), index.figures(1).inserted[Origin::Choice as usize]), (12, 12));
}

#[test]
fn a_confirmed_block_keeps_those_before_it() {
    let index = promising();
    let prompt = chain(0..12);
    index.promise(&prompt, id(0, 1), 100).unwrap();
    // The engine has said up to the eighth; events before were lost.
    index.append(Some(prompt[6]), &prompt[7..8], id(0, 1), Origin::Engine).unwrap();
    assert_eq!((expire(&index, 200), depth(&index, &prompt, id(0, 1))), (4, 8));
    // Noted beside the index only.
    index.promise(&prompt, id(0, 1), 300).unwrap();
    assert_eq!(index.expire(id(0, 1), 400, |link| link == prompt[11]), Ok(Expired::default()));
    assert_eq!((expire(&index, 500), depth(&index, &prompt, id(0, 1))), (0, 12));
}

#[test]
fn what_is_built_on_a_broken_promise_goes_with_it() {
    let index = promising();
    let prompt = chain(0..12);
    index.promise(&prompt[..5], id(0, 1), 100).unwrap();
    index.promise(&prompt, id(0, 1), 120).unwrap();
    assert_eq!((expire(&index, 110), depth(&index, &prompt, id(0, 1))), (12, 0));
    assert_eq!(expire(&index, 121), 0, "it has gone with the other");
    index.promise(&prompt[..5], id(0, 1), 200).unwrap();
    index.promise(&prompt, id(0, 1), 220).unwrap();
    insert(&index, &prompt[..9], id(0, 1));
    assert_eq!((expire(&index, 210), depth(&index, &prompt, id(0, 1))), (0, 12), "confirmed below");
    assert_eq!((expire(&index, 230), depth(&index, &prompt, id(0, 1))), (3, 9));
}

#[test]
fn an_assigned_slot_has_promised_nothing() {
    let index = promising();
    let prompt = chain(0..12);
    index.promise(&prompt, id(0, 1), 100).unwrap();
    index.assign(id(0, 2), None).unwrap();
    assert_eq!(index.expire(id(0, 1), 200, |_| false), Err(Missed::NotTheirs));
    assert_eq!(index.keeps_promises(id(0, 1), true), Err(Missed::NotTheirs));
    index.promise(&prompt, id(0, 2), 100).unwrap();
    assert_eq!(index.expire(id(0, 2), 200, |_| false), Ok(Expired::default()));
    assert_eq!(depth(&index, &prompt, id(0, 2)), 12);
}

/// One more than there is place for ends the oldest; many are worked off in calls of bounded length.
#[test]
fn promises_have_their_number() {
    let index = promising();
    let prompt = |i: usize| chain([i as u64 + 1_000, 1]);
    let held = |range: std::ops::Range<usize>| range.filter(|&i| depth(&index, &prompt(i), id(0, 1)) == 2).count();
    (0..PROMISES_MAX).for_each(|i| assert_eq!(index.promise(&prompt(i), id(0, 1), 100).unwrap().now, 2));
    assert_eq!(held(0..PROMISES_MAX), PROMISES_MAX);
    index.promise(&prompt(PROMISES_MAX), id(0, 1), 100).unwrap();
    assert_eq!((held(0..1), held(1..PROMISES_MAX + 1), index.figures(0).expired), (0, PROMISES_MAX, 2));
    let (mut calls, mut blocks) = (0, 0);
    loop {
        let expired = index.expire(id(0, 1), 101, |_| false).unwrap();
        assert!(expired.blocks <= 4_096 + 2);
        (calls, blocks) = (calls + 1, blocks + expired.blocks);
        if !expired.more {
            break;
        }
    }
    assert_eq!((calls > 8, blocks as usize, index.audit()), (true, 2 * PROMISES_MAX, Ok(0)));
}

/// A promise takes nothing beyond what the endpoint was given for them.
#[test]
fn promises_take_their_memory_once() {
    let (index, _) = made(1, 1 << 15);
    let made = allocation_counter::measure(|| index.keeps_promises(id(0, 1), true).unwrap());
    assert_eq!(made.bytes_current as usize, PROMISES_MAX * 16);
    let chains: Vec<_> = (0..PROMISES_MAX as u64 + 100).map(|i| chain([i])).collect();
    let used = allocation_counter::measure(|| {
        chains.iter().for_each(|chain| assert!(index.promise(chain, id(0, 1), 1).is_ok()));
        index.expire(id(0, 1), 9, |_| false).unwrap();
    });
    assert_eq!(used.count_total, 0);
    let given = allocation_counter::measure(|| index.keeps_promises(id(0, 1), false).unwrap());
    assert_eq!(given.bytes_current as i64, -(PROMISES_MAX as i64 * 16));
}
