//! Tries again what the machine may spoil by standing still, and tells of each spoilt try: a test that fails in most of
//! them is noticed before it fails in all.

use std::fmt::{Debug, Display};
use std::io::Write;

/// Runs `go` until it returns `meant`, and panics if none of so many tries does.
pub fn in_one_of<T: Debug + PartialEq>(tries: usize, what: impl Display, meant: T, mut go: impl FnMut() -> T) {
    let mut spoilt = Vec::new();
    while spoilt.len() < tries {
        let came = go();
        if came == meant {
            return;
        }
        // Written past the test's captured output, so that it shows even if the test passes.
        let _ = std::io::stderr().write_all(format!("SPOILT {what}: {came:?}, not {meant:?}\n").as_bytes());
        spoilt.push(came);
    }
    panic!("{what}: {spoilt:?}, not once {meant:?}");
}
