//! What a front says to its service manager, and what it takes from it; the manager is this test.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::engine::Engine;
use crate::front::{Client, Front};
use crate::{DRIVERS, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_warmfront");
const SHARDS: usize = 2;

pub struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    pub said: Vec<String>,
    /// The processes that said it.
    by: Vec<i32>,
    kept: Vec<OwnedFd>,
}

impl Manager {
    pub fn new(name: &str) -> Manager {
        let name = format!("notify-{name}-{}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        set_socket_passcred(&socket, true).unwrap();
        Manager { socket, path, said: Vec::new(), by: Vec::new(), kept: Vec::new() }
    }

    /// Takes one message, if there is one.
    pub fn listen(&mut self) {
        let mut words = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut words_into = [IoSliceMut::new(&mut words)];
        let Ok(got) = recvmsg(&self.socket, &mut words_into, &mut control, RecvFlags::CMSG_CLOEXEC) else { return };
        for message in control.drain() {
            match message {
                // Moved above the numbers at which the next process gets them, so that none overwrites another.
                RecvAncillaryMessage::ScmRights(sockets) => {
                    self.kept.extend(sockets.map(|socket| rustix::io::fcntl_dupfd_cloexec(&socket, 200).unwrap()));
                }
                RecvAncillaryMessage::ScmCredentials(who) => self.by.push(who.pid.as_raw_nonzero().get()),
                _ => {}
            }
        }
        self.said.push(String::from_utf8(words[..got.bytes].to_vec()).unwrap());
    }

    /// Waits for a message that has this line; returns it.
    pub fn hears(&mut self, line: &str) -> String {
        let mut found = None;
        until(line, || {
            self.listen();
            found = self.said.iter().find(|said| said.lines().any(|one| one.starts_with(line))).cloned();
            found.is_some()
        });
        found.unwrap()
    }

    /// Takes and drops what has come by now.
    pub fn forgets(&mut self) {
        let mut heard = usize::MAX;
        while heard != self.said.len() {
            heard = self.said.len();
            self.listen();
        }
        self.said.clear();
        self.by.clear();
    }

    /// A command that starts the program as this manager does: with what was kept, from descriptor 3 on.
    pub fn command(&self) -> Command {
        let mut command = Command::new("bash");
        let places: Vec<String> =
            (3..).zip(&self.kept).map(|(to, from)| format!("{to}<&{}", from.as_raw_fd())).collect();
        for socket in &self.kept {
            rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty()).unwrap();
        }
        let script = format!("exec {} env LISTEN_PID=$$ WATCHDOG_PID=$$ {PROGRAM} \"$@\"", places.join(" "));
        command.args(["-c", &script, "bash"]).env("NOTIFY_SOCKET", &self.path);
        if !self.kept.is_empty() {
            command.env("LISTEN_FDS", self.kept.len().to_string());
        }
        command
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub fn config(front: Option<&Front>) -> String {
    let addresses = front
        .map_or_else(String::new, |front| format!("listen = [\"{}\"]\nadmin = \"{}\"\n", front.address, front.admin));
    format!("[serve]\nshards = {SHARDS}\npin = false\n{addresses}")
}

/// The front is killed: clients that connect before the next process is there wait, and are answered by it.
#[test]
fn a_crash_refuses_nobody() {
    for driver in DRIVERS {
        let engine = Engine::start();
        let mut manager = Manager::new(&format!("crash-{driver}"));
        let front = Front::by(manager.command(), driver, &[engine.address], &config(None));
        manager.hears("READY=1");
        until("the sockets", || {
            manager.listen();
            manager.kept.len() == SHARDS + 1
        });
        assert!(manager.hears("FDSTORE=1").contains("FDNAME=warmfront"));
        front.until_health(0, "up");
        let (again, address) = (config(Some(&front)), front.address);
        assert_eq!(front.connect().post().status, 200);
        front.kill();
        let killed = Instant::now();
        let mut waiting: Vec<_> = (0..20).map(|_| Client::to(address)).collect();
        waiting.iter_mut().for_each(|client| client.ask());
        manager.said.clear();
        let front = Front::by(manager.command(), driver, &[engine.address], &again);
        assert_eq!(front.address, address);
        for client in &mut waiting {
            assert_eq!(client.reply().status, 200, "{driver}");
        }
        eprintln!("{driver}: answered {} ms after the kill", killed.elapsed().as_millis());
        manager.hears("READY=1");
        manager.hears("FDSTORE=1");
        manager.said.clear();
        // After a drain no client is to wait.
        assert_eq!(front.stop(), Some(0));
        assert!(manager.hears("STOPPING=1").contains("STATUS=draining"));
        // `systemctl status` shows this of a service that has ended.
        manager.hears("STATUS=drained");
        assert!(manager.hears("FDSTOREREMOVE=1").contains("FDNAME=warmfront"));
    }
}

/// An upgrade: the manager learns which process is the service now, from the one that was; then that one is silent.
#[test]
fn an_upgrade_changes_the_main_process() {
    for driver in DRIVERS {
        let engine = Engine::start();
        let mut manager = Manager::new(&format!("upgrade-{driver}"));
        let mut command = manager.command();
        command.env("WATCHDOG_USEC", "2000000");
        let mut front = Front::by(command, driver, &[engine.address], &config(None));
        manager.hears("READY=1");
        manager.said.clear();
        front.upgrade();
        let told = manager.hears("MAINPID=");
        assert_eq!(told.trim(), format!("MAINPID={}", front.heir()), "{driver}");
        manager.hears("READY=1");
        manager.hears("FDSTORE=1");
        let at = |word: &str| manager.said.iter().position(|said| said.starts_with(word));
        assert_eq!(at("STOPPING"), None, "{driver}");
        // A kept socket of the process before may be a listener that no process has any more.
        assert!(at("FDSTOREREMOVE=1").is_some_and(|removed| Some(removed) < at("FDSTORE=1")), "{:?}", manager.said);
        assert_eq!(front.connect().post().status, 200);
        // The process that the watchdog was set for has gone. Without messages the new one would be killed with all of
        // its streams.
        until("the first process's end", || front.first_has_ended());
        manager.forgets();
        manager.hears("WATCHDOG=1");
    }
}

/// An heir that has to wait long for its engines: systemd logs a warning of each message from a process that is not the
/// service.
#[test]
fn who_is_to_take_anothers_place_is_silent_until_it_does() {
    for driver in DRIVERS {
        let (engine, silent) = (Engine::start(), TcpListener::bind("127.0.0.1:0").unwrap());
        let mut manager = Manager::new(&format!("heir-{driver}"));
        let mut command = manager.command();
        command.env("WATCHDOG_USEC", "800000");
        let engines = [engine.address, silent.local_addr().unwrap()];
        let mut front = Front::by(command, driver, &engines, &(config(None) + "[health]\nprobe_timeout_ms = 1000\n"));
        manager.hears("READY=1");
        manager.forgets();
        // The manager reads all the while: its socket holds ten messages, and the sender of one more waits.
        front.try_upgrade();
        manager.hears("MAINPID=");
        manager.hears("READY=1");
        until("the heir's name", || front.heirs() == 1);
        let first =
            |of: &dyn Fn(&(&i32, &String)) -> bool| manager.by.iter().zip(&manager.said).position(|word| of(&word));
        let told = first(&|(_, said)| said.starts_with("MAINPID="));
        let heard = first(&|(by, _)| **by == front.heir());
        assert!(told.is_some() && heard > told, "{driver}: {heard:?}, {told:?}");
        until("the first process's end", || front.first_has_ended());
    }
}
