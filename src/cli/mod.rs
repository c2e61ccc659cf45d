//! The command line: one file a subcommand.

mod check;
pub mod demo;
mod doctor;
pub mod engine;
mod explain;
mod journal;
mod machine;
mod replay;
mod serve;
mod shown;
mod status_line;
mod top;

use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use self::journal::StandardError;
use crate::config::{Log, LogFormat};
use crate::control;
use crate::control::client::CallError;

/// Whether output was lost for another reason than that its reader has gone.
static LOST: AtomicBool = AtomicBool::new(false);

/// Whether the log is JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Writes to standard output. It is no fault if the reader has gone.
fn say(words: &str) {
    let mut out = io::stdout();
    if let Err(error) = out.write_all(words.as_bytes()).and_then(|()| out.flush())
        && error.kind() != ErrorKind::BrokenPipe
        && !LOST.swap(true, Ordering::Relaxed)
    {
        complain(&format!("cannot write to standard output: {error}"));
    }
}

/// Writes to standard error. It is no fault if that fails.
fn note(words: &str) {
    let _ = io::stderr().write_all(words.as_bytes());
}

/// The exit status of a wrong configuration or an unfit machine, EX_CONFIG of sysexits.h. Wrong usage is 2.
pub const EX_CONFIG: u8 = 78;

/// A drop-in L7 front for fleets of vLLM and SGLang engines.
///
/// Clients speak the OpenAI HTTP API to it as if it were one engine; each request goes to the engine
/// whose KV cache already holds the start of its prompt, without letting any engine fall behind.
#[derive(Debug, Parser)]
#[command(
    name = "warmfront",
    version,
    max_term_width = 100,
    after_help = "Examples:
  warmfront serve --upstream http://gpu-1:8000 --upstream http://gpu-2:8000
  warmfront serve --config /etc/warmfront/warmfront.toml
  warmfront check --config /etc/warmfront/warmfront.toml
  warmfront doctor --config /etc/warmfront/warmfront.toml
  warmfront explain --body request.json \\
    --upstream http://gpu-1:8000 --upstream http://gpu-2:8000
  warmfront top
  warmfront replay trace.jsonl.zst --loads 1,1.5

`warmfront COMMAND --help` says more about each."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Check(check::Args),
    Doctor(doctor::Args),
    Explain(explain::Args),
    Top(top::Args),
    Replay(Box<replay::Args>),
    Demo(demo::DemoArgs),
    Engine(engine::EngineArgs),
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let status = match Cli::parse().command {
        Command::Serve(args) => serve::main(args),
        Command::Check(args) => check::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Explain(args) => explain::main(args),
        Command::Top(args) => top::main(&args),
        Command::Replay(args) => replay::main(&args),
        Command::Demo(args) => demo::run(args),
        Command::Engine(args) => engine::run(args),
    };
    if status == ExitCode::SUCCESS && LOST.load(Ordering::Relaxed) { ExitCode::FAILURE } else { status }
}

/// A runtime that runs on the calling thread.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// A variable of the environment, if it is set and not empty.
fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Whether a terminal would show escape sequences as they are.
fn is_dumb() -> bool {
    set("TERM").is_none_or(|kind| kind == "dumb")
}

/// Whether what is written there may have colours.
fn has_colours(out: &impl IsTerminal) -> bool {
    out.is_terminal() && !is_dumb() && set("NO_COLOR").is_none()
}

/// Tells a fault of configuration or machine; returns the exit status for it.
fn refuse(why: &dyn std::fmt::Display) -> ExitCode {
    complain(why);
    ExitCode::from(EX_CONFIG)
}

/// Tells why the process ends, in the format of the log if that was read.
fn complain(why: &dyn std::fmt::Display) {
    let mut words = format!("warmfront: {why}");
    if IS_JSON.load(Ordering::Relaxed) {
        let mut now = String::new();
        // Writing to a string cannot fail.
        let _ = SystemTime.format_time(&mut format::Writer::new(&mut now));
        words = serde_json::json!({"timestamp": now, "level": "ERROR", "message": words}).to_string();
    }
    let words = (words + "\n").into_bytes();
    let words = if journal::reads_us() { journal::prioritized(tracing::Level::ERROR, &words) } else { words };
    control::log::write(&words);
}

/// Why a front's admin listener did not answer, in words.
fn unanswered(error: &CallError) -> String {
    format!("{error}; is a front running with its admin listener there?")
}

/// Which events are printed; may change while the process lives.
type Level = reload::Handle<Targets, Registry>;

fn level(log: &Log) -> Targets {
    // Checked when the configuration was read.
    log.level.parse().unwrap_or_default()
}

/// Prints events as `[log]` says, to standard error. The journal has time and level beside the words.
fn log(log: &Log) -> Level {
    let (targets, handle) = reload::Layer::new(level(log));
    let registry = tracing_subscriber::registry().with(targets);
    let journal = journal::reads_us();
    IS_JSON.store(log.format == LogFormat::Json, Ordering::Relaxed);
    control::log::open();
    let colours = has_colours(&io::stderr());
    let layer = tracing_subscriber::fmt::layer().with_writer(StandardError { is_journal: journal }).with_ansi(colours);
    // It fails only if a log is set already, as in tests.
    let _ = match log.format {
        LogFormat::Text if journal => {
            registry.with(layer.with_target(false).with_level(false).without_time()).try_init()
        }
        LogFormat::Text => registry.with(layer.with_target(false)).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    };
    handle
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::{Config, Driver, Shards};
    use crate::policy::Policy;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// On a terminal of 80 columns: a line that is broken there is no command, and no row of a table. What may be
    /// broken anywhere is one line here.
    #[test]
    fn examples_can_be_copied() {
        let cli = Cli::command();
        let mut helps: Vec<String> = Vec::new();
        for command in std::iter::once(&cli).chain(cli.get_subcommands()) {
            helps.extend(command.get_after_help().map(ToString::to_string));
        }
        assert!(helps.len() > 6, "{helps:?}");
        let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
        for help in &helps {
            let lines: Vec<&str> = help.lines().collect();
            for line in lines.iter().filter(|line| !is_text(line)) {
                assert!(line.chars().count() <= 80, "break it: {line}");
            }
            for pair in lines.windows(2) {
                assert!(!pair.iter().all(|line| is_text(line)), "broken already: {pair:?}");
            }
        }
    }

    #[test]
    fn flags_are_read() {
        let line =
            "warmfront serve --upstream http://a:1 --upstream http://b:2 --policy least-load --shards 2 --driver epoll";
        let Command::Serve(args) = Cli::parse_from(line.split(' ')).command else { panic!("another command") };
        let config = Config::load(&args.flags).unwrap();
        assert_eq!((config.upstream.len(), config.routing.policy), (2, Policy::LeastLoad));
        assert_eq!((config.serve.shards, config.serve.driver), (Shards::Count(2), Driver::Epoll));
        assert!(Cli::try_parse_from(["warmfront", "serve", "--shards", "many"]).is_err());
    }

    #[test]
    fn every_command_says_how_an_address_is_written() {
        for command in ["serve", "check", "engine", "demo"] {
            let refused = Cli::try_parse_from(["warmfront", command, "--listen", "9101"]).unwrap_err().to_string();
            assert!(refused.contains("write it as IP:PORT, such as 0.0.0.0:8000"), "{refused}");
        }
    }
}
