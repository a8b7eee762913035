//! `fstitch disk`: the disks of a volume that is on several.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fstitch_disk::Direct;

use super::change::{Change, NOT_SEVERAL};
use super::{DiskList, list, rebuild};
use crate::control::client::if_mounted;
use crate::control::{Request, Response};
use crate::open::{self, Access};
use crate::output::{Outcome, json, text};
use crate::shepherd::Kept;

/// Arguments of `disk`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show the disks of a volume, and how they stand
    List(List),
    /// Put another disk in the place of one, and rebuild it
    Replace(Replace),
    /// Add a hot spare, which takes the place of the first disk that fails
    Add(Add),
    /// Take a hot spare away, or put a disk out
    Remove(Remove),
    /// Go on with rebuilding disks that were replaced, of a volume that is not mounted
    Rebuild(Rebuild),
}

#[derive(clap::Args)]
struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The mount point of a volume that is mounted; or its disks, with commas between them
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

#[derive(clap::Args)]
struct Replace {
    /// Whatever is on the new disk, and whatever only the old one has
    #[arg(long)]
    force: bool,
    /// At most so many bytes a second, if the volume is not mounted (a mount has `-o rebuild_rate=`)
    #[arg(long, value_name = "BYTES", value_parser = crate::size::bytes)]
    rate: Option<u64>,
    /// The mount point of a volume that is mounted; or its disks, with commas between them
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Which disk, by its number or its name
    #[arg(value_name = "DISK")]
    disk: String,
    /// The new disk; an image file is made if it is not there
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

#[derive(clap::Args)]
struct Add {
    /// Whatever is on it
    #[arg(long)]
    force: bool,
    /// The mount point of a volume that is mounted; or its disks, with commas between them
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The hot spare; an image file is made if it is not there
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

#[derive(clap::Args)]
struct Remove {
    /// Whatever only this disk has
    #[arg(long)]
    force: bool,
    /// The mount point of a volume that is mounted; or its disks, with commas between them
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Which disk, by its number or its name
    #[arg(value_name = "DISK")]
    disk: String,
}

#[derive(clap::Args)]
struct Rebuild {
    /// At most so many bytes a second
    #[arg(long, value_name = "BYTES", value_parser = crate::size::bytes)]
    rate: Option<u64>,
    /// The disks of the volume, with commas between them
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// Runs `disk`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    match &arguments.command {
        Command::List(arguments) => show(arguments),
        Command::Replace(Replace { force, rate, image, disk, new }) => {
            let change = Change::Replace { disk: named(disk)?, new: absolute(new)?, force: *force };
            apply(image, &change, *rate)
        }
        Command::Add(Add { force, image, new }) => {
            apply(image, &Change::Add { new: absolute(new)?, force: *force }, None)
        }
        Command::Remove(Remove { force, image, disk }) => {
            apply(image, &Change::Remove { disk: named(disk)?, force: *force }, None)
        }
        Command::Rebuild(Rebuild { rate, image }) => {
            if if_mounted(image)?.is_some() {
                bail!(
                    "{}: it is mounted, and rebuilt there: `fstitch disk list` shows how far",
                    image.display()
                );
            }
            unmounted(image, None, *rate)
        }
    }
}

/// A mount's daemon is in another directory.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}

/// A disk by its number, or by its path wherever that is asked for.
fn named(disk: &str) -> Result<String> {
    if disk.parse::<usize>().is_ok() || !Path::new(disk).exists() {
        return Ok(disk.to_owned());
    }
    Ok(absolute(Path::new(disk))?.display().to_string())
}

fn show(arguments: &List) -> Result<Outcome> {
    let found = match if_mounted(&arguments.image)? {
        Some(mut connection) => answer(connection.ask(&Request::Disks)?)?.0,
        None => {
            let kept = opened(&arguments.image, Access::ReadOnly)?;
            list(kept.disks().context(NOT_SEVERAL)?)
        }
    };
    if arguments.json {
        json(&found)?;
    } else {
        text(&format!("{}: array {}\n{}", arguments.image.display(), found.array, found.describe()))?;
    }
    Ok(Outcome::SUCCESS)
}

/// Opens the disks alone: what is on them need not be readable.
fn opened(image: &Path, access: Access) -> Result<Kept> {
    if !super::is_several(image) {
        bail!(
            "{}",
            super::alone(image)
                .map_or_else(|| format!("{}: {NOT_SEVERAL}", image.display()), |error| error.to_string())
        );
    }
    let (kept, _) = open::array(image, access, Direct::Auto, None)?;
    Ok(kept)
}

fn answer(response: Response) -> Result<(DiskList, String)> {
    match response {
        Response::Disks { list, said } => Ok((list, said)),
        Response::Error(reason) => bail!("{reason}"),
        other => bail!("an unexpected answer: {other:?}"),
    }
}

fn apply(image: &Path, change: &Change, rate: Option<u64>) -> Result<Outcome> {
    match if_mounted(image)? {
        Some(mut connection) => {
            let (list, said) = answer(connection.ask(&Request::Disk { change: change.clone() })?)?;
            text(&format!("{said}\n{}", list.describe()))?;
            Ok(Outcome::SUCCESS)
        }
        None => unmounted(image, Some(change), rate),
    }
}

fn unmounted(image: &Path, change: Option<&Change>, rate: Option<u64>) -> Result<Outcome> {
    let kept = opened(image, Access::ReadWrite)?;
    let disks = kept.disks().context(NOT_SEVERAL)?;
    if let Some(change) = change {
        text(&format!("{}\n", change.apply(&kept)?))?;
    }
    let lost = rebuild::all(&kept, rate, false)?;
    if lost > 0 {
        text(&format!(
            "{lost} blocks had no copy on another disk, free ones among them: `fstitch health` names what is lost\n"
        ))?;
    }
    let now = list(disks);
    kept.close()?;
    text(&format!("the volume is {} now\n{}", disks.list(), now.describe()))?;
    Ok(Outcome::SUCCESS)
}
