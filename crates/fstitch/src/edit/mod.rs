//! `fstitch rm`, `mkdir`, `mv`, `ln`, `chmod`, `chown`, `touch`, `truncate`, `fallocate`: changes inside an image without mounting
//! it, by the words of coreutils and util-linux.
//!
//! Each place is `IMAGE:/path`. Places that cannot be changed are reported and the others are changed all the same; a
//! volume that somebody uses is refused as a whole.

pub mod allocate;
pub mod attributes;
mod date;
mod mode;
pub mod names;
mod owner;
pub mod remove;
pub mod times;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use fstitch_core::{Caller, FileKind, FileSystem};

use crate::location::{Location, show};
use crate::open::{self, Access, Volume};
use crate::output::Outcome;
use crate::paths::{Held, Last};

/// The superuser, with a umask that changes nothing: modes are said.
const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0 };
/// Directories nest at most this deep; a damaged image that contains itself ends here.
const DEPTH_MAX: usize = 1000;
/// The exit code for wrong usage.
const USAGE: Outcome = Outcome(2);

/// A place in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    image: PathBuf,
    path: Vec<u8>,
}

impl Place {
    /// Reads `IMAGE:/path`; anything else is wrong usage, which is said here.
    fn parse(text: &OsString) -> Result<Self, Outcome> {
        match Location::parse(text) {
            Location::Image { image, path } => Ok(Self { image, path }),
            Location::Host(path) => {
                eprintln!("fstitch: {} is no place in an image: write IMAGE:/path", path.display());
                Err(USAGE)
            }
        }
    }

    fn parse_all(texts: &[OsString]) -> Result<Vec<Self>, Outcome> {
        texts.iter().map(Self::parse).collect()
    }

    fn shown(&self, path: &[u8]) -> String {
        let slash = if path.starts_with(b"/") { "" } else { "/" };
        format!("{}:{slash}{}", self.image.display(), show(path))
    }
}

/// A volume that is being changed, and what could not be.
struct Editing<'a> {
    fs: &'a dyn FileSystem,
    place: &'a Place,
    errors: u64,
}

impl<'a> Editing<'a> {
    /// What is at a path of the volume.
    fn resolve(&self, path: &[u8], last: Last) -> Result<Held<'a>> {
        crate::paths::resolve(self.fs, path, last)
    }

    /// The directory that has, or is to have, the name at `path`, and that name.
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(Held<'a>, &'p [u8])> {
        let (parent, name) = crate::paths::split(path)?;
        let held = self.resolve(parent, Last::Follow)?;
        held.attr()?.expect_directory().with_context(|| show(parent))?;
        Ok((held, name))
    }

    /// Whether something is there, and what.
    fn kind(&self, path: &[u8], last: Last) -> Option<FileKind> {
        self.resolve(path, last).and_then(|held| held.attr()).ok().map(|attr| attr.kind)
    }

    /// Says what could not be done with `path`.
    fn report(&mut self, path: &[u8], error: &anyhow::Error) {
        self.errors += 1;
        eprintln!("fstitch: {}: {}", self.place.shown(path), crate::output::reasons(error));
    }

    /// Reports what fails.
    fn tried(&mut self, path: &[u8], result: Result<()>) {
        if let Err(error) = result {
            self.report(path, &error);
        }
    }

    /// Does `work` with the thing at `path` and everything below it, directories before what is in them. Symbolic links
    /// found in directories are not followed.
    fn walk(
        &mut self,
        (path, node): (&[u8], &Held<'a>),
        depth: usize,
        work: &mut dyn FnMut(&dyn FileSystem, &Held<'a>) -> Result<()>,
    ) -> Result<()> {
        anyhow::ensure!(depth <= DEPTH_MAX, "directories nest deeper than {DEPTH_MAX}");
        work(self.fs, node)?;
        if node.attr()?.kind != FileKind::Directory {
            return Ok(());
        }
        for name in names(self.fs, node)? {
            let below = join(path, &name);
            let child = Held::new(self.fs, self.fs.lookup(node.ino(), &name)?.attr.ino);
            let done = self.walk((&below, &child), depth + 1, work);
            self.tried(&below, done);
        }
        Ok(())
    }
}

/// The names in a directory, without `.` and `..`.
fn names(fs: &dyn FileSystem, dir: &Held<'_>) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    fs.readdir(dir.ino(), 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    names.sort();
    Ok(names)
}

/// The path of a name in the directory at `path`.
fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}

/// Does `work` with each place, opening every image once for places that follow each other.
fn each(
    volume: &open::Arguments,
    places: &[Place],
    work: &mut dyn FnMut(&mut Editing<'_>, &[u8]) -> Result<()>,
) -> Result<Outcome> {
    let mut errors = 0;
    for of_one in places.chunk_by(|a, b| a.image == b.image) {
        errors += with(volume, &of_one[0], &mut |editing| {
            for place in of_one {
                let done = work(editing, &place.path);
                editing.tried(&place.path, done);
            }
        })?;
    }
    Ok(if errors == 0 { Outcome::SUCCESS } else { Outcome::FAILURE })
}

/// Opens the image of `place`, does `work` and closes it; returns how many things failed.
fn with(volume: &open::Arguments, place: &Place, work: &mut dyn FnMut(&mut Editing<'_>)) -> Result<u64> {
    let image = &place.image;
    let opened: Volume = volume.open(image, Access::ReadWrite)?;
    let mut editing = Editing { fs: &*opened.fs, place, errors: 0 };
    work(&mut editing);
    let errors = editing.errors;
    opened.close().with_context(|| format!("closing {}", image.display()))?;
    Ok(errors)
}
