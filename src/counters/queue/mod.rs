//! The queue in front of the engines: requests that wait for room on the endpoint that holds their prompt. One for the
//! process, so that all shards release in one order.
//!
//! Requests that can never go to the same engines do not stand in each other's way ([`islands`]). They share its size,
//! evenly once it is full.
//!
//! Each waiting request has a [`Place`]: one word that says all by which it is compared ([`rank`]), published by its
//! shard. A shard has a request look for room only behind all that come before it and have yet to look at what ended
//! last ([`Place::turn`]); it reads the others' words, nobody is asked and nothing is locked. Who looks and does not
//! fit lets those pass that need less ([`Look`]), but, unless it is a stranger, none of a tenant that was served more.
//! First comes the more urgent, then the tenant that was served least for its weight ([`tenants`]), then who has waited
//! longest, where what the endpoint holds of its prompt counts as up to 10 s of waiting.
//!
//! A full queue takes nobody in but those who may push another out ([`pushing`]): one that waits for an island that has
//! more places, or for the same one and is less urgent, or of a tenant that has more places there for its weight. Who
//! is pushed out finds its place gone ([`Place::stands`]). A place is given back by dropping it, on whatever exit.
//!
//! While nobody waits this costs one load for each request.

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

/// Words: as many again as may wait, for those that were pushed out and have not noticed.
const WORDS: usize = 2 * QUEUE_MAX;
/// In a queue's counts, one who joins.
const ONE_MORE: u64 = 1 << u32::BITS | 1;
/// How often one who comes to a full queue pushes somebody out, where that one went by itself meanwhile, or another
/// came in for it.
const TRIES_MAX: usize = 5;

/// So many bits of a look say what was too much: 16 million tokens; the others as many ends as 7 years have at 5,000 a
/// second while somebody waits.
const NEEDS_BITS: u32 = 24;
const NEEDS_MAX: u32 = (1 << NEEDS_BITS) - 1;

/// See the module.
#[derive(Debug)]
pub struct Queue {
    words: Box<[AtomicU64]>,
    /// Whose place it is, by shard.
    owners: Box<[AtomicU32]>,
    /// In the lower half at least as many as wait: raised before a word says so, lowered behind it. In the upper half
    /// how many ever joined.
    counts: AtomicU64,
    /// How many requests have ended while others waited.
    ends: AtomicU64,
    /// By endpoint: which of them was the last there...
    ended: Box<[AtomicU64]>,
    /// ... and which was the last when the first who waits for it looked and found no room, with the least that was too
    /// much then.
    looked: Box<[AtomicU64]>,
    islands: Islands,
    tenants: Tenants,
    /// By island.
    drains: Box<[Drain]>,
}

