//! A process as `/proc` shows it, and how processes end that this one did not start.

use std::fs;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    pub rss_kib: u64,
    /// Open descriptors without pipes.
    pub descriptors: usize,
    /// Open ends of pipes: shards keep some for splicing.
    pub pipe_ends: usize,
    pub threads: usize,
}

/// Looks at one process alone: an heir is a child of the process whose place it takes, until that one ends.
pub fn look(pid: u32) -> Seen {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    let open = open
        .map_or_else(|_| Vec::new(), |entries| entries.flatten().map(|entry| fs::read_link(entry.path())).collect());
    let is_pipe = |path: &&std::io::Result<std::path::PathBuf>| {
        path.as_ref().is_ok_and(|path| path.to_string_lossy().starts_with("pipe:"))
    };
    let pipe_ends = open.iter().filter(is_pipe).count();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    Seen { rss_kib: rss.unwrap_or(0), descriptors: open.len() - pipe_ends, pipe_ends, threads }
}

/// Nanoseconds of CPU of its living threads.
pub fn run_ns(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let times = tasks.flatten().filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    times.sum()
}

pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// How it ended, if it has: its exit status, or `None` inside if another process learnt it.
pub fn ended(pid: u32) -> Option<Option<i32>> {
    let id = Pid::from_raw(pid as i32)?;
    match waitpid(Some(id), WaitOptions::NOHANG) {
        Ok(Some((_, status))) => Some(Some(status.exit_status().unwrap_or(-1))),
        Ok(None) => None,
        // Not our child yet: its parent still lives.
        Err(_) => {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            // A process that ended while its parent lives remains until the parent ends; then it is ours to ask.
            state.is_empty().then_some(None)
        }
    }
}
