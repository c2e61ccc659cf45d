//! The binary in a process of its own, and what the kernel says of it.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::client::{Client, get};
use crate::untested;

/// No scene waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Scenes that take most of the machine's descriptors, or whose figures others would spoil, run alone.
static MACHINE: RwLock<()> = RwLock::new(());

#[derive(Debug)]
pub enum Room {
    Alone(#[allow(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
    Shared(#[allow(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
}

pub fn alone() -> Room {
    Room::Alone(MACHINE.write().unwrap_or_else(|broken| broken.into_inner()))
}

pub fn shared() -> Room {
    Room::Shared(MACHINE.read().unwrap_or_else(|broken| broken.into_inner()))
}

/// Lets this process have as many descriptors as it may; how many clients of `wanted` fit.
pub fn room_for(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    // A front leaves a quarter of its descriptors to connections to engines.
    let most = limit.maximum.map_or(usize::MAX, |most| (most as usize).saturating_sub(400) * 3 / 4);
    if most < wanted {
        untested::say(format_args!("{wanted} clients at once, as the limit of descriptors allows {most}"));
    }
    wanted.min(most)
}

pub struct Front {
    process: Child,
    config: PathBuf,
    pub address: SocketAddr,
    admin: SocketAddr,
    /// Its log.
    said: Arc<Mutex<String>>,
}

impl Front {
    /// With `[limits]` of these lines.
    pub fn start(driver: &str, engine: SocketAddr, limits: &str) -> Front {
        Front::with_descriptors(driver, engine, limits, None)
    }

    /// The same with fewer descriptors.
    pub fn with_descriptors(driver: &str, engine: SocketAddr, limits: &str, descriptors: Option<u32>) -> Front {
        Front::of_shards(1, driver, engine, limits, descriptors)
    }

    pub fn of_shards(shards: u32, driver: &str, engine: SocketAddr, limits: &str, descriptors: Option<u32>) -> Front {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let config = std::env::temp_dir().join(format!("warmfront-floods-{}-{number}.toml", std::process::id()));
        let text = format!(
            "[serve]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\nshards = {shards}\ndriver = \"{driver}\"\npin = false\n\
             [health]\nprobe_interval_ms = 200\n\
             [limits]\nupstream_idle_timeout_ms = 300\n{limits}\n[[upstream]]\nurl = \"http://{engine}\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let binary = env!("CARGO_BIN_EXE_warmfront");
        let mut command = match descriptors {
            None => Command::new(binary),
            Some(most) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {most} && exec {binary} \"$@\""), "sh"]);
                shell
            }
        };
        command.args(["serve", "--config"]).arg(&config);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let (mut address, mut admin, mut said) = (None, None, String::new());
        for line in log.by_ref() {
            admin = admin.or(named(&line, "admin="));
            address = address.or(named(&line, "listening=["));
            said = said + &line + "\n";
            if line.contains("ready") && address.is_some() || line.contains("listening=") && said.contains("ready") {
                break;
            }
        }
        let said = Arc::new(Mutex::new(said));
        let later = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in log {
                println!("front: {line}");
                *later.lock().unwrap() += &(line + "\n");
            }
        });
        let (Some(address), Some(admin)) = (address, admin) else { panic!("the front does not start: {said:?}") };
        let front = Front { process, config, address, admin, said };
        front.until("an engine that is up", |front| front.ask(get("/health")) == 200);
        front
    }

    pub fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).unwrap())
    }

    /// Sends `request` on a connection of its own; the reply's status.
    pub fn ask(&self, request: impl AsRef<[u8]>) -> u16 {
        self.connect().ask(request).status
    }

    /// What `/metrics` says of a series, by its name and labels; 0 where it has none, but is of a family that is there.
    pub fn metric(&self, series: &str) -> u64 {
        let mut client = Client::new(TcpStream::connect(self.admin).unwrap());
        let text = client.ask("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").text();
        let family = series.split('{').next().unwrap();
        assert!(text.contains(&format!("# TYPE {family} ")), "no {family} in {text}");
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.trim().parse::<f64>().unwrap() as u64)
    }

    /// Whether a line of its log has these words.
    pub fn has_said(&self, words: &str) -> bool {
        self.said.lock().unwrap().contains(words)
    }

    /// Client connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.metric("warmfront_connections_accepted_total") as usize
    }

    /// Bytes read from clients so far.
    pub fn bytes_in(&self) -> usize {
        self.metric("warmfront_client_bytes_in_total") as usize
    }

    /// Requests in flight at its engine.
    pub fn in_flight(&self) -> u64 {
        let mut client = Client::new(TcpStream::connect(self.admin).unwrap());
        let text = client.ask("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").text();
        let lines = text.lines().filter(|line| line.starts_with("warmfront_endpoint_in_flight"));
        let values: Vec<f64> = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        assert!(!values.is_empty(), "no figure of requests in flight in {text}");
        values.iter().sum::<f64>() as u64
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.process.id())).unwrap()
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> usize {
        let text = self.proc("smaps_rollup");
        let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    /// CPU time of all its threads so far.
    pub fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let of_task = |path: PathBuf| std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        let nanos = tasks.map(|task| of_task(task.unwrap().path()));
        let nanos = nanos.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok());
        Duration::from_nanos(nanos.sum())
    }

    /// Waits until `met` holds.
    pub fn until(&self, what: &str, met: impl Fn(&Front) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !met(self) {
            assert!(Instant::now() < deadline, "{what}: it did not come about");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The address behind `name` in a line of the log.
fn named(line: &str, name: &str) -> Option<SocketAddr> {
    let rest = line.split(name).nth(1)?;
    rest.split([' ', ']', ',']).next()?.parse().ok()
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.config);
    }
}

/// One line of the table of figures.
pub fn figure(what: &str, driver: &str, value: impl Display) {
    println!("| {what} | {driver} | {value} |");
}

/// `bytes` in KiB.
pub fn kib(bytes: usize) -> f64 {
    bytes as f64 / 1024.0
}