/// A request that has to wait.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    /// As vLLM counts: lower is more urgent, 0 is usual.
    pub priority: i8,
    /// On whose account.
    pub tenant: Tenant,
    /// How much of the prompt the endpoint that it waits for holds, 0..=1.
    pub held: f32,
    /// Tokens that are to be computed there.
    pub new: u32,
    /// Tokens of its cache that must be free for it: [`crate::policy::Choice::needs`].
    pub needs: u32,
    /// Slot of that endpoint.
    pub endpoint: u16,
    /// The shard that asks.
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
    /// How many wait.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.counts.load(Ordering::Relaxed) as u32
    }

    /// How many ever joined (wraps).
    fn joined(&self) -> u32 {
        (self.counts.load(Ordering::Relaxed) >> u32::BITS) as u32
    }

    /// Takes a request in, behind at most `most - 1` others; `now` in microseconds of the shards' clock. `None`: it is
    /// full of requests that may not be pushed out.
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
                    // Release: who reads the word knows the owner.
                    word.store(rank.word(), Ordering::Release);
                    let (tenant, needs) = (newcomer.tenant, Cell::new(newcomer.needs));
                    return Some(Place { queue: self, place, tenant, needs, since: now });
                }
            }
        }
        // As many were pushed out and have not noticed yet.
        self.leaves();
        None
    }

    /// Counts it as one who waits, and answers what its tenant was served; `None`: it is full.
    fn lets_in(&self, newcomer: &Newcomer, book: BookId, most: u32) -> Option<u64> {
        let below = |counts: u64| ((counts as u32) < most).then_some(counts.wrapping_add(ONE_MORE));
        for _ in 0..TRIES_MAX {
            let waiting = self.waiting();
            // Behind a reload there may be more than so many: who goes then makes no room.
            if waiting > most || waiting == most && !self.push_out_for(newcomer) {
                return None;
            }
            // Before it counts as one who waits: who looks for those reads on until all are found.
            let begins = self.begins(book, newcomer.tenant.lane);
            if self.counts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).is_ok() {
                return Some(begins);
            }
        }
        None
    }

    /// Whether a request that has room on its endpoint may go past those who wait for its island: none that comes
    /// before it waits for the same endpoint, and none as urgent and served as little has yet to look at what ended
    /// there. While nothing may pass who looked and did not fit, a long prompt keeps room from all that would fit.
    /// While nobody waits this costs one load.
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

    /// A request ended at an endpoint: there may be room, and who waits looks before others pass.
    pub fn freed(&self, endpoint: u16) {
        // Release: who looks behind it sees the room.
        let end = self.ends.fetch_add(1, Ordering::Release) + 1;
        if let Some(ended) = self.ended.get(usize::from(endpoint)) {
            ended.fetch_max(end, Ordering::Relaxed);
        }
        self.islands.ended(self.islands.of(endpoint), end);
    }

    /// Which engines may stand in for each other: by slot, one of each island. Whoever is on another than before would
    /// go by the book of those who were there, in which it was served nothing or too much: all begin anew.
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

    /// What a look that begins now knows of; see [`Place::aims_at`].
    #[inline]
    pub fn seen(&self) -> Seen {
        Seen(self.ends.load(Ordering::Acquire))
    }

    /// A request that did not wait goes to this endpoint, with so many tokens to compute: while others wait whose turn
    /// goes by the same book, that is on its tenant's account as well. Elsewhere nobody is passed, and nothing would
    /// ever go on to where it stood then.
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

    /// A further try of one that has paid goes to this endpoint.
    #[inline]
    pub fn takes_place(&self, endpoint: u16) {
        if self.waiting() > 0 {
            self.islands.takes_place(self.islands.of(endpoint));
        }
    }

    /// It was refused where it went: what was paid comes off that account.
    pub fn repaid(&self, paid: Paid) {
        self.tenants.repays(paid, self.level(paid.book(), paid.lane()));
    }

    /// Who of another shard comes first of those who have yet to look at what ended last: its shard.
    pub fn next_elsewhere(&self, shard: u16) -> Option<u16> {
        let theirs = self.ranks().filter(|(place, rank)| self.owner(*place) != shard && self.has_to_look(*rank));
        theirs.min_by_key(|(place, rank)| self.order(*rank, *place)).map(|(place, _)| self.owner(place))
    }

    fn owner(&self, place: usize) -> u16 {
        self.owners[place].load(Ordering::Relaxed) as u16
    }

    /// Whether something has ended on its island since the first who waits for its endpoint looked.
    fn has_to_look(&self, rank: Rank) -> bool {
        self.looked(rank.endpoint()).end < self.islands.last_end(self.islands.of(rank.endpoint()))
    }

    fn book(&self, endpoint: u16, urgency: u8) -> BookId {
        BookId::of(self.islands.of(endpoint), urgency)
    }

    /// What its tenant was served.
    fn served(&self, rank: Rank) -> u64 {
        self.tenants.served(self.book(rank.endpoint(), rank.urgency()), rank.lane())
    }

    /// Whose requests wait in this book.
    fn lanes(&self, book: BookId) -> impl Iterator<Item = u8> {
        let ranks = self.ranks().filter(move |(_, rank)| self.book(rank.endpoint(), rank.urgency()) == book);
        ranks.map(|(_, rank)| rank.lane())
    }

    /// Where one begins who comes to others: at what the last served of them was served.
    fn level(&self, book: BookId, lane: u8) -> u64 {
        let others = self.lanes(book).filter(|other| *other != lane);
        others.map(|other| self.tenants.served(book, other)).min().unwrap_or_else(|| self.tenants.now(book))
    }

    /// What a tenant was served, over its weight, as of now; one of whom nobody waits begins anew.
    fn begins(&self, book: BookId, lane: u8) -> u64 {
        let served = self.tenants.served(book, lane);
        if self.lanes(book).any(|other| other == lane) { served } else { served.max(self.level(book, lane)) }
    }

    /// The last look at this endpoint.
    fn looked(&self, endpoint: u16) -> Looked {
        let looked = of(&self.looked, endpoint);
        Looked { end: looked >> NEEDS_BITS, needs: NEEDS_MAX - (looked as u32 & NEEDS_MAX) }
    }

    /// There was no room for who needs so much. Only who is first for an endpoint says that it was looked at.
    fn no_room(&self, endpoint: u16, needs: u32, seen: Seen, first: bool) {
        let Some(looked) = self.looked.get(usize::from(endpoint)) else { return };
        // The greatest is the last one, and of one look what says the least.
        let said = seen.0 << NEEDS_BITS | u64::from(NEEDS_MAX - needs.min(NEEDS_MAX));
        let of_this = |before: u64| match (before >> NEEDS_BITS).cmp(&seen.0) {
            // Room also comes without an end: who looks first looks for all that come behind.
            Less | Equal if first => Some(said),
            Equal => Some(before.max(said)),
            _ => None,
        };
        let _ = looked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, of_this);
    }

    /// Seconds until one that joins for this endpoint now would be released, as fast as releases have been on its
    /// island lately.
    pub fn wait_seconds(&self, endpoint: u16, now: u64) -> u32 {
        let island = self.islands.of(endpoint);
        let waiting = self.ranks_of(island).count() as u32;
        self.drains.get(usize::from(island)).map_or(1, |drain| drain.seconds_for(waiting + 1, now))
    }

    /// Those who wait. Stops where all have been seen who did when it began.
    fn ranks(&self) -> impl Iterator<Item = (usize, Rank)> {
        // Who joins in between is seen as one of these.
        let mut joined = self.joined();
        let mut left = self.waiting();
        let words = self.words.iter().enumerate();
        words
            .map_while(move |(place, word)| {
                if left == 0 {
                    // So many of those seen may have joined since, and as many that waited before them lie behind.
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

    /// Those who wait for this island.
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
    /// Behind so many ends.
    end: u64,
    /// The least that was too much then.
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
