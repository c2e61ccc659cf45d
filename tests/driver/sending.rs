//! Bytes arrive whole and in order, however they were given and however slowly they are read.

use std::time::{Duration, Instant};

use warmfront::driver::{Completion, Driver, Lease, Segment, SocketId, Tag};

use crate::peer::{End, Peer, pattern};
use crate::random::Random;
use crate::turns::{Told, Turns};

on_both_drivers! {
    more_than_the_kernel_takes_arrives_once_it_is_read
    small_sends_of_many_turns_arrive_once_they_are_read
    sends_of_one_turn_keep_their_order
    one_lease_goes_to_many
    leases_sent_on_to_slow_readers_arrive_unchanged
    what_is_sent_from_where_it_came_keeps_no_buffer
    parked_bytes_are_sent_on
    two_leases_of_one_turn_are_told_apart
    who_sends_no_more_and_does_not_read_costs_no_turns
    an_offer_that_was_short_is_followed_by_room
    an_offer_goes_behind_what_was_sent
    nothing_at_all_is_sent_at_once
    what_was_acknowledged_is_told
}

/// Sends `bytes`, and returns whether some wait, as far as is known.
fn send<D: Driver>(turns: &mut Turns<D>, id: SocketId, bytes: &[u8]) -> bool {
    turns.driver.send(id, &[Segment::Bytes(bytes)]) > 0
}

fn more_than_the_kernel_takes_arrives_once_it_is_read<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let bytes = pattern(12 << 20, 2);
    for (id, tag, mut peer) in turns.two() {
        // In one send, and in several of one turn.
        for piece in [bytes.len(), 4 << 20, 100_000] {
            let before = turns.told(tag).len();
            (peer.got, peer.end) = (Vec::new(), None);
            let waits = bytes.chunks(piece).map(|piece| send(&mut turns, id, piece)).last().unwrap();
            turns.settle();
            assert!(waits || turns.told(tag)[before..].contains(&Told::Full));
            assert!(!turns.told(tag)[before..].contains(&Told::Drained), "room although nothing was read");
            turns.until("room", |turns| {
                peer.read_up_to(300_000);
                turns.told(tag)[before..].contains(&Told::Drained)
            });
            // The kernel has all bytes: no turn is needed for the rest.
            let late = std::time::Instant::now() + crate::turns::PATIENCE;
            while peer.got.len() < bytes.len() && std::time::Instant::now() < late {
                peer.read();
            }
            assert!(
                peer.got == bytes,
                "{} of {} bytes after the driver said that all are taken",
                peer.got.len(),
                bytes.len()
            );
            turns.settle();
            let told = &turns.told(tag)[before..];
            assert_eq!(told.iter().filter(|told| **told == Told::Drained).count(), 1, "{told:?}");
        }
    }
}

fn small_sends_of_many_turns_arrive_once_they_are_read<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let bytes = pattern(9 << 20, 4);
    for (id, tag, mut peer) in turns.two() {
        for piece in bytes.chunks(16_000) {
            send(&mut turns, id, &piece[..7_000.min(piece.len())]);
            send(&mut turns, id, &piece[7_000.min(piece.len())..]);
            turns.turn_of(std::time::Duration::ZERO, |_, _| {});
        }
        turns.until_got(&mut peer, bytes.len());
        assert!(peer.got == bytes);
        turns.until_told(tag, Told::Drained);
    }
}

/// Sends random segments, some of them of `lease`, and appends their bytes to `sent`.
fn draw<D: Driver>(driver: &mut D, to: SocketId, lease: Option<Lease>, random: &mut Random, sent: &mut Vec<u8>) {
    let lengths = [0, 1, 40, 900, 1_500, 5_000, 9_000, 40_000];
    let own = pattern(40_000, random.next());
    let mut segments = Vec::new();
    for _ in 0..1 + random.below(8) {
        match lease.filter(|_| random.below(3) > 0) {
            Some(lease) => {
                let cuts = random.cuts(lease.len as usize, 2);
                sent.extend_from_slice(&driver.bytes(lease)[cuts[0]..cuts[1]]);
                segments.push(Segment::Leased(lease, cuts[0]..cuts[1]));
            }
            None => {
                let bytes = &own[..lengths[random.below(lengths.len())]];
                sent.extend_from_slice(bytes);
                segments.push(Segment::Bytes(bytes));
            }
        }
    }
    driver.send(to, &segments);
}

