//! What the prefix index costs: `cargo bench --bench index`, best under `nice -n -15`. One pinned thread; medians and 90th
//! percentiles of many short runs, since other work runs beside. Each answer is checked.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use warmfront::fleet::EndpointId;
use warmfront::index::{Capacity, Index, Matches, Origin};

/// Blocks of a prompt: 128 KB in blocks of 256 bytes.
const BLOCKS: usize = 512;
/// About half of them: at no depth where a search that divides evenly would meet it by luck.
const HALF: usize = 277;
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

fn endpoint(slot: u64) -> EndpointId {
    EndpointId { slot: slot as u16, generation: 1 }
}

fn made(endpoints: usize, blocks_each: usize) -> (Index, Vec<EndpointId>) {
    let index = Index::new(Capacity { endpoints, blocks: endpoints * blocks_each }).expect("a possible size");
    let ids: Vec<_> = (0..endpoints as u64).map(endpoint).collect();
    ids.iter().for_each(|&id| assert_eq!(index.assign(id, None), Ok(blocks_each as u32)));
    (index, ids)
}

/// Conversation `c` lies on endpoint `c % n`, without its last 32 blocks; some half of it on the next one, a quarter on the one behind.
fn filled(endpoints: usize, blocks_each: usize) -> (Index, Vec<EndpointId>, u64) {
    let (index, ids) = made(endpoints, blocks_each);
    let conversations = (endpoints * blocks_each / 1_000) as u64;
    let n = endpoints as u64;
    for c in 0..conversations {
        let chain = prompt(c);
        for (hop, held) in [(0, BLOCKS - 32), (1, HALF), (2, HALF / 2)] {
            index.insert(&chain[..held], endpoint((c + hop) % n), Origin::Choice).expect("alone");
        }
    }
    (index, ids, conversations)
}

/// Nanoseconds for each of `per` things in runs of `run`: median and 90th percentile.
fn timed(name: &str, runs: usize, per: usize, run: impl FnMut(usize)) {
    timed_behind(name, runs, per, |_| {}, run);
}

/// The same with something done before each run.
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
    println!("{name:58} {:9.1} {:9.1}", times[runs / 2], times[runs * 9 / 10]);
}

fn look_ups(endpoints: usize, blocks_each: usize) {
    let (index, ids, conversations) = filled(endpoints, blocks_each);
    let mib = Index::bytes(Capacity { endpoints, blocks: endpoints * blocks_each }).unwrap() >> 20;
    let mut found = Matches::default();
    let look = |c: u64, chain: &[u64], found: &mut Matches| {
        index.longest(chain, &ids, found);
        assert_eq!(found.depth((c % endpoints as u64) as u16), (BLOCKS - 32) as u32);
        assert_eq!(found.depth(((c + 1) % endpoints as u64) as u16), HALF as u32);
    };
    let size = format!("{endpoints} endpoints, {mib} MiB");
    let c = conversations - 3;
    let chain = prompt(c);
    timed(&format!("look-up, the same prompt again ({size})"), 1_001, 100, |_| {
        (0..100).for_each(|_| look(c, black_box(&chain), &mut found));
    });
    println!("    {} blocks looked at, {} depths", found.probes(), found.levels().count());
    // Each prompt once, in no order. A prompt's chain has just been written when it is looked up: it is copied before the clock runs.
    let prompts: Vec<(u64, Vec<u64>)> =
        (0..2_000).map(|i| hash(i) % (conversations * 3 / 4) + conversations / 4).map(|c| (c, prompt(c))).collect();
    let chain = RefCell::new(vec![0; BLOCKS]);
    let copied = |at: usize| chain.borrow_mut().copy_from_slice(&prompts[at].1);
    timed_behind(&format!("look-up, another prompt each ({size})"), 2_000, 1, copied, |at| {
        look(prompts[at].0, black_box(&chain.borrow()), &mut found);
    });
    let strange: Vec<Vec<u64>> = (0..2_000).map(|i| prompt(1 << 30 | i).split_off(SHARED)).collect();
    timed(&format!("look-up, nothing held ({size})"), 2_000, 1, |at| {
        index.longest(black_box(&strange[at]), &ids, &mut found);
        assert_eq!(found.deepest(), 0);
    });
    index.audit().expect("it fits together");
}

fn inserts(endpoints: usize, blocks_each: usize) {
    let (index, _) = made(endpoints, blocks_each);
    let mib = Index::bytes(Capacity { endpoints, blocks: endpoints * blocks_each }).unwrap() >> 20;
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

/// Ten million inserts and removals at random: what is resident stays what it was, and all of it fits together.
fn churn() {
    let (index, ids) = made(64, 1 << 12);
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
    println!("churn: {before} KiB resident, {} KiB after 10^7 more; {evicted} evicted, {removed} removed", resident());
    index.audit().expect("it fits together");
}

fn main() {
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.last().copied()) {
        core_affinity::set_for_current(core);
    }
    println!("{:58} {:>9} {:>9}", "nanoseconds", "median", "90 %");
    churn();
    look_ups(64, 1 << 13);
    look_ups(64, 1 << 17);
    look_ups(512, 1 << 13);
    inserts(8, 1 << 13);
    inserts(64, 1 << 13);
    inserts(64, 1 << 17);
    inserts(512, 1 << 13);
}
