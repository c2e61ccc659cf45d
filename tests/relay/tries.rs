//! What the machine may spoil by standing still is tried again, and every spoilt try is told: who fails in most of them is
//! seen before it fails in all.

use std::fmt::{Debug, Display};
use std::io::Write;

/// One of so many tries comes out as it is meant to.
pub fn in_one_of<T: Debug + PartialEq>(tries: usize, what: impl Display, meant: T, mut go: impl FnMut() -> T) {
    let mut spoilt = Vec::new();
    while spoilt.len() < tries {
        let came = go();
        if came == meant {
            return;
        }
        // Even where the output of tests that pass is not shown.
        let _ = std::io::stderr().write_all(format!("SPOILT {what}: {came:?}, not {meant:?}\n").as_bytes());
        spoilt.push(came);
    }
    panic!("{what}: {spoilt:?}, not once {meant:?}");
}
