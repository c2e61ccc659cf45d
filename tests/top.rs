//! `warmfront top` as a process: one screen of a front before simulated engines, fronts that are not there, and a terminal
//! that it leaves as it was.

#[path = "fleet/reserved.rs"]
mod reserved;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use warmfront::driver::socket;

/// A process that ends with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn warmfront(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
    // Variables of the tests' own environment must not change what is shown.
    command.args(arguments).env_remove("COLUMNS").env_remove("NO_COLOR").env("TERM", "xterm").stdin(Stdio::null());
    command
}

/// Simulated engines in one process, and where each listens, as it says.
fn engines<const COUNT: usize>(settings: &[&str]) -> (Running, [String; COUNT]) {
    let listen = ["--listen", "127.0.0.1:0"].repeat(COUNT);
    let mut command = warmfront(&[&["engine"][..], settings, &listen[..]].concat());
    let mut process = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let addresses = std::array::from_fn(|_| {
        let line = said.next().expect("the engines have ended").unwrap();
        line.split_once("http://").unwrap().1.split(' ').next().unwrap().to_owned()
    });
    (process, addresses)
}

/// Two engines and a front before them.
struct Fleet {
    front: Running,
    _engines: Running,
    listen: SocketAddr,
    admin: String,
    engines: [String; 2],
}

impl Fleet {
    fn start() -> Fleet {
        let (process, engines): (_, [String; 2]) = engines(&["--model", "m", "--time-scale", "20"]);
        let upstreams = engines.each_ref().map(|address| format!("http://{address}"));
        let flags = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"];
        let mut command = warmfront(&[&["serve"], &flags[..]].concat());
        for url in &upstreams {
            command.args(["--upstream", url]);
        }
        let mut front = Running(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(front.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut logged = |key: &str| loop {
            let line = lines.next().expect("the front has ended");
            if let Some((_, behind)) = line.split_once(key) {
                return behind.split([' ', ']', ',']).next().unwrap().to_owned();
            }
        };
        let (admin, listen) = (logged(" admin="), logged(" listening=[").parse().unwrap());
        std::thread::spawn(move || lines.for_each(drop));
        let fleet = Fleet { front, _engines: process, listen, admin, engines };
        until("both engines up", || fleet.asks().matches("\"health\":\"up\"").count() == 2);
        fleet
    }

    fn asks(&self) -> String {
        self.tells("/endpoints")
    }

    fn tells(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        exchange(self.admin.parse().unwrap(), &request)
    }

    /// A stream of some tokens, read to its end.
    fn stream(&self, number: usize) {
        let prompt = format!("{number} ").repeat(600);
        let body = format!(
            "{{\"model\":\"m\",\"stream\":true,\"max_tokens\":8,\"messages\":[{{\"role\":\"user\",\"content\":\"{prompt}\"}}]}}"
        );
        let reply = exchange(
            self.listen,
            &format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            ),
        );
        assert!(reply.contains("[DONE]"), "{reply}");
    }
}

fn exchange(address: SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut reply = Vec::new();
    socket.read_to_end(&mut reply).unwrap();
    String::from_utf8_lossy(&reply).into_owned()
}

fn until(what: &str, mut met: impl FnMut() -> bool) {
    let began = Instant::now();
    while !met() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refused(output: &Output) -> String {
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(78), String::new()));
    text(&output.stderr)
}

