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
    let hit_rate = |table: &str, policy: &str| {
        let row = table.lines().find(|line| line.starts_with(policy)).unwrap();
        let before = row.split(" %").next().unwrap();
        before.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let finds = |output: &Output| {
        let table = text(&output.stdout);
        assert!(table.contains("verified; 0 failed"), "{table}{}", text(&output.stderr));
        output.status.success() && {
            let (random, sticky) = (hit_rate(&table, "bare-random"), hit_rate(&table, "bare-sticky"));
            sticky > 60.0 && sticky > random + 20.0
        }
    };
    // At best of three times: what counts of each policy is less than two seconds, in which the machine may stand still.
    let mut tables = String::new();
    let found = (0..3).any(|_| {
        let output = demo(&["--policies", policies, "--threads", "40", "--seconds", "9"]);
        tables += &text(&output.stdout);
        finds(&output)
    });
    assert!(found, "{tables}");
}

#[test]
fn wrong_flags_and_taken_ports_are_said_in_words() {
    let output = demo(&["--policies", "random,prefixhash"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("no policy is called \"prefixhash\""));

    for tokens in ["10000", "4000000000"] {
        let output = demo(&["--kv-tokens", tokens]);
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains("16384..=134217728") && !said.contains("max-model-len"),
            "{said}"
        );
    }

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = demo(&["--serve", "--listen", &address]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains(&format!("cannot listen on {address}")));
}
