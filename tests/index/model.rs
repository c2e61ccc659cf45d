//! The rules in their plainest form, a time for each block and endpoint, beside the index under random operations. What
//! is held must be the same at every step.

use std::collections::{HashMap, HashSet, VecDeque};

use proptest::prelude::*;
use warmfront::index::{Capacity, Expired, Index, Inserted, Matches, Missed, Origin, expect_answer};

use crate::{chain, depth, id, insert};

const SLOTS: u16 = 3;
const SHARE: usize = 16;

/// A prompt by its blocks' contents: few different ones, so that prompts share beginnings. From [`STAND_IN`] on: what
/// stands for its answer.
type Prompt = Vec<u64>;
const STAND_IN: u64 = 1 << 32;

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, Prompt),
    /// What follows so many blocks of a prompt.
    Append(u16, usize, Prompt),
    Promise(u16, Prompt),
    /// Promises of so many steps ago.
    Expire(u16, u32),
    Keep(u16, bool),
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

/// A prompt that an answer is expected of.
fn asked() -> impl Strategy<Value = Prompt> {
    (prompt(), 0u64..5).prop_map(|(mut prompt, answer)| {
        let answer = if prompt.is_empty() { 0 } else { answer };
        prompt.extend((0..answer).map(|at| STAND_IN + at));
        prompt
    })
}

fn links(prompt: &[u64]) -> Vec<u64> {
    let answer = prompt.iter().position(|&content| content >= STAND_IN).unwrap_or(prompt.len());
    let mut links = chain(prompt[..answer].to_vec());
    expect_answer(&mut links, prompt.len() - answer);
    links
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..SLOTS, asked()).prop_map(|(slot, prompt)| Step::Insert(slot, prompt)),
        20 => (0..SLOTS, 0usize..14, prompt()).prop_map(|(slot, after, prompt)| Step::Append(slot, after, prompt)),
        20 => (0..SLOTS, asked()).prop_map(|(slot, prompt)| Step::Promise(slot, prompt)),
        6 => (0..SLOTS, 0u32..60).prop_map(|(slot, age)| Step::Expire(slot, age)),
        1 => (0..SLOTS, proptest::bool::weighted(0.8)).prop_map(|(slot, keeps)| Step::Keep(slot, keeps)),
        4 => (0..SLOTS, prompt()).prop_map(|(slot, prompt)| Step::Remove(slot, prompt)),
        1 => (0..SLOTS, any::<bool>(), proptest::option::of(0u32..40)).prop_map(|(s, same, c)| Step::Assign(s, same, c)),
        4 => (0..SLOTS, 0u32..40).prop_map(|(slot, blocks)| Step::Resize(slot, blocks)),
        1 => (0..SLOTS).prop_map(Step::Forget),
    ]
}

/// One slot.
#[derive(Clone, Default)]
struct Endpoint {
    generation: u32,
    present: bool,
    capacity: usize,
    /// When each block, named by all contents up to it, was last used.
    used: HashMap<Prompt, u64>,
    keeps: bool,
    promised: HashSet<Prompt>,
    /// The last block of each promise, how many were new, and when.
    promises: VecDeque<(Prompt, usize, u32)>,
}

