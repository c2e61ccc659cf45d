//! The front: the process that serves, those whose place it took, its configuration, its log and its metrics.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use peers::net;
use peers::process::address_told;
use rustix::process::Signal;

use crate::proc;

const START_MAX: Duration = Duration::from_secs(20);
const ASK_MAX: Duration = Duration::from_secs(5);

pub struct Front {
    /// Held for its pid; how it ends is asked of the kernel, as with its heirs.
    _first: Child,
    /// All that live, the one that serves last.
    pids: Arc<Mutex<Vec<u32>>>,
    said: Arc<Mutex<Vec<String>>>,
    config: PathBuf,
    pub address: SocketAddrV4,
    admin: SocketAddr,
}

impl Front {
    /// `dir` takes its configuration and its log.
    pub fn start(driver: &str, config: &str, dir: &Path) -> Result<Front, String> {
        let program = std::env::var_os("WARMFRONT").map_or_else(|| "target/release/warmfront".into(), PathBuf::from);
        let path = dir.join("warmfront.toml");
        fs::write(&path, config).map_err(|error| error.to_string())?;
        let mut command = Command::new(&program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--driver", driver, "--config"]);
        command.arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Those that take its place are not children of ours: they end with the value alone.
        net::end_with_us(&mut command);
        let mut first = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let log = BufReader::new(first.stderr.take().ok_or("a front without a log")?);
        let kept = File::create(dir.join("front.log")).map_err(|error| error.to_string())?;
        let (pids, said) = (Arc::new(Mutex::new(vec![first.id()])), Arc::<Mutex<Vec<String>>>::default());
        let (sender, lines) = mpsc::channel();
        let (their_pids, their_said) = (Arc::clone(&pids), Arc::clone(&said));
        std::thread::spawn(move || listen(log, kept, &their_pids, &their_said, &sender));
        let unknown = SocketAddrV4::new([0, 0, 0, 0].into(), 0);
        // From here on its processes end with the value.
        let mut front = Front { _first: first, pids, said, config: path, address: unknown, admin: unknown.into() };
        front.admin = address_told(&lines, " admin=", START_MAX)?;
        match address_told(&lines, " listening=[", START_MAX)? {
            SocketAddr::V4(address) => front.address = address,
            SocketAddr::V6(address) => return Err(format!("listens on {address}")),
        }
        Ok(front)
    }

    /// Another configuration in its file.
    pub fn write(&self, config: &str) -> Result<(), String> {
        fs::write(&self.config, config).map_err(|error| error.to_string())
    }

    fn pids(&self) -> Vec<u32> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The process that serves.
    pub fn serving(&self) -> u32 {
        self.pids().last().copied().unwrap_or(0)
    }

    /// Those that finish what they have.
    pub fn predecessors(&self) -> Vec<u32> {
        let mut pids = self.pids();
        pids.pop();
        pids
    }

    pub fn signal(&self, signal: Signal) {
        proc::signal(self.serving(), signal);
    }

    /// Forgets those that have ended; answers each with its exit status, where it is known.
    pub fn ended(&self) -> Vec<(u32, Option<i32>)> {
        let ended: Vec<_> = self.pids().into_iter().filter_map(|pid| Some((pid, proc::ended(pid)?))).collect();
        let mut pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
        pids.retain(|pid| !ended.iter().any(|(gone, _)| gone == pid));
        ended
    }

    /// Lines of its log so far.
    pub fn said(&self, words: &str) -> usize {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.iter().filter(|line| line.contains(words)).count()
    }

    /// The lines that no run should have.
    pub fn complaints(&self) -> Vec<String> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let bad = |line: &&String| {
            (line.contains("ERROR") && !line.contains("configuration not taken"))
                || ["panicked", "a fault of warmfront"].iter().any(|words| line.contains(words))
        };
        said.iter().filter(bad).cloned().collect()
    }

    pub fn metrics(&self) -> Result<Metrics, String> {
        let text = self.ask("GET", "/metrics").map_err(|error| format!("/metrics: {error}"))?;
        if text.contains("# EOF") { Ok(Metrics(text)) } else { Err("/metrics was cut".into()) }
    }

    /// `POST /reload`, whole answer.
    pub fn reload(&self) -> Result<String, String> {
        self.ask("POST", "/reload").map_err(|error| format!("/reload: {error}"))
    }

    fn ask(&self, method: &str, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.admin, ASK_MAX)?;
        stream.set_read_timeout(Some(ASK_MAX))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
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

/// Keeps its log; a line that names an heir names the process that serves from then on.
fn listen(
    log: BufReader<std::process::ChildStderr>,
    mut kept: File,
    pids: &Mutex<Vec<u32>>,
    said: &Mutex<Vec<String>>,
    lines: &mpsc::Sender<String>,
) {
    for line in log.lines().map_while(Result::ok) {
        let _ = writeln!(kept, "{line}");
        if let Some(heir) = line.split_once(" heir=").and_then(|(_, id)| id.trim().parse().ok()) {
            pids.lock().unwrap_or_else(PoisonError::into_inner).push(heir);
        }
        said.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
        let _ = lines.send(line);
    }
}

/// OpenMetrics text.
pub struct Metrics(String);

impl Metrics {
    /// The sum of the series of a family that have these words in their labels.
    pub fn sum(&self, name: &str, labels: &str) -> f64 {
        let of = |line: &&str| {
            let rest = line.strip_prefix("warmfront_").and_then(|line| line.strip_prefix(name));
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
        };
        let values = self.0.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }

    /// What is 0 in a front without faults.
    pub fn faults(&self) -> Vec<(&'static str, f64)> {
        let names = ["accounts_differ_total", "exchange_panics_total", "release_underflows_total"];
        names.into_iter().map(|name| (name, self.sum(name, ""))).filter(|(_, count)| *count != 0.0).collect()
    }
}
