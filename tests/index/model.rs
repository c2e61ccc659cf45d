//! The rules in their plainest form (`rules`) beside the index under random operations.

use proptest::prelude::*;

use crate::rules::{Prompt, SLOTS, STAND_IN, Step, run};

fn prompt() -> impl Strategy<Value = Prompt> {
    // Long runs of the same contents, so that chains of different lengths lie on one another.
    (0u64..3, 0usize..14, 0u64..3, 0usize..8)
        .prop_map(|(a, n, b, m)| std::iter::repeat_n(a, n).chain(std::iter::repeat_n(b, m)).collect())
}

/// A prompt that an answer is expected of.
fn asked() -> impl Strategy<Value = Prompt> {
    (prompt(), 0u64..5).prop_map(|(mut prompt, answer)| {
        let answer = if prompt.is_empty() { 0 } else { answer };
        prompt.extend((0..answer).map(|at| STAND_IN + at));
        prompt
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..SLOTS, asked()).prop_map(|(slot, prompt)| Step::Insert(slot, prompt)),
        20 => (0..SLOTS, 0usize..14, prompt()).prop_map(|(slot, after, prompt)| Step::Append(slot, after, prompt)),
        20 => (0..SLOTS, asked()).prop_map(|(slot, prompt)| Step::Promise(slot, prompt)),
        6 => (0..SLOTS, 0u32..60).prop_map(|(slot, age)| Step::Expire(slot, age)),
        1 => (0..SLOTS, proptest::bool::weighted(0.8)).prop_map(|(slot, keeps)| Step::Keep(slot, keeps)),
        4 => (0..SLOTS, prompt()).prop_map(|(slot, prompt)| Step::Remove(slot, prompt)),
        2 => (0..SLOTS, asked()).prop_map(|(slot, prompt)| Step::TakeBack(slot, prompt)),
        4 => (0..SLOTS, 0usize..14, asked(), proptest::bool::weighted(0.8))
            .prop_map(|(slot, before, prompt, is_known)| Step::TakeBackLine(slot, before, prompt, is_known)),
        1 => (0..SLOTS, any::<bool>(), proptest::option::of(0u32..40)).prop_map(|(s, same, c)| Step::Assign(s, same, c)),
        4 => (0..SLOTS, 0u32..40).prop_map(|(slot, blocks)| Step::Resize(slot, blocks)),
        1 => (0..SLOTS).prop_map(Step::Forget),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_held_is_what_the_rules_say(steps in proptest::collection::vec(step(), 1..120)) {
        let assigned = (0..SLOTS).map(|slot| Step::Assign(slot, false, None));
        run(assigned.chain((0..SLOTS).map(|slot| Step::Keep(slot, slot > 0))).chain(steps), 40);
    }
}
