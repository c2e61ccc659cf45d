//! What lines are written to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::config::Access;

/// A pipe holds 64 KiB, and who reads it may be a moment late; one that takes nothing for so long is not waited for again until it does.
const PATIENCE: Duration = Duration::from_millis(100);
/// Who asked for what, and when, is not for everyone.
const MODE: u32 = 0o640;

/// Takes whole lines, without a buffer of its own.
#[derive(Debug)]
pub(super) struct Sink {
    target: Access,
    file: File,
    /// The last write ended within a line.
    torn: bool,
    /// How long a reader is waited for that takes nothing.
    patience: Duration,
    /// There is one that took nothing for as long.
    stuck: bool,
}

impl Sink {
    /// Opens it for appending.
    pub(super) fn open(target: &Access) -> io::Result<Sink> {
        let file = match target {
            // A named pipe that nobody reads is an error at once, here and when writing, instead of a wait.
            Access::File(path) => {
                OpenOptions::new().append(true).create(true).mode(MODE).custom_flags(libc::O_NONBLOCK).open(path)?
            }
            _ => File::from(io::stdout().as_fd().try_clone_to_owned()?),
        };
        Ok(Sink { target: target.clone(), file, torn: false, patience: PATIENCE, stuck: false })
    }

    pub(super) fn target(&self) -> &Access {
        &self.target
    }

    /// Waits until more can be written. Not for a reader that has been waited for in vain: others would miss their records meanwhile.
    fn takes_more(&mut self) -> bool {
        let timeout = Timespec::try_from(self.patience).ok().filter(|_| !self.stuck);
        let ready = timeout.map(|timeout| poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(&timeout)));
        self.stuck = !matches!(ready, Some(Ok(1..) | Err(Errno::INTR)));
        !self.stuck
    }

    /// Whether the path names another file by now; one that names none may have been renamed a moment ago.
    pub(super) fn is_replaced(&self) -> bool {
        let Access::File(path) = &self.target else { return false };
        let (Ok(there), Ok(here)) = (fs::metadata(path), self.file.metadata()) else { return false };
        (there.dev(), there.ino()) != (here.dev(), here.ino())
    }

    /// Writes lines with as few calls as the kernel lets it: one. Answers how many bytes went.
    pub(super) fn write(&mut self, lines: &[u8]) -> (usize, io::Result<()>) {
        if self.torn {
            // The line that was begun is spoilt, not the next one.
            match self.file.write(b"\n") {
                Ok(1) => self.torn = false,
                Ok(_) => return (0, Err(ErrorKind::WriteZero.into())),
                Err(error) => return (0, Err(error)),
            }
        }
        let mut written = 0;
        while let Some(rest) = lines.get(written..).filter(|rest| !rest.is_empty()) {
            let outcome = match self.file.write(rest) {
                Ok(0) => Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.takes_more() => Ok(0),
                Ok(len) => {
                    self.stuck = false;
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
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::PathBuf;
    use std::time::Instant;

    use super::*;

    /// A named pipe, who reads it, and who writes to it.
    fn pipe(name: &str, patience: Duration) -> (PathBuf, File, Sink) {
        let path = std::env::temp_dir().join(format!("warmfront-sink-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let sink = Sink { patience, ..Sink::open(&Access::File(path.clone())).unwrap() };
        (path, reader, sink)
    }

    /// More at once than the pipe holds: what its reader takes is not lost.
    #[test]
    fn a_reader_that_is_slow_misses_nothing() {
        let (path, mut reader, mut sink) = pipe("slow", Duration::from_secs(60));
        let lines = b"a line of some length\n".repeat(20_000);
        let writer = std::thread::spawn(move || {
            let (written, outcome) = sink.write(&lines);
            assert!(written == lines.len() && outcome.is_ok(), "{written}: {outcome:?}");
        });
        let mut piece = vec![0; 32 << 10];
        while !writer.is_finished() {
            // There may be nothing.
            let _ = reader.read(&mut piece);
            std::thread::sleep(Duration::from_millis(1));
        }
        writer.join().unwrap();
        fs::remove_file(path).unwrap();
    }

    /// It is waited for once, and again when it has taken something.
    #[test]
    fn a_reader_that_takes_nothing_is_not_waited_for_each_time() {
        let patience = Duration::from_millis(200);
        let (path, mut reader, mut sink) = pipe("stuck", patience);
        let lines = b"a line\n".repeat(20_000);
        let mut fails = |times: u32| {
            let begun = Instant::now();
            for _ in 0..times {
                let (written, outcome) = sink.write(&lines);
                assert!(written < lines.len() && outcome.unwrap_err().kind() == ErrorKind::WouldBlock);
            }
            begun.elapsed()
        };
        assert!(fails(1) >= patience);
        assert!(fails(50) < 25 * patience);
        let mut taken = vec![0; 8 << 10];
        assert_eq!(reader.read(&mut taken).unwrap(), taken.len());
        assert!(fails(1) >= patience);
        fs::remove_file(path).unwrap();
    }
}
