//! One measurement: fresh engines, a front that has shown that it answers right, one run of the load generator. And the
//! order of many measurements: round by round in turn, so that other work on the machine falls on all fronts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::content::{Pace, Request};
use crate::http::{Framer, Kind, Step};
use crate::net;
use crate::process::{self, Running};
use crate::report::{Report, Sample};
use crate::scenario::Scenario;
use crate::verify::Expected;

const READY_MAX: Duration = Duration::from_secs(15);

/// How long is measured, and on which cores.
pub struct Setting {
    pub seconds: f64,
    pub warmup: Duration,
    pub front_core: usize,
    pub load_core: usize,
    pub engine_core: usize,
}

impl Setting {
    /// Reads `--seconds`, `--front-core`, `--load-core` and `--engine-core`.
    pub fn from_args(args: &Args, quick: bool) -> Result<Setting, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores == 1 {
            eprintln!("one core only: the front shares it with its load, latency and rates mean little");
        }
        let load_core = args.get("load-core", 0)?;
        Ok(Setting {
            seconds: args.get("seconds", if quick { 1.5 } else { 4.0 })?,
            warmup: Duration::from_millis(if quick { 300 } else { 1000 }),
            front_core: args.get("front-core", cores - 1)?,
            load_core,
            engine_core: args.get("engine-core", load_core)?,
        })
    }
}

/// Raises the limit of open files as far as possible; fails if that is too few.
pub fn check_descriptors(scenarios: &[Scenario]) -> Result<(), String> {
    let descriptors = net::raise_descriptors(65_536);
    let most = scenarios.iter().map(|scenario| scenario.connections).max().unwrap_or(0) as u64;
    if descriptors < 2 * most + 1500 {
        return Err(format!(
            "{descriptors} open files are too few for {most} streams: raise ulimit -n or lower --idle-streams"
        ));
    }
    Ok(())
}

/// Measures each front once a round, the order rotated.
pub fn rounds(
    scenario: &Scenario,
    fronts: &[&str],
    rounds: usize,
    report: &mut Report,
    measure: impl Fn(&str) -> Result<BTreeMap<String, f64>, String>,
) {
    for round in 0..rounds {
        for turn in 0..fronts.len() {
            if net::interrupted() {
                return;
            }
            let front = fronts[(turn + round) % fronts.len()];
            eprintln!("{} round {} of {rounds}: {front}", scenario.name, round + 1);
            match measure(front) {
                Ok(values) => report.add(Sample { scenario: scenario.name, front: front.into(), round, values }),
                Err(_) if net::interrupted() => return,
                Err(words) => report.fail(scenario.name, front, round, &words),
            }
        }
    }
}

/// Measures the engines alone, without a front.
pub fn directly(scenario: &Scenario, setting: &Setting) -> Result<BTreeMap<String, f64>, String> {
    let (_first, first_port) = start_engine(setting)?;
    let (_second, second_port) = start_engine(setting)?;
    load(&format!("{first_port},{second_port}"), 0, scenario, setting)
}

/// Measures one front in one scenario: fresh engines, a fresh front, one run of the load generator. `command` starts
/// the front, given the engines' ports, the port to listen on and the admin listener's; under taskset the front runs
/// where taskset says. Its output goes to `log`.
pub fn through(
    log: &Path,
    scenario: &Scenario,
    setting: &Setting,
    command: impl FnOnce([u16; 2], u16, u16) -> Result<Command, String>,
) -> Result<BTreeMap<String, f64>, String> {
    let (_first, first_port) = start_engine(setting)?;
    let (_second, second_port) = start_engine(setting)?;
    // Chosen after the engines listen: otherwise an engine could be given one of these ports.
    let (listen, admin) = free_ports()?;
    let mut command = command([first_port, second_port], listen, admin)?;
    let anywhere = command.get_program() == "taskset";
    let output = File::create(log).map_err(|error| error.to_string())?;
    command.stdin(Stdio::null()).stdout(output.try_clone().map_err(|error| error.to_string())?).stderr(output);
    let mut running = Running::start(command, setting.front_core)?;
    let result = wait_until_ready(&mut running, listen)
        .and_then(|()| if anywhere { Ok(()) } else { stays_on_core(&running, setting.front_core) })
        .and_then(|()| load(&listen.to_string(), running.pid(), scenario, setting));
    result.map_err(|words| format!("{words}{}", last_lines(log)))
}

