//! Whether a file can be written, asked without making or changing one.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgid, getuid};

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

/// Asks as this process's effective user, which will open the file.
fn may(path: &Path, access: Access) -> io::Result<()> {
    let asked = match accessat(CWD, path, access, AtFlags::EACCESS) {
        // System call filters older than faccessat2 refuse it, since they do not know it. The older call asks as the
        // real user.
        Err(Errno::PERM) if getuid() == geteuid() && getgid() == getegid() => {
            accessat(CWD, path, access, AtFlags::empty())
        }
        asked => asked,
    };
    Ok(asked?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::thread::scope;

    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    use super::*;

    /// The same number on every architecture.
    const FACCESSAT2: i64 = 439;

    /// As Docker's filter does with libseccomp before 2.4.4, and systemd's before 247 with
    /// `SystemCallErrorNumber=EPERM`.
    #[test]
    fn a_call_that_a_filter_does_not_know_is_done_without() {
        let file = std::env::temp_dir().join(format!("warmfront-writable-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        let work = || {
            let refuse = SeccompAction::Errno(Errno::PERM.raw_os_error() as u32);
            let rules = BTreeMap::from([(FACCESSAT2, Vec::new())]);
            let target = std::env::consts::ARCH.try_into().unwrap();
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, target).unwrap();
            let program: BpfProgram = filter.try_into().unwrap();
            apply_filter(&program).unwrap();
            let is_refused = accessat(CWD, &file, Access::WRITE_OK, AtFlags::EACCESS) == Err(Errno::PERM);
            (is_refused, writable(&file).is_ok(), may_hold(&file).is_ok(), writable(Path::new("/nowhere/file")).is_ok())
        };
        let asked = scope(|scope| scope.spawn(work).join().unwrap());
        fs::remove_file(&file).unwrap();
        assert_eq!(asked, (true, true, true, false));
    }
}
