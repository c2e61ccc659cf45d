//! The rules of the prefix index in their plainest form, a time for each block and endpoint, beside the index under any
//! operations. What is held must be the same at every step.
//!
//! Drawn at random by `model`, from bytes by the fuzz target `index`.

use std::collections::{HashMap, HashSet, VecDeque};

use warmfront::fleet::EndpointId;
use warmfront::index::{Capacity, Expired, Index, Inserted, Matches, Missed, Origin, expect_answer};

pub const SLOTS: u16 = 3;
const SHARE: usize = 16;
/// Rows of a block's two buckets: with fewer in use all room is left to the ledgers.
const CROWDED_FROM: usize = 16;

/// A prompt by its blocks' contents: few different ones, so that prompts share beginnings. From [`STAND_IN`] on: what
/// stands for its answer.
pub type Prompt = Vec<u64>;
pub const STAND_IN: u64 = 1 << 32;

#[derive(Clone, Debug)]
pub enum Step {
    Insert(u16, Prompt),
    /// What follows so many blocks of a prompt.
    Append(u16, usize, Prompt),
    Promise(u16, Prompt),
    /// Promises of so many steps ago.
    Expire(u16, u32),
    Keep(u16, bool),
    Remove(u16, Prompt),
    TakeBack(u16, Prompt),
    /// From behind so many blocks of a prompt to its last, or to one that is not known.
    TakeBackLine(u16, usize, Prompt, bool),
    Assign(u16, bool, Option<u32>),
    Resize(u16, u32),
    Forget(u16),
}

