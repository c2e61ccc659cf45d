//! Keeps the shards even: a connection stays with the shard that accepted it unless another has clearly fewer.
//!
//! SO_REUSEPORT hashes each connection to a listener. Over many connections that is even enough, over few it is
//! not, and they stay where they are for as long as clients keep them. nginx leaves it at that; Envoy's
//! `exact_balance` takes a lock for each connection; HAProxy hands accepted ones to the less loaded of two threads.
//! So does a shard here: it compares its open connections with what the others publish anyway, and hands over what it
//! has just accepted when it is ahead, through a queue and a bell. Most connections stay: what is let pass grows with
//! their number.
//!
//! What the kernel can do alone was tried and is worse. A program for the listeners that goes by the CPU a packet
//! comes in on starves shards wherever queues and shards do not match one to one: on loopback all but one. A program
//! that names the shards with fewest, replaced as they change, is exact for connections that come one by one, but sends
//! a burst to whichever was named last (65 % above the mean for 100 on two shards, where the hash alone has 10 %). Not
//! to accept for a while moves nothing: what was hashed to a shard waits in its queue.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crossbeam::queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};

use super::Shard;
use crate::counters::stats::{Gauge, Stats};
use crate::driver::{Driver, SocketId};
use crate::exchange::Micros;
use crate::publish::Process;

/// Connections a shard may be ahead of another, beside a thirty-second of the other's.
const AHEAD: u64 = 1;
const AHEAD_SHARE: u64 = 32;
/// Connections that may be on their way to one shard; beyond that they stay where they are.
const INBOX: usize = 256;
/// A shard that has not turned for as long, with something in its inbox, stands still: nobody hands over to it.
const STANDS_AFTER: Micros = 100_000;

/// A connection on its way, and who connected.
type Handed = (OwnedFd, SocketAddr);

/// What came for a shard and was not taken in yet.
struct Inbox {
    connections: ArrayQueue<Handed>,
    /// When the first of these came, and how often its shard had turned by then.
    since: AtomicU64,
    turns: AtomicU64,
    bell: Arc<OwnedFd>,
    /// A request that waits on that shard may have room now, by what another shard did.
    rung: AtomicBool,
    /// Its shard hears the bell.
    open: AtomicBool,
}

/// One shard's side of it.
pub struct Neighbours {
    shard: usize,
    inboxes: Arc<[Inbox]>,
    stats: &'static Stats,
}

