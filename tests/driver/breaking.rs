//! Connections that break: told once, whichever operation meets the fault first and whatever came before it.

use warmfront::driver::{Driver, Segment, SocketId, Tag};

use crate::peer::{Peer, pattern};
use crate::turns::{Told, Turns};

on_both_drivers! {
    a_reset_fails_the_connection_once
    a_reset_that_a_send_meets_first_is_told
    a_reset_that_an_offer_meets_first_is_told
    a_reset_while_bytes_wait_is_told
    a_reset_behind_our_own_fin_is_told
    a_fin_and_a_reset_before_the_driver_looks
    a_reset_after_the_end_was_told
    a_reset_behind_a_fin_that_a_send_meets_first
    a_reset_behind_a_fin_while_bytes_wait
    a_reset_behind_a_fin_of_a_connection_paused_since
    a_reset_of_a_connection_that_nobody_adopted
    a_broken_connection_is_not_quiet
}

/// Ends, faults and resets that were told; a shard ignores a second fault, but one must not be missing.
fn faults<D: Driver>(turns: &Turns<D>, tag: Tag) -> Vec<Told> {
    let mut ends = turns.ends(tag);
    ends.retain(|told| matches!(told, Told::Ended | Told::Failed | Told::Reset));
    ends
}

/// Plays `scene` on an accepted and on a made connection, closes it, and compares what was told with `expected`.
fn each<D: Driver>(driver: D, expected: &[Told], mut scene: impl FnMut(&mut Turns<D>, SocketId, Tag, Peer)) {
    let mut turns = Turns::new(driver);
    for _ in 0..3 {
        for (id, tag, peer) in turns.two() {
            turns.settle();
            scene(&mut turns, id, tag, peer);
            turns.until_told(tag, *expected.last().unwrap());
            turns.settle();
            assert_eq!(faults(&turns, tag), expected, "on {}", D::NAME);
            turns.driver.close(id);
            turns.settle();
            assert_eq!(faults(&turns, tag), expected, "after the close on {}", D::NAME);
        }
    }
}

fn say<D: Driver>(turns: &mut Turns<D>, id: SocketId, bytes: &[u8]) {
    turns.driver.send(id, &[Segment::Bytes(bytes)]);
}

/// Sends more than the kernel takes while the far end does not read.
fn fill<D: Driver>(turns: &mut Turns<D>, id: SocketId, tag: Tag) {
    let bytes = pattern(1 << 20, 1);
    let waits = (0..12).map(|_| turns.driver.send(id, &[Segment::Bytes(&bytes)])).last().unwrap();
    turns.settle();
    assert!(waits > 0 || turns.told(tag).contains(&Told::Full), "12 MB were taken");
}

fn a_reset_fails_the_connection_once<D: Driver>(driver: D) {
    each(driver, &[Told::Failed], |turns, _, tag, mut peer| {
        peer.write(b"before");
        peer.reset();
        turns.until_told(tag, Told::Failed);
        assert_eq!(turns.received(tag), b"before", "bytes before a reset are handed out");
    });
}

fn a_reset_that_a_send_meets_first_is_told<D: Driver>(driver: D) {
    each(driver, &[Told::Failed], |turns, id, _, peer| {
        peer.reset();
        say(turns, id, b"one");
        say(turns, id, b"two");
        turns.turn();
        say(turns, id, b"three");
    });
}

fn a_reset_that_an_offer_meets_first_is_told<D: Driver>(driver: D) {
    each(driver, &[Told::Failed], |turns, id, _, peer| {
        peer.reset();
        assert_eq!(turns.driver.offer(id, b"one"), 0);
        assert_eq!(turns.driver.offer(id, b"two"), 0);
    });
}

fn a_reset_while_bytes_wait_is_told<D: Driver>(driver: D) {
    each(driver, &[Told::Failed], |turns, id, tag, peer| {
        fill(turns, id, tag);
        peer.reset();
    });
}

fn a_reset_behind_our_own_fin_is_told<D: Driver>(driver: D) {
    each(driver, &[Told::Failed], |turns, id, _, peer| {
        say(turns, id, b"all");
        turns.driver.finish(id);
        turns.settle();
        peer.reset();
    });
}

fn a_fin_and_a_reset_before_the_driver_looks<D: Driver>(driver: D) {
    each(driver, &[Told::Ended, Told::Failed], |turns, _, tag, mut peer| {
        peer.write(b"before");
        peer.finish();
        peer.reset();
        turns.until_told(tag, Told::Failed);
        assert_eq!(turns.received(tag), b"before");
    });
}

fn a_reset_after_the_end_was_told<D: Driver>(driver: D) {
    each(driver, &[Told::Ended, Told::Failed], |turns, _, tag, peer| {
        peer.finish();
        turns.until_told(tag, Told::Ended);
        turns.settle();
        peer.reset();
    });
}

fn a_reset_behind_a_fin_that_a_send_meets_first<D: Driver>(driver: D) {
    each(driver, &[Told::Ended, Told::Failed], |turns, id, tag, peer| {
        peer.finish();
        turns.until_told(tag, Told::Ended);
        peer.reset();
        say(turns, id, b"one");
        assert_eq!(turns.driver.offer(id, b"two"), 0);
    });
}

fn a_reset_behind_a_fin_while_bytes_wait<D: Driver>(driver: D) {
    each(driver, &[Told::Ended, Told::Failed], |turns, id, tag, peer| {
        fill(turns, id, tag);
        peer.finish();
        turns.until_told(tag, Told::Ended);
        peer.reset();
    });
}

fn a_reset_behind_a_fin_of_a_connection_paused_since<D: Driver>(driver: D) {
    each(driver, &[Told::Ended, Told::Failed], |turns, id, tag, peer| {
        peer.finish();
        turns.until_told(tag, Told::Ended);
        turns.driver.pause(id);
        turns.settle();
        peer.reset();
    });
}

/// Its end is told once it is adopted, or the connection never came.
fn a_reset_of_a_connection_that_nobody_adopted<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for known in [false, true] {
        let peer = Peer::connect(turns.address);
        if known {
            turns.until("an accept", |turns| !turns.fresh.is_empty());
        }
        peer.reset();
        turns.settle();
        let Some(id) = turns.fresh.pop_front() else {
            assert!(!known);
            continue;
        };
        let tag = turns.tag();
        turns.driver.adopt(id, tag);
        turns.until_told(tag, Told::Failed);
        turns.driver.close(id);
    }
}

fn a_broken_connection_is_not_quiet<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, peer) in turns.two() {
        assert!(turns.driver.is_quiet(id));
        peer.reset();
        turns.until_told(tag, Told::Failed);
        assert!(!turns.driver.is_quiet(id));
        turns.driver.close(id);
    }
}
