//! What stands for answers until they are known.

use warmfront::index::{ANSWER_BLOCKS_MAX, Index, Origin, expect_answer};

use crate::{chain, depth, id, made};

/// A prompt of these blocks that is chosen for, with an answer of so many.
fn ask(index: &Index, prompt: &[u64], answer: usize) {
    let mut links = prompt.to_vec();
    index.ask(&mut links, answer, id(0, 1), false).unwrap();
    assert_eq!(links, prompt, "it is as it was");
}

#[test]
fn answers_take_room_that_others_had() {
    let (index, _) = made(1, 16);
    let prompts = [chain(0..6), chain(100..106), chain(200..206)];
    ask(&index, &prompts[0], 0);
    ask(&index, &prompts[1], 0);
    assert_eq!(index.figures(0).evicted, 0, "two prompts fit by themselves");
    ask(&index, &prompts[1], 4);
    assert_eq!((depth(&index, &prompts[0], id(0, 1)), index.figures(0).blocks), (6, 16));
    ask(&index, &prompts[2], 5);
    assert_eq!(depth(&index, &prompts[0], id(0, 1)), 0, "the oldest goes for prompt and answer");
    assert_eq!((depth(&index, &prompts[1], id(0, 1)), depth(&index, &prompts[2], id(0, 1))), (5, 6));
    index.audit().unwrap();
}

#[test]
fn the_next_turn_brings_the_answer_under_its_own_name() {
    let (index, _) = made(1, 32);
    let turns = chain(0..20);
    ask(&index, &turns[..6], 3);
    ask(&index, &turns[..6], 3);
    assert_eq!((index.figures(0).blocks, index.figures(0).answered), (9, 0), "asked again, it has the same answer");
    ask(&index, &turns[..12], 2);
    assert_eq!((index.figures(0).blocks, index.figures(0).answered), (14, 3));
    ask(&index, &turns[..7], 1);
    assert_eq!((index.figures(0).blocks, depth(&index, &turns, id(0, 1))), (15, 12), "a turn is asked once more");
    index.append(Some(turns[11]), &turns[12..], id(0, 1), Origin::Engine).unwrap();
    assert_eq!((index.figures(0).blocks, index.figures(0).answered), (23, 3), "what an engine says names no answers");
    assert_eq!((index.figures(0).expected, index.figures(0).came()), (6, 20), "by its prompts alone");
    assert_eq!(index.figures(0).gone(), 0, "none of this was for want of room");
    index.audit().unwrap();
}

#[test]
fn no_answer_is_longer_than_the_longest() {
    let mut links = chain(0..2);
    expect_answer(&mut links, usize::MAX);
    assert_eq!(links.len(), 2 + ANSWER_BLOCKS_MAX);
    links.sort_unstable();
    links.dedup();
    assert_eq!(links.len(), 2 + ANSWER_BLOCKS_MAX, "each has a name of its own");
    let mut nothing = Vec::new();
    expect_answer(&mut nothing, 5);
    assert!(nothing.is_empty(), "a prompt shorter than a block has nothing to be named after");
}
