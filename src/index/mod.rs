//! The shared prefix index: which endpoint holds which prefix. One for the process; shards and control write and read
//! it together.
//!
//! A prompt is a *chain*: one 64-bit hash for each of its blocks, each including those before it, so that equal hashes
//! mean equal prefixes. A row keeps 44 bits of a hash: a look at a block takes another one for it with a probability of
//! at most 16 / 2^44, or 10^-12 (its two buckets have 16 rows); with all 64 bits it would be n / 2^64 for n blocks,
//! 10^-12 for 2 * 10^7. A wrong answer costs a wrong estimate, never a wrong reply.
//!
//! - [`rows`]: one table of blocks with a bit for each holder, read and written without locks.
//! - [`ledger`]: for each endpoint, what it holds and what goes next: exactly least recently used, old leaves first.
//! - [`search`]: how deep each endpoint holds a prompt, and how far into the next block where that is known.
//! - [`answers`]: what will lie there besides, which nobody can name yet.
//! - [`lengths`]: how many tokens a prompt has up to a link.
//! - [`promises`]: what is held until an engine's events should have said it.
//! - [`saved`]: what an endpoint holds, for a file.
//! - [`shares`]: what each endpoint is due where there is not room for all.
//!
//! What an endpoint holds is at any time closed under prefixes, its capacity is never exceeded, and nothing is
//! allocated after the start but where control asks for it ([`Index::resize`], [`Index::keeps_promises`],
//! [`Index::save`]). No thread waits for another: reading takes no lock, and a ledger is written by the thread that
//! claims it. One that finds it claimed looks again for some microseconds and gives up ([`Missed::Busy`], counted): the
//! endpoint is believed to hold less than it does until the next turn of that conversation, which is always allowed.
//!
//! Ledgers written by many at once would have to give up the order: sets of 8 or 16 blocks, the oldest of each going,
//! lose some block of a long prompt early, and the first one lost ends the match. Of 4,000 requests of Mooncake's
//! conversation trace, 8 endpoints of 2,000 blocks, this index finds 24.0 % of the blocks, as an exact LRU does
//! (`tests/index/hits.rs`, which holds it to that on generated chats, and on whatever trace is named). Such sets were
//! tried once, by a program that was not kept: 16.0 and 19.6 %, where an exact LRU had 25.1 %.
//!
//! A look-up waits for the whole prompt, although after the first block that nobody holds the rest cannot matter to
//! it. Starting earlier would save storing and forwarding, 0.8 ms of a MB at 10 Gbit/s (0.1 ms of 128 KB; ten times
//! that at 1 Gbit/s) and some 50 µs over the loopback (one round had 500 for a MB), only for prompts that an engine
//! then computes for seconds (250,000 new tokens). But the chain must be read to its end to be inserted, many bodies
//! have tools behind the messages, which come first in the chain, and what was sent on cannot go to another engine.

mod answers;
mod capacity;
mod ledger;
mod lengths;
mod promises;
mod rows;
mod saved;
mod search;
mod seat;
mod shares;

use std::sync::TryLockError;

use crossbeam::utils::CachePadded;

use crate::atomics::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, spin_loop};
use crate::fleet::EndpointId;
pub use answers::{ANSWER_BLOCKS_MAX, expect_answer};
use capacity::Shape;
pub use capacity::{BadCapacity, Capacity};
pub use ledger::Inserted;
use ledger::{Chunk, Ledger};
use lengths::Lengths;
pub use promises::{Expired, PROMISE_SECONDS, PROMISES_MAX};
use rows::{Holder, Row, Rows};
pub use saved::Saved;
pub use search::{DEPTHS_SEARCHED, Found, Matches, STEPS, Set, probes_max};
pub use seat::Figures;
use seat::{Seat, add};

