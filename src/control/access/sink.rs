//! Where lines of the access log are written.

use std::fs;
use std::io;

use crate::config::Access;
use crate::control::outlet::Outlet;

/// Mode of a new file: which client asked for what, and when, is not for everyone.
const MODE: u32 = 0o640;

/// Takes whole lines, without a buffer of its own.
#[derive(Debug)]
pub(super) struct Sink {
    target: Access,
    outlet: Outlet,
}

impl Sink {
    /// Opens the target for appending.
    pub(super) fn open(target: &Access) -> io::Result<Sink> {
        let outlet = match target {
            Access::File(path) => Outlet::append(path, MODE)?,
            _ => Outlet::of(&io::stdout())?,
        };
        Ok(Sink { target: target.clone(), outlet })
    }

    pub(super) fn target(&self) -> &Access {
        &self.target
    }

    /// Whether the path names another file by now; one that names none may have been renamed a moment ago.
    pub(super) fn is_replaced(&self) -> bool {
        let Access::File(path) = &self.target else { return false };
        fs::metadata(path).is_ok_and(|there| self.outlet.leads_to(&there) == Some(false))
    }

    /// Takes the place of another sink: if both lead to the same file, a line that was begun there stays spoilt.
    pub(super) fn follows(&mut self, before: &Sink) {
        self.outlet.follows(&before.outlet);
    }

    /// Writes lines. Returns how many bytes were written.
    pub(super) fn write(&mut self, lines: &[u8]) -> (usize, io::Result<()>) {
        self.outlet.write(lines)
    }
}
