//! Tests that count what a whole process has: descriptors, memory, processor time.

/// Runs `body` of the test called `name` in a process of its own, where no other test opens descriptors or
/// takes memory.
pub fn alone(name: &str, body: impl FnOnce()) {
    const MARK: &str = "WARMFRONT_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    let output = process.env(MARK, "1").args(["--exact", "--nocapture", name]).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let untested = errors.contains("NOT TESTED");
    if untested && output.status.success() && !crate::untested::has_ring("what would run alone") {
        // That process ended when it found that its driver is not to be had; this one would find the same.
        return;
    }
    assert!(output.status.success() && !untested && text.contains("1 passed"), "{text}{errors}");
}