/// How often a taken ledger is looked at again: about 10 µs.
const CLAIMS_MAX: u32 = if cfg!(feature = "modelled") { 1 } else { 500 };
/// The same for control, which may wait: about 20 ms.
const CONTROL_CLAIMS_MAX: u32 = if cfg!(feature = "modelled") { 1 } else { 1_000_000 };
/// Blocks evicted at a time from a ledger that gets smaller, while shards are kept from it: about half a millisecond.
const EVICTED_AT_ONCE: u32 = 4_096;

/// On whose word an endpoint is taken to hold a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Origin {
    /// A shard that has just chosen the endpoint for it.
    Choice,
    /// The engine, by its KV events.
    Engine,
    /// Another front.
    Peer,
    /// A file written by an earlier process.
    Saved,
    /// A shard that has just chosen the endpoint for it, until the engine's events say it: by [`Index::promise`] alone.
    Promised,
}

/// Number of [`Origin`]s.
pub const ORIGINS: usize = Origin::Promised as usize + 1;

/// Why nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Missed {
    /// The slot is not this endpoint's, or beyond the index.
    #[error("the slot is not this endpoint's")]
    NotTheirs,
    /// Another thread was writing for this endpoint all the while. May be tried again later.
    #[error("another thread was writing for this endpoint")]
    Busy,
    /// The block below which the others lie is not held.
    #[error("the block before is not held")]
    Orphan,
}

/// The index.
#[derive(Debug)]
pub struct Index {
    rows: Rows,
    lengths: Option<Lengths>,
    words: usize,
    share: u32,
    /// A chunk has two to the power of this many cells.
    shift: u32,
    chunks: usize,
    /// By slot, the tenant's generation and [`TAKEN`]; 0: the slot has none, and holds nothing or is being emptied.
    tenants: Box<[AtomicU64]>,
    seats: Box<[CachePadded<Seat>]>,
    /// Chunks that no ledger has. Used by control alone.
    pool: Mutex<Vec<Chunk>>,
    /// Control's time, in seconds.
    second: CachePadded<AtomicU32>,
    /// How often a slot was emptied: a look-up during which that happened begins again.
    emptied: CachePadded<AtomicU64>,
}

const TAKEN: u64 = 1 << 32;

impl Index {
    /// An empty index without tenants.
    pub fn new(capacity: Capacity) -> Result<Index, BadCapacity> {
        let Shape { words, buckets, shift, chunks, lengths } = capacity.shape()?;
        Index::bytes(capacity)?;
        let seat = || CachePadded::new(Seat::new(shift, chunks / capacity.endpoints));
        Ok(Index {
            rows: Rows::new(buckets, words),
            lengths: (lengths > 0).then(|| Lengths::new(lengths)),
            words,
            share: capacity.share(),
            shift,
            chunks,
            tenants: (0..capacity.endpoints).map(|_| AtomicU64::new(0)).collect(),
            seats: (0..capacity.endpoints).map(|_| seat()).collect(),
            pool: Mutex::new((0..chunks).map(|_| Chunk::new(1 << shift)).collect()),
            second: CachePadded::new(AtomicU32::new(0)),
            emptied: CachePadded::new(AtomicU64::new(0)),
        })
    }

    /// The memory that it takes at its start, beside itself.
    /// A ledger takes 32 bytes more for each chunk beyond its share.
    pub fn bytes(capacity: Capacity) -> Result<usize, BadCapacity> {
        let Shape { words, buckets, shift, chunks, lengths } = capacity.shape()?;
        let slot = size_of::<AtomicU64>() + size_of::<CachePadded<Seat>>();
        let chunk = 2 * size_of::<Chunk>() + (Chunk::CELL_BYTES << shift);
        let sum = || {
            let lengths = if lengths > 0 { Lengths::bytes(lengths)? } else { 0 };
            let rows = Rows::bytes(buckets, words)?.checked_add(lengths)?;
            rows.checked_add(capacity.endpoints.checked_mul(slot)?)?.checked_add(chunks.checked_mul(chunk)?)
        };
        sum().ok_or(BadCapacity::TooMany)
    }

