//! `warmfront check`: is the configuration right, and can this machine and these engines carry it?

use std::process::ExitCode;

use super::{ConfigArgs, refuse};

/// Validate the configuration, this machine and the engines, and say in words what to change.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
}

pub(super) fn main(args: Args) -> ExitCode {
    match args.config.load() {
        Ok(_) => ExitCode::SUCCESS,
        Err(invalid) => refuse(&invalid),
    }
}
