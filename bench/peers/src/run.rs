//! Runs every scenario on every front, round by round in turn, so that whatever else the machine does
//! falls on all of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::content::{Pace, Request};
use crate::fronts::{self, Setup};
use crate::http::{Framer, Kind, Step};
use crate::net;
use crate::process::{self, Running};
use crate::report::{Report, Sample};
use crate::scenario::{self, Scenario};
use crate::verify::Expected;

const HELP: &str = "\
peers run: fronts side by side, one worker each, in one run
  --fronts A,B       of direct, relay, relay-hold, haproxy, nginx, warmfront, warmfront-uring
                     (default: all but the last; direct takes part in latency, relay-hold in prompt)
  --only A,B         scenarios or their first words: plain, stream (-flat, -step, -phase),
                     prompt (-128k, -1m), idle, latency
  --rounds N         each front once a round, order rotated (5; quick: 1)
  --seconds N        measured window (4; quick: 1.5)
  --quick            everything once, in under two minutes
  --idle-streams N   (8000; quick: 2000)
  --warmfront PATH   the binary (default $WARMFRONT, else target/release/warmfront)
  --json FILE        where every sample goes (default target/peers.json)
  --front-core N     the front's core (the last one)
  --load-core N      the load generator's (the first one)
  --engine-core N    both mock engines' (the load generator's)";

const READY_MAX: Duration = Duration::from_secs(15);

struct Options {
    seconds: f64,
    warmup: Duration,
    warmfront: PathBuf,
    front_core: usize,
    load_core: usize,
    engine_core: usize,
    /// Where configurations and logs of the fronts go, removed at the end.
    dir: PathBuf,
}

pub fn main(words: &[String]) -> Result<(), String> {
    let names = [
        "fronts",
        "only",
        "rounds",
        "seconds",
        "idle-streams",
        "warmfront",
        "json",
        "front-core",
        "load-core",
        "engine-core",
    ];
    let args = Args::parse(words, &names, &["quick"], HELP)?;
    let quick = args.has("quick");
    net::note_interrupts();

    let scenarios = chosen_scenarios(&args, quick)?;
    let options = options(&args, quick)?;
    let descriptors = net::raise_descriptors(65_536);
    let most = scenarios.iter().map(|scenario| scenario.connections).max().unwrap_or(0) as u64;
    if descriptors < 2 * most + 1500 {
        return Err(format!(
            "{descriptors} open files are too few for {most} streams: raise ulimit -n or lower --idle-streams"
        ));
    }
    let rounds = args.get("rounds", if quick { 1 } else { 5 })?;
    let json = PathBuf::from(args.text("json").unwrap_or("target/peers.json"));

    let mut report = Report::new(machine(&options, rounds));
    let fronts = chosen_fronts(&args, &options, &mut report)?;
    // The fronts' configurations lie here; gone whatever happens, short of a kill.
    fs::create_dir_all(&options.dir).map_err(|error| format!("{}: {error}", options.dir.display()))?;
    let _removed_at_end = Removed(&options.dir);

    for scenario in &scenarios {
        let taking_part: Vec<&str> =
            fronts.iter().map(String::as_str).filter(|front| fronts::takes_part(front, scenario)).collect();
        measure_scenario(scenario, &taking_part, rounds, &options, &mut report);
        report.print_table(scenario, &taking_part);
        if net::interrupted() {
            break;
        }
    }
    if let Some(folder) = json.parent() {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::write(&json, report.json(&scenarios)).map_err(|error| format!("{}: {error}", json.display()))?;
    println!("every sample: {}", json.display());
    if net::interrupted() {
        return Err("interrupted: the tables above are of what had been measured".into());
    }
    report.verdict()
}

fn chosen_scenarios(args: &Args, quick: bool) -> Result<Vec<Scenario>, String> {
    let idle_streams = args.get("idle-streams", if quick { 2000 } else { 8000 })?;
    let mut scenarios = scenario::all(quick, idle_streams);
    let only = args.list("only");
    let matches = |name: &str, word: &str| name == word || name.starts_with(&format!("{word}-"));
    if let Some(word) = only.iter().find(|word| !scenarios.iter().any(|scenario| matches(scenario.name, word))) {
        return Err(format!("--only {word}: no such scenario\n\n{HELP}"));
    }
    if !only.is_empty() {
        scenarios.retain(|scenario| only.iter().any(|word| matches(scenario.name, word)));
    }
    Ok(scenarios)
}

fn options(args: &Args, quick: bool) -> Result<Options, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores == 1 {
        eprintln!("one core only: the front shares it with its load, latency and rates mean little");
    }
    let load_core = args.get("load-core", 0)?;
    let named = args.text("warmfront").map(PathBuf::from);
    let named = named.or_else(|| std::env::var_os("WARMFRONT").map(PathBuf::from));
    Ok(Options {
        seconds: args.get("seconds", if quick { 1.5 } else { 4.0 })?,
        warmup: Duration::from_millis(if quick { 300 } else { 1000 }),
        warmfront: named.unwrap_or_else(|| PathBuf::from("target/release/warmfront")),
        front_core: args.get("front-core", cores - 1)?,
        load_core,
        engine_core: args.get("engine-core", load_core)?,
        dir: std::env::temp_dir().join(format!("warmfront-peers-{}", std::process::id())),
    })
}

