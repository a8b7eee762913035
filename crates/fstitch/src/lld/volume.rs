//! `fstitch lld volume`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fstitch_lld::{Options, VolumeInfo, Volumes};
use serde::{Deserialize, Serialize};

use super::control::{Answer, Client, Request, is_socket};
use crate::output::{Outcome, json, text};
use crate::size;

/// Arguments of `lld volume`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a volume; it takes nothing until it is written
    Create(Sized),
    /// List the volumes
    List(List),
    /// Give a volume another size; what is beyond a smaller one is gone
    Resize(Sized),
    /// Remove a volume, and all that is in it
    Remove(Remove),
}

#[derive(clap::Args)]
struct Sized {
    /// The logical disk, or the control socket of its server
    #[arg(value_name = "DISK")]
    disk: PathBuf,
    /// The volume's name
    #[arg(value_name = "NAME")]
    name: String,
    /// Its size, such as 20G
    #[arg(value_name = "SIZE", value_parser = size::bytes)]
    size: u64,
}

#[derive(clap::Args)]
struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The logical disk, to which nothing is written, or the control socket of its server
    #[arg(value_name = "DISK")]
    disk: PathBuf,
}

#[derive(clap::Args)]
struct Remove {
    /// The logical disk, or the control socket of its server
    #[arg(value_name = "DISK")]
    disk: PathBuf,
    /// The volume's name
    #[arg(value_name = "NAME")]
    name: String,
}

/// A volume. Field names are a contract.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shown {
    name: String,
    size_bytes: u64,
    /// What it takes on the disk, without the maps.
    allocated_bytes: u64,
    list: u64,
}

impl Shown {
    /// A volume on a disk with such blocks.
    pub fn new(volume: VolumeInfo, block_size: u32) -> Self {
        let allocated_bytes = volume.blocks * u64::from(block_size);
        Self { name: volume.name, size_bytes: volume.bytes, allocated_bytes, list: volume.list }
    }

    /// It in a line.
    pub fn line(&self) -> String {
        let (all, taken) = (size::show(self.size_bytes), size::show(self.allocated_bytes));
        format!("{}: {all}, of which {taken} is stored", self.name)
    }
}

/// Runs `lld volume`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    match &arguments.command {
        Command::Create(at) => change(
            &at.disk,
            &at.name,
            |volumes| volumes.create(&at.name, at.size),
            &Request::Create { name: at.name.clone(), size_bytes: at.size },
        ),
        Command::Resize(at) => change(
            &at.disk,
            &at.name,
            |volumes| volumes.resize(&at.name, at.size),
            &Request::Resize { name: at.name.clone(), size_bytes: at.size },
        ),
        Command::Remove(at) => change(
            &at.disk,
            &at.name,
            |volumes| volumes.remove(&at.name),
            &Request::Remove { name: at.name.clone() },
        ),
        Command::List(arguments) => list(arguments),
    }
}

/// Changes the volumes of a disk, or has the server do it that has the disk.
fn change(
    disk: &Path,
    name: &str,
    work: impl FnOnce(&Volumes) -> fstitch_core::Result<()>,
    request: &Request,
) -> Result<Outcome> {
    if is_socket(disk) {
        Client::new(disk)?.ask(request).with_context(|| disk.display().to_string())?;
        return Ok(Outcome::SUCCESS);
    }
    let volumes = super::open_volumes(disk)?;
    work(&volumes).with_context(|| format!("volume {name} of {}", disk.display()))?;
    volumes.disk().checkpoint().with_context(|| disk.display().to_string())?;
    Ok(Outcome::SUCCESS)
}

fn list(arguments: &List) -> Result<Outcome> {
    let shown = if is_socket(&arguments.disk) { served(&arguments.disk)? } else { stored(&arguments.disk)? };
    if arguments.json {
        json(&shown)?;
    } else {
        text(&shown.iter().map(|volume| volume.line() + "\n").collect::<String>())?;
    }
    Ok(Outcome::SUCCESS)
}

fn served(control: &Path) -> Result<Vec<Shown>> {
    match Client::new(control)?.ask(&Request::Volumes)? {
        Answer::Volumes(volumes) => Ok(volumes),
        other => bail!("{}: an unexpected answer: {other:?}", control.display()),
    }
}

fn stored(path: &Path) -> Result<Vec<Shown>> {
    let (disk, _) = super::open(path, &Options { read_only: true, ..Options::default() })?;
    let block_size = disk.info().block_size;
    let volumes = match disk.info().lists {
        0 => Vec::new(),
        _ => Volumes::open(disk).with_context(|| path.display().to_string())?.list()?,
    };
    Ok(volumes.into_iter().map(|volume| Shown::new(volume, block_size)).collect())
}
