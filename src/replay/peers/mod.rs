//! Other routers, by their published rules and defaults, without their faults of implementation: all of them count a
//! request at its choice and release it at its last token, and none loses a counter.

pub mod jumps;
pub mod overlap;
pub mod prompt_tree;
pub mod scorers;
pub mod sticky;

use crate::demo::conversation::Dice;

/// Returns the engine of least cost, at random among ties.
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

#[cfg(test)]
pub(in crate::replay) mod trial {
    use super::*;
    use crate::engine::profile::Profile;
    use crate::replay::chooser::{Asked, Chooser, Placed};
    use crate::replay::fleet::Fleet;
    use crate::replay::traffic::Request;
    use crate::replay::traffic::chain::Chain;

    /// A policy before idle engines, asked request by request.
    pub struct Trial<C> {
        pub chooser: C,
        pub fleet: Fleet,
        pub now_ns: u64,
        asked: u64,
    }

    impl<C: Chooser> Trial<C> {
        pub fn new(chooser: C, engines: usize) -> Trial<C> {
            let profile = Profile { max_num_batched_tokens: 8_192, ..Profile::default() };
            Trial { chooser, fleet: Fleet::new(&profile, &vec![1; engines], false), now_ns: 0, asked: 0 }
        }

        /// Places a prompt of these pieces (each a number and a length in tokens); returns the request's number and its
        /// engine.
        pub fn ask(&mut self, pieces: &[(u64, u32)]) -> (u64, usize) {
            let (number, placed) = self.place(pieces);
            (number, placed.engine)
        }

        pub fn place(&mut self, pieces: &[(u64, u32)]) -> (u64, Placed) {
            let number = self.asked;
            self.asked += 1;
            let request = prompt(pieces);
            let asked = Asked { number, now_ns: self.now_ns, request: &request, block_tokens: 16, tenant: 0 };
            (number, self.chooser.choose(&asked, &self.fleet).expect("nothing waits"))
        }

        /// Has an engine compute a prompt, so that its cache holds it.
        pub fn compute(&mut self, engine: usize, pieces: &[(u64, u32)]) {
            let request = prompt(pieces);
            let outline = crate::engine::batch::Outline { prompt: request.prompt, output: 1, blocks: request.blocks };
            self.fleet.submit(engine, 0, &outline);
            while self.fleet.begin(engine, 0).is_some() {
                self.fleet.end(engine);
            }
        }
    }

    pub fn prompt(pieces: &[(u64, u32)]) -> Request {
        let mut chain = Chain::new(16);
        pieces.iter().for_each(|(piece, tokens)| chain.push(*piece, *tokens));
        Request {
            arrival_ns: 0,
            prompt: chain.tokens(),
            output: 1,
            blocks: chain.blocks().into(),
            session: pieces.first().map(|(piece, _)| *piece),
            opening: None,
            thread: 0,
        }
    }

    #[test]
    fn ties_are_drawn_evenly() {
        let mut dice = Dice::new(1);
        let mut seen = [0; 4];
        (0..3_000).for_each(|_| seen[best_of(&mut dice, 4, |engine| if engine == 1 { 2.0 } else { 1.0 })] += 1);
        assert_eq!(seen[1], 0);
        assert!([seen[0], seen[2], seen[3]].iter().all(|count| (900..1_100).contains(count)), "{seen:?}");
    }
}
