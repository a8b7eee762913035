//! `fstitch mkdir`, `mv` and `ln`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, bail, ensure};
use fstitch_core::{Errno, FileKind, RenameMode, SetAttr};

use super::mode::Change;
use super::{CALLER, Editing, Place, USAGE, each, join, with};
use crate::open;
use crate::output::Outcome;
use crate::paths::{Held, Last, split};

/// The mode of directories when nothing else is said.
const DIRECTORY_MODE: u16 = 0o755;

/// Arguments of `mkdir`.
#[derive(clap::Args)]
pub struct Mkdir {
    /// Make what is missing above them, too; directories that are there are no error
    #[arg(short, long)]
    parents: bool,
    /// Mode, in octal or as in u=rwx,go=rx
    #[arg(short, long, value_parser = Change::parse)]
    mode: Option<Change>,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to make
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    places: Vec<OsString>,
}

/// Runs `mkdir`.
pub fn mkdir(arguments: &Mkdir) -> Result<Outcome> {
    let places = match Place::parse_all(&arguments.places) {
        Ok(places) => places,
        Err(outcome) => return Ok(outcome),
    };
    let mode = arguments.mode.as_ref().map_or(DIRECTORY_MODE, |change| change.apply(DIRECTORY_MODE, true));
    each(&arguments.volume, &places, &mut |editing, path| {
        if arguments.parents {
            if editing.kind(path, Last::Follow) == Some(FileKind::Directory) {
                return Ok(());
            }
            make_above(editing, path)?;
        }
        make(editing, path, mode)
    })
}

/// Makes the directories above `path` that are missing.
fn make_above(editing: &Editing<'_>, path: &[u8]) -> Result<()> {
    let ends = path.iter().enumerate().skip(1).filter(|&(at, &byte)| byte == b'/' && path[at - 1] != b'/');
    for (end, _) in ends {
        let above = &path[..end];
        if path[end..].iter().all(|&byte| byte == b'/') || editing.kind(above, Last::Follow).is_some() {
            continue;
        }
        make(editing, above, DIRECTORY_MODE)?;
    }
    Ok(())
}

fn make(editing: &Editing<'_>, path: &[u8], mode: u16) -> Result<()> {
    let (parent, name) = editing.parent(path)?;
    let made = editing.fs.mkdir(&CALLER, parent.ino(), name, mode & 0o777)?;
    let made = Held::new(editing.fs, made.attr.ino);
    let attr = made.attr()?;
    // A set-group-id bit comes from the directory above as well.
    let wanted = mode | (attr.perm & 0o2000);
    if attr.perm != wanted {
        let set = SetAttr { perm: Some(wanted), ..SetAttr::default() };
        editing.fs.setattr(&CALLER, made.ino(), &set)?;
    }
    Ok(())
}

/// Arguments of `mv`.
#[derive(clap::Args)]
pub struct Mv {
    /// Replace what is there (default)
    #[arg(short, long, overrides_with = "no_clobber")]
    force: bool,
    /// Leave what is there alone
    #[arg(short, long, overrides_with = "force")]
    no_clobber: bool,
    /// The destination is a name, not a directory to move into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to move; all in one image
    #[arg(required = true, value_name = "IMAGE:/SOURCE")]
    sources: Vec<OsString>,
    /// Where to; an existing directory receives the sources
    #[arg(value_name = "IMAGE:/DESTINATION")]
    destination: OsString,
}

