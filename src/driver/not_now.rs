//! Listeners that give no connection now, as descriptors are scarce or the kernel refuses. Nothing tells when this
//! ends, so that they are tried again.

use std::time::Duration;

use super::SocketId;

/// Microseconds until they are tried again.
const PAUSE: u64 = 50_000;

/// Such listeners of one driver.
#[derive(Default)]
pub(super) struct NotNow {
    listeners: Vec<SocketId>,
    until: u64,
    /// Counts how often accepting was put off.
    pub(super) times: u64,
}

impl NotNow {
    pub(super) fn is_empty(&self) -> bool {
        self.listeners.is_empty()
    }

    /// Notes that this listener gave no connection.
    pub(super) fn note(&mut self, listener: SocketId, now: u64) {
        if !self.listeners.contains(&listener) {
            self.listeners.push(listener);
        }
        self.times += 1;
        self.until = now + PAUSE;
    }

    /// Returns all of them, once it is time to try them again.
    pub(super) fn take_due(&mut self, now: u64) -> Vec<SocketId> {
        if now >= self.until { std::mem::take(&mut self.listeners) } else { Vec::new() }
    }

    /// Returns the time until then.
    pub(super) fn wait(&self, now: u64) -> Duration {
        Duration::from_micros(self.until.saturating_sub(now))
    }
}
