//! Sessions that stay: a session's first request goes to the next engine in turn, and all others follow it, whatever
//! the load, as with load balancers that set a session cookie. Requests without a session go in turn.

use std::collections::HashMap;

use crate::replay::chooser::{Asked, Chooser, Placed, draws};
use crate::replay::fleet::Fleet;
use crate::replay::traffic::chain::mix;

/// Engine of each session's first request.
pub struct Sticky {
    homes: HashMap<u64, usize>,
    engines: usize,
    turn: usize,
}

impl Sticky {
    /// The seed says at which engine the turns begin.
    pub fn new(engines: usize, seed: u64) -> Sticky {
        let engines = engines.max(1);
        Sticky { homes: HashMap::new(), engines, turn: mix(seed, draws::STICKY) as usize % engines }
    }
}

impl Chooser for Sticky {
    fn choose(&mut self, asked: &Asked, _fleet: &Fleet) -> Option<Placed> {
        let known = asked.request.session.and_then(|session| self.homes.get(&session).copied());
        let home = known.unwrap_or_else(|| {
            self.turn = (self.turn + 1) % self.engines;
            if let Some(session) = asked.request.session {
                self.homes.insert(session, self.turn);
            }
            self.turn
        });
        Some(home.into())
    }

    fn ended(&mut self, _number: u64, _engine: usize, _tokens: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::peers::trial::Trial;

    #[test]
    fn a_session_stays_and_new_ones_go_in_turn() {
        let mut trial = Trial::new(Sticky::new(3, 1), 3);
        let homes = [1, 2, 3, 4].map(|session| trial.ask(&[(session, 20)]).1);
        assert_eq!(homes, [homes[0], (homes[0] + 1) % 3, (homes[0] + 2) % 3, homes[0]]);
        let again = [3, 1, 4, 2, 1].map(|session| trial.ask(&[(session, 20)]).1);
        assert_eq!(again, [homes[2], homes[0], homes[3], homes[1], homes[0]]);
    }
}
