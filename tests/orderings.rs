//! What shards and control share without locks, in every order of steps (with at most three or four switches between
//! threads where a model says so) and under every reordering that the memory model allows (loom):
//!
//!     cargo test --features modelled --test orderings

#![allow(unsafe_code, reason = "loom's cell tells a race where a value would only tell bad luck")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use warmfront::counters::queue::{Newcomer, Tenant};
use warmfront::counters::{Barred, Counters};
use warmfront::fleet::{Caps, EndpointId};
use warmfront::index::{Capacity, Found, Index, Matches, Origin};
use warmfront::limits::FAULTS_IN_A_ROW_MAX;
use warmfront::publish::{DriverInUse, Phase, Process};

const ONE: EndpointId = EndpointId { slot: 1, generation: 0 };

/// A bound holds for all shards together, whatever they do at the same time.
#[test]
fn a_bound_is_never_exceeded() {
    loom::model(|| {
        let counters = Counters::leak();
        let held = Arc::new(AtomicUsize::new(0));
        let shard = |held: Arc<AtomicUsize>| {
            move || {
                let Some(admission) = counters.try_admit(ONE, Some(1)) else { return false };
                assert_eq!(held.fetch_add(1, Ordering::Relaxed), 0, "two where one was allowed");
                held.fetch_sub(1, Ordering::Relaxed);
                drop(admission);
                true
            }
        };
        let other = thread::spawn(shard(Arc::clone(&held)));
        let here = shard(held)();
        let there = other.join().unwrap();
        assert!(here || there, "somebody is first");
        assert_eq!((counters.in_flight(1), counters.underflow()), (0, 0));
    });
}

/// A cap holds for what runs, also while one that failed and was charged behind its end is let go.
#[test]
fn a_cap_is_never_exceeded_beside_what_is_charged() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let counters = Counters::leak();
        let running = Arc::new(AtomicUsize::new(0));
        let caps = Caps { running: 1, ..Caps::NONE };
        let mut failed = counters.try_admit_below(ONE, caps).unwrap();
        let asks = |running: Arc<AtomicUsize>| {
            move || {
                let Some(admission) = counters.try_admit_below(ONE, caps) else { return };
                assert_eq!(running.fetch_add(1, Ordering::Relaxed), 0, "two where one was allowed");
                running.fetch_sub(1, Ordering::Relaxed);
                drop(admission);
            }
        };
        let others = [asks(Arc::clone(&running)), asks(Arc::clone(&running))].map(|asks| thread::spawn(asks));
        failed.stays_charged();
        drop(failed);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!((counters.in_flight(1), counters.loads().running(1), counters.underflow()), (0, 0, 0));
    });
}

/// No request is lost or counted twice, on one endpoint or on two.
#[test]
fn every_admission_is_released_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let counters = Counters::leak();
        let two = EndpointId { slot: 2, generation: 0 };
        let shards = [ONE, two].map(|id| {
            thread::spawn(move || {
                let first = counters.try_admit(ONE, None).unwrap();
                let second = counters.try_admit(id, None).unwrap();
                drop(first);
                assert!(counters.in_flight(second.endpoint().slot) >= 1, "one's own request is seen");
            })
        });
        shards.into_iter().for_each(|shard| shard.join().unwrap());
        assert_eq!((counters.in_flight(1), counters.in_flight(2), counters.underflow()), (0, 0, 0));
    });
}

/// Control gives a slot away once nothing is in flight on it: by then it sees all that those requests did.
#[test]
fn who_sees_zero_sees_what_the_requests_did() {
    loom::model(|| {
        let counters = Counters::leak();
        let done = Arc::new(UnsafeCell::new(0));
        let admission = counters.try_admit(ONE, None).unwrap();
        let shard = thread::spawn({
            let done = Arc::clone(&done);
            move || {
                // SAFETY: nobody reads before the count is back at zero; that is what loom checks here.
                done.with_mut(|done| unsafe { *done = 1 });
                drop(admission);
            }
        });
        while counters.in_flight(1) != 0 {
            thread::yield_now();
        }
        // SAFETY: the count is at zero.
        assert_eq!(done.with(|done| unsafe { *done }), 1);
        shard.join().unwrap();
    });
}

/// Who waits and looks while a request ends finds its room, or has to look again.
#[test]
fn no_end_is_overlooked() {
    loom::model(|| {
        let counters = Counters::leak();
        let queue = counters.queue();
        let runs = counters.try_admit(ONE, Some(1)).unwrap();
        let asks =
            Newcomer { priority: 0, tenant: Tenant::ONLY, held: 0.0, new: 0, needs: 0, endpoint: ONE.slot, shard: 0 };
        let place = queue.join(&asks, 1, 0).unwrap();
        let ends = thread::spawn(move || {
            drop(runs);
            queue.freed(ONE.slot);
        });
        let seen = queue.seen();
        let found = counters.try_admit(ONE, Some(1));
        if found.is_none() {
            place.aims_at(ONE.slot, 0, seen);
        }
        ends.join().unwrap();
        assert!(found.is_some() || queue.next_elsewhere(1) == Some(0), "nobody looks");
    });
}