    /// Slots below this one have a part in it.
    pub fn seats(&self) -> usize {
        self.tenants.len()
    }

    /// Gives a slot to an endpoint, empty: one that is new there, or that has restarted. `blocks`: how many its KV
    /// cache holds; `None`: not known, [`Capacity::share`]. Answers its capacity, which is less where the index has
    /// less left. `Busy`: nothing of the slot is believed until this has been tried again.
    ///
    /// For control: costs some 50 ns for each block held. Promises are forgotten, and no longer kept.
    pub fn assign(&self, id: EndpointId, blocks: Option<u32>) -> Result<u32, Missed> {
        let tenant = self.tenants.get(id.slot as usize).ok_or(Missed::NotTheirs)?;
        let mut ledger = self.empty(id.slot)?;
        ledger.resize(self.rows.of(id.slot), blocks.unwrap_or(self.share), &mut self.pool());
        self.seats[id.slot as usize].publish(&ledger);
        // Release: a thread that sees the tenant sees its rows empty.
        tenant.store(TAKEN | u64::from(id.generation), Ordering::Release);
        Ok(ledger.capacity())
    }

    /// Empties a slot whose endpoint has gone: it has no tenant from then on. `Busy`: counts as empty, to be tried
    /// again.
    pub fn forget(&self, slot: u16) -> Result<(), Missed> {
        let mut ledger = self.empty(slot)?;
        ledger.resize(self.rows.of(slot), 0, &mut self.pool());
        self.seats[slot as usize].publish(&ledger);
        Ok(())
    }

    /// Another capacity for an endpoint that keeps what it holds: as much of its youngest as goes in. Answers the
    /// capacity. Memory that a smaller one leaves unused is there for others at once.
    ///
    /// For control: a smaller one costs some 25 ns for each block of what there was room for, and 300 ns for each that
    /// goes.
    pub fn resize(&self, id: EndpointId, blocks: u32) -> Result<u32, Missed> {
        loop {
            let (seat, mut ledger) = self.claim(id, CONTROL_CLAIMS_MAX)?;
            let step = ledger.held().saturating_sub(EVICTED_AT_ONCE);
            let evicted = match step > blocks {
                true => ledger.shrink(self.rows.of(id.slot), step),
                false => ledger.resize(self.rows.of(id.slot), blocks, &mut self.pool()),
            };
            add(&seat.evicted, evicted.into());
            seat.publish(&ledger);
            if step <= blocks {
                return Ok(ledger.capacity());
            }
        }
    }

    /// Who of `among` holds how many leading blocks of the chain, into `found`. Endpoints whose slot has another tenant
    /// hold nothing.
    ///
    /// At most [`probes_max`] blocks are looked at (twice as many if an endpoint is emptied meanwhile).
    pub fn longest(&self, chain: &[u64], among: &[EndpointId], found: &mut Matches) {
        self.look_up(among, found, |found| found.settle(&self.rows, chain));
    }

    /// The same for a prompt whose `steps` are known, [`STEPS`] of each block and of what follows the last: tells
    /// endpoints of the same depth apart, for the first [`DEPTHS_SEARCHED`] depths, and how many tokens they hold.
    pub fn longest_in_steps(&self, chain: &[u64], steps: &[u64], among: &[EndpointId], found: &mut Matches) {
        self.look_up(among, found, |found| self.settle_in_steps(chain, steps, found));
    }

    fn settle_in_steps(&self, chain: &[u64], steps: &[u64], found: &mut Matches) {
        found.settle(&self.rows, chain);
        found.split(&self.rows, steps);
        if let Some(lengths) = &self.lengths {
            found.measure(lengths, chain, steps);
        }
    }

    #[inline]
    fn look_up(&self, among: &[EndpointId], found: &mut Matches, look: impl Fn(&mut Matches)) {
        for _ in 0..2 {
            self.begin(among, found);
            look(found);
            // What was read may have been a former tenant's if anybody was emptied since.
            if found.emptied == self.emptied.load(Ordering::Acquire) {
                return;
            }
        }
        found.clear();
    }

