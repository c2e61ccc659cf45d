//! The queue in front of the engines: requests that wait for room on the endpoint that holds their prompt. One for the
//! process, so that all shards release in one order.
//!
//! Each waiting request has a [`Place`]: one word that says all by which it is compared ([`rank`]), published by its shard.
//! A shard has a request look for room only behind all that come before it and have yet to look at what ended last ([`Place::turn`]); it
//! reads the others' words, nobody is asked and nothing is locked. Who looks and does not fit lets those pass that need less
//! ([`Look`]), but none of a tenant that was served more. First comes the more urgent, then the tenant that was served least for its weight
//! ([`tenants`]), then who has waited longest, where what the endpoint holds of its prompt counts as up to 10 s of waiting.
//!
//! A full queue takes nobody in but those who may push another out: one that is less urgent, or of a tenant that has
//! more places for its weight. Who is pushed out finds its place gone ([`Place::stands`]). A place is given back by dropping it, on
//! whatever exit.
//!
//! While nobody waits this costs one load for each request.

mod drain;
mod look;
mod place;
mod rank;
mod tenants;

use std::cell::Cell;
use std::cmp::Ordering::{Equal, Less};

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::limits::{ENDPOINTS_MAX, QUEUE_MAX};
use drain::Drain;
pub use look::Look;
pub use place::{Line, Place, Turn};
use rank::{Rank, Status};
pub use tenants::Tenant;
use tenants::Tenants;

/// Words: as many again as may wait, for those that were pushed out and have not noticed.
const WORDS: usize = 2 * QUEUE_MAX;
/// How often one who pushes somebody out looks for another, where that one went by itself meanwhile.
const PUSHES_MAX: usize = 4;

/// So many bits of a look say what was too much: 16 million tokens, and as many ends as there are in centuries.
const NEW_BITS: u32 = 24;
const NEW_MAX: u32 = (1 << NEW_BITS) - 1;

/// See the module.
#[derive(Debug)]
pub struct Queue {
    words: Box<[AtomicU64]>,
    /// Whose place it is, by shard.
    owners: Box<[AtomicU32]>,
    /// At least as many as wait: raised before a word says so, lowered behind it.
    waiting: AtomicU32,
    /// How many requests have ended while others waited.
    ends: AtomicU64,
    /// How many of those left a place that nobody took since, as far as it is known.
    open: AtomicU32,
    /// By endpoint: which of them was the last there...
    ended: Box<[AtomicU64]>,
    /// ... and which was the last when the first who waits for it looked and found no room, with the least that was too much then.
    looked: Box<[AtomicU64]>,
    tenants: Tenants,
    drain: Drain,
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
            waiting: AtomicU32::new(0),
            ends: AtomicU64::new(0),
            open: AtomicU32::new(0),
            ended: (0..ENDPOINTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            looked: (0..ENDPOINTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            tenants: Tenants::default(),
            drain: Drain::default(),
        }
    }
}

