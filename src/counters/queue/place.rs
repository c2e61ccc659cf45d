//! One waiting request's place in the queue, and how it is compared with others.

use std::cell::Cell;

use super::rank::Rank;
use super::{Paid, Queue, Seen, Tenant};
use crate::atomics::Ordering;

/// Whose turn it is, as far as a place knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Its own.
    Now,
    /// Another's, who waits for the same endpoint: it looks first, as its shard's next, or it looked, and is more
    /// urgent or was served less, and no stranger. All that come behind are later as well.
    Later,
    /// Nobody's who needs so much: there was no room for it.
    InVain,
    /// Another shard's, who waits for some endpoint of its island and has yet to look at
    /// what ended last; where it stands.
    Behind(usize),
}

/// By what those compare that wait for one endpoint, in the order of its fields; lowest is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Order {
    pub(super) urgency: u8,
    /// What its tenant was served for its weight.
    pub(super) served: u64,
    /// Since when it has waited; the earlier, the more of its prompt is held.
    pub(super) when: u64,
    pub(super) place: usize,
}

impl Order {
    /// Who comes later by this goes past nobody for whom room is kept.
    fn precedence(&self) -> (u8, u64) {
        (self.urgency, self.served)
    }
}

/// See [`Place::line`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Line {
    urgency: u8,
    lane: u8,
    island: u16,
    when: u64,
    place: usize,
}

impl Line {
    /// Lower is more urgent.
    pub fn urgency(&self) -> u8 {
        self.urgency
    }

    /// As urgent.
    pub fn is_as_urgent_as(&self, other: &Line) -> bool {
        self.urgency == other.urgency
    }

    /// Whose it is, and how urgent.
    pub fn kind(&self) -> Kind {
        Kind { urgency: self.urgency, lane: self.lane }
    }

    /// Whether it is settled who of both goes first: they have urgency, tenant and island in common.
    pub fn is_in_line_with(&self, other: &Line) -> bool {
        (self.kind(), self.island) == (other.kind(), other.island)
    }

    /// Its island, see [`super::islands`].
    pub fn island(&self) -> u16 {
        self.island
    }
}

/// What those have in common of whom one's look says what the others would find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    urgency: u8,
    lane: u8,
}

/// One request's place. Dropping it leaves the queue.
#[derive(Debug)]
#[must_use = "dropping a place leaves the queue"]
pub struct Place {
    pub(super) queue: &'static Queue,
    pub(super) place: usize,
    pub(super) tenant: Tenant,
    /// What it needs where it waits, as of its last look.
    pub(super) needs: Cell<u32>,
    /// Since when.
    pub(super) since: u64,
}

impl Place {
    /// How long it has waited, in microseconds.
    pub fn waited(&self, now: u64) -> u64 {
        now.saturating_sub(self.since)
    }

    /// Whether it still waits; false: it was pushed out.
    pub fn stands(&self) -> bool {
        self.rank().waits()
    }

    /// What it is compared by with others that wait for the same endpoint. It changes as its tenant is served.
    pub fn order(&self) -> Order {
        self.queue.order(self.rank(), self.place)
    }

    /// Where it stands among those of its urgency, tenant and island, lowest first; that never changes as long as those
    /// are the same. For who has many places.
    pub fn line(&self) -> Line {
        let rank = self.rank();
        let island = self.queue.islands.of(rank.endpoint());
        Line { urgency: rank.urgency(), lane: rank.lane(), island, when: rank.when(), place: self.place }
    }

    /// It turns out to be this tenant's, and as urgent: it waits on as if that had been known when it came.
    pub fn turns_out_to_be_of(&mut self, tenant: Tenant, priority: i8) {
        let queue = self.queue;
        let book = queue.book(self.endpoint(), Rank::urgency_of(priority));
        // Before its word says so, as of one who joins.
        queue.tenants.joins(book, tenant, queue.begins(book, tenant.lane));
        let of_tenant = |word: u64| {
            let waits = Some(Rank::of(word)).filter(|rank| rank.waits());
            waits.map(|rank| rank.of_tenant(priority, tenant.lane).word())
        };
        let _ = queue.words[self.place].fetch_update(Ordering::AcqRel, Ordering::Relaxed, of_tenant);
        self.tenant = tenant;
    }

    /// Whether it is on the account that all strangers have in common.
    pub fn is_a_strangers(&self) -> bool {
        self.rank().is_a_strangers()
    }

    /// Of its tenant; at least 1.
    pub fn weight(&self) -> u32 {
        self.tenant.weight
    }

