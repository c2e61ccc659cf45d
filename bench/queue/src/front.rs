//! The front under test: a process of its own, its configuration, its metrics, what it holds open.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use peers::net;
use peers::process::address_told;

use crate::engines::Engines;

const START_MAX: Duration = Duration::from_secs(20);
const ASK_MAX: Duration = Duration::from_secs(5);

/// What differs between fronts; the rest is the same for all.
#[derive(Clone)]
pub struct Setting {
    pub driver: &'static str,
    pub shards: usize,
    /// Lines of `[routing]`.
    pub routing: String,
    /// Lines of `[queue]`.
    pub queue: String,
    /// Lines of each `[[upstream]]`.
    pub upstream: String,
}

impl Setting {
    /// Requests wait before engines without room.
    pub fn waiting(driver: &'static str, shards: usize, queue: &str) -> Setting {
        let routing = "policy = \"warm\"\nqueue = \"on\"\n".to_owned();
        Setting { driver, shards, routing, queue: queue.to_owned(), upstream: String::new() }
    }

    fn text(&self, engines: &Engines) -> String {
        let Setting { shards, routing, queue, upstream, .. } = self;
        let upstreams: String = engines
            .ports
            .iter()
            .map(|port| format!("[[upstream]]\nurl = \"http://127.0.0.1:{port}\"\n{upstream}"))
            .collect();
        // Shards on CPUs of their own would be with few CPUs what is measured.
        format!(
            "[serve]\nshards = {shards}\npin = false\n[routing]\n{routing}[queue]\n{queue}\
             [limits]\nupstream_idle_timeout_ms = 1000\n[health]\nslow_start_ms = 0\n\
             [control]\nscrape_interval_ms = 200\n[log]\nreceipts = 0\n{upstreams}"
        )
    }
}

pub struct Front {
    child: Child,
    pub address: SocketAddrV4,
    admin: SocketAddr,
    /// Its log.
    said: PathBuf,
}

impl Front {
    /// One that knows its engines and their caches. `dir` takes its configuration and its log.
    pub fn start(setting: &Setting, engines: &Engines, dir: &Path) -> Result<Front, String> {
        let words = |error: std::io::Error| error.to_string();
        let program = std::env::var_os("WARMFRONT").map_or_else(|| "target/release/warmfront".into(), PathBuf::from);
        let name = format!("{}-{}-{}", setting.driver, setting.shards, engines.ports.first().unwrap_or(&0));
        let (config, said) = (dir.join(format!("{name}.toml")), dir.join(format!("{name}.log")));
        fs::write(&config, setting.text(engines)).map_err(words)?;
        let mut command = Command::new(&program);
        let driver = setting.driver;
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--driver", driver, "--config"]);
        command.arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        net::end_with_us(&mut command);
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let log = BufReader::new(child.stderr.take().ok_or("a front without a log")?);
        let (sender, lines) = mpsc::channel();
        let mut kept = File::create(&said).map_err(words)?;
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                let _ = writeln!(kept, "{line}");
                let _ = sender.send(line);
            }
        });
        let unknown = SocketAddrV4::new([0, 0, 0, 0].into(), 0);
        // From here on the process ends with the value.
        let mut front = Front { child, address: unknown, admin: unknown.into(), said };
        front.admin = address_told(&lines, " admin=", START_MAX)?;
        match address_told(&lines, " listening=[", START_MAX)? {
            SocketAddr::V4(address) => front.address = address,
            SocketAddr::V6(address) => return Err(format!("listens on {address}")),
        }
        front.until("it knows all engines and their caches", |metrics| {
            let known = engines.ports.len();
            metrics.count("engine_kv_capacity_tokens") == known
                && metrics.sum("endpoint_health", "state=\"up\"") as usize == known
        })?;
        Ok(front)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until its metrics say so.
    pub fn until(&self, what: &str, is_so: impl Fn(&Metrics) -> bool) -> Result<Metrics, String> {
        let deadline = Instant::now() + START_MAX;
        loop {
            let metrics = self.metrics()?;
            if is_so(&metrics) {
                return Ok(metrics);
            }
            if Instant::now() > deadline {
                return Err(format!("not within {} s: {what}", START_MAX.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn metrics(&self) -> Result<Metrics, String> {
        let text = self.ask("/metrics").map_err(|error| format!("/metrics: {error}"))?;
        if text.contains("# EOF") { Ok(Metrics(text)) } else { Err("/metrics was cut".into()) }
    }

    fn ask(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.admin, ASK_MAX)?;
        stream.set_read_timeout(Some(ASK_MAX))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Descriptors it has open, but for pipes, of which shards keep some.
    pub fn descriptors(&self) -> usize {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid()));
        let links = entries.into_iter().flatten().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| !link.to_string_lossy().starts_with("pipe:")).count()
    }

    /// How many more than that it has open, once what control has under way is done.
    pub fn descriptors_above(&self, before: usize) -> usize {
        let deadline = Instant::now() + ASK_MAX;
        while self.descriptors() > before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.descriptors().saturating_sub(before)
    }

    /// Lines that no run should have.
    pub fn complaints(&self) -> Vec<String> {
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        let bad = |line: &&str| ["ERROR", "panicked", "a fault of warmfront"].iter().any(|words| line.contains(words));
        said.lines().filter(bad).map(str::to_owned).collect()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// OpenMetrics text.
pub struct Metrics(String);

impl Metrics {
    fn of<'a>(&'a self, name: &'a str, labels: &'a str) -> impl Iterator<Item = f64> + 'a {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix("warmfront_")?.strip_prefix(name)?;
            let is_meant = rest.starts_with(['{', ' ']) && rest.contains(labels);
            is_meant.then(|| rest.rsplit(' ').next()?.parse().ok())?
        })
    }

    /// The sum of the series of a family that have these words in their labels.
    pub fn sum(&self, name: &str, labels: &str) -> f64 {
        self.of(name, labels).fold(0.0, |sum, value| sum + value)
    }

    pub fn count(&self, name: &str) -> usize {
        self.of(name, "").count()
    }

    /// What is 0 in a front without faults.
    pub fn faults(&self) -> Vec<(&'static str, f64)> {
        let names = ["accounts_differ_total", "exchange_panics_total", "release_underflows_total"];
        names.into_iter().map(|name| (name, self.sum(name, ""))).filter(|(_, count)| *count != 0.0).collect()
    }
}
