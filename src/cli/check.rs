//! `warmfront check`: is the configuration right, and can this machine and these engines carry it?

mod engines;
pub(super) mod files;
mod interrupts;
mod machine;
mod models;
mod tuning;

use std::path::Path;
use std::process::ExitCode;

use super::shown::plain;
use super::{EX_CONFIG, refuse, say};
use crate::config::{Config, Flags};
use crate::shard::topology::this_machine;

/// Validate the configuration, this machine and the engines, and say in words what to change.
///
/// Without engines it still says what of the machine and its kernel to change. Engines are asked for /health,
/// /v1/models and /metrics, and twice for one token each, to see whether they report how much of a prompt was cached;
/// --no-engines leaves them alone.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  What of this machine and its kernel to change, whatever its engines:
    warmfront check
  Configuration, machine and engines:
    warmfront check --config /etc/warmfront/warmfront.toml
    warmfront check --upstream http://gpu-1:8000 --upstream http://gpu-2:8000
  Before an upgrade, where a front is running (its ports are then in use):
    warmfront check --config new.toml --no-ports

Exit status: 0 nothing is wrong (advice may be given), 2 wrong usage, 78 something must be changed.")]
pub struct Args {
    /// Do not ask the engines.
    #[arg(long)]
    no_engines: bool,
    /// Do not try the ports.
    #[arg(long)]
    no_ports: bool,
    /// Print only what must be changed.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    flags: Flags,
}

/// The path of a file as the package installs it, or in the sources if there is no package.
fn shipped(source: &str) -> String {
    let name = Path::new(source).file_name().unwrap_or_default();
    let packaged = Path::new("/usr/share/doc/warmfront/examples").join(name);
    if packaged.exists() { packaged.display().to_string() } else { source.to_owned() }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    weight: Weight,
    subject: String,
    words: String,
}

/// What a finding asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// Nothing.
    Good,
    /// It runs, and would run better.
    Advice,
    /// It does not run.
    Wrong,
}

impl Finding {
    fn good(subject: impl Into<String>, words: impl Into<String>) -> Finding {
        Finding { weight: Weight::Good, subject: subject.into(), words: words.into() }
    }

    fn advice(subject: impl Into<String>, words: impl Into<String>) -> Finding {
        Finding { weight: Weight::Advice, ..Finding::good(subject, words) }
    }

    fn wrong(subject: impl Into<String>, words: impl Into<String>) -> Finding {
        Finding { weight: Weight::Wrong, ..Finding::good(subject, words) }
    }

    fn line(&self) -> String {
        let mark = match self.weight {
            Weight::Good => "ok",
            Weight::Advice => "advice",
            Weight::Wrong => "WRONG",
        };
        // Further lines of the words stand under the first.
        let words: Vec<String> = self.words.split('\n').map(plain).collect();
        format!("{mark:<7} {:<22} {}", plain(&self.subject), words.join(&format!("\n{:31}", "")))
    }
}

pub(super) fn main(args: Args) -> ExitCode {
    let said = args.flags.file.as_ref().map(|file| format!("{} is valid", file.display()));
    let read = match Config::read(&args.flags) {
        Ok(read) => read,
        Err(invalid) => return refuse(&invalid),
    };
    let config = read.config.clone();
    // The machine is checked even if no engine is named.
    let unfit = match read.checked() {
        Err(invalid) if !config.upstream.is_empty() || !invalid.wants_engines_alone() => return refuse(&invalid),
        checked => checked.err(),
    };
    let mut findings = Vec::new();
    if unfit.is_none() {
        findings.push(Finding::good("configuration", said.unwrap_or_else(|| "the flags are valid".into())));
    }
    findings.extend(config.wanting().map(|wanting| Finding::advice(wanting.of, wanting.why)));
    findings.extend(models::findings(&config));
    findings.extend(files::findings(&config));
    let placement = this_machine().place(config.serve.shards.asked(), config.serve.pin.asked());
    findings.extend(machine::findings(&config, &placement, !args.no_ports));
    findings.extend(tuning::findings(Path::new("/proc")));
    findings.extend(interrupts::findings(Path::new("/sys"), Path::new("/proc"), &placement.cpus()));
    if !args.no_engines {
        match engines::findings(&config) {
            Ok(found) => findings.extend(found),
            Err(error) => return refuse(&error),
        }
    }
    let shown = |finding: &&Finding| !args.quiet || finding.weight == Weight::Wrong;
    findings.iter().filter(shown).for_each(|finding| say(&format!("{}\n", finding.line())));
    let count = |weight| findings.iter().filter(|finding| finding.weight == weight).count();
    let (wrong, advice) = (count(Weight::Wrong) + usize::from(unfit.is_some()), count(Weight::Advice));
    if !args.quiet {
        say(&format!("\n{wrong} to change, {advice} to consider\n"));
    }
    match unfit {
        Some(invalid) => refuse(&invalid),
        None if wrong == 0 => ExitCode::SUCCESS,
        None => ExitCode::from(EX_CONFIG),
    }
}
