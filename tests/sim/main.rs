//! The data plane without a kernel: one shard on a simulated driver, between scripted clients and engines.
//!
//! Everything that happens is drawn from a seed: how reads and writes are cut, when connects, replies, ends
//! and deadlines come, how the fleet changes. After every turn and at the end what must hold is checked
//! ([`schedule`]), and clients and engines check every byte that reaches them. A failure names its seed.
//!
//! `WARMFRONT_SIM_SEED` runs one schedule, `WARMFRONT_SIM_SCHEDULES` so many (2,000 by default) behind
//! `WARMFRONT_SIM_FIRST`. `WARMFRONT_SIM_TRACE` prints what happens to every connection.

mod cases;
mod client;
mod draw;
mod driver;
mod engine;
mod network;
mod plan;
mod random;
mod schedule;
mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use schedule::{Schedule, Tally};

/// By default: some ten seconds.
const SCHEDULES: u64 = 2_000;
const THREADS_MAX: usize = 4;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn schedules() {
    let replayed = number("WARMFRONT_SIM_SEED");
    let first = replayed.or(number("WARMFRONT_SIM_FIRST")).unwrap_or(0);
    let count = if replayed.is_some() { 1 } else { number("WARMFRONT_SIM_SCHEDULES").unwrap_or(SCHEDULES) };
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(THREADS_MAX));
    let failed = AtomicBool::new(false);
    let run = |thread: usize| {
        let mut sum = Tally::default();
        for seed in (first..first + count).skip(thread).step_by(threads) {
            if failed.load(Ordering::Relaxed) {
                break;
            }
            match catch_unwind(AssertUnwindSafe(|| Schedule::new(seed, replayed.is_some()).run())) {
                Ok(tally) => sum += tally,
                Err(panic) => {
                    failed.store(true, Ordering::Relaxed);
                    eprintln!("failed: WARMFRONT_SIM_SEED={seed} cargo test --test sim");
                    resume_unwind(panic);
                }
            }
        }
        sum
    };
    let sum = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().fold(Tally::default(), |mut sum, thread| {
            sum += thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            sum
        })
    });
    eprintln!("{sum:?}");
}
