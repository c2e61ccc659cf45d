//! `warmfront explain` and the command line's exit statuses, as a process.

use std::io::Write;
use std::process::{Command, Output, Stdio};

const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"Name three primes."}],"user":"alice"}"#;

fn warmfront(arguments: &[&str], input: &str) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_warmfront"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A process that refuses its arguments does not read.
    let _ = process.stdin.take().unwrap().write_all(input.as_bytes());
    process.wait_with_output().unwrap()
}

fn explained(arguments: &[&str], input: &str) -> serde_json::Value {
    let fleet =
        ["explain", "--json", "--upstream", "http://a:1", "--upstream", "http://b:1", "--upstream", "http://c:1"];
    let output = warmfront(&[&fleet, arguments].concat(), input);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn row(explanation: &serde_json::Value, policy: &str) -> serde_json::Value {
    let rows = explanation["choices"].as_array().unwrap();
    rows.iter().find(|row| row["policy"] == policy).unwrap().clone()
}

#[test]
fn a_choice_is_explained_and_repeats_itself() {
    let first = explained(&[], BODY);
    assert_eq!(
        (first["model"].as_str(), first["pool"].as_str(), first["scan"].as_str()),
        (Some("m"), Some("m"), Some("whole"))
    );
    let prefix = row(&first, "prefix-hash");
    assert_eq!((prefix["reason"].as_str(), prefix["configured"].as_bool()), (Some("home"), Some(false)));
    let warm = row(&first, "warm");
    assert_eq!((warm["reason"].as_str(), warm["configured"].as_bool()), (Some("cold"), Some(true)));
    assert_eq!(warm["endpoint"], row(&explained(&[], BODY), "warm")["endpoint"]);
    assert_eq!(prefix["decided_at"].as_u64().unwrap(), BODY.len() as u64, "what is read is read for all pools");
    let alone = row(&explained(&["--policy", "prefix-hash"], BODY), "prefix-hash");
    assert!(alone["decided_at"].as_u64().unwrap() < BODY.len() as u64, "the choice does not wait for the end");
    assert_eq!(prefix["endpoint"], row(&explained(&[], BODY), "prefix-hash")["endpoint"]);
    assert_eq!(row(&first, "session")["reason"], "session_home");
}

#[test]
fn a_session_header_wins_over_the_body() {
    let field = explained(&[], BODY);
    let header = explained(&["--header", "X-Session-Id: bob"], BODY);
    assert_ne!(field["session_key"], header["session_key"]);
    assert_eq!(row(&header, "session")["decided_at"], 0);
    let same = explained(&["--header", "x-session-id:alice"], BODY);
    assert_eq!(field["session_key"], same["session_key"], "the same text is the same session");
}

#[test]
fn what_cannot_be_scanned_goes_by_load() {
    let broken = explained(&[], "{\"model\":");
    assert_eq!(row(&broken, "prefix-hash")["reason"], "unscannable");
    assert!(broken["key"].is_null());
    assert_eq!(
        row(&explained(&["--path", "/v1/audio/speech"], "{\"model\":\"m\"}"), "prefix-hash")["reason"],
        "no_prefix"
    );
}

#[test]
fn the_table_is_for_people() {
    let output = warmfront(&["explain", "--upstream", "http://a:1"], BODY);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\n* warm         a:1       cold"), "{text}");
}

#[test]
fn exit_statuses_tell_usage_from_configuration() {
    assert_eq!(warmfront(&["serve", "--no-such-flag"], "").status.code(), Some(2));
    assert_eq!(warmfront(&["serve", "--shards", "x"], "").status.code(), Some(2));
    assert_eq!(warmfront(&["serve"], "").status.code(), Some(78));
    let refused = warmfront(&["serve", "--upstream", "https://gpu-1:8000"], "");
    assert_eq!(refused.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("TLS"));
    let version = warmfront(&["--version"], "");
    assert_eq!(String::from_utf8(version.stdout).unwrap().trim(), concat!("warmfront ", env!("CARGO_PKG_VERSION")));
    for command in ["serve", "check", "explain", "top"] {
        let help = String::from_utf8(warmfront(&[command, "--help"], "").stdout).unwrap();
        assert!(help.contains("Examples:"), "{command}");
    }
}
