//! `warmfront replay`: traffic through policies against simulated engines, in simulated time.
//!
//! [`traffic`] is where requests come from; [`chooser`] what a policy is; [`own`] the product's policies, by the code
//! that serves; [`precise`] what one of them knows by the engines' KV [`events`]; [`queued`] one of them with its
//! queue; [`peers`] those of other routers; [`oracle`] what could be had at best; [`fleet`] the engines of
//! [`crate::engine`], described in [`profiles`]; [`simulate`] one run; [`waiting`] its requests that are at no engine;
//! [`outcome`], [`report`] and [`plot`] what is told of a run.
//!
//! # What it leaves out
//!
//! * All that [`crate::engine`] leaves out. Engines are equal but for their weights, healthy, and never refuse.
//! * The front's own time, the network's, and the bytes: a choice costs nothing. A prompt's length and hashes are known
//!   exactly, while a front estimates tokens.
//! * Clients that leave; and that each of several fronts ([`fronts`]) scrapes at times of its own: here all scrape at
//!   one instant.

pub mod chooser;
pub mod events;
pub mod fleet;
pub mod fronts;
pub mod oracle;
pub mod outcome;
pub mod own;
pub mod peers;
pub mod plot;
pub mod precise;
pub mod profiles;
pub mod queued;
pub mod report;
pub mod simulate;
pub mod traffic;
pub mod waiting;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chooser::{Named, ORACLE, RANDOM, Stage};
use events::Delivery;
use outcome::{Objective, Outcome};
use simulate::Setting;
use traffic::Source;

use crate::engine::profile::Profile;

/// What is compared, on which traffic and engines.
pub struct Comparison<'a> {
    /// The traffic.
    pub source: &'a dyn Source,
    /// The profile of an engine of weight 1.
    pub profile: &'a Profile,
    /// The engines' weights, one each.
    pub weights: &'a [u32],
    /// Number of fronts, for policies of the product.
    pub fronts: usize,
    /// The policies, in order.
    pub policies: &'a [&'static Named],
    /// Multiples of the traffic's own rate, in order.
    pub loads: &'a [f64],
    /// What counts a request as served well.
    pub objective: Objective,
    /// How KV events come to policies that hear them.
    pub events: Delivery,
    /// Seed of what policies draw.
    pub seed: u64,
    /// Tenants among which requests are divided: the first asks nine of ten.
    pub tenants: u16,
    /// Most runs at a time.
    pub threads: usize,
}

/// How far a comparison is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Requests ended in all runs so far, runs done, and runs in all.
    At(u64, usize, usize),
    /// A run is over.
    Done(&'a Outcome),
}

impl Comparison<'_> {
    /// Runs every policy at every load. Runs share nothing, so their order and number at a time change no figure.
    pub fn run(&self, mut tell: impl FnMut(Progress)) -> Vec<Outcome> {
        let jobs: Vec<(usize, f64, &Named)> = self
            .loads
            .iter()
            .flat_map(|load| self.policies.iter().map(|policy| (*load, *policy)))
            .enumerate()
            .map(|(place, (load, policy))| (place, load, policy))
            .collect();
        let mut outcomes: Vec<Option<Outcome>> = jobs.iter().map(|_| None).collect();
        let (count, ended) = (jobs.len(), AtomicU64::new(0));
        let queue = Mutex::new(VecDeque::from(jobs));
        let (send, done) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, count.max(1)) {
                let (send, queue, ended) = (send.clone(), &queue, &ended);
                scope.spawn(move || {
                    let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    while let Some((place, load, policy)) = take() {
                        // The receiver has gone if this fails.
                        let _ = send.send((place, self.one(load, policy, ended)));
                    }
                });
            }
            drop(send);
            let mut finished = 0;
            loop {
                match done.recv_timeout(Duration::from_secs(1)) {
                    Ok((place, outcome)) => {
                        finished += 1;
                        tell(Progress::Done(&outcome));
                        outcomes[place] = Some(outcome);
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        tell(Progress::At(ended.load(Ordering::Relaxed), finished, count));
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        });
        compared(outcomes.into_iter().flatten().collect())
    }

    fn one(&self, load: f64, policy: &Named, ended: &AtomicU64) -> Outcome {
        let block_tokens = self.source.block_tokens();
        let blocks = self.profile.kv_tokens / block_tokens;
        let Comparison { source, profile, weights, tenants, fronts, events, seed, .. } = *self;
        let chooser = policy.make(&Stage { weights, blocks, block_tokens, fronts, events, seed });
        let run = simulate::run(&Setting { source, load, profile, weights, tenants }, chooser, ended);
        Outcome::of(policy.name, load, &run, &self.objective)
    }
}

/// Adds the ratios to the baseline and the oracle of the same load.
fn compared(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let at = |load: f64, name: &str| outcomes.iter().find(|one| one.load == load && one.policy == name);
    let with_ratios = |outcome: &Outcome| Outcome {
        to_random: at(outcome.load, RANDOM).map(|random| outcome.ratio_to(random)),
        to_oracle: at(outcome.load, ORACLE).map(|oracle| outcome.ratio_to(oracle)),
        ..outcome.clone()
    };
    outcomes.iter().map(with_ratios).collect()
}