impl Neighbours {
    /// By shard. One alone has nobody to hand over to, but is woken by its bell as well.
    ///
    /// # Errors
    /// When the kernel gives no descriptors for the bells.
    pub fn of_all(stats: &'static Stats) -> io::Result<Vec<Neighbours>> {
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new);
        let inbox = |_| {
            let (connections, [since, turns]) = (ArrayQueue::new(INBOX), [0; 2].map(AtomicU64::new));
            let [rung, open] = [false; 2].map(AtomicBool::new);
            Ok(Inbox { connections, since, turns, bell: bell()?, rung, open })
        };
        let inboxes: Arc<[Inbox]> = (0..stats.shards()).map(inbox).collect::<io::Result<Vec<_>>>()?.into();
        Ok((0..stats.shards()).map(|shard| Neighbours { shard, inboxes: Arc::clone(&inboxes), stats }).collect())
    }

    /// Has the driver hear the bell; from then on others may hand over, and the process wakes its shard by it.
    fn open(&self, driver: &mut impl Driver, process: &Process) -> io::Result<()> {
        let inbox = &self.inboxes[self.shard];
        driver.hear(inbox.bell.try_clone()?)?;
        process.shards()[self.shard].wakes_by(Arc::clone(&inbox.bell));
        inbox.open.store(true, Ordering::Release);
        Ok(())
    }

    /// The shard with fewest connections, if this one, which has `mine`, is ahead of it. A shard that stands still is
    /// left out: it has fewer and fewer, and what is handed to it waits until it goes on.
    fn behind(&self, mine: u64, now: Micros) -> Option<usize> {
        let open = |shard: usize| {
            let inbox = &self.inboxes[shard];
            let waiting = inbox.connections.len() as u64;
            let stands = waiting > 0
                && now.saturating_sub(inbox.since.load(Ordering::Relaxed)) > STANDS_AFTER
                && self.stats.shard(shard).turns() == inbox.turns.load(Ordering::Relaxed);
            let takes = inbox.open.load(Ordering::Acquire) && waiting < INBOX as u64 && !stands;
            takes.then(|| self.stats.shard(shard).gauge(Gauge::Connections) + waiting)
        };
        fewest(self.shard, mine, self.inboxes.len(), open)
    }

    /// Tells another shard that a request that waits there may have room now.
    pub(super) fn ring(&self, shard: usize) {
        let Some(inbox) = self.inboxes.get(shard).filter(|_| shard != self.shard) else { return };
        if !inbox.rung.swap(true, Ordering::AcqRel) {
            // As below.
            let _ = rustix::io::write(&inbox.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether another shard rang since this was asked last.
    pub(super) fn hears(&self) -> bool {
        self.inboxes[self.shard].rung.swap(false, Ordering::AcqRel)
    }

    /// Hands a connection over. Gives one back if the inbox has just become full, or its shard ends: perhaps another
    /// one, which a third shard handed over at the same time.
    fn hand(&self, shard: usize, connection: OwnedFd, peer: SocketAddr, now: Micros) -> Result<(), Handed> {
        let inbox = &self.inboxes[shard];
        if inbox.connections.is_empty() {
            inbox.since.store(now, Ordering::Relaxed);
            inbox.turns.store(self.stats.shard(shard).turns(), Ordering::Relaxed);
        }
        inbox.connections.push((connection, peer))?;
        // It fails when the bell has been rung 2^64 times unheard: it is ringing, then.
        let _ = rustix::io::write(&inbox.bell, &1u64.to_ne_bytes());
        fence(Ordering::SeqCst);
        if inbox.open.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Each takes one out for the one that he put in, unless its shard has taken it already.
        inbox.connections.pop().map_or(Ok(()), Err)
    }

    /// Closes the inbox; answers whether nothing is left in it.
    fn close(&self) -> bool {
        let inbox = &self.inboxes[self.shard];
        inbox.open.store(false, Ordering::Relaxed);
        // With the one in `hand`: one of the two sees what the other did before.
        fence(Ordering::SeqCst);
        inbox.connections.is_empty()
    }
}

/// If a shard ends by a fault, connections in its inbox are closed with it.
impl Drop for Neighbours {
    fn drop(&mut self) {
        let inbox = &self.inboxes[self.shard];
        if inbox.open.load(Ordering::Relaxed) {
            self.close();
            while inbox.connections.pop().is_some() {}
        }
    }
}

/// The first behind `shard` among those with fewest, so that not all shards hand over to the same one.
fn fewest(shard: usize, mine: u64, shards: usize, open: impl Fn(usize) -> Option<u64>) -> Option<usize> {
    let others = (1..shards).map(|step| (shard + step) % shards);
    let (fewest, other) = others.filter_map(|other| Some((open(other)?, other))).min_by_key(|(open, _)| *open)?;
    (mine > fewest + AHEAD + fewest / AHEAD_SHARE).then_some(other)
}

impl<D: Driver> Shard<D> {
    /// Shares out connections with the other shards.
    ///
    /// # Errors
    /// When the driver cannot; the shard then serves what its listeners get.
    pub fn share(&mut self, neighbours: Neighbours) -> io::Result<()> {
        neighbours.open(&mut self.driver, self.process)?;
        debug_assert_eq!(neighbours.shard, usize::from(self.desk.lender.shard));
        self.neighbours = Some(neighbours);
        Ok(())
    }

    /// A listener has a connection: it stays here, or goes to the shard that has fewest.
    pub(super) fn arrived(&mut self, mut socket: SocketId, mut peer: SocketAddr) {
        let mine = self.clients.len() as u64 + 1;
        if let Some(neighbours) = self.neighbours.as_ref().filter(|_| !self.process.draining())
            && let Some(other) = neighbours.behind(mine, self.desk.now)
            && let Some(connection) = self.driver.give(socket)
        {
            let Err((connection, its_peer)) = neighbours.hand(other, connection, peer, self.desk.now) else { return };
            let Some(taken) = self.driver.take(connection) else { return };
            (socket, peer) = (taken, its_peer);
        }
        self.accepted(socket, peer);
        // At once, so that shards which accept side by side see each other.
        self.desk.stats.set(Gauge::Connections, self.clients.len() as u64);
    }

    /// Before its end: nobody hands over from here on. False: somebody has, which is still to be taken in.
    pub(super) fn takes_no_more(&self) -> bool {
        self.neighbours.as_ref().is_none_or(Neighbours::close)
    }

    /// What the other shards have handed over, also once this one drains.
    pub(super) fn take_in(&mut self) {
        // Asked first, as a pop that finds nothing waits for all stores before it. Who gives rings behind it: it is not
        // missed.
        while let Some(neighbours) = &self.neighbours
            && let connections = &neighbours.inboxes[neighbours.shard].connections
            && !connections.is_empty()
            && let Some((connection, peer)) = connections.pop()
        {
            if let Some(socket) = self.driver.take(connection) {
                self.accepted(socket, peer);
                self.desk.stats.set(Gauge::Connections, self.clients.len() as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn two() -> [Neighbours; 2] {
        let two: [Neighbours; 2] = Neighbours::of_all(Stats::leak(2)).unwrap().try_into().ok().unwrap();
        two[0].inboxes[1].open.store(true, Ordering::Relaxed);
        two
    }

    /// The client's end, and what comes back.
    fn hand(first: &Neighbours) -> (UnixStream, Result<(), Handed>) {
        let (client, connection) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        (client, first.hand(1, connection.into(), ([127, 0, 0, 1], 1).into(), 0))
    }

    /// Its client may have asked by then: whoever gave it, or its new shard, serves it.
    #[test]
    fn what_is_handed_to_a_shard_that_ends_is_not_lost() {
        let [first, second] = two();
        let waiting = || first.inboxes[1].connections.len();
        let (mut client, Ok(())) = hand(&first) else { panic!("it takes connections") };
        assert!(!second.close(), "it is to take that one in before");
        let (mut late, Err((back, _))) = hand(&first) else { panic!("it takes no more") };
        assert_eq!(waiting(), 1, "one for each that was put in");
        let of_second = first.inboxes[1].connections.pop();
        assert!(second.close());
        drop(second);
        let (mut later, Err((again, _))) = hand(&first) else { panic!("it has ended") };
        assert_eq!(waiting(), 0);
        for client in [&mut client, &mut late, &mut later] {
            let silent = client.read(&mut [0]).unwrap_err();
            assert_eq!(silent.kind(), io::ErrorKind::WouldBlock, "a connection was closed");
        }
        drop((of_second, back, again));
    }

    #[test]
    fn what_waits_for_a_shard_that_fails_ends_with_it() {
        let [first, second] = two();
        let (mut client, Ok(())) = hand(&first) else { panic!("it takes connections") };
        drop(second);
        assert_eq!((client.read(&mut [0]).unwrap(), first.inboxes[1].connections.len()), (0, 0));
        assert!(hand(&first).1.is_err());
    }

    /// It has fewest for as long as it stands still, and would get all.
    #[test]
    fn nobody_hands_over_to_a_shard_that_stands_still() {
        let stats = Stats::leak(2);
        let neighbours = Neighbours::of_all(stats).unwrap();
        let first = &neighbours[0];
        first.inboxes[1].open.store(true, Ordering::Relaxed);
        let hand = |now| {
            let (_, connection) = UnixStream::pair().unwrap();
            first.hand(1, connection.into(), ([127, 0, 0, 1], 1).into(), now).unwrap();
        };
        stats.shard(1).beat();
        assert_eq!(first.behind(50, 1_000_000), Some(1));
        hand(1_000_000);
        hand(1_090_000);
        assert_eq!(first.behind(50, 1_100_000), Some(1), "it may be in the middle of a turn");
        assert_eq!(first.behind(50, 1_100_001), None);
        stats.shard(1).beat();
        assert_eq!(first.behind(50, 9_000_000), Some(1));
    }

    #[test]
    fn a_connection_goes_to_the_first_of_those_with_fewest() {
        let table: &[(usize, u64, &[u64], Option<usize>)] = &[
            (0, 1, &[0, 0], None),
            (0, 2, &[1, 0], Some(1)),
            (0, 3, &[2, 2], None),
            (0, 50, &[49, 48], None),
            (0, 51, &[50, 48], Some(1)),
            (1, 1001, &[969, 1000], Some(0)),
            (1, 1001, &[970, 1000], None),
            (1, 9, &[4, 8, 9, 4], Some(3)),
            (3, 9, &[4, 8, 4, 8], Some(0)),
            (0, 9, &[8], None),
        ];
        for (shard, mine, open, to) in table {
            assert_eq!(fewest(*shard, *mine, open.len(), |shard| Some(open[shard])), *to, "{shard} of {open:?}");
        }
        assert_eq!(fewest(0, 9, 3, |shard| (shard == 2).then_some(1)), Some(2), "1 takes none");
    }
}
