//! `fstitch cp`: trees between this machine and images, in either direction, without a mount.

mod ahead;
mod archive;
mod engine;
mod host;
mod tree;
mod volume;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::{FileKind, FileSystem};

use crate::location::Location;
use crate::open::{self, Access};
use crate::output::{Outcome, spinner, usage};
use crate::paths::{Held, Last};
use ahead::Ahead;
use archive::Archive;
use engine::{Copier, Follow, Full, Rules, Totals};
use host::{HostNode, HostTree};
use tree::{Source, Target};
use volume::VolumeTree;

/// Arguments of `cp`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// Copy directories with all that is in them, and pipes and devices as such
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// As -r -P
    #[arg(short, long)]
    archive: bool,
    #[command(flatten)]
    links: Links,
    /// Give everything this owner and group instead of those of the source
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to copy: paths of this machine, or IMAGE:/path; of DIRECTORY/. what is in it, and its own attributes
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<std::ffi::OsString>,
    /// Where to: a path of this machine, or IMAGE:/path; an existing directory receives the sources
    #[arg(value_name = "DESTINATION")]
    destination: std::ffi::OsString,
}

/// What becomes of symbolic links.
#[derive(clap::Args, Clone, Copy)]
struct Links {
    /// Copy symbolic links as links (default with -r)
    #[arg(short = 'P', long, overrides_with_all = ["dereference", "named"])]
    no_dereference: bool,
    /// Copy what symbolic links point at (default without -r)
    #[arg(short = 'L', long, overrides_with_all = ["no_dereference", "named"])]
    dereference: bool,
    /// Follow symbolic links that are named as sources, not those found in directories
    #[arg(short = 'H', long = "dereference-command-line", overrides_with_all = ["no_dereference", "dereference"])]
    named: bool,
}

const HELP: &str = "\
Modes, owners, times, links, holes and extended attributes are kept. What could not be kept is an error that names the file;
the rest is copied all the same, and the exit status is 1. Out of an image, only root keeps owners and set-id bits.
With SOURCE_DATE_EPOCH in the environment, no time is later than that, and the same sources give the same image.";

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').ok_or("write UID:GID, such as 1000:1000")?;
    let number = |part: &str| part.parse().map_err(|_| format!("`{part}` is not a number"));
    Ok((number(uid)?, number(gid)?))
}

impl Arguments {
    fn rules(&self) -> Result<Rules> {
        let recursive = self.recursive || self.archive;
        let follow = match self.links {
            Links { dereference: true, .. } => Follow::Always,
            Links { named: true, .. } => Follow::Named,
            Links { no_dereference: true, .. } => Follow::Never,
            _ if recursive => Follow::Never,
            _ => Follow::Always,
        };
        let epoch = if self.is_into_image() { crate::epoch::asked()? } else { None };
        Ok(Rules { owner: self.owner, follow, recursive, epoch })
    }

    fn is_into_image(&self) -> bool {
        matches!(Location::parse(&self.destination), Location::Image { .. })
    }
}

/// Runs `cp`. What could not be copied is reported; the rest is copied all the same.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let sources: Vec<Location> = arguments.sources.iter().map(|text| Location::parse(text)).collect();
    let mut totals = Totals::new(spinner(arguments.quiet));
    match Location::parse(&arguments.destination) {
        Location::Host(target) => to_host(arguments, &sources, &target, &mut totals)?,
        Location::Image { image, path } => to_image(arguments, &sources, (&image, &path), &mut totals)?,
    }
    totals.finish();
    Ok(if totals.errors == 0 { Outcome::SUCCESS } else { Outcome::FAILURE })
}

fn to_host(arguments: &Arguments, sources: &[Location], target: &Path, totals: &mut Totals) -> Result<()> {
    let rules = arguments.rules()?;
    let directory = target.is_dir();
    ensure!(directory || sources.len() == 1, "several sources need a directory as destination");
    for source in sources {
        let (image, path) = match source {
            Location::Image { image, path } => (image, path),
            Location::Host(path) => {
                return Err(usage(format!(
                    "neither {} nor {} is inside an image: use cp(1), or write the image's side as IMAGE:/path",
                    path.display(),
                    target.display()
                )));
            }
        };
        let (parent, name) = match directory {
            true => (target.to_path_buf(), None),
            false => {
                let name = target.file_name().context("the destination has no name")?.as_bytes().to_vec();
                (parent_of(target), Some(name))
            }
        };
        ensure!(parent.is_dir(), "{} is not a directory", parent.display());
        let volume = arguments.volume.open(image, Access::ReadOnly)?;
        let tree = VolumeTree::new(&*volume.fs, image);
        let host = HostTree::with_target(parent.clone());
        let mut plan = Plan { from: &tree, to: &host, rules, totals: &mut *totals };
        let node = tree.resolve(path, Last::Keep);
        plan.copy(node, path, (&HostNode::new(parent), name))?;
    }
    Ok(())
}

fn to_image(
    arguments: &Arguments,
    sources: &[Location],
    (image, target): (&Path, &[u8]),
    totals: &mut Totals,
) -> Result<()> {
    let volume = arguments.volume.open(image, Access::ReadWrite)?;
    let result = into_volume(arguments, sources, (&*volume.fs, image), target, totals);
    // The volume is closed in an orderly way whatever happened: what was copied so far is whole.
    volume.close().with_context(|| format!("closing {}", image.display()))?;
    result.with_context(|| format!("in {}", image.display()))
}

