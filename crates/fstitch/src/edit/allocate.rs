//! `fstitch fallocate`, by the words of util-linux.

use std::ffi::OsString;

use anyhow::{Result, anyhow, bail};
use fstitch_core::{Errno, FallocateMode, FileKind};

use super::times::found_or_made;
use super::{CALLER, Place, each};
use crate::open;
use crate::output::Outcome;
use crate::paths::Last;

/// Arguments of `fallocate`.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("operation"))]
pub struct Arguments {
    /// Where the range begins in the file, such as 10M; `--offset` is where the volume does in the image
    #[arg(short = 'o', value_name = "OFFSET", default_value = "0", value_parser = crate::size::bytes)]
    range_offset: u64,
    /// How long it is
    #[arg(short = 'l', long, value_name = "LENGTH", value_parser = crate::size::bytes)]
    length: u64,
    /// Keep the file's size; blocks are allocated behind its end
    #[arg(short = 'n', long, conflicts_with_all = ["collapse_range", "insert_range"])]
    keep_size: bool,
    /// Free what is in the range, so that it is a hole
    #[arg(short = 'p', long, group = "operation")]
    punch_hole: bool,
    /// Zero the range, by blocks that are not written where the format has such
    #[arg(short = 'z', long, group = "operation")]
    zero_range: bool,
    /// Take the range, whole blocks, out of the file: what is behind it comes in its place
    #[arg(short = 'c', long, group = "operation")]
    collapse_range: bool,
    /// Put a hole of whole blocks into the file: what is there moves behind it
    #[arg(short = 'i', long, group = "operation")]
    insert_range: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to change; a file is made where blocks are only allocated
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    places: Vec<OsString>,
}

impl Arguments {
    fn mode(&self) -> FallocateMode {
        match (self.keep_size, self.zero_range) {
            _ if self.punch_hole => FallocateMode::PunchHole,
            _ if self.collapse_range => FallocateMode::CollapseRange,
            _ if self.insert_range => FallocateMode::InsertRange,
            (true, true) => FallocateMode::ZeroRangeKeepSize,
            (false, true) => FallocateMode::ZeroRange,
            (true, false) => FallocateMode::AllocateKeepSize,
            (false, false) => FallocateMode::Allocate,
        }
    }
}

/// Runs `fallocate`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let places = match Place::parse_all(&arguments.places) {
        Ok(places) => places,
        Err(outcome) => return Ok(outcome),
    };
    let mode = arguments.mode();
    each(&arguments.volume, &places, &mut |editing, path| {
        let makes = mode == FallocateMode::Allocate;
        let Some(node) = found_or_made(editing, path, Last::Follow, makes)? else {
            bail!("there is no such file");
        };
        let attr = node.attr()?;
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => bail!("it is a directory"),
            _ => bail!("it is no file"),
        }
        let done = editing.fs.fallocate(&CALLER, node.ino(), arguments.range_offset, arguments.length, mode);
        done.map_err(|error| match error.errno() {
            Errno::INVAL if mode.shifts() => anyhow!(
                "offset and length are to be multiples of its blocks of {} bytes, above 0, within its {} bytes",
                attr.blksize,
                attr.size
            ),
            Errno::OPNOTSUPP if mode.shifts() => {
                anyhow!("blocks move only in files of extents, on ext4 with a journal")
            }
            Errno::NOSPC if mode.shifts() => {
                anyhow!("no space, or more of the file's map changes than a transaction of the journal holds")
            }
            Errno::OPNOTSUPP => anyhow!("the file system has no such operation for this file"),
            _ => error.into(),
        })
    })
}
