//! Writes lines for other programs to read: to a file, a pipe, a socket, a terminal. A reader may stand still, and the
//! writer must not stand still with it: it is waited for a moment, once.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// How long a reader is waited for: a pipe holds 64 KiB, and its reader may be a moment late. One that takes nothing
/// for so long is not waited for again until it does.
const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes that a pipe takes whole or not at all: PIPE_BUF.
const PIPE_PIECE: usize = 4_096;
/// Bytes that a socket of this machine takes whole or not at all: up to here the kernel makes one buffer of them.
const SOCKET_PIECE: usize = 32 << 10;

/// Takes whole lines, without a buffer of its own.
#[derive(Debug)]
pub(super) struct Outlet {
    file: File,
    manner: Manner,
    /// Most bytes of one piece, which is taken whole or not at all. Under systemd, and in many shells, log and access
    /// log are one stream, and neither may break into a line of the other.
    piece: usize,
    /// The last write ended within a line.
    torn: bool,
    /// How long a reader that takes nothing is waited for.
    patience: Duration,
    /// The reader took nothing for that long.
    stuck: bool,
}

/// How a call is kept from waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manner {
    /// It was opened non-blocking, or is a file on a disk.
    Own,
    /// Each call has a flag for it.
    Socket,
    /// Others have it open as well, and may want it blocking: it is polled before each piece.
    Shared,
}

impl Outlet {
    /// Opens a file for appending; one that it makes has `mode`.
    pub(super) fn append(path: &Path, mode: u32) -> io::Result<Outlet> {
        // A named pipe's reader may begin later than this process, and may restart: with a reading end of our own the
        // pipe stays open meanwhile, and holds what fits into it (fifo(7)). For other files that would need a
        // permission for nothing.
        let is_pipe = fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
        let mut how = OpenOptions::new();
        how.append(true).read(is_pipe).create(true).mode(mode).custom_flags(libc::O_NONBLOCK);
        Ok(Outlet::new(how.open(path)?, Manner::Own, if is_pipe { PIPE_PIECE } else { usize::MAX }))
    }

    /// An outlet to where a descriptor leads that this process was started with.
    pub(super) fn of(descriptor: &impl AsFd) -> io::Result<Outlet> {
        let file = File::from(descriptor.as_fd().try_clone_to_owned()?);
        let kind = file.metadata()?.file_type();
        Ok(if kind.is_file() {
            Outlet::new(file, Manner::Own, usize::MAX)
        } else if kind.is_socket() {
            Outlet::new(file, Manner::Socket, SOCKET_PIECE)
        } else {
            // It may belong to another user, and then cannot be opened again.
            let (file, manner) = opened_again(&file).map_or((file, Manner::Shared), |own| (own, Manner::Own));
            Outlet::new(file, manner, PIPE_PIECE)
        })
    }

    fn new(file: File, manner: Manner, piece: usize) -> Outlet {
        Outlet { file, manner, piece, torn: false, patience: PATIENCE, stuck: false }
    }

    /// Whether it leads to that file; `None` if that cannot be known.
    pub(super) fn leads_to(&self, file: &Metadata) -> Option<bool> {
        let here = self.file.metadata().ok()?;
        Some((here.dev(), here.ino()) == (file.dev(), file.ino()))
    }

    /// Takes the place of another outlet, which may have left a torn line there.
    pub(super) fn follows(&mut self, before: &Outlet) {
        let same = before.file.metadata().is_ok_and(|file| self.leads_to(&file) == Some(true));
        self.torn |= before.torn && same;
    }

    /// Writes lines with as few calls as possible. Returns how many bytes were written.
    pub(super) fn write(&mut self, lines: &[u8]) -> (usize, io::Result<()>) {
        if self.torn {
            // Ends the torn line, so that it is spoilt and not the next one.
            match self.put(b"\n") {
                Ok(1) => self.torn = false,
                Ok(_) => return (0, Err(ErrorKind::WriteZero.into())),
                Err(error) => return (0, Err(error)),
            }
        }
        let (mut written, mut waits_since) = (0, None);
        while let Some(rest) = lines.get(written..).filter(|rest| !rest.is_empty()) {
            let outcome = match self.put(first_lines(rest, self.piece)) {
                Ok(0) => Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let since = *waits_since.get_or_insert_with(Instant::now);
                    if self.takes_more(since) { Ok(0) } else { Err(error) }
                }
                Ok(len) => {
                    (self.stuck, waits_since) = (false, None);
                    Ok(len)
                }
                other => other,
            };
            match outcome {
                Ok(len) => written += len,
                Err(error) => {
                    self.torn = written > 0 && lines.get(written - 1) != Some(&b'\n');
                    return (written, Err(error));
                }
            }
        }
        (written, Ok(()))
    }

    /// One write, which does not wait.
    fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.manner {
            Manner::Own => self.file.write(bytes),
            Manner::Socket => Ok(send(&self.file, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?),
            Manner::Shared => match self.ready(Duration::ZERO) {
                Ok(1..) => self.file.write(bytes),
                _ => Err(ErrorKind::WouldBlock.into()),
            },
        }
    }

    /// Waits until more can be written; but not for a reader that was waited for in vain before: records would be lost
    /// meanwhile.
    fn takes_more(&mut self, since: Instant) -> bool {
        let left = self.patience.checked_sub(since.elapsed()).filter(|_| !self.stuck);
        self.stuck = !left.is_some_and(|left| matches!(self.ready(left), Ok(1..) | Err(Errno::INTR)));
        !self.stuck
    }

    /// How many descriptors have room, or get it within that time: one or none. An error shows at the next write.
    fn ready(&self, within: Duration) -> rustix::io::Result<usize> {
        let within = Timespec::try_from(within).unwrap_or_default();
        poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(&within))
    }
}

