//! The rules in their plainest form, a time for each block and endpoint, beside the index under random operations. What
//! is held must be the same at every step.

use std::collections::HashMap;

use proptest::prelude::*;
use warmfront::index::{Capacity, Index, Inserted, Matches, Missed, Origin};

use crate::{chain, id};

const SLOTS: u16 = 3;
const SHARE: usize = 16;

/// A prompt by its blocks' contents: few different ones, so that prompts share beginnings.
type Prompt = Vec<u64>;

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, Prompt),
    /// What follows so many blocks of a prompt.
    Append(u16, usize, Prompt),
    Remove(u16, Prompt),
    Assign(u16, bool, Option<u32>),
    Resize(u16, u32),
    Forget(u16),
}

fn prompt() -> impl Strategy<Value = Prompt> {
    // Long runs of the same contents, so that chains of different lengths lie on one another.
    (0u64..3, 0usize..14, 0u64..3, 0usize..8)
        .prop_map(|(a, n, b, m)| std::iter::repeat_n(a, n).chain(std::iter::repeat_n(b, m)).collect())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..SLOTS, prompt()).prop_map(|(slot, prompt)| Step::Insert(slot, prompt)),
        20 => (0..SLOTS, 0usize..14, prompt()).prop_map(|(slot, after, prompt)| Step::Append(slot, after, prompt)),
        4 => (0..SLOTS, prompt()).prop_map(|(slot, prompt)| Step::Remove(slot, prompt)),
        1 => (0..SLOTS, any::<bool>(), proptest::option::of(0u32..40)).prop_map(|(s, same, c)| Step::Assign(s, same, c)),
        1 => (0..SLOTS, 0u32..40).prop_map(|(slot, blocks)| Step::Resize(slot, blocks)),
        1 => (0..SLOTS).prop_map(Step::Forget),
    ]
}

/// One slot.
#[derive(Default)]
struct Endpoint {
    generation: u32,
    present: bool,
    capacity: usize,
    /// When each block, named by all contents up to it, was last used.
    used: HashMap<Prompt, u64>,
}

impl Endpoint {
    fn depth(&self, prompt: &[u64]) -> usize {
        (1..=prompt.len()).take_while(|&depth| self.used.contains_key(&prompt[..depth])).count()
    }

    /// The oldest goes, of those used together the deepest; never what is in use `now`.
    fn evict(&mut self, now: u64) -> bool {
        let oldest = self
            .used
            .iter()
            .filter(|(_, time)| **time < now)
            .min_by_key(|(block, time)| (**time, usize::MAX - block.len()));
        let Some(block) = oldest.map(|(block, _)| block.clone()) else { return false };
        self.used.remove(&block);
        true
    }

    /// What is known of a prompt's first blocks by the last of them.
    fn append(&mut self, after: usize, prompt: &[u64], now: u64) -> Result<Inserted, Missed> {
        if self.depth(&prompt[..after]) < after {
            return Err(Missed::Orphan);
        }
        let Inserted { before, now, evicted } = self.insert(prompt, now);
        Ok(Inserted { before: before - after as u32, now: now - after as u32, evicted })
    }

