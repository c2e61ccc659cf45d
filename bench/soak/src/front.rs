//! The front: the process that serves, its predecessors, its configuration, its log and its metrics.

use std::fs;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peers::warmfront::{self, Admin, Metrics, Started};
use rustix::process::Signal;

use crate::proc;

pub struct Front {
    /// Held for its pid; the kernel is asked how it ended, as with its heirs.
    _first: Child,
    /// Pids of all living processes; the last one serves.
    pids: Arc<Mutex<Vec<u32>>>,
    said: Arc<Mutex<Vec<String>>>,
    config: PathBuf,
    pub address: SocketAddrV4,
    admin: Admin,
}

impl Front {
    /// Starts a front; its configuration and its log go to `dir`.
    pub fn start(driver: &str, config: &str, dir: &Path) -> Result<Front, String> {
        let path = dir.join("warmfront.toml");
        fs::write(&path, config).map_err(|error| error.to_string())?;
        let (pids, said) = (Arc::<Mutex<Vec<u32>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (their_pids, their_said) = (Arc::clone(&pids), Arc::clone(&said));
        // A log line that names an heir names the process that serves from then on.
        let heard = move |line: &str| {
            if let Some(heir) = line.split_once(" heir=").and_then(|(_, id)| id.trim().parse().ok()) {
                lock(&their_pids).push(heir);
            }
            lock(&their_said).push(line.to_owned());
        };
        let Started { child, address, admin } = warmfront::start(driver, &path, &dir.join("front.log"), heard)?;
        // There is no heir before one is asked for. From here on the front's processes end with this value.
        lock(&pids).push(child.id());
        Ok(Front { _first: child, pids, said, config: path, address, admin })
    }

    /// Writes another configuration to its file.
    pub fn write(&self, config: &str) -> Result<(), String> {
        fs::write(&self.config, config).map_err(|error| error.to_string())
    }

    fn pids(&self) -> Vec<u32> {
        lock(&self.pids).clone()
    }

    /// The process that serves.
    pub fn serving(&self) -> u32 {
        self.pids().last().copied().unwrap_or(0)
    }

    /// Pids of the processes that finish what they have.
    pub fn predecessors(&self) -> Vec<u32> {
        let mut pids = self.pids();
        pids.pop();
        pids
    }

    pub fn signal(&self, signal: Signal) {
        proc::signal(self.serving(), signal);
    }

    /// Forgets processes that have ended; returns each with its exit status, if that is known.
    pub fn ended(&self) -> Vec<(u32, Option<i32>)> {
        let ended: Vec<_> = self.pids().into_iter().filter_map(|pid| Some((pid, proc::ended(pid)?))).collect();
        let mut pids = lock(&self.pids);
        pids.retain(|pid| !ended.iter().any(|(gone, _)| gone == pid));
        ended
    }

    /// Counts the log lines so far that contain `words`.
    pub fn said(&self, words: &str) -> usize {
        let said = lock(&self.said);
        said.iter().filter(|line| line.contains(words)).count()
    }

    /// Log lines that no run should have; refusals of the configurations that are wrong on purpose are none.
    pub fn complaints(&self) -> Vec<String> {
        warmfront::complaints(lock(&self.said).iter().map(String::as_str), Some("configuration not taken"))
    }

    pub fn metrics(&self) -> Result<Metrics, String> {
        self.admin.metrics()
    }

    /// Sends `POST /reload`; returns the whole answer.
    pub fn reload(&self) -> Result<String, String> {
        self.admin.ask("POST", "/reload")
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        for pid in self.pids() {
            if proc::ended(pid).is_none() {
                proc::signal(pid, Signal::KILL);
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
