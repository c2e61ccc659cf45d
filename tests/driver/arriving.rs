//! Connections that come, and connections that are made.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use warmfront::driver::{Completion, Driver, Segment, socket};

use crate::peer::{End, Peer};
use crate::turns::{PATIENCE, Told, Turns};

on_both_drivers! {
    bytes_go_both_ways_until_each_side_ends
    a_refused_connect_fails_once
    nothing_is_read_before_adoption
    who_connected_is_told
    arrivals_at_once_take_few_turns
    nobody_is_accepted_while_nobody_is_wanted
    who_is_accepted_last_ends_the_accepting
    a_closed_listener_refuses
    who_comes_behind_the_last_is_refused
    a_connection_that_cannot_be_watched_fails
    a_listener_that_takes_no_more_costs_no_turns
    idle_connections_cost_no_turn
    a_wait_of_no_length_brings_what_is_there
    a_bell_is_heard_each_time
}

fn bytes_go_both_ways_until_each_side_ends<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        peer.write(b"ping");
        turns.until_received(tag, 4);
        assert_eq!(turns.driver.send(id, &[Segment::Bytes(b"pong")]), 0);
        turns.until_got(&mut peer, 4);
        peer.write(b"last");
        peer.finish();
        turns.until_told(tag, Told::Ended);
        turns.driver.send(id, &[Segment::Bytes(b"words")]);
        turns.driver.finish(id);
        assert_eq!(turns.end_of(&mut peer), End::Fin);
        turns.settle();
        assert_eq!((turns.received(tag), &*peer.got), (&b"pinglast"[..], &b"pongwords"[..]));
        let ends = turns.ends(tag);
        assert!(ends == [Told::Ended] || ends == [Told::Connected, Told::Ended], "{ends:?}");
        turns.driver.close(id);
    }
}

fn a_refused_connect_fails_once<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let address = "127.0.0.1:1".parse().unwrap();
    let tag = turns.tag();
    let id = turns.driver.connect(address, tag).unwrap();
    turns.until_told(tag, Told::Failed);
    // The socket is not closed yet: it must neither come to life meanwhile nor fail again.
    turns.settle();
    assert_eq!(turns.told(tag), [Told::Failed]);
    assert!(!turns.driver.is_quiet(id));
    turns.driver.close(id);
    turns.settle();
    assert_eq!(turns.told(tag), [Told::Failed]);
}

fn nothing_is_read_before_adoption<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let mut peer = Peer::connect(turns.address);
    peer.write(b"early");
    peer.finish();
    turns.until("an accept", |turns| !turns.fresh.is_empty());
    turns.settle();
    let (id, tag) = (turns.fresh.pop_front().unwrap(), turns.tag());
    turns.driver.adopt(id, tag);
    turns.until_told(tag, Told::Ended);
    assert_eq!(turns.received(tag), b"early");
}

fn who_connected_is_told<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let stream = TcpStream::connect(turns.address).unwrap();
    let mut peers = Vec::new();
    let react = |_: &mut D, completion| {
        if let Completion::Accepted { peer, .. } = completion {
            peers.push(peer);
        }
    };
    turns.until_with("an accept", react, |turns| !turns.fresh.is_empty());
    assert_eq!(peers, [stream.local_addr().unwrap()]);
}

/// With one arrival a turn the last would wait for the work of as many turns.
fn arrivals_at_once_take_few_turns<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let _peers: Vec<Peer> = (0..60).map(|_| Peer::connect(turns.address)).collect();
    let mut taken = 0;
    turns.until("sixty", |turns| {
        taken += 1;
        turns.fresh.len() == 60
    });
    assert!(taken < 20, "{taken} turns");
}

fn nobody_is_accepted_while_nobody_is_wanted<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let (_, first, mut peer) = turns.accept();
    turns.driver.accept_connections(false);
    // Some connections come before the kernel knows of the change, some after.
    let mut waiting: Vec<Peer> = (0..4).map(|_| Peer::connect(turns.address)).collect();
    turns.settle();
    waiting.extend((0..4).map(|_| Peer::connect(turns.address)));
    turns.settle();
    assert!(turns.fresh.is_empty(), "accepted although not wanted");
    peer.write(b"served meanwhile");
    turns.until_received(first, 16);
    waiting.iter_mut().for_each(|peer| peer.write(b"hello"));
    turns.driver.accept_connections(true);
    turns.until("all eight", |turns| turns.fresh.len() == 8);
    for _ in 0..8 {
        let (id, tag) = (turns.fresh.pop_front().unwrap(), turns.tag());
        turns.driver.adopt(id, tag);
        turns.until_received(tag, 5);
    }
    turns.settle();
    assert!(turns.fresh.is_empty());
}

/// A shard does this at its last free place: it stops accepting while connections are still being told.
fn who_is_accepted_last_ends_the_accepting<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let _peers: Vec<Peer> = (0..20).map(|_| Peer::connect(turns.address)).collect();
    for most in 1..=20 {
        turns.driver.accept_connections(true);
        let mut accepted = turns.fresh.len();
        let react = |driver: &mut D, completion| {
            if matches!(completion, Completion::Accepted { .. }) {
                accepted += 1;
                if accepted == most {
                    driver.accept_connections(false);
                }
            }
        };
        turns.until_with("one more", react, |turns| turns.fresh.len() >= most);
        turns.turn();
        assert_eq!(turns.fresh.len(), most, "more than there were places");
    }
}

