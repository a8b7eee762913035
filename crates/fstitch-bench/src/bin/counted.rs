//! Does one operation so many times, for instruction counts: `counted OPERATION CONSISTENCY|ufs2|waffle COUNT`; a consistency is one of ext3.
//! Run under callgrind with two counts, the difference is the cost of the operations alone (`cargo xtask counts`).
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fstitch_bench::inside::Inside;
use fstitch_core::Consistency;
use fstitch_core::{
    BlockDevice, Caller, Clock, FileSystem, InodeNo, MemDevice, RenameMode, SystemClock, Timestamp,
};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ufs::layout::superblock::Version;
use fstitch_fs::ufs::{self, Ufs};
use fstitch_fs::uhfs::{AtimePolicy, LowLevelFs, UhfsOptions};
use fstitch_fs::waffle::{self, Waffle};
use fstitch_patch::{Cache, CacheOptions};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Blocks of the volume: 512 MiB.
const BLOCKS: u64 = 128 << 10;
/// Blocks of the file that is read and written again, and names that are removed: counts are below it, so that making
/// them is no part of the operations.
const STABLE: u64 = 8 << 10;
/// Blocks of a large request: 1 MiB.
const LARGE: u64 = 256;
const MODE: u16 = 0o100_644;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [operation, volume, count] = &words[..] else {
        bail!("usage: counted OPERATION CONSISTENCY|ufs2|waffle COUNT")
    };
    let count: u64 = count.parse().context("COUNT")?;
    let device = Arc::new(MemDevice::new(4096, BLOCKS));
    // Nothing is written before the end: the operations are counted, then, by other names, making them stable.
    let cache = CacheOptions {
        cache_size: 1 << 30,
        write_back_age: Duration::from_secs(3600),
        ..CacheOptions::default()
    };
    let looks = Arc::new(Looks::default());
    let (fs, used): (Arc<dyn FileSystem>, Arc<Cache>) = match volume.as_str() {
        "ufs2" => ufs2(device, cache, looks)?,
        "waffle" => waffle(device, cache, looks)?,
        consistency => {
            Inside::make(&*device, u32::try_from(count.max(119_000) + 1000)?)?;
            let consistency: Consistency = consistency.parse().map_err(anyhow::Error::msg)?;
            let inside = Inside::open_with(device, consistency, cache, looks)?;
            (inside.fs, inside.cache)
        }
    };
    let work = Work { fs: &*fs, caller: Caller::default() };
    let (root, clock) = (fs.root(), SystemClock::new());
    run(&work, operation, root, count)?;
    let each = clock.elapsed().as_secs_f64() * 1e6 / count as f64;
    eprintln!("{operation}: {each:.2} us; {:?}", used.stats());
    // Giving all memory back is no part of an operation.
    std::mem::forget((fs, used));
    Ok(())
}

/// What time it is when a volume is made.
const MADE: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };

/// A new volume of UFS2 with soft updates, and its cache.
fn ufs2(
    device: Arc<dyn BlockDevice>,
    cache: CacheOptions,
    clock: Arc<dyn Clock>,
) -> Result<(Arc<dyn FileSystem>, Arc<Cache>)> {
    let options = ufs::mkfs::MkfsOptions::new(Version::Two, [7; 2], MADE);
    ufs::mkfs::mkfs(&*device, &options, &mut |_, _| {})?;
    let fs = UhfsOptions { atime: AtimePolicy::RelAtime, ..UhfsOptions::default() };
    let arrangement =
        Arrangement { consistency: Some(Consistency::Soft), cache, fs, ..Arrangement::default() };
    let (fs, _) = arrange::open::<Ufs>(device, &arrangement, clock)?;
    let cache = Arc::clone(LowLevelFs::cache(fs.format()));
    Ok((Arc::new(fs), cache))
}

/// A new volume of waffle, and its cache.
fn waffle(
    device: Arc<dyn BlockDevice>,
    cache: CacheOptions,
    clock: Arc<dyn Clock>,
) -> Result<(Arc<dyn FileSystem>, Arc<Cache>)> {
    let made = waffle::mkfs::MkfsOptions {
        uuid: [7; 16],
        label: Vec::new(),
        seed: 7,
        now: MADE,
        owner: (0, 0),
        blocks: None,
        is_compressed: false,
    };
    waffle::mkfs::mkfs(Arc::clone(&device), &made)?;
    let options = waffle::Options { atime: AtimePolicy::RelAtime, ..waffle::Options::default() };
    let fs = Waffle::mount(device, cache, clock, options)?;
    let cache = Arc::clone(fs.cache());
    Ok((fs, cache))
}

/// A clock that moves by 2 microseconds at each look, so that what depends on the time is the same in every run.
#[derive(Default)]
struct Looks(AtomicU64);

impl Clock for Looks {
    fn now(&self) -> Timestamp {
        let now = self.elapsed();
        // In steps, like the machine's clock.
        Timestamp {
            secs: 1_700_000_000 + i64::try_from(now.as_secs()).unwrap_or(0),
            nanos: now.subsec_nanos() - now.subsec_nanos() % SystemClock::STEP_NANOS,
        }
    }

