//! Sockets made the way the data plane wants them.

#![allow(unsafe_code, reason = "TCP_INFO has no safe wrapper")]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::descriptors;
pub use crate::want::is_want;

/// Connections the kernel may hold for a listener before they are accepted.
const LISTEN_BACKLOG: i32 = 4096;
/// Silence after which the kernel asks whether the peer is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Sent bytes that stay unacknowledged this long end a connection, and so does a peer that has had no room for that
/// long; see [`be_patient`]. An engine that takes nothing of a body for that long is taken for one that is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Where there is such a timeout, Linux does not count probes: one that is lost ends a connection that was silent for
/// this long. So all of them must fit into it.
const _: () = assert!(
    KEEPALIVE_IDLE.as_millis() + KEEPALIVE_INTERVAL.as_millis() * KEEPALIVE_PROBES as u128 <= USER_TIMEOUT.as_millis()
);
/// Bytes for a client that the kernel takes and has not sent: two of our reads.
const UNSENT_BYTES_MAX: libc::c_int = 128 << 10;

/// A non-blocking TCP socket.
fn stream_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address.ip() {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?)
}

/// A listener of its own for one shard: the kernel spreads connections over all that share the port.
///
/// # Errors
/// When the address cannot be bound.
pub fn listener(address: SocketAddr) -> io::Result<OwnedFd> {
    listener_of(address, None)
}

/// The same; `ipv6_alone`: whether one on `[::]` leaves IPv4's connections to others, `None`: as the machine has it.
///
/// # Errors
/// When the address cannot be bound.
pub fn listener_of(address: SocketAddr, ipv6_alone: Option<bool>) -> io::Result<OwnedFd> {
    let socket = to_be_bound(address, ipv6_alone)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    prepare(&socket);
    hold_unsent(&socket);
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

/// Makes a listener that another process opened like one of [`listener`]; answers where it listens.
///
/// # Errors
/// When the kernel refuses.
pub fn adopt(listener: &OwnedFd) -> io::Result<SocketAddr> {
    rustix::io::ioctl_fionbio(listener, true)?;
    prepare(listener);
    hold_unsent(listener);
    bound_address(listener)
}

/// Whether nobody else listens there. Sharing a port is meant for the shards of one process: a second
/// front on the same port would silently take half of the connections.
///
/// # Errors
/// When somebody does, or the address cannot be bound at all.
pub fn check_free(address: SocketAddr, ipv6_alone: Option<bool>) -> io::Result<()> {
    let socket = to_be_bound(address, ipv6_alone)?;
    Ok(rustix::net::bind(&socket, &address)?)
}

/// A socket for a listener there. What `[::]` takes can be said before it is bound, and never after.
fn to_be_bound(address: SocketAddr, ipv6_alone: Option<bool>) -> io::Result<OwnedFd> {
    let socket = stream_socket(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if let Some(alone) = ipv6_alone.filter(|_| address.is_ipv6()) {
        sockopt::set_ipv6_v6only(&socket, alone)?;
    }
    Ok(socket)
}

/// Whether a listener on `[::]` leaves IPv4's connections to others.
pub fn is_ipv6_alone(listener: &OwnedFd) -> bool {
    // Of an IPv4 socket it cannot be asked.
    sockopt::ipv6_v6only(listener).unwrap_or(false)
}

/// Whether `[::]` takes IPv4's connections on this machine (net.ipv6.bindv6only) where nothing else is said.
pub fn takes_both_here() -> bool {
    let any = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0));
    stream_socket(any).is_ok_and(|socket| !is_ipv6_alone(&socket))
}

/// The address a listener was really bound to (its port may have been 0).
///
/// # Errors
/// When the kernel does not know the socket.
pub fn bound_address(listener: &OwnedFd) -> io::Result<SocketAddr> {
    TcpListener::from(listener.try_clone()?).local_addr()
}

/// Begins to connect; writable means connected or failed.
///
/// # Errors
/// When no socket can be had, or the address is refused at once.
pub fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = stream_socket(address)?;
    if descriptors::is_last(&socket) {
        return Err(rustix::io::Errno::MFILE.into());
    }
    prepare(&socket);
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Lets the kernel hold only so many bytes that are not on their way yet: what a client does not read otherwise fills a
/// send buffer of megabytes (`net.ipv4.tcp_wmem`). Bytes on their way do not count, so a long way costs no speed.
fn hold_unsent(socket: &OwnedFd) {
    let most = UNSENT_BYTES_MAX;
    // SAFETY: the kernel reads an int of the length given; the descriptor is borrowed, hence open.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const most).cast(),
            size_of_val(&most) as libc::socklen_t,
        );
    }
}

/// Whether there is no address, or no port, to connect from to this one.
pub fn is_port_want(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::ADDRNOTAVAIL)
}

/// What every connection wants: no delay, and an end when the peer is gone. Accepted connections
/// inherit it from their listener. None of it is worth losing a connection for: failures are passed over.
fn prepare(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES);
    be_patient(socket, USER_TIMEOUT);
}

