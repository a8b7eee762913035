//! Memory that is there when it is wanted.
//!
//! In a virtual machine, memory that has been free for some seconds may belong to the host again (free page reporting), and to
//! touch it takes many times as long as memory that is there: on the machine of the report 2.7 seconds for a GiB instead of
//! 0.15, more than what is measured. Whoever comes first would pay for it, and a contender in this process, whose heap is warm
//! from the one before, would not. So as much memory as a workload takes is touched and freed right before each contender:
//! where it takes its own from.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fstitch_core::BlockBuf;
use fstitch_core::num::to_usize;

use crate::contender::{Contender, Side, Tools, Way};
use crate::inside::BLOCK_SIZE;
use crate::workload::FILLER;

/// Touches so many MiB of this process's heap, in blocks as a cache takes them, and frees them.
pub fn heap(mib: u64) {
    let blocks = FILLER.chunks_exact(to_usize(BLOCK_SIZE));
    let touched: Vec<_> = (0..mib).flat_map(|_| blocks.clone().map(BlockBuf::copy_of)).collect();
    std::hint::black_box(&touched);
}

/// Has memory ready for `contender`; files are put into the directory `scratch`, which is in memory. Never more than an
/// eighth of what is available.
///
/// # Errors
/// When the file cannot be written or the process not be started.
pub(crate) fn before(contender: Contender, tools: &Tools, scratch: &Path, mib: u64) -> Result<()> {
    let most = fstitch_disk::available_memory().map_or(u64::MAX, |bytes| bytes >> 23);
    let mib = mib.min(most);
    match contender {
        Contender::InProcess(_)
        | Contender::Ext4(Way::InProcess)
        | Contender::Ufs(Side::InProcess)
        | Contender::Waffle(Side::InProcess) => heap(mib),
        Contender::Defaults
        | Contender::LeftAlone
        | Contender::Mounted(_)
        | Contender::Cached(_)
        | Contender::Following(_)
        | Contender::Memory
        | Contender::Bpfs
        | Contender::BpfsMemory
        | Contender::DeviceSoft
        | Contender::DeviceMemory
        | Contender::Ext4(Way::Defaults | Way::Mounted)
        | Contender::Ufs(Side::Mounted)
        | Contender::Waffle(Side::Mounted) => {
            // The kernel keeps what was written in pages of its own as well, at the same time.
            process(tools, 2 * mib)?;
        }
        Contender::Kernel(_) | Contender::Tmpfs => pages(scratch, mib)?,
        Contender::Fuse2fs | Contender::Ext4(Way::Fuse2fs) => {
            process(tools, mib / 8)?;
            pages(scratch, mib)?;
        }
    }
    Ok(())
}

/// The memory of a new process.
fn process(tools: &Tools, mib: u64) -> Result<()> {
    let touched = Command::new(&tools.fstitch).args(["bench", "--touch", &mib.to_string()]).status();
    ensure!(touched.context("touching memory")?.success(), "touching {mib} MiB of memory failed");
    Ok(())
}

/// The kernel's pages of files.
fn pages(scratch: &Path, mib: u64) -> Result<()> {
    let mut file = tempfile::tempfile_in(scratch).with_context(|| scratch.display().to_string())?;
    (0..mib).try_for_each(|_| file.write_all(&FILLER)).with_context(|| scratch.display().to_string())
}
