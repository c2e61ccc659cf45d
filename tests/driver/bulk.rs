//! Bytes that come in large runs: whole, in order and with their end, and without holding up other connections.

use std::collections::HashMap;
use std::time::Duration;

use warmfront::driver::{Completion, Driver, Segment, SocketId, Tag};
use warmfront::limits::RECEIVE_BYTES;

use crate::peer::{End, Peer, pattern};
use crate::turns::{Told, Turns};

on_both_drivers! {
    a_run_arrives_whole_through_pauses
    an_end_right_behind_a_run_is_told_behind_it
    a_reset_right_behind_a_run_is_told_behind_it
    small_pieces_and_runs_take_turns
    a_connection_is_quiet_between_its_runs
    many_runs_do_not_hold_up_a_small_piece
    a_large_piece_goes_between_small_ones
    a_run_may_go_on_in_a_splice
    a_run_may_be_closed_at_any_piece
    who_is_full_is_told_before_the_end_of_what_filled_it
}

/// Writes all of it while turns pass.
fn run<D: Driver>(turns: &mut Turns<D>, tag: Tag, peer: &mut Peer, bytes: &[u8]) {
    let (before, mut written) = (turns.received(tag).len(), 0);
    turns.until("a run", |turns| {
        written += peer.write_some(&bytes[written..]);
        turns.received(tag).len() - before == bytes.len()
    });
}

/// The connection is paused with every piece, for none, one, or more turns; now and then on and off within one.
fn a_run_arrives_whole_through_pauses<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        let bytes = pattern(3 << 20, tag.0);
        let (mut written, mut turn, mut pieces) = (0, 0, 0);
        while turns.received(tag).len() < bytes.len() {
            written += peer.write_some(&bytes[written..]);
            let before = turns.received(tag).len();
            let paused = turn % 4 > 0;
            turns.turn_of(Duration::from_millis(1), |driver, completion| {
                if let Completion::Received(..) = completion {
                    driver.pause(id);
                    pieces += 1;
                    if pieces % 3 == 0 {
                        driver.resume(id);
                        driver.pause(id);
                    }
                }
            });
            assert!(turns.received(tag).len() - before <= RECEIVE_BYTES, "read although paused");
            turn += 1;
            if !paused {
                turns.driver.resume(id);
            }
            assert!(turn < 100_000, "{} bytes of {} came", turns.received(tag).len(), bytes.len());
        }
        assert!(turns.received(tag) == bytes);
    }
}

/// Runs that end with a full buffer, before it and after it.
fn an_end_right_behind_a_run_is_told_behind_it<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for len in [RECEIVE_BYTES - 1, RECEIVE_BYTES, RECEIVE_BYTES + 1, 8 * RECEIVE_BYTES, 600_000] {
        for hurried in [false, true] {
            for (id, tag, mut peer) in turns.two() {
                let bytes = pattern(len, tag.0);
                turns.driver.pause(id);
                turns.settle();
                let written = peer.write_some(&bytes);
                peer.finish();
                if !hurried {
                    turns.settle();
                }
                turns.driver.resume(id);
                turns.until_told(tag, Told::Ended);
                assert!(turns.received(tag) == &bytes[..written]);
                turns.settle();
                assert_eq!(turns.told(tag).last(), Some(&Told::Ended));
                turns.driver.send(id, &[Segment::Bytes(b"thanks")]);
                turns.driver.close(id);
                assert_eq!((turns.end_of(&mut peer), &*peer.got), (End::Fin, &b"thanks"[..]));
            }
        }
    }
}

fn a_reset_right_behind_a_run_is_told_behind_it<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for begun in 0..4 {
        for (id, tag, mut peer) in turns.two() {
            let bytes = pattern(1 << 20, tag.0);
            let mut written = peer.write_some(&bytes);
            // So many pieces are under way when it breaks.
            for _ in 0..begun {
                turns.turn_of(Duration::from_millis(1), |_, _| {});
                written += peer.write_some(&bytes[written..]);
            }
            peer.reset();
            turns.until_told(tag, Told::Failed);
            turns.settle();
            assert_eq!(turns.told(tag).last(), Some(&Told::Failed));
            let received = turns.received(tag);
            assert!(bytes[..written].starts_with(received), "{} bytes are not those", received.len());
            turns.driver.close(id);
        }
    }
}

