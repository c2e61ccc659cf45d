//! The front as a process, with a configuration of the test's own.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::wire::{Body, Head, Length, Wire};

pub struct Front {
    child: Child,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    config: PathBuf,
    log: Arc<Mutex<String>>,
}

impl Front {
    /// Starts on `driver` before `engines`; `config` is TOML of the test's own.
    pub fn start(driver: &str, engines: &[SocketAddr], config: &str) -> Front {
        static STARTED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fleet-{}-{number}.toml", std::process::id()));
        std::fs::write(&path, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"]);
        command.args(["--driver", driver, "--config"]).arg(&path);
        for address in engines {
            command.args(["--upstream", &format!("http://{address}")]);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::<Mutex<String>>::default();
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        // From here on the process ends with the value, whatever fails.
        let mut front = Front { child, address: unknown, admin: unknown, config: path, log: Arc::clone(&log) };
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                eprintln!("{line}");
                *log.lock().unwrap() += &format!("{line}\n");
                let _ = sender.send(line);
            }
        });
        front.admin = logged(&lines, " admin=");
        front.address = logged(&lines, " listening=[");
        front
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Its standard output, once.
    pub fn output(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    /// Writes another configuration into its file.
    pub fn write(&self, config: &str) {
        std::fs::write(&self.config, config).unwrap();
    }

    /// `POST /reload`: status, and what it says.
    pub fn reload(&self) -> (u16, String) {
        let mut client = Client::to(self.admin);
        client.send("POST /reload HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        let reply = client.reply();
        (reply.status, String::from_utf8(reply.body.data).unwrap())
    }

    /// SIGHUP.
    pub fn hang_up(&self) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
    }

    /// A client's connection.
    pub fn connect(&self) -> Client {
        Client::to(self.address)
    }

    /// What `/endpoints` says of the endpoint at `place`.
    pub fn endpoint(&self, place: usize) -> serde_json::Value {
        let reply = Client::to(self.admin).get("/endpoints");
        let fleet: serde_json::Value = serde_json::from_slice(&reply.body.data).unwrap();
        fleet["endpoints"][place].clone()
    }

    pub fn until_health(&self, place: usize, health: &str) {
        crate::until(health, || self.endpoint(place)["health"] == health);
    }

    /// The sum of the series of a counter or gauge.
    pub fn metric(&self, name: &str) -> f64 {
        let reply = Client::to(self.admin).get("/metrics");
        let text = String::from_utf8(reply.body.data).unwrap();
        let values = text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<f64>().unwrap()).sum()
    }

    /// SIGTERM, and how it ended.
    pub fn stop(mut self) -> Option<i32> {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.config);
    }
}

/// The address behind these words in the log.
fn logged(lines: &mpsc::Receiver<String>, words: &str) -> SocketAddr {
    loop {
        let line = lines.recv_timeout(crate::PATIENCE).expect("the front did not start");
        if let Some((_, rest)) = line.split_once(words) {
            let end = rest.find([' ', ',', ']']).unwrap_or(rest.len());
            return rest.get(..end).and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        }
    }
}

pub struct Reply {
    pub status: u16,
    pub body: Body,
}

pub struct Client(Wire);

impl Client {
    fn to(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(Wire::new(stream))
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
        self.reply()
    }

    pub fn post(&mut self) -> Reply {
        self.ask();
        self.reply()
    }

    pub fn ask(&mut self) {
        self.send("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}");
    }

    pub fn send(&mut self, text: &str) {
        let _ = self.0.stream.write_all(text.as_bytes());
    }

    pub fn reply(&mut self) -> Reply {
        let head = self.head();
        let status = head.start.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Reply { status, body: self.body(&head) }
    }

    pub fn head(&mut self) -> Head {
        self.0.head().expect("a reply")
    }

    pub fn body(&mut self, head: &Head) -> Body {
        self.0.body(head.length().unwrap_or(Length::UntilClose))
    }
}
