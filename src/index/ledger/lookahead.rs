//! Where the blocks of a chain will go, found while the memory of the next ones is on its way. A core waits for a
//! certain number of lines at a time; each of the chain's parts is asked for three parts before it is placed.
//!
//! Of a block that nobody holds nobody holds what lies below it, since who holds a block holds those before it. From
//! there on a row is looked for that is free, and not for the block: mostly in its first bucket alone, which spares the
//! line of the second and the comparison with either. What another thread inserts meanwhile, and a chain that names a
//! block again, may come to lie there several times by that, which [`super::super::rows`] allows.

use crate::index::rows::{Holder, Place};

/// New blocks whose memory is asked for at once. For twice as many, more lines are under way than a core can wait for,
/// and what it does next stands in line behind them; for half as many, it waits.
pub(super) const PART: usize = 8;

/// The rest of a chain, part by part.
pub(super) struct Lookahead<'a> {
    holder: Holder<'a>,
    rest: &'a [u64],
    /// Of three parts in turn.
    places: [[Option<Place>; PART]; 3],
    /// Nobody held the last block that was looked up.
    alone: bool,
}

impl<'a> Lookahead<'a> {
    pub(super) fn of(holder: Holder<'a>, rest: &'a [u64]) -> Lookahead<'a> {
        let mut lookahead = Lookahead { holder, rest, places: [[None; PART]; 3], alone: false };
        (0..3).for_each(|at| lookahead.prefetch(at));
        lookahead.place(0);
        lookahead.place_alone(1);
        lookahead
    }

    /// Where this part will probably go, which follows the one asked for before.
    #[inline]
    pub(super) fn go_on(&mut self, at: usize) -> &[Option<Place>; PART] {
        self.prefetch(at + 3);
        self.place_alone(at + 2);
        self.place(at + 1);
        &self.places[at % 3]
    }

    #[inline]
    fn part(&self, at: usize) -> &'a [u64] {
        self.rest.chunks(PART).nth(at).unwrap_or(&[])
    }

    /// Asks the memory for the keys that will be looked at.
    #[inline]
    fn prefetch(&self, at: usize) {
        let rows = self.holder.rows;
        match self.alone {
            true => self.part(at).iter().for_each(|&hash| rows.prefetch_first(hash)),
            false => self.part(at).iter().for_each(|&hash| rows.prefetch(hash)),
        }
    }

    /// Gives a place to those that need no look at their second bucket, and asks the memory for that of the others.
    #[inline]
    fn place_alone(&mut self, at: usize) {
        let (holder, part) = (self.holder, self.part(at));
        if !self.alone {
            self.places[at % 3] = [None; PART];
            return;
        }
        for (place, &hash) in self.places[at % 3].iter_mut().zip(part) {
            *place = holder.place_alone(hash);
            match place {
                Some(place) => holder.rows.prefetch_bits(place),
                None => holder.rows.prefetch(hash),
            }
        }
    }

    /// Gives a place to the others.
    #[inline]
    fn place(&mut self, at: usize) {
        let (holder, part) = (self.holder, self.part(at));
        for (place, &hash) in self.places[at % 3].iter_mut().zip(part).filter(|(place, _)| place.is_none()) {
            *place = if self.alone { holder.place_alone_in_two(hash) } else { None };
            *place = place.or_else(|| holder.place_for(hash));
            self.alone = place.is_some_and(|place| place.is_alone());
            place.iter().for_each(|place| holder.rows.prefetch_bits(place));
        }
    }
}
