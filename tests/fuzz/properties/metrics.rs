//! Engines' metrics: any text gives a reading, of the lines that are ours to read and of nothing else.

use warmfront::control::scrape::Reading;

/// No text ends the process; figures are in range; what is not vLLM's or SGLang's changes nothing, nor does what
/// kind of line end is used.
pub fn metrics(bytes: &[u8]) {
    let reading = Reading::of(bytes);
    if let Some(used) = reading.load.kv_use {
        assert!((0.0..=1.0).contains(&used), "{used}: {}", bytes.escape_ascii());
    }
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let names: [&[u8]; 3] = [b"vllm:", b"sglang", b"process_start_time_seconds"];
    let ours = |line: &&[u8]| names.iter().any(|name| line.starts_with(name));
    let kept: Vec<&[u8]> = lines.iter().copied().filter(ours).collect();
    assert_eq!(Reading::of(&kept.join(&b'\n')), reading, "lines of others count: {}", bytes.escape_ascii());
    assert_eq!(Reading::of(&lines.join(&b"\r\n"[..])), reading, "line ends count: {}", bytes.escape_ascii());
    let among = kept.join(&b"\n# HELP a b\npython_gc 3\n"[..]);
    assert_eq!(Reading::of(&among), reading, "lines of others count: {}", bytes.escape_ascii());
    // When its process started it may tell before its engine has any figure.
    let nothing = Reading { started: reading.started, ..Reading::default() };
    let known = reading.engine.is_some();
    assert!(known || reading == nothing, "a figure of no engine: {}", bytes.escape_ascii());
}