/// Runs `mv`.
pub fn mv(arguments: &Mv) -> Result<Outcome> {
    let parsed =
        Place::parse(&arguments.destination).and_then(|to| Ok((Place::parse_all(&arguments.sources)?, to)));
    let (sources, to) = match parsed {
        Ok(parsed) => parsed,
        Err(outcome) => return Ok(outcome),
    };
    if sources.iter().any(|source| source.image != to.image) {
        eprintln!("fstitch: names move inside one image: `fstitch cp` copies from one to another");
        return Ok(USAGE);
    }
    if arguments.no_target_directory && sources.len() > 1 {
        eprintln!("fstitch: several sources need a directory as destination, without -T");
        return Ok(USAGE);
    }
    each(&arguments.volume, &sources, &mut |editing, path| {
        let into = !arguments.no_target_directory
            && editing.kind(&to.path, Last::Follow) == Some(FileKind::Directory);
        ensure!(into || sources.len() == 1, "several sources need a directory as destination");
        let target = if into { join(&to.path, split(path)?.1) } else { to.path.clone() };
        let ((from, name), (parent, new)) = (editing.parent(path)?, editing.parent(&target)?);
        let mode = if arguments.no_clobber { RenameMode::NoReplace } else { RenameMode::Replace };
        match editing.fs.rename(&CALLER, (from.ino(), name), (parent.ino(), new), mode) {
            Err(error) if arguments.no_clobber && error.errno() == Errno::EXIST => Ok(()),
            Err(error) if error.errno() == Errno::INVAL => bail!("a directory cannot move into itself"),
            moved => Ok(moved?),
        }
    })
}

/// Arguments of `ln`.
#[derive(clap::Args)]
pub struct Ln {
    /// Make a symbolic link; TARGET is what it says, not a place in an image
    #[arg(short, long)]
    symbolic: bool,
    /// Replace what is there, unless it is a directory
    #[arg(short, long)]
    force: bool,
    /// LINK is a name, not a directory to make it in
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to link to: IMAGE:/path, or with -s any text
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The new name; an existing directory receives it
    #[arg(value_name = "IMAGE:/LINK")]
    link: OsString,
}

/// Runs `ln`.
pub fn ln(arguments: &Ln) -> Result<Outcome> {
    let link = match Place::parse(&arguments.link) {
        Ok(link) => link,
        Err(outcome) => return Ok(outcome),
    };
    let target = match arguments.symbolic {
        true => arguments.target.as_bytes().to_vec(),
        false => match Place::parse(&arguments.target) {
            Ok(target) if target.image == link.image => target.path,
            Ok(_) => {
                eprintln!("fstitch: a hard link and what it links to are in one image");
                return Ok(USAGE);
            }
            Err(outcome) => return Ok(outcome),
        },
    };
    let failed = with(&arguments.volume, &link, &mut |editing| {
        let into = !arguments.no_target_directory
            && editing.kind(&link.path, Last::Follow) == Some(FileKind::Directory);
        let done = match (into, split(&target)) {
            (false, _) => make_link(arguments, editing, &target, &link.path),
            (true, Ok((_, name))) => make_link(arguments, editing, &target, &join(&link.path, name)),
            (true, Err(error)) => Err(error),
        };
        editing.tried(&link.path, done);
    })?;
    Ok(if failed == 0 { Outcome::SUCCESS } else { Outcome::FAILURE })
}

fn make_link(arguments: &Ln, editing: &Editing<'_>, target: &[u8], link: &[u8]) -> Result<()> {
    let fs = editing.fs;
    let (parent, name) = editing.parent(link)?;
    let old = if arguments.symbolic { None } else { Some(editing.resolve(target, Last::Keep)?) };
    if arguments.force
        && let Ok(entry) = fs.lookup(parent.ino(), name)
    {
        let there = Held::new(fs, entry.attr.ino);
        // The same file under both names: removing one could remove the last.
        ensure!(
            old.as_ref().is_none_or(|old| old.ino() != there.ino()),
            "both names are the same file already"
        );
        fs.unlink(&CALLER, parent.ino(), name)?;
    }
    let made = match &old {
        None => fs.symlink(&CALLER, parent.ino(), name, target)?,
        Some(old) => fs.link(&CALLER, old.ino(), parent.ino(), name)?,
    };
    drop(Held::new(fs, made.attr.ino));
    Ok(())
}