#[test]
fn one_screen_of_a_fleet_at_work() {
    let fleet = Fleet::start();
    // What came within a window is known only by the difference to a reading before it.
    until("both engines read", || {
        fleet.tells("/metrics").matches("\nwarmfront_engine_prefix_hits_tokens_total{").count() >= 2
    });
    let mut top = warmfront(&["top", "--admin", &fleet.admin, "--window", "3"]).stdout(Stdio::piped()).spawn().unwrap();
    // Two turns of each conversation, so that the second finds the first in a cache; sent for as long as `top` looks,
    // whenever it began to.
    let mut streams = 0;
    while top.try_wait().unwrap().is_none() {
        fleet.stream(streams / 2);
        streams += 1;
    }
    let output = top.wait_with_output().unwrap();
    let screen = text(&output.stdout);
    assert!(output.status.success() && !screen.contains('\x1b'), "{screen}");
    assert!(
        screen.starts_with(&format!("warmfront {} on {}, up ", env!("CARGO_PKG_VERSION"), fleet.admin)),
        "{screen}"
    );
    // As many seconds as lay between its readings.
    let over =
        screen.lines().find_map(|line| line.split_once("rates over ")?.1.strip_suffix(" s")?.parse::<u32>().ok());
    assert!(over.is_some_and(|seconds| (3..30).contains(&seconds)), "{screen}");
    assert!(screen.contains("\nqueue     0 waiting   0/s released"), "{screen}");
    // On a busy machine a shard may have been seen to stall.
    assert!(screen.contains("\nrefused   none\n") && screen.contains("/s turns"), "{screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    let rows = fleet.engines.each_ref().map(|engine| {
        let row = screen.lines().find(|line| line.starts_with(engine.as_str())).unwrap_or_else(|| panic!("{screen}"));
        row.split_ascii_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    });
    for row in &rows {
        assert_eq!((row.len(), row[0].as_str(), row[1].as_str()), (9, "up", "approximate"), "{screen}");
        assert!(row[4].ends_with('%'), "KV use is known: {screen}");
    }
    // A row of an engine that served: what was predicted and hit, and times to first tokens, are those of this window.
    let busy = rows.iter().find(|row| row[7] != "-").unwrap_or_else(|| panic!("{screen}"));
    assert!(busy[5].ends_with('%') && busy[6].ends_with('%'), "{screen}");
    assert!(busy[7].ends_with('s') && busy[8].ends_with('s'), "{screen}");
    let share = |row: &[String]| row[5].trim_end_matches('%').parse::<u32>().unwrap_or(0);
    assert!(rows.iter().any(|row| (10..=90).contains(&share(row))), "each prompt was sent twice: {screen}");

    let shown: serde_json::Value = serde_json::from_str(fleet.asks().rsplit("\r\n\r\n").next().unwrap()).unwrap();
    assert_eq!(shown["endpoints"][0]["pending_tokens"], 0);
    let wide = warmfront(&["top", "--once", "--admin", &fleet.admin]).env("COLUMNS", "120").output().unwrap();
    assert!(text(&wide.stdout).contains("  run  wait faults\n"), "{}", text(&wide.stdout));
    let endless =
        warmfront(&["top", "--once", "--admin", &fleet.admin]).env("COLUMNS", "18446744073709551615").output();
    let endless = endless.unwrap();
    assert!(endless.status.success() && !endless.stdout.is_empty(), "{}", text(&endless.stderr));
}

#[test]
fn who_is_no_front_is_told_from_one_in_words() {
    let nobody = "127.0.0.1:1";
    let why = refused(&warmfront(&["top", "--once", "--admin", nobody]).output().unwrap());
    assert!(why.contains(&format!("cannot connect to {nobody}")) && why.contains("is a front running"), "{why}");

    let (_engine, [engine]) = engines(&[]);
    let why = refused(&warmfront(&["top", "--once", "--admin", &engine]).output().unwrap());
    assert!(why.contains("has no warmfront_uptime_seconds: is it a front's admin listener?"), "{why}");
    let named = warmfront(&["top", "--admin", "localhost:9911"]).output().unwrap();
    assert!(named.status.code() == Some(2) && text(&named.stderr).contains("write it as IP:PORT"), "{named:?}");
}

#[test]
fn a_front_that_ends_between_two_readings() {
    let fleet = Fleet::start();
    let (address, _kept) = reserved::address();
    let front = TcpListener::from(socket::listener(address).unwrap());
    let top = warmfront(&["top", "--once", "--window", "1", "--admin", &address.to_string()]);
    let top = { top }.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut asked = None;
    until("a question", || {
        asked = front.accept().ok();
        asked.is_some()
    });
    let (mut asked, _) = asked.unwrap();
    // From here on no front answers, and the first question has yet to be answered.
    drop(front);
    BufReader::new(&asked).lines().find(|line| line.as_ref().unwrap().is_empty());
    asked.write_all(fleet.tells("/metrics").as_bytes()).unwrap();
    drop(asked);
    let why = refused(&top.wait_with_output().unwrap());
    assert!(why.contains("cannot connect to"), "{why}");
}

/// Enters the alternate screen and hides the cursor.
const ENTERED: &str = "\x1b[?1049h\x1b[?25l";
const LEFT: &str = "\x1b[m\x1b[?25h\x1b[?1049l";