/// Up to 40 sends of up to 8 segments in one turn: more pieces and bytes than one turn gathers.
fn sends_of_one_turn_keep_their_order<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut random = Random::new(11);
    let [(source, from, mut writer), (_, second, mut other)] = turns.two();
    let mut sinks: Vec<_> = (0..2).flat_map(|_| turns.two()).collect();
    let mut sent = vec![Vec::new(); sinks.len()];
    for round in 0..60 {
        writer.write(&pattern(1 + random.below(30_000), round));
        other.write(&pattern(1 + random.below(3_000), round));
        let before = (turns.received(from).len(), turns.received(second).len());
        let react = |driver: &mut D, completion| {
            let Completion::Received(_, lease) = completion else { return };
            for _ in 0..random.below(40) {
                let to = random.below(sinks.len());
                let lease = Some(lease).filter(|_| random.below(4) > 0);
                draw(driver, sinks[to].0, lease, &mut random, &mut sent[to]);
            }
        };
        turns.until_with("both writes", react, |turns| {
            turns.received(from).len() > before.0 && turns.received(second).len() > before.1
        });
        for ((.., peer), sent) in sinks.iter_mut().zip(&sent) {
            turns.until_got(peer, sent.len());
            assert!(peer.got == *sent, "round {round}");
        }
    }
    turns.driver.close(source);
}

fn one_lease_goes_to_many<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut sinks: Vec<_> = (0..6).flat_map(|_| turns.two()).collect();
    for (id, tag, mut peer) in turns.two() {
        let ids: Vec<SocketId> = sinks.iter().map(|(to, ..)| *to).chain([id]).collect();
        let bytes = pattern(60_000, tag.0);
        peer.write(&bytes);
        let react = |driver: &mut D, completion| {
            if let Completion::Received(_, lease) = completion {
                let all = 0..lease.len as usize;
                ids.iter().for_each(|to| _ = driver.send(*to, &[Segment::Leased(lease, all.clone())]));
            }
        };
        turns.until_with("all bytes", react, |turns| turns.received(tag).len() == bytes.len());
        turns.until_got(&mut peer, bytes.len());
        assert!(peer.got == bytes);
        for (_, _, sink) in &mut sinks {
            turns.until_got(sink, bytes.len());
            assert!(std::mem::take(&mut sink.got) == bytes);
        }
    }
}

/// Lines of two connections each: what comes on one goes out on the other, while readers are slow.
fn leases_sent_on_to_slow_readers_arrive_unchanged<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut lines: Vec<_> = (0..12).map(|_| turns.two()).collect();
    let pairs: Vec<(Tag, SocketId)> = lines.iter().flat_map(|[one, two]| [(one.1, two.0), (two.1, one.0)]).collect();
    let bytes = pattern(1_500_000, 9);
    let mut random = Random::new(5);
    let mut written = vec![[0; 2]; lines.len()];
    let react = |driver: &mut D, completion| {
        if let Completion::Received(tag, lease) = completion {
            let (_, to) = pairs.iter().find(|(from, _)| *from == tag).unwrap();
            let middle = lease.len as usize / 2;
            let halves = [Segment::Leased(lease, 0..middle), Segment::Leased(lease, middle..lease.len as usize)];
            driver.send(*to, &halves);
        }
    };
    turns.until_with("everything", react, |_| {
        for (line, written) in lines.iter_mut().zip(&mut written) {
            for (side, written) in line.iter_mut().zip(written) {
                let end = bytes.len().min(*written + random.below(60_000));
                *written += side.2.write_some(&bytes[*written..end]);
                if random.below(3) == 0 {
                    side.2.read_up_to(random.below(100_000));
                }
            }
        }
        lines.iter().flatten().all(|(.., peer)| peer.got.len() == bytes.len())
    });
    assert!(lines.iter().flatten().all(|(.., peer)| peer.got == bytes));
}

