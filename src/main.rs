//! The `warmfront` binary.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "warmfront", version, about)]
enum Command {
    Engine(warmfront::cli::engine::EngineArgs),
    Demo(warmfront::cli::demo::DemoArgs),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Engine(args) => warmfront::cli::engine::run(args),
        Command::Demo(args) => warmfront::cli::demo::run(args),
    }
}
