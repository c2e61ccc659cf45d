//! How connections are left: a FIN after everything, a reset if something is missing, and stale ids.

use warmfront::driver::{Driver, Segment, SocketId};

use crate::peer::{End, Peer, pattern};
use crate::turns::{Told, Turns};

on_both_drivers! {
    a_finish_goes_behind_what_waits
    a_close_behind_taken_bytes_is_a_fin
    a_close_before_all_is_taken_is_a_reset
    an_abort_is_a_reset
    a_close_before_adoption_or_connection
    a_closed_connection_is_told_of_no_more
    what_came_for_a_closed_connection_keeps_no_buffer
    stale_names_do_nothing
    quiet_is_who_has_nothing_to_tell
    quiet_is_not_who_was_paused_on_bytes
    quiet_is_not_who_was_paused_on_what_the_driver_had
    quiet_is_none_of_a_crowd_that_has_bytes
}

fn say<D: Driver>(turns: &mut Turns<D>, id: SocketId, bytes: &[u8]) {
    turns.driver.send(id, &[Segment::Bytes(bytes)]);
}

fn a_finish_goes_behind_what_waits<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let bytes = pattern(12 << 20, 2);
    for (id, tag, mut peer) in turns.two() {
        say(&mut turns, id, &bytes);
        say(&mut turns, id, b"the last");
        turns.driver.finish(id);
        turns.driver.finish(id);
        turns.settle();
        assert_eq!(turns.end_of(&mut peer), End::Fin);
        assert_eq!(peer.got.len(), bytes.len() + 8);
        assert!(peer.got.starts_with(&bytes) && peer.got.ends_with(b"the last"));
        // The other direction goes on.
        peer.write(b"thanks");
        peer.finish();
        turns.until_told(tag, Told::Ended);
        assert_eq!(turns.received(tag), b"thanks");
    }
}

fn a_close_behind_taken_bytes_is_a_fin<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for many in [false, true] {
        for (id, _, mut peer) in turns.two() {
            say(&mut turns, id, b"answer");
            if many {
                (0..100).for_each(|_| say(&mut turns, id, &[b'x'; 300]));
            }
            turns.driver.close(id);
            assert_eq!(turns.end_of(&mut peer), End::Fin);
            assert_eq!(peer.got.len(), if many { 30_006 } else { 6 });
        }
    }
}

fn a_close_before_all_is_taken_is_a_reset<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let bytes = pattern(12 << 20, 2);
    for known in [false, true] {
        for (id, _, mut peer) in turns.two() {
            say(&mut turns, id, &bytes);
            if known {
                turns.settle();
            }
            turns.driver.close(id);
            assert_eq!(turns.end_of(&mut peer), End::Reset);
            assert!(peer.got.len() < bytes.len());
        }
        // The same if the rest of an offer was not taken.
        for (id, _, mut peer) in turns.two() {
            assert!(turns.driver.offer(id, &bytes) < bytes.len());
            if known {
                turns.settle();
            }
            turns.driver.close(id);
            assert_eq!(turns.end_of(&mut peer), End::Reset);
        }
    }
}

fn an_abort_is_a_reset<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, _, mut peer) in turns.two() {
        turns.driver.abort(id);
        assert_eq!(turns.end_of(&mut peer), End::Reset);
    }
    for (id, _, mut peer) in turns.two() {
        say(&mut turns, id, b"part of an answer");
        turns.driver.abort(id);
        assert_eq!(turns.end_of(&mut peer), End::Reset);
    }
    for (id, tag, mut peer) in turns.two() {
        turns.driver.pause(id);
        peer.finish();
        turns.settle();
        turns.driver.abort(id);
        turns.settle();
        assert_eq!(turns.end_of(&mut peer), End::Reset);
        assert!(!turns.told(tag).contains(&Told::Ended));
    }
}

fn a_close_before_adoption_or_connection<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut peers: Vec<Peer> = (0..2).map(|_| Peer::connect(turns.address)).collect();
    turns.until("both", |turns| turns.fresh.len() == 2);
    let (first, second) = (turns.fresh.pop_front().unwrap(), turns.fresh.pop_front().unwrap());
    turns.driver.close(first);
    turns.driver.abort(second);
    let mut ends: Vec<End> = peers.iter_mut().map(|peer| turns.end_of(peer)).collect();
    ends.sort_by_key(|end| *end == End::Reset);
    assert_eq!(ends, [End::Fin, End::Reset]);

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tag = turns.tag();
    let id = turns.driver.connect(listener.local_addr().unwrap(), tag).unwrap();
    turns.driver.close(id);
    turns.settle();
    assert_eq!(turns.told(tag), []);
    let mut peer = Peer::accept(&listener);
    turns.end_of(&mut peer);
}

/// The bytes that each has when the first one closes them all are never read, and there are more connections than
/// buffers.
fn what_came_for_a_closed_connection_keeps_no_buffer<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for _ in 0..100 {
        let mut lines: Vec<_> = (0..8).flat_map(|_| turns.two()).collect();
        turns.settle();
        lines.iter_mut().for_each(|(.., peer)| peer.write(b"bytes"));
        let ids: Vec<SocketId> = lines.iter().map(|(id, ..)| *id).collect();
        let react = |driver: &mut D, _| ids.iter().for_each(|id| driver.close(*id));
        turns.until_with("the first", react, |turns| lines.iter().any(|(_, tag, _)| !turns.received(*tag).is_empty()));
    }
    let [(_, tag, mut peer), _] = turns.two();
    peer.write(b"bytes");
    turns.until_received(tag, 5);
    assert_eq!(turns.driver.buffers_out(), 0);
}

