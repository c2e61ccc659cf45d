//! What requests learn about their endpoints, by slot: how many failed in a row, which endpoints are barred for it, and
//! what control has to look into.
//!
//! Shards write this; control reads it and turns it into [`crate::fleet::Health`]. A bar holds on every shard at once,
//! until control has published a snapshot that says the same.

use super::stats::Count;
use crate::atomics::{AtomicU8, AtomicU32, Ordering};
use crate::limits::{ENDPOINTS_MAX, FAULTS_IN_A_ROW_MAX, Limits};

/// See the module.
#[derive(Debug)]
pub struct Outcomes {
    slots: Box<[Slot; ENDPOINTS_MAX]>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Faults since the last good answer.
    in_a_row: AtomicU32,
    /// All faults (wraps).
    faults: AtomicU32,
    /// Good answers that ended a row of faults (wraps).
    recoveries: AtomicU32,
    /// Whether the endpoint gets nothing new, and why: 0 or a [`Barred`].
    barred: AtomicU8,
    /// The last fault: 0 for none, or one more than the number of its [`Count`].
    last: AtomicU8,
    /// When a client last had a token, a stream's opening or a whole answer from there, in [`TENTH`]s of the shards'
    /// clock; 0: never.
    gave: AtomicU32,
    /// When a kept connection to it was last found dead, in the same unit.
    kept_died: AtomicU32,
    /// Failed connects (wraps); control reads them between probes.
    connect_failures: AtomicU32,
    /// Requests that were answered 404 (wraps): control then asks what is served there.
    not_found: AtomicU32,
}

/// Why a shard sends nothing new to an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Barred {
    /// [`FAULTS_IN_A_ROW_MAX`] requests failed there in a row.
    ForFaults = 1,
    /// It said that it is shutting down.
    ByItsWord = 2,
}

impl Barred {
    fn of(word: u8) -> Option<Barred> {
        [Barred::ForFaults, Barred::ByItsWord].into_iter().find(|barred| *barred as u8 == word)
    }
}

/// Resolution of these instants, in microseconds, and the most often that one is written.
const TENTH: u64 = 100_000;

/// How often a stream in progress writes [`Outcomes::gives`]. Not at each token: the write waits for memory that no
/// other token touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Telling {
    /// In microseconds, a power of two.
    every: u64,
}

impl Telling {
    /// Each 4.2 s; or each 0.07 s if a timeout is so short that a silence between two writes could exceed it.
    pub fn of(limits: &Limits) -> Telling {
        let timeouts = [limits.reply_head_timeout_ms, limits.first_token_timeout_ms, limits.inter_chunk_timeout_ms];
        // Twice this one: for so long it counts what other clients had from there.
        let mut timeouts = timeouts.into_iter().chain([limits.deserted_timeout_ms.saturating_mul(2)]);
        let seldom = Telling::default().every;
        // Twice the interval: the tokens themselves may be nearly that far apart.
        let is_short = timeouts.any(|timeout| timeout.saturating_mul(1_000) < 2 * seldom + TENTH);
        Telling { every: if is_short { 1 << 16 } else { seldom } }
    }

    /// Whether a token at `now` is to be written, if the one before came at `before`; both in microseconds.
    #[inline]
    pub fn is_due(self, before: u64, now: u64) -> bool {
        before ^ now >= self.every
    }
}

impl Default for Telling {
    fn default() -> Self {
        Telling { every: 1 << 22 }
    }
}

fn tenths(now: u64) -> u32 {
    (now / TENTH + 1) as u32
}

impl Default for Outcomes {
    fn default() -> Self {
        Outcomes { slots: Box::new(std::array::from_fn(|_| Slot::default())) }
    }
}