/// Blocks that the endpoint holds in truth though the index was not told.
fn is_confirmed(link: u64) -> bool {
    link.is_multiple_of(3)
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

    /// Where something else follows than what stood for an answer, that goes.
    fn answer_came(&mut self, prompt: &[u64]) {
        let held = self.depth(prompt);
        if held > 0 && held < prompt.len() && prompt[held] != STAND_IN {
            let top = [&prompt[..held], &[STAND_IN]].concat();
            self.used.retain(|block, _| !block.starts_with(&top));
            self.forget_gone();
        }
    }

    /// What follows holds this prompt in truth.
    fn confirm(&mut self, prompt: &[u64]) {
        (1..=prompt.len()).for_each(|depth| {
            self.promised.remove(&prompt[..depth]);
        });
    }

    fn promise(&mut self, prompt: &[u64], now: u64) -> Inserted {
        self.answer_came(prompt);
        let inserted = self.insert(prompt, now);
        let (before, end) = (inserted.before as usize, inserted.now as usize);
        if !self.keeps {
            self.confirm(&prompt[..end]);
        } else if end > before {
            self.promised.extend((before + 1..=end).map(|depth| prompt[..depth].to_vec()));
            self.promises.push_back((prompt[..end].to_vec(), end - before, now as u32));
        }
        inserted
    }

    fn expire(&mut self, before: u32) -> Expired {
        let held = self.used.len();
        while let Some((last, new, _)) = self.promises.pop_front_if(|(_, _, made)| *made < before) {
            if !self.promised.contains(&last) {
                continue;
            }
            if is_confirmed(*links(&last).last().unwrap()) {
                self.confirm(&last);
                continue;
            }
            let among = (last.len() + 1 - new..=last.len()).find(|&depth| self.promised.contains(&last[..depth]));
            let top = &last[..among.unwrap()];
            self.used.retain(|block, _| !block.starts_with(top));
            self.forget_gone();
        }
        Expired { blocks: (held - self.used.len()) as u32, more: false }
    }

    fn forget_gone(&mut self) {
        self.promised.retain(|block| self.used.contains_key(block));
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
    let index =
        Index::new(Capacity { endpoints: SLOTS as usize, blocks: SLOTS as usize * SHARE, lengths: false }).unwrap();
    let mut endpoints: Vec<Endpoint> = (0..SLOTS).map(|_| Endpoint::default()).collect();
    let mut seen: Vec<Prompt> = Vec::new();
    for (now, step) in steps.into_iter().enumerate() {
        let now = now as u64 + 1;
        match step {
            Step::Insert(slot, prompt) => {
                let endpoint = &mut endpoints[slot as usize];
                let inserted = index.insert(&links(&prompt), id(slot, endpoint.generation), Origin::Choice);
                let expected = match endpoint.present {
                    true => {
                        endpoint.answer_came(&prompt);
                        Ok(endpoint.insert(&prompt, now))
                    }
                    false => Err(Missed::NotTheirs),
                };
                expected.iter().for_each(|inserted| endpoint.confirm(&prompt[..inserted.now as usize]));
                prop_assert_eq!(inserted, expected);
                seen.push(prompt);
            }
            Step::Append(slot, after, prompt) => {
                let endpoint = &mut endpoints[slot as usize];
                let (links, after) = (links(&prompt), after.min(prompt.len()));
                let block = after.checked_sub(1).map(|last| links[last]);
                let id = id(slot, endpoint.generation);
                let appended = index.append(block, &links[after..], id, Origin::Engine);
                let expected =
                    if endpoint.present { endpoint.append(after, &prompt, now) } else { Err(Missed::NotTheirs) };
                expected.iter().for_each(|inserted| endpoint.confirm(&prompt[..after + inserted.now as usize]));
                prop_assert_eq!(appended, expected);
                seen.push(prompt);
            }
            Step::Promise(slot, prompt) => {
                let endpoint = &mut endpoints[slot as usize];
                let promised = index.promise(&links(&prompt), id(slot, endpoint.generation), now as u32);
                let expected =
                    if endpoint.present { Ok(endpoint.promise(&prompt, now)) } else { Err(Missed::NotTheirs) };
                prop_assert_eq!(promised, expected);
                seen.push(prompt);
            }
            Step::Expire(slot, age) => {
                let endpoint = &mut endpoints[slot as usize];
                let before = (now as u32).saturating_sub(age);
                let expired = index.expire(id(slot, endpoint.generation), before, is_confirmed);
                let expected = if endpoint.present { Ok(endpoint.expire(before)) } else { Err(Missed::NotTheirs) };
                prop_assert_eq!(expired, expected);
            }
            Step::Keep(slot, keeps) => {
                let endpoint = &mut endpoints[slot as usize];
                let kept = index.keeps_promises(id(slot, endpoint.generation), keeps);
                prop_assert_eq!(kept, if endpoint.present { Ok(()) } else { Err(Missed::NotTheirs) });
                endpoint.keeps = keeps && endpoint.present;
                if !keeps {
                    endpoint.promises.clear();
                }
            }
            Step::Remove(slot, prompt) => {
                let endpoint = &mut endpoints[slot as usize];
                let Some(&block) = links(&prompt).last().filter(|_| endpoint.present) else { continue };
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
                *endpoint = Endpoint { generation, present: true, capacity: granted, ..Endpoint::default() };
            }
            Step::Resize(slot, blocks) => {
                let endpoint = &mut endpoints[slot as usize];
                match index.resize(id(slot, endpoint.generation), blocks) {
                    Ok(granted) => endpoint.capacity = granted as usize,
                    Err(missed) => prop_assert!(missed == Missed::NotTheirs && !endpoint.present),
                }
                while endpoint.used.len() > endpoint.capacity && endpoint.evict(now) {}
            }
            Step::Forget(slot) => {
                index.forget(slot).unwrap();
                let endpoint = &mut endpoints[slot as usize];
                *endpoint = Endpoint { generation: endpoint.generation, ..Endpoint::default() };
            }
        }
        endpoints.iter_mut().for_each(Endpoint::forget_gone);
        compare(&index, &endpoints, &seen)?;
        if now.is_multiple_of(8) {
            index.audit().map_err(TestCaseError::fail)?;
        }
    }
    index.audit().map_err(TestCaseError::fail)?;
    for (slot, endpoint) in (0..).zip(&endpoints).filter(|(_, endpoint)| endpoint.present) {
        save_and_restore(&index, slot, endpoint.clone(), &seen)?;
    }
    Ok(())
}

/// Another index that is made of what an endpoint holds, its promises left out, loses the same blocks from there on.
fn save_and_restore(index: &Index, slot: u16, mut endpoint: Endpoint, seen: &[Prompt]) -> Result<(), TestCaseError> {
    let id = id(slot, endpoint.generation);
    let mut saved = Vec::new();
    index.save(id, &mut |parent, block| saved.push((parent, block))).unwrap();
    let other =
        Index::new(Capacity { endpoints: SLOTS as usize, blocks: SLOTS as usize * SHARE, lengths: false }).unwrap();
    prop_assert_eq!(
        (other.layout(), other.assign(id, Some(endpoint.capacity as u32))),
        (index.layout(), Ok(endpoint.capacity as u32))
    );
    for (parent, block) in saved {
        prop_assert_eq!(other.restore(parent, block, id), Ok(true));
    }
    endpoint.used.retain(|block, _| !endpoint.promised.contains(block));
    prop_assert_eq!(other.figures(slot).inserted[Origin::Saved as usize], endpoint.used.len() as u64);
    for new in 0..SHARE as u64 + 4 {
        prop_assert_eq!(other.figures(slot).blocks as usize, endpoint.used.len());
        for prompt in seen.iter().rev().take(20) {
            prop_assert_eq!(depth(&other, &links(prompt), id) as usize, endpoint.depth(prompt), "{:?}", prompt);
        }
        let filler: Prompt = vec![1_000 + new];
        prop_assert_eq!(insert(&other, &links(&filler), id), endpoint.insert(&filler, u64::MAX / 2 + new));
    }
    other.audit().map_err(TestCaseError::fail)?;
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
        index.longest(&links(prompt), &ids, &mut found);
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
        run(assigned.chain((0..SLOTS).map(|slot| Step::Keep(slot, slot > 0))).chain(steps).collect())?;
    }
}
