//! `fstitch snapshot`: snapshots of a volume. The daemon of one that is mounted makes and removes them, under the programs that use it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use fstitch_formats::{Snapshot, Snapshots, TreeKind};
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
    /// List the snapshots and clones, in the order in which they were made
    List(List),
    /// Remove a snapshot, and free what no other one has
    Remove(Remove),
    /// Make a clone of a snapshot: it can be mounted by itself (`mount -o tree=NAME`) and changed, and shares what has not changed
    Clone(Clone),
}

#[derive(clap::Args)]
struct Remove {
    #[command(flatten)]
    named: Named,
    /// It is a clone, and what was changed in it is lost
    #[arg(long)]
    clone: bool,
}

#[derive(clap::Args)]
struct Clone {
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device, or where it is mounted
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The snapshot that it begins as
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
    /// What it is called: a name without `/`
    #[arg(value_name = "NAME")]
    name: String,
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
    let (volume, image, change, done) = match &arguments.command {
        Command::List(list) => return show(list),
        Command::Create(Named { volume, image, name }) => {
            (volume, image, SnapshotChange::Create(name.clone()), format!("snapshot `{name}` was made"))
        }
        Command::Remove(Remove { named: Named { volume, image, name }, clone: false }) => {
            (volume, image, SnapshotChange::Remove(name.clone()), format!("snapshot `{name}` was removed"))
        }
        Command::Remove(Remove { named: Named { volume, image, name }, clone: true }) => {
            (volume, image, SnapshotChange::RemoveClone(name.clone()), format!("clone `{name}` was removed"))
        }
        Command::Clone(Clone { volume, image, snapshot, name }) => {
            let change = SnapshotChange::Clone { snapshot: snapshot.clone(), name: name.clone() };
            (volume, image, change, format!("clone `{name}` of snapshot `{snapshot}` was made"))
        }
    };
    ask(volume, image, Some(&change))?;
    text(&format!("{}: {done}\n", image.display()))?;
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
        let of = match (snapshot.kind, snapshot.of.as_str()) {
            (TreeKind::Clone, of) => format!("  (a clone of {of})"),
            (TreeKind::Snapshot, "") => String::new(),
            (TreeKind::Snapshot, of) => format!("  (of the clone {of})"),
        };
        writeln!(shown, "{}  {:>10} inodes  {}{of}", snapshot.made, snapshot.inodes, snapshot.name)?;
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