impl Slot {
    /// Bars the endpoint; true if it was not barred. Otherwise the first reason stays.
    fn bar(&self, why: Barred) -> bool {
        self.barred.compare_exchange(0, why as u8, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

/// What control reads of one slot, to compare with its last reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Faults since the last good answer.
    pub in_a_row: u32,
    /// All faults since the start of the process (wraps).
    pub faults: u32,
    /// Good answers that ended a row of faults since the start of the process (wraps).
    pub recoveries: u32,
    /// Why a shard barred it, if one did. `in_a_row` does not tell: a good answer may end the row before control looks.
    pub barred: Option<Barred>,
}

/// What an endpoint last did; only for log lines and pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Given {
    /// The last fault.
    pub last: Option<Count>,
    /// Changes each time that a client has something from there; see [`Outcomes::gives`].
    pub gave: u32,
}

impl Outcomes {
    /// Notes what kind of fault the next [`Outcomes::fault`] is: before it, so that a bar is told with its reason.
    pub fn fails_by(&self, slot: u16, kind: Count) {
        if let Some(cell) = self.slots.get(slot as usize) {
            cell.last.store(kind as u8 + 1, Ordering::Relaxed);
        }
    }

    /// Counts a request that failed by the endpoint's fault, and bars it at [`FAULTS_IN_A_ROW_MAX`] in a row; true if
    /// it does so now.
    pub fn fault(&self, slot: u16) -> bool {
        let Some(cell) = self.slots.get(slot as usize) else { return false };
        cell.faults.fetch_add(1, Ordering::Relaxed);
        let in_a_row = cell.in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        in_a_row >= FAULTS_IN_A_ROW_MAX && cell.bar(Barred::ForFaults)
    }

    /// Counts a request that was answered well, to its last byte or as far as a trial asks. Costs a read while nothing
    /// is wrong.
    #[inline]
    pub fn good(&self, slot: u16) {
        let Some(cell) = self.slots.get(slot as usize) else { return };
        if cell.in_a_row.load(Ordering::Relaxed) != 0 {
            cell.in_a_row.store(0, Ordering::Relaxed);
            cell.recoveries.fetch_add(1, Ordering::Release);
        }
    }

    /// Notes that a client has something from there at `now`, in microseconds. Costs a read, mostly.
    #[inline]
    pub fn gives(&self, slot: u16, now: u64) {
        let Some(cell) = self.slots.get(slot as usize) else { return };
        if cell.gave.load(Ordering::Relaxed) != tenths(now) {
            cell.gave.store(tenths(now), Ordering::Relaxed);
        }
    }

    /// Whether any client had something from there in a later tenth of a second than that of `since`.
    pub fn gave_since(&self, slot: u16, since: u64) -> bool {
        self.slots.get(slot as usize).is_some_and(|cell| cell.gave.load(Ordering::Relaxed) > tenths(since))
    }

    /// Notes that a kept connection to it was dead when used, at `now` in microseconds: others that were idle then, on
    /// any shard, are taken to be dead as well.
    pub fn kept_died(&self, slot: u16, now: u64) {
        if let Some(cell) = self.slots.get(slot as usize) {
            cell.kept_died.store(tenths(now), Ordering::Relaxed);
        }
    }

    /// Whether a kept connection was found dead in the tenth of a second of `since`, or later.
    #[inline]
    pub fn kept_died_since(&self, slot: u16, since: u64) -> bool {
        self.slots.get(slot as usize).is_some_and(|cell| cell.kept_died.load(Ordering::Relaxed) >= tenths(since))
    }

