//! Routers that others publish, by their rules and defaults, without their faults of plumbing: all of them count
//! a request at its choice and release it at its last token, and none loses a counter.

pub mod overlap;
pub mod prompt_tree;
pub mod scorers;
pub mod sticky;

use crate::demo::conversation::Dice;

/// The engine of least cost, at random among ties.
fn best_of(dice: &mut Dice, count: usize, cost: impl Fn(usize) -> f64) -> usize {
    let (mut best, mut least, mut ties) = (0, f64::INFINITY, 0);
    for engine in 0..count {
        let cost = cost(engine);
        if cost < least {
            (best, least, ties) = (engine, cost, 1);
        } else if cost == least {
            ties += 1;
            if dice.number().is_multiple_of(ties) {
                best = engine;
            }
        }
    }
    best
}