/// Each piece is small enough for the kernel's buffers, and too long to be copied; there are more pieces than buffers.
fn what_is_sent_from_where_it_came_keeps_no_buffer<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let [(to, _, mut sink), (_, source, mut writer)] = turns.two();
    let piece = pattern(1_500, 1);
    let mut react = |driver: &mut D, completion| {
        if let Completion::Received(_, lease) = completion {
            driver.send(to, &[Segment::Leased(lease, 0..lease.len as usize)]);
        }
    };
    for sent in 1..=1_200 {
        writer.write(&piece);
        turns.until_with("a piece", &mut react, |turns| turns.received(source).len() == sent * piece.len());
        sink.read();
    }
    turns.until_got(&mut sink, 1_200 * piece.len());
    assert_eq!((turns.driver.buffers_out(), sink.got), (0, piece.repeat(1_200)));
}

fn parked_bytes_are_sent_on<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let [one, other] = turns.two();
    let [third, fourth] = turns.two();
    for [(from, first, mut writer), (to, second, mut reader)] in [[one, other], [fourth, third]] {
        let mut expected = Vec::new();
        // After the small piece the driver receives from the connection as one of small pieces.
        for (round, len) in (0..20).flat_map(|round| [(round, 100), (round, 30_000)]) {
            let bytes = pattern(len, round);
            expected.extend_from_slice(&bytes);
            // The kernel has promised these bytes when the pause comes.
            writer.write(&bytes);
            reader.write(b"x");
            let mut paused = false;
            let begin = turns.received(first).len();
            let forward = |driver: &mut D, completion| match completion {
                Completion::Received(tag, lease) if tag == first => {
                    let len = lease.len as usize;
                    driver.send(to, &[Segment::Bytes(b""), Segment::Leased(lease, 0..len / 3)]);
                    driver.send(to, &[Segment::Leased(lease, len / 3..len)]);
                    driver.pause(from);
                }
                Completion::Received(tag, _) if tag == second && !paused => {
                    paused = true;
                    driver.pause(from);
                }
                _ => {}
            };
            let mut turn = 0;
            turns.until_with("all of a round", forward, |turns| {
                turn += 1;
                if turn % 3 == 0 {
                    turns.driver.resume(from);
                }
                turns.received(first).len() == begin + bytes.len()
            });
        }
        turns.until_got(&mut reader, expected.len());
        assert!(reader.got == expected);
    }
}

fn two_leases_of_one_turn_are_told_apart<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut lines: Vec<_> = (0..8).flat_map(|_| turns.two()).collect();
    for round in 0..20 {
        for (_, tag, peer) in &mut lines {
            peer.write(&pattern(2_000, tag.0 + round));
        }
        let mut leases = Vec::new();
        let react = |driver: &mut D, completion| {
            if let Completion::Received(tag, lease) = completion {
                leases.push((tag, driver.bytes(lease).to_vec()));
            }
        };
        turns.until_with("all of a round", react, |turns| {
            lines.iter().all(|(_, tag, _)| turns.received(*tag).len() == 2_000 * (round as usize + 1))
        });
        for (_, tag, _) in &lines {
            let own = leases.iter().filter(|(of, _)| of == tag).flat_map(|(_, bytes)| bytes.clone());
            assert!(own.collect::<Vec<u8>>() == pattern(2_000, tag.0 + round));
        }
    }
}

