//! Moves bytes from one connection to another inside the kernel: socket to pipe to socket (splice(2)).
//!
//! IORING_OP_SPLICE always goes to a worker thread, so both backends wait for bytes in their own way and then make the
//! same calls. SPLICE_F_MORE is not set, so that no byte waits for the next.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::param::page_size;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::SocketId;
use super::descriptors::is_last;

/// Capacity of one pipe, in pages: each segment takes a whole page, however few bytes it brings. The kernel may give
/// less: a user has `fs.pipe-user-pages-soft` for all pipes.
const PIPE_PAGES: usize = 64;
/// Most bytes asked for at once: what 64 pages of the usual size hold.
const MOVED_MAX: usize = 256 << 10;
/// Most pipes that one shard may have in use; further replies are copied.
const PIPES_MAX: usize = 64;
/// Most unused pipes that are kept.
const SPARE_MAX: usize = 8;
/// Bytes after which a visit ends, so that a fast engine cannot hold the others back.
const VISIT_BYTES: u64 = 512 << 10;

struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

/// The pipes of one shard.
#[derive(Default)]
pub(super) struct Pipes {
    spare: Vec<Pipe>,
    used: usize,
}

/// A number of bytes of one connection on their way to another.
pub(super) struct Splice {
    pub(super) to: SocketId,
    /// Bytes that have not come yet.
    left: u64,
    pipe: Pipe,
    /// Bytes in the pipe.
    piped: usize,
}

/// Why a visit ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// Everything has been moved.
    Done,
    /// There may be more to move at once.
    Visited,
    /// Nothing has come yet.
    Dry,
    /// The other connection takes no more.
    Full,
    /// The sending connection ended early.
    Ended,
    /// The sending connection is broken.
    Failed(Errno),
    /// The other connection is broken.
    LostReader(Errno),
}

impl Pipes {
    /// Begins to move `left` bytes. `None`: there is no pipe for them.
    pub(super) fn begin(&mut self, to: SocketId, left: u64) -> Option<Box<Splice>> {
        if self.used >= PIPES_MAX {
            return None;
        }
        let pipe = self.spare.pop().or_else(|| {
            let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
            // The last descriptors are for others: a reply can also be copied.
            if is_last(&out) || is_last(&into) {
                return None;
            }
            let _ = fcntl_setpipe_size(&into, PIPE_PAGES * page_size());
            Some(Pipe { out, into })
        })?;
        self.used += 1;
        Some(Box::new(Splice { to, left, pipe, piped: 0 }))
    }

    /// Takes the pipe back. A pipe with bytes in it is closed: they do not belong to the next reply.
    pub(super) fn end(&mut self, splice: Splice) {
        self.used -= 1;
        if splice.piped == 0 && self.spare.len() < SPARE_MAX {
            self.spare.push(splice.pipe);
        }
    }
}

impl Splice {
    /// Counts bytes that came another way among those to be moved. True if they were the last.
    pub(super) fn came(&mut self, len: u64) -> bool {
        self.left = self.left.saturating_sub(len);
        self.left == 0
    }

    /// Moves what can be moved now between two descriptors that do not block. Returns how many bytes the other
    /// connection took, and why no more.
    pub(super) fn step(&mut self, from: &OwnedFd, to: &OwnedFd) -> (u64, Stop) {
        let mut moved = 0;
        loop {
            if self.piped > 0 {
                match splice(&self.pipe.out, None, to, None, self.piped, MOVE) {
                    Ok(taken) => {
                        self.piped -= taken;
                        moved += taken as u64;
                    }
                    Err(Errno::AGAIN) => return (moved, Stop::Full),
                    Err(Errno::INTR) => {}
                    Err(error) => return (moved, Stop::LostReader(error)),
                }
                continue;
            }
            if self.left == 0 {
                return (moved, Stop::Done);
            }
            if moved >= VISIT_BYTES {
                return (moved, Stop::Visited);
            }
            let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(MOVED_MAX);
            match splice(from, None, &self.pipe.into, None, most, MOVE) {
                Ok(0) => return (moved, Stop::Ended),
                Ok(came) => {
                    self.piped = came;
                    self.left -= came as u64;
                }
                Err(Errno::AGAIN) => return (moved, Stop::Dry),
                Err(Errno::INTR) => {}
                Err(error) => return (moved, Stop::Failed(error)),
            }
        }
    }
}

const MOVE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// However many bytes have come, other connections are served as well.
    #[test]
    fn a_visit_ends_before_it_has_moved_everything() {
        const LEN: u64 = 3 << 20;
        let from = memfd_create("from", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&from, LEN).unwrap();
        let to = File::options().write(true).open("/dev/null").unwrap().into();
        let mut splice = Pipes::default().begin(SocketId::from_u64(0), LEN).unwrap();
        let mut left = LEN;
        loop {
            let (moved, stop) = splice.step(&from, &to);
            left -= moved;
            // The last piece, of a pipe's size at most, comes on top.
            assert!(moved < (512 + 256) << 10, "{moved}");
            if stop == Stop::Done {
                break;
            }
            assert!(stop == Stop::Visited && moved >= 512 << 10, "{stop:?} {moved}");
        }
        assert_eq!(left, 0);
    }
}
