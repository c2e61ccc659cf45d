//! The front under test: this program's own `serve`, as a child process.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

const READY_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
const LAST_LINES: usize = 12;

/// A running front. It is killed when dropped.
pub struct Front {
    child: Child,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Address of its admin listener.
    pub admin: SocketAddr,
    said: Arc<Mutex<VecDeque<String>>>,
}

impl Front {
    /// Starts `serve` under `policy` over `upstreams` and waits until it is ready.
    pub async fn start(
        policy: &str,
        shards: Option<usize>,
        upstreams: &[SocketAddr],
        listen: Option<SocketAddr>,
    ) -> Result<Front, String> {
        let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let (listen, admin) = (listen.map_or_else(free_address, Ok)?, free_address()?);
        let mut command = Command::new(program);
        command.arg("serve").args(["--policy", policy]);
        command.args(["--listen", &listen.to_string(), "--admin", &admin.to_string()]);
        if let Some(shards) = shards {
            command.args(["--shards", &shards.to_string()]);
        }
        for upstream in upstreams {
            command.args(["--upstream", &format!("http://{upstream}")]);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start the front: {error}"))?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(listen_to(stderr, Arc::clone(&said)));
        }
        let mut front = Front { child, listen, admin, said };
        front.wait_until_ready().await?;
        Ok(front)
    }

    async fn wait_until_ready(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < READY_TIMEOUT {
            if let Ok(Some(status)) = self.child.try_wait() {
                // The front's last words may still be on their way through the pipe.
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Err(format!("the front ended at once ({status}){}", self.last_words()));
            }
            if ready(self.admin).await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(format!(
            "the front was not ready on http://{}/readyz within {} s{}",
            self.admin,
            READY_TIMEOUT.as_secs(),
            self.last_words()
        ))
    }

    /// CPU seconds that the front has used.
    pub fn cpu_seconds(&self) -> f64 {
        self.child.id().map_or(0.0, cpu_seconds)
    }

    /// Returns its last words if it has ended by itself.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("the front ended ({status}){}", self.last_words()))
    }

    /// Asks the front to end, and kills it if it does not.
    pub async fn stop(mut self) {
        let pid = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32));
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }

    fn last_words(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = said.iter().map(String::as_str).collect();
        format!(". It said:\n  {}", lines.join("\n  "))
    }
}

/// User and system time of a process in seconds, from `/proc`: 100 ticks a second everywhere on Linux.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = behind_name.split_whitespace().skip(11).take(2);
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

async fn listen_to(stderr: tokio::process::ChildStderr, said: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() == LAST_LINES {
            said.pop_front();
        }
        said.push_back(line);
    }
}

async fn ready(admin: SocketAddr) -> bool {
    let ask = async {
        let mut socket = tokio::net::TcpStream::connect(admin).await?;
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut line = [0; 12];
        socket.read_exact(&mut line).await?;
        Ok::<_, std::io::Error>(line.ends_with(b" 200"))
    };
    matches!(tokio::time::timeout(Duration::from_secs(1), ask).await, Ok(Ok(true)))
}

/// Finds a port that is free now. Another process may take it before the child does; then the child says so.
fn free_address() -> Result<SocketAddr, String> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map_err(|error| format!("no free port on loopback: {error}"))
}
