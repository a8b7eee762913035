//! `fstitch lld unit`: a command whose changes happen at once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::control::{Answer, Client, Request};
use crate::output::Outcome;

/// What `fstitch lld unit --help` says.
pub const HELP: &str = "Begin a unit at the control socket of `fstitch lld serve`, and run a command with the unit's token in the environment \
variable FSTITCH_ARU: the export NAME?aru=$FSTITCH_ARU is the volume NAME as the unit sees it.

If the command succeeds, everything that was written to such exports happens at once, and is stable when this command ends. If it fails, \
or this command is killed, nothing of it has happened.";

/// Arguments of `lld unit`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The control socket
    #[arg(value_name = "CONTROL")]
    control: PathBuf,
    /// The command, with its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs `lld unit`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let mut client = Client::new(&arguments.control)?;
    let Answer::Begun { token } = client.ask(&Request::Begin)? else { bail!("the server begins no units") };
    let [program, words @ ..] = &arguments.command[..] else { bail!("there is no command") };
    let status = Command::new(program).args(words).env("FSTITCH_ARU", &token).status();
    let status = status.with_context(|| program.display().to_string())?;
    if !status.success() {
        client.ask(&Request::Abort { token })?;
        eprintln!("fstitch: {}: {status}; nothing has happened", program.display());
        return Ok(Outcome::FAILURE);
    }
    client
        .ask(&Request::End { token, durable: true })
        .context("the unit did not end, and nothing has happened")?;
    Ok(Outcome::SUCCESS)
}
