//! Another process in this one's place, without a refused connection: the program on disk is started, takes the listening
//! sockets, and serves; this one finishes what it has.

use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::AbortHandle;

use super::keeper::Keeper;
use super::service;
use crate::publish::Process;
use crate::succession::{Estate, Heir};

/// Longest wait for an heir to serve: it looks up names and tries its drivers first.
const PATIENCE: Duration = Duration::from_secs(60);

/// What may be handed on: there is none before shards listen, and none after it was handed on.
pub type Bequest = Arc<Mutex<Option<Estate>>>;

/// Waits for SIGUSR2, for ever.
pub(super) fn on_signal(
    process: &'static Process,
    keeper: &Arc<Keeper>,
    bequest: Bequest,
    serving: AbortHandle,
) -> std::io::Result<()> {
    let signals = signal(SignalKind::user_defined2())?;
    tokio::spawn(succeed(signals, process, Arc::clone(keeper), bequest, serving));
    Ok(())
}

async fn succeed(
    mut signals: Signal,
    process: &'static Process,
    keeper: Arc<Keeper>,
    bequest: Bequest,
    serving: AbortHandle,
) {
    while signals.recv().await.is_some() {
        let estate = bequest.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(estate) = estate.filter(|_| !process.draining()) else {
            tracing::warn!("no process can take this one's place now: it is starting or draining");
            continue;
        };
        tracing::info!("starting a process to take this one's place");
        keeper.save().await;
        let started = tokio::task::spawn_blocking(move || {
            let heir = Heir::start(&estate, PATIENCE).and_then(Heir::serves);
            (estate, heir)
        });
        let Ok((estate, heir)) = started.await else { return };
        match heir {
            Ok(mut heir) => {
                tracing::info!(heir = heir.id(), "another process serves in this one's place; streams may finish here");
                service::say_main_process(heir.id());
                serving.abort();
                process.succeeded();
                heir.is_alone();
                // Nobody is to wait in a listener that this process alone has open.
                drop(estate);
                // It is to know when this process ends, and that ends this.
                return pending().await;
            }
            Err(error) => {
                tracing::error!(%error, "no process took this one's place; it serves on");
                *bequest.lock().unwrap_or_else(PoisonError::into_inner) = Some(estate);
            }
        }
    }
}
