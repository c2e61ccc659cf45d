//! A driver that is dropped while everything is in flight: it goes soon and wholly, and nothing is written to memory
//! that it has given back.

use std::time::{Duration, Instant};

use warmfront::driver::{Completion, Driver, Segment};

use crate::peer::{Peer, pattern};
use crate::turns::Turns;

alone_on_both_drivers! {
    a_driver_goes_in_the_midst_of_traffic
    a_driver_goes_while_connections_arrive
    a_driver_goes_with_a_lease_and_words_unsaid
}

/// Long enough for a noisy machine, and shorter than a driver takes that gives up waiting for the kernel.
const SOON: Duration = Duration::from_millis(700);

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Plays a scene again if its driver took long to go: other work of the machine may have held it up once or twice. A
/// driver that gives up waiting for the kernel takes long each time.
fn goes_soon(scene: impl Fn() -> Duration) {
    assert!((0..3).any(|_| scene() < SOON), "longer than {SOON:?}, time and again");
}

/// Drops the driver, after which all its descriptors are gone; returns how long that took.
fn dropped<D: Driver>(turns: Turns<D>, before: usize, peers: &mut [Peer]) -> Duration {
    let begin = Instant::now();
    drop(turns);
    let took = begin.elapsed();
    assert_eq!(open_descriptors() - peers.len(), before, "descriptors");
    // Memory that takes the place of its buffers stays as it is, whatever still comes.
    let pieces: Vec<Vec<u8>> =
        [1 << 20, 64 << 10, 16 << 10, 4 << 10, 2 << 10].iter().map(|len| vec![0x5a; *len]).collect();
    for _ in 0..5 {
        for peer in peers.iter_mut() {
            peer.write_some(&[7; 20_000]);
            peer.read_up_to(10_000);
        }
        std::thread::yield_now();
    }
    assert!(pieces.iter().flatten().all(|byte| *byte == 0x5a), "written to after its end");
    took
}

fn a_driver_goes_in_the_midst_of_traffic<D: Driver>(driver: fn() -> D) {
    goes_soon(|| {
        let before = open_descriptors();
        let mut turns = Turns::new(driver());
        let bytes = pattern(3 << 20, 1);
        let mut peers = Vec::new();
        for at in 0..150 {
            for (id, _, peer) in turns.two() {
                match at % 6 {
                    0 => turns.driver.pause(id),
                    1 if at < 60 => _ = turns.driver.send(id, &[Segment::Bytes(&bytes)]),
                    2 => _ = turns.driver.send(id, &[Segment::Bytes(b"gathered")]),
                    3 => turns.driver.close(id),
                    _ => {}
                }
                peers.push(peer);
            }
        }
        peers.iter_mut().for_each(|peer| _ = peer.write_some(&bytes[..30_000]));
        turns.turn();
        peers.iter_mut().for_each(|peer| _ = peer.write_some(&bytes[..30_000]));
        dropped(turns, before, &mut peers)
    });
}

fn a_driver_goes_while_connections_arrive<D: Driver>(driver: fn() -> D) {
    for turn in [false, true] {
        goes_soon(|| {
            let before = open_descriptors();
            let mut turns = Turns::new(driver());
            let mut peers: Vec<Peer> = (0..10).map(|_| Peer::connect(turns.address)).collect();
            if turn {
                // Connections that are accepted and not adopted; accepted too late; and in the queue.
                turns.turn();
                turns.driver.accept_connections(false);
                turns.turn();
                peers.extend((0..10).map(|_| Peer::connect(turns.address)));
                turns.driver.accept_connections(true);
            }
            dropped(turns, before, &mut peers)
        });
    }
}

fn a_driver_goes_with_a_lease_and_words_unsaid<D: Driver>(driver: fn() -> D) {
    goes_soon(|| {
        let before = open_descriptors();
        let mut turns = Turns::new(driver());
        let mut lines: Vec<_> = (0..8).flat_map(|_| turns.two()).collect();
        let to = lines[0].0;
        turns.settle();
        lines.iter_mut().for_each(|(.., peer)| peer.write(&pattern(1_900, 3)));
        turns.driver.wait(Duration::from_secs(1)).unwrap();
        let mut lease = None;
        while lease.is_none() {
            match turns.driver.next() {
                Some(Completion::Received(_, received)) => lease = Some(received),
                Some(_) => {}
                None => turns.driver.wait(Duration::from_secs(1)).unwrap(),
            }
        }
        let lease = lease.unwrap();
        for (id, ..) in &lines[1..] {
            turns.driver.send(*id, &[Segment::Leased(lease, 0..lease.len as usize)]);
            turns.driver.pause(*id);
        }
        turns.driver.finish(to);
        let mut peers: Vec<Peer> = lines.into_iter().map(|(.., peer)| peer).collect();
        let took = dropped(turns, before, &mut peers);
        // Bytes gathered for the end of the turn come whole or not at all.
        for peer in &mut peers[1..] {
            peer.read();
            assert!(peer.got.is_empty() || peer.got == pattern(1_900, 3));
        }
        took
    });
}
