//! Tests the queue in front of the engines over real sockets: one front as a process, mock engines and clients here.
//! Each part prints its figures; claims that do not hold are told at the end, and fail the run.

mod burst;
mod closed;
mod crowd;
mod engines;
mod figures;
mod front;
mod idle;
mod lost;
mod request;
mod shards;
mod told;
mod turns;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use peers::args::Args;
use peers::net;

const HELP: &str = "\
queue: the queue in front of the engines, over real sockets
  --only A,B         of lost, shards, told, idle, turns, burst  (default: all)
  --quick            each once and short, in half a minute: for trying, its figures mean little
  --requests N       in `lost`, over both drivers, one shard and four (100000; quick: 8000)
  --rounds N         in `shards` (3; quick: 1); `idle` has four times as many, and judges if these are six or more
The front is $WARMFRONT, or target/release/warmfront.";

const PARTS: [(&str, Part); 6] = [
    ("lost", lost::run),
    ("shards", shards::run),
    ("told", told::run),
    ("idle", idle::run),
    ("turns", turns::run),
    ("burst", burst::run),
];
pub const DRIVERS: [&str; 2] = ["epoll", "uring"];

type Part = fn(&mut Bench) -> Result<(), String>;

/// One run.
pub struct Bench {
    pub quick: bool,
    pub requests: u64,
    pub rounds: usize,
    /// Folder of the fronts' configurations and logs.
    pub dir: PathBuf,
    failures: Vec<String>,
}

impl Bench {
    /// Notes in words what does not hold.
    pub fn holds(&mut self, holds: bool, words: impl FnOnce() -> String) {
        if !holds {
            let words = words();
            println!("  FAILED: {words}");
            self.failures.push(words);
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(help) if words.iter().any(|word| word == "--help") => {
            println!("{help}");
            ExitCode::SUCCESS
        }
        Err(words) => {
            eprintln!("{words}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let args = Args::parse(words, &["only", "requests", "rounds"], &["quick"], HELP)?;
    let quick = args.has("quick");
    let only = args.list("only");
    if let Some(unknown) = only.iter().find(|name| !PARTS.iter().any(|(part, _)| part == name)) {
        return Err(format!("--only {unknown}: no such part\n\n{HELP}"));
    }
    net::raise_descriptors(16_384);
    let dir = std::env::temp_dir().join(format!("queue-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let requests = args.get("requests", if quick { 8_000 } else { 100_000 })?;
    let rounds = args.get("rounds", if quick { 1 } else { 3 })?;
    let mut bench = Bench { quick, requests, rounds, dir, failures: Vec::new() };
    for (name, part) in PARTS {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            let begun = Instant::now();
            if let Err(words) = part(&mut bench) {
                bench.holds(false, || format!("{name}: {words}"));
            }
            println!("  ({:.0} s)\n", begun.elapsed().as_secs_f64());
        }
    }
    if bench.failures.is_empty() {
        let _ = std::fs::remove_dir_all(&bench.dir);
        println!("all of it holds");
        return Ok(());
    }
    let list: String = bench.failures.iter().map(|words| format!("\n  {words}")).collect();
    Err(format!("{} do not hold (logs of the fronts: {}):{list}", bench.failures.len(), bench.dir.display()))
}
