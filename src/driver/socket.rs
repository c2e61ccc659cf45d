//! Makes sockets with the options that the data plane needs.

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
/// A connection ends if sent bytes stay unacknowledged for this long, or if the peer has no room for this long; see
/// [`be_patient`]. So an engine that takes nothing of a body for this long counts as gone.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// With such a timeout Linux does not count probes: one lost probe ends a connection that was silent for this long. So
/// all probes must fit into it.
const _: () = assert!(
    KEEPALIVE_IDLE.as_millis() + KEEPALIVE_INTERVAL.as_millis() * KEEPALIVE_PROBES as u128 <= USER_TIMEOUT.as_millis()
);
/// Most bytes for a client that the kernel takes before it has sent them: two of our reads.
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

/// Makes a listener for one shard: the kernel spreads connections over all that share the port.
///
/// # Errors
/// When the address cannot be bound.
pub fn listener(address: SocketAddr) -> io::Result<OwnedFd> {
    listener_of(address, None)
}

/// The same. `ipv6_alone`: whether a listener on `[::]` leaves IPv4's connections to others; `None`: as the machine is
/// configured.
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

/// Makes a listener that another process opened like one of [`listener`]; returns its address.
///
/// # Errors
/// When the kernel refuses.
pub fn adopt(listener: &OwnedFd) -> io::Result<SocketAddr> {
    rustix::io::ioctl_fionbio(listener, true)?;
    prepare(listener);
    hold_unsent(listener);
    bound_address(listener)
}

/// Checks that nobody else listens at `address`. Sharing a port is meant for the shards of one process: a second front
/// on the same port would silently take half of the connections.
///
/// # Errors
/// When somebody listens there, or the address cannot be bound at all.
pub fn check_free(address: SocketAddr, ipv6_alone: Option<bool>) -> io::Result<()> {
    let socket = to_be_bound(address, ipv6_alone)?;
    Ok(rustix::net::bind(&socket, &address)?)
}

/// Makes a socket for a listener at `address`. Whether `[::]` takes IPv4's connections can be set only before it is
/// bound.
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
    // An IPv4 socket does not have this option.
    sockopt::ipv6_v6only(listener).unwrap_or(false)
}

/// Whether `[::]` takes IPv4's connections on this machine by default (net.ipv6.bindv6only).
pub fn takes_both_here() -> bool {
    let any = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0));
    stream_socket(any).is_ok_and(|socket| !is_ipv6_alone(&socket))
}

/// Returns the address that a listener was bound to, with its real port if 0 was asked for.
///
/// # Errors
/// When the kernel does not know the socket.
pub fn bound_address(listener: &OwnedFd) -> io::Result<SocketAddr> {
    TcpListener::from(listener.try_clone()?).local_addr()
}

/// Begins to connect; the socket is writable once it is connected or has failed.
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

/// Bounds the bytes that the kernel holds before they are on their way: a client that does not read would otherwise
/// fill a send buffer of megabytes (`net.ipv4.tcp_wmem`). Bytes on their way do not count, so that a long way costs no
/// speed.
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

/// Whether a connect failed because no local address or port is left for that destination.
pub fn is_port_want(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::ADDRNOTAVAIL)
}

/// Sets what every connection needs: no delay, and an end when the peer is gone. Accepted connections inherit it from
/// their listener. Failures are ignored, as none of it is worth losing a connection for.
fn prepare(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES);
    be_patient(socket, USER_TIMEOUT);
}

/// Lets clients that connect to this listener from now on take nothing for so long. Linux treats a peer without room
/// like one that is gone, although it acknowledges each probe.
pub fn be_patient(listener: &OwnedFd, patience: Duration) {
    // The option takes an int, 24 days, and refuses more, which would leave the old timeout.
    let patience = patience.max(USER_TIMEOUT).as_millis().min(i32::MAX as u128);
    let _ = sockopt::set_tcp_user_timeout(listener, patience as u32);
}

/// Makes the next close a reset.
pub fn reset_on_close(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Offset of `tcpi_bytes_acked` in `struct tcp_info` (linux/tcp.h): after 8 one-byte fields, 24 u32 fields and two u64
/// pacing rates. libc's struct ends before it.
const BYTES_ACKED_OFFSET: usize = 8 + 24 * 4 + 2 * 8;
const TCP_INFO_BYTES: usize = BYTES_ACKED_OFFSET + 8;

/// Returns how many of our bytes the peer's kernel has acknowledged since the connection began. The SYN counts as one,
/// so that 0 means that the kernel does not count (gVisor): then `None`.
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

/// Whether the kernel holds neither bytes nor an end for us.
pub fn nothing_waits(socket: &OwnedFd) -> bool {
    let mut looks = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
    matches!(poll(&mut looks, Some(&Timespec::default())), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If one address cannot be reached, others may be.
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

    /// Accepted connections inherit the options of their listener, whichever process opened it.
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
