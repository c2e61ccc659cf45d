//! Starts that cannot succeed end at once, with the status that systemd does not try again on, and say what to change.

use std::net::TcpListener;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_warmfront");
/// EX_CONFIG
const REFUSED: i32 = 78;

#[test]
fn what_is_missing_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = "127.0.0.1:0";
    let engine = "http://127.0.0.1:1";
    for (limit, listen, admin, upstream, words) in [
        ("1000", &*taken, free, engine, "cannot listen on 127.0.0.1:"),
        ("1000", free, &*taken, engine, "cannot open the admin listener on 127.0.0.1:"),
        ("1000", "192.0.2.1:8000", free, engine, "cannot listen on 192.0.2.1:8000"),
        ("1000", free, free, "gpu", "write it as http://HOST:PORT"),
        ("20", free, free, engine, "only 20 descriptors are allowed"),
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n $0 && exec \"$@\"", limit, PROGRAM, "serve", "--shards", "1"]);
        shell.args(["--listen", listen, "--admin", admin, "--upstream", upstream]);
        let mut child = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut ended = None;
        let begun = std::time::Instant::now();
        while ended.is_none() && begun.elapsed() < crate::PATIENCE {
            ended = child.try_wait().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = child.kill();
        let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        assert_eq!(ended.and_then(|status| status.code()), Some(REFUSED), "{words}: {said}");
        assert!(said.contains(words), "{words}: {said}");
    }
}
