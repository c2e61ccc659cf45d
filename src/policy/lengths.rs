//! Endpoints of one pool that take prompts of different lengths, such as those of one name that were started with
//! `--max-model-len` and without.
//!
//! What is too long for an engine it refuses at once, so that it looks idle and would draw the next such prompt too.

use crate::fleet::{Endpoint, Health};
use crate::policy::{Eligible, Pool};

/// So many are told apart at most, the shortest.
const LENGTHS_MAX: usize = 8;
/// A prompt's length is mostly a guess: an endpoint is passed over only if the prompt is too long by more than one part
/// in so many.
const GUESS: u32 = 5;

/// Those endpoints of a pool that take more than others do.
#[derive(Clone, Debug)]
pub(super) struct Longer {
    /// Than so many tokens.
    than: u32,
    /// A pool of their own.
    pool: Pool,
}

impl Pool {
    /// The endpoints that take so many tokens, prompt and answer together: all, if those that do are down; those that
    /// take most, if it is too long for each; all for 0, of which nothing is known.
    #[inline]
    pub fn taking(&self, tokens: u32) -> &Pool {
        let is_too_long = |longer: &&Longer| tokens > longer.than + longer.than / GUESS;
        self.longer.iter().rev().find(is_too_long).map_or(self, |longer| &longer.pool)
    }

    /// Those that are not down, by what they take.
    pub(super) fn longer(&self, endpoints: &[Option<Endpoint>]) -> Box<[Longer]> {
        let mut lengths = self.contexts.to_vec();
        lengths.sort_unstable();
        lengths.dedup();
        // Nobody takes more than the longest.
        lengths.pop();
        lengths.truncate(LENGTHS_MAX);
        let longer = |than: u32| {
            let takes = self.members.iter().zip(&*self.contexts).filter(|(_, context)| **context > than);
            let members: Vec<u16> = takes.map(|(slot, _)| *slot).collect();
            let eligible = Eligible::of(&members, endpoints);
            // An endpoint that only failed requests may take the next one, for which there may be no other. One that is
            // down takes none.
            let may_take =
                |slot: &u16| endpoints[usize::from(*slot)].as_ref().is_some_and(|one| one.health != Health::Down);
            eligible.slots().iter().any(may_take).then(|| Longer { than, pool: self.part(members.into(), eligible) })
        };
        lengths.into_iter().filter_map(longer).collect()
    }

    /// The same, with the tables of a pool of equal members that take as much: hundreds of adapters would have one each
    /// for each length.
    pub(super) fn longer_as(&self, twin: &Pool) -> Box<[Longer]> {
        twin.longer.iter().map(|longer| Longer { than: longer.than, pool: self.part_as(&longer.pool) }).collect()
    }
}
