//! Files and block devices as media. What these tests prevent: blocks that land elsewhere than they should,
//! errors that name the wrong block or none, two writers of one volume, and a path (direct, cached, ring,
//! plain calls) that works differently from the others.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod batches;
mod devices;
mod failures;
mod locks;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Result};
use fstitch_disk::{Direct, DiskOptions, FileDisk, Uring};
use tempfile::TempDir;

/// Between its fork and its exec a child has all our descriptors, and with them the locks of whatever test
/// runs beside it. So tests that start programs run alone: they hold this exclusively, others shared.
static TURN: RwLock<()> = RwLock::new(());

/// A test's turn, and a directory on a real file system, where direct I/O is worth testing.
struct Folder<Turn> {
    folder: TempDir,
    _turn: Turn,
}

impl<Turn> Folder<Turn> {
    fn new(turn: Turn) -> Self {
        Self { folder: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), _turn: turn }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// An image of `bytes` zeros that lives as long as the directory.
    fn image(self, bytes: u64) -> (Self, PathBuf) {
        let path = self.path().join("disk.img");
        FileDisk::create(&path, bytes).unwrap();
        (self, path)
    }
}

/// An image for a test that starts no program.
fn image(bytes: u64) -> (Folder<RwLockReadGuard<'static, ()>>, PathBuf) {
    Folder::new(TURN.read().unwrap_or_else(PoisonError::into_inner)).image(bytes)
}

/// A directory for a test that starts programs. It must be made first and dropped last.
fn folder_alone() -> Folder<RwLockWriteGuard<'static, ()>> {
    Folder::new(TURN.write().unwrap_or_else(PoisonError::into_inner))
}

fn options(block_size: u32) -> DiskOptions {
    DiskOptions { block_size, ..DiskOptions::default() }
}

/// Every way in which I/O can go.
fn ways() -> impl Iterator<Item = (Direct, Uring)> {
    [Direct::Auto, Direct::Never]
        .into_iter()
        .flat_map(|direct| [Uring::Auto, Uring::Never].map(|io_uring| (direct, io_uring)))
}

/// One block of a recognisable pattern.
fn pattern(disk: &FileDisk, tag: u64) -> BlockBuf {
    let mut data = BlockBuf::zeroed(usize::try_from(disk.geometry().block_size).unwrap());
    for (word, at) in data.chunks_exact_mut(8).zip(0u64..) {
        word.copy_from_slice(&(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).to_le_bytes());
    }
    data
}

/// Writes a batch in which each block holds the pattern of its tag.
fn write(disk: &FileDisk, blocks: &[(u64, u64)]) -> Result<()> {
    let data: Vec<_> = blocks.iter().map(|&(_, tag)| pattern(disk, tag)).collect();
    let writes: Vec<_> = blocks
        .iter()
        .zip(&data)
        .map(|(&(block, _), data)| BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data })
        .collect();
    disk.write(&writes)
}

/// Reads a batch.
fn read(disk: &FileDisk, blocks: &[u64]) -> Result<Vec<BlockBuf>> {
    let unit = usize::try_from(disk.geometry().block_size).unwrap();
    let mut data: Vec<_> = blocks.iter().map(|_| BlockBuf::zeroed(unit)).collect();
    let mut reads: Vec<_> = blocks
        .iter()
        .zip(&mut data)
        .map(|(&block, data)| BlockRead { block: BlockNo(block), kind: BlockKind::Data, data })
        .collect();
    disk.read(&mut reads)?;
    Ok(data)
}

/// Asserts that each block holds the pattern of its tag.
#[track_caller]
fn assert_holds(disk: &FileDisk, blocks: &[(u64, u64)]) {
    let numbers: Vec<_> = blocks.iter().map(|&(block, _)| block).collect();
    for (&(block, tag), found) in blocks.iter().zip(read(disk, &numbers).unwrap()) {
        assert!(found[..] == pattern(disk, tag)[..], "block {block} does not hold pattern {tag}");
    }
}

/// Says, past the capture of test output, that a test could not run here.
fn skip(test: &str, why: &str) {
    std::io::stderr().write_all(format!("skipped: {test}: {why}\n").as_bytes()).unwrap();
}
