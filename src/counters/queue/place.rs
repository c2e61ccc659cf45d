//! One waiting request's place in the queue, and how it is compared with others.

use std::cell::Cell;

use super::rank::Rank;
use super::{Paid, Queue, Seen, Tenant};
use crate::atomics::Ordering;

/// Whose turn it is, as far as a place knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Its own turn.
    Now,
    /// The turn of another request that waits for the same endpoint. Either that one is on the same shard and has yet
    /// to look; or it looked, is more urgent or of a tenant served less, and no stranger's. All that come after are
    /// later as well.
    Later,
    /// It need not look: one before it found no room for the same need or less.
    InVain,
    /// The turn of another shard's request for some endpoint of its island, which has yet to look
    /// since the last end: that one's place.
    Behind(usize),
}

/// What requests that wait for one endpoint are ordered by: field by field, lowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Order {
    pub(super) urgency: u8,
    /// What its tenant was served for its weight.
    pub(super) served: u64,
    /// When it began to wait, in milliseconds; earlier by up to 10 s for the part of its prompt that is held.
    pub(super) when: u64,
    pub(super) place: usize,
}

impl Order {
    /// A request that comes later by this does not go past one for which room is kept.
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

    /// Whether both are equally urgent.
    pub fn is_as_urgent_as(&self, other: &Line) -> bool {
        self.urgency == other.urgency
    }

    /// Its tenant's lane, and how urgent it is.
    pub fn kind(&self) -> Kind {
        Kind { urgency: self.urgency, lane: self.lane }
    }

    /// Whether the order of both is settled: they have urgency, tenant and island in common.
    pub fn is_in_line_with(&self, other: &Line) -> bool {
        (self.kind(), self.island) == (other.kind(), other.island)
    }

    /// Its island, see [`super::islands`].
    pub fn island(&self) -> u16 {
        self.island
    }
}

/// What requests have in common if one's look tells what the others would find.
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
    /// Tokens that it needs where it waits, as of its last look.
    pub(super) needs: Cell<u32>,
    /// When it began to wait, in microseconds.
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

    /// Its order among requests that wait for the same endpoint. It changes as its tenant is served.
    pub fn order(&self) -> Order {
        self.queue.order(self.rank(), self.place)
    }

    /// Its order among requests of its urgency, tenant and island, lowest first, which never changes while these stay
    /// the same. For a caller that keeps many places in order.
    pub fn line(&self) -> Line {
        let rank = self.rank();
        let island = self.queue.islands.of(rank.endpoint());
        Line { urgency: rank.urgency(), lane: rank.lane(), island, when: rank.when(), place: self.place }
    }

    /// Changes its tenant and priority, which were not known when it came: it waits on as if they had been.
    pub fn turns_out_to_be_of(&mut self, tenant: Tenant, priority: i8) {
        let queue = self.queue;
        let book = queue.book(self.endpoint(), Rank::urgency_of(priority));
        // Before its word says so, like a request that joins.
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

    /// The weight of its tenant; at least 1.
    pub fn weight(&self) -> u32 {
        self.tenant.weight
    }

    /// Ends its wait as if another request had pushed it out: its owner notices by [`Place::stands`].
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

    /// Tokens that it needs there, as of its last look: [`crate::policy::Choice::needs`].
    pub fn needs(&self) -> u32 {
        self.needs.get()
    }

    /// Whether no request that waits for the same endpoint comes before it.
    pub fn is_next(&self) -> bool {
        let (queue, rank) = (self.queue, self.rank());
        let own = queue.order(rank, self.place);
        // Stops at the first one: with thousands waiting each look asks this for each, and mostly an early one comes
        // before.
        let comes_before =
            |(place, other): (usize, Rank)| other.endpoint() == rank.endpoint() && queue.order(other, place) < own;
        rank.waits() && !queue.ranks().any(comes_before)
    }

    /// Whether it is to look for room now. Requests of its own shard look in their order. For other shards' requests
    /// before it, unless one waits for the same endpoint, it need not wait if enough places are open for all of them.
    pub fn turn(&self) -> Turn {
        let (queue, rank) = (self.queue, self.rank());
        let (own, shard, island) = (queue.order(rank, self.place), queue.owner(self.place), self.line().island());
        let (open, too_much) = (queue.islands.open(island), queue.looked(rank.endpoint()).needs);
        // Of other shards' requests that come before it and have yet to look: the first, how many they are, and
        // whether one of them waits for the same endpoint.
        let mut first: Option<Order> = None;
        let mut before = 0;
        let mut same = false;
        // Whether one before it found no room for as little or less.
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

    /// Notes that it looked and found no room, and waits for this endpoint from now on, where it needs so many tokens.
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
            // Noted as a first request's look where it waited before: either it was first there, or the one that is has
            // not looked for too long.
            self.queue.no_room(before, needed, seen, true);
        }
        self.queue.no_room(endpoint, needs, seen, self.is_next());
    }

    /// Ends its wait: it goes to its endpoint, and so many tokens of work are charged to its tenant's account.
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
        // Release: whoever takes the place next does so after this.
        let rank = Rank::of(self.queue.words[self.place].swap(Rank::NOBODY, Ordering::AcqRel));
        if rank.waits() {
            self.queue.leaves();
        }
    }
}
