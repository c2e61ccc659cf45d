//! The demo runs to its end, with fronts and without, and says clearly what it cannot do.

use std::process::{Command, Output};

fn demo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmfront")).arg("demo").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The policy's row of the table.
fn row<'a>(table: &'a str, policy: &str) -> &'a str {
    table.lines().find(|line| line.split_whitespace().next() == Some(policy)).unwrap()
}

/// The policy's hit rate in the table, in percent.
fn hit_rate(table: &str, policy: &str) -> f64 {
    let before = row(table, policy).split(" %").next().unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

/// No reply may fail. Hit rates have to be as they should in one of three tries: less than two seconds of each policy
/// are counted, in which the machine may stand still.
fn compares(policies: &str, seconds: &str, as_it_should: impl Fn(&str) -> bool) {
    let mut tables = String::new();
    let found = (0..3).any(|_| {
        let output = demo(&["--policies", policies, "--threads", "40", "--seconds", seconds]);
        let table = text(&output.stdout);
        assert!(table.contains("verified; 0 failed"), "{table}{}", text(&output.stderr));
        tables += &table;
        output.status.success() && as_it_should(&table)
    });
    assert!(found, "{tables}");
}

#[test]
fn conversations_that_stay_find_their_prefix() {
    compares("bare-random,bare-sticky", "9", |table| {
        let (random, sticky) = (hit_rate(table, "bare-random"), hit_rate(table, "bare-sticky"));
        sticky > 60.0 && sticky > random + 20.0
    });
}

/// The policies that the demo compares by default. Times are not compared: with so few conversations none waits.
#[test]
fn behind_a_front_warm_finds_more_than_random() {
    let policies = ["random", "least-load", "prefix-hash", "warm"];
    compares(&policies.join(","), "14", |table| {
        policies.iter().for_each(|policy| assert!(row(table, policy).ends_with(" cores"), "{policy} without a front"));
        let (random, warm) = (hit_rate(table, "random"), hit_rate(table, "warm"));
        warm > 60.0 && warm > random + 20.0
    });
}

/// A front of one shard, one of two, and two fronts that know nothing of each other find as much. Over 600
/// conversations and a minute their hit rates are equal to a percent, over these and a second to two or three; if
/// requests were dealt by chance they would be some 70 lower.
#[test]
fn more_shards_and_more_fronts_find_as_much() {
    let lineups = ["warm@1x1", "warm@1x2", "warm@2x1"];
    compares(&lineups.join(","), "12", |table| {
        let rates = lineups.map(|lineup| hit_rate(table, lineup));
        let (least, most) = rates.iter().fold((100.0, 0.0), |(least, most), rate| (rate.min(least), rate.max(most)));
        least > 60.0 && most - least < 6.0
    });
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