/// Whoever connects to this listener from now on may take nothing for so long: to Linux a peer without room is as one
/// that is gone, though it acknowledges each probe.
pub fn be_patient(listener: &OwnedFd, patience: Duration) {
    // It takes an int, 24 days, and refuses more: the timeout would stay what it was.
    let patience = patience.max(USER_TIMEOUT).as_millis().min(i32::MAX as u128);
    let _ = sockopt::set_tcp_user_timeout(listener, patience as u32);
}

/// Makes the coming close a reset.
pub fn reset_on_close(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Where `tcpi_bytes_acked` lies in `struct tcp_info` (linux/tcp.h): after 8 one-byte fields,
/// 24 u32 fields and two u64 pacing rates. libc's struct ends before it.
const BYTES_ACKED_OFFSET: usize = 8 + 24 * 4 + 2 * 8;
const TCP_INFO_BYTES: usize = BYTES_ACKED_OFFSET + 8;

/// Bytes of ours which the peer's kernel has acknowledged since the connection began. The SYN counts one, so that none
/// is what is said where it is not counted (gVisor): nothing is known then.
pub fn acknowledged(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut info = [0u8; TCP_INFO_BYTES];
    let mut len = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: `info` is writable for `len` bytes and both outlive the call; the kernel writes at most
    // `len` bytes and stores how many in `len`; the descriptor is borrowed, hence open.
    let answer = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len)
    };
    let complete = answer == 0 && len as usize >= TCP_INFO_BYTES;
    let bytes = info[BYTES_ACKED_OFFSET..].first_chunk::<8>()?;
    let acknowledged = u64::from_ne_bytes(*bytes);
    (complete && acknowledged > 0).then_some(acknowledged)
}

/// Asks the kernel whether it holds neither bytes nor an end.
pub fn nothing_waits(socket: &OwnedFd) -> bool {
    let mut looks = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
    matches!(poll(&mut looks, Some(&Timespec::default())), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others may be reached where one cannot be.
    #[test]
    fn only_what_all_connects_want_is_a_want() {
        let of = |number| is_want(&io::Error::from_raw_os_error(number));
        assert_eq!([libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOSPC].map(of), [true; 4]);
        let others = [libc::EADDRNOTAVAIL, libc::ENETUNREACH, libc::ECONNREFUSED];
        assert_eq!(others.map(of), [false; 3]);
        assert_eq!(others.map(|number| is_port_want(&io::Error::from_raw_os_error(number))), [true, false, false]);
    }

    #[test]
    fn clients_may_take_nothing_for_as_long_as_their_listener_says() {
        let listener = listener(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = bound_address(&listener).unwrap();
        let listener = TcpListener::from(listener);
        listener.set_nonblocking(false).unwrap();
        let days = 31 * 24 * 3_600;
        for (said, in_force) in [(120, 120_000), (1, 30_000), (days, i32::MAX as u32)] {
            be_patient(&listener.try_clone().unwrap().into(), Duration::from_secs(said));
            let client = std::net::TcpStream::connect(address).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(sockopt::tcp_user_timeout(&accepted).unwrap(), in_force);
            drop(client);
        }
        let engine = connect(address).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&engine).unwrap(), 30_000);
    }

    /// Accepted ones have it of their listener, whoever opened that.
    #[test]
    fn connections_send_at_once_and_end_where_the_peer_is_gone() {
        let seconds = Duration::from_secs;
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let adopted = TcpListener::bind(here).unwrap().into();
        adopt(&adopted).unwrap();
        for listener in [listener(here).unwrap(), adopted] {
            let address = bound_address(&listener).unwrap();
            let listener = TcpListener::from(listener);
            listener.set_nonblocking(false).unwrap();
            let engine = connect(address).unwrap();
            let accepted = OwnedFd::from(listener.accept().unwrap().0);
            for socket in [&engine, &accepted] {
                assert!(sockopt::tcp_nodelay(socket).unwrap() && sockopt::socket_keepalive(socket).unwrap());
                assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), seconds(15));
                assert_eq!(sockopt::tcp_keepintvl(socket).unwrap(), seconds(5));
                assert_eq!(sockopt::tcp_keepcnt(socket).unwrap(), 3);
                assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), 30_000);
            }
            assert_eq!(unsent_bytes_max(&accepted), 131_072);
            assert_ne!(unsent_bytes_max(&engine), 131_072, "bodies for engines are bounded otherwise");
        }
    }

    fn unsent_bytes_max(socket: &OwnedFd) -> libc::c_int {
        let mut most = 0;
        let mut len = size_of_val(&most) as libc::socklen_t;
        // SAFETY: the kernel writes an int of the length given; the descriptor is borrowed, hence open.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_NOTSENT_LOWAT,
                (&raw mut most).cast(),
                &mut len,
            )
        };
        assert_eq!(answer, 0);
        most
    }
}
