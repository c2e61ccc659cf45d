//! The `warmfront` binary: see `warmfront --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    warmfront::cli::main()
}