/// A connection changes the way in which it is received from, and changes back.
fn small_pieces_and_runs_take_turns<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (_, tag, mut peer) in turns.two() {
        let mut expected = Vec::new();
        for round in 0..4 {
            for at in 0..12 {
                let bytes = pattern(300, round * 100 + at);
                run(&mut turns, tag, &mut peer, &bytes);
                expected.extend_from_slice(&bytes);
            }
            let before = turns.told(tag).len();
            let bytes = pattern(2 << 20, round);
            run(&mut turns, tag, &mut peer, &bytes);
            expected.extend_from_slice(&bytes);
            assert!(turns.received(tag) == expected);
            let large = |told: &&Told| matches!(told, Told::Received(len) if *len > 8_000);
            assert!(turns.told(tag)[before..].iter().any(|told| large(&told)), "a run comes in large pieces");
        }
        peer.finish();
        turns.until_told(tag, Told::Ended);
        assert!(turns.received(tag) == expected);
    }
}

fn a_connection_is_quiet_between_its_runs<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        for round in 0..3 {
            run(&mut turns, tag, &mut peer, &pattern(1 << 20, round));
            turns.settle();
            assert!(turns.driver.is_quiet(id), "everything was handed out");
            turns.driver.pause(id);
            turns.settle();
            let before = turns.received(tag).len();
            peer.write(&pattern(100, round));
            turns.settle();
            assert!(!turns.driver.is_quiet(id), "bytes came while it was paused");
            turns.driver.resume(id);
            assert!(!turns.driver.is_quiet(id), "they were not handed out yet");
            turns.until_received(tag, before + 100);
        }
    }
}

/// All connections but one have more to read than a turn may read.
fn many_runs_do_not_hold_up_a_small_piece<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let (_, small, mut peer) = turns.accept();
    let mut others: Vec<(SocketId, Tag, Peer)> = (0..20).map(|_| turns.accept()).collect();
    let bytes = pattern(1 << 20, 1);
    for round in 1..=30 {
        others.iter_mut().for_each(|(.., other)| _ = other.write_some(&bytes));
        peer.write(b"small");
        let before: HashMap<u64, usize> =
            others.iter().map(|(_, tag, _)| (tag.0, turns.received(*tag).len())).collect();
        let mut passed = 0;
        while turns.received(small).len() < round * 5 {
            turns.turn_of(Duration::from_millis(1), |_, _| {});
            passed += 1;
            for (_, tag, _) in &others {
                let came = turns.received(*tag).len() - before[&tag.0];
                assert!(came <= passed * RECEIVE_BYTES, "{came} bytes in {passed} turns");
            }
            // One turn, on a machine that is not late.
            assert!(passed < 20, "a small piece waits for the runs of others");
        }
    }
    // All of the others arrive as well.
    let ended: Vec<usize> = others.iter().map(|(_, tag, _)| turns.received(*tag).len()).collect();
    assert!(ended.iter().all(|len| *len > RECEIVE_BYTES), "{ended:?}");
}

/// Bytes gathered before it, and bytes sent after it in the same turn, keep their places.
fn a_large_piece_goes_between_small_ones<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for slow in [false, true] {
        let [(from, source, mut writer), (to, sink, mut reader)] = turns.two();
        let bytes = pattern(if slow { 12 << 20 } else { 1 << 20 }, 5);
        let (mut expected, mut written) = (Vec::new(), 0);
        let mut react = |driver: &mut D, completion| match completion {
            Completion::Received(tag, lease) if tag == source => {
                let len = lease.len as usize;
                expected.extend_from_slice(b"[");
                expected.extend_from_slice(driver.bytes(lease));
                expected.extend_from_slice(b"]");
                driver.send(to, &[Segment::Bytes(b"[")]);
                driver.send(to, &[Segment::Leased(lease, 0..len / 4), Segment::Leased(lease, len / 4..len)]);
                driver.send(to, &[Segment::Bytes(b"]")]);
            }
            Completion::Full(tag) if tag == sink => driver.pause(from),
            Completion::Drained(tag) if tag == sink => driver.resume(from),
            _ => {}
        };
        turns.until_with("all of it", &mut react, |turns| {
            written += writer.write_some(&bytes[written..]);
            reader.read_up_to(if slow { 200_000 } else { usize::MAX });
            turns.received(source).len() == bytes.len()
        });
        turns.until_got(&mut reader, expected.len());
        assert!(reader.got == expected);
    }
}

