//! What becomes of a fault of our own: where a head is read, and inside an exchange, it ends that request; anywhere
//! else on a shard the process. On control's thread it ends a task, and whoever has that done says what follows.
//!
//! A panic's message may hold bytes of a prompt, so that only its place is told.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};

use tokio::task;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// From here on a panic is logged with thread and place, and without its message.
pub fn tell_place_only() {
    set_hook(Box::new(|panic: &PanicHookInfo<'_>| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let ends = match (CONTAINED.get(), task::try_id()) {
            (true, _) => "one request",
            (false, Some(_)) => "its task",
            (false, None) => "its thread",
        };
        tracing::error!(place, thread, ends, "a fault of warmfront: please report it with this place");
    }));
}

/// Runs what may panic without taking the shard with it.
///
/// # Errors
/// When it panicked.
pub(super) fn contained<T>(run: impl FnOnce() -> T) -> Result<T, ()> {
    CONTAINED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    CONTAINED.set(false);
    outcome.map_err(|_| ())
}