    /// Counts a connect that failed.
    pub fn connect_failed(&self, slot: u16) {
        if let Some(cell) = self.slots.get(slot as usize) {
            cell.connect_failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Failed connects to this slot since start (wraps); compare with the value read before.
    pub fn connect_failures(&self, slot: u16) -> u32 {
        self.slots.get(slot as usize).map_or(0, |cell| cell.connect_failures.load(Ordering::Relaxed))
    }

    /// Counts a request that an engine answered 404.
    pub fn was_not_found(&self, slot: u16) {
        if let Some(cell) = self.slots.get(slot as usize) {
            cell.not_found.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests answered 404 at this slot since start (wraps); compare with the value read before.
    pub fn not_found(&self, slot: u16) -> u32 {
        self.slots.get(slot as usize).map_or(0, |cell| cell.not_found.load(Ordering::Relaxed))
    }

    /// Bars an endpoint that said that it is shutting down; true if it was not barred.
    pub fn bar(&self, slot: u16) -> bool {
        self.slots.get(slot as usize).is_some_and(|cell| cell.bar(Barred::ByItsWord))
    }

    /// Whether a shard barred it.
    #[inline]
    pub fn is_barred(&self, slot: u16) -> bool {
        self.slots.get(slot as usize).is_some_and(|cell| cell.barred.load(Ordering::Relaxed) != 0)
    }

    /// Takes the bar off for a trial; called by control. One fault then bars the endpoint again.
    pub fn on_trial(&self, slot: u16) {
        if let Some(cell) = self.slots.get(slot as usize) {
            cell.in_a_row.store(FAULTS_IN_A_ROW_MAX - 1, Ordering::Relaxed);
            cell.barred.store(0, Ordering::Release);
        }
    }

    /// Takes bar and faults off; called by control, which cannot do without the endpoint. When it last gave something
    /// stays known, since its streams go on.
    pub fn spare(&self, slot: u16) {
        if let Some(cell) = self.slots.get(slot as usize) {
            cell.in_a_row.store(0, Ordering::Relaxed);
            cell.barred.store(0, Ordering::Release);
        }
    }

    /// Forgets bar, faults and when it last gave something; called by control, which gives the slot to another endpoint
    /// or found another process there.
    pub fn forget(&self, slot: u16) {
        self.spare(slot);
        if let Some(cell) = self.slots.get(slot as usize) {
            cell.gave.store(0, Ordering::Relaxed);
        }
    }

    /// What it last did. Call it after [`Outcomes::read`] for the fault that led to the bar read there.
    pub fn given(&self, slot: u16) -> Given {
        self.slots.get(slot as usize).map_or_else(Given::default, |cell| Given {
            last: usize::from(cell.last.load(Ordering::Relaxed))
                .checked_sub(1)
                .and_then(|at| Count::ALL.get(at))
                .copied(),
            gave: cell.gave.load(Ordering::Relaxed),
        })
    }

    /// What is counted at a slot now.
    pub fn read(&self, slot: u16) -> Outcome {
        self.slots.get(slot as usize).map_or_else(Outcome::default, |cell| Outcome {
            recoveries: cell.recoveries.load(Ordering::Acquire),
            barred: Barred::of(cell.barred.load(Ordering::Acquire)),
            in_a_row: cell.in_a_row.load(Ordering::Relaxed),
            faults: cell.faults.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_faults_bars_and_a_good_answer_ends_the_row() {
        let outcomes = Outcomes::default();
        for _ in 0..5 {
            assert!(!outcomes.fault(3) && !outcomes.fault(3));
            outcomes.good(3);
        }
        outcomes.good(3);
        assert_eq!(outcomes.read(3), Outcome { in_a_row: 0, faults: 10, recoveries: 5, barred: None });
        assert!(!outcomes.fault(3) && !outcomes.fault(3) && outcomes.fault(3));
        assert!(outcomes.is_barred(3) && !outcomes.is_barred(2));
        assert!(!outcomes.fault(3) && !outcomes.bar(3), "it was barred before");
        outcomes.good(3);
        assert_eq!((outcomes.read(3).in_a_row, outcomes.read(3).barred), (0, Some(Barred::ForFaults)));
        assert!(outcomes.bar(2) && !outcomes.fault(2));
        assert_eq!(outcomes.read(2).barred, Some(Barred::ByItsWord));
    }

    #[test]
    fn one_fault_ends_a_trial() {
        let outcomes = Outcomes::default();
        assert!(outcomes.bar(0) && !outcomes.bar(0));
        outcomes.on_trial(0);
        assert!(!outcomes.is_barred(0));
        assert!(outcomes.fault(0) && outcomes.is_barred(0));
        outcomes.on_trial(0);
        outcomes.good(0);
        assert!(!outcomes.fault(0));
        outcomes.bar(0);
        outcomes.forget(0);
        let Outcome { in_a_row, barred, .. } = outcomes.read(0);
        assert_eq!((in_a_row, barred), (0, None));
    }

    #[test]
    fn what_idled_when_a_kept_connection_was_dead_is_known_by_its_time() {
        let outcomes = Outcomes::default();
        assert!(!outcomes.kept_died_since(1, 0), "none was");
        outcomes.kept_died(1, 7 * TENTH);
        let since = [0, 7 * TENTH + 1, 8 * TENTH, 9 * TENTH].map(|since| outcomes.kept_died_since(1, since));
        assert_eq!((since, outcomes.kept_died_since(2, 0)), ([true, true, false, false], false));
        outcomes.forget(1);
        assert!(outcomes.kept_died_since(1, 0), "those that idled then are as dead whoever answers there now");
    }

    #[test]
    fn the_last_fault_is_known_by_its_kind() {
        let outcomes = Outcomes::default();
        assert_eq!(outcomes.given(1), Given::default());
        for kind in Count::ALL {
            outcomes.fails_by(1, *kind);
            assert_eq!(outcomes.given(1).last, Some(*kind));
        }
        outcomes.fails_by(u16::MAX, Count::UpstreamFaultReset);
        assert_eq!([0, 2, u16::MAX].map(|slot| outcomes.given(slot).last), [None; 3]);
    }

    #[test]
    fn who_gives_is_known_to_a_tenth_of_a_second() {
        let outcomes = Outcomes::default();
        assert!(!outcomes.gave_since(1, 0));
        outcomes.gives(1, 5_000_000);
        assert!(outcomes.gave_since(1, 4_800_000) && !outcomes.gave_since(1, 5_000_000));
        outcomes.gives(1, 5_150_000);
        assert!(outcomes.gave_since(1, 5_000_000) && !outcomes.gave_since(2, 0));
        outcomes.bar(1);
        outcomes.spare(1);
        assert!(outcomes.gave_since(1, 5_000_000) && !outcomes.is_barred(1), "it goes on");
        outcomes.forget(1);
        assert!(!outcomes.gave_since(1, 0), "another engine's");
    }

    #[test]
    fn streams_tell_often_enough_for_the_shortest_silence_that_counts() {
        let often = |change: fn(&mut Limits)| {
            let mut limits = Limits::default();
            change(&mut limits);
            let telling = Telling::of(&limits);
            (1..200).filter(|token| telling.is_due((token - 1) * 50_000, token * 50_000)).count()
        };
        assert_eq!(often(|_| {}), 2);
        assert_eq!(often(|limits| limits.inter_chunk_timeout_ms = 9_000), 2);
        for short in [
            |limits: &mut Limits| limits.inter_chunk_timeout_ms = 2_000,
            |limits: &mut Limits| limits.first_token_timeout_ms = 8_000,
            |limits: &mut Limits| limits.reply_head_timeout_ms = 600,
            |limits: &mut Limits| limits.deserted_timeout_ms = 1_000,
        ] {
            assert!(often(short) > 140);
        }
        assert_eq!(Telling::of(&Limits::default()), Telling::default());
    }

    #[test]
    fn failed_connects_and_what_was_not_found_are_counted_by_slot() {
        let outcomes = Outcomes::default();
        outcomes.connect_failed(1);
        outcomes.connect_failed(u16::MAX);
        outcomes.was_not_found(2);
        outcomes.was_not_found(u16::MAX);
        let counted = || [1, 2].map(|slot| (outcomes.connect_failures(slot), outcomes.not_found(slot)));
        assert_eq!(counted(), [(1, 0), (0, 1)]);
        [1, 2].into_iter().for_each(|slot| outcomes.forget(slot));
        assert_eq!(counted(), [(1, 0), (0, 1)], "compared with what was read before, whoever it was");
    }

    #[test]
    fn a_slot_that_cannot_exist_is_nobody() {
        let outcomes = Outcomes::default();
        assert!(!outcomes.fault(u16::MAX) && !outcomes.bar(u16::MAX) && !outcomes.is_barred(u16::MAX));
        outcomes.good(u16::MAX);
        outcomes.gives(u16::MAX, 1);
        assert!(!outcomes.gave_since(u16::MAX, 0));
        assert_eq!(outcomes.read(u16::MAX), Outcome::default());
    }
}
