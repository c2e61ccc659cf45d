//! The comparison behind warmfront's own drivers, for anybody to repeat: the same small relay on each way to move
//! bytes, side by side in one run, every reply byte verified. `run.sh` builds and starts `runtimes run`.

mod buffers;
mod exchange;
mod on;
mod own;
mod relays;
mod run;
mod serve;

use std::process::ExitCode;

use peers::{engine, load};

const USAGE: &str = "\
runtimes run     measure the relays side by side; see `runtimes run --help`
runtimes relay   one of them; see `runtimes relay --help`
runtimes load    load generator: verifies every reply byte
runtimes engine  mock engine: answers at once or in paced token streams";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    let result = match command.as_str() {
        "run" => run::main(&rest),
        "relay" => relays::main(&rest),
        "load" => load::main(&rest),
        "engine" => engine::main(&rest),
        _ => Err(USAGE.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(help) if command == "--help" || rest.iter().any(|word| word == "--help") => {
            println!("{help}");
            ExitCode::SUCCESS
        }
        Err(words) => {
            eprintln!("{words}");
            ExitCode::FAILURE
        }
    }
}
