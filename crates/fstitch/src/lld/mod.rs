//! `fstitch lld`: logical disks, their volumes, and serving those over NBD.

mod check;
mod control;
mod dump;
mod exports;
mod format;
mod info;
mod serve;
mod stats;
mod unit;
mod volume;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_core::BlockDevice;
use fstitch_disk::DiskOptions;
use fstitch_lld::{Disk, Options, Recovered, Volumes};

use crate::open;
use crate::output::Outcome;

/// Arguments of `lld`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a logical disk
    Format(format::Arguments),
    /// Show what a logical disk is, and what is in it
    Info(info::Arguments),
    /// Check every sum, map, list and count
    Check(check::Arguments),
    /// Show what lies in the segments
    #[command(long_about = dump::HELP)]
    Dump(dump::Arguments),
    /// Show what a disk that is served has done
    #[command(long_about = stats::HELP)]
    Stats(stats::Arguments),
    /// Make, list, resize and remove volumes
    Volume(volume::Arguments),
    /// Serve the volumes over NBD
    #[command(long_about = serve::HELP)]
    Serve(serve::Arguments),
    /// Run a command, and make all that it changes happen at once, or not at all
    #[command(long_about = unit::HELP)]
    Unit(unit::Arguments),
}

/// Runs `lld`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    match &arguments.command {
        Command::Format(arguments) => format::run(arguments),
        Command::Info(arguments) => info::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Dump(arguments) => dump::run(arguments),
        Command::Stats(arguments) => stats::run(arguments),
        Command::Volume(arguments) => volume::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Unit(arguments) => unit::run(arguments),
    }
}

/// Bytes at the beginning in which the superblock is.
const HEAD: usize = 4096;

/// Opens a disk with the blocks of the device that it was made for.
fn open(path: &Path, options: &Options) -> Result<(Arc<Disk>, Recovered)> {
    let name = || path.display().to_string();
    let head = fstitch_disk::probe(path, 0, HEAD).with_context(name)?;
    // Where the superblock is damaged its copy is looked for.
    let block_size = fstitch_lld::device_block_size(&head).unwrap_or(4096);
    let options_of_disk = DiskOptions { block_size, read_only: options.read_only, ..DiskOptions::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(open::disk(path, &options_of_disk).with_context(name)?);
    let (disk, recovered) = Disk::open(device, options).with_context(name)?;
    Ok((Arc::new(disk), recovered))
}

/// Opens a disk for its volumes, to change them.
fn open_volumes(path: &Path) -> Result<Volumes> {
    let (disk, _) = open(path, &Options::default())?;
    Volumes::open(disk).with_context(|| path.display().to_string())
}
