//! Whether a call failed because this machine or process ran out of something.

use std::io;

use rustix::io::Errno;

/// Whether it ran out of descriptors, memory or room to watch one more (`fs.epoll.max_user_watches`), which says
/// nothing about the peer. Having no address or no port to connect from is no want: it holds for this peer alone (an
/// IPv6 address where there is no IPv6, the last port that leads there), and another may be reached.
pub fn is_want(error: &io::Error) -> bool {
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSPC, Errno::AGAIN];
    Errno::from_io_error(error).is_some_and(|error| ours.contains(&error))
}
