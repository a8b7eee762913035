//! The tables of the logical disk: \[A\] §5, and what its users ask.
//!
//! ```text
//!   log       the log's share of the device, empty units, durable units    ─┐
//!   cleaning  write amplification by what is taken                          ├─► image ─► FileDisk (counted) ─► Disk
//!   large     1 TiB: memory, opening; in a process of its own              ─┘                                   │
//!   minix     MinixLLD: what units cost; Figs 5 and 6                      ◄────────────────────────────────────┤
//!   served    volumes over NBD, asked by the client here                   ◄────────────────────────────────────┘
//! ```

mod cleaning;
mod client;
mod large;
mod log;
mod minix;
mod minix_runs;
mod served;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_core::num::to_usize;
use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, BlockWrite};
use fstitch_lld::{Disk, FormatOptions, Options};
use tempfile::TempPath;

pub(super) use self::cleaning::table as cleaning;
pub use self::large::child;
pub(super) use self::large::table as large;
pub(super) use self::log::table as log;
pub(super) use self::minix::{large_file, small_files, units};
pub(super) use self::served::table as served;
use super::strings;
use crate::inside;
use crate::report::Wanted;
use crate::results::{BUILD, Spread};
use crate::workload::FILLER;

/// What a file system in memory says that it is.
const TMPFS: u64 = 0x0102_1994;

/// The columns of tables of goals.
fn columns() -> Vec<String> {
    strings(["", "measured", "least to most", "wanted", "to the goal", ""])
}

/// A row of a table of goals: the median counts.
fn goal_row(what: &str, unit: &str, measured: Spread, wanted: Wanted) -> Vec<String> {
    let (limit, sign) = match wanted {
        Wanted::AtMost(limit) => (limit, "<="),
        Wanted::AtLeast(limit) => (limit, ">="),
    };
    let is_met = match wanted {
        Wanted::AtMost(limit) => measured.median <= limit,
        Wanted::AtLeast(limit) => measured.median >= limit,
    };
    vec![
        what.to_owned(),
        format!("{}{unit}", short(measured.median)),
        format!("{}-{}", short(measured.least), short(measured.most)),
        format!("{sign} {limit}{unit}"),
        format!("{:.2}", measured.median / limit),
        if is_met { "met" } else { "**missed**" }.to_owned(),
    ]
}

/// A row for which nothing is wanted: it shows where others come from.
fn plain_row(what: &str, unit: &str, measured: Spread) -> Vec<String> {
    let spread = format!("{}-{}", short(measured.least), short(measured.most));
    let [what, measured] = [what.to_owned(), format!("{}{unit}", short(measured.median))];
    vec![what, measured, spread, "-".to_owned(), "-".to_owned(), String::new()]
}

/// Four digits of small numbers, and large ones without parts.
fn short(number: f64) -> String {
    match number.abs() {
        small if small < 10.0 => format!("{number:.3}"),
        middle if middle < 1000.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// The build, the media and the repeats, for what a table says about itself.
fn circumstances(media: &[(&str, &Path)], repeats: usize) -> String {
    let build = if cfg!(debug_assertions) {
        "**A DEBUG BUILD: THESE NUMBERS SAY NOTHING ABOUT SPEED.**".to_owned()
    } else {
        format!("Measured in {BUILD}.")
    };
    let media: Vec<String> =
        media.iter().map(|(name, directory)| format!("`{name}` is {}", medium(directory))).collect();
    let often = match repeats {
        1 => "measured once".to_owned(),
        _ => format!("medians of {repeats}"),
    };
    format!("{build} {}; {often}.", media.join(", "))
}

/// Whether files in a directory are in memory.
fn is_memory(directory: &Path) -> bool {
    let found = rustix::fs::statfs(directory);
    found.is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == TMPFS))
}

/// What files in a directory are.
fn medium(directory: &Path) -> &'static str {
    match rustix::fs::statfs(directory) {
        Ok(_) if is_memory(directory) => "a file in memory, through the kernel's pages",
        Ok(_) => "a file on a disk, past the kernel's pages where its file system allows that",
        Err(_) => "a file on something that does not say what it is",
    }
}

