//! Eight engines on one thread of this process, each with its own port on loopback.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::engine::core::Figures;
use crate::engine::pump::{Engine, Settings};
use crate::engine::server;

/// Number of engines: KubeAI's run has as many replicas.
pub const ENGINES: usize = 8;

/// The engines, until dropped.
pub struct Fleet {
    engines: Vec<Arc<Engine>>,
    addresses: Vec<SocketAddr>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

/// Sums over the fleet at one moment.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Prompt tokens looked up in caches, and those found.
    pub queries: u64,
    /// See `queries`.
    pub hits: u64,
    /// Requests that reached their first token, by engine.
    pub requests: Vec<u64>,
    /// Preemptions.
    pub preemptions: u64,
    /// Simulated seconds by which steps began late, by engine.
    pub lag_seconds: Vec<f64>,
}

impl Fleet {
    /// Starts engines with cold caches.
    pub fn start(settings: &Settings) -> Result<Fleet, String> {
        let mut engines = Vec::new();
        let mut addresses = Vec::new();
        let mut listeners = Vec::new();
        for _ in 0..ENGINES {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .map_err(|error| format!("cannot listen on loopback: {error}"))?;
            addresses.push(listener.local_addr().map_err(|error| error.to_string())?);
            listeners.push(listener);
            engines.push(Engine::new(settings.clone()));
        }
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let running = engines.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("cannot start the engines' runtime: {error}"))?;
        std::thread::Builder::new()
            .name("engines".into())
            .spawn(move || runtime.block_on(run(running, listeners, stopped)))
            .map_err(|error| format!("cannot start the engines' thread: {error}"))?;
        Ok(Fleet { engines, addresses, _stop: stop })
    }

    /// Addresses on which the engines listen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Empties caches and counters, so that each policy starts from the same state.
    pub fn restart(&self) {
        for engine in &self.engines {
            engine.restart();
        }
    }

    /// Sums over the fleet now.
    pub fn totals(&self) -> Totals {
        let figures: Vec<Figures> = self.engines.iter().map(|engine| engine.figures()).collect();
        let sum = |of: fn(&Figures) -> u64| figures.iter().map(of).sum();
        Totals {
            queries: sum(|figures| figures.counts.prefix_queries),
            hits: sum(|figures| figures.counts.prefix_hits),
            requests: figures.iter().map(|figures| figures.ttft.iter().sum()).collect(),
            preemptions: sum(|figures| figures.counts.preemptions),
            lag_seconds: self.engines.iter().map(|engine| engine.lag().seconds).collect(),
        }
    }
}

async fn run(
    engines: Vec<Arc<Engine>>,
    listeners: Vec<std::net::TcpListener>,
    stopped: tokio::sync::oneshot::Receiver<()>,
) {
    for (engine, listener) in engines.into_iter().zip(listeners) {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => drop(tokio::spawn(server::serve(engine, listener))),
            Err(error) => {
                // The reader may have left.
                let _ = writeln!(io::stderr(), "warmfront demo: an engine cannot listen: {error}");
            }
        }
    }
    // Answered with an error when the fleet is dropped: both mean the end.
    let _ = stopped.await;
}
