//! `fstitch tune`: what can be changed of a volume that is not mounted.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fstitch_core::{BlockDevice, Clock, SystemClock};
use fstitch_fs::ext2::journal::{AddOptions, add, add_device, remove};

use crate::open::{self, Access};
use crate::output::{Outcome, text};

/// Arguments of `tune`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    change: Change,
    /// Where the volume starts in the image, in bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = crate::size::bytes)]
    offset: u64,
    /// The image file or block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// What is to be changed.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Change {
    /// Add a journal, of so many bytes if a size is given: the volume becomes ext3
    #[arg(short = 'j', long = "journal", value_name = "BYTES", num_args = 0..=1, require_equals = true, value_parser = crate::size::bytes)]
    add_journal: Option<Option<u64>>,
    /// Have the journal on this device or image, which `fstitch mkfs journal` has made
    #[arg(long, value_name = "PATH")]
    journal_device: Option<PathBuf>,
    /// Take the journal away: the volume becomes ext2
    #[arg(long)]
    no_journal: bool,
}

/// Runs `tune`. A volume that was not unmounted is recovered first.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let volume = open::Arguments { offset: arguments.offset, cache_size: 0, partition: None, journal: None };
    let name = || format!("{}", arguments.image.display());
    let disk = volume.open_disk(&arguments.image, Access::ReadWrite)?;
    if let Some(report) = crate::journal::recover(&disk, None).with_context(name)? {
        text(&format!("{}: {}\n", name(), report.describe()))?;
    }
    if let Some(bytes) = arguments.change.add_journal {
        let block_size = disk.geometry().block_size;
        let blocks = crate::journal::blocks_of(bytes, block_size)?;
        let asked = AddOptions { blocks, now: SystemClock::new().now(), is_zero: false };
        let blocks = add(&disk, asked).with_context(name)?;
        let size = crate::size::show(u64::from(blocks) * u64::from(block_size));
        text(&format!("{}: a journal of {size} was added\n", name()))?;
    }
    if let Some(path) = &arguments.change.journal_device {
        let journal =
            crate::journal::open_external(Some(path), disk.geometry().block_size, Access::ReadWrite)?;
        let journal = journal.context("a journal was named")?;
        add_device(&disk, &journal, device_number(path)?).with_context(name)?;
        text(&format!("{}: its journal is on {} now\n", name(), path.display()))?;
    }
    if arguments.change.no_journal {
        remove(&disk).with_context(name)?;
        text(&format!("{}: the volume has no journal now\n", name()))?;
    }
    Ok(Outcome::SUCCESS)
}

/// The number by which Linux finds the device again without being told; 0 for a file.
fn device_number(path: &Path) -> Result<u32> {
    let meta = std::fs::metadata(path).with_context(|| format!("{}", path.display()))?;
    Ok(if meta.file_type().is_block_device() { u32::try_from(meta.rdev()).unwrap_or(0) } else { 0 })
}