/// The chain of a prompt whose blocks have these contents: equal beginnings, equal hashes.
pub fn chain(blocks: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let link = |hash: &mut u64, block: u64| {
        let mixed = (*hash ^ block.wrapping_add(1)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        *hash = (mixed ^ mixed >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
        Some(*hash)
    };
    blocks.into_iter().scan(7, link).collect()
}

pub fn id(slot: u16, generation: u32) -> EndpointId {
    EndpointId { slot, generation }
}

/// An index for so few blocks that they go for one another all the time.
pub fn small() -> Index {
    Index::new(Capacity { endpoints: SLOTS as usize, blocks: SLOTS as usize * SHARE, lengths: false }).unwrap()
}

pub fn links(prompt: &[u64]) -> Vec<u64> {
    let answer = prompt.iter().position(|&content| content >= STAND_IN).unwrap_or(prompt.len());
    let mut links = chain(prompt[..answer].to_vec());
    expect_answer(&mut links, prompt.len() - answer);
    links
}

/// Blocks that the endpoint holds in truth though the index was not told.
pub fn is_confirmed(link: u64) -> bool {
    link.is_multiple_of(3)
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
        self.confirm(&prompt[..now as usize]);
        Ok(Inserted { before: before - after as u32, now: now - after as u32, evicted })
    }

    /// An endpoint is chosen for a prompt, and it is believed at once.
    fn choose(&mut self, prompt: &[u64], now: u64) -> Inserted {
        self.answer_came(prompt);
        let inserted = self.insert(prompt, now);
        self.confirm(&prompt[..inserted.now as usize]);
        inserted
    }

    /// Where something else follows than what stood for an answer, that goes.
    fn answer_came(&mut self, prompt: &[u64]) {
        let held = self.depth(prompt);
        if held > 0 && held < prompt.len() && prompt[held] != STAND_IN {
            self.drop_below(&[&prompt[..held], &[STAND_IN]].concat());
        }
    }

    /// A block goes, and all that is built on it; answers how many blocks that were.
    fn drop_below(&mut self, top: &[u64]) -> u32 {
        let held = self.used.len();
        self.used.retain(|block, _| !block.starts_with(top));
        self.forget_gone();
        (held - self.used.len()) as u32
    }

    /// Of a line what is nobody else's, if one line at most goes on behind its end.
    fn drop_line(&mut self, top: &[u64], end: &[u64]) -> u32 {
        let below = |block: &[u64]| -> Vec<&Prompt> {
            self.used.keys().filter(|other| other.len() == block.len() + 1 && other.starts_with(block)).collect()
        };
        let (mut at, mut last) = (end.len(), end);
        if !self.used.contains_key(end) {
            return 0;
        }
        loop {
            match below(last)[..] {
                [] => break,
                [next] => last = next,
                _ => return 0,
            }
        }
        while at > top.len() && below(&end[..at - 1]).len() == 1 {
            at -= 1;
        }
        self.drop_below(&end[..at])
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
            self.drop_below(&last[..among.unwrap()]);
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

/// The index, and what it should hold.
struct Both {
    index: Index,
    endpoints: Vec<Endpoint>,
    seen: Vec<Prompt>,
}

/// Both of a block's buckets were full: from there on the index holds less than there is room for, as it may.
struct Crowded;

/// Does all of it, and compares: behind each step what so many prompts find that came last.
pub fn run(steps: impl IntoIterator<Item = Step>, looked_back: usize) {
    let endpoints = vec![Endpoint::default(); SLOTS as usize];
    let mut both = Both { index: small(), endpoints, seen: Vec::new() };
    for (step, now) in steps.into_iter().zip(1..) {
        if both.step(step, now).is_err() {
            return;
        }
        both.endpoints.iter_mut().for_each(Endpoint::forget_gone);
        both.compare(looked_back);
        if now % 8 == 0 {
            both.index.audit().unwrap();
        }
    }
    both.index.audit().unwrap();
    both.compare(usize::MAX);
    for (slot, endpoint) in (0..).zip(&both.endpoints).filter(|(_, endpoint)| endpoint.present) {
        if save_and_restore(&both.index, slot, endpoint.clone(), &both.seen).is_err() {
            return;
        }
    }
}

impl Both {
    fn step(&mut self, step: Step, now: u64) -> Result<(), Crowded> {
        let Both { index, endpoints, seen } = self;
        let (Step::Insert(slot, _)
        | Step::Append(slot, ..)
        | Step::Promise(slot, _)
        | Step::Expire(slot, _)
        | Step::Keep(slot, _)
        | Step::Remove(slot, _)
        | Step::TakeBack(slot, _)
        | Step::TakeBackLine(slot, ..)
        | Step::Assign(slot, ..)
        | Step::Resize(slot, _)
        | Step::Forget(slot)) = step;
        let endpoint = &mut endpoints[slot as usize];
        let id = id(slot, endpoint.generation);
        let here = |endpoint: &Endpoint| if endpoint.present { Ok(()) } else { Err(Missed::NotTheirs) };
        match step {
            Step::Insert(_, prompt) => {
                let inserted = index.insert(&links(&prompt), id, Origin::Choice);
                let expected = here(endpoint).map(|()| endpoint.choose(&prompt, now));
                seen.push(prompt);
                return agree(index, inserted, expected);
            }
            Step::Append(_, after, prompt) => {
                let (links, after) = (links(&prompt), after.min(prompt.len()));
                let block = after.checked_sub(1).map(|last| links[last]);
                let appended = index.append(block, &links[after..], id, Origin::Engine);
                let expected = here(endpoint).and_then(|()| endpoint.append(after, &prompt, now));
                seen.push(prompt);
                return agree(index, appended, expected);
            }
            Step::Promise(_, prompt) => {
                let promised = index.promise(&links(&prompt), id, now as u32);
                let expected = here(endpoint).map(|()| endpoint.promise(&prompt, now));
                seen.push(prompt);
                return agree(index, promised, expected);
            }
            Step::Expire(_, age) => {
                let before = (now as u32).saturating_sub(age);
                let expired = index.expire(id, before, is_confirmed);
                assert_eq!(expired, here(endpoint).map(|()| endpoint.expire(before)));
            }
            Step::Keep(_, keeps) => {
                assert_eq!(index.keeps_promises(id, keeps), here(endpoint));
                endpoint.keeps = keeps && endpoint.present;
                if !keeps {
                    endpoint.promises.clear();
                }
            }
            Step::Remove(_, ref prompt) | Step::TakeBack(_, ref prompt) => {
                let Some(&block) = links(prompt).last() else { return Ok(()) };
                let removed = match step {
                    Step::Remove(..) => index.remove(block, id),
                    _ => index.take_back(block, id),
                };
                assert_eq!(removed, here(endpoint).map(|()| endpoint.drop_below(prompt)));
            }
            Step::TakeBackLine(_, before, prompt, is_known) => {
                let (links, top) = (links(&prompt), before.min(prompt.len().saturating_sub(1)) + 1);
                let Some(&block) = links.get(top - 1) else { return Ok(()) };
                let last = links.last().copied().filter(|_| is_known);
                let end = if is_known { prompt.len() } else { top };
                let expected = here(endpoint).map(|()| endpoint.drop_line(&prompt[..top], &prompt[..end]));
                assert_eq!(index.take_back_line(block, last, id), expected);
            }
            Step::Assign(_, same, capacity) => {
                let generation = endpoint.generation + u32::from(!same);
                let granted = index.assign(self::id(slot, generation), capacity).unwrap() as usize;
                assert!(granted <= capacity.unwrap_or(SHARE as u32) as usize);
                *endpoint = Endpoint { generation, present: true, capacity: granted, ..Endpoint::default() };
            }
            Step::Resize(_, blocks) => {
                match index.resize(id, blocks) {
                    Ok(granted) => endpoint.capacity = granted as usize,
                    Err(missed) => assert_eq!(Err(missed), here(endpoint)),
                }
                while endpoint.used.len() > endpoint.capacity && endpoint.evict(now) {}
            }
            Step::Forget(_) => {
                index.forget(slot).unwrap();
                *endpoint = Endpoint { generation: endpoint.generation, ..Endpoint::default() };
            }
        }
        Ok(())
    }

    fn compare(&self, looked_back: usize) {
        let Both { index, endpoints, seen } = self;
        let ids: Vec<_> = endpoints.iter().zip(0..).map(|(endpoint, slot)| id(slot, endpoint.generation)).collect();
        let mut found = Matches::default();
        for (slot, endpoint) in endpoints.iter().enumerate() {
            let blocks = index.figures(slot as u16).blocks as usize;
            assert_eq!(blocks, endpoint.used.len());
            assert!(blocks <= endpoint.capacity);
        }
        for prompt in seen.iter().rev().take(looked_back) {
            index.longest(&links(prompt), &ids, &mut found);
            for (slot, endpoint) in endpoints.iter().enumerate() {
                assert_eq!(found.depth(slot as u16) as usize, endpoint.depth(prompt), "slot {slot} of {prompt:?}");
            }
        }
    }
}

/// The index did what it should, or found no row for a block, where so many are in use that this can be.
fn agree(index: &Index, done: Result<Inserted, Missed>, expected: Result<Inserted, Missed>) -> Result<(), Crowded> {
    if let (Ok(done), Ok(expected)) = (done, expected)
        && done.now < expected.now
        && index.audit().unwrap() >= CROWDED_FROM
    {
        assert_eq!(done.before, expected.before);
        return Err(Crowded);
    }
    assert_eq!(done, expected);
    Ok(())
}

/// Another index that is made of what an endpoint holds, its promises left out, loses the same blocks from there on.
fn save_and_restore(index: &Index, slot: u16, mut endpoint: Endpoint, seen: &[Prompt]) -> Result<(), Crowded> {
    let id = id(slot, endpoint.generation);
    let mut saved = Vec::new();
    index.save(id, &mut |parent, block| saved.push((parent, block))).unwrap();
    let other = small();
    let capacity = endpoint.capacity as u32;
    assert_eq!((other.layout(), other.assign(id, Some(capacity))), (index.layout(), Ok(capacity)));
    for (parent, block) in saved {
        assert_eq!(other.restore(parent, block, id), Ok(true));
    }
    endpoint.used.retain(|block, _| !endpoint.promised.contains(block));
    assert_eq!(other.figures(slot).inserted[Origin::Saved as usize], endpoint.used.len() as u64);
    let mut found = Matches::default();
    for new in 0..SHARE as u64 + 4 {
        assert_eq!(other.figures(slot).blocks as usize, endpoint.used.len());
        for prompt in seen.iter().rev().take(20) {
            other.longest(&links(prompt), &[id], &mut found);
            assert_eq!(found.depth(slot) as usize, endpoint.depth(prompt), "{prompt:?}");
        }
        let filler: Prompt = vec![1_000 + new];
        let expected = endpoint.insert(&filler, u64::MAX / 2 + new);
        agree(&other, other.insert(&links(&filler), id, Origin::Choice), Ok(expected))?;
    }
    other.audit().unwrap();
    Ok(())
}