    fn insert(&mut self, prompt: &[u64], now: u64) -> Inserted {
        let before = self.depth(prompt);
        (1..=before).for_each(|depth| {
            self.used.insert(prompt[..depth].to_vec(), now);
        });
        let mut inserted = Inserted { before: before as u32, now: before as u32, evicted: 0 };
        for depth in before + 1..=prompt.len() {
            if self.used.len() >= self.capacity {
                if !self.evict(now) {
                    break;
                }
                inserted.evicted += 1;
            }
            self.used.insert(prompt[..depth].to_vec(), now);
            inserted.now += 1;
        }
        inserted
    }
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let index = Index::new(Capacity { endpoints: SLOTS as usize, blocks: SLOTS as usize * SHARE }).unwrap();
    let mut endpoints: Vec<Endpoint> = (0..SLOTS).map(|_| Endpoint::default()).collect();
    let mut seen: Vec<Prompt> = Vec::new();
    for (now, step) in steps.into_iter().enumerate() {
        let now = now as u64 + 1;
        match step {
            Step::Insert(slot, prompt) => {
                let endpoint = &mut endpoints[slot as usize];
                let inserted = index.insert(&chain(prompt.clone()), id(slot, endpoint.generation), Origin::Choice);
                let expected = if endpoint.present { Ok(endpoint.insert(&prompt, now)) } else { Err(Missed::Stranger) };
                prop_assert_eq!(inserted, expected);
                seen.push(prompt);
            }
            Step::Append(slot, after, prompt) => {
                let endpoint = &mut endpoints[slot as usize];
                let (links, after) = (chain(prompt.clone()), after.min(prompt.len()));
                let block = after.checked_sub(1).map(|last| links[last]);
                let id = id(slot, endpoint.generation);
                let appended = index.append(block, &links[after..], id, Origin::Engine);
                let expected =
                    if endpoint.present { endpoint.append(after, &prompt, now) } else { Err(Missed::Stranger) };
                prop_assert_eq!(appended, expected);
                seen.push(prompt);
            }
            Step::Remove(slot, prompt) => {
                let endpoint = &mut endpoints[slot as usize];
                let Some(&block) = chain(prompt.clone()).last().filter(|_| endpoint.present) else { continue };
                let held = endpoint.used.len();
                endpoint.used.retain(|block, _| !block.starts_with(&prompt));
                let removed = (held - endpoint.used.len()) as u32;
                prop_assert_eq!(index.remove(block, id(slot, endpoint.generation)), Ok(removed));
            }
            Step::Assign(slot, same, capacity) => {
                let endpoint = &mut endpoints[slot as usize];
                let generation = endpoint.generation + u32::from(!same);
                let granted = index.assign(id(slot, generation), capacity).unwrap() as usize;
                prop_assert!(granted <= capacity.unwrap_or(SHARE as u32) as usize);
                *endpoint = Endpoint { generation, present: true, capacity: granted, used: HashMap::new() };
            }
            Step::Resize(slot, blocks) => {
                let endpoint = &mut endpoints[slot as usize];
                match index.resize(id(slot, endpoint.generation), blocks) {
                    Ok(granted) => endpoint.capacity = granted as usize,
                    Err(missed) => prop_assert!(missed == Missed::Stranger && !endpoint.present),
                }
                while endpoint.used.len() > endpoint.capacity && endpoint.evict(now) {}
            }
            Step::Forget(slot) => {
                index.forget(slot).unwrap();
                let endpoint = &mut endpoints[slot as usize];
                *endpoint = Endpoint { generation: endpoint.generation, ..Endpoint::default() };
            }
        }
        compare(&index, &endpoints, &seen)?;
    }
    index.audit().map_err(TestCaseError::fail)?;
    Ok(())
}

fn compare(index: &Index, endpoints: &[Endpoint], seen: &[Prompt]) -> Result<(), TestCaseError> {
    let ids: Vec<_> = endpoints.iter().zip(0..).map(|(endpoint, slot)| id(slot, endpoint.generation)).collect();
    let mut found = Matches::default();
    for (slot, endpoint) in endpoints.iter().enumerate() {
        let blocks = index.figures(slot as u16).blocks as usize;
        prop_assert_eq!(blocks, endpoint.used.len());
        prop_assert!(blocks <= endpoint.capacity);
    }
    for prompt in seen.iter().rev().take(40) {
        index.longest(&chain(prompt.clone()), &ids, &mut found);
        for (slot, endpoint) in endpoints.iter().enumerate() {
            prop_assert_eq!(found.depth(slot as u16) as usize, endpoint.depth(prompt), "slot {} of {:?}", slot, prompt);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_held_is_what_the_rules_say(steps in proptest::collection::vec(step(), 1..120)) {
        let assigned = (0..SLOTS).map(|slot| Step::Assign(slot, false, None));
        run(assigned.chain(steps).collect())?;
    }
}
