//! Says what a machine does not let a test try: otherwise a run that tried nothing looks like one that found nothing.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;

use warmfront::driver::uring::Uring;

/// Says that `what` is untested, even if the output of tests that pass is not shown.
pub fn say(what: impl Display) {
    let _ = std::io::stderr().write_all(format!("NOT TESTED: {what}\n").as_bytes());
}

/// Whether this process gets rings; if not, says that `what` is untested. The answer is that of the first call: if a
/// ring was given then, one that is refused later is a fault.
pub fn has_ring(what: &str) -> bool {
    static GIVEN: OnceLock<bool> = OnceLock::new();
    *GIVEN.get_or_init(|| match Uring::new() {
        Ok(_) => true,
        Err(error) => {
            say(format_args!("{what}, as this kernel gives no ring: {error}"));
            false
        }
    })
}
