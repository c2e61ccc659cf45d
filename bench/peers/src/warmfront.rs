//! warmfront as a process of its own: how it is started, the addresses and faults that its log tells, its metrics.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use crate::net;
use crate::process::address_told;

/// Longest start.
pub const START_MAX: Duration = Duration::from_secs(20);
/// Longest wait for an answer of its admin listener.
pub const ASK_MAX: Duration = Duration::from_secs(5);

/// A front that accepts clients. Whoever started it has to end it.
pub struct Started {
    pub child: Child,
    pub address: SocketAddrV4,
    pub admin: Admin,
}

/// Starts the program that WARMFRONT names, or the one of this build; its log goes to `log`, and each line of it to
/// `heard`.
pub fn start(
    driver: &str,
    config: &Path,
    log: &Path,
    heard: impl FnMut(&str) + Send + 'static,
) -> Result<Started, String> {
    let program = std::env::var_os("WARMFRONT").map_or_else(|| "target/release/warmfront".into(), PathBuf::from);
    let kept = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let mut command = Command::new(&program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--driver", driver, "--config"]);
    command.arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Its heirs are not children of ours: they end when the first one's starter ends.
    net::end_with_us(&mut command);
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    match addresses(child.stderr.take(), kept, heard) {
        Ok((address, admin)) => Ok(Started { child, address, admin }),
        Err(why) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(why)
        }
    }
}

fn addresses(
    log: Option<ChildStderr>,
    kept: File,
    heard: impl FnMut(&str) + Send + 'static,
) -> Result<(SocketAddrV4, Admin), String> {
    let lines = listen(log.ok_or("a front without a log")?, kept, heard);
    let admin = Admin(address_told(&lines, " admin=", START_MAX)?);
    match address_told(&lines, " listening=[", START_MAX)? {
        SocketAddr::V4(address) => Ok((address, admin)),
        SocketAddr::V6(address) => Err(format!("listens on {address}")),
    }
}

/// Keeps its log while it lives.
fn listen(log: ChildStderr, mut kept: File, mut heard: impl FnMut(&str) + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            let _ = writeln!(kept, "{line}");
            heard(&line);
            // The receiver is gone once both addresses are known.
            let _ = sender.send(line);
        }
    });
    lines
}

/// Log lines that no run should have; errors with the tolerated words are none.
pub fn complaints<'a>(log: impl Iterator<Item = &'a str>, tolerated: Option<&str>) -> Vec<String> {
    let is_tolerated = |line: &str| tolerated.is_some_and(|words| line.contains(words));
    let is_bad = |line: &&str| {
        (line.contains("ERROR") && !is_tolerated(line))
            || ["panicked", "a fault of warmfront"].iter().any(|words| line.contains(words))
    };
    log.filter(is_bad).map(str::to_owned).collect()
}

/// Address of the admin listener.
#[derive(Clone, Copy)]
pub struct Admin(SocketAddr);

impl Admin {
    pub fn metrics(&self) -> Result<Metrics, String> {
        let text = self.ask("GET", "/metrics")?;
        if text.contains("# EOF") { Ok(Metrics(text)) } else { Err("/metrics was cut".into()) }
    }

    /// Returns the whole answer.
    pub fn ask(&self, method: &str, path: &str) -> Result<String, String> {
        self.answer(method, path).map_err(|error| format!("{path}: {error}"))
    }

    fn answer(&self, method: &str, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.0, ASK_MAX)?;
        stream.set_read_timeout(Some(ASK_MAX))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/openmetrics-text\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
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

    /// The sum of a family's series that have these words in their labels.
    pub fn sum(&self, name: &str, labels: &str) -> f64 {
        self.of(name, labels).fold(0.0, |sum, value| sum + value)
    }

    pub fn count(&self, name: &str) -> usize {
        self.of(name, "").count()
    }

    /// Metrics that must be 0 and are not, with their values.
    pub fn faults(&self) -> Vec<(&'static str, f64)> {
        let names = ["accounts_differ_total", "exchange_panics_total", "release_underflows_total"];
        names.into_iter().map(|name| (name, self.sum(name, ""))).filter(|(_, count)| *count != 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerated_error_hides_no_other_fault() {
        let log =
            ["INFO listening", "ERROR configuration not taken", "ERROR x", "thread panicked", "a fault of warmfront"];
        assert_eq!(complaints(log.into_iter(), None), log[1..]);
        assert_eq!(complaints(log.into_iter(), Some("not taken")), log[2..]);
        assert_eq!(complaints(["ERROR not taken: it panicked"].into_iter(), Some("not taken")).len(), 1);
    }

    #[test]
    fn series_of_a_family_are_summed_and_no_other_of_its_name() {
        let text = "warmfront_x{state=\"up\"} 2\nwarmfront_x{state=\"down\"} 1\nwarmfront_x_y 7\nwarmfront_z 4\n";
        let metrics = Metrics(text.into());
        assert_eq!((metrics.sum("x", ""), metrics.sum("x", "state=\"up\""), metrics.count("x")), (3.0, 2.0, 2));
    }
}
