//! `warmfront top`: the fleet of a running front, as it is now.

mod change;
mod figures;
mod front;
mod history;
mod live;
mod page;
mod reading;
mod screen;
mod table;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use super::{has_colours, is_dumb, refuse, runtime, say, set};
use crate::config::{Config, address};
use front::Front;
use history::History;
use screen::Surface;

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(1);
/// Rates on a terminal are taken over so many seconds: quantiles of one second's requests say little.
const WINDOW: u16 = 10;
/// Characters in a line if neither the terminal nor `COLUMNS` says.
const WIDTH: usize = 80;
/// Most characters in a line.
const WIDTH_MAX: usize = 1_000;

/// Show the fleet of a running front: load, caches, times and state of each endpoint, the queue, the choices.
///
/// It reads the /metrics of the front's admin listener each second. q or Ctrl-C ends it. Where standard output is no
/// terminal, or with --once, it takes two readings, prints one screen and ends. Figures that the front does not have
/// are `-`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  The front on this machine:
    warmfront top
  Another one, and rates over the last minute:
    warmfront top --admin 10.0.0.7:9911 --window 60
  One screen for a script or a ticket, and as wide as you like:
    COLUMNS=120 warmfront top --once > fleet.txt

Of each endpoint:
  state           up, down, no addr (its name has no address), draining, asleep,
                  ejected (it failed requests), trial, unknown,
                  kept (up and failing, as too few others are left);
                  in percent: a slow start
  rung            how far the front believes what it knows of its cache:
                  exact (what its engine says), replaying,
                  approximate (what was sent there), hash (nothing)
  flight          requests of ours, from the choice to the last byte; a failed
                  one `failed_charge_ms` longer (a second)
  pending         tokens of prompts sent there that have no first token yet,
                  without those thought to be cached
  KV              its KV cache in use
  held, hit       of the prompt tokens sent there, the part thought to be in its
                  cache; of those that it looked up, the part that it found
  TTFT50, TTFT99  time to first token of streams, by proportion within the
                  bounds of a histogram
  ends            requests ended (wide screens, as what follows)
  run, wait       requests running and waiting, as the engine says
  faults          requests that failed by its fault, since the front's start

Exit status: 0, 2 wrong usage, 78 no front answers there (one screen only; on a terminal it tries on).")]
pub struct Args {
    /// Address of the front's admin listener [default: 127.0.0.1:9911].
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    admin: Option<SocketAddr>,
    /// Print one screen of two readings, and end.
    #[arg(long)]
    once: bool,
    /// Seconds over which rates are taken [default: 10; for one screen 1].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u16).range(1..=60))]
    window: Option<u16>,
}

pub(super) fn main(args: &Args) -> ExitCode {
    let address = args.admin.unwrap_or_else(|| Config::default().serve.admin);
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(&error),
    };
    let (name, front) = (address.to_string(), Front::at(address));
    let terminal = io::stdout().is_terminal();
    let colours = has_colours(&io::stdout());
    if terminal && !is_dumb() && !args.once {
        let shown = runtime.block_on(live::show(front, &name, args.window.unwrap_or(WINDOW), colours));
        return match shown {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refuse(&format!("cannot use the terminal: {error}")),
        };
    }
    // Bounded, as is the memory for a line.
    let columns = || {
        set("COLUMNS")?
            .to_str()?
            .parse()
            .ok()
            .filter(|columns| *columns > 0)
            .map(|columns: usize| columns.min(WIDTH_MAX))
    };
    let width = terminal::size(io::stdout()).map(|(width, _)| width).or_else(columns).unwrap_or(WIDTH);
    let surface = Surface { width, height: usize::MAX, colours };
    let window = args.window.map_or(PERIOD, |seconds| Duration::from_secs(seconds.into()));
    match runtime.block_on(once(&front, &name, window, &surface)) {
        Ok(text) => {
            say(&text);
            ExitCode::SUCCESS
        }
        Err(why) => refuse(&why),
    }
}

/// One screen.
async fn once(front: &Front, address: &str, window: Duration, surface: &Surface) -> Result<String, String> {
    let mut history = History::new(0);
    history.push(front.read().await?);
    tokio::time::sleep(window).await;
    history.push(front.read().await?);
    let lines = screen::lines(address, history.change().as_ref(), None, surface);
    Ok(screen::text(&lines, surface, "\n") + "\n")
}
