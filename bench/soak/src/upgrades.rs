//! Twenty reloads and five upgrades under load, and nothing else that could explain a failure: no request may fail.

use std::time::Duration;

use crate::exchange::Kind;
use crate::faults::{Fault, Setup};
use crate::load::Rates;
use crate::run::Mode;

const RELOADS: usize = 20;
/// Shards after each upgrade: one upgrade to fewer, and back.
const UPGRADES: [usize; 5] = [2, 1, 2, 2, 2];
const REQUESTS: u64 = 100_000;
const STREAMS: u64 = 200;

pub fn mode(lasts: Duration) -> Mode {
    let changes = RELOADS + UPGRADES.len();
    let mut shards = 2;
    let fault = |change: usize| {
        // Each fifth change is an upgrade.
        if change % 5 == 4 {
            shards = UPGRADES[change / 5];
            return Fault::Upgrade(setup(shards, change));
        }
        if change.is_multiple_of(2) { Fault::Reload(setup(shards, change)) } else { Fault::Ask(setup(shards, change)) }
    };
    let every = lasts / (changes as u32 + 1);
    let plan = (0..changes).map(fault).enumerate().map(|(at, fault)| (every * (at as u32 + 1), fault)).collect();
    let per_second = vec![(Kind::Short, 900.0), (Kind::Fresh, 100.0), (Kind::Stream, 6.0), (Kind::Prompt, 1.0)];
    let rates = Rates { per_second, tokens: (100, 400) };
    let at_least = (REQUESTS, STREAMS);
    Mode { name: "upgrades", rates, plan, setup: setup(2, 0), lasts, at_least, judges_growth: false }
}

/// Engines come and go, policies and limits change.
fn setup(shards: usize, change: usize) -> Setup {
    let places = [vec![0, 1, 2, 3], vec![1, 2, 3, 4], vec![0, 4], vec![0, 1, 2, 3, 4]][change % 4].clone();
    let policy = ["warm", "prefix-hash", "round-robin"][change % 3];
    let limits = ["", "read_ahead_bytes = 32768"][change % 2];
    Setup { shards, places, policy, limits }
}
