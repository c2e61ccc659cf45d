//! The front as a process, with a configuration of the test's own.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::wire::{Body, Head, Length, Wire};

pub struct Front {
    child: Child,
    /// Processes that took its place, the latest last; ended with the value.
    heirs: Arc<Mutex<Vec<i32>>>,
    said: Arc<Mutex<Vec<String>>>,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    config: PathBuf,
}

impl Front {
    /// Starts on `driver` before `engines`; `config` is TOML of the test's own.
    pub fn start(driver: &str, engines: &[SocketAddr], config: &str) -> Front {
        Front::by(Command::new(env!("CARGO_BIN_EXE_warmfront")), driver, engines, config)
    }

    /// Starts it by the test's own command, which hands its arguments to the program.
    pub fn by(mut command: Command, driver: &str, engines: &[SocketAddr], config: &str) -> Front {
        static STARTED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fleet-{}-{number}.toml", std::process::id()));
        std::fs::write(&path, config).unwrap();
        command.arg("serve");
        for (key, args) in [
            ("listen", ["--listen", "127.0.0.1:0"]),
            ("admin", ["--admin", "127.0.0.1:0"]),
            ("shards", ["--shards", "1"]),
        ] {
            if !config.contains(&format!("{key} = ")) {
                command.args(args);
            }
        }
        command.args(["--driver", driver, "--config"]).arg(&path);
        for address in engines {
            command.args(["--upstream", &format!("http://{address}")]);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        // From here on the process ends with the value, whatever fails.
        let heirs = Arc::<Mutex<Vec<i32>>>::default();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let mut front = Front {
            child,
            heirs: Arc::clone(&heirs),
            said: Arc::clone(&said),
            address: unknown,
            admin: unknown,
            config: path,
        };
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                eprintln!("{line}");
                if let Some((_, id)) = line.split_once(" heir=") {
                    heirs.lock().unwrap().push(id.trim().parse().unwrap());
                }
                said.lock().unwrap().push(line.clone());
                let _ = sender.send(line);
            }
        });
        front.admin = logged(&lines, " admin=");
        front.address = logged(&lines, " listening=[");
        front
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.said.lock().unwrap().join("\n")
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
        self.asks("POST", "/reload", "")
    }

    /// A connection to the admin listener.
    pub fn admin(&self) -> Client {
        Client::to(self.admin)
    }

    /// Asks the admin listener: status, and what it says.
    pub fn asks(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut client = self.admin();
        let len = body.len();
        client.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}"
        ));
        let reply = client.reply();
        (reply.status, String::from_utf8(reply.body.data).unwrap())
    }

    /// SIGHUP.
    pub fn hang_up(&self) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
    }

    /// SIGINT to the first process.
    pub fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// SIGTERM to the first process.
    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// A signal to the first process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGUSR2 to the process that serves; waits until another has taken its place.
    pub fn upgrade(&self) {
        let before = self.heirs.lock().unwrap().len();
        self.try_upgrade();
        crate::until("another process", || self.heirs.lock().unwrap().len() > before);
    }

    /// SIGUSR2 to the process that serves.
    pub fn try_upgrade(&self) {
        let heirs = self.heirs.lock().unwrap();
        let now = heirs.last().map_or_else(|| Pid::from_child(&self.child), |id| Pid::from_raw(*id).unwrap());
        kill_process(now, Signal::USR2).unwrap();
    }

    /// SIGUSR2 to the first process.
    pub fn upgrade_first(&self) {
        kill_process(Pid::from_child(&self.child), Signal::USR2).unwrap();
    }

    /// How many processes have taken its place so far.
    pub fn heirs(&self) -> usize {
        self.heirs.lock().unwrap().len()
    }

    /// The process that took its place last.
    pub fn heir(&self) -> i32 {
        *self.heirs.lock().unwrap().last().unwrap()
    }

    /// Its process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Whether words were in its log.
    pub fn has_said(&self, words: &str) -> bool {
        self.said.lock().unwrap().iter().any(|line| line.contains(words))
    }

    /// Waits for words in its log.
    pub fn until_said(&self, words: &str) {
        crate::until(words, || self.has_said(words));
    }

    /// Whether the first process has ended.
    pub fn first_has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
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

    /// Whether the shards take the endpoint at `place` for this. `/endpoints` knows up to 20 ms sooner.
    pub fn acts_on(&self, place: usize, health: &str) -> bool {
        let name = self.endpoint(place)["name"].as_str().unwrap().to_owned();
        self.metric(&format!("warmfront_endpoint_health{{endpoint=\"{name}\",state=\"{health}\"}}")) == 1.0
    }

    pub fn until_health(&self, place: usize, health: &str) {
        crate::until(health, || self.acts_on(place, health));
    }

    /// The sum of the series of a counter or gauge that begin with `name`. The page must have the family: one that was
    /// removed would read as 0, which many tests expect.
    pub fn metric(&self, name: &str) -> f64 {
        let reply = Client::to(self.admin).get("/metrics");
        let text = String::from_utf8(reply.body.data).unwrap();
        let family = name.split([' ', '{']).next().unwrap();
        let told = format!("# TYPE {family} ");
        assert!(text.contains(&told), "no {family} in {text}");
        let series = text.lines().filter_map(|line| Some((line, line.strip_prefix(name)?)));
        let series = series.filter(|(_, rest)| name != family || rest.starts_with([' ', '{']));
        series.map(|(line, _)| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and how it ended.
    pub fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        for heir in self.heirs.lock().unwrap().iter().filter_map(|id| Pid::from_raw(*id)) {
            let _ = kill_process(heir, Signal::KILL);
        }
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
            let address = rest.split([' ', ',']).next().unwrap_or_default().trim_end_matches(']');
            return address.parse().unwrap_or_else(|_| panic!("{line}"));
        }
    }
}

pub struct Reply {
    pub status: u16,
    /// The connection ends after it.
    pub closes: bool,
    pub body: Body,
}

pub struct Client(Wire);

impl Client {
    pub fn to(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(Wire::new(stream))
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
        self.reply()
    }

    pub fn post(&mut self) -> Reply {
        self.ask();
        self.reply()
    }

    /// The status of the reply to a prompt of so many bytes for this model, which begins like no other.
    pub fn prompts(&mut self, model: &str, bytes: usize) -> u16 {
        self.prompts_with("", model, bytes)
    }

    /// The same with fields of the test's own.
    pub fn prompts_with(&mut self, fields: &str, model: &str, bytes: usize) -> u16 {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let (number, prompt) = (ASKED.fetch_add(1, Ordering::Relaxed), "warm ".repeat(bytes / 5));
        let body = format!("{{\"model\":\"{model}\",\"prompt\":\"{number} {prompt}\",\"max_tokens\":1}}");
        let len = body.len();
        self.send(&format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{fields}content-length: {len}\r\n\r\n{body}"));
        self.reply().status
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
        Reply { status, closes: head.get("connection") == Some("close"), body: self.body(&head) }
    }

    pub fn head(&mut self) -> Head {
        self.0.head().expect("a reply")
    }

    pub fn body(&mut self, head: &Head) -> Body {
        self.0.body(head.length().unwrap_or(Length::UntilClose))
    }
}
