//! Many connections at once, and nothing left over: each test in a process of its own.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use warmfront::driver::{Completion, Driver, Segment, socket};

use crate::peer::{End, Peer, pattern};
use crate::stops::Stops;
use crate::turns::{PATIENCE, Told, Turns};

alone_on_both_drivers! {
    everyone_at_once_loses_nothing
    five_thousand_connections_leave_nothing
    a_flood_leaves_turns_short_and_others_served
    without_descriptors_nobody_spins_and_all_is_well_later
    without_descriptors_a_close_makes_room_for_a_connect
    without_descriptors_a_close_makes_room_for_the_last
    who_has_sent_something_is_known_among_those_who_are_closed
    a_close_costs_the_same_among_many
}

/// Raises this process's limit of descriptors to `wanted`, or as far as allowed; returns the limit.
fn descriptors(wanted: u64) -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = wanted.min(maximum.unwrap_or(u64::MAX));
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap();
    current
}

/// CPU time of this thread so far.
fn ran() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// The smallest ring of the product, for a small limit of locked memory: a turn completes more than its queue holds.
mod on_a_narrow_ring {
    fn alone(name: &str, overflows: impl FnOnce() -> u64) {
        if crate::uring_or_say_why().is_some() {
            let name = format!("{}::{name}", module_path!());
            let body = || assert!(overflows() > 0, "its queue was never full");
            crate::alone::alone(crate::test_name(&name), body);
        }
    }

    #[test]
    fn everyone_at_once_loses_nothing() {
        alone("everyone_at_once_loses_nothing", || super::everyone_at_once(crate::narrow_uring(32, 128)));
    }

    #[test]
    fn who_has_sent_something_is_known_among_those_who_are_closed() {
        alone("who_has_sent_something_is_known_among_those_who_are_closed", || {
            super::some_have_sent_something(crate::narrow_uring(32, 128))
        });
    }
}

fn everyone_at_once_loses_nothing<D: Driver>(driver: fn() -> D) {
    everyone_at_once(driver());
}

/// More connections than the ring has entries, with more bytes than it has buffers. Returns how often completions found
/// their queue full.
fn everyone_at_once<D: Driver>(driver: D) -> u64 {
    let count = 1_500.min((descriptors(4_000) as usize - 100) / 2);
    let mut turns = Turns::new(driver);
    let listener = socket::listener(([127, 0, 0, 1], 0).into()).unwrap();
    let address = socket::bound_address(&listener).unwrap();
    rustix::io::ioctl_fionbio(&listener, false).unwrap();
    let listener = TcpListener::from(listener);
    let accepted = count / 2;
    let mut lines = Vec::new();
    let mut peers: Vec<Peer> = (0..accepted).map(|_| Peer::connect(turns.address)).collect();
    turns.until("all accepts", |turns| turns.fresh.len() == accepted);
    for _ in 0..accepted {
        let (id, tag) = (turns.fresh.pop_front().unwrap(), turns.tag());
        turns.driver.adopt(id, tag);
        lines.push((id, tag));
    }
    for _ in accepted..count {
        let tag = turns.tag();
        lines.push((turns.driver.connect(address, tag).unwrap(), tag));
    }
    peers.extend((accepted..count).map(|_| Peer::accept(&listener)));
    for (_, tag) in &lines[accepted..] {
        turns.until_told(*tag, Told::Connected);
    }
    // All are read from again in one turn, in which each has bytes.
    lines.iter().for_each(|(id, _)| turns.driver.pause(*id));
    turns.settle();
    // Connections come in no order: each far end's first bytes say which it is.
    for (at, peer) in peers.iter_mut().enumerate() {
        peer.write(&(at as u64).to_le_bytes());
        peer.write(&pattern(5_000, at as u64));
    }
    turns.settle();
    lines.iter().for_each(|(id, _)| turns.driver.resume(*id));
    let mut whose = vec![usize::MAX; count];
    for (line, (_, tag)) in lines.iter().enumerate() {
        turns.until_received(*tag, 5_008);
        let received = turns.received(*tag);
        let at = u64::from_le_bytes(*received.first_chunk().unwrap()) as usize;
        assert!(received[8..] == pattern(5_000, at as u64));
        whose[at] = line;
    }
    if D::NAME == "uring" {
        assert!(turns.driver.buffers_out() > 0, "there cannot be a buffer for everyone");
    }
    // An answer to each in one turn: one send, two, or one of two segments.
    for (line, (id, _)) in lines.iter().enumerate() {
        let bytes = pattern(400, line as u64);
        match line % 3 {
            0 => _ = turns.driver.send(*id, &[Segment::Bytes(&bytes)]),
            1 => bytes.chunks(200).for_each(|half| _ = turns.driver.send(*id, &[Segment::Bytes(half)])),
            _ => _ = turns.driver.send(*id, &[Segment::Bytes(&bytes[..7]), Segment::Bytes(&bytes[7..])]),
        }
        if line % 2 == 0 {
            turns.driver.close(*id);
        }
    }
    for (at, mut peer) in peers.into_iter().enumerate() {
        turns.until_got(&mut peer, 400);
        assert!(peer.got == pattern(400, whose[at] as u64));
        if whose[at] % 2 == 0 {
            assert_eq!(turns.end_of(&mut peer), End::Fin);
        } else {
            peer.reset();
        }
    }
    for (_, tag) in lines.iter().skip(1).step_by(2) {
        turns.until_told(*tag, Told::Failed);
    }
    turns.driver.overflows()
}

