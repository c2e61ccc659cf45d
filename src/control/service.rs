//! The process towards its service manager and its terminal: signals in, READY, WATCHDOG and STOPPING out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::keeper::Keeper;
use super::{Setup, lasting};
use crate::counters::stats::{Gauge, Stats};
use crate::limits::ENDPOINTS_MAX;
use crate::publish::{Phase, Process};
use crate::succession::Estate;

/// The name under which the service manager keeps the listening sockets.
const KEPT: NotifyState<'_> = NotifyState::FdName("warmfront");
/// The kernel passes at most 253 descriptors in one message.
const KEPT_AT_ONCE: usize = 64;
/// How often shards are looked at in the time that the manager waits for a sign of life.
const LOOKS: u32 = 4;
/// How long a shard must not have turned to count as standing still: an idle one turns once a second.
const TURNS_WITHIN: Duration = Duration::from_millis(1_500);
/// Exit status of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// Signals that ask something of the process. Those that come while it starts are taken when it is able to: a process
/// that does not wait for them would be ended by them, or, as process 1 of a container, lose them.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) hangup: Signal,
    /// SIGUSR2
    pub(super) upgrade: Signal,
    /// SIGUSR1
    pub(super) reopen: Signal,
    pub(super) ends: Ends,
}

impl Asked {
    /// Waits for these signals from now on. `succeeds`: another process speaks for the service until this one is
    /// [`say_ready`]. To be called within a runtime.
    pub(super) fn wait(succeeds: bool) -> io::Result<Asked> {
        HAS_NO_SAY.store(succeeds, Ordering::Relaxed);
        Ok(Asked {
            hangup: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
            reopen: signal(SignalKind::user_defined1())?,
            ends: Ends {
                terminate: signal(SignalKind::terminate())?,
                quit: signal(SignalKind::quit())?,
                interrupt: signal(SignalKind::interrupt())?,
            },
        })
    }
}

/// Answers SIGTERM, SIGQUIT and SIGINT from now on: the first begins the drain, a second SIGINT ends the process. To be
/// called within a runtime.
pub(super) fn end_when_told(setup: &Setup, mut ends: Ends, keeper: &Arc<Keeper>) {
    let (process, counters, stats, bequest) = (setup.process, setup.counters, setup.stats, Arc::clone(&setup.bequest));
    let keeper = Arc::clone(keeper);
    lasting::spawn("SIGTERM", setup.process, async move {
        // SIGTERM comes from managers, which wait for the drain: a person who sends an interrupt after it may not know.
        let mut was_interrupted = false;
        while let Some(mut interrupted) = ends.next().await {
            if !process.draining() {
                process.leave();
                bequest.lock().unwrap_or_else(PoisonError::into_inner).revoke();
                // Before it serves no balancer sends clients here, so there is no delay.
                let delay = Duration::from_millis(keeper.config().limits.drain_delay_ms);
                if !delay.is_zero() && process.all_serving() {
                    tracing::info!(
                        ?delay,
                        "not ready any more, all are served as before; another signal begins the drain"
                    );
                    say(&[NotifyState::Status("not ready any more, serves as before for drain_delay_ms")]);
                    interrupted |= timeout(delay, ends.next()).await.ok().flatten().unwrap_or(false);
                }
                // Before the shards take the connections that wait at their listeners: while systemd holds these open,
                // more come.
                say(&[NotifyState::FdStoreRemove, KEPT]);
                process.drain();
                tracing::info!("draining: no new connections, streams may finish; a second Ctrl-C ends at once");
                say(&[NotifyState::Stopping, NotifyState::Status("draining: no new connections, streams may finish")]);
            } else if interrupted && was_interrupted {
                // Without requests that have failed and are still counted as load. A client that has yet to send its
                // request has no more than a connection.
                let running = (0..ENDPOINTS_MAX as u16).map(|slot| u64::from(counters.loads().running(slot)));
                let (at_engines, waiting) = (running.sum::<u64>(), counters.queue().waiting());
                let connections = stats.gauge(Gauge::Connections);
                tracing::warn!(
                    at_engines,
                    waiting,
                    connections,
                    "ends at once, by a second Ctrl-C, and cuts what it has"
                );
                std::process::exit(INTERRUPTED);
            } else {
                let goes_on = match process.has_successor() {
                    true => "another process serves already, streams may finish here",
                    false => "draining already, streams may finish",
                };
                let ends = match interrupted || was_interrupted {
                    true => "a second Ctrl-C ends at once",
                    false => "SIGKILL, or Ctrl-C twice, ends at once",
                };
                tracing::info!("{goes_on}; {ends}");
            }
            was_interrupted |= interrupted;
        }
    });
}

