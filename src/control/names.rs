//! What a host name was said to stand for of late: whether an address that is not in an answer has gone, or comes by turns.
//!
//! Name servers that balance load tell one address of several, or some, and others the next time. Who went along would begin anew with each
//! look-up, with nothing known of the engine's cache. A name of which no address ever came back has moved, and is followed.

use std::collections::HashMap;
use std::net::SocketAddr;

/// An address is expected back for so many look-ups behind the last that told it.
const KEPT: u64 = 20;

/// Answers of one name.
#[derive(Debug, Default)]
pub struct NameAnswers {
    /// How many there were.
    count: u64,
    /// Which of them told each address last; those that are not expected back are left out.
    told: HashMap<SocketAddr, u64>,
    /// Which told one last that the one before had not.
    returned: Option<u64>,
}

impl NameAnswers {
    /// One more. True: it is the first to tell that addresses come by turns.
    pub fn add(&mut self, addresses: &[SocketAddr]) -> bool {
        let took_turns = self.takes_turns();
        self.count += 1;
        for address in addresses {
            let before = self.told.insert(*address, self.count);
            // Some resolvers tell an address twice.
            if before.is_some_and(|before| before + 1 < self.count) {
                self.returned = Some(self.count);
            }
        }
        self.told.retain(|_, told| *told + KEPT > self.count);
        self.takes_turns() && !took_turns
    }

    fn takes_turns(&self) -> bool {
        self.returned.is_some_and(|returned| returned + KEPT > self.count)
    }

    /// Whether they stand for this address, told by the last answer or not.
    pub fn stand_for(&self, address: SocketAddr) -> bool {
        match self.told.get(&address) {
            Some(told) => *told == self.count || self.takes_turns(),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], n))
    }

    #[test]
    fn a_name_that_moves_is_followed() {
        let mut answers = NameAnswers::default();
        assert!(!answers.stand_for(at(1)));
        for n in 1..100 {
            for _ in 0..n % 3 + 1 {
                assert!(!answers.add(&[at(n), at(n)]));
            }
            assert!(answers.stand_for(at(n)) && !answers.stand_for(at(n - 1)));
        }
        assert!(answers.told.len() <= KEPT as usize);
    }

    #[test]
    fn one_that_tells_addresses_by_turns_stands_for_all_of_them() {
        for each in [1, 2, 4] {
            let mut answers = NameAnswers::default();
            let told: Vec<bool> = (0..100u16)
                .map(|turn| answers.add(&(0..each).map(|n| at((turn * each + n) % 8)).collect::<Vec<_>>()))
                .collect();
            let first = told.iter().position(|first| *first);
            assert_eq!((first, told.iter().filter(|first| **first).count()), (Some(usize::from(8 / each)), 1));
            assert!((0..8).all(|n| answers.stand_for(at(n))) && !answers.stand_for(at(8)));
        }
    }

    #[test]
    fn what_does_not_come_back_is_expected_no_more() {
        let mut answers = NameAnswers::default();
        [1, 2, 1, 2, 3].into_iter().for_each(|n| _ = answers.add(&[at(n)]));
        // One of them has gone, the others go on by turns.
        for behind in 2..KEPT {
            assert!(answers.stand_for(at(1)), "{behind} answers behind the last that told it");
            answers.add(&[at(2 + behind as u16 % 2)]);
        }
        assert!(!answers.stand_for(at(1)) && answers.stand_for(at(2)) && answers.stand_for(at(3)));
        // And then there is one alone.
        (0..KEPT).for_each(|_| _ = answers.add(&[at(3)]));
        assert!(!answers.stand_for(at(2)) && answers.stand_for(at(3)));
        answers.add(&[at(4)]);
        assert!(!answers.stand_for(at(3)), "it has moved");
    }
}
