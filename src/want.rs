//! Whether a call failed for want of something of ours.

use std::io;

use rustix::io::Errno;

/// Whether that is so of descriptors, memory or room to watch one more (`fs.epoll.max_user_watches`), which says
/// nothing about who was to be connected to. That there is no address, or no port, to connect from is so of this one
/// alone (an IPv6 address where there is no IPv6, the last of the ports that lead there): another may be reached.
pub fn is_want(error: &io::Error) -> bool {
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSPC, Errno::AGAIN];
    Errno::from_io_error(error).is_some_and(|error| ours.contains(&error))
}
