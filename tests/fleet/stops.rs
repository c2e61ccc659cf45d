//! Threads that go on until they are told to stop.

use std::sync::atomic::{AtomicBool, Ordering};

/// Has them end with the test, whether it went well or not: a scope waits for its threads.
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