    fn elapsed(&self) -> Duration {
        Duration::from_micros(2 * self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Does the operation so many times, after what it needs.
fn run(work: &Work<'_>, operation: &str, root: InodeNo, count: u64) -> Result<()> {
    match operation {
        "create" => work.create(root, count)?,
        "create-spread" => work.create_spread(root, count)?,
        "small" => work.small(root, count)?,
        "unlink" => {
            work.stable_names(root, count)?;
            work.unlink(root, (0..count).map(name))?;
        }
        "unlink-reverse" => {
            work.stable_names(root, count)?;
            work.unlink(root, (0..count).rev().map(name))?;
        }
        "unlink-shuffled" => {
            work.stable_names(root, count)?;
            // Steps of an odd number visit each of a power of two once.
            work.unlink(root, (0..count).map(|no| name(no * 5119 % STABLE)))?;
        }
        "replace" => {
            work.stable_names(root, count)?;
            work.replace(root, count)?;
        }
        "churn" => work.churn(root, count)?,
        "rename" => {
            work.stable_names(root, count)?;
            work.rename(root, count)?;
        }
        "mkdir" => work.mkdir(root, count)?,
        "create-sync" => {
            work.create(root, count)?;
            work.fs.sync()?;
        }
        "write" => drop(work.write(root, count)?),
        "write-sync" => {
            work.write(root, count)?;
            work.fs.sync()?;
        }
        "rewrite" => {
            let ino = work.stable(count)?;
            work.blocks(ino, count, 1)?;
        }
        "rewrite-large" => {
            let ino = work.stable(count)?;
            work.blocks(ino, count, LARGE)?;
        }
        "read" | "read-large" => {
            let ino = work.stable(count)?;
            work.read(ino, count, if operation == "read" { 1 } else { LARGE })?;
        }
        "write-large" | "write-large-sync" => {
            let ino = work.file(root)?;
            work.blocks(ino, count, LARGE)?;
            if operation == "write-large-sync" {
                work.fs.sync()?;
            }
        }
        "lookup" => {
            work.create(root, 1)?;
            work.lookup(root, count)?;
        }
        other => bail!("no operation is called `{other}`"),
    }
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

    /// In directories of a hundred names each.
    fn create_spread(&self, root: InodeNo, count: u64) -> Result<()> {
        for no in (0..count).step_by(100) {
            let dir = self.fs.mkdir(&self.caller, root, name(no).as_bytes(), 0o755)?.attr.ino;
            self.create(dir, 100.min(count - no))?;
            self.fs.forget(dir, 1);
        }
        Ok(())
    }

    /// In directories of a hundred names each, with a block of contents.
    fn small(&self, root: InodeNo, count: u64) -> Result<()> {
        let data = [0x5A; 4096];
        for no in (0..count).step_by(100) {
            let dir = self.fs.mkdir(&self.caller, root, name(no).as_bytes(), 0o755)?.attr.ino;
            for no in 0..100.min(count - no) {
                let file = self.fs.mknod(&self.caller, dir, name(no).as_bytes(), MODE, 0)?.attr.ino;
                self.fs.write(&self.caller, file, 0, &data)?;
                self.fs.forget(file, 1);
            }
            self.fs.forget(dir, 1);
        }
        Ok(())
    }

    fn unlink(&self, root: InodeNo, mut names: impl Iterator<Item = String>) -> Result<()> {
        names.try_for_each(|name| Ok(self.fs.unlink(&self.caller, root, name.as_bytes())?))
    }

    /// Removes names here and there and makes one anew each time.
    fn replace(&self, root: InodeNo, count: u64) -> Result<()> {
        for no in 0..count {
            let name = name(no * 7919 % count);
            self.fs.unlink(&self.caller, root, name.as_bytes())?;
            let entry = self.fs.mknod(&self.caller, root, name.as_bytes(), MODE, 0)?;
            self.fs.forget(entry.attr.ino, 1);
        }
        Ok(())
    }

    /// Removes the oldest of a hundred names and makes another, again and again, in a directory that is not on the medium yet.
    fn churn(&self, root: InodeNo, count: u64) -> Result<()> {
        let dir = self.fs.mkdir(&self.caller, root, b"young", 0o755)?.attr.ino;
        for no in 0..count {
            let entry = self.fs.mknod(&self.caller, dir, name(no).as_bytes(), MODE, 0)?;
            self.fs.forget(entry.attr.ino, 1);
            if let Some(oldest) = no.checked_sub(100) {
                self.fs.unlink(&self.caller, dir, name(oldest).as_bytes())?;
            }
        }
        self.fs.forget(dir, 1);
        Ok(())
    }

    fn rename(&self, root: InodeNo, count: u64) -> Result<()> {
        for no in 0..count {
            let (from, to) = (name(no), format!("g{no:06}"));
            let (from, to) = ((root, from.as_bytes()), (root, to.as_bytes()));
            self.fs.rename(&self.caller, from, to, RenameMode::Replace)?;
        }
        Ok(())
    }

    fn mkdir(&self, root: InodeNo, count: u64) -> Result<()> {
        for no in 0..count {
            let ino = self.fs.mkdir(&self.caller, root, name(no).as_bytes(), 0o755)?.attr.ino;
            self.fs.forget(ino, 1);
        }
        Ok(())
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

    /// Names that are stable, more of them than are asked for.
    fn stable_names(&self, root: InodeNo, count: u64) -> Result<()> {
        ensure!(count <= STABLE, "there are {STABLE} names");
        self.create(root, STABLE)?;
        Ok(self.fs.sync()?)
    }

    /// A file whose blocks are stable and in the cache.
    fn stable(&self, count: u64) -> Result<InodeNo> {
        ensure!(count <= STABLE, "the file has {STABLE} blocks");
        let ino = self.file(self.fs.root())?;
        self.blocks(ino, STABLE, LARGE)?;
        self.fs.sync()?;
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
