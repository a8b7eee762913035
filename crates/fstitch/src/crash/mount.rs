//! `fstitch crash mount` and `crash cut`: a mount whose power is cut by a command, while it works.

use std::path::PathBuf;

use anyhow::{Result, bail};
use fstitch_crashlab::{Level, LiveOptions, Survivors};

use crate::control::client::Connection;
use crate::control::{Cut, Request, Response};
use crate::output::{Outcome, json, text};
use crate::{live, mount};

/// Arguments of `crash mount`.
#[derive(clap::Args)]
pub struct MountArguments {
    /// How badly a cut behaves: M2 (a block is there or not), or M3 (any sector is)
    #[arg(long, default_value = "M2", value_parser = level)]
    level: Level,
    /// Bytes that stay volatile until a flush; of more, the oldest go to the image
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = crate::size::bytes)]
    volatile: u64,
    /// Log every write and flush to this file when the mount ends, in the format of dm-log-writes; until then the log
    /// is in memory
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    mount: mount::Arguments,
}

/// Arguments of `crash cut`.
#[derive(clap::Args)]
#[command(
    after_help = "The mount answers EIO from then on. Unmount it; the image is what the power cut left."
)]
pub struct CutArguments {
    /// Which of the writes that no flush has made stable arrive all the same: none, all, or seed=N for some
    #[arg(long, default_value = "none")]
    survivors: Survivors,
    /// Make everything stable, and cut in place of this flush of it, counted from 1; if there are fewer, or by
    /// default, cut at once
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    at_flush: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where `fstitch crash mount` has mounted the volume
    #[arg(value_name = "DIRECTORY")]
    mountpoint: PathBuf,
}

/// At the levels below nothing is volatile when a cut happens between two writes.
fn level(text: &str) -> Result<Level, String> {
    match text.parse() {
        Ok(level @ (Level::M2 | Level::M3)) => Ok(level),
        Ok(other) => Err(format!("a live mount cuts at M2 or M3, not at {other}")),
        Err(unknown) => Err(unknown.to_string()),
    }
}

/// Runs `crash mount`.
pub fn run(arguments: &MountArguments) -> Result<Outcome> {
    let limit_bytes = usize::try_from(arguments.volatile)?;
    let record = arguments.record.as_deref().map(std::path::absolute).transpose()?;
    let device = LiveOptions { level: arguments.level, limit_bytes };
    mount::run_live(&arguments.mount, live::Options { device, record })
}

fn said(cut: &Cut) -> String {
    let Cut { survived, lost, unwritten } = cut;
    let mut said = format!(
        "the power is gone: of the blocks written since the last flush {survived} survived, {lost} did not\n"
    );
    if *unwritten > 0 {
        said.push_str(&format!(
            "{unwritten} more blocks had changes that were in memory only; what of them no committed transaction holds is lost\n"
        ));
    }
    said
}

/// Runs `crash cut`.
pub fn cut(arguments: &CutArguments) -> Result<Outcome> {
    let mut connection = Connection::required(&arguments.mountpoint)?;
    let request = Request::Cut { survivors: arguments.survivors.to_string(), flush: arguments.at_flush };
    let cut = match connection.ask(&request)? {
        Response::Cut(cut) => cut,
        Response::Error(text) => bail!("{text}"),
        other => bail!("an unexpected answer: {other:?}"),
    };
    if arguments.json {
        json(&cut)?;
    } else {
        text(&said(&cut))?;
    }
    Ok(Outcome::SUCCESS)
}
