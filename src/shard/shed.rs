//! What waits in the queue may hold at most half of a shard's memory for bodies ([`Lender::waits_too_much`]): else
//! requests that wait for one model would have those for others refused.
//!
//! Beyond that requests are ended, last in the queue's order first: of the engines (island) for which most is held,
//! the least urgent; of these, of the tenant that holds most for its weight; of these, the latest. A newcomer that
//! is last itself finds the queue full, and counts as one that never waited.
//!
//! [`Lender::waits_too_much`]: crate::exchange::Lender::waits_too_much

use std::ops::Range;

use super::Shard;
use crate::counters::queue::{Line, Place};
use crate::driver::Driver;
use crate::exchange::{Event, Exchange};
use crate::slots::Key;

/// Those that wait here, as they are lined up.
struct Held {
    /// By island.
    islands: Vec<usize>,
    shares: Vec<Share>,
}

/// What is held for those of one urgency, tenant and island.
struct Share {
    /// The first of them.
    line: Line,
    weight: usize,
    /// Those of them that have not been ended yet, as places in the lines.
    left: Range<usize>,
    bytes: usize,
}

impl Held {
    /// Takes out the last request of those that are left. Answers its share, and its place in the lines.
    fn last(&mut self) -> Option<(usize, usize)> {
        let islands = &self.islands;
        let left = self.shares.iter_mut().enumerate().filter(|(_, share)| !share.left.is_empty());
        let last = |share: &Share| (islands[place(&share.line)], share.line.urgency(), share.bytes / share.weight);
        let (at, share) = left.max_by_key(|(_, share)| last(share))?;
        share.left.end -= 1;
        Some((at, share.left.end))
    }

    /// So much less is held in this share.
    fn gone(&mut self, share: usize, bytes: usize) {
        let share = &mut self.shares[share];
        share.bytes -= bytes;
        self.islands[place(&share.line)] -= bytes;
    }
}

/// The island of a line, as an index.
fn place(line: &Line) -> usize {
    line.island().into()
}

impl<D: Driver> Shard<D> {
    /// Ends waiting requests until the rest holds no more than it may.
    #[cold]
    pub(super) fn shed_waiting(&mut self) {
        let (mut lines, mut heads) = (Vec::new(), Vec::new());
        self.line_up(&mut lines, &mut heads);
        // Requests that other shards' have pushed out end in any case.
        for (_, key) in &lines {
            if self.place(*key).is_some_and(|place| !place.stands()) {
                self.advance_by(*key, Event::Room);
            }
        }
        let mut held = self.held_by(&lines, heads);
        while self.desk.lender.waits_too_much()
            && let Some((share, last)) = held.last()
        {
            let (_, key) = lines[last];
            held.gone(share, self.waiting_bytes(key));
            if let Some(place) = self.place(key) {
                place.push_out();
                self.advance_by(key, Event::Room);
            }
        }
        let cx = self.desk.context();
        for (_, key) in &lines {
            let exchange = self.clients.get_mut(*key).and_then(|client| client.exchange.as_deref_mut());
            exchange.into_iter().for_each(|exchange| exchange.stays_in_queue(&cx));
        }
    }

    fn held_by(&self, lines: &[(Line, Key)], heads: Vec<Range<usize>>) -> Held {
        let mut islands = vec![0; lines.iter().map(|(line, _)| place(line) + 1).max().unwrap_or(0)];
        let share = |left: Range<usize>| {
            let (line, key) = lines[left.start];
            let bytes = lines[left.clone()].iter().map(|(_, key)| self.waiting_bytes(*key)).sum();
            islands[place(&line)] += bytes;
            Share { line, weight: self.place(key).map_or(1, Place::weight) as usize, left, bytes }
        };
        let shares = heads.into_iter().map(share).collect();
        Held { islands, shares }
    }

    fn waiting_bytes(&self, key: Key) -> usize {
        let exchange = self.clients.get(key).and_then(|client| client.exchange.as_deref());
        exchange.map_or(0, Exchange::waiting_memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::queue::{Newcomer, Queue, Tenant};

    /// Where several have to go at once, each is who is last by then: not all are of those that held most at first.
    #[test]
    fn who_is_last_is_seen_anew_behind_each_that_goes() {
        let queue: &'static Queue = Box::leak(Box::default());
        queue.islands_are(&[0, 1]);
        let mut left = 0..0;
        // Of two tenants for one island, and of one for another: how many, and how much each holds.
        let (places, shares): (Vec<Place>, Vec<Share>) = [(0, 1, 2, 300), (0, 2, 1, 310), (1, 1, 4, 200)]
            .map(|(endpoint, lane, count, bytes)| {
                let tenant = Tenant { lane, weight: 1 };
                let asks = Newcomer { priority: 0, tenant, held: 0.0, new: 0, needs: 0, endpoint, shard: 0 };
                let place = queue.join(&asks, 1_000, 0).unwrap();
                left = left.end..left.end + count;
                let share = Share { line: place.line(), weight: 1, left: left.clone(), bytes: count * bytes };
                (place, share)
            })
            .into_iter()
            .unzip();
        let mut held = Held { islands: vec![910, 800], shares };
        let went = std::iter::from_fn(|| {
            let (share, at) = held.last()?;
            held.gone(share, [300, 310, 200][share]);
            Some((share, at))
        });
        assert_eq!(went.collect::<Vec<_>>(), [(0, 1), (2, 6), (1, 2), (2, 5), (2, 4), (0, 0), (2, 3)]);
        assert_eq!((held.islands, places.len()), (vec![0, 0], 3));
    }
}
