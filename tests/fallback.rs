//! Machines that refuse io_uring, or have little memory for it: the front serves all the same, and says how.

#[path = "relay/untested.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod untested;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

const PATIENCE: Duration = Duration::from_secs(20);
/// Users without privileges or files, one a test: lockable memory is counted by user.
const NOBODY: u32 = 65_534;
const NOBODY_ELSE: u32 = 65_530;
/// Operations of the ring that is tried first.
const LARGEST: u32 = 1024;
/// The same number on every architecture.
const IO_URING_SETUP: i64 = 425;

#[test]
fn a_forbidden_ring_is_replaced_and_said_so() {
    let front = Front::of(forbidden(|| serve(&["--driver", "auto"]).spawn().unwrap()));
    let (driver, why) = front.driver();
    assert_eq!(driver, "epoll");
    assert!(why.contains("io_uring is refused here") && why.contains("seccomp"), "{why}");
    assert!(front.log.contains("seccomp"), "{}", front.log);
    front.serves();
}

#[test]
fn a_forbidden_ring_that_was_asked_for_is_refused_in_words() {
    let output = forbidden(|| serve(&["--driver", "uring"]).output().unwrap());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("seccomp") && said.contains("\"auto\""), "{said}");
}

#[test]
fn little_lockable_memory_is_enough() {
    if !rustix::process::geteuid().is_root() {
        return untested::say("little lockable memory, as only root may become another user with other limits");
    }
    // Each a user of its own: what a ring was counted for is given back a moment after its process has ended.
    let cases = [("65536", 0), ("69632", 1), ("0", 2), ("8388608", 3)];
    let [little, narrow, none, much] = cases.map(|(memory, place)| {
        let front = as_user(NOBODY - place, memory, &["--shards", "1"]);
        let (driver, why) = front.driver();
        println!("memlock {memory}: {driver}, {why}");
        if driver != "uring" {
            assert!(memory != "8388608" && why.contains("LimitMEMLOCK"), "{memory}: {why}");
        }
        front.serves();
        (driver == "uring").then(|| operations(&why))
    });
    // If a user without lockable memory gets a ring, this kernel does not count rings; and with pages of 64 KiB a
    // single page has no room for one.
    if much.is_none() || none.is_some() || rustix::param::page_size() > 4 << 10 {
        return untested::say("a smaller ring, as this kernel gives none, counts none or has large pages");
    }
    assert!(little.is_some_and(|operations| operations < LARGEST), "in 64 KiB: {little:?}");
    assert!(narrow.is_some(), "one page more takes a larger ring, and not the list of its buffers");
    assert_eq!(much, Some(LARGEST), "in 8 MiB");
}

#[test]
fn shards_that_get_no_ring_serve_beside_those_that_do() {
    if !rustix::process::geteuid().is_root() {
        return untested::say("shards that get no ring, as only root may become another user with other limits");
    }
    // If a user without lockable memory gets a ring, this kernel does not count rings; with pages of 64 KiB there is room
    // for few or none.
    let (driver, _) = as_user(NOBODY_ELSE - 1, "0", &["--shards", "1"]).driver();
    if driver == "uring" || rustix::param::page_size() > 4 << 10 {
        return untested::say("shards that get no ring, as this kernel counts none or has large pages");
    }
    // Room for the self-test's ring and a few more, not for sixteen.
    let front = as_user(NOBODY_ELSE, "524288", &["--shards", "16"]);
    let drivers = front.drivers();
    let rings = drivers.iter().filter(|(driver, _)| driver == "uring").count();
    println!("{rings} of {} shards got a ring", drivers.len());
    assert!(drivers.len() == 16 && (1..16).contains(&rings), "{rings} rings: {drivers:?}");
    assert!(drivers.iter().all(|(driver, why)| driver == "uring" || why.contains("LimitMEMLOCK")), "{drivers:?}");
    front.serves();
}

fn serve(arguments: &[&str]) -> Command {
    with_arguments(Command::new(env!("CARGO_BIN_EXE_warmfront")), arguments)
}

fn with_arguments(mut command: Command, arguments: &[&str]) -> Command {
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1"]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The front as this user and with so many bytes of lockable memory.
fn as_user(user: u32, memory: &str, arguments: &[&str]) -> Front {
    // The build directory may be closed to others.
    let copy = std::env::temp_dir().join(format!("warmfront-{}-{user}", std::process::id()));
    // By a process of its own: a child that another test has begun to start would keep what this one writes open, and
    // nobody may run a file that is open for writing.
    let copying = Command::new("install").args(["-m", "755", env!("CARGO_BIN_EXE_warmfront")]).arg(&copy).status();
    assert!(copying.unwrap().success());
    let mut command = Command::new("prlimit");
    command.arg(format!("--memlock={memory}:{memory}")).args(["setpriv", "--clear-groups", "--inh-caps=-all"]);
    command.args(["--bounding-set=-all", &format!("--reuid={user}"), &format!("--regid={user}")]).arg(&copy);
    let front = Front::of(with_arguments(command, arguments).spawn().unwrap());
    std::fs::remove_file(copy).unwrap();
    front
}

/// Does `work` in a thread that may not set a ring up: its children inherit that.
fn forbidden<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        let refuse = SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error() as u32);
        let rules = BTreeMap::from([(IO_URING_SETUP, Vec::new())]);
        let target = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, target).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        apply_filter(&program).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

struct Front {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
    log: String,
}

impl Front {
    /// Reads its log until all shards serve.
    fn of(mut child: Child) -> Front {
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut log = String::new();
        while !log.contains("ready") {
            let read = lines.read_line(&mut log).unwrap();
            assert!(read > 0, "it ended: {log}");
        }
        // The pipe must stay open for what is logged later.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let (address, admin) = (logged(&log, "listening=["), logged(&log, "admin="));
        Front { child, address, admin, log }
    }

    fn serves(&self) {
        let reply = ask(self.address, "/health");
        assert!(reply.starts_with("HTTP/1.1 "), "{reply}");
    }

    /// Driver and reason of each shard.
    fn drivers(&self) -> Vec<(String, String)> {
        let metrics = ask(self.admin, "/metrics");
        let lines = metrics.lines().filter(|line| line.starts_with("warmfront_shard_driver{"));
        let label = |line: &str, name: &str| {
            let value = line.split(&format!("{name}=\"")).nth(1).unwrap();
            value.split("\"").next().unwrap().to_owned()
        };
        lines.map(|line| (label(line, "driver"), label(line, "why"))).collect()
    }

    fn driver(&self) -> (String, String) {
        self.drivers().into_iter().next().expect("a shard")
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many operations a ring has, out of the words that say why it is used.
fn operations(why: &str) -> u32 {
    let behind = why.split("; its ring has ").nth(1).unwrap_or_else(|| panic!("no ring in {why}"));
    behind.split(' ').next().unwrap().parse().unwrap()
}

fn logged(log: &str, before: &str) -> SocketAddr {
    let behind = log.split(before).nth(1).unwrap_or_else(|| panic!("no {before} in {log}"));
    behind.split([',', ']', ' ', '\n']).next().unwrap().parse().unwrap()
}

fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}
