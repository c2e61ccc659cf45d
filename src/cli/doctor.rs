//! `warmfront doctor`: what do the engines offer to a front that routes by their caches, and which of their flags to
//! change?

mod cached;
mod connection;
mod engine;
mod events;
mod finding;
mod listening;
mod load;
mod report;
mod server;
mod tokenizer;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::{refuse, runtime, say};
use crate::config::{Config, Flags, Upstream};
use crate::control;
use crate::policy::Policy;
use engine::{Examined, Manner};

/// Ask each engine what it offers, and print the flags to change so that requests find their caches.
///
/// Engines are asked for /version, /v1/models, /metrics, /kv_event_sources and /server_info (SGLang's; others
/// answer 404), side by side. If prefixes are not cached they are asked for /v1/completions, too, by a GET that tells
/// whether they generate; if they publish KV events, these are listened to for a second. Nothing is sent that makes an
/// engine compute, except with --ask.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  warmfront doctor --config /etc/warmfront/warmfront.toml
  warmfront doctor --ask \\
    --upstream http://gpu-1:8000 --upstream http://gpu-2:8000
  What policy \"precise\" would want of them:
    warmfront doctor --upstream http://gpu-1:8000 --policy precise
  The flags alone:
    warmfront doctor --config /etc/warmfront/warmfront.toml --json |
      jq -r '.engines[] | .name, .add[]'

Of each engine:
  key             only if the file of its API key cannot be read here
  server          which, and its version
  models          ids, adapters, the longest context
  host            only if it does not answer under another name
  address         only if several engines answer there by turns
  tokenizer       whether the front has the tokenizers of these models, if its
                  policy needs them
  cache           whether prefixes are cached; its blocks and tokens
  metrics         those that routing uses, and which are missing
  ranks           data-parallel ranks behind its port
  events          whether it tells what is in its cache and, if a policy goes
                  by that, whether it is heard here
  replay          whether it tells again what was missed
  cached_tokens   whether replies say how much of a prompt was cached
  clock           its date beside ours
  keep-alive      how long it keeps idle connections

Exit status: 0 all engines answer and nothing is to be changed, 1 there is advice, 2 wrong usage, \
78 wrong configuration, or no engine answers.")]
pub struct Args {
    /// TOML file with the engines.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An engine, such as http://gpu-1:8000; may be given several times, and replaces those of the file.
    #[arg(long, value_name = "URL")]
    upstream: Vec<String>,
    /// Advise for this policy, in every pool, instead of those of the file; "precise" asks most of engines.
    #[arg(long, value_name = "NAME", value_enum)]
    policy: Option<Policy>,
    /// Send each engine the same new prompt twice, for one token each, to see whether replies tell what was cached, and
    /// whether events come.
    #[arg(long)]
    ask: bool,
    /// Seconds that an engine may take for an answer.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=60))]
    timeout: u16,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: Args) -> ExitCode {
    let Args { config, upstream, policy, ask, timeout, json } = args;
    let flags = Flags { file: config, upstream, policy, ..Flags::default() };
    let read = Config::read(&flags).and_then(|mut read| {
        // With --policy engines are examined for that policy alone.
        if policy.is_some() {
            read.config.drop_shadows();
        }
        read.checked()
    });
    let config = match read {
        Ok(config) => config,
        Err(invalid) => return refuse(&invalid),
    };
    let manner = Manner { ask, timeout: Duration::from_secs(timeout.into()), config: Arc::new(config) };
    let mut engines = match examined(&manner) {
        Ok(engines) => engines,
        Err(error) => return refuse(&error),
    };
    report::name_ports(&mut engines);
    let report = if json { report::json(&engines) } else { report::text(&engines) };
    say(&report);
    if !engines.iter().any(|engine| engine.answers) {
        return refuse(&"none of the engines answers; is `url` right, and do they run?");
    }
    if engines.iter().any(Examined::has_advice) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// All engines, side by side, in the order of the configuration.
fn examined(manner: &Manner) -> io::Result<Vec<Examined>> {
    runtime()?.block_on(async {
        let examine = |upstream: &Upstream| tokio::spawn(engine::examine(upstream.clone(), manner.clone()));
        // Engines that conflict with each other are left to `check`.
        let engines = control::engines(&manner.config).await.unwrap_or_else(|_| manner.config.upstream.clone());
        let tasks: Vec<_> = engines.iter().map(examine).collect();
        let mut examined = Vec::new();
        for task in tasks {
            examined.push(task.await.map_err(io::Error::other)?);
        }
        Ok(examined)
    })
}
