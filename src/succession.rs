//! Hands listening sockets from one process to the one that takes its place (the heir), so that no connection is
//! refused meanwhile.
//!
//! The heir is started with the same arguments, one end of a socket pair as its standard input and [`HEIR`] in its
//! environment. A process between starts it and ends at once: so the heir is not this process's child, and a service
//! manager notices its death even while its predecessor lives. It is sent the sockets (SCM_RIGHTS), serves from them,
//! and says so by one byte; only then does its predecessor close its own. A socket that both have open loses no
//! connection that waits in it.

mod activation;

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::Metadata;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// Set in the environment of a process that is to take another's place, and of the one that starts it.
pub const HEIR: &str = "WARMFRONT_HEIR";
const STARTS_IT: &str = "starts";
const TAKES_PLACE: &str = "takes-place";
/// Longest wait for an answer of a predecessor that was told to let go.
const LETTING_GO: Duration = Duration::from_secs(5);
/// Descriptors in one message; the kernel passes at most 253.
const AT_ONCE: usize = 64;
/// The variable that names the process which a watchdog watches: not the heir.
const NOT_INHERITED: &str = "WATCHDOG_PID";

/// Sockets that are handed on.
#[derive(Debug)]
pub struct Estate {
    /// The admin listener.
    pub admin: OwnedFd,
    /// Listeners of all shards.
    pub listeners: Vec<OwnedFd>,
}

/// The sockets that a process begins with and others opened.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The admin listener.
    pub admin: Option<OwnedFd>,
    /// Listeners for clients.
    pub listeners: Vec<OwnedFd>,
    /// The process that is to be told that this one serves.
    pub predecessor: Option<Predecessor>,
}

/// Takes what a predecessor hands on; without one, what systemd opened for this process (socket activation)
/// or kept of one that is gone (descriptor store). `admin` tells which of these is for the admin listener.
/// To be called before there are threads: it clears what the environment says of these sockets.
///
/// # Errors
/// When sockets that were announced do not come, or are no TCP listeners.
pub fn inherit(admin: SocketAddr) -> io::Result<Inherited> {
    CALLED.get_or_init(called);
    match from_predecessor()? {
        Some((Estate { admin, listeners }, predecessor)) => {
            Ok(Inherited { admin: Some(admin), listeners, predecessor: Some(predecessor) })
        }
        None => activation::given(admin),
    }
}

/// Whether systemd announces sockets to this process. To be asked before [`inherit`], which clears that.
pub fn is_activated() -> bool {
    std::env::var("LISTEN_PID").is_ok_and(|id| id == std::process::id().to_string())
}

/// The process between, which starts an heir and ends at once. The program on disk may be any other by now, and do
/// neither.
#[derive(Debug)]
pub struct Starter {
    program: PathBuf,
    process: Child,
    /// The stream on which its heir answers.
    stream: UnixStream,
}

impl Starter {
    /// Starts the program that this process was started from, as it is on disk now.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start() -> io::Result<Starter> {
        let (stream, theirs) = UnixStream::pair()?;
        let program = program()?;
        let mut command = same(&program, STARTS_IT);
        let process = command.env_remove(NOT_INHERITED).stdin(OwnedFd::from(theirs)).spawn();
        let process = process.map_err(|error| cannot_start(&program, error))?;
        Ok(Starter { program, process, stream })
    }

    /// Whether it has started an heir, and ended.
    ///
    /// # Errors
    /// When it has ended otherwise.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        let Some(status) = self.process.try_wait()? else { return Ok(false) };
        if status.success() {
            return Ok(true);
        }
        Err(io::Error::other(format!("{} could not be started ({status})", self.program.display())))
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
    }

    /// Kills it, and returns that it was given up after so long.
    pub fn given_up(mut self, after: Duration) -> io::Error {
        self.kill();
        let _ = self.process.wait();
        let why = format!("{} has not begun within {} s, and was killed", self.program.display(), after.as_secs());
        io::Error::new(io::ErrorKind::TimedOut, why)
    }

    /// Waits for the heir that it has started to answer. That one has `patience` to begin, and again to serve.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn heir(self, patience: Duration) -> io::Result<Heir> {
        let mut stream = self.stream;
        stream.set_read_timeout(Some(patience))?;
        let mut id = [0; 4];
        stream.read_exact(&mut id).map_err(|error| does_not_serve(&stream, &error))?;
        let id = u32::from_le_bytes(id);
        let process = Pid::from_raw(id.cast_signed()).and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
        Ok(Heir { id, process, stream })
    }
}

/// A process that was started to take this one's place.
#[derive(Debug)]
pub struct Heir {
    id: u32,
    /// Its pidfd, which stays its own: its id may be another process's when it has ended. `None` if the kernel has no
    /// pidfds.
    process: Option<OwnedFd>,
    stream: UnixStream,
}

