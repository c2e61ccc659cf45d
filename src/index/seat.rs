//! What belongs to one slot, and what is counted of it.

use super::ledger::Ledger;
use super::rows::{Holder, Row};
use super::{Inserted, ORIGINS, Origin, answers, search};
use crate::atomics::{AtomicU32, AtomicU64, Mutex, Ordering};

/// What one slot has and did since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Blocks held now.
    pub blocks: u32,
    /// Most blocks held.
    pub capacity: u32,
    /// Blocks added, by [`super::Origin`].
    pub inserted: [u64; ORIGINS],
    /// Blocks that went because the capacity was reached.
    pub evicted: u64,
    /// Blocks taken out by [`super::Index::remove`].
    pub removed: u64,
    /// Blocks that were never computed, taken out by [`super::Index::take_back`] and [`super::Index::take_back_line`].
    pub taken_back: u64,
    /// Blocks that were promised and not confirmed in time.
    pub expired: u64,
    /// Of what was added, blocks that stand for answers.
    pub expected: u64,
    /// Blocks that stood for an answer until it came as a part of the next prompt.
    pub answered: u64,
    /// Inserts cut short because no room could be made: the prompt is longer than the capacity, or a bucket was full.
    pub refused: u64,
    /// Inserts and removals given up because another thread was writing.
    pub busy: u64,
}

impl Figures {
    /// Blocks that went to make room: as the index pushed them out, or as the engine said that it did. What was
    /// taken back never lay there: who refuses what it is sent has nothing pushed out.
    pub fn gone(&self) -> u64 {
        self.evicted + self.removed
    }

    /// Blocks of prompts that came, from whomever; with those that were taken back, among which answers and prompts are
    /// not told apart.
    pub fn came(&self) -> u64 {
        self.inserted.iter().sum::<u64>().saturating_sub(self.expected)
    }
}

/// What belongs to one slot.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) ledger: Mutex<Ledger>,
    blocks: AtomicU32,
    capacity: AtomicU32,
    pub(super) inserted: [AtomicU64; ORIGINS],
    pub(super) evicted: AtomicU64,
    pub(super) removed: AtomicU64,
    pub(super) taken_back: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) expected: AtomicU64,
    pub(super) answered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) busy: AtomicU64,
}

impl Seat {
    pub(super) fn new(shift: u32, chunks: usize) -> Seat {
        Seat {
            ledger: Mutex::new(Ledger::new(shift, chunks)),
            blocks: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            inserted: std::array::from_fn(|_| AtomicU64::new(0)),
            evicted: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            taken_back: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    pub(super) fn figures(&self) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            blocks: self.blocks.load(Ordering::Relaxed),
            capacity: self.capacity.load(Ordering::Relaxed),
            inserted: std::array::from_fn(|origin| of(&self.inserted[origin])),
            evicted: of(&self.evicted),
            removed: of(&self.removed),
            taken_back: of(&self.taken_back),
            expired: of(&self.expired),
            expected: of(&self.expected),
            answered: of(&self.answered),
            refused: of(&self.refused),
            busy: of(&self.busy),
        }
    }

    /// Links that follow the block in row `after` are held.
    pub(super) fn hold(
        &self,
        ledger: &mut Ledger,
        holder: Holder<'_>,
        links: &[u64],
        after: Option<Row>,
        origin: Origin,
    ) -> Inserted {
        let (before, end) = search::held(holder, links);
        if matches!(origin, Origin::Choice | Origin::Promised) {
            add(&self.answered, answers::came(holder, ledger, links, before).into());
        }
        let inserted = ledger.insert(holder, links, before, end.or(after), origin == Origin::Promised);
        add(&self.inserted[origin as usize], (inserted.now - inserted.before).into());
        add(&self.evicted, inserted.evicted.into());
        add(&self.refused, ((inserted.now as usize) < links.len()).into());
        self.publish(ledger);
        inserted
    }

    /// What others may read of the ledger, before it is let go.
    pub(super) fn publish(&self, ledger: &Ledger) {
        self.blocks.store(ledger.held(), Ordering::Relaxed);
        self.capacity.store(ledger.capacity(), Ordering::Relaxed);
    }
}

/// Only who has the ledger writes these.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}
