//! Fronts for token streams side by side: nginx, HAProxy, a bare TCP relay and warmfront, one worker
//! each, the same load, every reply byte verified. `run.sh` builds and starts `peers run`.

use std::process::ExitCode;

use peers::{engine, load, relay, run};

const USAGE: &str = "\
peers run     measure fronts side by side; see `peers run --help`
peers load    load generator: verifies every reply byte
peers engine  mock engine: answers at once or in paced token streams
peers relay   bare relay: the floor that the fronts are compared with";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    let result = match command.as_str() {
        "run" => run::main(&rest),
        "load" => load::main(&rest),
        "engine" => engine::main(&rest),
        "relay" => relay::main(&rest),
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
