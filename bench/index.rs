//! What the prefix index costs: `cargo bench --bench index`, best under `nice -n -15`. One pinned thread; medians and
//! 90th percentiles of many short runs, since other work runs beside. Each answer is checked.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::time::Instant;

use warmfront::fleet::EndpointId;
use warmfront::index::{Capacity, Found, Index, Matches, Origin, STEPS};

/// Blocks of a prompt: 128 KB in blocks of 256 bytes.
const BLOCKS: usize = 512;
/// Blocks of a chat of 16 KB.
const CHAT: usize = 64;
/// Blocks that all prompts begin with.
const SHARED: usize = 8;

fn hash(i: u64) -> u64 {
    let a = (i ^ i >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let b = (a ^ a >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    b ^ b >> 33
}

/// A conversation's prompt: the common start, then blocks of its own.
fn prompt(conversation: u64) -> Vec<u64> {
    let own = |at| hash(if at < SHARED as u64 { at } else { (conversation + 1) << 32 | at });
    (0..BLOCKS as u64).map(own).collect()
}

/// How many of a prompt's `blocks` each of three endpoints holds: most of them, about half, a quarter. The depths are
/// such that a search that divides evenly does not meet them by luck.
const fn held(blocks: usize) -> [usize; 3] {
    let half = blocks * 277 / 512;
    [blocks - blocks / 16, half, half / 2]
}

fn endpoint(slot: u64) -> EndpointId {
    EndpointId { slot: slot as u16, generation: 1 }
}

/// Room without lengths, as in fleets whose engines tell no events.
fn capacity(endpoints: usize, blocks_each: usize) -> Capacity {
    Capacity { endpoints, blocks: endpoints * blocks_each, lengths: false }
}

fn made(capacity: Capacity) -> (Index, Vec<EndpointId>) {
    let Capacity { endpoints, blocks, .. } = capacity;
    let blocks_each = blocks / endpoints;
    let index = Index::new(capacity).expect("a possible size");
    let ids: Vec<_> = (0..endpoints as u64).map(endpoint).collect();
    ids.iter().for_each(|&id| assert_eq!(index.assign(id, None), Ok(blocks_each as u32)));
    (index, ids)
}

/// An index in which conversation `c`, of so many blocks, lies on endpoint `c % n`, without its end, some half of it on
/// the next endpoint, and a quarter on the one after that.
fn filled(capacity: Capacity, blocks: usize) -> (Index, Vec<EndpointId>, u64) {
    let (index, ids) = made(capacity);
    let (endpoints, conversations) = (capacity.endpoints, (capacity.blocks * BLOCKS / blocks / 1_000) as u64);
    let n = endpoints as u64;
    for c in 0..conversations {
        let chain = prompt(c);
        for (hop, held) in (0..).zip(held(blocks)) {
            index.insert(&chain[..held], endpoint((c + hop) % n), Origin::Choice).expect("alone");
        }
    }
    (index, ids, conversations)
}

/// Prints the nanoseconds for each of `per` things in `runs` runs: median and 90th percentile.
fn timed(name: &str, runs: usize, per: usize, run: impl FnMut(usize)) {
    timed_behind(name, runs, per, |_| {}, run);
}

/// The same, with `before` called before each run, outside the time.
fn timed_behind(name: &str, runs: usize, per: usize, before: impl Fn(usize), mut run: impl FnMut(usize)) {
    let mut times: Vec<f64> = (0..runs)
        .map(|at| {
            before(at);
            let start = Instant::now();
            run(at);
            start.elapsed().as_nanos() as f64 / per as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:64} {:9.1} {:9.1}", times[runs / 2], times[runs * 9 / 10]);
}

fn look_ups(endpoints: usize, blocks_each: usize, blocks: usize) {
    let (index, ids, conversations) = filled(capacity(endpoints, blocks_each), blocks);
    let mib = Index::bytes(capacity(endpoints, blocks_each)).unwrap() >> 20;
    let mut found = Matches::default();
    let look = |c: u64, chain: &[u64], found: &mut Matches| {
        index.longest(chain, &ids, found);
        assert_eq!(found.depth((c % endpoints as u64) as u16), held(blocks)[0] as u32);
        assert_eq!(found.depth(((c + 1) % endpoints as u64) as u16), held(blocks)[1] as u32);
    };
    let size = format!("{blocks} blocks, {endpoints} endpoints, {mib} MiB");
    let own = |c: u64| -> Vec<u64> { prompt(c)[..blocks].to_vec() };
    let c = conversations - 3;
    let chain = own(c);
    timed(&format!("look-up, the same prompt again ({size})"), 1_001, 100, |_| {
        (0..100).for_each(|_| look(c, black_box(&chain), &mut found));
    });
    println!("    {} blocks looked at, {} depths", found.probes(), found.levels().count());
    // Of more depths than are searched the last is that of the blocks that all prompts begin with.
    let more = [(3, held(blocks)[2] - blocks / 16), (4, held(blocks)[0] - blocks / 16)];
    for (hop, held) in more {
        index.insert(&chain[..held], endpoint((c + hop) % endpoints as u64), Origin::Choice).expect("alone");
    }
    timed(&format!("look-up, the same prompt at six depths ({size})"), 1_001, 100, |_| {
        (0..100).for_each(|_| look(c, black_box(&chain), &mut found));
        assert_eq!(found.depth(((c + 5) % endpoints as u64) as u16), SHARED as u32);
    });
    println!("    {} blocks looked at, {} depths", found.probes(), found.levels().count());
    // When a front looks a prompt up, its chain has just been written: here it is copied before the clock runs.
    let prompts: Vec<(u64, Vec<u64>)> = in_no_order(conversations).into_iter().map(|c| (c, own(c))).collect();
    let chain = RefCell::new(vec![0; blocks]);
    let copied = |at: usize| chain.borrow_mut().copy_from_slice(&prompts[at].1);
    timed_behind(&format!("look-up, another prompt each ({size})"), prompts.len(), 1, copied, |at| {
        look(prompts[at].0, black_box(&chain.borrow()), &mut found);
    });
    let strange: Vec<Vec<u64>> = (0..2_000).map(|i| own(1 << 30 | i).split_off(SHARED)).collect();
    timed(&format!("look-up, nothing held ({size})"), 2_000, 1, |at| {
        index.longest(black_box(&strange[at]), &ids, &mut found);
        assert_eq!(found.deepest(), 0);
    });
    index.audit().expect("it fits together");
}

/// At most 2,000 of the later three quarters of so many conversations, each once.
fn in_no_order(conversations: u64) -> Vec<u64> {
    let mut drawn: Vec<u64> = (conversations / 4..conversations).collect();
    drawn.sort_unstable_by_key(|c| hash(*c));
    drawn.truncate(2_000);
    drawn
}

fn inserts(endpoints: usize, blocks_each: usize) {
    let (index, _) = made(capacity(endpoints, blocks_each));
    let mib = Index::bytes(capacity(endpoints, blocks_each)).unwrap() >> 20;
    let size = format!("{endpoints} endpoints, {mib} MiB");
    let new = BLOCKS - SHARED;
    let room = (endpoints * blocks_each / BLOCKS).min(2_000);
    let chains: Vec<_> = (0..room as u64).map(prompt).collect();
    let insert = |at: usize, chain: &[u64]| {
        let inserted = index.insert(black_box(chain), endpoint((at % endpoints) as u64), Origin::Choice);
        inserted.expect("alone")
    };
    timed(&format!("insert, per new block, room left ({size})"), room, new, |at| {
        assert_eq!(insert(at, &chains[at]).now, BLOCKS as u32);
    });
    timed(&format!("insert, all of it held, per prompt ({size})"), room, 1, |at| {
        assert_eq!(insert(at, &chains[at]).before, BLOCKS as u32);
    });
    let mut next = room as u64;
    while (0..endpoints as u16).any(|slot| index.figures(slot).evicted == 0) {
        insert(next as usize, &prompt(next));
        next += 1;
    }
    let chains: Vec<_> = (next..next + 2_000).map(prompt).collect();
    timed(&format!("insert, per new block, as many evicted ({size})"), 2_000, new, |at| {
        let inserted = insert(at + next as usize, &chains[at]);
        assert_eq!((inserted.before, inserted.evicted), (SHARED as u32, new as u32));
    });
    index.audit().expect("it fits together");
}

/// The steps of each block of a prompt, and of what follows the block.
fn steps(chain: &[u64]) -> Vec<u64> {
    let before = [0].into_iter().chain(chain.iter().copied());
    before.flat_map(|block| (1..=STEPS as u64).map(move |step| hash(block ^ step << 56))).collect()
}

/// The same look-ups by blocks alone and in steps. Each endpoint holds two steps beyond its last block, and the index
/// knows the tokens of all.
fn look_ups_in_steps(endpoints: usize, blocks_each: usize) {
    let capacity = Capacity { lengths: true, ..capacity(endpoints, blocks_each) };
    let (index, ids, conversations) = filled(capacity, BLOCKS);
    let n = endpoints as u64;
    for c in conversations / 4..conversations {
        let (chain, within) = (prompt(c), steps(&prompt(c)));
        for (hop, held) in (0..).zip(held(BLOCKS)) {
            let held_steps = &within[STEPS * held..][..2];
            index.append(Some(chain[held - 1]), held_steps, endpoint((c + hop) % n), Origin::Engine).expect("held");
            index.note_tokens(held_steps[1], held as u32 * 64);
        }
    }
    let mut found = Matches::default();
    let by_blocks = |c: u64, chain: &[u64], _: &[u64], found: &mut Matches| {
        index.longest(chain, &ids, found);
        assert_eq!(found.depth((c % n) as u16), (BLOCKS - 32) as u32);
    };
    let known = Cell::new((0, 0));
    let in_steps = |c: u64, chain: &[u64], within: &[u64], found: &mut Matches| {
        index.longest_in_steps(chain, within, &ids, found);
        let Found { blocks, steps, tokens } = found.found((c % n) as u16);
        assert_eq!((blocks, steps), ((BLOCKS - 32) as u32, 2));
        assert!(tokens.is_none_or(|tokens| tokens == blocks * 64));
        known.set((known.get().0 + u64::from(tokens.is_some()), known.get().1 + 1));
    };
    let size = format!("{endpoints} endpoints, {} MiB", Index::bytes(capacity).unwrap() >> 20);
    let c = conversations - 3;
    let (chain, within) = (prompt(c), steps(&prompt(c)));
    let prompts: Vec<(u64, Vec<u64>, Vec<u64>)> =
        in_no_order(conversations).into_iter().map(|c| (c, prompt(c), steps(&prompt(c)))).collect();
    let copies = RefCell::new((vec![0; BLOCKS], vec![0; STEPS * (BLOCKS + 1)]));
    let copied = |at: usize| {
        let mut copies = copies.borrow_mut();
        copies.0.copy_from_slice(&prompts[at].1);
        copies.1.copy_from_slice(&prompts[at].2);
    };
    // In turn, so that other work on the machine meets both alike; compare the least of each.
    for _ in 0..5 {
        timed(&format!("look-up by blocks, the same again ({size})"), 1_001, 100, |_| {
            (0..100).for_each(|_| by_blocks(c, black_box(&chain), &[], &mut found));
        });
        timed(&format!("look-up in steps, the same again ({size})"), 1_001, 100, |_| {
            (0..100).for_each(|_| in_steps(c, black_box(&chain), black_box(&within), &mut found));
        });
        timed_behind(&format!("look-up by blocks, another each ({size})"), prompts.len(), 1, copied, |at| {
            by_blocks(prompts[at].0, black_box(&copies.borrow().0), &[], &mut found);
        });
        timed_behind(&format!("look-up in steps, another each ({size})"), prompts.len(), 1, copied, |at| {
            let copies = copies.borrow();
            in_steps(prompts[at].0, black_box(&copies.0), black_box(&copies.1), &mut found);
        });
    }
    println!("    {} links looked at; tokens known of {} in {}", found.probes(), known.get().0, known.get().1);
    index.audit().expect("it fits together");
}

/// What an engine's events cost: one link or two after a block of any conversation, whose chain was written long
/// before.
fn appends(endpoints: usize, blocks_each: usize) {
    let (index, _, conversations) = filled(capacity(endpoints, blocks_each), BLOCKS);
    let size = format!("{endpoints} endpoints, {} MiB", Index::bytes(capacity(endpoints, blocks_each)).unwrap() >> 20);
    let conversations: Vec<u64> = (conversations / 2..conversations).collect();
    let chains: Vec<Vec<u64>> = conversations.iter().map(|&c| prompt(c)).collect();
    let mut next = 0u64;
    for links in [1, 2, 1, 2, 1, 2] {
        timed(&format!("append, {links} new, per call ({size})"), 500, 100, |_| {
            for _ in 0..100 {
                next += 1;
                let at = (hash(next) % chains.len() as u64) as usize;
                let end = BLOCKS - 32;
                let slot = endpoint(conversations[at] % endpoints as u64);
                let new: [u64; 2] = [hash(next << 24), hash(next << 24 | 1)];
                let new = &new[..links];
                let block = chains[at][end - 1];
                // A third of the calls tells what is known; the rest is new.
                let appended = match next % 3 {
                    0 => index.append(Some(chains[at][end - 2]), &chains[at][end - 1..end], slot, Origin::Engine),
                    _ => index.append(Some(block), new, slot, Origin::Engine),
                };
                assert!(appended.is_ok());
            }
        });
    }
    index.audit().expect("it fits together");
}

/// Ten million random insertions and removals: resident memory stays what it was, and the index stays consistent.
fn churn() {
    let (index, ids) = made(capacity(64, 1 << 12));
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4
    };
    let mut removed = 0u64;
    let mut turn = |i: u64| {
        let random = hash(i ^ 0xC0FFEE);
        let (conversation, id) = (random % 60_000, ids[(random >> 32) as usize % 64]);
        let chain: [u64; 6] = std::array::from_fn(|at| hash(conversation << (at as u64).min(3) << 8 | at as u64));
        if i % 4 == 3 {
            removed += u64::from(index.remove(chain[(random >> 40) as usize % 6], id).expect("alone"));
        } else {
            index.insert(&chain, id, Origin::Choice).expect("alone");
        }
    };
    (0..1_000_000).for_each(&mut turn);
    let before = resident();
    (1_000_000..11_000_000).for_each(&mut turn);
    let evicted: u64 = (0..64).map(|slot| index.figures(slot).evicted).sum();
    let after = resident();
    println!("churn: {before} KiB resident, {after} KiB after 10^7 more; {evicted} evicted, {removed} removed");
    assert!(after <= before + 1_024, "it grew");
    index.audit().expect("it fits together");
}

fn main() {
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.last().copied()) {
        core_affinity::set_for_current(core);
    }
    println!("{:64} {:>9} {:>9}", "nanoseconds", "median", "90 %");
    // `cargo bench --bench index -- events`: only what engines' events need.
    if std::env::args().all(|arg| arg != "events") {
        churn();
        look_ups(64, 1 << 13, BLOCKS);
        look_ups(64, 1 << 17, BLOCKS);
        look_ups(512, 1 << 13, BLOCKS);
        look_ups(64, 1 << 13, CHAT);
        look_ups(64, 1 << 17, CHAT);
        inserts(8, 1 << 13);
        inserts(64, 1 << 13);
        inserts(64, 1 << 17);
        inserts(512, 1 << 13);
    }
    for blocks_each in [1 << 13, 1 << 17] {
        look_ups_in_steps(64, blocks_each);
        appends(64, blocks_each);
    }
}
