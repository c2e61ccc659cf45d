//! The queue in front of the engines: requests that wait for room on the endpoint that holds their prompt. There is one
//! for the process, so that all shards release in one order.
//!
//! Requests that can never go to the same engines do not stand in each other's way ([`islands`]). They share its size,
//! evenly once it is full.
//!
//! Each waiting request has a [`Place`]: one word, published by its shard, with all that it is compared by ([`rank`]).
//! First comes the more urgent request, then the one whose tenant was served least for its weight ([`tenants`]), then
//! the one that has waited longest; the part of its prompt that the endpoint holds counts as up to 10 s of waiting.
//!
//! A shard lets a request look for room only after all requests before it that have yet to look since the last end
//! ([`Place::turn`]). It reads the other shards' words: no shard is asked and nothing is locked. A request that looked
//! and does not fit lets others pass that need less ([`Look`]), but, unless it is a stranger's, none of a tenant that
//! was served more.
//!
//! A full queue only takes in a request that may push another one out ([`pushing`]): one that waits for an island with
//! more places; or one of the same island that is less urgent, or whose tenant has more places there for its weight. A
//! request that is pushed out finds its place gone ([`Place::stands`]). A place is given back by dropping it, on
//! whichever exit.
//!
//! While no request waits, this costs one load for each request.

mod drain;
mod islands;
mod look;
mod place;
mod pushing;
mod rank;
mod tenants;

use std::cell::Cell;
use std::cmp::Ordering::{Equal, Greater, Less};

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::limits::{ENDPOINTS_MAX, QUEUE_MAX};
use drain::Drain;
use islands::Islands;
pub use look::Look;
pub use place::{Line, Order, Place, Turn};
use rank::Rank;
use tenants::{BookId, Tenants};
pub use tenants::{Paid, Tenant};

/// Words for places: twice as many as may wait, since requests that were pushed out keep theirs until they notice.
const WORDS: usize = 2 * QUEUE_MAX;
/// What a request that joins adds to [`Queue::counts`].
const ONE_MORE: u64 = 1 << u32::BITS | 1;
/// How often a newcomer to a full queue tries to push a request out, if that one left by itself meanwhile, or another
/// newcomer took the room.
const TRIES_MAX: usize = 5;

/// Bits of a word of [`Queue::looked`] for the need that was too much: up to 16 million tokens. The others count ends:
/// enough for 7 years with 5,000 a second while requests wait.
const NEEDS_BITS: u32 = 24;
const NEEDS_MAX: u32 = (1 << NEEDS_BITS) - 1;

/// See the module.
#[derive(Debug)]
pub struct Queue {
    words: Box<[AtomicU64]>,
    /// The shard of each place's request.
    owners: Box<[AtomicU32]>,
    /// In the lower half at least as many requests as wait: raised before a word says so, lowered after. In the upper
    /// half how many have ever joined.
    counts: AtomicU64,
    /// How many requests have ended while others waited.
    ends: AtomicU64,
    /// By endpoint: the number of the last of these ends there...
    ended: Box<[AtomicU64]>,
    /// ... and the number of the last end anywhere when the first request for it looked and found no room, with the
    /// least need that was too much then.
    looked: Box<[AtomicU64]>,
    islands: Islands,
    tenants: Tenants,
    /// How fast requests are released, by island.
    drains: Box<[Drain]>,
}

/// A request that has to wait.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    /// As vLLM counts: lower is more urgent, 0 is usual.
    pub priority: i8,
    /// The tenant on whose account it goes.
    pub tenant: Tenant,
    /// How much of the prompt the endpoint that it waits for holds, 0..=1.
    pub held: f32,
    /// Tokens that are to be computed there.
    pub new: u32,
    /// Tokens of its cache that must be free for it: [`crate::policy::Choice::needs`].
    pub needs: u32,
    /// Slot of the endpoint that it waits for.
    pub endpoint: u16,
    /// The shard that it is on.
    pub shard: u16,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            words: (0..WORDS).map(|_| AtomicU64::new(Rank::NOBODY)).collect(),
            owners: (0..WORDS).map(|_| AtomicU32::new(0)).collect(),
            counts: AtomicU64::new(0),
            ends: AtomicU64::new(0),
            ended: (0..ENDPOINTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            looked: (0..ENDPOINTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            islands: Islands::default(),
            tenants: Tenants::default(),
            drains: (0..ENDPOINTS_MAX).map(|_| Drain::default()).collect(),
        }
    }
}