/// A front with a thread on the load's core would not be one worker on one core.
fn stays_on_core(running: &Running, core: usize) -> Result<(), String> {
    match process::thread_off_core(running.pid(), core) {
        Some(cores) => Err(format!("a thread of the front may run on cores {cores}, not on {core} alone")),
        None => Ok(()),
    }
}

fn start_engine(setting: &Setting) -> Result<(Running, u16), String> {
    let mut command = own_command("engine")?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut running = Running::start(command, setting.engine_core)?;
    let stdout = running.child.stdout.take().ok_or("no output of the engine")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
    let port = line.trim().parse().map_err(|_| "the engine names no port")?;
    Ok((running, port))
}

fn own_command(subcommand: &str) -> Result<Command, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    command.arg(subcommand);
    Ok(command)
}

fn free_ports() -> Result<(u16, u16), String> {
    // Both are held at once, so that they differ.
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string());
    let (first, second) = (free()?, free()?);
    let port = |listener: TcpListener| listener.local_addr().map(|address| address.port());
    Ok((port(first).map_err(|error| error.to_string())?, port(second).map_err(|error| error.to_string())?))
}

/// A front is ready if it has answered right a few times, so that both upstreams have been used.
fn wait_until_ready(running: &mut Running, port: u16) -> Result<(), String> {
    let deadline = Instant::now() + READY_MAX;
    let mut right = 0;
    let mut last = String::new();
    while right < 4 {
        if running.ended() {
            return Err("the front ended at its start".into());
        }
        if net::interrupted() || Instant::now() > deadline {
            return Err(format!("no right answer within {} s: {last}", READY_MAX.as_secs()));
        }
        match ask_once(port, right) {
            Ok(()) => right += 1,
            Err(words) => {
                last = words;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    Ok(())
}

fn ask_once(port: u16, id: u64) -> Result<(), String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).map_err(|error| error.to_string())?;
    let mut request = Request::new(Pace::Plain, 1024);
    let mut expected = Expected::plain(request.stamp(id, 0));
    stream.write_all(&request.bytes).map_err(|error| error.to_string())?;
    let mut framer = Framer::new(Kind::Reply);
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("closed before its answer".into());
        }
        let mut input = &buffer[..count];
        loop {
            match framer.next(&mut input)? {
                Step::More => break,
                Step::Head(head) => expected.head(&head)?,
                Step::Body(bytes) => drop(expected.body(bytes)?),
                Step::End => return expected.end(),
            }
        }
    }
}

fn load(targets: &str, pid: u32, scenario: &Scenario, setting: &Setting) -> Result<BTreeMap<String, f64>, String> {
    let mut command = own_command("load")?;
    let flags = [
        ("--targets", targets.to_string()),
        ("--pid", pid.to_string()),
        ("--pace", scenario.pace.name().to_string()),
        ("--connections", scenario.connections.to_string()),
        ("--body", scenario.body_bytes.to_string()),
        ("--fresh", scenario.fresh.to_string()),
        ("--tokens", scenario.tokens.to_string()),
        ("--vary", scenario.vary.to_string()),
        ("--rate", scenario.rate.to_string()),
        ("--warmup-ms", setting.warmup.as_millis().to_string()),
        ("--seconds", setting.seconds.to_string()),
    ];
    for (name, value) in flags {
        command.arg(name).arg(value);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command, setting.load_core)?;
    let deadline = Instant::now() + setting.warmup + Duration::from_secs_f64(setting.seconds + 60.0);
    while !running.ended() {
        if net::interrupted() || Instant::now() > deadline {
            return Err("the load generator did not come to an end".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let line = read_all(running.child.stdout.take());
    let words = read_all(running.child.stderr.take());
    let succeeded = running.child.wait().is_ok_and(|status| status.success());
    if !succeeded {
        return Err(words.trim().to_string());
    }
    let pairs = line.split_whitespace().filter_map(|pair| pair.split_once('='));
    Ok(pairs.filter_map(|(name, value)| Some((name.to_string(), value.parse().ok()?))).collect())
}

fn read_all(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    // A pipe that breaks has given all that it had.
    let _ = pipe.map(|mut pipe| pipe.read_to_string(&mut text));
    text
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.iter().rev().map(|line| format!("\n    | {line}")).collect()
}