impl Heir {
    /// Hands it the sockets and waits until it serves. If it does not, it is killed.
    ///
    /// # Errors
    /// When it does not take them, ends before, or takes too long.
    pub fn serves(mut self, estate: &Estate) -> io::Result<Heir> {
        let said = hand_on(&self.stream, estate).and_then(|()| self.stream.read_exact(&mut [0]));
        if let Err(error) = said {
            self.kill();
            return Err(does_not_serve(&self.stream, &error));
        }
        Ok(self)
    }

    /// Kills it. Without a pidfd that may hit another process, if it has ended by itself.
    fn kill(&self) {
        let _ = match (&self.process, Pid::from_raw(self.id.cast_signed())) {
            (Some(process), _) => pidfd_send_signal(process, Signal::KILL),
            (None, Some(id)) => kill_process(id, Signal::KILL),
            (None, None) => Ok(()),
        };
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Tells it that it alone speaks to the service manager now. While `self` lives it sees that this process does.
    pub fn tell_alone(&mut self) {
        // If it is gone, its supervisor sees that.
        let _ = self.stream.write_all(b"!");
    }

    /// Has it read its configuration anew, and open its access log (SIGHUP).
    ///
    /// # Errors
    /// When it is gone, or cannot be told apart from others.
    pub fn reload(&self) -> io::Result<()> {
        self.signal(Signal::HUP)
    }

    /// Has it start another process in its own place (SIGUSR2).
    ///
    /// # Errors
    /// When it is gone, or cannot be told apart from others.
    pub fn hand_on(&self) -> io::Result<()> {
        self.signal(Signal::USR2)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let process = self.process.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        Ok(pidfd_send_signal(process, signal)?)
    }
}

/// Why an heir does not serve, in words: the kernel's errors for a wait that was too long, and for its end, would say
/// other things.
fn does_not_serve(stream: &UnixStream, error: &io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
    let patience = || stream.read_timeout().ok().flatten().unwrap_or_default();
    let why = match error.kind() {
        WouldBlock | TimedOut => format!(" within {} s", patience().as_secs()),
        UnexpectedEof | BrokenPipe | ConnectionReset => ": it ended, and its own lines say why".into(),
        _ => format!(": {error}"),
    };
    io::Error::new(error.kind(), format!("it did not come to serve{why}"))
}

/// Ends a process that was to take this one's place; it finishes what it has begun with clients.
pub fn end(heir: u32) {
    if let Some(id) = Pid::from_raw(heir.cast_signed()) {
        // It may have ended by itself.
        let _ = kill_process(id, Signal::TERM);
    }
}

/// The command for another process of this program, with the same arguments.
fn same(program: &Path, role: &str) -> Command {
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(HEIR, role);
    command
}

/// The path of this process's program, where another may have been put since.
///
/// # Errors
/// When nothing there can be started. The file that this process itself came from is no substitute: it would be the old
/// program.
fn program() -> io::Result<PathBuf> {
    let path = CALLED.get_or_init(called).clone().map_or_else(started_from, Ok)?;
    let why = match path.metadata() {
        Ok(file) if is_executable(&file) => return Ok(path),
        Ok(file) if file.is_file() => {
            io::Error::other(format!("it is not executable (mode {:o})", file.permissions().mode() & 0o7777))
        }
        Ok(_) => io::Error::other("it is no file"),
        Err(error) => error,
    };
    Err(cannot_start(&path, why))
}

fn cannot_start(program: &Path, why: impl Display) -> io::Error {
    io::Error::other(format!("cannot start {}: {why}", program.display()))
}

fn is_executable(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

/// [`called`] as it was when this process began: a link may lead to nothing by the time that it is needed.
static CALLED: OnceLock<Option<PathBuf>> = OnceLock::new();

/// The path that this process was called by, if its program lies there. The kernel knows only the file, which stays the
/// old one if a link to it was turned or it was moved aside.
fn called() -> Option<PathBuf> {
    let name = PathBuf::from(std::env::args_os().next()?);
    if name.as_os_str().as_bytes().contains(&b'/') {
        return Some(name).filter(|path| path.metadata().is_ok_and(|file| is_executable(&file)));
    }
    // A name without a slash, as a shell finds it in PATH. Another program may have the same name.
    let own = std::fs::metadata("/proc/self/exe").ok()?;
    let is_own = |path: &PathBuf| path.metadata().is_ok_and(|file| (file.dev(), file.ino()) == (own.dev(), own.ino()));
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(&name)).find(is_own)
}

/// The file that the kernel started it from.
fn started_from() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let bytes = path.as_os_str().as_bytes();
    let name = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    Ok(PathBuf::from(OsString::from_vec(name.to_vec())))
}

fn hand_on(stream: &UnixStream, estate: &Estate) -> io::Result<()> {
    let count = u16::try_from(estate.listeners.len()).map_err(io::Error::other)?;
    send(stream, &count.to_le_bytes(), &[estate.admin.as_fd()])?;
    let listeners: Vec<BorrowedFd<'_>> = estate.listeners.iter().map(AsFd::as_fd).collect();
    listeners.chunks(AT_ONCE).try_for_each(|some| send(stream, b"+", some))
}