impl Queue {
    /// How many requests wait.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.counts.load(Ordering::Relaxed) as u32
    }

    /// How many requests have ever joined (wraps).
    fn joined(&self) -> u32 {
        (self.counts.load(Ordering::Relaxed) >> u32::BITS) as u32
    }

    /// Takes a request in, beside at most `most - 1` others; `now` in microseconds of the shards' clock. `None`: the
    /// queue is full, and none may be pushed out for this one.
    pub fn join(&'static self, newcomer: &Newcomer, most: u32, now: u64) -> Option<Place> {
        let most = most.min(QUEUE_MAX as u32);
        let lane = newcomer.tenant.lane;
        let book = self.book(newcomer.endpoint, Rank::urgency_of(newcomer.priority));
        let begins = self.lets_in(newcomer, book, most)?;
        self.tenants.joins(book, newcomer.tenant, begins);
        let rank = Rank::new(newcomer.priority, lane, newcomer.endpoint, newcomer.held, now);
        for (place, word) in self.words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == Rank::NOBODY {
                let taken = word.compare_exchange(Rank::NOBODY, Rank::TAKEN, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    self.owners[place].store(newcomer.shard.into(), Ordering::Relaxed);
                    // Release: a reader of the word also sees the owner.
                    word.store(rank.word(), Ordering::Release);
                    let (tenant, needs) = (newcomer.tenant, Cell::new(newcomer.needs));
                    return Some(Place { queue: self, place, tenant, needs, since: now });
                }
            }
        }
        // All words are taken, half of them by requests that were pushed out and have not noticed yet.
        self.leaves();
        None
    }

    /// Counts it as waiting, and returns where its tenant's account begins; `None`: the queue is full.
    fn lets_in(&self, newcomer: &Newcomer, book: BookId, most: u32) -> Option<u64> {
        let below = |counts: u64| ((counts as u32) < most).then_some(counts.wrapping_add(ONE_MORE));
        for _ in 0..TRIES_MAX {
            let waiting = self.waiting();
            // After a reload that lowered `most` more may wait: then pushing one out makes no room.
            if waiting > most || waiting == most && !self.push_out_for(newcomer) {
                return None;
            }
            // Before it counts as waiting: a search for waiting requests goes on until it has found as many.
            let begins = self.begins(book, newcomer.tenant.lane);
            if self.counts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).is_ok() {
                return Some(begins);
            }
        }
        None
    }

    /// Whether a request that has room on its endpoint may go past those that wait for its island. It may not if a
    /// request that comes before it, other than a stranger's, waits for the same endpoint; nor if one that comes before
    /// it, or is as urgent and of a tenant served as little, has yet to look since the last end at this endpoint. So a
    /// long prompt that does not fit keeps its room from all that come after it. While no request waits this costs one
    /// load.
    #[inline]
    pub fn lets_pass(&self, newcomer: &Newcomer) -> bool {
        self.waiting() == 0 || self.passes(newcomer)
    }

    fn passes(&self, newcomer: &Newcomer) -> bool {
        let urgency = Rank::urgency_of(newcomer.priority);
        let (book, lane) = (self.book(newcomer.endpoint, urgency), newcomer.tenant.lane);
        let precedence = (urgency, self.begins(book, lane));
        let ended = of(&self.ended, newcomer.endpoint);
        self.ranks_of(self.islands.of(newcomer.endpoint)).all(|(_, rank)| {
            let waits_there = rank.endpoint() == newcomer.endpoint && !rank.is_a_strangers();
            let has_looked = || self.looked(rank.endpoint()).end >= ended;
            match precedence.cmp(&(rank.urgency(), self.served(rank))) {
                Less => true,
                Equal => has_looked(),
                Greater => !waits_there && has_looked(),
            }
        })
    }

    /// Notes that a request ended at an endpoint: there may be room, and waiting requests look before others pass.
    pub fn freed(&self, endpoint: u16) {
        // Release: a look that sees this end also sees the room.
        let end = self.ends.fetch_add(1, Ordering::Release) + 1;
        if let Some(ended) = self.ended.get(usize::from(endpoint)) {
            ended.fetch_max(end, Ordering::Relaxed);
        }
        self.islands.ended(self.islands.of(endpoint), end);
    }

    /// Sets the island of each endpoint, by slot. If any changes, all tenants' accounts begin anew: a request on
    /// another island than before would go by that island's book, in which its tenant was served nothing or too much.
    pub fn islands_are(&self, islands: &[u16]) {
        if self.islands.are(islands) {
            self.tenants.begin_anew();
        }
    }

    /// The island of an endpoint.
    #[cfg(test)]
    pub fn island(&self, endpoint: u16) -> u16 {
        self.islands.of(endpoint)
    }

    /// The last end that a look beginning now knows of; see [`Place::aims_at`].
    #[inline]
    pub fn seen(&self) -> Seen {
        Seen(self.ends.load(Ordering::Acquire))
    }

    /// Charges a request that goes to its endpoint without waiting to its tenant's account, if others wait whose turns
    /// go by the same book. If none do it passes none, and a charge would stay, since no turns go on in that book.
    #[inline]
    pub fn passed(&self, newcomer: &Newcomer) -> Option<Paid> {
        if self.waiting() == 0 {
            return None;
        }
        self.islands.takes_place(self.islands.of(newcomer.endpoint));
        let book = self.book(newcomer.endpoint, Rank::urgency_of(newcomer.priority));
        self.lanes(book).next()?;
        Some(self.tenants.passes(book, newcomer.tenant, newcomer.new, self.begins(book, newcomer.tenant.lane)))
    }

    /// Takes an open place for a further try of a request that was charged before.
    #[inline]
    pub fn takes_place(&self, endpoint: u16) {
        if self.waiting() > 0 {
            self.islands.takes_place(self.islands.of(endpoint));
        }
    }

    /// Takes a charge back: the request was refused where it went.
    pub fn repaid(&self, paid: Paid) {
        self.tenants.repays(paid, self.level(paid.book(), paid.lane()));
    }

    /// The shard of the first request, of those on other shards, that has yet to look since the last end.
    pub fn next_elsewhere(&self, shard: u16) -> Option<u16> {
        let theirs = self.ranks().filter(|(place, rank)| self.owner(*place) != shard && self.has_to_look(*rank));
        theirs.min_by_key(|(place, rank)| self.order(*rank, *place)).map(|(place, _)| self.owner(place))
    }

    fn owner(&self, place: usize) -> u16 {
        self.owners[place].load(Ordering::Relaxed) as u16
    }

    /// Whether a request has ended on its island since the first request for its endpoint looked.
    fn has_to_look(&self, rank: Rank) -> bool {
        self.looked(rank.endpoint()).end < self.islands.last_end(self.islands.of(rank.endpoint()))
    }

    fn book(&self, endpoint: u16, urgency: u8) -> BookId {
        BookId::of(self.islands.of(endpoint), urgency)
    }

    /// What its tenant was served, over its weight.
    fn served(&self, rank: Rank) -> u64 {
        self.tenants.served(self.book(rank.endpoint(), rank.urgency()), rank.lane())
    }

    /// The lanes of the requests that wait, by this book; once for each request.
    fn lanes(&self, book: BookId) -> impl Iterator<Item = u8> {
        let ranks = self.ranks().filter(move |(_, rank)| self.book(rank.endpoint(), rank.urgency()) == book);
        ranks.map(|(_, rank)| rank.lane())
    }

    /// Where a lane begins that comes to others: at the least that any of these was served, or if none wait where the
    /// last released one stood.
    fn level(&self, book: BookId, lane: u8) -> u64 {
        let others = self.lanes(book).filter(|other| *other != lane);
        others.map(|other| self.tenants.served(book, other)).min().unwrap_or_else(|| self.tenants.now(book))
    }

    /// What a tenant was served, over its weight, as of now; if no request of it waits, not less than [`Queue::level`].
    fn begins(&self, book: BookId, lane: u8) -> u64 {
        let served = self.tenants.served(book, lane);
        if self.lanes(book).any(|other| other == lane) { served } else { served.max(self.level(book, lane)) }
    }

    /// The last look at this endpoint.
    fn looked(&self, endpoint: u16) -> Looked {
        let looked = of(&self.looked, endpoint);
        Looked { end: looked >> NEEDS_BITS, needs: NEEDS_MAX - (looked as u32 & NEEDS_MAX) }
    }

    /// Notes that there was no room for a need of so many tokens. Only the first request for an endpoint notes the look
    /// itself.
    fn no_room(&self, endpoint: u16, needs: u32, seen: Seen, first: bool) {
        let Some(looked) = self.looked.get(usize::from(endpoint)) else { return };
        // The greatest word is of the last look, and of one look that with the least need.
        let said = seen.0 << NEEDS_BITS | u64::from(NEEDS_MAX - needs.min(NEEDS_MAX));
        let of_this = |before: u64| match (before >> NEEDS_BITS).cmp(&seen.0) {
            // Room may also come without an end: then the first one's look counts for all after it.
            Less | Equal if first => Some(said),
            Equal => Some(before.max(said)),
            _ => None,
        };
        let _ = looked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, of_this);
    }

    /// Seconds until a request that joins for this endpoint now would be released, by the recent rate of releases on
    /// its island.
    pub fn wait_seconds(&self, endpoint: u16, now: u64) -> u32 {
        let island = self.islands.of(endpoint);
        let waiting = self.ranks_of(island).count() as u32;
        self.drains.get(usize::from(island)).map_or(1, |drain| drain.seconds_for(waiting + 1, now))
    }

    /// The waiting requests, each with its place. Stops when all have been seen that waited when it began.
    fn ranks(&self) -> impl Iterator<Item = (usize, Rank)> {
        // A request that joins meanwhile may be seen, and is counted, as one of these.
        let mut joined = self.joined();
        let mut left = self.waiting();
        let words = self.words.iter().enumerate();
        words
            .map_while(move |(place, word)| {
                if left == 0 {
                    // Up to so many of those seen joined since; as many that waited before may lie further on.
                    let now = self.joined();
                    left = now.wrapping_sub(std::mem::replace(&mut joined, now));
                }
                let rank = (left > 0).then(|| Rank::of(word.load(Ordering::Acquire)))?;
                #[cfg(test)]
                tests::LOOKS.set(tests::LOOKS.get() + 1);
                left -= u32::from(rank.waits());
                Some((place, rank))
            })
            .filter(|(_, rank)| rank.waits())
    }

    /// The requests that wait for this island.
    fn ranks_of(&self, island: u16) -> impl Iterator<Item = (usize, Rank)> {
        self.ranks().filter(move |(_, rank)| self.islands.of(rank.endpoint()) == island)
    }

    fn order(&self, rank: Rank, place: usize) -> Order {
        Order { urgency: rank.urgency(), served: self.served(rank), when: rank.when(), place }
    }

    fn leaves(&self) {
        self.counts.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A look that found no room.
struct Looked {
    /// How many requests had ended before it.
    end: u64,
    /// The least need that was too much then, in tokens.
    needs: u32,
}

fn of(cells: &[AtomicU64], endpoint: u16) -> u64 {
    cells.get(usize::from(endpoint)).map_or(0, |cell| cell.load(Ordering::Relaxed))
}

/// See [`Queue::seen`].
#[derive(Clone, Copy, Debug)]
pub struct Seen(u64);

#[cfg(test)]
mod tests;
