//! Starts that cannot succeed end at once, with the status that systemd does not try again on, and say what to change.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::engine::Engine;
use crate::front::Front;
use crate::{untested, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_warmfront");
/// EX_CONFIG
const REFUSED: i32 = 78;

#[test]
fn what_is_missing_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = "127.0.0.1:0";
    let engine = "http://127.0.0.1:1";
    for (limit, shards, listen, admin, upstream, words) in [
        ("1000", "1", &*taken, free, engine, "cannot listen on 127.0.0.1:"),
        ("1000", "1", free, &*taken, engine, "cannot open the admin listener on 127.0.0.1:"),
        ("1000", "1", free, &*taken, engine, "maybe an earlier front that still drains"),
        ("1000", "1", "192.0.2.1:8000", free, engine, "listen on 192.0.2.1:8000: it is no address of this machine now"),
        ("1000", "1", free, free, "gpu", "write it as http://HOST:PORT"),
        ("20", "1", free, free, engine, "only 20 descriptors are allowed"),
        ("128", "64", free, free, engine, "only 128 descriptors are allowed, and 379 are needed"),
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n $0 && exec \"$@\"", limit, PROGRAM, "serve", "--shards", shards]);
        shell.args(["--listen", listen, "--admin", admin, "--upstream", upstream]);
        let (ended, said) = ended(shell);
        assert_eq!(ended, Some(REFUSED), "{words}: {said}");
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// What tests of this house call "auto" stands for io_uring, and would pass on epoll as well.
#[test]
fn auto_is_io_uring_where_there_are_rings() {
    let front = Front::start("auto", &[Engine::start().address], "");
    let is = |driver| front.metric(&format!("warmfront_shard_driver{{shard=\"0\",driver=\"{driver}\"")) == 1.0;
    until("a driver", || is("uring") || is("epoll"));
    assert_eq!(is("uring"), untested::has_ring("fleets on io_uring"));
}

/// Longer than tokio keeps them where nobody says otherwise (10 s). Where no thread can be made for the moment, what is
/// to be done by one would panic if there were none, and look-ups of a name, reloads or saves come no more.
#[test]
fn a_thread_for_what_blocks_stays() {
    let front = Front::start("auto", &[Engine::start().address], "");
    std::thread::sleep(std::time::Duration::from_secs(12));
    let tasks = std::fs::read_dir(format!("/proc/{}/task", front.process())).unwrap();
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    let names: Vec<String> = tasks.map(|thread| of(thread.unwrap())).collect();
    assert!(names.iter().any(|name| name.trim() == "tokio-rt-worker"), "{names:?}");
}

#[test]
fn what_would_silence_or_kill_it_is_refused() {
    let path =
        std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("starting-{}.toml", std::process::id()));
    for (config, words) in [
        ("[log]\nlevel = \"inof\"\n", "did you mean \"info\"?"),
        ("[limits]\nindex_bytes = 1125899906842624\n", "does not fit into the memory"),
        (
            "[serve]\nlisten = [\"0.0.0.0:9000\"]\n[[upstream]]\nurl = \"http://127.0.0.1:9000\"\n",
            "is this front itself",
        ),
    ] {
        let engine = if config.contains("upstream") { "" } else { "[[upstream]]\nurl = \"http://127.0.0.1:1\"\n" };
        std::fs::write(&path, format!("{config}{engine}")).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--shards", "1", "--config"]).arg(&path);
        let (ended, said) = ended(command);
        assert!(ended == Some(REFUSED) && said.contains(words), "{words}: {ended:?} {said}");
    }
    let _ = std::fs::remove_file(path);
}

/// A SIGHUP that comes while it reads its files would end a process that does not wait for signals yet.
#[test]
fn a_reload_while_it_starts_is_taken_when_it_can() {
    let engine = Engine::start();
    let pipe =
        std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("starting-key-{}", std::process::id()));
    let _ = std::fs::remove_file(&pipe);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // The pipe opens once somebody reads it, and that one is then not past its files; the reload finds a file in its
    // place.
    let script = "self=$$
        (exec 3>\"$0\"; kill -HUP $self; sleep 0.2; rm \"$0\"; echo key >\"$0\"; echo key >&3; exec 3>&-) &
        program=$1; shift; exec \"$program\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(&pipe).arg(PROGRAM);
    let (address, key) = (engine.address, pipe.display());
    let config = format!("[[upstream]]\nurl = \"http://{address}\"\napi_key_file = \"{key}\"\n");
    let front = Front::by(shell, "auto", &[], &config);
    front.until_said("configuration taken");
    front.until_health(0, "up");
    drop(front);
    let _ = std::fs::remove_file(pipe);
}

#[test]
fn an_admin_listener_for_all_is_told_of() {
    let engine = Engine::start();
    for (admin, times) in [("0.0.0.0:0", 1), ("127.0.0.1:0", 0)] {
        let front = Front::start("auto", &[engine.address], &format!("[serve]\nadmin = \"{admin}\"\n"));
        front.until_said("listening");
        assert_eq!(
            front.log().matches("any peer that reaches it adds, drains and removes engines").count(),
            times,
            "{admin}"
        );
    }
}

/// A program that reads the log as JSON can read why it ended, too.
#[test]
fn why_it_does_not_start_is_told_as_the_log_is_written() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("json-{}.toml", std::process::id()));
    std::fs::write(&path, "[log]\nformat = \"json\"\n[[upstream]]\nurl = \"http://127.0.0.1:1\"\n").unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--shards", "1", "--listen", &taken.local_addr().unwrap().to_string()]);
    command.args(["--admin", "127.0.0.1:0", "--config"]).arg(&path);
    let (ended, said) = ended(command);
    assert_eq!(ended, Some(REFUSED), "{said}");
    let lines: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    assert!(last["message"].as_str().unwrap().starts_with("warmfront: cannot listen on 127.0.0.1:"), "{said}");
    assert!(last["level"] == "ERROR" && last["timestamp"].as_str().unwrap().ends_with('Z'), "{said}");
    let _ = std::fs::remove_file(path);
}

/// As process 1 of a container it would be killed when its time is up: the kernel keeps from that one what it does not
/// wait for.
#[test]
fn who_is_told_to_end_while_it_starts_ends_by_itself() {
    let pipe =
        std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("starting-end-{}", std::process::id()));
    for signal in ["TERM", "INT", "QUIT"] {
        let _ = std::fs::remove_file(&pipe);
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // The pipe opens once the front reads it, which has then not read all of its files.
        let script = "self=$$
            (exec 3>\"$0\"; kill -$1 $self; sleep 0.2; echo key >&3; exec 3>&-) &
            shift; program=$1; shift; exec \"$program\" \"$@\"";
        let config = pipe.with_extension("toml");
        let key = format!("[[upstream]]\nurl = \"http://127.0.0.1:1\"\napi_key_file = \"{}\"\n", pipe.display());
        std::fs::write(&config, key).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(&pipe).args([signal, PROGRAM, "serve", "--shards", "1"]);
        shell.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]).arg(&config);
        let (status, said) = ended(shell);
        assert!(status == Some(0) && said.contains("drained"), "{signal}: {status:?} {said}");
        for file in [&pipe, &config] {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Runs a command; returns how it ended, and what it printed.
fn ended(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ended = None;
    let begun = std::time::Instant::now();
    while ended.is_none() && begun.elapsed() < crate::PATIENCE {
        ended = child.try_wait().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let _ = child.kill();
    let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    (ended.and_then(|status| status.code()), said)
}
