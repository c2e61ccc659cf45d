//! Lines for systemd's journal: it adds the time itself, and takes each line's priority from a prefix.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::control::log;

/// Whether standard error goes to the journal.
pub(super) fn reads_us() -> bool {
    let Some(stream) = env::var_os("JOURNAL_STREAM") else { return false };
    let error = io::stderr().as_fd().try_clone_to_owned();
    let file = error.and_then(|descriptor| File::from(descriptor).metadata());
    // The variable is inherited even if standard error goes elsewhere.
    file.is_ok_and(|file| is_stream(&stream, file.dev(), file.ino()))
}

fn is_stream(stream: &OsStr, device: u64, inode: u64) -> bool {
    stream == OsStr::new(&format!("{device}:{inode}"))
}

/// The log on standard error; for the journal with the priority of its event in front of each line (sd-daemon(3)).
#[derive(Clone, Copy, Debug)]
pub(super) struct StandardError {
    pub(super) is_journal: bool,
}

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        Lines { priority: self.is_journal.then_some(Level::INFO) }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Lines {
        Lines { priority: self.is_journal.then_some(*event.level()) }
    }
}

/// What is written for one event.
#[derive(Debug)]
pub(super) struct Lines {
    priority: Option<Level>,
}

impl Write for Lines {
    /// Writes one event: each comes in one piece.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        match self.priority {
            Some(level) => log::write(&prioritized(level, event)),
            None => log::write(event),
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Puts the priority in front of each line of the text: the journal takes each line for an entry of its own.
pub(super) fn prioritized(level: Level, text: &[u8]) -> Vec<u8> {
    let priority: &[u8] = match level {
        Level::ERROR => b"<3>",
        Level::WARN => b"<4>",
        Level::INFO => b"<6>",
        _ => b"<7>",
    };
    text.split_inclusive(|&byte| byte == b'\n').flat_map(|line| [priority, line]).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_the_priority() {
        assert_eq!(prioritized(Level::ERROR, b"one\n  two\n\n"), b"<3>one\n<3>  two\n<3>\n");
        assert_eq!(prioritized(Level::WARN, b"one"), b"<4>one");
        assert_eq!(prioritized(Level::INFO, b"one"), b"<6>one");
        assert_eq!(prioritized(Level::DEBUG, b"one"), b"<7>one");
        assert_eq!(prioritized(Level::TRACE, b""), b"");
    }

    #[test]
    fn the_journal_is_told_by_device_and_inode() {
        assert!(is_stream(OsStr::new("8:4711"), 8, 4711));
        assert!(!is_stream(OsStr::new("8:47110"), 8, 4711) && !is_stream(OsStr::new(""), 0, 0));
    }
}