/// A terminal with `top` on it.
struct Screen {
    master: OwnedFd,
    tty: OwnedFd,
    /// Its modes before `top` came.
    before: String,
    top: Running,
    shown: String,
}

impl Screen {
    fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Screen {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let open = || rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        resize(&master, 80);
        let tty = open();
        let before = modes(&tty);
        let mut command = warmfront(arguments);
        let top = command
            .envs(variables.iter().copied())
            .stdin(open())
            .stdout(open())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        rustix::fs::fcntl_setfl(&master, OFlags::NONBLOCK | OFlags::RDWR).unwrap();
        Screen { master, tty, before, top: Running(top), shown: String::new() }
    }

    /// Waits until this is shown behind what was waited for last.
    fn shows(&mut self, words: &str) {
        until(words, || {
            let mut bytes = [0; 65_536];
            while let Ok(length @ 1..) = rustix::io::read(&self.master, &mut bytes) {
                self.shown.push_str(&text(&bytes[..length]));
            }
            let found = self.shown.find(words);
            if let Some(place) = found {
                self.shown.drain(..place + words.len());
            }
            found.is_some()
        });
    }

    fn modes(&self) -> String {
        modes(&self.tty)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.top.0), signal).unwrap();
    }

    /// Asserts that `top` has ended well and left the terminal as it was.
    fn ended(&mut self) {
        self.shows(LEFT);
        assert!(self.top.0.wait().unwrap().success());
        assert_eq!(self.modes(), self.before);
    }
}

fn modes(tty: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(tty).unwrap())
}

fn resize(master: &OwnedFd, columns: u16) {
    tcsetwinsize(master, Winsize { ws_row: 30, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

#[test]
fn a_terminal_shows_the_fleet_and_is_left_as_it_was() {
    let mut fleet = Fleet::start();
    let mut screen = Screen::start(&["top", "--admin", &fleet.admin], &[]);
    let modes = screen.before.clone();
    let state = format!("/proc/{}/stat", screen.top.0.id());
    screen.shows(ENTERED);
    assert_ne!(screen.modes(), modes);
    screen.shows("rates over ");
    screen.shows("\x1b[32m up ");
    resize(&screen.master, 120);
    screen.signal(Signal::WINCH);
    screen.shows("faults");
    screen.signal(Signal::TSTP);
    screen.shows(LEFT);
    // A signal to go on would be lost on a process that still runs.
    until("it to stop", || std::fs::read_to_string(&state).unwrap().contains(") T "));
    assert_eq!(screen.modes(), modes);
    screen.signal(Signal::CONT);
    screen.shows(ENTERED);
    fleet.front.0.kill().unwrap();
    screen.shows("cannot connect to");
    // Twice: its age grows, on a busy machine by more than a second at a time.
    screen.shows("what is below is ");
    screen.shows("what is below is ");
    rustix::io::write(&screen.master, b"xq").unwrap();
    screen.ended();
}

#[test]
fn signals_end_it_as_well_and_a_front_may_come_later() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let (nobody, _kept) = reserved::address();
        let mut screen = Screen::start(&["top", "--admin", &nobody.to_string()], &[("NO_COLOR", "1")]);
        screen.shows("Trying on.");
        screen.shows("Trying on.");
        assert!(!screen.shown.contains("\x1b[3"), "{:?}", screen.shown);
        screen.signal(signal);
        screen.ended();
    }
    let [(admin, _kept), (nobody, _kept_as_well)] = [reserved::address(), reserved::address()];
    let admin = admin.to_string();
    let mut screen = Screen::start(&["top", "--admin", &admin], &[]);
    screen.shows("Trying on.");
    let url = format!("http://{nobody}");
    let front = warmfront(&["serve", "--listen", "127.0.0.1:0", "--admin", &admin, "--upstream", &url]);
    let _front = Running({ front }.stderr(Stdio::null()).spawn().unwrap());
    screen.shows("no rates yet");
    screen.shows("\x1b[31m down ");
}

#[test]
fn a_terminal_without_cursor_gets_one_screen() {
    let fleet = Fleet::start();
    let mut screen = Screen::start(&["top", "--admin", &fleet.admin], &[("TERM", "dumb")]);
    // A second, or as many as lay between its readings.
    screen.shows("rates over ");
    screen.shows(" s\r\n");
    assert!(screen.top.0.wait().unwrap().success());
    assert!(!screen.shown.contains('\x1b'), "{:?}", screen.shown);
}
