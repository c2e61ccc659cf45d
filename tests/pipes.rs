//! Commands whose output nobody reads any more go on without a reader, or end with the status that they would have had.

#[path = "fleet/reserved.rs"]
mod reserved;

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A pipe that nobody reads.
fn deserted() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn warmfront(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
    command.args(args).stdin(Stdio::null()).stdout(deserted()).stderr(deserted());
    command
}

#[test]
fn what_nobody_reads_ends_no_command() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mooncake/first-160.jsonl.zst");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (args, status) in [
        (&["replay", trace, "--policies", "random", "--requests", "20"][..], 0),
        (&["replay", "/nowhere"], 78),
        (&["engine", "--listen", &address], 1),
        (&["engine", "--kv-tokens", "0"], 2),
        (&["demo", "--serve", "--listen", &address], 1),
        (&["check", "--no-ports"], 78),
    ] {
        assert_eq!(warmfront(args).status().unwrap().code(), Some(status), "{args:?}");
    }
}

/// A command whose report does not fit on the disk fails: its file has half of the report, or nothing.
#[test]
fn what_a_full_disk_takes_is_no_success() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mooncake/first-160.jsonl.zst");
    let explain = ["explain", "--json", "--upstream", "http://a:1", "--body"];
    for args in [&[&explain[..], &["-"]].concat()[..], &["replay", trace, "--policies", "random", "--requests", "20"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = warmfront(args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert_eq!(said.matches("cannot write to standard output: No space left").count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn an_engine_serves_on_when_nobody_reads_that_it_does() {
    let (free, _kept) = reserved::address();
    let mut engine = warmfront(&["engine", "--listen", &free.to_string()]).spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut serves = false;
    while !serves && std::time::Instant::now() < deadline && engine.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(10));
        serves = std::net::TcpStream::connect(free).is_ok();
    }
    // It listens before it says so, but accepts connections only afterwards.
    let answers = serves && {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(free).unwrap();
        let _ = stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
    };
    let _ = kill_process(Pid::from_child(&engine), Signal::TERM);
    let status = engine.wait().unwrap();
    assert!(answers && status.success(), "{answers} {status}");
}
