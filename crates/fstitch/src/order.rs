//! `fstitch order`: a program whose fsync orders instead of waiting.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_client::Volume;

use crate::output::Outcome;
use crate::tree;

/// What `fstitch order --help` says.
pub const HELP: &str = "Run a program whose fsync orders and does not wait\n\n\
    Every fsync, fdatasync and O_SYNC write of the program, and of all that it starts, returns at once and becomes an \
    ordering point: everything they changed before it reaches the disk before everything they change after it.\n\n\
    Kept after a crash: atomicity and order. What the program keeps whole by means of fsync is whole: the volume is as \
    it was at some moment between two ordering points, with a part of what followed the first. A database has a prefix \
    of its transactions, a repository is intact.\n\n\
    Lost after a crash: the last moments. What was done last may be missing although fsync returned, so replies to \
    others (\"your mail is stored\") may be promises that are not kept. --durable-every bounds how much that is.\n\n\
    This returns with the program's exit status when all that it started has ended. Nothing is made stable then: \
    `sync DIR` with the mount's directory does that.";

/// Arguments of `order`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A mount on which fsync orders: any path on it; may be given more than once. The current directory's without this
    #[arg(long, value_name = "PATH")]
    on: Vec<PathBuf>,
    /// Make what they changed stable this often, so that a crash loses no more: 500ms, 5s, 1m
    #[arg(long, value_name = "TIME", value_parser = interval)]
    durable_every: Option<Duration>,
    /// Every change is an ordering point, not only fsync: for programs that never call it. Cheap where a journal is kept; under
    /// soft updates every change takes a flush, later
    #[arg(long)]
    every_change: bool,
    /// Return when the program itself has ended. What it leaves behind may find that fsync waits again
    #[arg(long)]
    no_wait: bool,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs `order`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let (program, rest) = arguments.command.split_first().context("a program is needed")?;
    tree::adopt()?;
    let here = [PathBuf::from(".")];
    let places = if arguments.on.is_empty() { here.as_slice() } else { &arguments.on };
    // They stay open: a volume that is unmounted meanwhile would take the order with it.
    let volumes: Vec<Volume> = places.iter().map(|place| begin(place, arguments)).collect::<Result<_>>()?;
    let ended = tree::run(Command::new(program).args(rest), !arguments.no_wait)?;
    drop(volumes);
    Ok(Outcome(tree::code(ended)))
}

/// Has fsync order on one mount.
fn begin(place: &Path, arguments: &Arguments) -> Result<Volume> {
    let failed = |error: std::io::Error| {
        let hint = match error.kind() {
            _ if fstitch_client::is_unsupported(&error) => ": not on a volume that keeps an order (see --on)",
            std::io::ErrorKind::ResourceBusy => ": fsync orders there already",
            _ => "",
        };
        anyhow::Error::from(error).context(format!("{}{hint}", place.display()))
    };
    let volume = Volume::open(place).map_err(failed)?;
    let begun = match arguments.every_change {
        true => volume.order_every_change(arguments.durable_every),
        false => volume.order_begin(arguments.durable_every),
    };
    begun.map_err(failed)?;
    Ok(volume)
}

/// Reads a time with its unit, 10 ms and more.
fn interval(text: &str) -> Result<Duration, String> {
    let unit = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        _ => return Err("a number and ms, s or m are needed, as in 5s".to_owned()),
    };
    let millis = number.parse::<u32>().ok().and_then(|number| number.checked_mul(factor));
    match millis {
        Some(millis) if millis >= 10 => Ok(Duration::from_millis(u64::from(millis))),
        _ => Err("from 10ms to 49 days".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_units_and_limits() {
        let millis = |text| interval(text).map(|found| found.as_millis());
        assert_eq!(millis("10ms"), Ok(10));
        assert_eq!(millis("5s"), Ok(5000));
        assert_eq!(millis("2m"), Ok(120_000));
        for wrong in ["", "5", "s", "9ms", "0s", "-1s", "5h", "1.5s", "99999999999s", "71583m"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
