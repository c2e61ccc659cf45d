//! The long run: what its clients ask for, and the schedule of its faults.

use std::time::Duration;

use crate::exchange::Kind;
use crate::faults::{Fault, Setup};
use crate::load::Rates;
use crate::run::Mode;

/// Upgrades come first and last: between them one process serves long enough to see whether its memory grows.
pub fn mode(lasts: Duration) -> Mode {
    let plan = |engine: usize| {
        let few = Setup { places: vec![0, 1, 2], policy: "least-load", limits: OTHER_LIMITS, ..setup(2) };
        [
            (0.00, Fault::Stop(engine)),
            (0.03, Fault::Burst(500)),
            (0.06, Fault::Kill((engine + 1) % 4)),
            (0.10, Fault::Drain((engine + 2) % 4)),
            (0.15, Fault::Reload(few)),
            (0.17, Fault::Wrong),
            (0.19, Fault::Reload(Setup { places: vec![0, 1, 2, 3, 4], ..setup(2) })),
            (0.22, Fault::Burst(1000)),
        ]
    };
    let mut all = vec![
        (0.02, Fault::Reload(Setup { places: vec![0, 1, 2, 3, 4], ..setup(2) })),
        (0.03, Fault::Wrong),
        (0.04, Fault::Upgrade(setup(2))),
        (0.07, Fault::Upgrade(setup(1))),
        (0.10, Fault::Upgrade(setup(2))),
    ];
    for (round, begins) in [0.15, 0.41, 0.67].into_iter().enumerate() {
        all.extend(plan(round).map(|(at, fault)| (begins + at, fault)));
    }
    all.push((0.96, Fault::Upgrade(setup(2))));
    let plan = all.into_iter().map(|(share, fault)| (lasts.mul_f64(share), fault)).collect();
    let per_second = vec![
        (Kind::Short, 800.0),
        (Kind::Fresh, 40.0),
        (Kind::Stream, 12.0),
        (Kind::Prompt, 4.0),
        (Kind::Speech, 1.0),
        (Kind::Slow, 0.3),
        (Kind::Vanishing, 4.0),
    ];
    let rates = Rates { per_second, tokens: (50, 400) };
    Mode { name: "soak", rates, plan, setup: setup(2), lasts, at_least: (0, 0), judges_growth: true }
}

const OTHER_LIMITS: &str = "read_ahead_bytes = 32768\nkeep_alive_timeout_ms = 60000";

fn setup(shards: usize) -> Setup {
    Setup { shards, places: vec![0, 1, 2, 3], policy: "warm", limits: "" }
}
