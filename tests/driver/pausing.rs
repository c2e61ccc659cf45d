//! Pausing holds back and loses nothing, whenever it comes.

use std::collections::HashMap;
use std::time::Duration;

use warmfront::driver::{Completion, Driver, SocketId, Tag};

use crate::peer::{Peer, pattern};
use crate::random::Random;
use crate::turns::{Told, Turns};

on_both_drivers! {
    a_pause_holds_back_and_a_resume_loses_nothing
    a_pause_that_is_taken_back_at_once_changes_nothing
    a_pause_holds_back_what_this_turn_has_brought
    pauses_at_any_moment_reorder_nothing
    a_paused_connection_holds_back_its_peer
    a_pause_before_the_connection_stands_holds
    a_fin_waits_behind_the_bytes_before_it
    a_reset_is_told_at_once_and_the_bytes_before_it_can_be_read
    a_reset_behind_many_bytes_is_told_behind_them
    a_reset_behind_a_fin_is_told_while_paused
    who_is_paused_while_no_buffer_is_left_still_learns_of_a_reset
    what_waits_while_a_name_changes_comes_with_the_new_one
}

/// The connection of a completion that brought bytes.
fn tag_of(completion: Completion) -> Option<Tag> {
    match completion {
        Completion::Received(tag, _) => Some(tag),
        _ => None,
    }
}

fn a_pause_holds_back_and_a_resume_loses_nothing<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        let bytes = pattern(9_000, tag.0);
        for round in bytes.chunks(3_000) {
            let before = turns.received(tag).len();
            turns.driver.pause(id);
            turns.settle();
            round.chunks(1_000).for_each(|piece| {
                peer.write(piece);
                turns.turn();
            });
            turns.settle();
            assert_eq!(turns.received(tag).len(), before, "read although paused");
            // A second pause has no effect.
            turns.driver.pause(id);
            turns.driver.resume(id);
            turns.driver.resume(id);
            turns.until_received(tag, before + round.len());
        }
        assert_eq!(turns.received(tag), bytes);
    }
}

fn a_pause_that_is_taken_back_at_once_changes_nothing<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        let bytes = pattern(20_000, tag.0);
        for (round, piece) in bytes.chunks(1_000).enumerate() {
            // Paused before, after, and on both sides of the write; resumed before the kernel heard of it.
            for _ in 0..round % 3 {
                turns.driver.pause(id);
                turns.driver.resume(id);
            }
            peer.write(piece);
            if round % 2 == 0 {
                turns.driver.pause(id);
                turns.driver.resume(id);
            }
            turns.until_received(tag, (round + 1) * 1_000);
        }
        peer.finish();
        turns.driver.pause(id);
        turns.driver.resume(id);
        turns.until_told(tag, Told::Ended);
        assert_eq!(turns.received(tag), bytes);
    }
}

/// All connections have bytes, some a FIN as well; the first that is told has all others paused.
fn a_pause_holds_back_what_this_turn_has_brought<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut lines: Vec<_> = (0..4).flat_map(|_| turns.two()).collect();
    turns.settle();
    for (at, (_, tag, peer)) in lines.iter_mut().enumerate() {
        peer.write(&pattern(5_000, tag.0));
        if at % 2 == 0 {
            peer.finish();
        }
    }
    let ids: Vec<(SocketId, Tag)> = lines.iter().map(|(id, tag, _)| (*id, *tag)).collect();
    let mut first = None;
    let react = |driver: &mut D, completion| {
        if let (None, Some(tag)) = (first, tag_of(completion)) {
            first = Some(tag);
            ids.iter().filter(|(_, other)| *other != tag).for_each(|(id, _)| driver.pause(*id));
        }
    };
    turns.until_with("the first", react, |turns| ids.iter().any(|(_, tag)| !turns.received(*tag).is_empty()));
    turns.settle();
    let begun = |turns: &Turns<D>| ids.iter().filter(|(_, tag)| !turns.received(*tag).is_empty()).count();
    assert_eq!(begun(&turns), 1, "told of bytes although paused");
    // Paused once more with the bytes already promised.
    for (id, _) in &ids {
        turns.driver.resume(*id);
        turns.driver.pause(*id);
    }
    turns.settle();
    assert_eq!(begun(&turns), 1, "told of bytes although paused again");
    ids.iter().for_each(|(id, _)| turns.driver.resume(*id));
    for (at, (_, tag)) in ids.iter().enumerate() {
        turns.until_received(*tag, 5_000);
        if at % 2 == 0 {
            turns.until_told(*tag, Told::Ended);
        }
        assert_eq!(turns.received(*tag), pattern(5_000, tag.0));
    }
}

