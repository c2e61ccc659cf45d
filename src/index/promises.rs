//! What shards have chosen endpoints for that tell their own events: held from the choice on, so that the next turn
//! finds it, but only until the events should have said it.
//!
//! A promise is the last of the blocks that were new with it, and how many they were. A block is confirmed by whatever
//! else notes it ([`Index::append`] of an event) or one below it, since who holds a block holds all before it. What is
//! not confirmed in time goes.

use std::collections::VecDeque;

use super::seat::add;
use super::{CLAIMS_MAX, CONTROL_CLAIMS_MAX, Index, Inserted, Missed, Origin};
use crate::atomics::Ordering;
use crate::fleet::EndpointId;

/// A choice is expected to show in an engine's events after so many seconds: those that wait there longest are computed
/// by then.
pub const PROMISE_SECONDS: u32 = 30;
/// Promises of one endpoint at a time: with one more the oldest expires at once.
pub const PROMISES_MAX: usize = 8_192;
/// So many are looked at in one call, and no further one once so many blocks went.
const EXPIRED_AT_ONCE: usize = 256;
const BLOCKS_AT_ONCE: u32 = 4_096;

/// New blocks that a shard expects an endpoint to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// The deepest of them.
    pub last: u64,
    /// How many, with those above it.
    pub blocks: u32,
    /// Seconds, by the caller's clock.
    pub made: u32,
}

const _: () = assert!(size_of::<Promise>() == 16);

/// Those of one endpoint, from the oldest to the newest.
#[derive(Debug)]
pub(super) struct Promises(VecDeque<Promise>);

impl Promises {
    fn new() -> Promises {
        Promises(VecDeque::with_capacity(PROMISES_MAX))
    }

    /// Takes the oldest out, if it was made before this.
    fn due(&mut self, before: u32) -> Option<Promise> {
        self.0.pop_front_if(|promise| promise.made < before)
    }

    /// The oldest, if there is no place for another.
    fn surplus(&mut self) -> Option<Promise> {
        if self.0.len() < PROMISES_MAX { None } else { self.0.pop_front() }
    }
}

/// What [`Index::expire`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expired {
    /// Blocks that went.
    pub blocks: u32,
    /// Others are due: call again.
    pub more: bool,
}

impl Index {
    /// Whether what shards promise for this endpoint has to be confirmed, which takes 128 KiB ([`PROMISES_MAX`] of 16
    /// bytes) beyond [`Index::bytes`]. No endpoint does at first, nor after [`Index::assign`]. Where it ends, what was
    /// promised is held like all else.
    pub fn keeps_promises(&self, id: EndpointId, keeps: bool) -> Result<(), Missed> {
        // Asked again each second for one that has no seat.
        if !self.tenant(id) {
            return Err(Missed::NotTheirs);
        }
        let mut promises = keeps.then(Promises::new);
        let (_, mut ledger) = self.claim(id, CONTROL_CLAIMS_MAX)?;
        if ledger.promises.is_some() != keeps {
            std::mem::swap(&mut ledger.promises, &mut promises);
        }
        // Behind the claim: memory is given back while nobody waits.
        drop(ledger);
        Ok(())
    }

    /// The time that promises are made at, in seconds.
    pub fn second(&self) -> u32 {
        self.second.load(Ordering::Relaxed)
    }

    /// It is later by a second. For control, once for all endpoints.
    pub fn tick(&self) {
        self.second.fetch_add(1, Ordering::Relaxed);
    }

    /// [`Index::insert`] of what a shard has just chosen the endpoint for, at `now` in seconds: what is new of it goes
    /// if it is not confirmed before [`Index::expire`]. With an endpoint that keeps no promises it is an insert by
    /// [`Origin::Choice`].
    pub fn promise(&self, chain: &[u64], id: EndpointId, now: u32) -> Result<Inserted, Missed> {
        let (seat, mut ledger) = self.claim(id, CLAIMS_MAX)?;
        let holder = self.rows.of(id.slot);
        let Some(promises) = &mut ledger.promises else {
            return Ok(seat.hold(&mut ledger, holder, chain, None, Origin::Choice));
        };
        // Before the chain is looked up: what goes may be a part of it.
        if let Some(oldest) = promises.surplus() {
            add(&seat.expired, ledger.expire(holder, oldest, |_| false).into());
        }
        let inserted = seat.hold(&mut ledger, holder, chain, None, Origin::Promised);
        if let (Some(promises), true) = (&mut ledger.promises, inserted.now > inserted.before) {
            let last = chain[inserted.now as usize - 1];
            promises.0.push_back(Promise { last, blocks: inserted.now - inserted.before, made: now });
        }
        Ok(inserted)
    }

    /// Takes out what was promised before this time and is not confirmed, with all that is built on it. `confirmed`:
    /// asked for the last block of a promise whether the endpoint holds it in truth, should that not have been noted
    /// here. For control; some hundred promises a call.
    pub fn expire(&self, id: EndpointId, before: u32, confirmed: impl Fn(u64) -> bool) -> Result<Expired, Missed> {
        let (seat, mut ledger) = self.claim(id, CONTROL_CLAIMS_MAX)?;
        let mut expired = Expired { blocks: 0, more: true };
        for _ in 0..EXPIRED_AT_ONCE {
            let Some(promise) = ledger.promises.as_mut().and_then(|promises| promises.due(before)) else {
                expired.more = false;
                break;
            };
            expired.blocks += ledger.expire(self.rows.of(id.slot), promise, &confirmed);
            if expired.blocks >= BLOCKS_AT_ONCE {
                break;
            }
        }
        add(&seat.expired, expired.blocks.into());
        seat.publish(&ledger);
        Ok(expired)
    }
}
