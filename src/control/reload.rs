//! Reloads, which replace the configuration in use while requests run: what asks for one, where the configuration comes
//! from, and what it has changed. The keeper takes it.
//!
//! Changes that need a restart are named, and left out.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::signal::unix::Signal;
use tokio::sync::Notify;

use super::edit::{Refused, Since};
use super::keeper::Keeper;
use super::{Setup, lasting, service};
use crate::config::Config;

/// Where configurations come from, and what else has to follow them.
pub trait Source: Debug + Send + Sync {
    /// Reads and checks the configuration anew.
    ///
    /// # Errors
    /// All its faults, in words.
    fn load(&self) -> Result<Config, String>;

    /// Tells that this configuration is in use from now on. It must not wait for a disk.
    fn in_use(&self, config: &Config);

    /// Logs what this configuration wants in vain, though it is in use. For a thread of its own: disks may not answer.
    fn say_wanting(&self, config: &Config);
}

/// What a reload has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// Engines that are new.
    pub added: Vec<String>,
    /// Engines that finish what they have.
    pub removed: Vec<String>,
    /// Engines that stay and have another key, a first one, or none any more.
    pub rekeyed: Vec<String>,
    /// Engines whose changes made by hand it undoes.
    pub undone: Vec<String>,
    /// Sections of the configuration that differ.
    pub changed: Vec<&'static str>,
    /// Keys that have changed and take effect, or take it wholly, only after a restart.
    pub restart: Vec<&'static str>,
}

impl Changes {
    /// Compares sections, and finds keys that wait for a restart: those with another value than the
    /// process was `started` with.
    pub fn between(old: &Config, new: &Config, started: &Config) -> Changes {
        let differs = |list: &[(&'static str, bool)]| {
            list.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect()
        };
        let (was, is) = (&started.serve, &new.serve);
        Changes {
            changed: differs(&[
                ("serve", old.serve != new.serve),
                ("routing", old.routing != new.routing),
                ("pool", old.pool != new.pool),
                ("limits", old.limits != new.limits),
                ("health", old.health != new.health),
                ("queue", old.queue != new.queue),
                ("control", old.control != new.control),
                ("log", old.log != new.log),
                ("upstream", old.upstream != new.upstream),
            ]),
            restart: differs(&[
                ("serve.listen", was.listen != is.listen),
                ("serve.shards", was.shards != is.shards),
                ("serve.pin", was.pin != is.pin),
                ("serve.driver", was.driver != is.driver),
                // The kernel has this value with the listeners.
                (
                    "limits.client_stall_timeout_ms",
                    started.limits.client_stall_timeout_ms < new.limits.client_stall_timeout_ms,
                ),
                ("serve.admin", was.admin != is.admin),
                ("log.format", started.log.format != new.log.format),
            ]),
            ..Changes::default()
        }
    }
}

/// The next reload that SIGHUP asks for: one for all signals that come while another reload is under way, counted from
/// the last of them.
#[derive(Debug, Default)]
struct Next {
    asked: Mutex<Option<Since>>,
    bell: Notify,
}

impl Next {
    fn ask_for(&self, asked: Since) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked);
        self.bell.notify_one();
    }

    async fn comes(&self) -> Since {
        loop {
            self.bell.notified().await;
            let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(asked) = asked {
                return asked;
            }
        }
    }
}

/// Has the configuration read after each SIGHUP, for ever.
pub(super) async fn on_hangup(mut hangup: Signal, setup: Setup, keeper: Arc<Keeper>) {
    let next = Arc::new(Next::default());
    let (asked, of, whose) = (Arc::clone(&next), setup.clone(), Arc::clone(&keeper));
    // Begun anew if it panics: what is read may be anything.
    let reload = move || reload_when_asked(Arc::clone(&asked), of.clone(), Arc::clone(&whose));
    lasting::spawn_anew("reloads", reload);
    while hangup.recv().await.is_some() {
        // Also if the configuration turns out to be wrong, or is still being read: log rotation sends this signal, too.
        keeper.access().reopen();
        if setup.process.has_successor() {
            setup.bequest.lock().unwrap_or_else(PoisonError::into_inner).reload_successor();
        } else {
            next.ask_for(keeper.ask());
        }
    }
}

/// Reads the configuration each time that it is asked for.
async fn reload_when_asked(next: Arc<Next>, setup: Setup, keeper: Arc<Keeper>) {
    loop {
        let asked = next.comes().await;
        // The signal may have come while another process took this one's place.
        if setup.process.has_successor() {
            setup.bequest.lock().unwrap_or_else(PoisonError::into_inner).reload_successor();
            continue;
        }
        // A process that is starting has not said READY yet, and is not to say it early.
        let serves = setup.process.all_serving();
        if serves {
            service::say_reloading();
        }
        let _ = reload_and_say(&keeper, &setup.source, asked).await;
        if serves {
            service::say_reloaded();
        }
    }
}

/// Reloads the configuration, and logs the outcome.
///
/// # Errors
/// What is wrong with it; nothing has changed then, unless a fault of ours broke it off.
pub(super) async fn reload_and_say(
    keeper: &Arc<Keeper>,
    source: &Arc<dyn Source>,
    asked: Since,
) -> Result<Changes, Refused> {
    let outcome = keeper.reload(source, asked).await;
    match &outcome {
        Ok(changes) => {
            let Changes { added, removed, rekeyed, undone, changed, restart } = changes;
            tracing::info!(?changed, ?added, ?removed, ?rekeyed, "configuration taken");
            if !undone.is_empty() {
                tracing::warn!(
                    engines = ?undone,
                    "what was changed of these engines by hand is undone: what is to stay belongs in the configuration (`drain = true` in [[upstream]])"
                );
            }
            if !restart.is_empty() {
                tracing::warn!(keys = ?restart, "these keys take effect, or take it wholly, only after a restart");
            }
        }
        Err(why @ Refused::Broken) => tracing::error!(%why, "configuration not taken, or not wholly"),
        Err(why) => tracing::error!(%why, "configuration not taken; nothing has changed"),
    }
    outcome
}