/// The driver is both ends, so that descriptors and memory are its own.
fn five_thousand_connections_leave_nothing<D: Driver>(driver: fn() -> D) {
    const AT_ONCE: usize = 50;
    descriptors(1_000);
    let mut turns = Turns::new(driver());
    let mut before = (0, 0);
    for round in 0..110 {
        if round == 10 {
            turns.settle();
            before = (open_descriptors(), resident_bytes());
        }
        let address = turns.address;
        let ours: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let tag = turns.tag();
                (turns.driver.connect(address, tag).unwrap(), tag)
            })
            .collect();
        turns.until("all of a round", |turns| turns.fresh.len() == AT_ONCE);
        let theirs: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (id, tag) = (turns.fresh.pop_front().unwrap(), turns.tag());
                turns.driver.adopt(id, tag);
                turns.driver.send(id, &[Segment::Bytes(b"welcome")]);
                (id, tag)
            })
            .collect();
        for (at, (id, tag)) in ours.iter().enumerate() {
            turns.until_received(*tag, 7);
            match at % 4 {
                0 => turns.driver.close(*id),
                1 => turns.driver.abort(*id),
                2 => turns.driver.pause(*id),
                _ => turns.driver.finish(*id),
            }
        }
        turns.turn();
        theirs.iter().for_each(|(id, _)| turns.driver.abort(*id));
        ours.iter().for_each(|(id, _)| turns.driver.close(*id));
        turns.forget();
    }
    turns.settle();
    let after = (open_descriptors(), resident_bytes());
    assert_eq!(after.0, before.0, "descriptors");
    assert!(after.1 < before.1 + (1 << 20), "{before:?} {after:?}");
}

/// Peers that never stop sending, and one that sends little. The best of three tries counts, since the kernel may be
/// late with a ping while turns go on.
fn a_flood_leaves_turns_short_and_others_served<D: Driver>(driver: fn() -> D) {
    let mut longest = Vec::new();
    let is_served = || {
        longest.push(turns_for_a_ping(driver()));
        longest.last() <= Some(&12)
    };
    assert!(
        std::iter::repeat_with(is_served).take(3).any(|is_served| is_served),
        "{longest:?} turns until bytes were seen"
    );
}

/// The most turns that any of fifty pings takes amid a flood.
fn turns_for_a_ping<D: Driver>(driver: D) -> usize {
    let mut turns = Turns::new(driver);
    let floods: Vec<_> = (0..4).flat_map(|_| turns.two()).collect();
    let mut modest = turns.two();
    let over = AtomicBool::new(false);
    let bytes = vec![7; 256 << 10];
    std::thread::scope(|scope| {
        let _stops = Stops(&over);
        scope.spawn(|| {
            let mut peers: Vec<Peer> = floods.into_iter().map(|(.., peer)| peer).collect();
            while !over.load(Ordering::Relaxed) {
                peers.iter_mut().for_each(|peer| _ = peer.write_some(&bytes));
            }
        });
        let (mut most, mut longest, mut all) = (0, 0, 0);
        let mut turn = |turns: &mut Turns<D>| {
            let mut handed_out = 0;
            turns.turn_of(Duration::from_millis(50), |_, completion| {
                if let Completion::Received(_, lease) = completion {
                    handed_out += lease.len as usize;
                }
            });
            turns.forget_bytes(1 << 20);
            most = most.max(handed_out);
            all += handed_out;
            all
        };
        let deadline = Instant::now() + PATIENCE;
        while turn(&mut turns) < 16 << 20 {
            assert!(Instant::now() < deadline, "the flood does not begin");
        }
        for round in 1..=50 {
            modest.iter_mut().for_each(|(.., peer)| peer.write(b"ping"));
            let (mut waited, deadline) = (0, Instant::now() + PATIENCE);
            while modest.iter().any(|(_, tag, _)| turns.received(*tag).len() < 4 * round) {
                assert!(Instant::now() < deadline, "a ping is not seen");
                turn(&mut turns);
                waited += 1;
            }
            longest = longest.max(waited);
        }
        println!("at most {most} bytes a turn, {longest} turns for a ping, {all} bytes in all");
        assert!(most <= 8 << 20, "{most} bytes in one turn");
        longest
    })
}

