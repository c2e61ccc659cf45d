//! What shards and control share without locks, in every order of steps and under every reordering that the
//! memory model allows (loom):
//!
//!     RUSTFLAGS='--cfg modelled' CARGO_TARGET_DIR=target/modelled cargo test --test orderings
//!
//! Without the flag there is nothing here.

#![cfg(modelled)]
#![allow(unsafe_code, reason = "loom's cell tells a race where a value would only tell bad luck")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use warmfront::counters::Counters;
use warmfront::fleet::EndpointId;
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

/// No request is lost or counted twice, on one endpoint or on two.
#[test]
fn every_admission_is_released_once() {
    loom::model(|| {
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

/// A phase is never seen before what was said with it.
#[test]
fn who_sees_a_shard_serving_sees_its_driver() {
    loom::model(|| {
        let process = Process::leak(1);
        let shard = thread::spawn(move || {
            let state = &process.shards()[0];
            state.serving(DriverInUse::Uring, "");
            while_draining_ends(process);
        });
        let state = &process.shards()[0];
        if state.phase() == Phase::Serving {
            assert_eq!(state.driver(), DriverInUse::Uring);
        }
        process.drain();
        shard.join().unwrap();
        assert!(matches!(state.phase(), Phase::Serving | Phase::Ended));
    });
}

fn while_draining_ends(process: &'static Process) {
    if process.draining() {
        process.shards()[0].ended();
    }
}