/// A phase is never seen before what was said with it.
#[test]
fn who_sees_a_shard_serving_sees_its_driver() {
    loom::model(|| {
        let process = Process::leak(1);
        let shard = thread::spawn(move || {
            let state = &process.shards()[0];
            state.now_serves(DriverInUse::Uring, "");
            while_draining_ends(process);
        });
        let state = &process.shards()[0];
        if state.phase() == Phase::Serving {
            assert_eq!(state.driver(), ("uring", ""));
        }
        process.drain();
        shard.join().unwrap();
        assert!(matches!(state.phase(), Phase::Serving | Phase::Ended));
    });
}

fn while_draining_ends(process: &'static Process) {
    if process.draining() {
        process.shards()[0].now_ends();
    }
}

/// A model of an index of two endpoints that hold two blocks each, in two buckets of two rows. Three switches between
/// threads at places of loom's choice find what is wrong in such short runs; all of them would take hours.
fn with_index(run: impl Fn(Arc<Index>) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let index = Arc::new(Index::new(Capacity { endpoints: 2, blocks: 2, lengths: false }).unwrap());
        index.assign(A, Some(1)).unwrap();
        index.assign(B, Some(1)).unwrap();
        run(index);
    });
}

const A: EndpointId = EndpointId { slot: 0, generation: 1 };
const B: EndpointId = EndpointId { slot: 1, generation: 1 };
/// Blocks of one bucket, so that they follow one another in the same row.
const ONE_BLOCK: u64 = 1 << 40;
const OTHER_BLOCK: u64 = 2 << 40;

fn depths(index: &Index, block: u64, among: [EndpointId; 2]) -> [u32; 2] {
    let mut found = Matches::default();
    index.longest(&[block], &among, &mut found);
    among.map(|id| found.depth(id.slot))
}

/// A row goes to another block while it is read: whoever holds that one is not taken for a holder of this. (Who writes
/// runs first here and below: loom tries every order of a later load with an earlier write, not the reverse.)
#[test]
fn a_row_used_again_names_no_false_holder() {
    with_index(|index| {
        index.insert(&[ONE_BLOCK], A, Origin::Choice).unwrap();
        let reader = thread::spawn({
            let index = Arc::clone(&index);
            move || assert_eq!(depths(&index, ONE_BLOCK, [A, B])[1], 0, "B never had it")
        });
        assert_eq!(index.remove(ONE_BLOCK, A), Ok(1));
        index.insert(&[OTHER_BLOCK], B, Origin::Choice).unwrap();
        reader.join().unwrap();
        assert_eq!(depths(&index, OTHER_BLOCK, [A, B]), [0, 1]);
        assert_eq!(index.audit(), Ok(1));
    });
}

/// A row is taken while its last holder is about to leave it: nothing of that one stays in it.
#[test]
fn a_row_taken_at_once_has_no_former_holder() {
    with_index(|index| {
        index.insert(&[ONE_BLOCK], A, Origin::Choice).unwrap();
        let next = thread::spawn({
            let index = Arc::clone(&index);
            move || {
                index.insert(&[OTHER_BLOCK], B, Origin::Choice).unwrap();
                assert_eq!(depths(&index, OTHER_BLOCK, [A, B]), [0, 1]);
            }
        });
        assert_eq!(index.remove(ONE_BLOCK, A), Ok(1));
        next.join().unwrap();
        assert_eq!(index.audit(), Ok(1));
    });
}

/// Two endpoints come to hold the same block at once: both are found, whether it has one row or two.
#[test]
fn two_that_insert_a_block_both_hold_it() {
    with_index(|index| {
        let other = thread::spawn({
            let index = Arc::clone(&index);
            move || index.insert(&[ONE_BLOCK], A, Origin::Choice).unwrap()
        });
        index.insert(&[ONE_BLOCK], B, Origin::Choice).unwrap();
        assert_eq!(depths(&index, ONE_BLOCK, [A, B])[1], 1);
        other.join().unwrap();
        assert_eq!(depths(&index, ONE_BLOCK, [A, B]), [1, 1]);
        index.audit().unwrap();
    });
}

