//! The prefix index under any operations: what its rules say, where it has rows enough, and whole where it has not.

use std::collections::{HashMap, HashSet};

use warmfront::fleet::EndpointId;
use warmfront::index::{Figures, Index, Matches, Origin, Saved, expect_answer};

use super::rules::{self, Prompt, SLOTS, STAND_IN, Step, chain, id, is_confirmed, small};

/// Of a longer script no more is done.
const STEPS_MAX: usize = 160;
const STEP_BYTES: usize = 4;
/// Of the last prompts so many are looked up behind each step.
const LOOKED_BACK: usize = 4;
/// The lower bits of a hash choose its first bucket.
const FIRST_PLACE: u64 = (1 << 20) - 1;
/// The index's own are from 0 on.
const ELSEWHERE: u16 = SLOTS;

/// The first byte says what links are like: as prefixes have them; such that they crowd into few buckets; or such that
/// they come again in one chain.
pub fn index(bytes: &[u8]) {
    let Some((first, script)) = bytes.split_first() else { return };
    let assigned = (0..SLOTS).flat_map(|slot| [Step::Assign(slot, false, None), Step::Keep(slot, slot > 0)]);
    let steps = assigned.chain(script.chunks_exact(STEP_BYTES).take(STEPS_MAX).map(step));
    match first % 3 {
        0 => rules::run(steps, LOOKED_BACK),
        1 => crowd(steps, crowded, true),
        _ => crowd(steps, repeated, false),
    }
}

fn step(bytes: &[u8]) -> Step {
    let &[kind, first, second, rest] = bytes else { unreachable!("steps have their length") };
    let slot = u16::from(kind >> 4) % SLOTS;
    let run = |byte: u8, most: u8| std::iter::repeat_n(u64::from(byte % 3), usize::from(byte / 3 % most));
    let prompt: Prompt = run(first, 14).chain(run(second, 8)).collect();
    let answer = if prompt.is_empty() { 0 } else { u64::from(rest % 5) };
    let asked = prompt.iter().copied().chain(STAND_IN..STAND_IN + answer).collect();
    let part = usize::from(rest) % (prompt.len() + 1);
    match kind % 16 {
        0..4 => Step::Insert(slot, asked),
        4..6 => Step::Append(slot, part, prompt),
        6..8 => Step::Promise(slot, asked),
        8 => Step::Expire(slot, u32::from(rest % 60)),
        9 => Step::Keep(slot, rest % 4 > 0),
        10 => Step::Remove(slot, prompt),
        11 => Step::TakeBack(slot, asked),
        12 => Step::TakeBackLine(slot, part, asked, rest < 200),
        13 => Step::Assign(slot, first % 2 == 0, Some(u32::from(rest % 64)).filter(|blocks| *blocks < 40)),
        14 => Step::Resize(slot, u32::from(rest % 40)),
        _ if rest < 64 => Step::Forget(slot),
        _ => Step::Insert(slot, prompt),
    }
}

/// Names as prefixes have them, but of all blocks one of the buckets is the same.
fn crowded(prompt: &[u64]) -> Vec<u64> {
    let answer = prompt.iter().position(|&content| content >= STAND_IN).unwrap_or(prompt.len());
    let mut links: Vec<u64> = chain(prompt[..answer].iter().copied()).iter().map(|link| link & !FIRST_PLACE).collect();
    expect_answer(&mut links, prompt.len() - answer);
    links
}

/// Names by the content alone, and a different one now and then.
fn repeated(prompt: &[u64]) -> Vec<u64> {
    let link = |(at, content): (usize, &u64)| chain([*content, at as u64 / 3])[1] & !(FIRST_PLACE >> 1);
    prompt.iter().enumerate().map(link).collect()
}

/// Does all of it, to ends that nobody can foretell, and sees that it is whole.
fn crowd(steps: impl Iterator<Item = Step>, links: fn(&[u64]) -> Vec<u64>, are_prefixes: bool) {
    let (index, mut generations) = (small(), [0; SLOTS as usize]);
    let (mut seen, mut found) = (Vec::new(), [Matches::default(), Matches::default()]);
    for (step, now) in steps.zip(1..) {
        let before = figures(&index);
        let anew = done(&index, &step, &mut generations, now, links, &mut seen);
        for (slot, (before, behind)) in (0..).zip(before.iter().zip(figures(&index))) {
            assert!(behind.blocks <= behind.capacity, "{step:?}");
            let blocks = if anew == Some(slot) { 0 } else { i64::from(before.blocks) };
            assert_eq!(i64::from(behind.blocks), blocks + added(&behind) - added(before), "slot {slot}: {step:?}");
        }
        index.audit().unwrap_or_else(|fault| panic!("{fault} behind {step:?}"));
        if are_prefixes {
            seen.iter().rev().take(LOOKED_BACK).for_each(|chain| closed(&index, &generations, chain, &mut found));
        }
    }
    (0..SLOTS).for_each(|slot| again(&index, id(slot, generations[usize::from(slot)])));
}