/// Each has bytes, an end and more in this turn; the first that is told closes them all.
fn a_closed_connection_is_told_of_no_more<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for _ in 0..5 {
        let mut lines: Vec<_> = (0..4).flat_map(|_| turns.two()).collect();
        turns.settle();
        for (at, (_, _, peer)) in lines.iter_mut().enumerate() {
            peer.write(b"bytes");
            if at % 2 == 0 {
                peer.finish();
            }
        }
        let mut told = 0;
        let ids: Vec<SocketId> = lines.iter().map(|(id, ..)| *id).collect();
        let react = |driver: &mut D, _| {
            told += 1;
            ids.iter().for_each(|id| driver.close(*id));
        };
        turns.until_with("the first", react, |turns| lines.iter().any(|(_, tag, _)| !turns.received(*tag).is_empty()));
        turns.settle();
        assert_eq!(told, 1);
        for (_, _, mut peer) in lines {
            turns.end_of(&mut peer);
        }
    }
}

fn stale_names_do_nothing<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for _ in 0..3 {
        for (id, _, mut peer) in turns.two() {
            turns.driver.close(id);
            // Some before the descriptor is closed, some after its place is taken by another.
            for late in [false, true] {
                let other = late.then(|| {
                    turns.settle();
                    turns.accept()
                });
                turns.driver.adopt(id, warmfront::driver::Tag(u64::MAX));
                assert_eq!(turns.driver.send(id, &[Segment::Bytes(b"stale")]), 0);
                assert_eq!(turns.driver.offer(id, b"stale"), 0);
                turns.driver.pause(id);
                turns.driver.resume(id);
                turns.driver.finish(id);
                assert!(!turns.driver.is_quiet(id));
                assert_eq!(turns.driver.acknowledged(id), None);
                turns.driver.close(id);
                turns.driver.abort(id);
                if let Some((id, tag, mut peer)) = other {
                    peer.write(b"hello");
                    turns.until_received(tag, 5);
                    say(&mut turns, id, b"mine");
                    turns.driver.close(id);
                    assert_eq!((turns.end_of(&mut peer), &*peer.got), (End::Fin, &b"mine"[..]));
                }
            }
            assert_eq!((turns.end_of(&mut peer), &*peer.got), (End::Fin, &b""[..]));
            assert_eq!(turns.told(warmfront::driver::Tag(u64::MAX)), []);
        }
    }
}

fn quiet_is_who_has_nothing_to_tell<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        turns.settle();
        assert!(turns.driver.is_quiet(id));
        for (end, what) in [(false, "bytes"), (true, "an end")] {
            if end {
                peer.finish()
            } else {
                peer.write(b"surplus")
            }
            let mut seen = false;
            turns.until(what, |turns| {
                let before = turns.told(tag).len();
                turns.driver.wait(std::time::Duration::from_millis(10)).unwrap();
                // The driver knows what the kernel has said before it hands it out.
                let quiet = turns.driver.is_quiet(id);
                turns.turn_of(std::time::Duration::ZERO, |_, _| {});
                seen = turns.told(tag).len() > before;
                assert!(!(seen && quiet), "quiet with {what} to tell");
                seen
            });
            turns.settle();
            assert_eq!(turns.driver.is_quiet(id), !end);
        }
    }
}

/// This happens if an exchange ends while its engine is paused: the connection may serve another only if nothing came.
fn quiet_is_not_who_was_paused_on_bytes<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        turns.driver.pause(id);
        turns.settle();
        turns.driver.resume(id);
        assert!(turns.driver.is_quiet(id), "nothing has come");
        turns.settle();
        turns.driver.pause(id);
        turns.settle();
        peer.write(b"surplus");
        turns.settle();
        turns.driver.resume(id);
        assert!(!turns.driver.is_quiet(id), "bytes came while it was paused");
        turns.until_received(tag, 7);
        turns.settle();
        assert!(turns.driver.is_quiet(id));
    }
}

/// Bytes that were received before the pause, and are not told yet, are no longer in the kernel.
fn quiet_is_not_who_was_paused_on_what_the_driver_had<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        turns.settle();
        peer.write(b"surplus");
        turns.driver.wait(std::time::Duration::from_millis(10)).unwrap();
        turns.driver.pause(id);
        turns.settle();
        turns.driver.resume(id);
        assert!(!turns.driver.is_quiet(id), "bytes came before it was paused");
        turns.until_received(tag, 7);
        turns.settle();
        assert!(turns.driver.is_quiet(id));
    }
}

/// More connections than the kernel makes completions for in one enter.
fn quiet_is_none_of_a_crowd_that_has_bytes<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut lines: Vec<_> = (0..100).map(|_| turns.connect()).collect();
    turns.settle();
    let mut written = 0;
    let mut quiet_ones = || {
        assert!(lines.iter().all(|(id, ..)| turns.driver.is_quiet(*id)), "nothing has come");
        lines.iter_mut().for_each(|(.., peer)| peer.write(b"surplus"));
        turns.driver.wait(std::time::Duration::from_millis(10)).unwrap();
        let quiet = lines.iter().filter(|(id, ..)| turns.driver.is_quiet(*id)).count();
        written += 7;
        lines.iter().for_each(|(_, tag, _)| turns.until_received(*tag, written));
        turns.settle();
        quiet
    };
    for _ in 0..3 {
        // The kernel may be late with written bytes, but hardly in each of three tries.
        assert!((0..3).any(|_| quiet_ones() == 0), "quiet although they have bytes");
    }
}