fn a_closed_listener_refuses<D: Driver>(driver: D) {
    // An address of its own: a port of 127.0.0.1 that is free again may be taken by another test.
    let own = SocketAddr::from(([127, 0, 2, D::NAME.as_bytes()[0]], 0));
    let mut turns = Turns::at(driver, own);
    let (_, tag, mut peer) = turns.accept();
    turns.driver.stop_listening();
    turns.settle();
    assert!(TcpStream::connect(turns.address).is_err());
    // The listener's connections are not touched, and its address is free.
    peer.write(b"still here");
    turns.until_received(tag, 10);
    let again = socket::listener(turns.address).unwrap();
    turns.driver.listen(again).unwrap();
    turns.accept();
}

/// At once, not a turn later: connections that the kernel took meanwhile would be reset. Also if many connections are
/// closed in the same turn, which the driver does first.
fn who_comes_behind_the_last_is_refused<D: Driver>(driver: D) {
    // An address of its own, as above.
    let own = SocketAddr::from(([127, 0, 3, D::NAME.as_bytes()[0]], 0));
    let mut turns = Turns::at(driver, own);
    let idle: Vec<_> = (0..100).map(|_| turns.accept()).collect();
    turns.settle();
    let mut peers: Vec<Peer> = (0..5).map(|_| Peer::connect(turns.address)).collect();
    idle.iter().for_each(|(id, ..)| turns.driver.close(*id));
    let (mut tags, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    // A connection may come into the listener's queue a moment after its connect.
    while tags.len() < peers.len() {
        assert!(Instant::now() < deadline, "{} of those who wait", tags.len());
        if let Some((id, _)) = turns.driver.accept_last() {
            tags.push(turns.tag());
            turns.driver.adopt(id, tags[tags.len() - 1]);
        }
    }
    assert!(turns.driver.accept_last().is_none());
    turns.driver.stop_listening();
    assert!(TcpStream::connect(turns.address).is_err(), "whom nobody will accept");
    peers.iter_mut().for_each(|peer| peer.write(b"hello"));
    tags.iter().for_each(|tag| turns.until_received(*tag, 5));
    for (.., mut peer) in idle {
        assert_eq!(turns.end_of(&mut peer), End::Fin);
    }
}

/// Stands for a kernel without room to watch one more: the shard keeps a place for the connection, and has to hear of
/// it. A file cannot be watched.
fn a_connection_that_cannot_be_watched_fails<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let (id, tag) = (turns.driver.take(file.into()).unwrap(), turns.tag());
    turns.driver.adopt(id, tag);
    turns.until_told(tag, Told::Failed);
    turns.settle();
    assert_eq!(turns.told(tag), [Told::Failed]);
    turns.driver.close(id);
    assert!(turns.driver.nothing_waits(id), "whoever asks that before a close would never close it");
}

/// A listener may be ended by others (`ss -K`), or a security module forbids accepting: each try fails like the last
/// one.
fn a_listener_that_takes_no_more_costs_no_turns<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let listener = socket::listener(([127, 0, 0, 1], 0).into()).unwrap();
    let same = listener.try_clone().unwrap();
    turns.driver.listen(listener).unwrap();
    turns.settle();
    rustix::net::shutdown(&same, rustix::net::Shutdown::Read).unwrap();
    let (begin, mut waits) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_millis(500) {
        turns.turn_of(Duration::from_millis(500), |_, _| {});
        waits += 1;
    }
    assert!(waits < 40, "{waits} turns in half a second for nothing");
    assert!(turns.driver.accept_stalls() > 1, "it is tried again, and counted");
    // Other listeners still take their connections.
    turns.accept();
}

/// A driver that wakes although nothing happened would spin on ten thousand idle connections.
fn idle_connections_cost_no_turn<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let lines: Vec<_> = (0..3).flat_map(|_| turns.two()).collect();
    turns.driver.pause(lines[0].0);
    turns.driver.pause(lines[1].0);
    lines[3].2.finish();
    turns.until_told(lines[3].1, Told::Ended);
    turns.settle();
    // A few wake-ups do not matter; endless ones would fill the time.
    let (begin, mut waits) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_millis(300) {
        assert_eq!(turns.turn_of(Duration::from_millis(300), |_, _| {}), 0);
        waits += 1;
    }
    assert!(waits < 8, "{waits} turns for nothing");
}

fn a_wait_of_no_length_brings_what_is_there<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for (id, tag, mut peer) in turns.two() {
        turns.settle();
        peer.write(b"now");
        let deadline = Instant::now() + PATIENCE;
        while turns.received(tag).is_empty() {
            assert!(Instant::now() < deadline, "it is never looked for");
            turns.turn_of(Duration::ZERO, |_, _| {});
        }
        turns.driver.send(id, &[Segment::Bytes(b"then")]);
        turns.turn_of(Duration::ZERO, |_, _| {});
        // The ring is on its way: no turn is needed for it.
        let deadline = Instant::now() + PATIENCE;
        while peer.got.len() < 4 && Instant::now() < deadline {
            peer.read();
        }
        assert_eq!(peer.got, b"then");
    }
}

/// Other shards and control ring it; no completion tells of it.
fn a_bell_is_heard_each_time<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    turns.driver.hear(bell.try_clone().unwrap()).unwrap();
    turns.settle();
    for _ in 0..3 {
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        let begin = Instant::now();
        assert_eq!(turns.turn_of(PATIENCE, |_, _| {}), 0);
        assert!(begin.elapsed() < PATIENCE, "nobody hears it");
    }
    let (begin, mut waits) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_millis(300) {
        turns.turn_of(Duration::from_millis(300), |_, _| {});
        waits += 1;
    }
    assert!(waits < 8, "{waits} turns for one that is silent");
}
