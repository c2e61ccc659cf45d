//! What lines are written to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use crate::config::Access;

/// Who asked for what, and when, is not for everyone.
const MODE: u32 = 0o640;

/// Takes whole lines, without a buffer of its own.
#[derive(Debug)]
pub(super) struct Sink {
    target: Access,
    file: File,
    /// The last write ended within a line.
    torn: bool,
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
        Ok(Sink { target: target.clone(), file, torn: false })
    }

    pub(super) fn target(&self) -> &Access {
        &self.target
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
