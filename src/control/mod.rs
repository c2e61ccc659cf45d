//! The control thread: an ordinary async program that keeps the snapshot fresh, answers the admin
//! listener and takes signals. It never touches a request's bytes, and no request waits for it.

mod access;
mod acquaintance;
mod admin;
mod answers;
mod bank;
mod caches;
mod calibration;
pub mod client;
mod crowd;
pub mod edit;
mod endpoints;
pub mod explain;
pub mod fleet;
pub mod forms;
mod gate;
pub mod health;
mod hearing;
mod keeper;
pub mod keys;
mod ladder;
mod lasting;
mod listen;
pub mod log;
pub mod member;
mod metrics;
pub mod models;
mod named;
pub mod names;
mod outlet;
mod pools;
pub mod receipts;
pub mod reload;
pub mod sample;
pub mod saved;
pub mod scrape;
mod seats;
mod service;
mod stalls;
mod truth;
mod unserved;
pub mod upgrade;
pub mod watch;
mod writable;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use tokio::sync::oneshot;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::sleep;

use crate::config::Config;
use crate::counters::Counters;
use crate::counters::stats::Stats;
use crate::publish::{Process, Published};
use crate::succession::Estate;
use crate::want::is_want;
use access::AccessLog;
pub use caches::index_blocks;
use fleet::Fleet;
use forms::Forms;
use keeper::Keeper;
pub use keeper::engines;
use reload::Source;
use saved::{Saved, Unusable};
pub use service::say_drained;
pub use unserved::unserved;
use upgrade::Bequest;
pub use writable::writable;

/// What control works with; all of it is shared with the shards.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The configuration.
    pub config: Arc<Config>,
    /// Where snapshots go.
    pub published: &'static Published,
    /// In flight by endpoint.
    pub counters: &'static Counters,
    /// Statistics of each shard.
    pub stats: &'static Stats,
    /// Drain and phases.
    pub process: &'static Process,
    /// Where another configuration comes from.
    pub source: Arc<dyn Source>,
    /// Listeners that another process may take over.
    pub bequest: Bequest,
}