fn pauses_at_any_moment_reorder_nothing<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut lines: Vec<_> = (0..2).flat_map(|_| turns.two()).collect();
    let ids: HashMap<u64, SocketId> = lines.iter().map(|(id, tag, _)| (tag.0, *id)).collect();
    let bytes: Vec<Vec<u8>> = lines.iter().map(|(_, tag, _)| pattern(400_000, tag.0)).collect();
    let mut random = Random::new(7);
    let mut written = vec![0; lines.len()];
    while written.iter().any(|len| *len < 400_000) {
        for (at, (id, _, peer)) in lines.iter_mut().enumerate() {
            let end = (written[at] + random.below(20_000)).min(400_000);
            written[at] += peer.write_some(&bytes[at][written[at]..end]);
            match random.below(6) {
                0 | 1 => turns.driver.pause(*id),
                2..=4 => turns.driver.resume(*id),
                _ => {}
            }
        }
        let choice = random.below(4);
        turns.turn_of(Duration::from_millis(1), |driver, completion| {
            if let Some(tag) = tag_of(completion) {
                match choice {
                    0 => driver.pause(ids[&tag.0]),
                    1 => {
                        driver.pause(ids[&tag.0]);
                        driver.resume(ids[&tag.0]);
                    }
                    2 => ids.values().for_each(|id| driver.resume(*id)),
                    _ => {}
                }
            }
        });
    }
    for ((id, tag, _), bytes) in lines.iter().zip(&bytes) {
        turns.driver.resume(*id);
        turns.until_received(*tag, bytes.len());
        assert!(turns.received(*tag) == bytes);
    }
}

fn a_paused_connection_holds_back_its_peer<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        turns.driver.pause(id);
        turns.settle();
        let bytes = pattern(24 << 20, 3);
        let mut written = 0;
        loop {
            let len = peer.write_some(&bytes[written..]);
            written += len;
            turns.settle();
            if len == 0 {
                break;
            }
        }
        assert!(written < bytes.len(), "the peer is not held back");
        assert_eq!(turns.received(tag).len(), 0);
        turns.driver.resume(id);
        turns.until_received(tag, written);
        assert!(turns.received(tag) == &bytes[..written]);
    }
}

fn a_pause_before_the_connection_stands_holds<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tag = turns.tag();
    let id = turns.driver.connect(listener.local_addr().unwrap(), tag).unwrap();
    turns.driver.pause(id);
    let mut peer = Peer::accept(&listener);
    peer.write(b"too early");
    turns.until_told(tag, Told::Connected);
    turns.settle();
    assert_eq!(turns.received(tag), b"");
    turns.driver.resume(id);
    turns.until_received(tag, 9);
}

fn a_fin_waits_behind_the_bytes_before_it<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        let before = turns.told(tag).len();
        turns.driver.pause(id);
        turns.settle();
        peer.write(b"before");
        peer.finish();
        turns.settle();
        assert_eq!(turns.told(tag).len(), before, "told although paused");
        turns.driver.resume(id);
        turns.until_told(tag, Told::Ended);
        turns.settle();
        assert_eq!(turns.told(tag)[before..], [Told::Received(6), Told::Ended]);
    }
}