    /// Notes how many tokens a prompt has up to this link, for [`Matches::found`]. Of links noted long ago it is
    /// forgotten. For control.
    pub fn note_tokens(&self, link: u64, tokens: u32) {
        if let Some(lengths) = &self.lengths {
            lengths.note(link, tokens);
        }
    }

    fn begin(&self, among: &[EndpointId], found: &mut Matches) {
        // Acquire: slots emptied before this are seen without tenant.
        let among_now = found.begin(self.words, self.emptied.load(Ordering::Acquire));
        for &id in among {
            if self.tenant(id) {
                among_now.add(id.slot);
            }
        }
    }

    /// Notes that the endpoint holds these blocks, or will: all of them are the youngest it has, the first younger than
    /// the last. What is there already costs nothing but the search for its end; for new blocks the oldest leaves go.
    pub fn insert(&self, chain: &[u64], id: EndpointId, origin: Origin) -> Result<Inserted, Missed> {
        let (seat, mut ledger) = self.claim(id, CLAIMS_MAX)?;
        Ok(seat.hold(&mut ledger, self.rows.of(id.slot), chain, None, origin))
    }

    /// The same for the part of a chain that follows the block `after`, which the endpoint holds (else
    /// [`Missed::Orphan`], and nothing is noted); `None`: for the begin of one. Costs by the links given, however many
    /// lie before. Steps are links too: they lie below the block before them, one below the other, beside the next
    /// block.
    ///
    /// For control, which notes what engines say: waits longer for a claimed ledger than [`Index::insert`].
    pub fn append(
        &self,
        after: Option<u64>,
        links: &[u64],
        id: EndpointId,
        origin: Origin,
    ) -> Result<Inserted, Missed> {
        let (seat, mut ledger) = self.claim(id, CONTROL_CLAIMS_MAX)?;
        let holder = self.rows.of(id.slot);
        let after = after.map(|after| holder.held(after).ok_or(Missed::Orphan)).transpose()?;
        Ok(seat.hold(&mut ledger, holder, links, after, origin))
    }

    /// What was noted from this block on when the endpoint was chosen will not be there: it was not computed. Another's
    /// block of this name, or what was built on it since, goes as well. For shards: `Busy` after about 10 µs.
    pub fn take_back(&self, block: u64, id: EndpointId) -> Result<u32, Missed> {
        self.take_out(block, id, CLAIMS_MAX, Ledger::remove, |seat| &seat.taken_back)
    }

