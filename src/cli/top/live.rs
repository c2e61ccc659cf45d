//! `top` on a terminal, until `q` or a signal.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::PERIOD;
use super::front::Front;
use super::history::History;
use super::reading::Reading;
use super::screen::{self, Surface};
use super::terminal::{LINE_END, Terminal};

/// Ctrl-C, if the terminal does not make a signal of it.
const INTERRUPT: u8 = 3;

/// Shows the front until `q` or a signal.
pub(super) async fn show(front: Front, address: &str, window: u16, colours: bool) -> io::Result<()> {
    let mut signals = Signals::new()?;
    let mut keys = keys();
    let (sender, mut readings) = mpsc::channel(1);
    let asking = tokio::spawn(ask(front, sender));
    let mut page = Page { address, history: History::new(window), trouble: None, heard: None, colours };
    let mut terminal = enter()?;
    let outcome = loop {
        if let Err(error) = page.draw(&mut terminal) {
            break Err(error);
        }
        tokio::select! {
            biased;
            asked = signals.next() => match asked {
                Asked::End => break Ok(()),
                Asked::Stop => {
                    // The shell gets its terminal back; when the program goes on, it takes the terminal again.
                    drop(terminal);
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?;
                    terminal = enter()?;
                }
                Asked::Resize => {}
            },
            Some(key) = keys.recv() => {
                if matches!(key, b'q' | b'Q' | INTERRUPT) {
                    break Ok(());
                }
            }
            reading = readings.recv() => match reading {
                Some(reading) => page.take(reading),
                // A fault of ours, which has been told.
                None => break Err(io::Error::other("metrics are no longer read")),
            },
        }
    };
    asking.abort();
    outcome
}

fn enter() -> io::Result<Terminal> {
    Terminal::enter(io::stdout().as_fd().try_clone_to_owned()?)
}

/// Reads once each period, and goes on if that fails.
async fn ask(front: Front, readings: mpsc::Sender<Result<Reading, String>>) {
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        if readings.send(front.read().await).await.is_err() {
            return;
        }
    }
}

/// What is shown.
struct Page<'a> {
    address: &'a str,
    history: History,
    /// Why there is no newer reading.
    trouble: Option<String>,
    /// When the last reading came.
    heard: Option<Instant>,
    colours: bool,
}

impl Page<'_> {
    fn take(&mut self, reading: Result<Reading, String>) {
        match reading {
            Ok(reading) => {
                self.history.push(reading);
                (self.trouble, self.heard) = (None, Some(Instant::now()));
            }
            Err(why) => self.trouble = Some(why),
        }
    }

    fn draw(&self, terminal: &mut Terminal) -> io::Result<()> {
        let (width, height) = terminal.size();
        let surface = Surface { width, height, colours: self.colours };
        let trouble = self.trouble.as_ref().map(|why| match self.heard {
            Some(heard) => format!("{why} Trying on; what is below is {} s old.", heard.elapsed().as_secs()),
            None => format!("{why} Trying on."),
        });
        let trouble = trouble.or_else(|| self.heard.is_none().then(|| "asking ...".into()));
        let lines = screen::lines(self.address, self.history.change().as_ref(), trouble.as_deref(), &surface);
        terminal.draw(&screen::text(&lines, &surface, LINE_END))
    }
}

/// What a signal asks for.
enum Asked {
    End,
    Stop,
    Resize,
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    stop: Signal,
    resized: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            stop: signal(SignalKind::from_raw(libc::SIGTSTP))?,
            resized: signal(SignalKind::window_change())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::End,
            _ = self.terminate.recv() => Asked::End,
            _ = self.hangup.recv() => Asked::End,
            _ = self.quit.recv() => Asked::End,
            _ = self.stop.recv() => Asked::Stop,
            _ = self.resized.recv() => Asked::Resize,
        }
    }
}

/// Keys of standard input; none if it is no terminal. A thread blocks on each: a terminal that is shared with a shell
/// cannot be made non-blocking, or it would be so for the shell as well.
fn keys() -> mpsc::Receiver<u8> {
    let (sender, keys) = mpsc::channel(1);
    if io::stdin().is_terminal() {
        std::thread::spawn(move || {
            while let Ok(Some(key)) = key(&io::stdin())
                && sender.blocking_send(key).is_ok()
            {}
        });
    }
    keys
}

/// The next key; `None`: there will be none.
fn key(input: &impl AsFd) -> io::Result<Option<u8>> {
    loop {
        let mut ready = [PollFd::new(input, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
        let gone = ready.iter().any(|input| input.revents().intersects(PollFlags::HUP | PollFlags::ERR));
        let mut key = [0];
        match rustix::io::read(input, &mut key)? {
            0 if gone => return Ok(None),
            0 => {}
            _ => return Ok(key.first().copied()),
        }
    }
}
