//! `fstitch snapshot`: snapshots of a volume. The daemon of one that is mounted makes and removes them, under the programs that use it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use fstitch_formats::{Snapshot, Snapshots};
use serde_json::{Map, Value};

use crate::control::client;
use crate::control::{Request, Response, SnapshotChange};
use crate::open::{self, Access};
use crate::output::{Outcome, json, text};

/// What is said of other formats.
pub const NONE: &str = "volumes of this format have no snapshots; those of waffle have";

/// Arguments of `snapshot`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep the volume as it is now under a name; it can be read in `.snapshots` of its root directory
    Create(Named),
    /// List the snapshots, in the order in which they were made
    List(List),
    /// Remove a snapshot, and free what no other one has
    Remove(Named),
}

#[derive(clap::Args)]
struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device, or where it is mounted
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

#[derive(clap::Args)]
struct Named {
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device, or where it is mounted
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The snapshot: a name without `/`
    #[arg(value_name = "NAME")]
    name: String,
}

/// Runs `snapshot`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let (named, change, done) = match &arguments.command {
        Command::List(list) => return show(list),
        Command::Create(named) => (named, SnapshotChange::Create(named.name.clone()), "made"),
        Command::Remove(named) => (named, SnapshotChange::Remove(named.name.clone()), "removed"),
    };
    ask(&named.volume, &named.image, Some(&change))?;
    text(&format!("{}: snapshot `{}` was {done}\n", named.image.display(), named.name))?;
    Ok(Outcome::SUCCESS)
}

fn show(list: &List) -> Result<Outcome> {
    let all = ask(&list.volume, &list.image, None)?;
    if list.json {
        let shown = Map::from_iter([
            ("image".to_owned(), Value::from(list.image.display().to_string())),
            ("snapshots".to_owned(), serde_json::to_value(&all)?),
        ]);
        json(&shown)?;
        return Ok(Outcome::SUCCESS);
    }
    let mut shown = String::new();
    for snapshot in &all {
        writeln!(shown, "{}  {:>10} inodes  {}", snapshot.made, snapshot.inodes, snapshot.name)?;
    }
    text(&shown)?;
    Ok(Outcome::SUCCESS)
}

/// Changes the snapshots of a volume, whoever has it, if that is asked for, and lists them.
fn ask(volume: &open::Arguments, image: &Path, change: Option<&SnapshotChange>) -> Result<Vec<Snapshot>> {
    let name = || format!("{}", image.display());
    if let Some(mut daemon) = client::of_volume(image, || volume.start(image))? {
        return match daemon.ask(&Request::Snapshots { change: change.cloned() })? {
            Response::Snapshots(all) => Ok(all),
            Response::Error(text) => bail!("{}: {text}", name()),
            other => bail!("an unexpected answer: {other:?}"),
        };
    }
    let access = if change.is_some() { Access::ReadWrite } else { Access::ReadOnly };
    let opened = volume.open_kept(image, access)?;
    let format = opened.format.snapshots();
    let format = format.with_context(|| format!("{}: {NONE}", name()))?;
    let (mut all, mut done) = (Vec::new(), Ok(()));
    let mut work = |snapshots: &dyn Snapshots| {
        done = change.map_or(Ok(()), |change| change.apply(snapshots));
        all = snapshots.list();
        Ok(())
    };
    format.with(&*opened.device, access == Access::ReadOnly, &mut work).with_context(name)?;
    if access == Access::ReadWrite {
        opened.close()?;
    }
    done.with_context(name)?;
    Ok(all)
}