fn a_reset_is_told_at_once_and_the_bytes_before_it_can_be_read<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    // Before the driver has seen the pause or the bytes, halfway, and long after them.
    for between in 0..4 {
        for (id, tag, mut peer) in turns.two() {
            turns.driver.pause(id);
            (0..between).for_each(|_| _ = turns.turn());
            peer.write(b"before");
            (0..between).for_each(|_| _ = turns.turn());
            peer.reset();
            turns.until_told(tag, Told::Reset);
            turns.settle();
            assert_eq!(turns.received(tag), b"");
            turns.driver.resume(id);
            turns.until_told(tag, Told::Failed);
            turns.settle();
            assert_eq!(turns.received(tag), b"before");
            assert!(turns.ends(tag).ends_with(&[Told::Reset, Told::Failed]), "{:?}", turns.ends(tag));
        }
    }
}

/// More bytes than one receive takes at a time, on a connection that broke before it was read again.
fn a_reset_behind_many_bytes_is_told_behind_them<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for known in [false, true] {
        for (id, tag, mut peer) in turns.two() {
            turns.driver.pause(id);
            turns.settle();
            let bytes = pattern(4 << 20, 1);
            let mut written = 0;
            while let len @ 1.. = peer.write_some(&bytes[written..]) {
                written += len;
                turns.settle();
            }
            if !known {
                turns.driver.resume(id);
            }
            peer.reset();
            turns.settle();
            turns.driver.resume(id);
            turns.until_told(tag, Told::Failed);
            let received = turns.received(tag);
            assert!(received.len() > 100_000 && bytes.starts_with(received), "{} bytes", received.len());
        }
    }
}

fn a_reset_behind_a_fin_is_told_while_paused<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for between in 0..4 {
        for (id, tag, mut peer) in turns.two() {
            turns.driver.pause(id);
            (0..between).for_each(|_| _ = turns.turn());
            peer.write(b"before");
            peer.finish();
            (0..between).for_each(|_| _ = turns.turn());
            peer.reset();
            turns.until_told(tag, Told::Reset);
            turns.settle();
            turns.driver.resume(id);
            turns.until_told(tag, Told::Failed);
            turns.settle();
            assert_eq!(turns.received(tag), b"before");
            let ends = turns.ends(tag);
            assert!(ends.ends_with(&[Told::Reset, Told::Ended, Told::Failed]), "{ends:?}");
        }
    }
}

/// More connections have bytes than there are buffers; those that wait for one are paused in that very turn.
fn who_is_paused_while_no_buffer_is_left_still_learns_of_a_reset<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut lines: Vec<_> = (0..60).map(|_| turns.connect()).collect();
    // All are read from again in one turn, so that none has given its buffers back.
    lines.iter().for_each(|(id, ..)| turns.driver.pause(*id));
    turns.settle();
    lines.iter_mut().for_each(|(_, tag, peer)| peer.write(&pattern(20_000, tag.0)));
    turns.settle();
    lines.iter().for_each(|(id, ..)| turns.driver.resume(*id));
    turns.turn();
    assert!(D::NAME != "uring" || turns.driver.buffers_out() > 0);
    lines.iter().for_each(|(id, ..)| turns.driver.pause(*id));
    turns.settle();
    let mut names = Vec::new();
    for (id, tag, peer) in lines {
        peer.reset();
        names.push((id, tag));
    }
    for (id, tag) in names {
        turns.until_told(tag, Told::Reset);
        turns.driver.resume(id);
        turns.until_told(tag, Told::Failed);
        assert!(turns.received(tag) == pattern(20_000, tag.0));
    }
}

fn what_waits_while_a_name_changes_comes_with_the_new_one<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        let (second, third) = (turns.tag(), turns.tag());
        let before = turns.told(tag).to_vec();
        peer.write(b"for the second");
        turns.driver.rename(id, second);
        turns.until_received(second, 14);
        assert_eq!(turns.received(second), b"for the second");
        turns.driver.pause(id);
        turns.settle();
        peer.write(b"for the third");
        turns.settle();
        turns.driver.rename(id, third);
        turns.driver.resume(id);
        turns.until_received(third, 13);
        peer.finish();
        turns.until_told(third, Told::Ended);
        assert_eq!(turns.received(third), b"for the third");
        assert_eq!((turns.told(tag), turns.ends(second)), (&before[..], vec![]), "by a name of before");
    }
}
