//! The cards of one engine's list, found by their ids. With adapters a list has a thousand of them, and each
//! publication asks each engine of a pool for one: read from the front, hundreds of engines would keep control busy for
//! seconds.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::ops::Deref;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::Card;

/// In the order in which their engine lists them; shared by all engines that list the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cards(Arc<List>);

#[derive(Debug, Default, PartialEq, Eq)]
struct List {
    cards: Box<[Card]>,
    /// The hash of each id and the place of its card, ascending.
    by_hash: Box<[(u64, u32)]>,
    shortest_context: Option<u32>,
    longest_context: Option<u32>,
}

impl From<Vec<Card>> for Cards {
    fn from(cards: Vec<Card>) -> Cards {
        let mut by_hash: Box<[(u64, u32)]> = (0..).zip(&cards).map(|(at, card)| (hash(&card.id), at)).collect();
        by_hash.sort_unstable();
        let contexts = || cards.iter().filter_map(|card| card.context);
        let (shortest_context, longest_context) = (contexts().min(), contexts().max());
        Cards(Arc::new(List { cards: cards.into(), by_hash, shortest_context, longest_context }))
    }
}

impl FromIterator<Card> for Cards {
    fn from_iter<T: IntoIterator<Item = Card>>(cards: T) -> Cards {
        Cards::from(cards.into_iter().collect::<Vec<_>>())
    }
}

impl Deref for Cards {
    type Target = [Card];

    fn deref(&self) -> &[Card] {
        &self.0.cards
    }
}

impl<'a> IntoIterator for &'a Cards {
    type Item = &'a Card;
    type IntoIter = std::slice::Iter<'a, Card>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.cards.iter()
    }
}

impl Cards {
    /// Whether these are the others, in one place of memory.
    pub fn are(&self, others: &Cards) -> bool {
        Arc::ptr_eq(&self.0, &others.0)
    }

    /// Where they are in memory, by which those of several engines that are the same are told from others.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether both say the same of what is served.
    pub fn say_as(&self, others: &Cards) -> bool {
        // By their hashes first, which those of other ids differ in soon.
        let are_alike = || self.iter().map(Card::lasting).eq(others.iter().map(Card::lasting));
        self.are(others) || self.0.by_hash == others.0.by_hash && are_alike()
    }

    /// The card of this id.
    pub fn of(&self, id: &str) -> Option<&Card> {
        let hash = hash(id);
        let first = self.0.by_hash.partition_point(|(other, _)| {
            looks::count();
            *other < hash
        });
        let alike = self.0.by_hash.iter().skip(first).take_while(|(other, _)| *other == hash);
        alike.filter_map(|(_, at)| self.0.cards.get(*at as usize)).find(|card| &*card.id == id)
    }

    /// Whether one of these ids is among the others.
    pub fn has_any_of(&self, others: &Cards) -> bool {
        if self.are(others) {
            return !self.is_empty();
        }
        let (mut ours, mut theirs) = (self.0.by_hash.iter().peekable(), others.0.by_hash.iter().peekable());
        while let (Some((our, _)), Some((their, at))) = (ours.peek(), theirs.peek()) {
            looks::count();
            match our.cmp(their) {
                Less => drop(ours.next()),
                Greater => drop(theirs.next()),
                Equal if others.0.cards.get(*at as usize).is_some_and(|card| self.of(&card.id).is_some()) => {
                    return true;
                }
                Equal => drop(theirs.next()),
            }
        }
        false
    }

    /// Tokens of the longest prompt that is taken for this id: as its card says, else the longest of the others.
    pub fn context_for(&self, id: &str) -> Option<u32> {
        // Mostly a base says it alone, and it is asked of each of its adapters, of each engine.
        if self.0.shortest_context == self.0.longest_context {
            return self.0.longest_context;
        }
        self.of(id).and_then(|card| card.context).or(self.0.longest_context)
    }
}

fn hash(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

/// How many ids were looked at, for tests of how many have to be.
pub mod looks {
    #[cfg(test)]
    thread_local!(static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });

    #[inline]
    pub(super) fn count() {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
    }

    /// Since this was asked last, by this thread.
    #[cfg(test)]
    pub fn since() -> usize {
        LOOKS.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cards(ids: impl IntoIterator<Item = usize>) -> Cards {
        ids.into_iter().map(|id| Card::made(&id.to_string())).collect()
    }

    #[test]
    fn cards_are_found_by_their_ids() {
        let list = cards((0..1_000).rev());
        assert!((0..1_000).all(|id| list.of(&id.to_string()).is_some_and(|card| *card.id == *id.to_string())));
        assert!(list.of("1000").is_none() && list.of("").is_none() && cards([]).of("1").is_none());
        assert_eq!((&*list[0].id, list.len()), ("999", 1_000), "as they were listed");
    }

    #[test]
    fn lists_with_an_id_in_common_are_told_from_others() {
        for (ours, theirs, any) in [(0..500, 499..900, true), (0..500, 500..900, false), (0..0, 0..9, false)] {
            let (ours, theirs) = (cards(ours), cards(theirs));
            assert_eq!((ours.has_any_of(&theirs), theirs.has_any_of(&ours)), (any, any));
        }
    }
}
