//! `fstitch touch` and `truncate`.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, anyhow, bail, ensure};
use fstitch_core::{FileKind, SetAttr, SetTime, Timestamp};

use super::{CALLER, Editing, Place, USAGE, date, each};
use crate::location::Location;
use crate::open::{self, Access};
use crate::output::Outcome;
use crate::paths::{Held, Last, resolve};

/// The mode of files when nothing else is said.
const FILE_MODE: u16 = 0o644;

/// Arguments of `touch`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Touch {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Change the time of the last access only
    #[arg(short = 'a')]
    access: bool,
    /// Change the time of the last change only
    #[arg(short = 'm')]
    change: bool,
    /// This time instead of now: 2023-11-14T22:13:20 (UTC, or with a zone such as +01:00), or @SECONDS
    #[arg(short = 'd', long, value_name = "DATE", value_parser = date::parse, conflicts_with = "reference", allow_hyphen_values = true)]
    date: Option<Timestamp>,
    /// The times of this file instead of now: a path of this machine, or IMAGE:/path
    #[arg(short = 'r', long, value_name = "FILE")]
    reference: Option<OsString>,
    /// Change symbolic links themselves, not what they point at
    #[arg(short = 'h', long)]
    no_dereference: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to change, or make
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    places: Vec<OsString>,
}

/// Runs `touch`.
pub fn touch(arguments: &Touch) -> Result<Outcome> {
    let places = match Place::parse_all(&arguments.places) {
        Ok(places) => places,
        Err(outcome) => return Ok(outcome),
    };
    let times = match (&arguments.date, &arguments.reference) {
        (Some(date), _) => (SetTime::At(*date), SetTime::At(*date)),
        (None, Some(reference)) => {
            let (atime, mtime) = times_of(arguments, reference)
                .with_context(|| format!("the times of {}", reference.display()))?;
            (SetTime::At(atime), SetTime::At(mtime))
        }
        (None, None) => (SetTime::Now, SetTime::Now),
    };
    let both = arguments.access == arguments.change;
    let set = SetAttr {
        atime: (both || arguments.access).then_some(times.0),
        mtime: (both || arguments.change).then_some(times.1),
        ..SetAttr::default()
    };
    each(&arguments.volume, &places, &mut |editing, path| {
        let last = if arguments.no_dereference { Last::Keep } else { Last::Follow };
        let make = !arguments.no_create && !arguments.no_dereference;
        let Some(node) = found_or_made(editing, path, last, make)? else { return Ok(()) };
        editing.fs.setattr(&CALLER, node.ino(), &set)?;
        Ok(())
    })
}

/// The times of a file here or in an image.
fn times_of(arguments: &Touch, reference: &OsString) -> Result<(Timestamp, Timestamp)> {
    let time = |secs, nanos: i64| Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0) };
    match Location::parse(reference) {
        Location::Host(path) => {
            let meta = std::fs::metadata(path)?;
            Ok((time(meta.atime(), meta.atime_nsec()), time(meta.mtime(), meta.mtime_nsec())))
        }
        Location::Image { image, path } => {
            let volume = arguments.volume.open(&image, Access::ReadOnly)?;
            let attr = resolve(&*volume.fs, &path, Last::Follow)?.attr()?;
            Ok((attr.atime, attr.mtime))
        }
    }
}

/// What is at `path`, or a new empty file; `None` if nothing is there and nothing is to be made.
pub(super) fn found_or_made<'a>(
    editing: &Editing<'a>,
    path: &[u8],
    last: Last,
    make: bool,
) -> Result<Option<Held<'a>>> {
    let error = match editing.resolve(path, last) {
        Ok(node) => return Ok(Some(node)),
        Err(error) => error,
    };
    // Only a name that is missing in a directory that is there is made.
    let Ok((parent, name)) = editing.parent(path) else {
        return if make { Err(error) } else { Ok(None) };
    };
    match editing.fs.lookup(parent.ino(), name) {
        Ok(dangling) => {
            drop(Held::new(editing.fs, dangling.attr.ino));
            Err(error)
        }
        Err(_) if !make => Ok(None),
        Err(_) => {
            let mode = FileKind::Regular.mode_bits() | FILE_MODE;
            let made = editing.fs.mknod(&CALLER, parent.ino(), name, mode, 0)?;
            Ok(Some(Held::new(editing.fs, made.attr.ino)))
        }
    }
}

/// Arguments of `truncate`.
#[derive(clap::Args)]
pub struct Truncate {
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The new size, such as 10M; +10M or -10M by so much, <10M at most, >10M at least, /4K or %4K rounded down or up
    #[arg(short = 's', long, value_name = "SIZE", value_parser = Size::parse, allow_hyphen_values = true)]
    size: Size,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to change, or make; what is added is a hole
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    places: Vec<OsString>,
}

/// A size, relative to an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// `=` for exactly this.
    operation: u8,
    bytes: u64,
}

impl Size {
    fn parse(text: &str) -> Result<Self, String> {
        let operation = text.bytes().next().filter(|byte| b"+-<>/%".contains(byte));
        let rest = if operation.is_some() { &text[1..] } else { text };
        let (operation, bytes) = (operation.unwrap_or(b'='), crate::size::bytes(rest)?);
        if bytes == 0 && b"/%".contains(&operation) {
            return Err("nothing is a multiple of 0".to_owned());
        }
        Ok(Self { operation, bytes })
    }

    fn of(self, old: u64) -> Result<u64> {
        let too_large = || anyhow!("it would be too large");
        Ok(match self.operation {
            b'+' => old.checked_add(self.bytes).ok_or_else(too_large)?,
            b'-' => old.saturating_sub(self.bytes),
            b'<' => old.min(self.bytes),
            b'>' => old.max(self.bytes),
            b'/' => old - old % self.bytes,
            b'%' => old.checked_next_multiple_of(self.bytes).ok_or_else(too_large)?,
            _ => self.bytes,
        })
    }
}

/// Runs `truncate`.
pub fn truncate(arguments: &Truncate) -> Result<Outcome> {
    let places = match Place::parse_all(&arguments.places) {
        Ok(places) => places,
        Err(outcome) => return Ok(outcome),
    };
    if places.is_empty() {
        return Ok(USAGE);
    }
    each(&arguments.volume, &places, &mut |editing, path| {
        let Some(node) = found_or_made(editing, path, Last::Follow, !arguments.no_create)? else {
            return Ok(());
        };
        let attr = node.attr()?;
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => bail!("it is a directory"),
            _ => bail!("it is no file"),
        }
        let size = arguments.size.of(attr.size)?;
        ensure!(i64::try_from(size).is_ok(), "it would be too large");
        editing.fs.setattr(&CALLER, node.ino(), &SetAttr { size: Some(size), ..SetAttr::default() })?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_truncate() {
        for (text, old, new) in [
            ("10", 3, 10),
            ("+10", 3, 13),
            ("-10", 3, 0),
            ("-1K", 2000, 976),
            ("<10", 30, 10),
            (">10", 3, 10),
            ("/4K", 5000, 4096),
            ("%4K", 5000, 8192),
        ] {
            assert_eq!(Size::parse(text).unwrap().of(old).unwrap(), new, "{text} of {old}");
        }
        assert!(Size::parse("x").is_err() && Size::parse("%0").is_err());
        assert!(Size::parse("+1").unwrap().of(u64::MAX).is_err());
    }
}
