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
use super::goal::{circumstances, columns, goal_row, is_memory, plain_row, spread};
use super::strings;
use crate::inside;
use crate::workload::FILLER;

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

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
