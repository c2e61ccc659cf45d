//! The outcome of reloads, for metrics: a file that was refused, or waits for a restart, shows in no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::SystemTime;

/// See the module.
#[derive(Debug)]
pub struct Reloads {
    begun: AtomicU64,
    under_way: Arc<AtomicU64>,
    /// Whether the last reload that ended was refused.
    refused: AtomicBool,
    /// When the configuration in use was read, in seconds since 1970.
    read: AtomicU64,
    /// Keys that wait for a restart.
    restart: AtomicUsize,
}

impl Default for Reloads {
    fn default() -> Reloads {
        // The configuration that the process began with was read just now.
        Reloads {
            begun: AtomicU64::new(0),
            under_way: Arc::default(),
            refused: AtomicBool::new(false),
            read: AtomicU64::new(now()),
            restart: AtomicUsize::new(0),
        }
    }
}

impl Reloads {
    /// Notes that a reload begins. It is under way until the value is dropped, which the task does that waits for a
    /// disk or a name server.
    pub(super) fn begins(&self) -> UnderWay {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(&self.under_way))
    }

    pub(super) fn ended(&self, well: bool) {
        self.refused.store(!well, Ordering::Relaxed);
        if well {
            self.read.store(now(), Ordering::Relaxed);
        }
    }

    pub(super) fn wait_for_restart(&self, keys: usize) {
        self.restart.store(keys, Ordering::Relaxed);
    }

    /// How many reloads have begun so far.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// How many of these have not ended. If that lasts, a disk or a name server does not answer.
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Whether the last reload was taken.
    pub fn was_taken(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// When the configuration in use was read, in seconds since 1970.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// How many changed keys wait for a restart.
    pub fn restart_wanted(&self) -> usize {
        self.restart.load(Ordering::Relaxed)
    }
}

/// A reload that has not ended.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<AtomicU64>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs())
}