/// Answers whose slot is empty since.
fn done(
    index: &Index,
    step: &Step,
    generations: &mut [u32; SLOTS as usize],
    now: u32,
    links: fn(&[u64]) -> Vec<u64>,
    seen: &mut Vec<Vec<u64>>,
) -> Option<u16> {
    let who = |slot: &u16| id(*slot, generations[usize::from(*slot)]);
    let mut look = |prompt: &[u64]| {
        seen.push(links(prompt));
        links(prompt)
    };
    match step {
        Step::Insert(slot, prompt) => drop(index.insert(&look(prompt), who(slot), Origin::Choice)),
        Step::Append(slot, part, prompt) => {
            let links = look(prompt);
            let after = part.checked_sub(1).map(|last| links[last]);
            let _ = index.append(after, &links[*part..], who(slot), Origin::Engine);
        }
        Step::Promise(slot, prompt) => drop(index.promise(&look(prompt), who(slot), now)),
        Step::Expire(slot, age) => drop(index.expire(who(slot), now.saturating_sub(*age), is_confirmed)),
        Step::Keep(slot, keeps) => drop(index.keeps_promises(who(slot), *keeps)),
        Step::Remove(slot, prompt) => drop(links(prompt).last().map(|link| index.remove(*link, who(slot)))),
        // Beside taking back: what another endpoint holds, as it is saved.
        Step::TakeBack(slot, prompt) if prompt.len() % 4 == 0 => {
            let from = who(&((slot + 1) % SLOTS));
            for (parent, block) in saved(index, from) {
                let _ = index.restore(parent, block, who(slot));
            }
        }
        Step::TakeBack(slot, prompt) => drop(links(prompt).last().map(|link| index.take_back(*link, who(slot)))),
        Step::TakeBackLine(slot, top, prompt, is_known) => {
            let links = links(prompt);
            let last = links.last().copied().filter(|_| *is_known);
            let _ = links.get(*top).map(|link| index.take_back_line(*link, last, who(slot)));
        }
        Step::Assign(slot, same, capacity) => {
            generations[usize::from(*slot)] += u32::from(!same);
            index.assign(id(*slot, generations[usize::from(*slot)]), *capacity).unwrap();
            return Some(*slot);
        }
        Step::Resize(slot, blocks) => drop(index.resize(who(slot), *blocks)),
        Step::Forget(slot) => {
            index.forget(*slot).unwrap();
            return Some(*slot);
        }
    }
    None
}

fn figures(index: &Index) -> Vec<Figures> {
    assert_eq!(index.figures(ELSEWHERE), Figures::default());
    (0..SLOTS).map(|slot| index.figures(slot)).collect()
}

/// Blocks that came and did not go, since the start.
fn added(figures: &Figures) -> i64 {
    let gone = figures.evicted + figures.removed + figures.taken_back + figures.expired + figures.answered;
    figures.inserted.iter().sum::<u64>() as i64 - gone as i64
}

/// Who holds a block holds all before it, and a look at all of them finds what looks at each do.
fn closed(index: &Index, generations: &[u32; SLOTS as usize], chain: &[u64], found: &mut [Matches; 2]) {
    let ids: Vec<EndpointId> = (0..SLOTS).zip(generations).map(|(slot, generation)| id(slot, *generation)).collect();
    let [whole, one] = found;
    index.longest(chain, &ids, whole);
    for (at, link) in (1..).zip(chain) {
        index.longest(&[*link], &ids, one);
        for slot in 0..SLOTS {
            assert_eq!(one.depth(slot) > 0, at <= whole.depth(slot), "slot {slot}: {at} of {chain:x?}");
        }
    }
}

fn saved(index: &Index, id: EndpointId) -> Vec<(Option<Saved>, Saved)> {
    let mut saved = Vec::new();
    let _ = index.save(id, &mut |parent, block| saved.push((parent, block)));
    saved
}

/// Another index made of what an endpoint holds, and one made of that, hold the same, which goes in the same order.
fn again(index: &Index, id: EndpointId) {
    let blocks = |saved: &[(Option<Saved>, Saved)]| saved.iter().map(|(_, block)| *block).collect::<HashSet<_>>();
    let first = saved(index, id);
    let mut last = first.clone();
    for round in 0..2 {
        let other = small();
        other.assign(id, Some(index.figures(id.slot).capacity)).unwrap();
        last.iter().for_each(|(parent, block)| assert_eq!(other.restore(*parent, *block, id), Ok(true)));
        let now = saved(&other, id);
        assert_eq!((other.audit(), blocks(&now)), (Ok(blocks(&first).len()), blocks(&first)));
        // At first a block may be there twice.
        assert!(round == 0 || ends(&now) == ends(&last));
        last = now;
    }
}

/// The blocks that have places of their own in the order of what was saved, from the oldest on: who has a younger one
/// below it goes when that has gone.
pub fn ends(saved: &[(Option<Saved>, Saved)]) -> Vec<Saved> {
    let parents: HashMap<Saved, Option<Saved>> = saved.iter().map(|(parent, block)| (*block, *parent)).collect();
    let mut youngest = HashMap::new();
    for (at, (_, block)) in saved.iter().enumerate() {
        let path = std::iter::successors(Some(*block), |block| parents[block]);
        path.for_each(|on_it| _ = youngest.insert(on_it, at));
    }
    let is_end = |(at, (_, block)): (usize, &(Option<Saved>, Saved))| (youngest[block] == at).then_some(*block);
    saved.iter().enumerate().filter_map(is_end).collect()
}
