//! `peers run`: every scenario on every front.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::args::Args;
use crate::change;
use crate::fronts::{self, Ours, Setup};
use crate::measure::{self, Setting};
use crate::net;
use crate::report::{self, Report};
use crate::scenario::{self, Scenario};

const HELP: &str = "\
peers run: fronts side by side, one worker each, in one run
  --fronts A,B       of direct, relay, relay-hold, haproxy, nginx, warmfront, warmfront-uring; and these two
                     with a suffix: -before (--before's binary), -copy (long opaque replies copied, not spliced),
                     -free (one shard, on any core), -two (two shards), -warm or -blind (policies warm, the default
                     of a front, and round-robin; without either round-robin, but prefix-hash in prompt)
                     (default: all without a suffix, or with --before these two and their -before; direct takes part
                     in latency only, relay-hold in prompt only)
  --only A,B         scenarios or their first words: plain, stream (-flat, -step, -phase),
                     prompt (-2k, -128k, -1m), speech, idle, latency; and fresh-128k, which has to be named
  --rounds N         each front once a round, order rotated (5; with --before 10; quick: 1)
  --seconds N        measured window (4; quick: 1.5)
  --quick            everything once, in under two minutes
  --idle-streams N   streams in idle (8000; quick: 2000)
  --warmfront PATH   the binary (default $WARMFRONT, else target/release/warmfront)
  --before PATH      the binary of the state before a change: says what the change costs, and fails if
                     it certainly costs more than 3 %, or if there are fewer than the 6 rounds to tell
  --json FILE        where every sample goes (default target/peers.json)
  --front-core N     the front's core (the last one)
  --load-core N      the load generator's (the first one)
  --engine-core N    both mock engines' (the load generator's)";

const ROUNDS: usize = 5;
/// Enough rounds for one that is out of line not to widen the interval of what a change costs.
const ROUNDS_BEFORE: usize = 10;

struct Options {
    setting: Setting,
    ours: Ours,
    /// Folder of the fronts' configurations and logs, removed at the end.
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
        "before",
        "json",
        "front-core",
        "load-core",
        "engine-core",
    ];
    let args = Args::parse(words, &names, &["quick"], HELP)?;
    let quick = args.has("quick");
    net::note_interrupts();

    let idle_streams = args.get("idle-streams", if quick { 2000 } else { 8000 })?;
    let scenarios = scenario::chosen(scenario::all(quick, idle_streams), &args.list("only"))?;
    let options = options(&args, quick)?;
    measure::check_descriptors(&scenarios)?;
    let compares = options.ours.before.is_some();
    let rounds_usual = match (quick, compares) {
        (true, _) => 1,
        (false, true) => ROUNDS_BEFORE,
        (false, false) => ROUNDS,
    };
    let rounds = args.get("rounds", rounds_usual)?;
    let json = PathBuf::from(args.text("json").unwrap_or("target/peers.json"));

    let mut report = Report::new(machine(&options, rounds), &[fronts::RELAY, fronts::HAPROXY]);
    let fronts = chosen_fronts(&args, &options, &mut report)?;
    // The fronts' configurations lie here; the folder goes whatever happens, short of a kill.
    fs::create_dir_all(&options.dir).map_err(|error| format!("{}: {error}", options.dir.display()))?;
    let _removed_at_end = Removed(&options.dir);

    for scenario in &scenarios {
        let taking_part: Vec<&str> =
            fronts.iter().map(String::as_str).filter(|front| fronts::takes_part(front, scenario)).collect();
        let measure = |front: &str| measure(front, scenario, &options);
        measure::rounds(scenario, &taking_part, rounds, &mut report, measure);
        report.print_table(scenario, &taking_part);
        if net::interrupted() {
            break;
        }
    }
    let told = if compares { change::tell(&report, &scenarios, &fronts) } else { Ok(()) };
    report.finish(&scenarios, &json)?;
    told
}

fn options(args: &Args, quick: bool) -> Result<Options, String> {
    let named = args.text("warmfront").map(PathBuf::from);
    let named = named.or_else(|| std::env::var_os("WARMFRONT").map(PathBuf::from));
    Ok(Options {
        setting: Setting::from_args(args, quick)?,
        ours: Ours {
            now: named.unwrap_or_else(|| PathBuf::from("target/release/warmfront")),
            before: args.text("before").map(PathBuf::from),
        },
        dir: std::env::temp_dir().join(format!("warmfront-peers-{}", std::process::id())),
    })
}

/// One that is missing and was not named is left out, with words.
fn chosen_fronts(args: &Args, options: &Options, report: &mut Report) -> Result<Vec<String>, String> {
    let mut named = args.list("fronts");
    let is_named = !named.is_empty();
    if !is_named {
        named = match options.ours.before {
            Some(_) => fronts::CHANGES.iter().flat_map(|(now, before)| [now.to_string(), before.to_string()]).collect(),
            None => fronts::DEFAULT.map(String::from).to_vec(),
        };
    } else if !named.iter().any(|front| front == fronts::DIRECT) {
        // Added latency is counted from this front.
        named.insert(0, fronts::DIRECT.into());
    }
    let mut present = Vec::new();
    for front in named {
        match fronts::program(&front, &options.ours) {
            Ok(_) => present.push(front),
            Err(words) if !is_named => report.leave_out(&front, &words),
            Err(words) => return Err(format!("--fronts {front}: {words}")),
        }
    }
    Ok(present)
}

fn machine(options: &Options, rounds: usize) -> Vec<(String, String)> {
    let mut facts = report::machine(&options.setting, rounds);
    for front in [fronts::HAPROXY, fronts::NGINX, fronts::WARMFRONT] {
        facts.push((front.to_string(), fronts::version(front, &options.ours)));
    }
    facts
}

struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

/// Measures one front in one scenario: fresh engines, a fresh front, one run of the load generator.
fn measure(front: &str, scenario: &Scenario, options: &Options) -> Result<BTreeMap<String, f64>, String> {
    if front == fronts::DIRECT {
        return measure::directly(scenario, &options.setting);
    }
    let dir = options.dir.join("front");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
    let log = dir.join("log");
    measure::through(&log, scenario, &options.setting, |upstreams, listen, admin| {
        let setup = Setup { scenario, listen, admin, upstreams, dir: &dir, ours: &options.ours };
        fronts::command(front, &setup)
    })
}
