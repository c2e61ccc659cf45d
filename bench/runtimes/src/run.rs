//! `runtimes run`: every scenario on every relay, in rounds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use peers::args::Args;
use peers::content::Pace;
use peers::measure::{self, Setting};
use peers::net;
use peers::report::{self, Report};
use peers::scenario::{self, Column, Scenario, column};

use crate::relays;

const HELP: &str = "\
runtimes run: the same relay on each runtime, one thread on one core each, in one run
  --relays A,B       epoll, uring: warmfront's own drivers; tokio: current_thread; glommio;
                     monoio: as it is; monoio-defer: with the flags of our ring; monoio-poll: with these flags,
                     waiting for readiness before it reads; compio: multishot receives  (default: all)
  --only A,B         scenarios or their first words: plain, stream (-step, -phase), idle  (default: all)
  --rounds N         each relay once a round, order rotated (5; quick: 1)
  --seconds N        measured window (4; quick: 1.5)
  --quick            everything once, in about two minutes
  --streams N        streams in stream-step and stream-phase (1000)
  --idle-streams N   streams in idle (4000; quick: 1000)
  --json FILE        where every sample goes (default target/runtimes.json)
  --front-core N     the relay's core (the last one)
  --load-core N      the load generator's (the first one)
  --engine-core N    both mock engines' (the load generator's)
CPU is user and system time of the relay's process, its kernel workers included, over the window. Ratios
are to `epoll` in the same round. RSS is the relay's; slab memory is what the kernel holds in the whole
machine, sockets of engines and load included (the same for all: compare, do not read it by itself).
A wrong, missing or surplus reply byte fails the run. A relay that cannot run here is left out, with words.";

const MEMORY: &[Column] = &[
    column("slab KiB", "slab_kib_per_stream", 3),
    column("KiB before", "rss_before_kib", 0),
    column("KiB idle", "rss_idle_kib", 0),
];

pub fn main(words: &[String]) -> Result<(), String> {
    let names = [
        "relays",
        "only",
        "rounds",
        "seconds",
        "streams",
        "idle-streams",
        "json",
        "front-core",
        "load-core",
        "engine-core",
    ];
    let args = Args::parse(words, &names, &["quick"], HELP)?;
    let quick = args.has("quick");
    net::note_interrupts();

    let streams = args.get("streams", 1000)?;
    let idle_streams = args.get("idle-streams", if quick { 1000 } else { 4000 })?;
    let scenarios = scenario::chosen(scenarios(streams, idle_streams, quick), &args.list("only"))?;
    measure::check_descriptors(&scenarios)?;
    let setting = Setting::from_args(&args, quick)?;
    let rounds = args.get("rounds", if quick { 1 } else { 5 })?;
    let json = PathBuf::from(args.text("json").unwrap_or("target/runtimes.json"));

    let mut report = Report::new(report::machine(&setting, rounds), &[relays::REFERENCE]);
    let relays = chosen_relays(&args, &mut report)?;
    let relays: Vec<&str> = relays.iter().map(String::as_str).collect();
    for scenario in &scenarios {
        let measure = |relay: &str| measure_relay(relay, scenario, &setting);
        measure::rounds(scenario, &relays, rounds, &mut report, measure);
        report.print_table(scenario, &relays);
        if net::interrupted() {
            break;
        }
    }
    report.finish(&scenarios, &json)
}

fn scenarios(streams: usize, idle_streams: usize, quick: bool) -> Vec<Scenario> {
    // Streams of different lengths: equal ones would all end, and begin again, together.
    let (tokens, vary) = if quick { (30, 20) } else { (100, 50) };
    let paced = |name, title: &str, pace| Scenario {
        name,
        title: format!("{streams} streams, {title}"),
        pace,
        connections: streams,
        tokens,
        vary,
        cost: scenario::PER_CHUNK,
        columns: scenario::PACED_STREAMS,
        ..Scenario::plain()
    };
    vec![
        paced("stream-step", "one decode step of 20-30 ms for all of an engine", Pace::Step),
        paced("stream-phase", "steps of 20-30 ms, each at its own time", Pace::Phase),
        Scenario::plain(),
        Scenario {
            name: "idle",
            title: format!("{idle_streams} idle streams: head and first event sent, then silence"),
            pace: Pace::Hold,
            connections: idle_streams,
            cost: column("RSS KiB", "rss_kib_per_stream", 3),
            columns: MEMORY,
            ..Scenario::plain()
        },
    ]
}

/// A relay that cannot be had here is left out, with words; a name that does not exist is a mistake.
fn chosen_relays(args: &Args, report: &mut Report) -> Result<Vec<String>, String> {
    let mut named = args.list("relays");
    if named.is_empty() {
        named = relays::ALL.map(String::from).to_vec();
    }
    let mut present = Vec::new();
    for relay in named {
        if !relays::ALL.contains(&relay.as_str()) {
            return Err(format!("--relays {relay}: no such relay; there are {}", relays::ALL.join(", ")));
        }
        match can_run(&relay) {
            Ok(()) => present.push(relay),
            Err(words) => report.leave_out(&relay, &words),
        }
    }
    Ok(present)
}

/// Runs in a process of its own: some runtimes panic if the machine does not let them run.
fn can_run(relay: &str) -> Result<(), String> {
    let mut command = own_command(relay)?;
    let output = command.arg("--try").env("RUST_BACKTRACE", "0").output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    // Of a panic only what it says is quoted; not where, nor how to see more.
    let told = |line: &&str| !line.is_empty() && !line.starts_with("thread '") && !line.starts_with("note: ");
    let words: Vec<&str> = printed.lines().filter(told).collect();
    Err(if words.is_empty() { output.status.to_string() } else { words.join(" ") })
}

fn measure_relay(relay: &str, scenario: &Scenario, setting: &Setting) -> Result<BTreeMap<String, f64>, String> {
    let log = std::env::temp_dir().join(format!("warmfront-runtimes-{}.log", std::process::id()));
    let result = measure::through(&log, scenario, setting, |[first, second], listen, _| {
        let mut command = own_command(relay)?;
        command.args(["--listen", &listen.to_string(), "--upstreams", &format!("{first},{second}")]);
        Ok(command)
    });
    // It was quoted if something failed; a leftover in the temporary directory harms nobody.
    let _ = std::fs::remove_file(&log);
    result
}

fn own_command(relay: &str) -> Result<Command, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    command.args(["relay", relay]);
    Ok(command)
}