fn an_offer_that_was_short_is_followed_by_room<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let bytes = pattern(12 << 20, 6);
    for (id, tag, mut peer) in turns.two() {
        let mut taken = 0;
        let mut drained = 0;
        while taken < bytes.len() {
            taken += turns.driver.offer(id, &bytes[taken..bytes.len().min(taken + 3_000_000)]);
            let whole = turns.driver.offer(id, &[]) == 0;
            assert!(whole);
            if taken < bytes.len() && turns.driver.offer(id, &bytes[taken..=taken]) == 0 {
                turns.until("room", |turns| {
                    peer.read_up_to(1_000_000);
                    let count = turns.told(tag).iter().filter(|told| **told == Told::Drained).count();
                    std::mem::replace(&mut drained, count) < count
                });
            } else if taken < bytes.len() {
                taken += 1;
            }
        }
        turns.until_got(&mut peer, bytes.len());
        assert!(peer.got == bytes && drained > 0, "{drained} times room");
    }
}

fn an_offer_goes_behind_what_was_sent<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let bytes = pattern(6 << 20, 8);
    for (id, tag, mut peer) in turns.two() {
        send(&mut turns, id, b"head ");
        assert_eq!(turns.driver.offer(id, b"body"), 4);
        turns.until_got(&mut peer, 9);
        assert_eq!(peer.got, b"head body");
        // While bytes wait nothing more is taken.
        (0..2).for_each(|_| _ = send(&mut turns, id, &bytes));
        assert_eq!(turns.driver.offer(id, b"tail"), 0);
        let mut more = Peer::connect(turns.address);
        more.write(b"x");
        turns.until_got(&mut peer, 9 + 2 * bytes.len());
        turns.until_told(tag, Told::Drained);
        assert_eq!(turns.driver.offer(id, b"tail"), 4);
        turns.until_got(&mut peer, 9 + 2 * bytes.len() + 4);
        assert!(peer.got.ends_with(b"tail"));
    }
}

fn nothing_at_all_is_sent_at_once<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        assert_eq!(turns.driver.send(id, &[]), 0);
        assert_eq!(turns.driver.send(id, &[Segment::Bytes(b""), Segment::Bytes(b"")]), 0);
        assert_eq!(turns.driver.offer(id, b""), 0);
        turns.settle();
        send(&mut turns, id, b"something");
        turns.driver.finish(id);
        assert_eq!((turns.end_of(&mut peer), &*peer.got), (End::Fin, &b"something"[..]));
        assert!(!turns.told(tag).contains(&Told::Full) && !turns.told(tag).contains(&Told::Failed));
    }
}

fn what_was_acknowledged_is_told<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, _, mut peer) in turns.two() {
        // Of an accepted connection that was sent nothing nothing is known; of one that we made its SYN is.
        let before = turns.driver.acknowledged(id).unwrap_or(0);
        send(&mut turns, id, &[7; 5_000]);
        turns.until_got(&mut peer, 5_000);
        turns.until("an acknowledgement", |turns| turns.driver.acknowledged(id) == Some(before + 5_000));
        turns.driver.close(id);
        assert_eq!(turns.driver.acknowledged(id), None);
    }
}

/// A FIN wakes every wait for room, and stays.
fn who_sends_no_more_and_does_not_read_costs_no_turns<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let bytes = pattern(12 << 20, 2);
    for (id, tag, mut peer) in turns.two() {
        assert!(send(&mut turns, id, &bytes) || turns.turn() < 100);
        peer.finish();
        turns.until_told(tag, Told::Ended);
        turns.settle();
        // Of three turns one may be woken by what the kernel still has to tell; and of three goes one or two may, if it
        // is late with that.
        let go = |turns: &mut Turns<D>| {
            let begun = Instant::now();
            for _ in 0..3 {
                turns.turn_of(Duration::from_millis(100), |_, _| {});
            }
            begun.elapsed()
        };
        let rests = (0..3).any(|_| go(&mut turns) >= Duration::from_millis(190));
        assert!(rests, "three turns of 100 ms take less, time and again");
        let before = turns.told(tag).len();
        turns.until("room", |turns| {
            peer.read_up_to(300_000);
            turns.told(tag)[before..].contains(&Told::Drained)
        });
        turns.until_got(&mut peer, bytes.len());
        assert!(peer.got == bytes);
    }
}
