//! Threads that go on until they are told to stop.

use std::sync::atomic::{AtomicBool, Ordering};

/// Ends them with the test, whether that passes or panics: a scope waits for its threads.
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