/// The signals that ask for the end.
#[derive(Debug)]
pub(super) struct Ends {
    terminate: Signal,
    /// SIGQUIT, with which nginx lets requests finish.
    quit: Signal,
    interrupt: Signal,
}

impl Ends {
    /// Whether the next one is an interrupt.
    async fn next(&mut self) -> Option<bool> {
        tokio::select! {
            Some(()) = self.terminate.recv() => Some(false),
            Some(()) = self.quit.recv() => Some(false),
            Some(()) = self.interrupt.recv() => Some(true),
            else => None,
        }
    }
}

/// Logs after each SIGUSR1 that it does nothing: it has other servers open their logs anew, so it may be sent here,
/// too, and would end a process that does not wait for it.
pub(super) async fn on_reopen(mut reopen: Signal) {
    while reopen.recv().await.is_some() {
        tracing::warn!(
            "SIGUSR1 does nothing here: SIGHUP opens the access log anew, and has the configuration read anew"
        );
    }
}

/// Says READY: every shard accepts connections. The service manager is to keep the sockets, so that clients that
/// connect after a crash wait for the next process.
pub(super) fn say_ready(process: &'static Process, estate: &Estate) {
    let (driver, why) = process.shards().first().map_or(("no", ""), |shard| shard.driver());
    let shards = process.shards().len();
    tracing::info!(shards, driver, why, "ready");
    HAS_NO_SAY.store(false, Ordering::Relaxed);
    let status = format!("serving with {shards} shards on {driver}");
    // systemd takes READY from a service that starts, not from one that goes on as another process.
    say(&[NotifyState::Ready, NotifyState::Status(&status), NotifyState::Watchdog]);
    // The sockets kept until now may be of a process that listened elsewhere: clients would wait there in vain.
    say(&[NotifyState::FdStoreRemove, KEPT]);
    let sockets: Vec<BorrowedFd<'_>> = estate.listeners.iter().chain([&estate.admin]).map(AsFd::as_fd).collect();
    for some in sockets.chunks(KEPT_AT_ONCE) {
        if let Err(error) = sd_notify::notify_with_fds(&[NotifyState::FdStore, KEPT], some) {
            tracing::warn!(%error, "the service manager cannot keep the listening sockets");
        }
    }
}

/// Says that all shards have ended, and that this process does: systemd shows its last status until another runs.
pub fn say_drained(process: &Process) {
    let requests = process.cut();
    match requests {
        0 => tracing::info!("drained"),
        _ => tracing::warn!(requests, "drained, and cut what lasted longer than drain_timeout_ms"),
    }
    // With a successor systemd takes no message of this process.
    if !process.has_successor() {
        let status = match requests {
            0 => "drained".to_owned(),
            _ => format!("drained, and cut {requests} requests that lasted longer than drain_timeout_ms"),
        };
        say(&[NotifyState::Status(&status)]);
    }
}

/// Sends WATCHDOG while every shard turns, for as long as this process speaks for the service.
pub(super) async fn feed_watchdog(process: &'static Process, stats: &'static Stats) {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    let mut turning = Turning::new(patience);
    loop {
        // The first one came with READY.
        sleep(patience / LOOKS).await;
        if process.has_successor() {
            return;
        }
        let turns = |shard: usize| {
            let state = process.shards().get(shard)?;
            // A process that takes another's place looks at its engines before its shards turn.
            (state.phase() == Phase::Serving).then(|| stats.shard(shard).turns())
        };
        if turning.look((0..stats.shards()).map(turns).collect()) {
            say(&[NotifyState::Watchdog]);
        } else {
            tracing::error!("a shard stands still; the service manager is not told that all is well");
        }
    }
}