fn send(stream: &UnixStream, words: &[u8], sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(io::Error::other("too many sockets for one message"));
    }
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(words)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == words.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Tells the process whose place this one takes that it serves.
#[derive(Debug)]
pub struct Predecessor(UnixStream);

impl Predecessor {
    /// Tells it that this process serves. Returns once it has told the service manager which process is which, or is
    /// gone.
    pub fn let_go(&mut self) {
        let told = self.0.set_read_timeout(Some(LETTING_GO)).and_then(|()| self.0.write_all(b"!"));
        // If it has gone there is nothing to let go.
        let _ = told.and_then(|()| self.0.read_exact(&mut [0]));
    }

    /// Waits for its end: when this process ends, a service manager kills whatever is left of the service.
    pub fn outlive(mut self) {
        // A late answer may come first, and nothing else; an error is its end as well.
        let _ = self.0.set_read_timeout(None).and_then(|()| io::copy(&mut self.0, &mut io::sink()));
    }
}

/// What a predecessor hands on, if this process was started to take its place.
fn from_predecessor() -> io::Result<Option<(Estate, Predecessor)>> {
    match std::env::var_os(HEIR) {
        None => return Ok(None),
        Some(role) if role == STARTS_IT => {
            same(&program()?, TAKES_PLACE).spawn()?;
            std::process::exit(0);
        }
        Some(_) => {}
    }
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    (&stream).write_all(&std::process::id().to_le_bytes())?;
    let mut count = [0; 2];
    let admin = receive(&stream, &mut count)?.pop().ok_or(io::ErrorKind::InvalidData)?;
    let count = usize::from(u16::from_le_bytes(count));
    let mut listeners = Vec::new();
    while listeners.len() < count {
        let some = receive(&stream, &mut [0])?;
        if some.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        listeners.extend(some);
    }
    Ok(Some((Estate { admin, listeners }, Predecessor(stream))))
}

fn receive(stream: &UnixStream, words: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let wanted = words.len();
    let received = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(words)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != wanted {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            sockets.extend(some);
        }
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn any_number_of_sockets_is_handed_on_in_order() {
        for count in [0, 1, AT_ONCE, AT_ONCE + 1, 200] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let made: Vec<_> = (0..=count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
            let ports: Vec<_> = made.iter().map(|listener| listener.local_addr().unwrap()).collect();
            let mut listeners: Vec<OwnedFd> = made.into_iter().map(OwnedFd::from).collect();
            let admin = listeners.pop().unwrap();
            hand_on(&ours, &Estate { admin, listeners }).unwrap();
            let mut told = [0; 2];
            let mut taken = receive(&theirs, &mut told).unwrap();
            assert_eq!(usize::from(u16::from_le_bytes(told)), count);
            let admin = taken.pop().unwrap();
            while taken.len() < count {
                taken.extend(receive(&theirs, &mut [0]).unwrap());
            }
            taken.push(admin);
            let found: Vec<_> = taken.into_iter().map(|fd| TcpListener::from(fd).local_addr().unwrap()).collect();
            assert_eq!(found, ports);
        }
    }

    /// Its number may be another's by then.
    #[test]
    fn an_heir_that_does_not_serve_is_ended_and_nobody_else() {
        let [mut heir, mut other] = [(); 2].map(|()| Command::new("sleep").arg("600").spawn().unwrap());
        let id = Pid::from_raw(heir.id().cast_signed()).unwrap();
        if let Ok(process) = pidfd_open(id, PidfdFlags::empty()) {
            let (stream, _) = UnixStream::pair().unwrap();
            let admin = OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
            let estate = Estate { admin, listeners: Vec::new() };
            let said = Heir { id: other.id(), process: Some(process), stream }.serves(&estate).unwrap_err();
            assert!(said.to_string().contains("did not come to serve"), "{said}");
            assert!(!heir.wait().unwrap().success());
            assert!(other.try_wait().unwrap().is_none());
        }
        for mut child in [heir, other] {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    #[test]
    fn why_no_heir_came_to_serve_is_said_in_words() {
        let serves = |stays: bool| {
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            let (stream, theirs) = UnixStream::pair().unwrap();
            let theirs = Some(theirs).filter(|_| stays);
            stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            let admin = OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
            let heir = Heir { id: child.id(), process: None, stream };
            let said = heir.serves(&Estate { admin, listeners: Vec::new() }).unwrap_err().to_string();
            child.wait().unwrap();
            drop(theirs);
            said
        };
        assert_eq!(serves(true), "it did not come to serve within 1 s");
        assert_eq!(serves(false), "it did not come to serve: it ended, and its own lines say why");
    }

    /// One that was too busy to answer when it was told to let go still has its streams.
    #[test]
    fn a_late_answer_is_not_the_predecessors_end() {
        let (mut older, younger) = UnixStream::pair().unwrap();
        older.write_all(b"!").unwrap();
        let (ends, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            Predecessor(younger).outlive();
            ends.send(()).unwrap();
        });
        assert!(ended.recv_timeout(Duration::from_millis(200)).is_err());
        drop(older);
        ended.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}
