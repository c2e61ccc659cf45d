//! The log, on standard error. Control and shards write it as they go, so that its lines are there before a crash; none
//! of them waits for a reader that stands still. Lines that are not taken are counted, and told of when it goes on.

use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::outlet::Outlet;

static LOG: OnceLock<Mutex<Log>> = OnceLock::new();
static LOST: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Log {
    outlet: Outlet,
    /// The last lines did not go.
    is_silenced: bool,
}

/// From now on a reader of standard error is not waited for.
pub fn open() {
    // Without a descriptor to spare it stays as it was.
    if let Ok(outlet) = Outlet::of(&io::stderr()) {
        let _ = LOG.set(Mutex::new(Log { outlet, is_silenced: false }));
    }
}

/// Writes whole lines to standard error.
pub fn write(lines: &[u8]) {
    let Some(log) = LOG.get() else {
        // If it cannot be written, the exit status has to do.
        let _ = io::stderr().write_all(lines);
        return;
    };
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let (written, outcome) = log.outlet.write(lines);
    let missing = memchr::memchr_iter(b'\n', lines.get(written..).unwrap_or_default()).count() as u64;
    LOST.fetch_add(missing, Ordering::Relaxed);
    let goes_on = mem::replace(&mut log.is_silenced, outcome.is_err()) && outcome.is_ok();
    drop(log);
    if goes_on {
        tracing::warn!(lost = lost(), "lines of this log were lost: its reader took none for a while");
    }
}

/// Lines so far that were not taken.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}