/// An image every byte of which was written before, so that nobody has to make room for it below.
fn image(directory: &Path, bytes: u64) -> Result<TempPath> {
    let mut image = sparse(directory, bytes)?;
    (0..bytes / u64::try_from(FILLER.len())?).try_for_each(|_| image.write_all(&FILLER))?;
    image.as_file().sync_all()?;
    Ok(image.into_temp_path())
}

/// An image of which nothing is written.
fn sparse(directory: &Path, bytes: u64) -> Result<tempfile::NamedTempFile> {
    let image = tempfile::Builder::new().prefix("lld-").tempfile_in(directory);
    let image = image.with_context(|| directory.display().to_string())?;
    image.as_file().set_len(bytes)?;
    Ok(image)
}

/// An empty disk on a medium, with segments as they suit its size.
fn fresh(device: &inside::Disk, options: &Options) -> Result<Disk> {
    wipe(device)?;
    let device = Arc::clone(device) as Arc<dyn BlockDevice>;
    let format = FormatOptions::for_bytes(device.geometry().bytes());
    Disk::format(Arc::clone(&device), &format)?;
    Ok(Disk::open(device, options)?.0)
}

/// Writes over all of a medium: recovery must not find the chunks of the disk before, which formatting leaves where they are.
fn wipe(device: &inside::Disk) -> Result<()> {
    let piece = BlockBuf::copy_of(&FILLER[..]);
    let blocks = device.geometry().block_count;
    let pieces = piece.chunks_exact(to_usize(inside::BLOCK_SIZE));
    for first in (0..blocks).step_by(pieces.len()) {
        let writes: Vec<_> = (first..blocks)
            .zip(pieces.clone())
            .map(|(block, data)| BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data })
            .collect();
        device.write(&writes)?;
    }
    Ok(device.flush()?)
}

/// What reached a medium so far, in bytes.
fn written(device: &inside::Disk) -> u64 {
    device.stats().blocks_written.get() * u64::from(inside::BLOCK_SIZE)
}

/// The middle of what was measured.
fn spread(numbers: Vec<f64>) -> Result<Spread> {
    Spread::of(numbers).context("nothing was measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_on_its_side_of_the_limit() {
        let of = |median| Spread { median, least: 0.5, most: 2.0 };
        let said = |median, wanted| goal_row("x", " ns", of(median), wanted).pop().unwrap();
        assert_eq!(said(0.9, Wanted::AtLeast(0.9)), "met");
        assert_eq!(said(0.89, Wanted::AtLeast(0.9)), "**missed**");
        assert_eq!(said(200.0, Wanted::AtMost(200.0)), "met");
        assert_eq!(said(201.0, Wanted::AtMost(200.0)), "**missed**");
        let row = goal_row("x", " ns", of(400.0), Wanted::AtMost(200.0));
        assert_eq!(row[1..5], ["400.0 ns", "0.500-2.000", "<= 200 ns", "2.00"]);
        assert_eq!(row.len(), columns().len());
        assert_eq!(plain_row("x", "", of(1.0)).len(), columns().len());
    }

    #[test]
    fn an_image_is_there_to_its_last_byte() {
        let directory = tempfile::tempdir().unwrap();
        let image = image(directory.path(), 9 << 20).unwrap();
        let bytes = std::fs::read(&image).unwrap();
        assert_eq!(bytes.len(), 9 << 20);
        assert!(bytes.iter().all(|byte| *byte == FILLER[0]));
        let device = inside::disk(&image).unwrap();
        drop(fresh(&device, &Options::default()).unwrap());
        wipe(&device).unwrap();
        assert_eq!(std::fs::read(&image).unwrap(), bytes, "nothing of a disk is left");
        let said = circumstances(&[("disk", directory.path())], 5);
        assert_eq!(said.contains("A DEBUG BUILD"), cfg!(debug_assertions), "{said}");
        assert!(said.contains("medians of 5") && said.contains("`disk` is a file"), "{said}");
    }
}
