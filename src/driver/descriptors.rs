//! Descriptors are shared out: clients do not get those that their requests need, nor the data plane the last ones.
//!
//! A request needs a second descriptor, for its engine. Were clients let in until there is none left, those that are in
//! could not be served: a crowd of idle ones would stop all. So accepting stops before, and the rest waits in the
//! kernel's queue. Connections to engines in turn leave some to probes and to the admin listener, lest the front seems
//! dead. The kernel gives out the lowest free number: what a new descriptor got tells how many are open, whoever
//! opened them.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Resource, getrlimit};

use super::ACCEPTS_PER_VISIT;
use crate::bout::Bout;

/// The last descriptors, which connections of neither kind get.
const LAST: u64 = 8;
/// One in so many of the descriptors left when serving begins is for connections to engines alone,
const ENGINES_SHARE: u64 = 4;
/// or this many, if those are more.
const ENGINES_MAX: u64 = 1_024;

/// Errors of accept(2) that concern the next connection; all others concern the listener.
const OF_ONE: [Errno; 10] = [
    Errno::CONNABORTED,
    Errno::INTR,
    Errno::PROTO,
    Errno::NETDOWN,
    Errno::NETUNREACH,
    Errno::HOSTDOWN,
    Errno::HOSTUNREACH,
    Errno::NONET,
    Errno::NOPROTOOPT,
    Errno::OPNOTSUPP,
];

/// What a listener had.
pub(super) enum Arrival {
    Connection(OwnedFd, SocketAddr),
    /// The connection died in the queue; the next may be alive.
    Died,
    Nothing,
    /// There may be some, but not now: there is no descriptor for them, or the kernel refuses.
    NotNow,
}

/// One driver's view of what this process has open.
pub(super) struct Descriptors {
    /// The number that was free when the last listener was given.
    before: u64,
    /// A client got a descriptor left to others: from then on the number is looked at before each accept.
    were_short: bool,
    /// The kernel refuses.
    refuses: Bout,
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors { before: 0, were_short: false, refuses: Bout::seldom() }
    }
}

impl Descriptors {
    /// Serving begins: descriptors open by now are not counted as clients'.
    pub(super) fn begin(&mut self, listener: &OwnedFd) {
        self.before = self.before.max(lowest_free(listener).unwrap_or(0));
    }

    /// The first number that clients may not have.
    fn end(&self) -> u64 {
        let engines = limit().saturating_sub(self.before) / ENGINES_SHARE;
        limit().saturating_sub(LAST + engines.min(ENGINES_MAX))
    }

    pub(super) fn accept(&mut self, listener: &OwnedFd) -> Arrival {
        if self.were_short && lowest_free(listener).is_none_or(|number| number >= self.end()) {
            return Arrival::NotNow;
        }
        match rustix::net::acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((connection, peer)) => {
                self.refuses.over();
                self.were_short |= number(&connection) >= self.end();
                match peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
                    Some(peer) => Arrival::Connection(connection, peer),
                    None => Arrival::Died,
                }
            }
            Err(Errno::AGAIN) => {
                self.refuses.over();
                Arrival::Nothing
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Arrival::NotNow,
            Err(error) if OF_ONE.contains(&error) => Arrival::Died,
            Err(error) => {
                self.say(error);
                Arrival::NotNow
            }
        }
    }

    /// The next try fails as this one did, for as long as that lasts. Where another listener is well meanwhile, it is
    /// said again.
    #[cold]
    fn say(&mut self, error: Errno) {
        if self.refuses.troubled(Instant::now()) {
            tracing::error!(
                %error,
                "the kernel takes no more connections from a listener, clients wait or are refused: it was ended by others, and is there again after a restart of warmfront, or a security module forbids it, until that allows it"
            );
        }
    }

    /// The next connection that waits at one of these listeners and has not died. `stalls` counts each listener that
    /// gives none now.
    pub(super) fn accept_living<'a>(
        &mut self,
        listeners: impl Iterator<Item = &'a OwnedFd>,
        stalls: &mut u64,
    ) -> Option<(OwnedFd, SocketAddr)> {
        for listener in listeners {
            for _ in 0..ACCEPTS_PER_VISIT {
                match self.accept(listener) {
                    Arrival::Connection(connection, peer) => return Some((connection, peer)),
                    Arrival::Died => {}
                    Arrival::Nothing => break,
                    Arrival::NotNow => {
                        *stalls += 1;
                        break;
                    }
                }
            }
        }
        None
    }
}

/// Whether this is one of the last.
pub(super) fn is_last(descriptor: &OwnedFd) -> bool {
    number(descriptor) >= limit().saturating_sub(LAST)
}

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn number(descriptor: &OwnedFd) -> u64 {
    descriptor.as_raw_fd().unsigned_abs().into()
}

/// None: there is none.
fn lowest_free(any: &OwnedFd) -> Option<u64> {
    any.try_clone().ok().map(|copy| number(&copy))
}

#[cfg(test)]
mod tests {
    use rustix::net::{Shutdown, shutdown};

    use super::*;
    use crate::driver::socket;

    #[test]
    fn that_the_kernel_refuses_is_over_when_it_does_not() {
        let listeners = [(); 2].map(|()| socket::listener(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap());
        let [ended, good] = &listeners;
        shutdown(ended, Shutdown::Read).unwrap();
        let mut descriptors = Descriptors::default();
        for _ in 0..2 {
            assert!(matches!(descriptors.accept(ended), Arrival::NotNow));
        }
        assert!(descriptors.refuses.lasts());
        assert!(matches!(descriptors.accept(good), Arrival::Nothing));
        assert!(!descriptors.refuses.lasts());
    }
}
