//! The tables of BPFS: \[D\] §3.6, and what it costs here.
//!
//! ```text
//!   operations  time, bytes, lines and fences of an operation      ─┐
//!   epochs      the same with epochs: Fig 3.10                      ├─► Bpfs ─► memory, which counts its stores
//!   scan        a mount of a full volume of 20 GiB                 ─┘    │
//!   flushes     operations that wait for a disk, 1 and 16 threads  ──────┼─► the log ─► FileDisk (counted)
//!   served      through FUSE, beside a file system in memory       ──────┤
//!   bytes       macrobenchmarks in each column: Figs 3.6 and 3.9   ──────┘
//!   rivals      the kernel's file systems on a loop device, for bytes
//! ```

mod bytes;
mod epochs;
mod flushes;
mod mounted;
mod operations;
mod rivals;
mod scan;
mod served;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_bpfs::{Bpfs, Counts, Medium, MkfsOptions, Options, mkfs};
use fstitch_core::num::to_usize;
use fstitch_core::{Caller, FileSystem, SystemClock, Timestamp};

pub(super) use self::bytes::{bonnie, build, postmark_large, postmark_small, unpacking};
pub(super) use self::epochs::table as epochs;
pub(super) use self::flushes::table as flushes;
pub(super) use self::operations::table as operations;
pub(super) use self::scan::table as scan;
pub(super) use self::served::table as served;
use crate::meter::seconds;

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0o022 };

/// How all volumes are made.
fn making() -> MkfsOptions {
    let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
    MkfsOptions { uuid: [7; 16], label: Vec::new(), now, owner: Caller::default() }
}

/// A new volume of so many bytes in a file that has no name any more.
fn in_file(directory: &Path, bytes: u64) -> Result<std::fs::File> {
    let file = tempfile::tempfile_in(directory).with_context(|| directory.display().to_string())?;
    file.set_len(bytes)?;
    mkfs(Medium::file(file.try_clone()?, false)?, &making())?;
    Ok(file)
}

/// A new volume in volatile memory, every page of which is there: persistent memory has no pages that are made when they are touched.
fn in_memory(directory: &Path, bytes: u64, options: Options) -> Result<Arc<Bpfs>> {
    let file = in_file(directory, bytes)?;
    let mut image = vec![0; to_usize(bytes)];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut image, 0)?;
    let medium = Medium::copy_of(&image)?;
    Ok(Arc::new(Bpfs::open(medium, options, Arc::new(SystemClock::new()))?))
}

/// A volume in volatile memory that is large enough for what a race does.
pub fn bpfs_in_memory() -> Result<Arc<dyn FileSystem>> {
    Ok(in_memory(&std::env::temp_dir(), 512 << 20, Options::default())?)
}

/// What went through a gate meanwhile.
fn since(after: Counts, before: Counts) -> Counts {
    Counts {
        bytes: after.bytes - before.bytes,
        lines: after.lines - before.lines,
        wide_lines: after.wide_lines - before.wide_lines,
        fences: after.fences - before.fences,
        commits: after.commits - before.commits,
        journaled: after.journaled - before.journaled,
    }
}

/// So many for each of some operations.
fn each(number: u64, operations: u64) -> String {
    format!("{:.2}", seconds(number) / seconds(operations))
}
