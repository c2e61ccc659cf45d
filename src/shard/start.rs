//! Listeners first, all of them; then one pinned thread a shard.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::abort;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::Duration;

use super::choice::Choice;
use super::handover::HandOver;
use super::placement::Placement;
use super::{Setup, Shard, stopwatch};
use crate::counters::Counters;
use crate::counters::stats::Stats;
use crate::driver::uring::{Uring, probe::Unusable};
use crate::driver::{Driver, epoll::Epoll, socket};
use crate::exchange::Rules;
use crate::publish::{DriverInUse, Process, Published};

/// How often, and how far apart, a port in use is tried.
const BIND_TRIES: u32 = 10;
const BIND_WAIT: Duration = Duration::from_millis(10);

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
    pub driver: Choice,
}

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

/// Opens every listener of every shard, so that a port that cannot be had is known before any client is
/// served, then starts the threads. Answers them and the addresses really listened on.
///
/// # Errors
/// When a listener or a thread cannot be had; nothing serves then.
pub fn start(
    shared: &Shared,
    listen: &[SocketAddr],
    placement: &Placement,
) -> Result<(Vec<JoinHandle<()>>, Vec<SocketAddr>), StartError> {
    let (listeners, addresses) = listeners(listen, placement.shards())?;
    let mut threads = Vec::new();
    let handovers = HandOver::of_all(shared.stats)?;
    for (index, (listeners, handover)) in listeners.into_iter().zip(handovers).enumerate() {
        let cpu = placement.cpu(index);
        let shared = shared.clone();
        let thread = Builder::new().name(format!("shard-{index}")).spawn(move || {
            if let Some(id) = cpu
                && !core_affinity::set_for_current(core_affinity::CoreId { id })
            {
                tracing::warn!(shard = index, cpu = id, "cannot be pinned; it runs where the kernel puts it");
            }
            if let Err(error) = serve(&shared, index, listeners, handover) {
                tracing::error!(shard = index, %error, "the shard cannot go on");
                abort();
            }
        });
        threads.push(thread?);
    }
    Ok((threads, addresses))
}

/// The life of one shard. A panic outside an exchange leaves connections in an unknown state: the process
/// ends, and whatever supervises it starts it anew.
fn serve(shared: &Shared, index: usize, listeners: Vec<OwnedFd>, handover: Option<HandOver>) -> io::Result<()> {
    let setup = Setup {
        listeners,
        published: shared.published,
        process: shared.process,
        doing: shared.process.shards()[index].doing(),
        records: shared.process.shards()[index].records(),
        counters: shared.counters,
        stats: shared.stats.shard(index),
        rules: Arc::clone(&shared.rules),
        seed: seed(index),
        stopwatch,
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let Choice { driver, why } = &shared.driver;
        match driver {
            DriverInUse::Uring => match Uring::new() {
                Ok(uring) => {
                    let (operations, completions) = uring.queue_sizes();
                    tracing::info!(shard = index, operations, completions, "ring");
                    run(uring, setup, handover, shared, index, DriverInUse::Uring, why)
                }
                Err(error) => {
                    let why = Unusable::Refused(error).to_string();
                    tracing::warn!(shard = index, why, "this shard got no ring and takes epoll");
                    run(Epoll::new()?, setup, handover, shared, index, DriverInUse::Epoll, &why)
                }
            },
            _ => run(Epoll::new()?, setup, handover, shared, index, DriverInUse::Epoll, why),
        }
    }));
    outcome.unwrap_or_else(|_| abort())
}

fn run<D: Driver>(
    driver: D,
    setup: Setup,
    handover: Option<HandOver>,
    shared: &Shared,
    index: usize,
    in_use: DriverInUse,
    why: &str,
) -> io::Result<()> {
    let mut shard = Shard::new(driver, setup)?;
    if let Err(error) = shard.share(handover) {
        tracing::warn!(shard = index, %error, "connections stay with the shard they were hashed to");
    }
    let state = &shared.process.shards()[index];
    state.serving(in_use, why);
    shard.run()?;
    state.ended();
    Ok(())
}

/// By shard one listener for each address. Port 0 becomes one port for all shards.
fn listeners(listen: &[SocketAddr], shards: usize) -> Result<(Vec<Vec<OwnedFd>>, Vec<SocketAddr>), StartError> {
    let mut by_shard: Vec<Vec<OwnedFd>> = (0..shards).map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for &asked in listen {
        let mut address = asked;
        until_free(asked).map_err(|error| StartError::Listen { address, error })?;
        for listeners in &mut by_shard {
            let refused = |error| StartError::Listen { address, error };
            let listener = socket::listener(address).map_err(refused)?;
            address = socket::bound_address(&listener).map_err(refused)?;
            listeners.push(listener);
        }
        addresses.push(address);
    }
    Ok((by_shard, addresses))
}

/// A ring that was closed just now keeps its listeners, and so the port, for some 5 to 20 ms more.
fn until_free(address: SocketAddr) -> io::Result<()> {
    for _ in 1..BIND_TRIES {
        match socket::check_free(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => sleep(BIND_WAIT),
            answer => return answer,
        }
    }
    socket::check_free(address)
}

/// Another sequence of random choices for every shard and start.
fn seed(index: usize) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_given_up_soon_is_waited_for() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(until_free(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let gone = std::thread::spawn(move || {
            sleep(BIND_WAIT * 3);
            drop(taken);
        });
        until_free(address).unwrap();
        gone.join().unwrap();
    }
}
