//! The terminal while `top` has it: another screen, no cursor, keys as they are pressed; and as it was before, whatever
//! happens.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The alternate screen, and no cursor (xterm's private modes, which all terminals of today know).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Plain letters, the cursor, the screen of before.
const LEAVE: &str = "\x1b[m\x1b[?25h\x1b[?1049l";
/// To the upper left corner.
const HOME: &str = "\x1b[H";
/// Clears the rest of a line, and goes to the next.
pub(super) const LINE_END: &str = "\x1b[K\r\n";
/// Clears the rest of the last line, and all below it.
const PAGE_END: &str = "\x1b[K\x1b[J";

/// The terminal and its modes from before, to leave it with. Here and not in [`Terminal`], since a panic's message is
/// printed before values are dropped: on the other screen it would not be seen.
static BEFORE: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// The terminal, entered. Dropping it leaves it; so does a panic.
#[derive(Debug)]
pub(super) struct Terminal(File);

impl Terminal {
    /// Enters the terminal. Keys come at once and without echo; those that send signals go on doing so.
    pub(super) fn enter(tty: OwnedFd) -> io::Result<Terminal> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                leave();
                next(panic);
            }));
        });
        let before = tcgetattr(&tty)?;
        let mut keys = before.clone();
        keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        // A read without a key returns at once.
        keys.special_codes[SpecialCodeIndex::VMIN] = 0;
        keys.special_codes[SpecialCodeIndex::VTIME] = 0;
        let file = File::from(tty.try_clone()?);
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some((File::from(tty), before));
        let mut terminal = Terminal(file);
        tcsetattr(&terminal.0, OptionalActions::Now, &keys)?;
        terminal.0.write_all(ENTER.as_bytes())?;
        Ok(terminal)
    }

    /// Characters in a line, and lines, as they are now.
    pub(super) fn size(&self) -> (usize, usize) {
        size(&self.0).unwrap_or((80, 24))
    }

    /// Shows a page whose lines end with [`LINE_END`].
    pub(super) fn draw(&mut self, page: &str) -> io::Result<()> {
        self.0.write_all(format!("{HOME}{page}{PAGE_END}").as_bytes())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

/// Characters in a line, and lines; `None`: it is no terminal, or does not know.
pub(super) fn size(tty: impl AsFd) -> Option<(usize, usize)> {
    let size = tcgetwinsize(tty).ok()?;
    Some((size.ws_col.into(), size.ws_row.into())).filter(|(width, height)| *width > 0 && *height > 0)
}

/// Leaves the terminal; only the first call does. If it fails there is nobody to tell.
fn leave() {
    // The thread that panics may hold the lock: then the terminal is left when values are dropped.
    let Ok(mut before) = BEFORE.try_lock() else { return };
    if let Some((mut tty, before)) = before.take() {
        let _ = tty.write_all(LEAVE.as_bytes());
        let _ = tcsetattr(&tty, OptionalActions::Now, &before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    /// One test, since there is one terminal for the process.
    #[test]
    fn a_terminal_is_left_as_it_was() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let open = || rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let tty = open();
        let modes = || tcgetattr(&tty).unwrap();
        // What is written comes to the other end by and by.
        let comes = || {
            let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
            poll(&mut [PollFd::new(&master, PollFlags::IN)], Some(&patience)).is_ok_and(|ready| ready > 0)
        };
        let said = |wanted: &str| {
            let mut said = Vec::new();
            while said.len() < wanted.len() && comes() {
                let mut bytes = [0; 4096];
                let length = rustix::io::read(&master, &mut bytes).unwrap();
                said.extend_from_slice(&bytes[..length]);
            }
            assert_eq!(String::from_utf8(said).unwrap(), wanted);
        };
        let before = modes();

        let mut terminal = Terminal::enter(open()).unwrap();
        said(ENTER);
        assert!(!modes().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO));
        terminal.draw("a").unwrap();
        said("\x1b[Ha\x1b[K\x1b[J");
        assert_eq!(terminal.size(), (80, 24));
        drop(terminal);
        said(LEAVE);
        assert_eq!(modes().local_modes, before.local_modes);

        // The hook leaves it before values are dropped.
        let order = Mutex::new(None);
        struct Watch<'a>(&'a Mutex<Option<LocalModes>>, &'a dyn Fn() -> LocalModes);
        impl Drop for Watch<'_> {
            fn drop(&mut self) {
                *self.0.lock().unwrap() = Some((self.1)());
            }
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _terminal = Terminal::enter(open()).unwrap();
            let modes = || modes().local_modes;
            let _watch = Watch(&order, &modes);
            panic!("a fault, on purpose");
        }));
        assert!(outcome.is_err());
        assert_eq!(*order.lock().unwrap(), Some(before.local_modes));
        said(&[ENTER, LEAVE].concat());
    }
}