/// The splice begins while a piece is held, with the next ones already there.
fn a_run_may_go_on_in_a_splice<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (from, source, mut writer) in turns.two() {
        let (to, sink, mut reader) = turns.accept();
        let bytes = pattern(3 << 20, 8);
        let (mut written, mut spliced) = (0, false);
        let react = |driver: &mut D, completion| match completion {
            Completion::Received(tag, lease) if tag == source => {
                driver.send(to, &[Segment::Leased(lease, 0..lease.len as usize)]);
                if !std::mem::replace(&mut spliced, true) {
                    assert!(driver.splice(from, to, (2 << 20) - u64::from(lease.len)));
                }
            }
            Completion::Full(tag) if tag == sink => driver.pause(from),
            Completion::Drained(tag) if tag == sink => driver.resume(from),
            _ => {}
        };
        turns.until_with("all of it", react, |_| {
            written += writer.write_some(&bytes[written..]);
            reader.read();
            reader.got.len() >= bytes.len()
        });
        assert!(reader.got == bytes);
        assert!(turns.told(source).iter().any(|told| matches!(told, Told::Spliced(_))));
        // The connection is received from again as before.
        run(&mut turns, source, &mut writer, b"behind it");
    }
}

fn a_run_may_be_closed_at_any_piece<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for last in 1..6 {
        for (id, tag, mut peer) in turns.two() {
            let (mut pieces, mut late) = (0, 0);
            let react = |driver: &mut D, completion| {
                if let Completion::Received(..) = completion {
                    pieces += 1;
                    late += usize::from(pieces > last);
                    if pieces == last {
                        driver.close(id);
                    }
                }
            };
            let bytes = pattern(1 << 20, 2);
            let mut written = 0;
            turns.until_with("the last piece", react, |turns| {
                written += peer.write_some(&bytes[written..]);
                turns.told(tag).iter().filter(|told| matches!(told, Told::Received(_))).count() >= last
            });
            turns.settle();
            assert_eq!(late, 0, "told of bytes behind the close");
            turns.end_of(&mut peer);
        }
    }
}

/// Sends to a peer that does not read until its kernel takes no more, or has `most` bytes; returns how many it took.
fn fill<D: Driver>(turns: &mut Turns<D>, id: SocketId, tag: Tag, most: usize) -> usize {
    let bytes = pattern(RECEIVE_BYTES, 3);
    let mut taken = 0;
    while taken < most {
        let piece = bytes.len().min(most - taken);
        let took = turns.driver.offer(id, &bytes[..piece]);
        taken += took;
        if took < piece {
            let before = turns.told(tag).len();
            turns.settle();
            if turns.told(tag).len() == before {
                break;
            }
        }
    }
    taken
}

/// A side's last bytes, followed by its FIN, are more than the other side's kernel takes.
fn who_is_full_is_told_before_the_end_of_what_filled_it<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let (id, tag, _peer) = turns.connect();
    let room = fill(&mut turns, id, tag, usize::MAX);
    let mut full = 0;
    for step in 1..=6 {
        let [(from, source, mut writer), (to, sink, _reader)] = turns.two();
        turns.driver.pause(from);
        turns.settle();
        // A read that fills its buffer, so that the next one is not waited for.
        assert_eq!(writer.write_some(&pattern(RECEIVE_BYTES, 2)), RECEIVE_BYTES);
        writer.finish();
        turns.settle();
        fill(&mut turns, to, sink, room - step * 20_000);
        turns.settle();
        turns.driver.resume(from);
        let mut seen = Vec::new();
        let react = |driver: &mut D, completion| match completion {
            Completion::Received(tag, lease) if tag == source => {
                let waits = driver.send(to, &[Segment::Leased(lease, 0..lease.len as usize)]) > 0;
                seen.extend(waits.then_some(Told::Full));
            }
            Completion::Full(tag) if tag == sink => seen.push(Told::Full),
            Completion::Ended(tag) if tag == source => seen.push(Told::Ended),
            _ => {}
        };
        turns.until_with("an end", react, |turns| turns.told(source).contains(&Told::Ended));
        let later = turns.told(sink).len();
        turns.settle();
        seen.extend(turns.told(sink)[later..].iter().filter(|told| **told == Told::Full));
        if seen.contains(&Told::Full) {
            assert_eq!(seen, [Told::Full, Told::Ended]);
            full += 1;
        }
    }
    assert!(full > 0, "there was room each time");
}
