//! The kernel behind small types: epoll, sockets that std cannot make, affinity, limits, signals.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub const IN: u32 = libc::EPOLLIN as u32;
pub const OUT: u32 = libc::EPOLLOUT as u32;
pub const HANGUP: u32 = libc::EPOLLRDHUP as u32;
pub const EDGE: u32 = libc::EPOLLET as u32;

const EVENTS_MAX: usize = 1024;

pub struct Poller {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        // SAFETY: no pointers; a negative result is handled before the descriptor is owned.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` is a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Poller { fd, events: Vec::with_capacity(EVENTS_MAX) })
    }

    pub fn add(&self, socket: &impl AsRawFd, token: usize, interest: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket.as_raw_fd(), token, interest)
    }

    pub fn change(&self, socket: &impl AsRawFd, token: usize, interest: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket.as_raw_fd(), token, interest)
    }

    fn control(&self, operation: i32, socket: RawFd, token: usize, interest: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: token as u64 };
        // SAFETY: `event` lives through the call; the kernel copies it.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, socket, &mut event) }).map(drop)
    }

    /// Waits for events, at most `timeout` (to the nanosecond), and returns their number.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timeout_at = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the vector has room for EVENTS_MAX events, `timeout` lives through the call, no mask is given.
        let count = unsafe {
            libc::epoll_pwait2(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS_MAX as i32,
                timeout_at,
                std::ptr::null(),
            )
        };
        let count = match check(count) {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        // SAFETY: the kernel has written the first `count` events.
        unsafe { self.events.set_len(count) };
        Ok(count)
    }

    /// Token and flags of event `at` of the last wait.
    pub fn event(&self, at: usize) -> (usize, u32) {
        let event = self.events[at];
        (event.u64 as usize, event.events)
    }
}

/// A non-blocking listener whose queue holds a burst of thousands of connections.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    // SAFETY: the descriptor is a listening socket of ours; a second listen only sets its queue length.
    check(unsafe { libc::listen(listener.as_raw_fd(), 4096) })?;
    Ok(listener)
}

/// Connects from a chosen loopback address, so that one host's ports do not run out; the result is
/// non-blocking and without delay.
pub fn connect_from(source: Ipv4Addr, target: SocketAddrV4) -> io::Result<TcpStream> {
    // SAFETY: no pointers; a negative result is handled before the descriptor is owned.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: `fd` is a new descriptor that nobody else owns.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    // The port is chosen at connect, by the whole four-tuple.
    set_option(&stream, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1i32)?;
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let from = sockaddr(SocketAddrV4::new(source, 0));
    // SAFETY: `from` is a sockaddr_in of the given length that lives through the call.
    check(unsafe { libc::bind(fd, std::ptr::from_ref(&from).cast(), length) })?;
    let to = sockaddr(target);
    // SAFETY: `to` is a sockaddr_in of the given length that lives through the call.
    check(unsafe { libc::connect(fd, std::ptr::from_ref(&to).cast(), length) })?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn sockaddr(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    }
}

/// Closing sends RST: thousands of streams given up at once leave no TIME_WAIT behind.
pub fn reset_on_close(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // Without it the ports come back a minute later: not worth failing for.
    let _ = set_option(stream, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

fn set_option<T>(stream: &TcpStream, level: i32, name: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is a plain C value of the given length that lives through the call.
    check(unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length) })
        .map(drop)
}

/// Ties the calling thread, and what it starts, to one core.
pub fn pin(core: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `core` is inside the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: `set` lives through the call and has the given size.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) }).map(drop)
}

/// Raises the limit of open descriptors towards `wanted`; returns what it is now.
pub fn raise_descriptors(wanted: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    if limit.rlim_cur >= wanted {
        return limit.rlim_cur;
    }
    // The hard limit can be raised by root alone; the soft one up to the hard one by all.
    for max in [limit.rlim_max.max(wanted), limit.rlim_max] {
        let raised = libc::rlimit { rlim_cur: wanted.min(max), rlim_max: max };
        // SAFETY: `raised` lives through the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0 {
            return raised.rlim_cur;
        }
    }
    limit.rlim_cur
}

/// Between fork and exec of a child: its own process group (Ctrl-C goes to the runner alone, which ends
/// its children in order), one core, and an end with the runner, however that ends.
pub fn prepare_child(core: usize) -> io::Result<()> {
    // SAFETY: both calls take plain numbers and are allowed between fork and exec.
    unsafe {
        check(libc::setpgid(0, 0))?;
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM))?;
    }
    pin(core)
}

/// Microseconds of the clock that all processes of the machine share and nobody sets.
pub fn clock_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` lives through the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Has the kernel end a child with the thread that starts it, however that ends; for one that needs no core of its own.
pub fn end_with_us(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call on plain numbers; it neither allocates nor takes
    // a lock.
    unsafe { command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)).map(drop)) };
}

/// Asks a child of ours to end.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: plain numbers; the caller holds the child unreaped, so the pid is still its own.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_signal: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on Ctrl-C and SIGTERM are noted instead of ending the process.
pub fn note_interrupts() {
    let handler = interrupt as extern "C" fn(i32) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, handler) };
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

pub fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_child_ends_with_the_thread_that_starts_it() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("20");
            end_with_us(&mut command);
            command.spawn().expect("a child")
        };
        let mut child = std::thread::spawn(start).join().expect("a thread that ends");
        assert_eq!(child.wait().expect("its end").signal(), Some(libc::SIGKILL));
    }
}
