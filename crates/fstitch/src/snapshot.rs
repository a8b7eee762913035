//! `fstitch snapshot`: snapshots of a volume. The daemon of one that is mounted makes and removes them, under the programs that use it.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Subcommand;
use fstitch_core::Errno;
use fstitch_formats::{Snapshot, Snapshots, TreeKind};
use indicatif::{ProgressBar, ProgressStyle};
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
    Remove(Removed),
    /// Make a clone of a snapshot: it can be mounted by itself (`mount -o tree=NAME`) and changed, and shares what has not changed
    Clone(Cloned),
    /// Write a snapshot to standard output, for `receive` on another volume
    Send(Sent),
    /// Take in what `send` writes, from standard input: it becomes a snapshot of a tree that only streams change
    Receive(Received),
}

#[derive(clap::Args)]
struct Sent {
    #[command(flatten)]
    named: Named,
    /// Only what it has beyond this snapshot, which the other volume has
    #[arg(long, value_name = "SNAPSHOT")]
    since: Option<String>,
}

#[derive(clap::Args)]
struct Received {
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device, which is not mounted
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The tree, which is made for the first stream: a name without `/`
    #[arg(value_name = "TREE")]
    tree: String,
}

#[derive(clap::Args)]
struct Removed {
    #[command(flatten)]
    named: Named,
    /// It is a clone, and what was changed in it is lost
    #[arg(long)]
    clone: bool,
}

#[derive(clap::Args)]
struct Cloned {
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
        Command::Send(asked) => return send(asked),
        Command::Receive(asked) => return receive(asked),
        Command::Create(Named { volume, image, name }) => {
            (volume, image, SnapshotChange::Create(name.clone()), format!("snapshot `{name}` was made"))
        }
        Command::Remove(Removed { named: Named { volume, image, name }, clone: false }) => {
            (volume, image, SnapshotChange::Remove(name.clone()), format!("snapshot `{name}` was removed"))
        }
        Command::Remove(Removed { named: Named { volume, image, name }, clone: true }) => {
            (volume, image, SnapshotChange::RemoveClone(name.clone()), format!("clone `{name}` was removed"))
        }
        Command::Clone(Cloned { volume, image, snapshot, name }) => {
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
            (TreeKind::Receiver, _) if !snapshot.whole => {
                "  (was being received, and is not whole)".to_owned()
            }
            (TreeKind::Receiver, _) => "  (receives snapshots)".to_owned(),
            (TreeKind::Clone, of) => format!("  (a clone of {of})"),
            (TreeKind::Snapshot, "") => String::new(),
            (TreeKind::Snapshot, of) => format!("  (of {of})"),
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

/// What is said where a snapshot cannot be sent.
pub fn said(done: fstitch_core::Result<()>, name: &str, since: Option<&str>) -> Result<()> {
    done.map_err(|error| match (error.errno(), since) {
        (Errno::NOENT, None) => anyhow!("there is no snapshot `{name}`"),
        (Errno::NOENT, Some(since)) => anyhow!("there is no snapshot `{name}`, or none `{since}`"),
        (errno, _) if errno.0 == rustix::io::Errno::PIPE.raw_os_error() => {
            anyhow!("nobody takes the stream any more")
        }
        _ => error.into(),
    })
}

/// Bytes so far, for who watches.
fn meter(what: &str) -> Result<ProgressBar> {
    let bar = if io::stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template(&format!("{what} {{bytes}}, {{bytes_per_sec}}"))?);
    Ok(bar)
}

fn send(asked: &Sent) -> Result<Outcome> {
    let Sent { named: Named { volume, image, name }, since } = asked;
    let told = || format!("{}", image.display());
    let out = io::stdout();
    ensure!(!out.is_terminal(), "standard output is a terminal: a stream goes to a file or a pipe");
    // Past the buffer of lines that standard output has.
    let mut out = BufWriter::with_capacity(1 << 18, File::from(out.as_fd().try_clone_to_owned()?));
    if let Some(mut daemon) = client::of_volume(image, || volume.start(image))? {
        match daemon.ask(&Request::Send { name: name.clone(), since: since.clone() })? {
            Response::Sending => {}
            Response::Error(text) => bail!("{}: {text}", told()),
            other => bail!("an unexpected answer: {other:?}"),
        }
        let copied = streams()?.copy_stream(daemon.rest(), &mut out);
        copied.with_context(|| format!("{}: the daemon did not send all of it; its log says why", told()))?;
        return Ok(Outcome::SUCCESS);
    }
    let opened = volume.open_kept(image, Access::ReadOnly)?;
    let format = opened.format.snapshots().with_context(|| format!("{}: {NONE}", told()))?;
    let bar = meter("sent")?;
    let mut done = Ok(());
    let mut work = |snapshots: &dyn Snapshots| {
        done = said(
            snapshots.send(name, since.as_deref(), &mut out, &mut |bytes| bar.set_position(bytes)),
            name,
            since.as_deref(),
        );
        Ok(())
    };
    format.with(&*opened.device, true, &mut work).with_context(told)?;
    bar.finish_and_clear();
    done.with_context(told)?;
    Ok(Outcome::SUCCESS)
}

/// The format that has streams.
fn streams() -> Result<&'static dyn fstitch_formats::HasSnapshots> {
    fstitch_formats::FORMATS.iter().find_map(|format| format.snapshots()).context(NONE)
}

fn receive(asked: &Received) -> Result<Outcome> {
    let Received { volume, image, tree } = asked;
    let told = || format!("{}", image.display());
    if client::of_volume(image, || volume.start(image))?.is_some() {
        bail!("{}: it is mounted: a volume takes streams in while nobody uses it", told());
    }
    let opened = volume.open_kept(image, Access::ReadWrite)?;
    let format = opened.format.snapshots().with_context(|| format!("{}: {NONE}", told()))?;
    let bar = meter("received")?;
    let mut input = BufReader::with_capacity(1 << 18, io::stdin());
    let name = format.receive(&*opened.device, tree, &mut input, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    let name = name.with_context(told)?;
    opened.close()?;
    text(&format!("{}: snapshot `{name}` was received in `{tree}`\n", told()))?;
    Ok(Outcome::SUCCESS)
}