impl Queue {
    /// How many wait.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes a request in, behind at most `most - 1` others; `now` in microseconds of the shards' clock. `None`: it is full of
    /// requests that may not be pushed out.
    pub fn join(&'static self, newcomer: &Newcomer, most: u32, now: u64) -> Option<Place> {
        let most = most.min(QUEUE_MAX as u32);
        let lane = newcomer.tenant.lane;
        let below = |count: u32| (count < most).then_some(count + 1);
        let mut pushes = 0;
        while self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).is_err() {
            pushes += 1;
            if pushes > PUSHES_MAX || !self.push_out_for(newcomer) {
                return None;
            }
        }
        self.tenants.joins(newcomer.tenant);
        let rank = Rank::new(newcomer.priority, lane, newcomer.endpoint, newcomer.held, now);
        for (place, word) in self.words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == Rank::NOBODY {
                let taken = word.compare_exchange(Rank::NOBODY, Rank::TAKEN, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    self.owners[place].store(newcomer.shard.into(), Ordering::Relaxed);
                    // Release: who reads the word knows the owner.
                    word.store(rank.word(), Ordering::Release);
                    let (tenant, new) = (newcomer.tenant, Cell::new(newcomer.new));
                    return Some(Place { queue: self, place, tenant, new, since: now });
                }
            }
        }
        // As many were pushed out and have not noticed yet.
        self.leaves(lane);
        None
    }

    /// Whether a request that has room on its endpoint may go past those who wait: none that comes before it waits for the same
    /// endpoint, and none as urgent and served as little has yet to look at what ended there. While nothing may pass who looked and did
    /// not fit, a long prompt keeps room from all that would fit. While nobody waits this costs one load.
    #[inline]
    pub fn lets_pass(&self, newcomer: &Newcomer) -> bool {
        self.waiting() == 0 || self.passes(newcomer)
    }

    fn passes(&self, newcomer: &Newcomer) -> bool {
        let its = (Rank::urgency_of(newcomer.priority), self.tenants.served_at_least(newcomer.tenant.lane));
        let ended = of(&self.ended, newcomer.endpoint);
        self.ranks().all(|(_, rank)| {
            let other = (rank.urgency(), self.tenants.served(rank.lane()));
            let waits_there = rank.endpoint() == newcomer.endpoint;
            its < other || (its == other || !waits_there) && self.looked(rank.endpoint()).0 >= ended
        })
    }

    /// A request ended at an endpoint: there may be room, and who waits looks before others pass.
    pub fn freed(&self, endpoint: u16) {
        // Release: who looks behind it sees the room.
        self.open.fetch_add(1, Ordering::Relaxed);
        let end = self.ends.fetch_add(1, Ordering::Release) + 1;
        if let Some(ended) = self.ended.get(usize::from(endpoint)) {
            ended.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// What a look that begins now knows of; see [`Place::aims_at`].
    #[inline]
    pub fn seen(&self) -> Seen {
        Seen(self.ends.load(Ordering::Acquire))
    }

    /// A request that did not wait goes, while others do: what it has to compute is on its tenant's account as well. Whether
    /// others do.
    #[inline]
    pub fn passed(&self, tenant: Tenant, tokens: u32) -> bool {
        let others = self.waiting() > 0;
        if others {
            self.takes_place();
            self.tenants.passes(tenant, tokens);
        }
        others
    }

    /// It was refused where it went: so many tokens come off that account.
    pub fn repaid(&self, tenant: Tenant, tokens: u32) {
        self.tenants.repays(tenant, tokens);
    }

    /// Who of another shard comes first of those who have yet to look at what ended last: its shard.
    pub fn next_elsewhere(&self, shard: u16) -> Option<u16> {
        let ends = self.seen().0;
        let theirs = self.ranks().filter(|(place, rank)| self.owner(*place) != shard && self.has_to_look(*rank, ends));
        theirs.min_by_key(|(place, rank)| self.order(*rank, *place)).map(|(place, _)| self.owner(place))
    }

    fn takes_place(&self) {
        let _ = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1));
    }

    fn owner(&self, place: usize) -> u16 {
        self.owners[place].load(Ordering::Relaxed) as u16
    }

    fn has_to_look(&self, rank: Rank, ends: u64) -> bool {
        self.looked(rank.endpoint()).0 < ends
    }

    /// Behind how many ends somebody looked at this endpoint last, and the fewest tokens there was no room for then.
    fn looked(&self, endpoint: u16) -> (u64, u32) {
        let looked = of(&self.looked, endpoint);
        (looked >> NEW_BITS, NEW_MAX - (looked as u32 & NEW_MAX))
    }

    /// There was no room for so many tokens. Only who is first for an endpoint says that it was looked at.
    fn no_room(&self, endpoint: u16, new: u32, seen: Seen, first: bool) {
        let Some(looked) = self.looked.get(usize::from(endpoint)) else { return };
        // The greatest is the last one, and of one look what says the least.
        let said = seen.0 << NEW_BITS | u64::from(NEW_MAX - new.min(NEW_MAX));
        let of_this = |before: u64| match (before >> NEW_BITS).cmp(&seen.0) {
            // Room also comes without an end: who looks first looks for all that come behind.
            Less | Equal if first => Some(said),
            Equal => Some(before.max(said)),
            _ => None,
        };
        let _ = looked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, of_this);
    }

    /// Seconds until one that joins now would be released, as fast as releases have been lately.
    pub fn wait_seconds(&self, now: u64) -> u32 {
        self.drain.seconds_for(self.waiting() + 1, now)
    }

    /// The place of who is next for an endpoint.
    fn first(&self, endpoint: u16) -> Option<usize> {
        let of_endpoint = self.ranks().filter(|(_, rank)| rank.endpoint() == endpoint);
        of_endpoint.min_by_key(|(place, rank)| self.order(*rank, *place)).map(|(place, _)| place)
    }

    /// Those who wait. Stops where all have been seen who did when it began.
    fn ranks(&self) -> impl Iterator<Item = (usize, Rank)> {
        let mut left = self.waiting();
        let words = self.words.iter().enumerate();
        words
            .map_while(move |(place, word)| {
                let rank = (left > 0).then(|| Rank::of(word.load(Ordering::Acquire)))?;
                left -= u32::from(rank.status() == Status::Waits);
                Some((place, rank))
            })
            .filter(|(_, rank)| rank.status() == Status::Waits)
    }

    /// Lowest is first.
    fn order(&self, rank: Rank, place: usize) -> (u8, u64, u64, usize) {
        (rank.urgency(), self.tenants.served(rank.lane()), rank.when(), place)
    }

    /// Makes room in a full queue, if there is one who ranks behind; true where somebody went.
    fn push_out_for(&self, newcomer: &Newcomer) -> bool {
        let excess = |lane: u8| self.tenants.places_by_weight(lane);
        let worst = self.ranks().max_by_key(|(_, rank)| (rank.urgency(), excess(rank.lane()), rank.when()));
        let Some((place, rank)) = worst else { return true };
        let urgency = Rank::urgency_of(newcomer.priority);
        let fairer = || self.tenants.places_with(newcomer.tenant) < excess(rank.lane());
        if rank.urgency() < urgency || rank.urgency() == urgency && !fairer() {
            return false;
        }
        let pushed = rank.pushed_out().word();
        let out = self.words[place].compare_exchange(rank.word(), pushed, Ordering::AcqRel, Ordering::Relaxed);
        if out.is_ok() {
            self.leaves(rank.lane());
        }
        true
    }

    fn leaves(&self, lane: u8) {
        self.tenants.leaves(lane);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn of(cells: &[AtomicU64], endpoint: u16) -> u64 {
    cells.get(usize::from(endpoint)).map_or(0, |cell| cell.load(Ordering::Relaxed))
}

/// See [`Queue::seen`].
#[derive(Clone, Copy, Debug)]
pub struct Seen(u64);

#[cfg(test)]
mod tests;
