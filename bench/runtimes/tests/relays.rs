//! Every relay that is built in answers right, in every scenario: all that are compared do the same work.

use std::process::Command;

#[test]
fn every_relay_answers_right() {
    let json = format!("{}/relays.json", env!("CARGO_TARGET_TMPDIR"));
    let short = ["--quick", "--seconds", "0.3", "--streams", "100", "--idle-streams", "200", "--json", &json];
    let output = Command::new(env!("CARGO_BIN_EXE_runtimes")).arg("run").args(short).output().unwrap();
    let (tables, words) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words}");
    // Relays that are not built in, or that this machine forbids, are left out with words; these two never are.
    for relay in ["epoll", "tokio"] {
        let rows = tables.lines().filter(|line| line.starts_with(relay)).count();
        assert_eq!(rows, 4, "{relay} has a row in each table:\n{tables}\n{words}");
    }
    assert!(!tables.contains("not measured"), "{tables}");
}
