//! Listeners that give none now: descriptors are scarce, or the kernel refuses. Nothing tells when it is otherwise.

use std::time::Duration;

use super::SocketId;

/// They are tried again after so many microseconds.
const PAUSE: u64 = 50_000;

/// Those of one driver.
#[derive(Default)]
pub(super) struct NotNow {
    listeners: Vec<SocketId>,
    until: u64,
    /// How often accepting was put off.
    pub(super) times: u64,
}

impl NotNow {
    pub(super) fn is_empty(&self) -> bool {
        self.listeners.is_empty()
    }

    /// This one gave none.
    pub(super) fn note(&mut self, listener: SocketId, now: u64) {
        if !self.listeners.contains(&listener) {
            self.listeners.push(listener);
        }
        self.times += 1;
        self.until = now + PAUSE;
    }

    /// All of them, once it is time to try them again.
    pub(super) fn take_due(&mut self, now: u64) -> Vec<SocketId> {
        if now >= self.until { std::mem::take(&mut self.listeners) } else { Vec::new() }
    }

    /// How long it is until then.
    pub(super) fn wait(&self, now: u64) -> Duration {
        Duration::from_micros(self.until.saturating_sub(now))
    }
}
