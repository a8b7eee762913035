//! `fstitch depend`: commands one after the other, whose changes reach the medium in that order (\[D\] §2.3.1).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fstitch_client::{Group, Volume};

use crate::output::Outcome;
use crate::tree;

/// How long an ended process may still count as having its group engaged.
const EXITS_NOTICED: Duration = Duration::from_secs(2);
/// How often that is asked in this time.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// What `fstitch depend --help` says.
pub const HELP: &str = "Run shell commands one after the other, the changes of each before those of the next\n\n\
    fstitch depend \"sort < in > out\" \"rm in\"\n\n\
    After a crash at any moment, no change of a command is there while a change of an earlier one is missing: \
    `in` is not gone unless all of `out` is there. Nothing waits for the disk, and the commands need not know. Each \
    runs in `sh -c` once the one before has ended with everything that it started; the first that fails is the last, \
    and its exit status is this command's.\n\n\
    Not promised: that anything is on the disk when this returns (use --sync), that a command's changes are there all \
    or not at all, and any order of changes on other file systems than that of --on.";

/// Arguments of `depend`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The mount whose changes are ordered: any path on it. The current directory's without this
    #[arg(long, value_name = "PATH", default_value = ".")]
    on: PathBuf,
    /// Return when everything is on the disk
    #[arg(long)]
    sync: bool,
    /// On a file system without patchgroups, wait for the disk between the commands
    #[arg(long)]
    or_fsync: bool,
    /// What to run, each as the shell reads it
    #[arg(value_name = "COMMAND", required = true)]
    commands: Vec<String>,
}

/// Runs `depend`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let volume = open(&arguments.on, arguments.or_fsync)?;
    tree::adopt()?;
    let mut before: Option<Group<'_>> = None;
    for command in &arguments.commands {
        let group = volume.group().context("making a group")?;
        if let Some(before) = &before {
            depend(&group, before)?;
        }
        let engaged = group.engage().context("engaging a group")?;
        let ended = tree::run(Command::new("sh").arg("-c").arg(command), true)?;
        engaged.end().context("disengaging a group")?;
        if !ended.success() {
            return Ok(Outcome(tree::code(ended)));
        }
        before = Some(group);
    }
    if let Some(last) = before.filter(|_| arguments.sync) {
        last.sync().context("making the changes stable")?;
    }
    Ok(Outcome::SUCCESS)
}

/// The mount of these commands, with what to do where there is none.
fn open(on: &std::path::Path, or_fsync: bool) -> Result<Volume> {
    let opened = if or_fsync { Volume::open_or_fsync(on) } else { Volume::open(on) };
    opened.map_err(|error| {
        let unsupported = fstitch_client::is_unsupported(&error);
        let hint =
            if unsupported { ": not on a volume that keeps an order (see --on and --or-fsync)" } else { "" };
        anyhow::Error::from(error).context(format!("{}{hint}", on.display()))
    })
}

/// The server may learn a moment later than this process that a command has ended.
fn depend(group: &Group<'_>, before: &Group<'_>) -> Result<()> {
    let mut waited = Duration::ZERO;
    loop {
        match group.depend_on(before) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != std::io::ErrorKind::ResourceBusy => {
                return Err(error).context("ordering a command after the one before");
            }
            Err(_) if waited < EXITS_NOTICED => {
                std::thread::sleep(ASK_EVERY);
                waited += ASK_EVERY;
            }
            Err(_) => bail!("a process that the command before has left behind still works for it"),
        }
    }
}