fn into_volume(
    arguments: &Arguments,
    sources: &[Location],
    (fs, image): (&dyn FileSystem, &Path),
    target: &[u8],
    totals: &mut Totals,
) -> Result<()> {
    let rules = arguments.rules()?;
    let (tree, host) = (VolumeTree::new(fs, image), HostTree::new());
    let existing: Option<Held<'_>> = tree.resolve(target, Last::Follow).ok();
    let directory = match &existing {
        Some(node) => node.attr()?.kind == FileKind::Directory,
        None => false,
    };
    ensure!(directory || sources.len() == 1, "several sources need a directory as destination");
    for source in sources {
        let Location::Host(path) = source else {
            return Err(usage(
                "copying from one image to another is not offered: copy to a directory in between",
            ));
        };
        let (parent, name) = match directory {
            true => (tree.resolve(target, Last::Follow)?, name_of_dots(path)),
            false => (tree.resolve(parent_bytes(target), Last::Follow)?, Some(base_name(target)?)),
        };
        let mut plan = Plan { from: &host, to: &tree, rules, totals: &mut *totals };
        plan.copy(Ok(HostNode::new(path)), path.as_os_str().as_bytes(), (&parent, name))?;
    }
    Ok(())
}

/// Copies all that is in `source`, a directory of this machine or a tar archive, into the root of a new volume; returns how
/// many things could not be copied.
pub fn fill(source: &Path, (fs, image): (&dyn FileSystem, &Path), rules: FillRules) -> Result<u64> {
    let mut totals = Totals::new(spinner(rules.quiet));
    let tree = VolumeTree::new(fs, image);
    let root = tree.resolve(b"/", Last::Follow)?;
    let rules = Rules { owner: None, follow: Follow::Never, recursive: true, epoch: rules.epoch };
    if source.is_dir() {
        let ahead = Ahead::new(source)?;
        let mut copier = Copier::new(&ahead, &tree, rules, &mut totals);
        copier.contents_of(&ahead.root(), source.as_os_str().as_bytes(), (&root, true))?;
    } else {
        let archive = Archive::open(source)?;
        let mut copier = Copier::new(&archive, &tree, rules, &mut totals);
        copier.contents_of(&archive.root(), b"", (&root, archive.has_root()))?;
    }
    totals.finish();
    Ok(totals.errors)
}

/// The last component of a source's path; `None` for `.` and `DIRECTORY/.`, which name what is in a directory instead of
/// the directory, as for cp(1).
fn kept_name(path: &[u8]) -> Option<&[u8]> {
    let mut parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    let last = parts.next_back();
    match last {
        Some(b".") => None,
        Some(last) => Some(last),
        // The root of an image has a name only outside of it.
        None => Some(b"root"),
    }
}

/// The name of a directory of this machine whose path ends in `..`.
fn name_of_dots(path: &Path) -> Option<Vec<u8>> {
    let dots = path.as_os_str().as_bytes().split(|&byte| byte == b'/').rfind(|part| !part.is_empty());
    let real = path.canonicalize().ok().filter(|_| dots == Some(b".."))?;
    Some(real.file_name()?.as_bytes().to_vec())
}

/// One source of a copy.
struct Plan<'a, 't, S, T> {
    from: &'a S,
    to: &'a T,
    rules: Rules,
    totals: &'t mut Totals,
}

impl<S: Source, T: Target> Plan<'_, '_, S, T> {
    /// Copies the source `node` at `path` to a name in a directory, by default its own. What fails is reported, unless it
    /// is for want of room.
    fn copy(&mut self, node: Result<S::Node>, path: &[u8], to: (&T::Node, Option<Vec<u8>>)) -> Result<()> {
        let shown = self.from.show(path);
        match node.and_then(|node| self.copy_to(&node, path, to)) {
            Err(error) if error.is::<Full>() => Err(error),
            Err(error) => {
                self.totals.report(&shown, &error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn copy_to(&mut self, node: &S::Node, path: &[u8], to: (&T::Node, Option<Vec<u8>>)) -> Result<()> {
        let (parent, name) = to;
        let mut copier = Copier::new(self.from, self.to, self.rules, self.totals);
        let name = match (name, kept_name(path)) {
            (Some(name), _) => name,
            (None, Some(name)) if name != b".." => name.to_vec(),
            (None, Some(_)) => bail!("a path that ends in `..` has no name to keep"),
            (None, None) => {
                ensure!(self.rules.recursive, "it is a directory: add -r");
                return copier.contents_of(node, path, (parent, true));
            }
        };
        copier.named(node, path, parent, &name)
    }
}

/// How a new volume is filled.
#[derive(Clone, Copy, Debug)]
pub struct FillRules {
    /// See [`Rules::epoch`].
    pub epoch: Option<fstitch_core::Timestamp>,
    /// Show nothing.
    pub quiet: bool,
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// The last component of a path inside an image; the root itself is called `root` outside.
fn base_name(path: &[u8]) -> Result<Vec<u8>> {
    let mut parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    let last = parts.next_back().unwrap_or(b"root");
    ensure!(last != b"." && last != b"..", "`.` and `..` cannot be the last component of a path in an image");
    Ok(last.to_vec())
}

/// All but the last component.
fn parent_bytes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    &path[..slash]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_inside_images_are_split() {
        assert_eq!(base_name(b"/a/b/").unwrap(), b"b");
        assert_eq!(base_name(b"/").unwrap(), b"root");
        assert!(base_name(b"/a/..").is_err());
        assert_eq!(parent_bytes(b"/a/b/"), b"/a");
        assert_eq!(parent_bytes(b"/a"), b"");
        assert_eq!(parent_bytes(b"/"), b"");
    }

    #[test]
    fn owners_are_parsed() {
        assert_eq!(parse_owner("0:1000"), Ok((0, 1000)));
        assert!(parse_owner("0").is_err());
        assert!(parse_owner("a:0").is_err());
    }
}
