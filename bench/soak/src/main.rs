//! A front for half an hour: bounded load, faults on a schedule, every reply verified whole. Each failure is explained
//! by a fault, or is an error of the run. `run.sh` builds and starts `soak run`.

mod crowd;
mod exchange;
mod faults;
mod fleet;
mod front;
mod load;
mod proc;
mod record;
mod report;
mod run;
mod soak;
mod upgrades;

use std::process::ExitCode;

const USAGE: &str = "\
soak run      see `soak run --help`
soak engine   one engine of its fleet; see `soak engine --help`";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    let result = match command.as_str() {
        "run" => run::main(&rest),
        "engine" => peers::engine::main(&rest),
        _ => Err(USAGE.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(help) if rest.iter().any(|word| word == "--help") => {
            println!("{help}");
            ExitCode::SUCCESS
        }
        Err(words) => {
            eprintln!("{words}");
            ExitCode::FAILURE
        }
    }
}