/// Why control cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The admin port.
    #[error("cannot open the admin listener on {address}: {error}; choose another with --admin or `admin` in [serve]")]
    Admin {
        /// `admin`
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// `api_key_file`
    #[error("cannot use the key of {engine} in {}: {why}", file.display())]
    Key {
        /// The engine's name.
        engine: String,
        /// `api_key_file`
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// `tokenizer`
    #[error("{0}")]
    Form(String),
    /// `access`
    #[error("{0}; `access` in [log] names the file")]
    Access(String),
    /// Name servers know none of the engines, and another process is in service that this one was to follow.
    #[error("name servers know none of the engines; see `url` in [[upstream]], or wait until name servers answer")]
    Nowhere,
    /// Threads, descriptors.
    #[error("cannot start the control thread: {0}")]
    Machine(#[from] io::Error),
}

impl StartError {
    /// The error for an admin address that cannot be listened on; if descriptors or memory are wanting, no other
    /// address would do either.
    pub fn no_listener(address: SocketAddr, error: io::Error) -> StartError {
        if is_want(&error) {
            let why = format!("nothing is left to listen on {address} with: {error}");
            return StartError::Machine(io::Error::new(error.kind(), why));
        }
        StartError::Admin { address, error }
    }
}

/// The running control thread.
#[derive(Debug)]
pub struct Handle {
    /// Where the admin listener is: as configured, with the port that was taken for port 0.
    pub admin: SocketAddr,
    access: Arc<AccessLog>,
    /// A duplicate of the admin listener, until it is put beside those of the shards.
    legacy: Option<OwnedFd>,
    bequest: Bequest,
    process: &'static Process,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Every shard accepts: says so, and keeps `listeners`, those of all shards, for a process that follows this one.
    pub fn serves(&mut self, listeners: Vec<OwnedFd>) {
        let Some(admin) = self.legacy.take() else { return };
        let estate = Estate { admin, listeners };
        // A process that is told to end notes that before it takes this lock.
        let mut will = self.bequest.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.process.is_ending() {
            service::say_ready(self.process, &estate);
            will.estate = Some(estate);
        }
    }

    /// Ends control; to be called when the shards have ended.
    pub fn stop(self) {
        // Both fail only if the thread has ended already.
        let _ = self.stop.send(());
        let _ = self.thread.join();
        // The last requests have ended.
        self.access.stop();
    }
}

/// Most threads for blocking work beside control's own: with as many shards as machines have, and a successor's threads
/// beside them, they have to be fewer than a unit may have (`TasksMax=`).
const THREADS_MAX: usize = 96;

/// How long such threads stay once they were needed: for ever. If no more threads can be made, work waits for one of
/// them to be free; if there were none, it would panic.
const THREADS_STAY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// Longest wait for `caches_file` to be written, or read at the start, while something else waits for that.
const SAVED_WITHIN: Duration = Duration::from_secs(20);

/// Starts the control thread. When this returns, the admin listener is open and a first snapshot of all
/// engines whose names could be looked up is published, so that shards may begin. An inherited admin listener is served
/// from where it listens as is configured. `succeeds`: another process serves from there until shards of this one do.
pub fn start(setup: Setup, inherited: Option<OwnedFd>, succeeds: bool) -> Result<Handle, StartError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(THREADS_MAX).thread_keep_alive(THREADS_STAY).enable_all().build()?;
    // Before anything slow: until it waits for these signals they end the process, or are lost.
    let asked = runtime.block_on(async { service::Asked::wait(succeeds) })?;
    let address = setup.config.serve.admin;
    let admin = listen(address, inherited).map_err(|error| StartError::no_listener(address, error))?;
    let (address, process) = (admin.local_addr()?, setup.process);
    let (legacy, bequest) = (Some(admin.try_clone()?.into()), Arc::clone(&setup.bequest));
    let (named, config, keys) = runtime.block_on(keeper::begun_with(&setup.config, keys::of_all(&setup.config)?));
    let setup = Setup { config, ..setup };
    let forms = Arc::new(Forms::read(&setup.config).map_err(StartError::Form)?);
    forms.say();
    let mut fleet = Fleet::new(Arc::clone(&setup.config), keys, forms);
    fleet.remember(remembered(&setup.config.control.caches_file, SAVED_WITHIN)?);
    let access = Arc::new(AccessLog::new(setup.process, setup.published));
    access.take(access.prepare(&setup.config.log).map_err(StartError::Access)?);
    let keeper = Keeper::new(
        Arc::clone(&setup.config),
        fleet,
        setup.counters,
        setup.stats,
        setup.published,
        Arc::clone(&access),
    );
    let keeper = Arc::new(keeper.following(named));
    let (stop, stopped) = oneshot::channel();
    let (ready, begun) = mpsc::channel();
    let thread = thread::Builder::new().name("control".into()).spawn(move || {
        runtime.block_on(async {
            // The first of the threads that stay. If it cannot be made nothing here can go on, and this thread ends.
            let _ = spawn_blocking(|| ()).await;
            service::end_when_told(&setup, asked.ends, &keeper);
            lasting::spawn("SIGUSR1", setup.process, service::on_reopen(asked.reopen));
            keeper.look_up().await;
            // Not before: a reload is refused while no engine has an address, and look-ups are still under way.
            lasting::spawn(
                "SIGHUP",
                setup.process,
                reload::on_hangup(asked.hangup, setup.clone(), Arc::clone(&keeper)),
            );
            keeper.publish_now();
            let serving = begin(&setup, &keeper, admin, succeeds);
            let succeeded = upgrade::on_signal(asked.upgrade, setup.clone(), Arc::clone(&keeper), serving);
            lasting::spawn("SIGUSR2", setup.process, succeeded);
            let acquainted = keeper.get_acquainted(setup.process, succeeds).await;
            keeper.publish_now();
            let failed = acquainted.is_err();
            let _ = ready.send(acquainted);
            if failed {
                return;
            }
            // An error is a dropped handle: the process then goes on without a way to stop control, as it should.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            // On this thread, for whose end the process waits: an idle front has drained within milliseconds.
            if !setup.process.has_successor() {
                keeper.save_within(setup.process, SAVED_WITHIN).await;
            }
        });
        // Not waiting for look-ups under way: name servers could hold up the end for as long as they like.
        runtime.shutdown_background();
    })?;
    match begun.recv() {
        Ok(begun) => begun?,
        Err(_) => return Err(StartError::Machine(io::Error::other("it ended at once"))),
    }
    Ok(Handle { admin: address, access, legacy, bequest, process, stop, thread })
}

/// How often to look whether the start has got on.
const GLANCE: Duration = Duration::from_millis(5);

/// Starts all of control's tasks; returns a handle to end the admin listener alone.
fn begin(setup: &Setup, keeper: &Arc<Keeper>, admin: TcpListener, succeeds: bool) -> AbortHandle {
    if succeeds {
        keeper.fleet().presume();
    }
    keeper.watch();
    lasting::spawn("outcomes", setup.process, Arc::clone(keeper).watch_outcomes());
    let following = Arc::clone(keeper);
    lasting::spawn_anew("names", move || Arc::clone(&following).follow_names());
    lasting::spawn("engines that leave", setup.process, Arc::clone(keeper).watch_leaving());
    lasting::spawn("what is wanting", setup.process, Arc::clone(keeper).say_wanting(Arc::clone(&setup.source)));
    lasting::spawn("watchdog", setup.process, service::feed_watchdog(setup.process, setup.stats));
    lasting::spawn("stalls", setup.process, stalls::watch(setup.process, setup.stats));
    lasting::spawn("crowds", setup.process, crowd::watch(Arc::clone(keeper), setup.stats));
    // Snapshots are published, what engines told is written down, and clients' sets of tools are learnt.
    let (process, saving, learning) = (setup.process, Arc::clone(keeper), Arc::clone(keeper));
    let publishing = Arc::clone(keeper);
    lasting::spawn_anew("publishing", move || Arc::clone(&publishing).publish());
    lasting::spawn_anew("saving", move || Arc::clone(&saving).save_often(process));
    lasting::spawn_anew("toolsets", move || Arc::clone(&learning).learn_toolsets(process));
    let state = admin::State {
        keeper: Arc::clone(keeper),
        published: setup.published,
        counters: setup.counters,
        stats: setup.stats,
        process: setup.process,
        began: Instant::now(),
        source: Arc::clone(&setup.source),
    };
    let serving = async move {
        // Until this process serves, the one before answers whether the service is ready.
        while succeeds && !process.all_serving() {
            sleep(GLANCE).await;
        }
        admin::serve(admin, state).await;
    };
    lasting::spawn("admin listener", setup.process, serving)
}

/// Reads what an earlier process wrote down. A file that cannot be used, or a disk that does not answer, only costs a
/// cold start: waiting for the disk would let no process take another's place.
fn remembered(file: &Path, within: Duration) -> io::Result<Saved> {
    if file.as_os_str().is_empty() {
        return Ok(Saved::default());
    }
    let (path, (sender, read)) = (file.to_owned(), mpsc::channel());
    thread::Builder::new().name("caches".into()).spawn(move || {
        saved::tidy_up(&path);
        // If it comes too late it is dropped.
        let _ = sender.send(Saved::read(&path));
    })?;
    match read.recv_timeout(within) {
        Ok(Ok(saved)) => return Ok(saved),
        Ok(Err(Unusable::File(error))) if error.kind() == io::ErrorKind::NotFound => {
            tracing::info!(file = %file.display(), "caches_file is not there yet: caches begin cold");
        }
        Ok(Err(why)) => {
            tracing::warn!(file = %file.display(), %why, "what was known of the engines' caches is not used");
        }
        Err(_) => {
            tracing::warn!(file = %file.display(), ?within, "caches_file is not read in time: caches begin cold");
        }
    }
    Ok(Saved::default())
}

fn listen(address: SocketAddr, inherited: Option<OwnedFd>) -> io::Result<TcpListener> {
    let fits = |bound: SocketAddr| bound == address || (bound.ip(), 0) == (address.ip(), address.port());
    let inherited = inherited.map(TcpListener::from);
    let before = inherited.as_ref().and_then(|listener| listener.local_addr().ok());
    let is_all = |at: SocketAddr| at.ip().is_unspecified();
    let is_one_and_all =
        before.is_some_and(|before| before.port() == address.port() && (is_all(before) || is_all(address)));
    let inherited = inherited.filter(|listener| listener.local_addr().is_ok_and(fits));
    let listener = inherited.map_or_else(|| TcpListener::bind(address), Ok);
    let listener = listener.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse if is_one_and_all => between_one_and_all(&error),
        io::ErrorKind::AddrInUse => {
            let who = "another process is there, maybe an earlier front that still drains (drain_timeout_ms)";
            io::Error::new(error.kind(), format!("{error}: {who}"))
        }
        _ => error,
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Explains an error on an inherited listener's port: the process that hands the listener on has it open as well, and
/// beside it the kernel opens none for all addresses of that port.
fn between_one_and_all(error: &io::Error) -> io::Error {
    let why = "the listener before this one has the port, and has it until it is closed: from one address to all of the same \
               port, or back, `admin` changes with a stop and a start, and not with SIGUSR2";
    io::Error::new(error.kind(), format!("{error}: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::config::Upstream;

    /// A configuration of these engines. Its prefix index is an eighth of the usual one: many tests make one each.
    pub(super) fn config_of(upstream: impl IntoIterator<Item = Upstream>) -> Config {
        let mut config = Config { upstream: upstream.into_iter().collect(), ..Config::default() };
        config.limits.index_bytes = 8 << 20;
        config
    }

    /// As of a file on a machine that is gone: whoever opens it stands still.
    #[test]
    fn a_start_does_not_wait_for_a_disk_that_does_not_answer() {
        let file = std::env::temp_dir().join(format!("warmfront-caches-far-away-{}", std::process::id()));
        let _ = fs::remove_file(&file);
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        let (begun, begins) = mpsc::channel();
        let path = file.clone();
        thread::spawn(move || {
            begun.send(remembered(&path, Duration::from_millis(1)).is_ok_and(|saved| saved.is_empty()))
        });
        let began = begins.recv_timeout(Duration::from_secs(20));
        // Whoever still stands there reads an end.
        drop(fs::OpenOptions::new().write(true).open(&file));
        fs::remove_file(&file).unwrap();
        assert_eq!(began, Ok(true));
    }
}
