//! `fstitch trace`: what becomes of patches on a mount, recorded and shown epoch by epoch. The format of the files is that of
//! `docs/control-socket.md`.

mod record;
mod show;
mod timeline;

use anyhow::Result;
use clap::Subcommand;

use crate::output::Outcome;

/// Arguments of `trace`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Record what becomes of patches on a mount, until Ctrl-C
    Record(record::Arguments),
    /// Show a recorded trace epoch by epoch
    Show(show::Arguments),
}

/// Runs `trace`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    match &arguments.command {
        Command::Record(arguments) => record::run(arguments),
        Command::Show(arguments) => show::run(arguments),
    }
}
