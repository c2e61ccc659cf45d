//! Replaces this process by another without a refused connection: the program on disk is started, takes the listening
//! sockets, and serves; this process finishes its requests.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::Signal;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::keeper::Keeper;
use super::{GLANCE, SAVED_WITHIN, Setup, service};
use crate::publish::Process;
use crate::succession::{self, Estate, Heir, Starter};

/// Longest wait for an heir to serve: it looks up names and tries its drivers first.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest wait for the process between, which only starts the heir.
const STARTING: Duration = Duration::from_secs(10);

/// Longest wait for this process to have begun itself.
const BEGINNING: Duration = Duration::from_secs(5);

static FAILURES: AtomicU64 = AtomicU64::new(0);

/// How often a process that was to take this one's place did not.
pub(super) fn failures() -> u64 {
    FAILURES.load(Ordering::Relaxed)
}

/// What is handed on, and to which process; shared with the task that ends this process.
pub type Bequest = Arc<Mutex<Will>>;

/// See [`Bequest`].
#[derive(Debug, Default)]
pub struct Will {
    /// The sockets; none before shards listen, and none after they were handed on.
    pub estate: Option<Estate>,
    /// The process that starts the heir.
    pub starter: Option<Starter>,
    /// The process that is to take this one's place and does not serve yet.
    pub heir: Option<u32>,
    /// The process that serves in this one's place. It is to notice when this process ends, by the end of this value.
    pub successor: Option<Heir>,
}

impl Will {
    /// Ends the upgrade, since this process is to end and no other is to serve: closes the sockets, so that no client
    /// waits in a listener that nothing accepts from, and ends the process that was to take this one's place.
    pub fn revoke(&mut self) {
        self.estate = None;
        if let Some(mut starter) = self.starter.take() {
            starter.kill();
        }
        if let Some(heir) = self.heir.take() {
            succession::end(heir);
        }
    }

    /// Passes a reload that was asked of this process on to the successor.
    pub fn reload_successor(&self) {
        let Some(successor) = &self.successor else { return };
        match successor.reload() {
            Ok(()) => tracing::info!("the process in this one's place is to read its configuration anew"),
            Err(error) => {
                tracing::warn!(%error, "cannot tell the process in this one's place to read its configuration anew")
            }
        }
    }

    /// Passes an upgrade on to the successor. False: this process has none.
    fn hand_on_successor(&self) -> bool {
        let Some(successor) = &self.successor else { return false };
        match successor.hand_on() {
            Ok(()) => tracing::info!("the process in this one's place is to start another in its own"),
            Err(error) => {
                tracing::warn!(%error, "cannot tell the process in this one's place to start another in its own")
            }
        }
        true
    }
}

/// The process with whose end all others of its PID namespace are killed.
const INIT: u32 = 1;
const IS_INIT: &str = "no process can take this one's place: it is the first of its PID namespace, which ends with it; start the container anew";

fn failed(why: &'static str) {
    FAILURES.fetch_add(1, Ordering::Relaxed);
    tracing::warn!("{why}");
}

/// Waits for SIGUSR2, for ever.
pub(super) async fn on_signal(mut signals: Signal, setup: Setup, keeper: Arc<Keeper>, serving: AbortHandle) {
    let Setup { process, bequest, .. } = setup;
    let will = || bequest.lock().unwrap_or_else(PoisonError::into_inner);
    while signals.recv().await.is_some() {
        if std::process::id() == INIT {
            failed(IS_INIT);
            continue;
        }
        // The signal came while another process was about to take this one's place, or since.
        if will().hand_on_successor() {
            continue;
        }
        // A service manager may ask a process that it was told of only milliseconds before.
        let began = async {
            while will().estate.is_none() && !process.is_ending() {
                sleep(GLANCE).await;
            }
        };
        let _ = timeout(BEGINNING, began).await;
        let may = || !process.is_ending();
        if may() && will().estate.is_some() {
            // Before the sockets are taken out: the end of this process closes only those that are in the will.
            keeper.save_within(process, SAVED_WITHIN).await;
        }
        let estate = will().estate.take();
        let Some(estate) = estate.filter(|_| may()) else {
            failed("no process can take this one's place now: it is starting or draining");
            continue;
        };
        tracing::info!("starting a process to take this one's place");
        let (to, reloads) = (Arc::clone(&bequest), keeper.reloads().begun());
        process.hands_on(true);
        let handed_on = spawn_blocking(move || hand_on(estate, process, &to)).await;
        process.hands_on(false);
        let Ok((estate, heir)) = handed_on else {
            failed(
                "handing this process's place on has ended by this fault: start it anew, none can take its place now",
            );
            continue;
        };
        let was_revoked = will().heir.take().is_none() && process.leaving();
        match heir {
            Ok(heir) if was_revoked => succession::end(heir.id()),
            Ok(mut heir) => {
                tracing::info!(heir = heir.id(), "another process serves in this one's place; streams may finish here");
                service::say_main_process(heir.id());
                serving.abort();
                process.give_way();
                keeper.say_left_behind();
                heir.tell_alone();
                keeper.listen_no_more();
                // Clients must not wait in a listener that only this process has open.
                drop(estate);
                let mut will = will();
                will.successor = Some(heir);
                // The successor may have read the configuration, and opened the access log, before that reload.
                if keeper.reloads().begun() != reloads {
                    will.reload_successor();
                }
            }
            Err(_) if was_revoked => {}
            Err(error) => {
                FAILURES.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "no process took this one's place; it serves on");
                will().estate = Some(estate);
            }
        }
    }
}

/// Starts an heir and waits until it serves.
fn hand_on(estate: Estate, process: &Process, bequest: &Bequest) -> (Estate, io::Result<Heir>) {
    let will = || bequest.lock().unwrap_or_else(PoisonError::into_inner);
    let heir = Starter::start().and_then(|mut starter| {
        let mut known = will();
        if process.leaving() {
            starter.kill();
            return Err(io::ErrorKind::Interrupted.into());
        }
        known.starter = Some(starter);
        drop(known);
        let heir = started(bequest)?.heir(PATIENCE)?;
        // The heir is noted before it has the sockets: without them it ends by itself, with them it has to be ended.
        let mut known = will();
        if process.leaving() {
            succession::end(heir.id());
            return Err(io::ErrorKind::Interrupted.into());
        }
        known.heir = Some(heir.id());
        drop(known);
        heir.serves(&estate)
    });
    (estate, heir)
}

/// Waits until the process between has started an heir.
fn started(bequest: &Bequest) -> io::Result<Starter> {
    let begun = Instant::now();
    loop {
        let mut will = bequest.lock().unwrap_or_else(PoisonError::into_inner);
        // If this process is being ended, the starter was ended, too.
        let mut starter = will.starter.take().ok_or(io::ErrorKind::Interrupted)?;
        if starter.has_ended()? {
            return Ok(starter);
        }
        if begun.elapsed() >= STARTING {
            drop(will);
            return Err(starter.given_up(STARTING));
        }
        will.starter = Some(starter);
        drop(will);
        thread::sleep(GLANCE);
    }
}
