//! The front under test: a process of its own, its configuration, its metrics, its open descriptors.

use std::fs;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use peers::warmfront::{self, ASK_MAX, Admin, Metrics, START_MAX, Started};

use crate::engines::Engines;

/// What differs between fronts; everything else is the same.
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
    /// A setting in which requests wait before engines without room.
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
        // Pinned shards on few CPUs would be what is measured.
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
    admin: Admin,
    /// Path of its log.
    said: PathBuf,
}

impl Front {
    /// Starts a front and waits until it knows its engines and their caches. Its configuration and its log go to `dir`.
    pub fn start(setting: &Setting, engines: &Engines, dir: &Path) -> Result<Front, String> {
        let name = format!("{}-{}-{}", setting.driver, setting.shards, engines.ports.first().unwrap_or(&0));
        let (config, said) = (dir.join(format!("{name}.toml")), dir.join(format!("{name}.log")));
        fs::write(&config, setting.text(engines)).map_err(|error| error.to_string())?;
        let Started { child, address, admin } = warmfront::start(setting.driver, &config, &said, |_| {})?;
        // From here on the process ends with this value.
        let front = Front { child, address, admin, said };
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

    /// Waits until its metrics meet `is_so`.
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
        self.admin.metrics()
    }

    /// Counts its open descriptors without pipes, of which shards keep some.
    pub fn descriptors(&self) -> usize {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid()));
        let links = entries.into_iter().flatten().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| !link.to_string_lossy().starts_with("pipe:")).count()
    }

    /// Counts the descriptors above `before`, once control has ended what is under way.
    pub fn descriptors_above(&self, before: usize) -> usize {
        let deadline = Instant::now() + ASK_MAX;
        while self.descriptors() > before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.descriptors().saturating_sub(before)
    }

    /// Log lines that no run should have.
    pub fn complaints(&self) -> Vec<String> {
        warmfront::complaints(fs::read_to_string(&self.said).unwrap_or_default().lines(), None)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