/// The first lines that fit into `most` bytes; if the first one does not, as much of it as does.
fn first_lines(lines: &[u8], most: usize) -> &[u8] {
    let some = lines.get(..most).unwrap_or(lines);
    memchr::memrchr(b'\n', some).and_then(|end| some.get(..=end)).unwrap_or(some)
}

/// What a descriptor leads to, opened again for this process alone: making that non-blocking does not affect others
/// that have it open.
fn opened_again(file: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read, pipe};
    use std::os::unix::net::UnixStream;

    use rustix::fs::{OFlags, fcntl_getfl};

    use super::*;

    const WAITS: Duration = Duration::from_millis(200);

    /// Outlets of every manner, and who reads at the other end.
    fn outlets(patience: Duration) -> Vec<(Manner, Box<dyn Read + Send>, Outlet)> {
        let pipe = || -> (Box<dyn Read + Send>, _) {
            let (reader, writer) = pipe().unwrap();
            (Box::new(reader), writer)
        };
        let ((own_reader, own), (shared_reader, shared)) = (pipe(), pipe());
        let (reader, socket) = UnixStream::pair().unwrap();
        let own = Outlet { patience, ..Outlet::of(&own).unwrap() };
        let socket = Outlet { patience, ..Outlet::of(&socket).unwrap() };
        let shared = Outlet {
            patience,
            ..Outlet::new(File::from(std::os::fd::OwnedFd::from(shared)), Manner::Shared, PIPE_PIECE)
        };
        vec![
            (Manner::Own, own_reader, own),
            (Manner::Socket, Box::new(reader), socket),
            (Manner::Shared, shared_reader, shared),
        ]
    }

    /// More at once than the pipe holds: what its reader takes is not lost.
    #[test]
    fn a_reader_that_is_slow_misses_nothing() {
        for (manner, mut reader, mut outlet) in outlets(Duration::from_secs(60)) {
            assert_eq!(outlet.manner, manner);
            let lines = b"a line of some length\n".repeat(20_000);
            let expected = lines.clone();
            let writer = std::thread::spawn(move || {
                let (written, outcome) = outlet.write(&lines);
                assert!(written == lines.len() && outcome.is_ok(), "{written}: {outcome:?}");
            });
            let (mut piece, mut taken) = (vec![0; 32 << 10], Vec::new());
            while let Ok(len @ 1..) = reader.read(&mut piece) {
                taken.extend_from_slice(&piece[..len]);
                std::thread::sleep(Duration::from_millis(1));
            }
            writer.join().unwrap();
            assert_eq!(taken, expected, "{manner:?}");
        }
    }

    /// It is waited for once, and again when it has taken something.
    #[test]
    fn a_reader_that_takes_nothing_is_not_waited_for_each_time() {
        for (manner, mut reader, mut outlet) in outlets(WAITS) {
            let lines = b"a line\n".repeat(200_000);
            let mut fails = |times: u32| {
                let begun = Instant::now();
                for _ in 0..times {
                    let (written, outcome) = outlet.write(&lines);
                    assert!(written < lines.len() && outcome.unwrap_err().kind() == ErrorKind::WouldBlock);
                }
                begun.elapsed()
            };
            assert!(fails(1) >= WAITS, "{manner:?}");
            assert!(fails(50) < 25 * WAITS, "{manner:?}");
            // A socket has room again when most of it is read.
            let mut taken = vec![0; if manner == Manner::Socket { 160 << 10 } else { 8 << 10 }];
            reader.read_exact(&mut taken).unwrap();
            assert!(fails(1) >= WAITS, "{manner:?}");
        }
    }

    /// The second finds room where the first found too little.
    #[test]
    fn two_who_write_to_one_reader_leave_each_others_lines_whole() {
        for (manner, mut reader, mut first) in outlets(Duration::ZERO) {
            let (file, line): (_, &[u8]) = (first.file.try_clone().unwrap(), b"a line of some length\n");
            let mut second = Outlet::new(file, manner, first.piece);
            let (written, outcome) = first.write(&line.repeat(50_000));
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::WouldBlock, "{manner:?}");
            let mut taken = vec![0; if manner == Manner::Socket { 160 << 10 } else { 8 << 10 }];
            reader.read_exact(&mut taken).unwrap();
            assert!(second.write(b"<3>lines are lost\n").1.is_ok(), "{manner:?}");
            assert!(first.write(line).1.is_ok());
            drop((first, second));
            reader.read_to_end(&mut taken).unwrap();
            let lines: Vec<&[u8]> = taken.split_inclusive(|&byte| byte == b'\n').collect();
            let whole = lines.iter().filter(|&&found| found == line).count();
            assert_eq!(whole, written.div_ceil(line.len()) + 1, "{manner:?}");
            assert_eq!(lines.len(), whole + 1, "{manner:?}: the other line");
        }
    }

    /// A shell has the same open file, and so has whoever else it starts.
    #[test]
    fn others_who_have_it_open_wait_as_they_did() {
        let (_reader, writer): (PipeReader, _) = pipe().unwrap();
        let outlet = Outlet::of(&writer).unwrap();
        assert_eq!(outlet.manner, Manner::Own);
        assert!(!fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK));
    }
}
