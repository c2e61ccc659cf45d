//! Listeners first, all of them; then one pinned thread a shard.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::abort;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::choice::DriverChoice;
use super::handover::Neighbours;
use super::listeners::listeners;
use super::placement::Placement;
use super::{Setup, Shard, stopwatch};
use crate::counters::Counters;
use crate::counters::stats::Stats;
use crate::driver::uring::{Uring, probe::Unusable};
use crate::driver::{Driver, epoll::Epoll, socket};
use crate::exchange::Rules;
use crate::publish::{DriverInUse, Process, Published};

/// What the shards of one process share.
#[derive(Clone)]
pub struct Shared {
    /// Where snapshots appear.
    pub published: &'static Published,
    /// Drain flag and phases.
    pub process: &'static Process,
    /// In-flight counts of the fleet.
    pub counters: &'static Counters,
    /// Statistics, one entry a shard.
    pub stats: &'static Stats,
    /// Configuration of the data plane.
    pub rules: Arc<Rules>,
    /// How shards move bytes.
    pub driver: DriverChoice,
}

/// What is said of an address that cannot be bound to; it may come to this machine later.
pub const NOT_HERE: &str = "is no address of this machine now; one that moves between machines (VRRP) is listened on as 0.0.0.0 or [::], or with net.ipv4.ip_nonlocal_bind = 1 (net.ipv6.ip_nonlocal_bind for IPv6)";

/// Why shards cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port.
    #[error("cannot listen on {address}: {error}; choose another with --listen or `listen` in [serve]")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// Threads, descriptors.
    #[error("cannot start a shard: {0}")]
    Machine(#[from] io::Error),
}

impl StartError {
    /// The error for an address that cannot be listened on; if descriptors or memory are wanting, no other address
    /// would do either.
    pub fn no_listener(address: SocketAddr, error: io::Error) -> StartError {
        if socket::is_want(&error) {
            let why = format!("nothing is left to listen on {address} with: {error}");
            return StartError::Machine(io::Error::new(error.kind(), why));
        }
        let is_elsewhere = socket::is_port_want(&error);
        let error = if is_elsewhere { io::Error::new(error.kind(), format!("it {NOT_HERE}")) } else { error };
        StartError::Listen { address, error }
    }
}

/// What shards were started with.
#[derive(Debug)]
pub struct Started {
    /// One a shard.
    pub threads: Vec<JoinHandle<()>>,
    /// Addresses really listened on.
    pub addresses: Vec<SocketAddr>,
    /// The listeners of all shards once more, to be handed on: they stay open for as long as these do.
    pub listeners: Vec<OwnedFd>,
}

/// Opens every listener of every shard, so that a port that cannot be had is known before any client is served, then
/// starts the threads. An inherited listener is used in place of a new one.
///
/// # Errors
/// When a listener or a thread cannot be had; nothing serves then, but shards that were started before a thread could
/// not be had, until the process ends.
pub fn start(
    shared: &Shared,
    listen: &[SocketAddr],
    placement: &Placement,
    inherited: Vec<OwnedFd>,
) -> Result<Started, StartError> {
    let (listeners, addresses) = listeners(listen, placement.shards(), inherited)?;
    let copies = listeners.iter().flatten().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
    let patience = Duration::from_millis(shared.rules.limits.client_stall_timeout_ms);
    copies.iter().for_each(|listener| socket::be_patient(listener, patience));
    let mut threads = Vec::new();
    let neighbours = Neighbours::of_all(shared.stats)?;
    for (index, (listeners, neighbours)) in listeners.into_iter().zip(neighbours).enumerate() {
        let cpu = placement.cpu(index);
        let shared = shared.clone();
        let thread = Builder::new().name(format!("shard-{index}")).spawn(move || {
            if let Some(id) = cpu
                && !core_affinity::set_for_current(core_affinity::CoreId { id })
            {
                tracing::warn!(shard = index, cpu = id, "cannot be pinned; it runs where the kernel puts it");
            }
            if let Err(error) = serve(&shared, index, listeners, neighbours) {
                tracing::error!(shard = index, %error, "the shard cannot go on");
                abort();
            }
        });
        threads.push(thread?);
    }
    Ok(Started { threads, addresses, listeners: copies })
}

/// The life of one shard. A panic outside an exchange leaves connections in an unknown state: the process
/// ends, and whatever supervises it starts it anew.
fn serve(shared: &Shared, index: usize, listeners: Vec<OwnedFd>, neighbours: Neighbours) -> io::Result<()> {
    let setup = Setup {
        index: index as u16,
        listeners,
        published: shared.published,
        process: shared.process,
        records: shared.process.shards()[index].records(),
        counters: shared.counters,
        stats: shared.stats.shard(index),
        rules: Arc::clone(&shared.rules),
        seed: seed(index),
        stopwatch,
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let choice = &shared.driver;
        match choice.driver {
            DriverInUse::Uring => match Uring::new() {
                Ok(uring) => {
                    let (operations, completions) = uring.queue_sizes();
                    tracing::info!(shard = index, operations, completions, "ring");
                    // Its ring may be smaller than others', where memory that may be locked is short.
                    let why =
                        format!("{}; its ring has {operations} operations and {completions} completions", choice.why);
                    run(uring, setup, neighbours, &DriverChoice { driver: DriverInUse::Uring, why })
                }
                Err(error) => {
                    let why = Unusable::Refused(error).to_string();
                    tracing::warn!(shard = index, why, "this shard got no ring and takes epoll");
                    run(Epoll::new()?, setup, neighbours, &DriverChoice { driver: DriverInUse::Epoll, why })
                }
            },
            DriverInUse::Epoll => run(Epoll::new()?, setup, neighbours, choice),
        }
    }));
    outcome.unwrap_or_else(|_| abort())
}

fn run<D: Driver>(driver: D, setup: Setup, neighbours: Neighbours, choice: &DriverChoice) -> io::Result<()> {
    let index = usize::from(setup.index);
    let state = &setup.process.shards()[index];
    let mut shard = Shard::new(driver, setup)?;
    if let Err(error) = shard.share(neighbours) {
        tracing::warn!(shard = index, %error, "connections stay with the shard they were hashed to, and a drain may begin a second late");
    }
    state.now_serves(choice.driver, &choice.why);
    shard.run()?;
    state.now_ends();
    Ok(())
}

/// Another sequence of random choices for every shard and start.
fn seed(index: usize) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(index)
}