/// A front that is missing is left out with words; a name that does not exist is a mistake.
fn chosen_fronts(args: &Args, options: &Options, report: &mut Report) -> Result<Vec<String>, String> {
    let mut named = args.list("fronts");
    if named.is_empty() {
        named = fronts::DEFAULT.map(String::from).to_vec();
    } else if !named.iter().any(|front| front == fronts::DIRECT) {
        // Without it no latency is an added one.
        named.insert(0, fronts::DIRECT.into());
    }
    let mut present = Vec::new();
    for front in named {
        match fronts::program(&front, &options.warmfront) {
            Ok(_) => present.push(front),
            Err(words) if fronts::ALL.contains(&front.as_str()) => {
                eprintln!("left out: {words}");
                report.leave_out(&front, &words);
            }
            Err(words) => return Err(format!("--fronts {front}: {words}")),
        }
    }
    Ok(present)
}

fn machine(options: &Options, rounds: usize) -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_string();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let mut facts = vec![
        ("kernel".to_string(), read("/proc/sys/kernel/osrelease")),
        ("cpu".to_string(), model.map_or("unknown", |(_, model)| model).to_string()),
        ("cores".to_string(), std::thread::available_parallelism().map_or(1, usize::from).to_string()),
        ("front_core".to_string(), options.front_core.to_string()),
        ("load_core".to_string(), options.load_core.to_string()),
        ("rounds".to_string(), rounds.to_string()),
        ("seconds".to_string(), options.seconds.to_string()),
    ];
    for front in [fronts::HAPROXY, fronts::NGINX, fronts::WARMFRONT] {
        facts.push((front.to_string(), fronts::version(front, &options.warmfront)));
    }
    facts
}

struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

fn measure_scenario(scenario: &Scenario, fronts: &[&str], rounds: usize, options: &Options, report: &mut Report) {
    for round in 0..rounds {
        for turn in 0..fronts.len() {
            if net::interrupted() {
                return;
            }
            let front = fronts[(turn + round) % fronts.len()];
            eprintln!("{} round {} of {rounds}: {front}", scenario.name, round + 1);
            match measure(front, scenario, options) {
                Ok(values) => report.add(Sample { scenario: scenario.name, front: front.into(), round, values }),
                Err(_) if net::interrupted() => return,
                Err(words) => report.fail(scenario.name, front, round, &words),
            }
        }
    }
}

/// One front, one scenario: fresh engines, a fresh front, one run of the load generator.
fn measure(front: &str, scenario: &Scenario, options: &Options) -> Result<BTreeMap<String, f64>, String> {
    let (_first, first_port) = start_engine(options)?;
    let (_second, second_port) = start_engine(options)?;
    let upstreams = [first_port, second_port];
    if front == fronts::DIRECT {
        return load(&format!("{first_port},{second_port}"), 0, scenario, options);
    }
    let (listen, admin) = free_ports()?;
    let dir = options.dir.join("front");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
    let setup = Setup { scenario, listen, admin, upstreams, dir: &dir, warmfront: &options.warmfront };
    let mut command = fronts::command(front, &setup)?;
    let log = dir.join("log");
    let output = File::create(&log).map_err(|error| error.to_string())?;
    command.stdin(Stdio::null()).stdout(output.try_clone().map_err(|error| error.to_string())?).stderr(output);
    let mut running = Running::start(command, options.front_core)?;
    let result = wait_until_ready(&mut running, listen)
        .and_then(|()| stays_on_core(&running, options.front_core))
        .and_then(|()| load(&listen.to_string(), running.pid(), scenario, options));
    result.map_err(|words| format!("{words}{}", last_lines(&log)))
}

/// A front with a thread on the load's core would not be one worker on one core.
fn stays_on_core(running: &Running, core: usize) -> Result<(), String> {
    match process::thread_off_core(running.pid(), core) {
        Some(cores) => Err(format!("a thread of the front may run on cores {cores}, not on {core} alone")),
        None => Ok(()),
    }
}

fn start_engine(options: &Options) -> Result<(Running, u16), String> {
    let mut command = own_command("engine")?;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut running = Running::start(command, options.engine_core)?;
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

/// Ready is a front that has answered right a few times, so that both upstreams have been used.
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

fn load(targets: &str, pid: u32, scenario: &Scenario, options: &Options) -> Result<BTreeMap<String, f64>, String> {
    let mut command = own_command("load")?;
    let flags = [
        ("--targets", targets.to_string()),
        ("--pid", pid.to_string()),
        ("--pace", scenario.pace.name().to_string()),
        ("--connections", scenario.connections.to_string()),
        ("--body", scenario.body_bytes.to_string()),
        ("--tokens", scenario.tokens.to_string()),
        ("--vary", scenario.vary.to_string()),
        ("--rate", scenario.rate.to_string()),
        ("--warmup-ms", options.warmup.as_millis().to_string()),
        ("--seconds", options.seconds.to_string()),
    ];
    for (name, value) in flags {
        command.arg(name).arg(value);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command, options.load_core)?;
    let deadline = Instant::now() + options.warmup + Duration::from_secs_f64(options.seconds + 60.0);
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
    // A pipe that breaks has given what it had.
    let _ = pipe.map(|mut pipe| pipe.read_to_string(&mut text));
    text
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.iter().rev().map(|line| format!("\n    | {line}")).collect()
}
