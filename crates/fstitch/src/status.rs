//! `fstitch status`: which mounts there are, and how they fare.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;

use crate::control::Status;
use crate::control::client::{Connection, all_mounts};
use crate::output::{Outcome, json, text};

/// Arguments of `status`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where a volume is mounted; without it, all mounts of this user
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: Option<PathBuf>,
}

/// Runs `status`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let mounts = match &arguments.mountpoint {
        Some(mountpoint) => vec![Connection::required(mountpoint)?.status()?],
        None => all_mounts(),
    };
    if arguments.json {
        json(&mounts)?;
        return Ok(Outcome::SUCCESS);
    }
    if mounts.is_empty() {
        text("this user has no fstitch mounts\n")?;
    }
    for mount in &mounts {
        text(&describe(mount)?)?;
    }
    let mut drawn = Vec::new();
    for stack in mounts.iter().filter_map(|mount| mount.stack.as_ref()) {
        if !drawn.contains(&stack.file) {
            text(&stack.draw())?;
            drawn.push(stack.file.clone());
        }
    }
    let failed = mounts.iter().any(|mount| !mount.failure.is_empty());
    Ok(if failed { Outcome::FAILURE } else { Outcome::SUCCESS })
}

fn describe(mount: &Status) -> Result<String> {
    let mut shown = String::new();
    let access = if mount.read_only { "read-only" } else { "read-write" };
    writeln!(shown, "{} on {}", mount.image, mount.mountpoint)?;
    writeln!(shown, "  {} {access}, consistency {}, pid {}", mount.format, mount.consistency, mount.pid)?;
    writeln!(shown, "  not on the medium yet: {}", crate::size::show(mount.dirty_bytes))?;
    if let Some(journal) = &mount.journal {
        writeln!(
            shown,
            "  journal: {} of {} blocks in use, {} transactions on their way home",
            journal.used_blocks, journal.log_blocks, journal.transactions
        )?;
    }
    if !mount.recovery.is_empty() {
        writeln!(shown, "  {}", mount.recovery)?;
    }
    if !mount.failure.is_empty() {
        writeln!(shown, "  FAILED: {}", mount.failure)?;
    }
    Ok(shown)
}