/// One leaves a block, another joins it, and its row is used again behind both.
#[test]
fn who_joins_what_another_leaves_holds_it() {
    with_index(|index| {
        index.insert(&[ONE_BLOCK], A, Origin::Choice).unwrap();
        let leaver = thread::spawn({
            let index = Arc::clone(&index);
            // Its only block goes for the other one.
            move || index.insert(&[OTHER_BLOCK], A, Origin::Choice).unwrap()
        });
        index.insert(&[ONE_BLOCK], B, Origin::Choice).unwrap();
        leaver.join().unwrap();
        assert_eq!(depths(&index, ONE_BLOCK, [A, B]), [0, 1]);
        assert_eq!(depths(&index, OTHER_BLOCK, [A, B]), [1, 0]);
        index.audit().unwrap();
    });
}

/// A slot is given away while a shard inserts for its former tenant: the new one is cold.
#[test]
fn a_slot_given_away_stays_cold() {
    const NEXT: EndpointId = EndpointId { slot: 0, generation: 2 };
    with_index(|index| {
        let shard = thread::spawn({
            let index = Arc::clone(&index);
            move || index.insert(&[ONE_BLOCK], A, Origin::Choice)
        });
        while index.assign(NEXT, Some(1)).is_err() {
            thread::yield_now();
        }
        assert_eq!(depths(&index, ONE_BLOCK, [NEXT, B]), [0, 0]);
        let _ = shard.join().unwrap();
        assert_eq!(depths(&index, ONE_BLOCK, [NEXT, B]), [0, 0]);
        assert_eq!((index.audit(), index.figures(0).blocks), (Ok(0), 0));
    });
}

/// A slot is given away while it is looked up: what its next tenant holds is not said of the former, nor the reverse.
#[test]
fn tenants_are_told_apart_while_looking() {
    const NEXT: EndpointId = EndpointId { slot: 0, generation: 2 };
    with_index(|index| {
        index.insert(&[ONE_BLOCK], A, Origin::Choice).unwrap();
        let control = thread::spawn({
            let index = Arc::clone(&index);
            move || {
                index.assign(NEXT, Some(1)).unwrap();
                index.insert(&[OTHER_BLOCK], NEXT, Origin::Choice).unwrap();
            }
        });
        assert_eq!(depths(&index, OTHER_BLOCK, [A, B]), [0, 0], "the former never had it");
        assert_eq!(depths(&index, ONE_BLOCK, [NEXT, B]), [0, 0], "the next never had it");
        control.join().unwrap();
    });
}

/// A ledger gives room back while it is looked up, and another gets it: what stays is found all the while, and only
/// where it is.
#[test]
fn what_stays_is_found_while_a_ledger_gets_smaller() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let index = Arc::new(Index::new(Capacity { endpoints: 2, blocks: 4, lengths: false }).unwrap());
        assert_eq!((index.assign(A, Some(4)), index.assign(B, Some(1))), (Ok(4), Ok(0)));
        // In a ledger's first two cells, of which the first comes free.
        index.insert(&[OTHER_BLOCK], A, Origin::Choice).unwrap();
        index.insert(&[ONE_BLOCK], A, Origin::Choice).unwrap();
        let reader = thread::spawn({
            let index = Arc::clone(&index);
            move || {
                assert_eq!(depths(&index, ONE_BLOCK, [A, B]), [1, 0]);
                depths(&index, OTHER_BLOCK, [A, B])
            }
        });
        assert_eq!((index.resize(A, 1), index.resize(B, 1)), (Ok(1), Ok(1)));
        index.insert(&[OTHER_BLOCK], B, Origin::Choice).unwrap();
        reader.join().unwrap();
        assert_eq!((depths(&index, ONE_BLOCK, [A, B]), depths(&index, OTHER_BLOCK, [A, B])), ([1, 0], [0, 1]));
        // Found by its cell as well.
        assert_eq!((index.audit(), index.remove(ONE_BLOCK, A), index.audit()), (Ok(2), Ok(1), Ok(1)));
    });
}

/// Tokens are read while control notes some: they are a link's own, and known as long as only others are noted.
#[test]
fn tokens_are_a_links_own() {
    for noted_again in [false, true] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let index = Arc::new(Index::new(Capacity { endpoints: 2, blocks: 2, lengths: true }).unwrap());
            index.assign(A, Some(1)).unwrap();
            index.insert(&[ONE_BLOCK], A, Origin::Choice).unwrap();
            let tokens = |index: &Index| {
                let mut found = Matches::default();
                index.longest_in_steps(&[ONE_BLOCK], &[], &[A], &mut found);
                found.found(0).tokens
            };
            index.note_tokens(ONE_BLOCK, 1);
            let control = thread::spawn({
                let index = Arc::clone(&index);
                move || {
                    // A bucket has two words in a model.
                    index.note_tokens(OTHER_BLOCK, 2);
                    if noted_again {
                        index.note_tokens(ONE_BLOCK, 3);
                    }
                }
            });
            let seen = tokens(&index);
            assert!(seen == Some(1) || noted_again && matches!(seen, None | Some(3)), "{seen:?}");
            control.join().unwrap();
            assert_eq!(tokens(&index), Some(if noted_again { 3 } else { 1 }));
            index.note_tokens(OTHER_BLOCK, 4);
            index.note_tokens(OTHER_BLOCK << 1, 5);
            assert_eq!(tokens(&index), None, "the oldest went");
        });
    }
}

