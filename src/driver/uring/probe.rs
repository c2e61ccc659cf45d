//! Whether io_uring can be used on this machine: asked once, before anything is served.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::Uring;
use crate::driver::{Completion, Driver, SocketId, Tag, socket};

/// How long the self-test may take.
const PATIENCE: Duration = Duration::from_secs(1);
const TURN: Duration = Duration::from_millis(50);
const OURS: Tag = Tag(1);
const THEIRS: Tag = Tag(2);

/// Why io_uring cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The kernel gives no ring.
    #[error("io_uring is refused here ({0}): {advice}", advice = advice(.0))]
    Refused(io::Error),
    /// The ring did not do this in time.
    #[error("io_uring failed its self-test: {0} did not come about within {PATIENCE:?}")]
    Silent(&'static str),
    /// There was no socket to try it with.
    #[error("io_uring could not be tried: {0}")]
    Untried(io::Error),
}

impl Unusable {
    /// Whether it may do better in a moment: the machine was too busy, or short of something. A limit on lockable
    /// memory does not change by itself.
    pub fn is_for_now(&self) -> bool {
        match self {
            Unusable::Silent(_) | Unusable::Untried(_) => true,
            Unusable::Refused(error) => {
                matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EMFILE | libc::ENFILE | libc::EINTR))
            }
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "forbidden by a seccomp filter (Docker and containerd have one; run with a profile that allows \
             io_uring_setup, io_uring_enter and io_uring_register) or by the sysctl kernel.io_uring_disabled"
        }
        Some(libc::ENOSYS) => "this kernel has none, or a seccomp filter hides it",
        Some(libc::ENOMEM) => "too little lockable memory; raise LimitMEMLOCK in the unit (`ulimit -l` in a shell)",
        Some(libc::EINVAL) => "this kernel is too old: Linux 6.1 or newer is needed",
        _ => "unknown cause",
    }
}

/// Sets a ring up and has it accept, receive, send, and stop receiving, over the loopback.
///
/// # Errors
/// When something does not work.
pub fn usable() -> Result<(), Unusable> {
    let mut driver = Uring::new().map_err(Unusable::Refused)?;
    let listener = socket::listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).map_err(Unusable::Untried)?;
    let address = socket::bound_address(&listener).map_err(Unusable::Untried)?;
    driver.listen(listener).map_err(Unusable::Refused)?;
    let ours = driver.connect(address, OURS).map_err(Unusable::Untried)?;
    let mut test = SelfTest { driver, theirs: None, deadline: Instant::now() + PATIENCE };
    test.until("a connect", |completion| matches!(completion, Completion::Connected(OURS)))?;
    if test.theirs.is_none() {
        test.until("an accept", |completion| matches!(completion, Completion::Accepted { .. }))?;
    }
    let theirs = test.theirs.ok_or(Unusable::Silent("an accept"))?;
    test.passes(ours, THEIRS, b"one", "a send, and a poll for what it brings")?;
    test.passes(theirs, OURS, b"two", "a receive")?;
    test.driver.pause(ours);
    test.turn(|_| false).map_err(Unusable::Refused)?;
    test.driver.resume(ours);
    test.passes(theirs, OURS, b"three", "a receive that was cancelled and armed again")?;
    test.driver.close(ours);
    test.until("the end of a closed connection", |completion| matches!(completion, Completion::Ended(THEIRS)))
}

struct SelfTest {
    driver: Uring,
    theirs: Option<SocketId>,
    deadline: Instant,
}

impl SelfTest {
    fn passes(&mut self, from: SocketId, to: Tag, bytes: &[u8], what: &'static str) -> Result<(), Unusable> {
        self.driver.send(from, &[crate::driver::Segment::Bytes(bytes)]);
        self.until(
            what,
            |completion| matches!(completion, Completion::Received(tag, lease) if tag == to && lease.len as usize == bytes.len()),
        )
    }

    fn until(&mut self, what: &'static str, met: impl Fn(Completion) -> bool) -> Result<(), Unusable> {
        while Instant::now() < self.deadline {
            if self.turn(&met).map_err(Unusable::Refused)? {
                return Ok(());
            }
        }
        Err(Unusable::Silent(what))
    }

    /// Runs one turn; returns whether what was waited for has happened in it.
    fn turn(&mut self, met: impl Fn(Completion) -> bool) -> io::Result<bool> {
        self.driver.wait(TURN)?;
        let mut happened = false;
        while let Some(completion) = self.driver.next() {
            happened |= met(completion);
            if let Completion::Accepted { socket, .. } = completion {
                self.theirs = Some(socket);
                self.driver.adopt(socket, THEIRS);
            }
        }
        Ok(happened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that was busy for a second must not keep the front from being started again.
    #[test]
    fn what_passes_is_told_from_what_is_to_be_changed() {
        let refused = |code| Unusable::Refused(io::Error::from_raw_os_error(code)).is_for_now();
        assert_eq!([libc::EPERM, libc::ENOSYS, libc::EINVAL, libc::ENOMEM].map(refused), [false; 4]);
        assert!(refused(libc::EMFILE) && Unusable::Silent("a connect").is_for_now());
    }

    #[test]
    fn refusals_say_what_to_do() {
        let said = |code| Unusable::Refused(io::Error::from_raw_os_error(code)).to_string();
        assert!(said(libc::EPERM).contains("seccomp"));
        assert!(said(libc::ENOMEM).contains("LimitMEMLOCK"));
        assert!(said(libc::EINVAL).contains("6.1"));
    }
}
