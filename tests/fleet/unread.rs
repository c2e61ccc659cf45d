//! A front whose log is not read: the pipe or socket for it is full before it starts.

use std::io::{ErrorKind, Read, Write, pipe};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::process::{Pid, Signal, kill_process};

use crate::engine::Engine;
use crate::front::Client;
use crate::{DRIVERS, reserved, until};

/// A front that ends with the value.
struct Front {
    child: Child,
    admin: SocketAddr,
    config: PathBuf,
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.config);
    }
}

impl Front {
    fn start(driver: &str, engine: SocketAddr, journal: bool, log: OwnedFd) -> Front {
        let (admin, _kept) = reserved::address();
        let config = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("unread-{}.toml", admin.port()));
        std::fs::write(&config, "[health]\nprobe_interval_ms = 50\nslow_start_ms = 0\n").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
        command
            .args(["serve", "--shards", "1", "--listen", "127.0.0.1:0", "--driver", driver, "--config"])
            .arg(&config);
        command.args(["--admin", &admin.to_string(), "--upstream", &format!("http://{engine}")]);
        if journal {
            let stream = fstat(&log).unwrap();
            command.env("JOURNAL_STREAM", format!("{}:{}", stream.st_dev, stream.st_ino));
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        until("the admin listener", || TcpStream::connect(admin).is_ok());
        Front { child, admin, config }
    }

    fn says(&self, path: &str, words: &str) -> bool {
        let reply = Client::to(self.admin).get(path);
        reply.status == 200 && String::from_utf8_lossy(&reply.body.data).contains(words)
    }

    /// Makes the engine go or come back, and waits until the front knows.
    fn follows(&self, engine: &Engine, health: &str) {
        if health == "up" {
            engine.returns()
        } else {
            engine.goes()
        }
        until(health, || self.says("/endpoints", &format!("\"health\":\"{health}\"")));
    }

    fn loses_lines_while(&self, engine: &Engine) {
        until("ready", || self.says("/readyz", ""));
        ["down", "up"].into_iter().for_each(|health| self.follows(engine, health));
        assert!(self.says("/readyz", ""));
        let counts = "\nwarmfront_log_lines_lost_total ";
        assert!(self.says("/metrics", counts) && !self.says("/metrics", &format!("{counts}0\n")));
    }

    fn ends(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let mut ended = None;
        until("the end", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().code(), Some(0));
    }
}

/// Writes until nothing more is taken, and leaves its flags as they were.
fn fill(to: &mut (impl Write + AsFd)) {
    let flags = fcntl_getfl(&*to).unwrap();
    fcntl_setfl(&*to, flags | OFlags::NONBLOCK).unwrap();
    // Byte by byte at the end, so that there is no room at all.
    for piece in [&[b'\n'; 4_096][..], b"\n"] {
        let refused = std::iter::repeat_with(|| to.write(piece)).find_map(Result::err).unwrap();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    }
    fcntl_setfl(&*to, flags).unwrap();
}

/// A socket, as to the journal, or a pipe, as to a container's log driver; it is full.
fn full(journal: bool) -> (Box<dyn Read + Send>, OwnedFd) {
    if journal {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        fill(&mut writer);
        (Box::new(reader), writer.into())
    } else {
        let (reader, mut writer) = pipe().unwrap();
        fill(&mut writer);
        (Box::new(reader), writer.into())
    }
}

/// The front starts, looks after its engines, answers and ends.
#[test]
fn a_log_that_nobody_reads_delays_nothing() {
    for (driver, journal) in DRIVERS.into_iter().zip([true, false]) {
        let engine = Engine::start();
        let (_reader, log) = full(journal);
        let front = Front::start(driver, engine.address, journal, log);
        front.loses_lines_while(&engine);
        front.ends();
    }
}

/// A reader that reads again is told how many lines it missed.
#[test]
fn a_log_that_is_read_again_says_what_it_lost() {
    for (driver, journal) in DRIVERS.into_iter().zip([false, true]) {
        let engine = Engine::start();
        let (mut reader, log) = full(journal);
        let front = Front::start(driver, engine.address, journal, log);
        front.loses_lines_while(&engine);
        let (sender, pieces) = mpsc::channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4_096];
            while let Ok(len @ 1..) = reader.read(&mut piece) {
                let _ = sender.send(piece[..len].to_vec());
            }
        });
        let mut read = String::new();
        let mut turns = ["down", "up"].into_iter().cycle();
        until("the words", || {
            front.follows(&engine, turns.next().unwrap());
            read.extend(pieces.try_iter().map(|piece| String::from_utf8(piece).unwrap()));
            read.contains("lines of this log were lost")
        });
        let said = read.lines().find(|line| line.contains("lines of this log were lost")).unwrap();
        let lost: u64 = said.split("lost=").nth(1).unwrap().trim().parse().unwrap();
        assert!(lost > 0 && said.starts_with("<4>") == journal, "{said}");
        front.ends();
    }
}