/// An endpoint is emptied and given to another while its steps are looked up: neither is said to hold what the other does.
#[test]
fn steps_are_told_apart_by_tenant() {
    const NEXT: EndpointId = EndpointId { slot: 0, generation: 2 };
    const STEP: u64 = 3 << 40;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let index = Arc::new(Index::new(Capacity { endpoints: 2, blocks: 4, lengths: false }).unwrap());
        index.assign(A, Some(2)).unwrap();
        index.insert(&[ONE_BLOCK, STEP], A, Origin::Choice).unwrap();
        let look = |index: &Index, steps: u64, among: EndpointId| {
            let mut found = Matches::default();
            index.longest_in_steps(&[ONE_BLOCK], &[0, 0, 0, steps], &[among], &mut found);
            found.found(0)
        };
        let control = thread::spawn({
            let index = Arc::clone(&index);
            move || {
                index.assign(NEXT, Some(2)).unwrap();
                index.append(None, &[ONE_BLOCK], NEXT, Origin::Engine).unwrap();
                index.append(Some(ONE_BLOCK), &[OTHER_BLOCK], NEXT, Origin::Engine).unwrap();
            }
        });
        assert_eq!(look(&index, OTHER_BLOCK, A).steps, 0, "the former never had it");
        assert_eq!(look(&index, STEP, NEXT).steps, 0, "the next never had it");
        control.join().unwrap();
        assert_eq!(look(&index, OTHER_BLOCK, NEXT), Found { blocks: 1, steps: 1, tokens: None });
        assert_eq!((look(&index, STEP, A), index.audit()), (Found::default(), Ok(2)));
    });
}

/// One of a trial's own that comes or goes meanwhile is not taken for one that was open there before: another would be
/// sent beside it.
#[test]
fn what_comes_on_trial_is_not_from_before() {
    for goes in [false, true] {
        loom::model(move || {
            let counters = Counters::leak();
            counters.on_trial(1);
            let own = goes.then(|| counters.try_admit(ONE, Some(1)));
            let chooses = thread::spawn(move || assert_eq!(counters.loads().open_before(1), 0));
            match own {
                Some(own) => drop(own),
                None => std::mem::forget(counters.try_admit(ONE, Some(1))),
            }
            chooses.join().unwrap();
            assert_eq!((counters.in_flight(1), counters.loads().open_before(1)), (u32::from(!goes), 0));
        });
    }
}

/// Two shards choose an endpoint on trial at once: one of them has its request there, beside what is open from before.
#[test]
fn a_trial_has_one_request_of_its_own() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let counters = Counters::leak();
        let before = counters.try_admit(ONE, None).unwrap();
        counters.on_trial(1);
        let asks = move || {
            let most = counters.loads().open_before(1) + 1;
            counters.try_admit(ONE, Some(most))
        };
        let other = thread::spawn(asks);
        let here = asks();
        let there = other.join().unwrap();
        assert!(here.is_some() != there.is_some() && here.iter().chain(&there).all(|own| own.is_of_trial()));
        drop((before, here, there));
        assert_eq!((counters.in_flight(1), counters.loads().open_before(1), counters.underflow()), (0, 0, 0));
    });
}

/// A good answer crosses the last fault of a row: that its endpoint was barred for faults is still to be seen. As one
/// that said it ends, it would be taken out however many are out already.
#[test]
fn why_an_endpoint_was_barred_outlasts_a_good_answer() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let counters = Counters::leak();
        let outcomes = counters.outcomes();
        (1..FAULTS_IN_A_ROW_MAX).for_each(|_| assert!(!outcomes.fault(1)));
        let answers = thread::spawn(move || outcomes.good(1));
        let fails = thread::spawn(move || outcomes.fault(1));
        let seen = outcomes.read(1);
        assert!(matches!(seen.barred, None | Some(Barred::ForFaults)), "{seen:?}");
        answers.join().unwrap();
        let is_new = fails.join().unwrap();
        let end = outcomes.read(1);
        assert_eq!((end.barred, end.faults), (is_new.then_some(Barred::ForFaults), FAULTS_IN_A_ROW_MAX));
        assert!(is_new || end.recoveries == 1);
    });
}