    /// The same for the blocks from this one to `last` (`None`: this one). What another prompt was built on since
    /// stays: all of it if several were built on `last`. Nothing is removed if `last` has gone.
    pub fn take_back_line(&self, block: u64, last: Option<u64>, id: EndpointId) -> Result<u32, Missed> {
        let remove = |ledger: &mut Ledger, holder: Holder<'_>, top| {
            let end = last.map_or(Some(top), |last| holder.held(last));
            end.map_or(0, |end| ledger.remove_line(holder, top, end))
        };
        self.take_out(block, id, CLAIMS_MAX, remove, |seat| &seat.taken_back)
    }

    /// Notes that the endpoint holds this block no more, nor what is built on it; answers how many blocks that were. It
    /// is said once, so this waits for the ledger as control does.
    pub fn remove(&self, block: u64, id: EndpointId) -> Result<u32, Missed> {
        self.take_out(block, id, CONTROL_CLAIMS_MAX, Ledger::remove, |seat| &seat.removed)
    }

    /// Whether nobody is writing this endpoint's ledger just now. Control asks before it notes more, having waited for
    /// the ledger in vain.
    pub fn unclaimed(&self, id: EndpointId) -> Result<(), Missed> {
        self.claim(id, 1).map(drop)
    }

    fn take_out(
        &self,
        block: u64,
        id: EndpointId,
        looks: u32,
        remove: impl FnOnce(&mut Ledger, Holder<'_>, Row) -> u32,
        counted: fn(&Seat) -> &AtomicU64,
    ) -> Result<u32, Missed> {
        let (seat, mut ledger) = self.claim(id, looks)?;
        let holder = self.rows.of(id.slot);
        let removed = holder.held(block).map_or(0, |row| remove(&mut ledger, holder, row));
        add(counted(seat), removed.into());
        seat.publish(&ledger);
        Ok(removed)
    }

    /// What a slot has and did. Zeros for one beyond the index.
    pub fn figures(&self, slot: u16) -> Figures {
        self.seats.get(slot as usize).map_or_else(Figures::default, |seat| seat.figures())
    }

    /// Compares rows and ledgers while nobody writes, and answers how many rows are in use. An error says what does not
    /// fit. Walks all memory: for tests.
    pub fn audit(&self) -> Result<usize, String> {
        let (used, bits) = self.rows.audit()?;
        let mut cells = 0;
        for (slot, seat) in self.seats.iter().enumerate() {
            let ledger = seat.ledger.lock().map_err(|_| format!("slot {slot}: its ledger is broken"))?;
            ledger.audit(self.rows.of(slot as u16)).map_err(|fault| format!("slot {slot}: {fault}"))?;
            cells += ledger.held() as usize;
        }
        if bits == cells { Ok(used) } else { Err(format!("{bits} bits for {cells} cells")) }
    }

    fn tenant(&self, id: EndpointId) -> bool {
        let tenant = self.tenants.get(id.slot as usize).map(|tenant| tenant.load(Ordering::Acquire));
        tenant == Some(TAKEN | u64::from(id.generation))
    }

    /// The ledger of an endpoint's slot, unless another thread keeps it for `looks` looks.
    fn claim(&self, id: EndpointId, looks: u32) -> Result<(&Seat, MutexGuard<'_, Ledger>), Missed> {
        let seat = self.seats.get(id.slot as usize).ok_or(Missed::NotTheirs)?;
        let ledger = self.take(id.slot, seat, looks);
        // Behind the claim: a slot is given to another while its ledger is claimed.
        if self.tenant(id) { Ok((seat, ledger?)) } else { Err(Missed::NotTheirs) }
    }

    /// Empties a slot and leaves it without tenant.
    fn empty(&self, slot: u16) -> Result<MutexGuard<'_, Ledger>, Missed> {
        let seat = self.seats.get(slot as usize).ok_or(Missed::NotTheirs)?;
        self.tenants[slot as usize].store(0, Ordering::Release);
        // Release: a thread that sees this count sees the slot without tenant, or with the next one.
        self.emptied.fetch_add(1, Ordering::AcqRel);
        let mut ledger = self.take(slot, seat, CONTROL_CLAIMS_MAX)?;
        ledger.clear(self.rows.of(slot));
        seat.publish(&ledger);
        Ok(ledger)
    }

    fn take<'a>(&self, slot: u16, seat: &'a Seat, looks: u32) -> Result<MutexGuard<'a, Ledger>, Missed> {
        for _ in 0..looks {
            match seat.ledger.try_lock() {
                Ok(ledger) => return Ok(ledger),
                Err(TryLockError::WouldBlock) => spin_loop(),
                // A thread died while it wrote, by a fault of ours: nothing in there is believed again.
                Err(TryLockError::Poisoned(_)) => {
                    self.tenants[slot as usize].store(0, Ordering::Release);
                    break;
                }
            }
        }
        seat.busy.fetch_add(1, Ordering::Relaxed);
        Err(Missed::Busy)
    }

    fn pool(&self) -> MutexGuard<'_, Vec<Chunk>> {
        // It is whole even if the thread that held it has panicked: chunks are moved one at a time.
        self.pool.lock().unwrap_or_else(|broken| broken.into_inner())
    }
}
