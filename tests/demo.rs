//! The demo runs to its end without a front, and says clearly what it cannot do.

use std::process::{Command, Output};

fn demo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmfront")).arg("demo").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn conversations_that_stay_find_their_prefix() {
    let policies = "bare-random,bare-sticky";
    let output = demo(&["--policies", policies, "--threads", "40", "--seconds", "9"]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table}{}", text(&output.stderr));
    let hit_rate = |policy: &str| {
        let row = table.lines().find(|line| line.starts_with(policy)).unwrap();
        let before = row.split(" %").next().unwrap();
        before.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let (random, sticky) = (hit_rate("bare-random"), hit_rate("bare-sticky"));
    assert!(sticky > 60.0 && sticky > random + 20.0, "{table}");
    assert!(table.contains("verified; 0 failed"), "{table}");
}

#[test]
fn wrong_flags_and_taken_ports_are_said_in_words() {
    let output = demo(&["--policies", "random,prefixhash"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("no policy is called \"prefixhash\""));

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = demo(&["--serve", "--listen", &address]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains(&format!("cannot listen on {address}")));
}
