//! The data plane without a kernel: shards on simulated drivers, between scripted clients and engines, and a control.
//!
//! Everything that happens is drawn from a seed: how reads and writes are cut, when connects, replies, ends
//! and deadlines come, what engines answer, how the fleet changes. After every turn and at the end what must hold is
//! checked ([`check`]); behind every completion the shared counters are compared with a model of them ([`shadow`]); and
//! clients and engines check every byte that reaches them. A failure names its seed.
//!
//! `WARMFRONT_SIM_SEED` runs one schedule, `WARMFRONT_SIM_SCHEDULES` so many (2,400 by default) behind
//! `WARMFRONT_SIM_FIRST`. `WARMFRONT_SIM_TRACE` prints what happens to every connection.

mod cases;
mod check;
mod client;
mod control;
mod draw;
mod driver;
mod engine;
mod held;
mod network;
mod order;
mod pipe;
mod plan;
mod random;
mod reply;
mod schedule;
mod script;
mod shadow;
mod splicing;
mod tally;
mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use schedule::{FAULT_WORDS, Schedule};
use tally::Tally;

/// By default: less than a minute on two cores.
const SCHEDULES: u64 = 2_400;
/// So many reach all that they are for.
const ENOUGH: u64 = 2_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn schedules() {
    let replayed = number("WARMFRONT_SIM_SEED");
    let first = replayed.or(number("WARMFRONT_SIM_FIRST")).unwrap_or(0);
    let count = if replayed.is_some() { 1 } else { number("WARMFRONT_SIM_SCHEDULES").unwrap_or(SCHEDULES) };
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    hush_faults();
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
    assert!(count < ENOUGH || sum.missing().is_empty(), "never reached: {:?}", sum.missing());
}

/// Faults that are injected say nothing; there are thousands.
fn hush_faults() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<String>().is_none_or(|words| words != FAULT_WORDS) {
            tell(panic);
        }
    }));
}
