//! The progress of a command: one line that is overwritten on a terminal, and a line now and then elsewhere.

use std::io::{IsTerminal, Write};

/// See the top of this file.
pub(super) struct StatusLine {
    terminal: bool,
    shown: u32,
}

impl StatusLine {
    /// One on standard error, which is where people look and pipes do not.
    pub(super) fn new() -> StatusLine {
        StatusLine { terminal: std::io::stderr().is_terminal(), shown: 0 }
    }

    /// Shows `line` in place of the one before; without a terminal only every tenth one.
    pub(super) fn show(&mut self, line: &str) {
        let mut out = std::io::stderr().lock();
        // Nobody to tell if it fails.
        let _ = if self.terminal {
            write!(out, "\r\x1b[K{line}").and_then(|()| out.flush())
        } else if self.shown.is_multiple_of(10) {
            writeln!(out, "{line}")
        } else {
            Ok(())
        };
        self.shown += 1;
    }

    /// Replaces the line by `line`, which stays.
    pub(super) fn keep(&mut self, line: &str) {
        let mut out = std::io::stderr().lock();
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(out, "{clear}{line}");
        self.shown = 0;
    }
}
