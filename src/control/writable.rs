//! Whether a file can be written, asked without making or changing one.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Whether lines can be appended to the file, or it can be made.
pub fn writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(_) => may(path, Access::WRITE_OK),
        Err(error) if error.kind() == ErrorKind::NotFound => may_hold(path),
        Err(error) => Err(error),
    }
}

/// Whether files can be made, and replaced, in the folder where this one is to stand.
pub fn may_hold(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !fs::metadata(folder)?.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    may(folder, Access::WRITE_OK | Access::EXEC_OK)
}

/// As this process's effective user, which is who will open it.
fn may(path: &Path, access: Access) -> io::Result<()> {
    Ok(accessat(CWD, path, access, AtFlags::EACCESS)?)
}
