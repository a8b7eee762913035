//! `fstitch rm`.

use std::ffi::OsString;

use anyhow::{Result, bail, ensure};
use fstitch_core::{Errno, FileKind};

use super::{CALLER, DEPTH_MAX, Editing, Place, each, join, names};
use crate::open;
use crate::output::Outcome;
use crate::paths::Held;

/// Arguments of `rm`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Remove directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Say nothing of what is not there
    #[arg(short, long)]
    force: bool,
    /// Remove empty directories, too
    #[arg(short, long)]
    dir: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to remove; a symbolic link itself
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    places: Vec<OsString>,
}

/// Runs `rm`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let places = match Place::parse_all(&arguments.places) {
        Ok(places) => places,
        Err(outcome) => return Ok(outcome),
    };
    each(&arguments.volume, &places, &mut |editing, path| {
        let (parent, name) = editing.parent(path)?;
        match editing.fs.lookup(parent.ino(), name) {
            Err(error) if arguments.force && error.errno() == Errno::NOENT => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(entry) => drop(Held::new(editing.fs, entry.attr.ino)),
        }
        remove(arguments, editing, (&parent, name), path, 0)
    })
}

/// Removes a name, and first what is below it. Fails where something was left, of which the innermost was reported.
fn remove(
    arguments: &Arguments,
    editing: &mut Editing<'_>,
    (parent, name): (&Held<'_>, &[u8]),
    path: &[u8],
    depth: usize,
) -> Result<()> {
    ensure!(depth <= DEPTH_MAX, "directories nest deeper than {DEPTH_MAX}");
    let fs = editing.fs;
    let entry = fs.lookup(parent.ino(), name)?;
    let node = Held::new(fs, entry.attr.ino);
    if entry.attr.kind != FileKind::Directory {
        return Ok(fs.unlink(&CALLER, parent.ino(), name)?);
    }
    if !arguments.recursive && !arguments.dir {
        bail!("it is a directory: add -r");
    }
    if arguments.recursive {
        for below in names(fs, &node)? {
            let path = join(path, &below);
            let removed = remove(arguments, editing, (&node, &below), &path, depth + 1);
            editing.tried(&path, removed);
        }
    }
    Ok(fs.rmdir(&CALLER, parent.ino(), name)?)
}