/// Some connections are accepted, then no descriptor is left: the others wait, and cost nothing.
fn without_descriptors_nobody_spins_and_all_is_well_later<D: Driver>(driver: fn() -> D) {
    const PEERS: usize = 40;
    let mut turns = Turns::new(driver());
    let mut peers: Vec<Peer> = (0..PEERS).map(|_| Peer::connect(turns.address)).collect();
    // The next descriptor has the lowest number that is free.
    let next = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap()) as u64;
    descriptors(next + PEERS as u64);
    turns.until("some accepts", |turns| turns.fresh.len() > 5);
    turns.settle();
    let places = turns.fresh.len();
    assert!(places < PEERS - 8, "{places} of {PEERS}: what is left for engines?");
    let lines: Vec<_> = (0..places)
        .map(|_| {
            let (id, tag) = (turns.fresh.pop_front().unwrap(), turns.tag());
            turns.driver.adopt(id, tag);
            (id, tag)
        })
        .collect();
    turns.settle();
    let (begin, mut waits) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(1) {
        turns.turn_of(Duration::from_secs(1), |_, _| {});
        waits += 1;
    }
    assert!(waits < 60, "{waits} turns in a second for nothing");
    assert!(turns.fresh.is_empty());
    // The accepted ones are served.
    peers.iter_mut().for_each(|peer| peer.write(b"hello"));
    for (_, tag) in &lines {
        turns.until_received(*tag, 5);
    }
    // Each that leaves makes room for one more, each time, and without anything else.
    let mut came = 0;
    for &(id, _) in &lines[..5] {
        turns.driver.close(id);
        turns.fresh.clear();
        let begin = Instant::now();
        while turns.fresh.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(5), "nobody is accepted though there is room");
            turns.turn_of(Duration::from_secs(5), |_, _| {});
        }
        turns.settle();
        assert_eq!(turns.fresh.len(), 1, "came for one that left");
        came += 1;
    }
    // Connections to engines take what is left, except for the last descriptors.
    let (address, mut connects) = (turns.address, 0);
    let error = loop {
        let tag = turns.tag();
        match turns.driver.connect(address, tag) {
            Ok(_) => connects += 1,
            Err(error) => break error,
        }
    };
    assert!(socket::is_want(&error), "{error}");
    assert!((8..PEERS).contains(&connects), "{connects} connects with what is left");
    assert!(std::fs::File::open("/dev/null").is_ok(), "nothing is left for others");
    descriptors(1_000);
    turns.until("everyone", |turns| turns.fresh.len() > PEERS - places - came);
}

/// In the same turn, as a shard closes an idle connection for the sake of another.
fn without_descriptors_a_close_makes_room_for_a_connect<D: Driver>(driver: fn() -> D) {
    const ROUNDS: usize = 8;
    let mut turns = Turns::new(driver());
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = engine.local_addr().unwrap();
    let mut lines: Vec<_> = (0..24).flat_map(|_| turns.two()).collect();
    turns.settle();
    // The next descriptor has the lowest number that is free, and eight are never for connections.
    let next = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap()) as u64;
    descriptors(next + 8);
    let tag = turns.tag();
    assert!(turns.driver.connect(address, tag).is_err_and(|error| socket::is_want(&error)));
    for round in 0..ROUNDS {
        // All have bytes meanwhile, also the one that is closed.
        lines.iter_mut().for_each(|(.., peer)| peer.write(b"hello"));
        let (id, tag, mut peer) = lines.remove(round);
        turns.driver.send(id, &[Segment::Bytes(b"farewell")]);
        turns.driver.close(id);
        let before = turns.received(tag).len();
        let begun = turns.tag();
        if let Err(error) = turns.driver.connect(address, begun) {
            panic!("{error} in round {round} on {}", D::NAME);
        }
        turns.until_told(begun, Told::Connected);
        turns.end_of(&mut peer);
        assert_eq!((peer.got, turns.received(tag).len()), (b"farewell".to_vec(), before));
        lines.iter().for_each(|(_, tag, _)| turns.until_received(*tag, 5 * (round + 1)));
    }
    lines.iter().for_each(|(_, tag, _)| assert_eq!(turns.received(*tag), b"hello".repeat(ROUNDS)));
}

