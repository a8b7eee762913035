//! `fstitch policy`: what is done when a disk fails, said before anything has failed.

mod check;
mod explain;
mod list;
mod show;

use std::path::Path;

use anyhow::{Context, Result, bail};
use fstitch_shepherd::Policy;
use fstitch_shepherd::policy::{SHIPPED, shipped};

use crate::output::Outcome;

/// Arguments of `policy`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the policies that come with the program
    List(list::Arguments),
    /// Show what a policy says, and for every kind of block what that means
    Show(show::Arguments),
    /// Check a policy, and say what cannot be right and what would be
    Check(check::Arguments),
    /// Say what will happen when something fails
    #[command(long_about = explain::HELP)]
    Explain(explain::Arguments),
}

/// Runs `policy`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    match &arguments.command {
        Command::List(arguments) => list::run(arguments),
        Command::Show(arguments) => show::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
    }
}

/// Bytes that a policy has at most: it is for people to read.
const TEXT_MAX: u64 = 1 << 20;

/// The text of a policy: of one that comes with the program, or in a file.
pub fn text_of(name: &str) -> Result<String> {
    if let Some(known) = shipped(name) {
        return Ok(known.text.to_owned());
    }
    let path = Path::new(name);
    let looks_like_a_path = name.contains(['/', '.']);
    match std::fs::metadata(path) {
        Ok(found) if found.len() > TEXT_MAX => bail!("{name} has {} bytes: it is no policy", found.len()),
        Ok(_) => std::fs::read_to_string(path).with_context(|| name.to_owned()),
        Err(error) if looks_like_a_path => Err(error).with_context(|| name.to_owned()),
        Err(_) => {
            let names: Vec<_> = SHIPPED.iter().map(|shipped| shipped.name).collect();
            bail!("no policy `{name}`: give a file, or one of {}", names.join(", "))
        }
    }
}

/// A policy that is right, whatever the volume.
fn policy_of(name: &str) -> Result<Policy> {
    Policy::parse(&text_of(name)?).map_err(anyhow::Error::from).with_context(|| name.to_owned())
}
