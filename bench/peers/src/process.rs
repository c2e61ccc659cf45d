//! What a front costs: CPU time and resident memory of its process tree, where it listens, and how its processes end.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::net;

/// `pid` and all its descendants.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut pids = vec![pid];
    let mut at = 0;
    while at < pids.len() {
        for task in tasks(pids[at]) {
            let children = fs::read_to_string(format!("{task}/children")).unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        at += 1;
    }
    pids
}

fn tasks(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path().to_string_lossy().into_owned()).collect()
}

/// Nanoseconds of CPU of all threads of the tree. schedstat counts nanoseconds; where the kernel has
/// none, user + system time in clock ticks.
pub fn cpu_ns(pid: u32) -> u64 {
    tree(pid).into_iter().map(process_cpu_ns).sum()
}

fn process_cpu_ns(pid: u32) -> u64 {
    let tasks = tasks(pid);
    let times: Vec<u64> = tasks
        .iter()
        .filter_map(|task| fs::read_to_string(format!("{task}/schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse().ok())
        .collect();
    if times.len() == tasks.len() && times.iter().any(|time| *time > 0) {
        return times.iter().sum();
    }
    ticks(pid).unwrap_or(0) * 10_000_000
}

/// utime + stime of /proc/PID/stat: fields 14 and 15, counted after the name, which may hold spaces.
fn ticks(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// KiB resident, summed over the tree.
pub fn rss_kib(pid: u32) -> u64 {
    let process = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find(|line| line.starts_with("Rss:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    tree(pid).into_iter().filter_map(process).sum()
}

/// KiB that the kernel holds in slabs it cannot give back: sockets, requests of rings, epoll items. They are the whole
/// machine's: engines' and load's sockets are included, the same for every front.
pub fn slab_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("SUnreclaim:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Returns the cores of a thread of the tree that may run elsewhere than on `core`.
pub fn thread_off_core(pid: u32, core: usize) -> Option<String> {
    let cores = |task: String| {
        let text = fs::read_to_string(format!("{task}/status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(line.trim().to_string())
    };
    let mut all = tree(pid).into_iter().flat_map(tasks).filter_map(cores);
    all.find(|cores| *cores != core.to_string())
}

/// Returns the address after these words in the log of a front that starts.
pub fn address_told(log: &Receiver<String>, words: &str, patience: Duration) -> Result<SocketAddr, String> {
    let deadline = Instant::now() + patience;
    let mut last = String::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = log.recv_timeout(left).map_err(|_| format!("the front did not start: {last}"))?;
        if let Some((_, rest)) = line.split_once(words) {
            let end = rest.find([' ', ',', ']']).unwrap_or(rest.len());
            return rest[..end].parse().map_err(|_| line.clone());
        }
        last = line;
    }
}

/// A child process that does not outlive this value.
pub struct Running {
    pub child: Child,
}

impl Running {
    pub fn start(mut command: Command, core: usize) -> Result<Running, String> {
        use std::os::unix::process::CommandExt;
        // SAFETY: between fork and exec the closure makes system calls on plain numbers alone; it neither
        // allocates nor takes a lock.
        unsafe { command.pre_exec(move || net::prepare_child(core)) };
        let child = command.spawn().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
        Ok(Running { child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    /// SIGTERM, two seconds, SIGKILL, the last also to descendants (nginx's worker), which
    /// otherwise go with their parent.
    fn drop(&mut self) {
        if self.ended() {
            return;
        }
        net::signal(self.pid(), libc::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(2);
        while !self.ended() {
            if Instant::now() > deadline {
                for pid in tree(self.pid()) {
                    net::signal(pid, libc::SIGKILL);
                }
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
