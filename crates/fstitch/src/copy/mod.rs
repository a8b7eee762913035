//! `fstitch cp`: trees between this machine and images, in either direction, without a mount.

mod engine;
mod host;
mod tree;
mod volume;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fstitch_core::FileKind;

use crate::location::Location;
use crate::open::{self, Access};
use crate::output::{Outcome, spinner, usage};
use crate::paths::Last;
use engine::{Copier, Totals};
use host::HostTree;
use tree::{Meta, Tree};
use volume::VolumeTree;

/// Arguments of `cp`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Copy directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R', visible_short_alias = 'a')]
    recursive: bool,
    /// Give everything this owner and group instead of those of the source
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to copy: paths of this machine, or IMAGE:/path
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<std::ffi::OsString>,
    /// Where to: a path of this machine, or IMAGE:/path; an existing directory receives the sources
    #[arg(value_name = "DESTINATION")]
    destination: std::ffi::OsString,
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').ok_or("write UID:GID, such as 1000:1000")?;
    let number = |part: &str| part.parse().map_err(|_| format!("`{part}` is not a number"));
    Ok((number(uid)?, number(gid)?))
}

/// Runs `cp`. Files that could not be copied are reported; the rest is copied all the same.
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
    let host = HostTree::new();
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
        let volume = arguments.volume.open(image, Access::ReadOnly)?;
        let tree = VolumeTree::new(&*volume.fs);
        let node = tree.resolve(path, Last::Keep).with_context(|| format!("in {}", image.display()))?;
        let into = target.is_dir();
        let (parent, name) = if into {
            (target.to_path_buf(), base_name(path)?)
        } else {
            let name = target.file_name().context("the destination has no name")?.as_bytes().to_vec();
            (parent_of(target), name)
        };
        ensure!(parent.is_dir(), "{} is not a directory", parent.display());
        let plan = Plan { arguments, from: &tree, to: &host };
        plan.copy(&node, &parent, &name, totals)?;
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
    let result = into_volume(arguments, sources, &*volume.fs, target, totals);
    // The volume is closed in an orderly way whatever happened: what was copied so far is whole.
    volume.close().with_context(|| format!("closing {}", image.display()))?;
    result.with_context(|| format!("in {}", image.display()))
}

fn into_volume(
    arguments: &Arguments,
    sources: &[Location],
    fs: &dyn fstitch_core::FileSystem,
    target: &[u8],
    totals: &mut Totals,
) -> Result<()> {
    let tree = VolumeTree::new(fs);
    let host = HostTree::new();
    let existing = tree.resolve(target, Last::Follow).ok();
    let directory = match &existing {
        Some(node) => tree.meta(node)?.kind == FileKind::Directory,
        None => false,
    };
    ensure!(directory || sources.len() == 1, "several sources need a directory as destination");
    for source in sources {
        let Location::Host(path) = source else {
            return Err(usage(
                "copying from one image to another is not offered: copy to a directory in between",
            ));
        };
        if directory && is_contents(path) {
            copy_contents(arguments, &tree, &host, (path, target), totals)?;
            continue;
        }
        let (parent, name) = if directory {
            (tree.resolve(target, Last::Follow)?, source_name(path)?)
        } else {
            (tree.resolve(parent_bytes(target), Last::Follow)?, base_name(target)?)
        };
        let plan = Plan { arguments, from: &host, to: &tree };
        plan.copy(path, &parent, &name, totals)?;
    }
    Ok(())
}

/// The name of a source, also where its path does not end in one (`..`, `/a/..`).
fn source_name(path: &Path) -> Result<Vec<u8>> {
    let name = match path.file_name() {
        Some(name) => Some(name.to_os_string()),
        None => path.canonicalize()?.file_name().map(std::ffi::OsStr::to_os_string),
    };
    Ok(name.with_context(|| format!("{} has no name to keep", path.display()))?.into_encoded_bytes())
}

/// `dir/.` names what is in a directory instead of the directory, as for cp(1).
fn is_contents(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/.") || path.as_os_str() == "."
}

fn copy_contents(
    arguments: &Arguments,
    tree: &VolumeTree<'_>,
    host: &HostTree,
    (source, target): (&PathBuf, &[u8]),
    totals: &mut Totals,
) -> Result<()> {
    ensure!(arguments.recursive, "{} is a directory: add -r", source.display());
    let plan = Plan { arguments, from: host, to: tree };
    let parent = tree.resolve(target, Last::Follow)?;
    let mut copier = plan.copier(totals);
    copier.children(source, &parent, 0)
}

struct Plan<'a, S, T> {
    arguments: &'a Arguments,
    from: &'a S,
    to: &'a T,
}

impl<'a, S: Tree, T: Tree> Plan<'a, S, T> {
    fn copier<'t>(&self, totals: &'t mut Totals) -> Copier<'a, 't, S, T> {
        Copier::new(self.from, self.to, self.arguments.owner, totals)
    }

    fn copy(&self, node: &S::Node, parent: &T::Node, name: &[u8], totals: &mut Totals) -> Result<()> {
        let meta: Meta = self.from.meta(node).with_context(|| self.from.show(node))?;
        if meta.kind == FileKind::Directory {
            ensure!(self.arguments.recursive, "{} is a directory: add -r", self.from.show(node));
        }
        self.copier(totals).item(node, parent, name, 0)
    }
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