/// Which shards turn. Looks are counted, and no time is measured:
/// if the machine or the process stood still, so did the looks.
#[derive(Debug)]
struct Turning {
    /// Looks in a row without a turn after which a shard counts as standing still.
    looks: u128,
    /// How often each shard had turned, and how many looks since found no further turn.
    seen: Vec<(Option<u64>, u128)>,
}

impl Turning {
    /// For a manager that waits for `patience`.
    fn new(patience: Duration) -> Turning {
        let between = (patience / LOOKS).as_micros().max(1);
        Turning { looks: TURNS_WITHIN.as_micros().div_ceil(between), seen: Vec::new() }
    }

    /// Takes in how often shards have turned; `None`: not to turn yet. Returns whether none stands still.
    fn look(&mut self, turns: Vec<Option<u64>>) -> bool {
        self.seen.resize(turns.len(), (None, 0));
        for ((before, looks), now) in self.seen.iter_mut().zip(turns) {
            *looks = if now.is_some() && *before == now { *looks + 1 } else { 0 };
            *before = now;
        }
        self.seen.iter().all(|(_, looks)| *looks < self.looks)
    }
}

/// Says that another configuration is being read.
pub(super) fn say_reloading() {
    say(&[NotifyState::Reloading, NotifyState::monotonic_usec_now().unwrap_or(NotifyState::Reloading)]);
}

/// Says that the reload has ended, taken or refused.
pub(super) fn say_reloaded() {
    say(&[NotifyState::Ready]);
}

/// Has the service manager watch another process from now on.
pub(super) fn say_main_process(id: u32) {
    say(&[NotifyState::MainPid(id)]);
}

/// Whether another process still speaks for the service: systemd takes no messages of this one, and warns of each in
/// the journal.
static HAS_NO_SAY: AtomicBool = AtomicBool::new(false);

/// Sends a message to systemd; nothing if that does not run this process.
fn say(state: &[NotifyState<'_>]) {
    if HAS_NO_SAY.load(Ordering::Relaxed) {
        return;
    }
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight shards that turn every so many milliseconds, each at moments of its own,
    /// as they are seen after so many looks.
    fn turns(every: u64, patience: Duration, look: u32) -> Vec<Option<u64>> {
        let now = (patience / LOOKS * look).as_millis() as u64;
        (0..8).map(|shard| Some((now + every * shard / 8) / every)).collect()
    }

    #[test]
    fn idle_shards_are_well_however_soon_the_manager_loses_patience() {
        for millis in [500, 1_000, 2_000, 3_000, 4_000, 4_500, 6_000, 10_000, 30_000] {
            let patience = Duration::from_millis(millis);
            for every in [1_000, 1_100] {
                let mut turning = Turning::new(patience);
                for look in 1..500 {
                    assert!(turning.look(turns(every, patience, look)), "{patience:?}, {every}: {look}");
                }
            }
        }
    }

    #[test]
    fn one_that_stands_still_is_noticed_in_time() {
        for (millis, looks) in [(1_000, 6), (2_000, 3), (3_000, 2), (6_000, 1), (10_000, 1)] {
            let patience = Duration::from_millis(millis);
            let mut turning = Turning::new(patience);
            let mut one_still = |look| {
                let mut turns = turns(100, patience, look);
                turns[5] = Some(7);
                turning.look(turns)
            };
            let fed = (1..20).take_while(|&look| one_still(look)).count();
            assert_eq!(fed, looks, "{patience:?}: the first look finds that it has turned");
            assert!((fed as u32 + 1..40).all(|look| !one_still(look)));
            assert!(turning.look(turns(100, patience, 40)), "it goes on");
            let mut not_yet = turns(100, patience, 41);
            not_yet[5] = None;
            assert!((0..9).all(|_| turning.look(vec![None; 8])) && turning.look(not_yet), "it is not to turn yet");
        }
    }
}
