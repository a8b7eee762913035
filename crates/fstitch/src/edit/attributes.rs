//! `fstitch chmod` and `chown`.

use std::ffi::OsString;

use anyhow::Result;
use fstitch_core::{FileKind, FileSystem, SetAttr};

use super::mode::Change;
use super::owner::{Asked, Ids};
use super::{CALLER, Place, USAGE, each};
use crate::open;
use crate::output::Outcome;
use crate::paths::{Held, Last};

/// Arguments of `chmod`.
#[derive(clap::Args)]
pub struct Chmod {
    /// Change directories with all that is in them; symbolic links found there are left alone
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// The mode, in octal or as in u+x,go-w (write a-x instead of -x)
    #[arg(value_name = "MODE", value_parser = Change::parse)]
    mode: Change,
    /// What to change; symbolic links are followed
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    places: Vec<OsString>,
}

/// Runs `chmod`.
pub fn chmod(arguments: &Chmod) -> Result<Outcome> {
    let places = match Place::parse_all(&arguments.places) {
        Ok(places) => places,
        Err(outcome) => return Ok(outcome),
    };
    let mut change = |fs: &dyn FileSystem, node: &Held<'_>| {
        let attr = node.attr()?;
        let perm = arguments.mode.apply(attr.perm, attr.kind == FileKind::Directory);
        if attr.kind != FileKind::Symlink && perm != attr.perm {
            fs.setattr(&CALLER, node.ino(), &SetAttr { perm: Some(perm), ..SetAttr::default() })?;
        }
        Ok(())
    };
    each(&arguments.volume, &places, &mut |editing, path| {
        let node = editing.resolve(path, Last::Follow)?;
        match arguments.recursive {
            true => editing.walk((path, &node), 0, &mut change),
            false => change(editing.fs, &node),
        }
    })
}

/// Arguments of `chown`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Chown {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Change directories with all that is in them; symbolic links found there are changed themselves
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links themselves, not what they point at
    #[arg(short = 'h', long)]
    no_dereference: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// The owner, the group, or both: numbers, or names that are looked up in the image's /etc, then in this machine's
    #[arg(value_name = "USER[:GROUP]")]
    owner: String,
    /// What to change
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    places: Vec<OsString>,
}

/// Runs `chown`.
pub fn chown(arguments: &Chown) -> Result<Outcome> {
    let places = match Place::parse_all(&arguments.places) {
        Ok(places) => places,
        Err(outcome) => return Ok(outcome),
    };
    let asked = match Asked::parse(&arguments.owner) {
        Ok(asked) => asked,
        Err(text) => {
            eprintln!("fstitch: {text}");
            return Ok(USAGE);
        }
    };
    each(&arguments.volume, &places, &mut |editing, path| {
        let Ids { uid, gid } = asked.ids(editing.fs)?;
        let mut change = |fs: &dyn FileSystem, node: &Held<'_>| {
            fs.setattr(&CALLER, node.ino(), &SetAttr { uid, gid, ..SetAttr::default() })?;
            Ok(())
        };
        let last = if arguments.no_dereference { Last::Keep } else { Last::Follow };
        let node = editing.resolve(path, last)?;
        match arguments.recursive {
            true => editing.walk((path, &node), 0, &mut change),
            false => change(editing.fs, &node),
        }
    })
}