    /// It waits no more, and has yet to notice ([`Place::stands`]), as where another one is let in for it.
    pub fn push_out(&self) {
        let out = |word: u64| {
            let waits = Some(Rank::of(word)).filter(|rank| rank.waits());
            waits.map(|rank| rank.pushed_out().word())
        };
        if self.queue.words[self.place].fetch_update(Ordering::AcqRel, Ordering::Relaxed, out).is_ok() {
            self.queue.leaves();
        }
    }

    /// Slot of the endpoint that it waits for.
    pub fn endpoint(&self) -> u16 {
        self.rank().endpoint()
    }

    /// What it needs there, as of its last look: [`crate::policy::Choice::needs`].
    pub fn needs(&self) -> u32 {
        self.needs.get()
    }

    /// Whether nobody who waits for the same endpoint comes before it.
    pub fn is_next(&self) -> bool {
        let (queue, rank) = (self.queue, self.rank());
        let own = queue.order(rank, self.place);
        // Mostly somebody does who came long before: with thousands each look asks this of each.
        let comes_before =
            |(place, other): (usize, Rank)| other.endpoint() == rank.endpoint() && queue.order(other, place) < own;
        rank.waits() && !queue.ranks().any(comes_before)
    }

    /// Whether it is to look for room now: those of its own shard look in their order, and where places are open for
    /// all who come before it, nobody waits for them to look.
    pub fn turn(&self) -> Turn {
        let (queue, rank) = (self.queue, self.rank());
        let (own, shard, island) = (queue.order(rank, self.place), queue.owner(self.place), self.line().island());
        let (open, too_much) = (queue.islands.open(island), queue.looked(rank.endpoint()).needs);
        // Of other shards' that come before it and have yet to look: the first, how many they are, and whether one of
        // them waits for the same endpoint.
        let mut first: Option<Order> = None;
        let mut before = 0;
        let mut same = false;
        // One that comes before it found no room for less.
        let mut needs_too_much = false;
        for (place, other) in queue.ranks_of(island) {
            let order = queue.order(other, place);
            if order >= own {
                continue;
            }
            let has_to_look = queue.has_to_look(other);
            if has_to_look && queue.owner(place) != shard {
                first = Some(first.map_or(order, |first| first.min(order)));
                before += 1;
                same |= other.endpoint() == rank.endpoint();
            } else if other.endpoint() == rank.endpoint() {
                let keeps_room = !other.is_a_strangers();
                if has_to_look || keeps_room && order.precedence() < own.precedence() {
                    return Turn::Later;
                }
                needs_too_much |= self.needs() >= too_much;
            }
        }
        if needs_too_much {
            return Turn::InVain;
        }
        first.filter(|_| same || before >= open).map_or(Turn::Now, |first| Turn::Behind(first.place))
    }

    /// It has looked, found no room, and waits for this endpoint from now on, of which it needs so much.
    pub fn aims_at(&self, endpoint: u16, needs: u32, seen: Seen) {
        let needed = self.needs.replace(needs);
        let word = &self.queue.words[self.place];
        let before = self.endpoint();
        let aimed = |word: u64| match Rank::of(word) {
            rank if rank.waits() && rank.endpoint() != endpoint => Some(rank.aimed_at(endpoint).word()),
            _ => None,
        };
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, aimed);
        let island = self.queue.islands.of(endpoint);
        if self.queue.islands.last_end(island) <= seen.0 {
            self.queue.islands.none_open(island);
        }
        if before != endpoint {
            // Where it waited until now it came first, or who does has not looked for too long.
            self.queue.no_room(before, needed, seen, true);
        }
        self.queue.no_room(endpoint, needs, seen, self.is_next());
    }

    /// Its wait is over: it goes to its endpoint, with so many tokens of work on its tenant's account.
    pub fn released(self, tokens: u32, now: u64) -> Paid {
        let (queue, rank) = (self.queue, self.rank());
        let island = queue.islands.of(rank.endpoint());
        queue.islands.takes_place(island);
        if let Some(drain) = queue.drains.get(usize::from(island)) {
            drain.released(now);
        }
        queue.tenants.serves(queue.book(rank.endpoint(), rank.urgency()), self.tenant, tokens)
    }

    fn rank(&self) -> Rank {
        Rank::of(self.queue.words[self.place].load(Ordering::Acquire))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Release: who takes the place next comes behind.
        let rank = Rank::of(self.queue.words[self.place].swap(Rank::NOBODY, Ordering::AcqRel));
        if rank.waits() {
            self.queue.leaves();
        }
    }
}
