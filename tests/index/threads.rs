//! Threads that write, look up and empty at the same time for a second, then an audit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warmfront::index::{Capacity, Index, Matches, Missed, Origin};

use crate::stops::Stops;
use crate::{chain, id};

/// Nothing is waited for longer.
const PATIENCE: Duration = Duration::from_secs(20);
const SLOTS: u16 = 6;

/// Prompts of different slots share no block, but rows: what one leaves another takes.
fn prompt(slot: u16, i: u64) -> Vec<u64> {
    chain([u64::from(slot) + 1_000].into_iter().chain((0..24).map(|at| if at < 6 { i % 5 } else { i })))
}

/// And these all of them hold.
fn common(i: u64) -> Vec<u64> {
    chain([7_000].into_iter().chain((0..12).map(|at| if at < 4 { 0 } else { i % 40 })))
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn nobody_is_ever_found_where_it_never_was() {
    let index =
        Index::new(Capacity { endpoints: SLOTS as usize, blocks: SLOTS as usize * 256, lengths: false }).unwrap();
    (0..SLOTS).for_each(|slot| assert_eq!(index.assign(id(slot, 1), None), Ok(256)));
    let (over, done, found_some) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        let _stops = Stops(&over);
        for seed in 0..2 {
            let (index, over, done) = (&index, &over, &done);
            threads.spawn(move || {
                let mut state = seed;
                while !over.load(Ordering::Relaxed) {
                    let (slot, i) = ((random(&mut state) % u64::from(SLOTS)) as u16, random(&mut state) % 400);
                    let prompt = if i % 4 == 0 { common(i) } else { prompt(slot, i) };
                    match index.insert(&prompt, id(slot, 1), Origin::Choice) {
                        Ok(inserted) => assert_eq!(inserted.now as usize, prompt.len()),
                        Err(missed) => assert!(missed == Missed::Busy || slot == 0, "{missed}"),
                    }
                    if i % 16 == 0 {
                        let _ = index.remove(prompt[(i % 12) as usize], id(slot, 1));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for seed in 10..12 {
            let (index, over, found_some) = (&index, &over, &found_some);
            threads.spawn(move || {
                let ids: Vec<_> = (0..SLOTS).map(|slot| id(slot, 1)).collect();
                let (mut state, mut found) = (seed, Matches::default());
                while !over.load(Ordering::Relaxed) {
                    let (slot, i) = ((random(&mut state) % u64::from(SLOTS)) as u16, random(&mut state) % 400);
                    index.longest(&prompt(slot, i), &ids, &mut found);
                    let strangers = (0..SLOTS).filter(|&other| other != slot && found.depth(other) > 0);
                    assert_eq!(strangers.count(), 0, "found where only {slot} can be");
                    found_some.fetch_add(u64::from(found.deepest() > 0), Ordering::Relaxed);
                }
            });
        }
        // A second, and more of them where the machine has little time for these threads.
        let (begun, mut generation) = (Instant::now(), 1);
        let is_little = || done.load(Ordering::Relaxed).min(found_some.load(Ordering::Relaxed)) <= 100;
        while begun.elapsed() < Duration::from_secs(1) || (is_little() && begun.elapsed() < PATIENCE) {
            // Slot 0 changes between a tenant that others write for and one that nobody does.
            generation = 3 - generation;
            let deadline = Instant::now() + PATIENCE;
            while index.assign(id(0, generation), None).is_err() {
                assert!(Instant::now() < deadline, "it is not given away");
            }
            let mut found = Matches::default();
            if generation == 2 {
                index.longest(&prompt(0, 1), &[id(0, 2)], &mut found);
                assert_eq!(found.deepest(), 0, "nobody ever wrote for this tenant");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(done.into_inner() > 100 && found_some.into_inner() > 100, "little was done");
    index.audit().unwrap();
    for slot in 0..SLOTS {
        index.forget(slot).unwrap();
    }
    assert_eq!(index.audit(), Ok(0), "all rows are free");
}
