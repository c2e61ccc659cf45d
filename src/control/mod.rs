//! The control thread: an ordinary async program that keeps the snapshot fresh, answers the admin
//! listener and takes signals. It never touches a request's bytes, and no request waits for it.

mod access;
mod admin;
mod answer;
pub mod client;
pub mod explain;
pub mod fleet;
pub mod health;
mod keeper;
pub mod member;
mod metrics;
pub mod models;
mod pools;
pub mod reload;
pub mod scrape;
mod service;
mod stalls;
pub mod watch;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;
use std::{fs, io, thread};

use tokio::sync::oneshot;

use crate::config::{Config, Upstream};
use crate::counters::Counters;
use crate::counters::stats::Stats;
use crate::publish::{Process, Published};
use access::AccessLog;
use fleet::Fleet;
use keeper::Keeper;
use reload::Source;

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
    /// `access`
    #[error("{0}; `access` in [log] says where to")]
    Access(String),
    /// Threads, descriptors.
    #[error("cannot start the control thread: {0}")]
    Machine(#[from] io::Error),
}

/// The running control thread.
#[derive(Debug)]
pub struct Handle {
    /// Where the admin listener is: as configured, with the port that was taken for port 0.
    pub admin: SocketAddr,
    access: Arc<AccessLog>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Ends control; for when the shards have ended.
    pub fn stop(self) {
        // Both fail only if the thread has ended already.
        let _ = self.stop.send(());
        let _ = self.thread.join();
        // The last requests have ended.
        self.access.stop();
    }
}

/// Starts the control thread. When this returns, the admin listener is open and a first snapshot of all
/// engines whose names could be looked up is published, so that shards may begin.
pub fn start(setup: Setup) -> Result<Handle, StartError> {
    let address = setup.config.serve.admin;
    let admin = listen(address).map_err(|error| StartError::Admin { address, error })?;
    let address = admin.local_addr()?;
    let keys = setup.config.upstream.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    let fleet = Fleet::new(Arc::clone(&setup.config), keys);
    let access = Arc::new(AccessLog::new(setup.process, setup.published));
    access.take(access.prepare(&setup.config.log).map_err(StartError::Access)?);
    let keeper = Keeper::new(Arc::clone(&setup.config), fleet, setup.counters, setup.published, Arc::clone(&access));
    let keeper = Arc::new(keeper);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel();
    let (ready, begun) = mpsc::channel();
    let thread = thread::Builder::new().name("control".into()).spawn(move || {
        runtime.block_on(async {
            let signals = service::signals(&setup, &keeper);
            keeper.look_up().await;
            keeper.publish_now();
            begin(&setup, &keeper, admin);
            let _ = ready.send(signals);
            // An error is a dropped handle: the process then goes on without a way to stop control, as it should.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        });
    })?;
    match begun.recv() {
        Ok(signals) => signals?,
        Err(_) => return Err(StartError::Machine(io::Error::other("it ended at once"))),
    }
    Ok(Handle { admin: address, access, stop, thread })
}

/// Starts everything that runs beside each other.
fn begin(setup: &Setup, keeper: &Arc<Keeper>, admin: TcpListener) {
    keeper.watch();
    tokio::spawn(Arc::clone(keeper).watch_outcomes());
    tokio::spawn(Arc::clone(keeper).publish());
    tokio::spawn(service::notify(setup.process, setup.stats));
    tokio::spawn(stalls::watch(setup.process, setup.stats));
    let state = admin::State {
        keeper: Arc::clone(keeper),
        published: setup.published,
        counters: setup.counters,
        stats: setup.stats,
        process: setup.process,
        began: Instant::now(),
        source: Arc::clone(&setup.source),
    };
    tokio::spawn(admin::serve(admin, state));
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The key in an engine's `api_key_file`.
pub fn key(upstream: &Upstream) -> Result<Option<Arc<str>>, StartError> {
    let file = &upstream.api_key_file;
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let wrong = |why: String| StartError::Key { engine: upstream.label(), file: file.clone(), why };
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let key = text.trim();
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("the file must hold the key alone, in visible ASCII".into()));
    }
    Ok(Some(key.into()))
}
