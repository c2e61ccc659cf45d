//! Shares out descriptors: clients do not get those that their requests need, nor the data plane the last ones.
//!
//! A request needs a second descriptor, for its engine. If clients were let in until none is left, they could not be
//! served: a crowd of idle ones would stop everything. So accepting stops before that, and further clients wait in the
//! kernel's queue. Connections to engines in turn leave some descriptors to probes and to the admin listener, lest the
//! front seems dead. The kernel gives out the lowest free number, so that a new descriptor's number tells how many are
//! open in the whole process.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Resource, getrlimit};

use super::ACCEPTS_PER_VISIT;
use crate::bout::Bout;

/// Number of last descriptors, which connections to neither clients nor engines get.
const LAST: u64 = 8;
/// Of the descriptors left when serving begins, one in so many is for connections to engines alone.
const ENGINES_SHARE: u64 = 4;
/// Most descriptors that are for connections to engines alone.
const ENGINES_MAX: u64 = 1_024;

/// Errors of accept(2) that concern one connection; all others concern the listener.
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

/// What a listener has for us.
pub(super) enum Arrival {
    Connection(OwnedFd, SocketAddr),
    /// The connection died in the queue; the next may be alive.
    Died,
    Nothing,
    /// There may be connections, but they cannot be accepted now: there is no descriptor, or the kernel refuses.
    NotNow,
}

/// One driver's view of the descriptors that this process has open.
pub(super) struct Descriptors {
    /// The lowest free number when the last listener was given.
    before: u64,
    /// A client got a descriptor meant for others: from then on the lowest free number is checked before each accept.
    were_short: bool,
    /// While the kernel refuses.
    refuses: Bout,
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors { before: 0, were_short: false, refuses: Bout::seldom() }
    }
}

impl Descriptors {
    /// Notes that serving begins: descriptors open by now are not counted as clients'.
    pub(super) fn begin(&mut self, listener: &OwnedFd) {
        self.before = self.before.max(lowest_free(listener).unwrap_or(0));
    }

    /// Returns the first number that clients may not have.
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

    /// Logs once that the kernel refuses, as each try fails the same way while this lasts. If another listener works
    /// meanwhile, it is logged again.
    #[cold]
    fn say(&mut self, error: Errno) {
        if self.refuses.troubled(Instant::now()) {
            tracing::error!(
                %error,
                "the kernel takes no more connections from a listener, clients wait or are refused: another process shut it down, and a restart of warmfront opens it anew, or a security module forbids it, until that allows it"
            );
        }
    }

    /// Returns the next living connection that waits at one of these listeners. `stalls` counts each listener that
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

/// Whether this is one of the last descriptors.
pub(super) fn is_last(descriptor: &OwnedFd) -> bool {
    number(descriptor) >= limit().saturating_sub(LAST)
}

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn number(descriptor: &OwnedFd) -> u64 {
    descriptor.as_raw_fd().unsigned_abs().into()
}

/// Returns the lowest free number; `None`: no descriptor is free.
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
