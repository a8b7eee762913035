//! Does one operation so many times, for instruction counts: `counted OPERATION CONSISTENCY COUNT`.
//! Run under callgrind with two counts, the difference is the cost of the operations alone (`cargo xtask counts`).
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fstitch_bench::inside::Inside;
use fstitch_core::{Caller, Clock, FileSystem, InodeNo, MemDevice, SystemClock};
use fstitch_fs::ext2::arrange::Consistency;
use fstitch_patch::CacheOptions;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Blocks of the volume: 512 MiB.
const BLOCKS: u64 = 128 << 10;
/// Blocks of the file that is read and written again: counts are below it, so that making it is no part of them.
const STABLE: u64 = 8 << 10;
/// Blocks of a large request: 1 MiB.
const LARGE: u64 = 256;
const MODE: u16 = 0o100_644;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [operation, consistency, count] = &words[..] else {
        bail!("usage: counted OPERATION CONSISTENCY COUNT")
    };
    let consistency: Consistency = consistency.parse().map_err(anyhow::Error::msg)?;
    let count: u64 = count.parse().context("COUNT")?;
    let device = Arc::new(MemDevice::new(4096, BLOCKS));
    Inside::make(&*device, 120_000)?;
    // Nothing is written before the end: the operations are counted, then, by other names, making them stable.
    let cache = CacheOptions {
        cache_size: 1 << 30,
        write_back_age: Duration::from_secs(3600),
        ..CacheOptions::default()
    };
    let inside = Inside::open(device, consistency, cache)?;
    let work = Work { fs: &*inside.fs, caller: Caller::default() };
    let (root, clock) = (inside.fs.root(), SystemClock::new());
    match operation.as_str() {
        "create" => work.create(root, count)?,
        "unlink" => {
            work.create(root, count)?;
            inside.fs.sync()?;
            work.unlink(root, count)?;
        }
        "create-sync" => {
            work.create(root, count)?;
            inside.fs.sync()?;
        }
        "write" => drop(work.write(root, count)?),
        "write-sync" => {
            work.write(root, count)?;
            inside.fs.sync()?;
        }
        "rewrite" => {
            let ino = work.stable(&inside, count)?;
            work.blocks(ino, count, 1)?;
        }
        "read" | "read-large" => {
            let ino = work.stable(&inside, count)?;
            work.read(ino, count, if operation == "read" { 1 } else { LARGE })?;
        }
        "write-large" | "write-large-sync" => {
            let ino = work.file(root)?;
            work.blocks(ino, count, LARGE)?;
            if operation == "write-large-sync" {
                inside.fs.sync()?;
            }
        }
        "rewrite-large" => {
            let ino = work.stable(&inside, count)?;
            work.blocks(ino, count, LARGE)?;
        }
        "lookup" => {
            work.create(root, 1)?;
            work.lookup(root, count)?;
        }
        other => bail!("no operation is called `{other}`"),
    }
    let each = clock.elapsed().as_secs_f64() * 1e6 / count as f64;
    eprintln!("{operation}: {each:.2} us; {:?}", inside.cache.stats());
    // Giving all memory back is no part of an operation.
    std::mem::forget(inside);
    Ok(())
}

/// Operations on the volume.
struct Work<'a> {
    fs: &'a dyn FileSystem,
    caller: Caller,
}

impl Work<'_> {
    fn create(&self, root: InodeNo, count: u64) -> Result<()> {
        for no in 0..count {
            let entry = self.fs.mknod(&self.caller, root, name(no).as_bytes(), MODE, 0)?;
            self.fs.forget(entry.attr.ino, 1);
        }
        Ok(())
    }

    fn unlink(&self, root: InodeNo, count: u64) -> Result<()> {
        (0..count).try_for_each(|no| Ok(self.fs.unlink(&self.caller, root, name(no).as_bytes())?))
    }

    fn lookup(&self, root: InodeNo, count: u64) -> Result<()> {
        for _ in 0..count {
            let entry = self.fs.lookup(root, name(0).as_bytes())?;
            self.fs.forget(entry.attr.ino, 1);
        }
        Ok(())
    }

    fn write(&self, root: InodeNo, count: u64) -> Result<InodeNo> {
        let ino = self.file(root)?;
        self.blocks(ino, count, 1)?;
        Ok(ino)
    }

    fn file(&self, root: InodeNo) -> Result<InodeNo> {
        Ok(self.fs.mknod(&self.caller, root, b"file", MODE, 0)?.attr.ino)
    }

    /// A file whose blocks are stable and in the cache.
    fn stable(&self, inside: &Inside, count: u64) -> Result<InodeNo> {
        anyhow::ensure!(count <= STABLE, "the file has {STABLE} blocks");
        let ino = self.file(self.fs.root())?;
        self.blocks(ino, STABLE, LARGE)?;
        inside.fs.sync()?;
        Ok(ino)
    }

    /// Writes so many blocks, `request` at a time.
    fn blocks(&self, ino: InodeNo, count: u64, request: u64) -> Result<()> {
        let data = vec![0x5A; usize::try_from(request * 4096)?];
        for at in (0..count).step_by(usize::try_from(request)?) {
            self.fs.write(&self.caller, ino, at * 4096, &data)?;
        }
        Ok(())
    }

    /// Reads so many blocks, `request` at a time.
    fn read(&self, ino: InodeNo, count: u64, request: u64) -> Result<()> {
        let mut data = vec![0; usize::try_from(request * 4096)?];
        for at in (0..count).step_by(usize::try_from(request)?) {
            self.fs.read(ino, at * 4096, &mut data)?;
        }
        Ok(())
    }
}

fn name(no: u64) -> String {
    format!("f{no:06}")
}