/// In the same turn, as a shard closes idle connections before its listener.
fn without_descriptors_a_close_makes_room_for_the_last<D: Driver>(driver: fn() -> D) {
    let mut turns = Turns::new(driver());
    let lines: Vec<_> = (0..40).map(|_| turns.accept()).collect();
    turns.settle();
    let mut peers: Vec<Peer> = (0..10).map(|_| Peer::connect(turns.address)).collect();
    // A connection may come into the listener's queue a moment after its connect.
    peers.iter_mut().for_each(|peer| peer.write(b"hello"));
    peers.iter().for_each(Peer::until_taken);
    descriptors(std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap()) as u64);
    let stalls = turns.driver.accept_stalls();
    assert!(turns.driver.accept_last().is_none(), "there is no descriptor");
    assert!(turns.driver.accept_stalls() > stalls, "who asks is to know that more may wait");
    lines.iter().for_each(|(id, ..)| turns.driver.close(*id));
    let stalls = turns.driver.accept_stalls();
    let last = std::iter::from_fn(|| turns.driver.accept_last()).count();
    assert_eq!((last, turns.driver.accept_stalls()), (10, stalls), "on {}", D::NAME);
}

fn who_has_sent_something_is_known_among_those_who_are_closed<D: Driver>(driver: fn() -> D) {
    some_have_sent_something(driver());
}

/// The beginning of a drain: closing more connections than the ring has entries hands entries over in the middle of a
/// turn. Returns how often completions found their queue full.
fn some_have_sent_something<D: Driver>(driver: D) -> u64 {
    let count = 2_500.min((descriptors(8_000) as usize - 1_200) / 2);
    let mut turns = Turns::new(driver);
    let mut lines: Vec<_> = (0..count).map(|_| turns.accept()).collect();
    turns.settle();
    let asks = |at: &usize| at.is_multiple_of(7);
    lines.iter_mut().enumerate().filter(|(at, _)| asks(at)).for_each(|(_, (.., peer))| peer.write(b"hello"));
    lines.iter().for_each(|(.., peer)| peer.until_taken());
    for (at, (id, ..)) in lines.iter().enumerate() {
        let is_quiet = turns.driver.nothing_waits(*id);
        assert_eq!(is_quiet, !asks(&at), "{at} of {count} on {}", D::NAME);
        if is_quiet {
            turns.driver.close(*id);
        }
    }
    lines.iter().enumerate().filter(|(at, _)| asks(at)).for_each(|(_, (_, tag, _))| turns.until_received(*tag, 5));
    turns.driver.overflows()
}

/// The kernel finds a closed connection's operations without a walk over those of all others.
fn a_close_costs_the_same_among_many<D: Driver>(driver: fn() -> D) {
    let many = 2_000.min((descriptors(6_000) as usize - 100) / 2);
    let mut ratios = Vec::new();
    for _ in 0..3 {
        let [few, many] = [many / 16, many].map(|count| time_of_a_close(driver(), count));
        println!("a close takes {few:?} among few, {many:?} among many, on {}", D::NAME);
        ratios.push(many.as_secs_f64() / few.as_secs_f64());
    }
    assert!(ratios.iter().any(|ratio| *ratio < 2.0), "{ratios:.1?} on {}", D::NAME);
}

/// CPU time per connection for closing `count` idle connections at once.
fn time_of_a_close<D: Driver>(driver: D, count: usize) -> Duration {
    let mut turns = Turns::new(driver);
    let lines: Vec<_> = (0..count).map(|_| turns.accept()).collect();
    turns.settle();
    let before = ran();
    lines.iter().for_each(|(id, ..)| turns.driver.close(*id));
    turns.settle();
    (ran() - before) / count as u32
}
