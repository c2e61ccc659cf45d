//! The temporary file beside `caches_file` while that is written: a whole one takes its place, or none does.

use std::ffi::OsStr;
use std::fs::{self, DirEntry, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The end of its name, after some digits.
const NEW: &str = ".new";
const DIGITS: usize = 16;
/// How long it must not have been written to before it counts as left behind: a process that writes it does so all the
/// time.
pub(super) const LEFT_AFTER: Duration = Duration::from_secs(120);

/// The path where the file is written first. Dropping the value removes it, unless it was renamed by then: on a full
/// disk it would keep others from writing.
#[derive(Debug)]
pub(super) struct Beside(PathBuf);

impl Beside {
    /// Makes it: empty, readable for this user alone, and under a name that no other process has, not even one in
    /// another container with the same process id. It is locked until it is written, which [`tidy_up`] looks for.
    pub(super) fn made(path: &Path) -> io::Result<(Beside, File)> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{:0DIGITS$x}{NEW}", RandomState::new().build_hasher().finish()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        let _ = file.try_lock();
        Ok((Beside(beside.into()), file))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes files left beside it by processes that ended while they wrote: those that were not written to for a while
/// and are not locked, as far as can be seen (some network file systems have no locks, or separate ones on each
/// machine).
pub fn tidy_up(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return };
    let is_left = |beside: &DirEntry| -> io::Result<bool> {
        let found = beside.metadata()?;
        let is_quiet = found.modified()?.elapsed().is_ok_and(|quiet| quiet >= LEFT_AFTER);
        if !found.is_file() || !is_quiet {
            return Ok(false);
        }
        let file = OpenOptions::new().write(true).open(beside.path())?;
        Ok(!matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    };
    for beside in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_beside(&beside.file_name(), name) && is_left(&beside).unwrap_or(false) {
            let _ = fs::remove_file(beside.path());
        }
    }
}

/// Whether its name is that of a temporary file for `name`.
fn is_beside(beside: &OsStr, name: &OsStr) -> bool {
    let rest = beside.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
    let digits = rest.and_then(|rest| rest.strip_prefix(b".")?.strip_suffix(NEW.as_bytes()));
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}
